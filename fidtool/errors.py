"""Errors and warnings. Each error holds the problem, the setting it concerns, remedies and its exit
status.

Messages name settings through `option`. `render` writes them where the message is read: as flags
on the command line, as arguments in Python, and without the secrets that URLs may have. A message
is one line; the command line prints it without a traceback.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, get_args

T = TypeVar("T")


class MetricSetting(NamedTuple):
    """A setting of a metric, as messages name it.

    Attributes:
        kind: name of the metric's class, such as ``KID``.
        metric: name of the metric, such as ``kid``.
        name: the field of the class.
    """

    kind: str
    metric: str
    name: str


class SettingPart(NamedTuple):
    """A part of the value of a setting, such as the step in ``extractor=NAME@step=14``.

    Attributes:
        setting: the setting.
        before: the value up to the part, such as ``NAME@step``.
    """

    setting: str | MetricSetting
    prefix: str


SettingName = str | MetricSetting | SettingPart
"""What names a setting: the keyword of `fidtool.compute` or of a class of `fidtool.training`, or
one of these.
"""
Spelling = Callable[[str | MetricSetting, object], str]
"""Formats the name of a setting and its value, see `option`."""
Say = Callable[[str], None]
"""Shows a line to the user."""
# Separates the parts of a `MetricSetting` in a message.
_FIELD_SEPARATOR = "\x04"
# A scheme and the rest of the word. Every pattern here runs in linear time, because the text may be
# hostile.
_OPTION = re.compile("\x01([^\x01-\x03]*)\x02([^\x01-\x03]*)\x03")
_URL = re.compile(r"(?<![\w+.-])([\w+.-]*)://([^\s'\"]*)")
# Azure's schemes: in abfs://container@account, the part before the @ is no user name.
_USER = re.compile(r"(^|://)[^/?#]*@")
_ACCOUNTS = ("abfs", "abfss", "az", "wasb", "wasbs")
# For HTTP, a question mark always starts a query; elsewhere it may be a wildcard.
_PARAMETER = re.compile(r"[?#&][^/?#&=]*=")
_WEB_PARAMETER = re.compile(r"[?#].")
# Trailing punctuation that belongs to the surrounding text, not to the URL.
_CLOSING = "]}>),.:;"
EXIT_STATUSES = {
    0: "done, and no gate was missed",
    1: "the run failed, or a metric that was requested by name was not computed",
    2: "bad usage or bad input",
    3: "a gate was missed",
    130: "stopped by SIGINT, as with Ctrl-C",
    143: "stopped by SIGTERM",
}
"""What each exit status of the command line means. Errors have theirs as ``exit_code``."""
Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The most severe first."""
# Maximum number of sets that one warning names.
_MAX_NAMED = 6


def option(setting: SettingName, value: object = None) -> str:
    """Return a setting as a part of a message, which `render` replaces by ``--on-error skip`` or
    ``on_error='skip'``.

    ``value`` None names the setting only; ``...`` is a placeholder for any value.
    """
    if isinstance(setting, SettingPart):
        return option(setting.setting, f"{setting.prefix}={value}")
    return f"{_setting_mark(setting)}{_format_value(value)}\x03"


def _setting_mark(setting: str | MetricSetting) -> str:
    """Return what stands before a setting's value in a message."""
    name = setting if isinstance(setting, str) else _FIELD_SEPARATOR.join(setting)
    return f"\x01{name}\x02"


def _format_value(value: object) -> str:
    return "..." if value is ... else repr(value)


def _keyword(setting: SettingName) -> str:
    """Return the keyword of a setting, or the field of its metric's class."""
    whole = setting.setting if isinstance(setting, SettingPart) else setting
    return whole if isinstance(whole, str) else whole.name


def short_repr(value: object, longest: int = 200) -> str:
    """Return ``repr(value)`` for a message, cut off if it is long, as that of a list of all labels
    is.
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[:longest]}…"


def format_argument(setting: str | MetricSetting, value: object = None) -> str:
    """Format a setting as a Python argument: ``on_error='skip'``. See `option`."""
    argument = _keyword(setting)
    if value is not None:
        argument += f"={_format_value(value)}"
    if isinstance(setting, str):
        return argument
    return f"{argument} of {setting.kind}(...)" if value is None else f"{setting.kind}({argument})"


def render(text: str, spelling: Spelling = format_argument) -> str:
    """Return a message as the user reads it: settings as flags or arguments, and no secrets in
    URLs.
    """

    def spelled(mark: re.Match[str]) -> str:
        name, *others = mark[1].split(_FIELD_SEPARATOR)
        setting = MetricSetting(name, *others) if len(others) == 2 else name
        try:
            return spelling(setting, ast.literal_eval(mark[2]))
        except (ValueError, SyntaxError):
            # An object that a program passed, or a file whose name has these characters.
            return spelling(setting, mark[2])

    return redact(_OPTION.sub(spelled, text) if "\x01" in text else text)


@contextlib.contextmanager
def rename_setting(setting: str | MetricSetting, name: str | MetricSetting) -> Iterator[None]:
    """Context manager in whose errors a setting has another name, in the message and as the one
    that the error concerns.
    """
    try:
        yield
    except FidtoolError as error:
        error.args = tuple(
            text.replace(_setting_mark(setting), _setting_mark(name)) for text in error.args
        )
        if error.setting == _keyword(setting):
            error.setting = _keyword(name)
        raise


def redact(text: str) -> str:
    """Return ``text`` with user names, passwords, queries and fragments removed from all URLs in
    it.

    A URL ends at a space or a quote, which must be escaped in it, as must a slash in a password.
    """
    return _URL.sub(_redact_url, text) if "://" in text else text


def _redact_url(url: re.Match[str]) -> str:
    scheme, address = url.groups()
    if scheme.lower() not in _ACCOUNTS:
        address = _USER.sub(r"\1", address)
    parameter = (_WEB_PARAMETER if "http" in scheme.lower() else _PARAMETER).search(address)
    if parameter is not None:
        start = parameter.start()
        address = address[:start] + address[max(start, len(address.rstrip(_CLOSING))) :]
    return f"{scheme}://{address}"


def redact_json(value: T) -> T:
    """Return a JSON value with all its strings redacted, including keys. Tuples become lists."""
    cleaned: Any = value
    if isinstance(value, str):
        cleaned = redact(value)
    elif isinstance(value, Mapping):
        cleaned = {redact_json(key): redact_json(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        cleaned = [redact_json(item) for item in value]
    return cleaned  # type: ignore[no-any-return]


# Attributes of an error that other ranks get, besides its message.
_SENT_ATTRIBUTES = ("setting", "exit_code", "note", "location", "agreed")


def _unpickle_error(kind: type[FidtoolError], args: tuple[str, ...]) -> FidtoolError:
    return kind.__new__(kind, *args)


class FidtoolError(Exception):
    """Base class of all errors that fidtool raises on purpose.

    Args:
        problem: what is wrong, and where.
        remedies: alternative ways to fix the problem, as phrases such as "pass more images". The
            message appends them after a semicolon, or after the colon that ends ``problem``.
        setting: name of the setting that the error concerns, as `option` takes it; None is the
            first setting that ``problem`` names.

    Attributes:
        setting: the keyword of this setting, or the field of its metric's class; None if the error
            concerns no setting.
        exit_code: exit status of the process, one of `EXIT_STATUSES`.
        note: text at the end of the message, such as which work was saved.
        location: rank and host where the error occurred, before the note; empty if they do not
            matter, None if they are not set yet.
    """

    exit_code = 1
    note = ""
    location: str | None = None
    agreed = False
    """Whether all ranks raise this error, so that only rank 0 prints it."""
    printed = False
    """Whether the ranks have printed the error: this process must not."""

    def __init__(self, problem: str, *remedies: str, setting: SettingName | None = None) -> None:
        super().__init__(problem, *remedies)
        named = _OPTION.search(str(problem))
        self.setting = None
        if setting is not None:
            self.setting = _keyword(setting)
        elif named is not None:
            self.setting = (
                named[1].rpartition(_FIELD_SEPARATOR)[2] or None
            )  # a hostile text may name none

    def __reduce__(self) -> tuple[Any, ...]:
        """Send other ranks a program's own class as the nearest of fidtool: they may lack it, or
        its arguments.
        """
        for kind in type(self).__mro__:
            if kind.__module__.partition(".")[0] == "fidtool":
                break
        carried = vars(self)
        if kind is not type(self):
            carried = {name: value for name, value in carried.items() if name in _SENT_ATTRIBUTES}
        return _unpickle_error, (kind, self.args), carried

    def advise(self, *remedies: str) -> None:
        """Add ways to fix it."""
        self.args += remedies

    def begin_with(self, subject: str) -> None:
        """Begin the message with ``subject`` and a colon, unless it does; an empty one changes
        nothing.
        """
        problem, *remedies = self.args
        if subject and not problem.startswith(f"{subject}: "):
            self.args = (f"{subject}: {problem}", *remedies)

    @property
    def stated(self) -> str:
        """What is wrong, with its settings as `option` returns them, for use in another message."""
        return str(self.args[0]).removesuffix(":")

    @property
    def problem(self) -> str:
        """What is wrong, and where."""
        return render(self.stated)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Ways to fix it."""
        return tuple(map(render, self.args[1:]))

    @property
    def text(self) -> str:
        """The message with its settings as `option` returns them. ``str(error)`` has Python
        arguments.
        """
        problem, *remedies = self.args
        message = problem
        if remedies:
            message += " " if problem.endswith(":") else "; "
            message += ", or ".join(remedies)
        return f"{message}{self.location or ''}{self.note}"

    def __str__(self) -> str:
        return render(self.text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InputError(FidtoolError, ValueError):
    """The input or the call is wrong.

    Repeating the call does not help until the cause that the message names is removed, for example
    until another program has written a missing file.
    """

    exit_code = 2


def missing_package(
    user: str, package: str, extra: str, setting: SettingName | None = None
) -> InputError:
    """Return the error that ``user`` needs a package, which an extra of fidtool installs."""
    remedy = f"pip install 'fidtool[{extra}]'"
    return InputError(f"{user} needs the package {package}:", remedy, setting=setting)


class LaunchError(InputError):
    """The launcher's environment variables are invalid. They can differ between ranks, so each rank
    reports them.
    """


class TooFewImagesError(InputError, RuntimeError):
    """A metric has too few images. torchmetrics raises a `RuntimeError` in this case."""


class RunError(FidtoolError, RuntimeError):
    """The run failed: a rank was lost, the disk is full, a download was interrupted."""


class ProgramError(RunError):
    """An exception from the calling program's code (a generator, dataset, network or metric), or an
    unexpected exception.

    That exception is its cause, and is raised in its place where `unwrap_program_errors` applies.
    """


@contextlib.contextmanager
def unwrap_program_errors() -> Iterator[None]:
    """Context manager that raises the cause of a `ProgramError` instead, unchanged but for a note
    on its origin.
    """
    try:
        yield
    except ProgramError as error:
        own = error.__cause__
        if not isinstance(own, Exception):
            raise
        if sys.version_info >= (3, 11):
            own.add_note(f"fidtool: {error}")
        raise own from own.__cause__ or own.__context__


class StoppedError(FidtoolError):
    """The run was stopped by a signal. The exit status is 128 plus the signal's number, as in
    shells.
    """

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class FidtoolWarning(UserWarning):
    """A warning about a metric value or about the calling program, issued through the module
    ``warnings``.
    """


@dataclass(frozen=True)
class ResultWarning:
    """A warning about metric values.

    Attributes:
        set: path or name of the set that the warning is about; empty if it is about all sets.
        text: the warning, without the set.
        severity: ``high`` if the value says little about the generator, ``medium`` if it changes
            noticeably, ``low`` if it may change.
        detail: what follows the set in parentheses, such as ``only 60 images``; empty for nothing.
    """

    set: str
    text: str
    severity: Severity = "low"
    detail: str = ""

    DERIVED = ("message",)

    @property
    def message(self) -> str:
        """The whole sentence."""
        about = f"{self.set} ({self.detail})" if self.detail else self.set
        return f"{about}: {self.text}" if about else self.text

    def __str__(self) -> str:
        return self.message

    def shown(self, show: Callable[[str], str] = render) -> ResultWarning:
        """Return the warning as the user reads it."""
        return replace(self, set=show(self.set), text=show(self.text), detail=show(self.detail))


def worst_first(warnings: Iterable[ResultWarning]) -> list[ResultWarning]:
    """Return warnings, each once, by their severity."""
    return sorted(dict.fromkeys(warnings), key=lambda warning: SEVERITIES.index(warning.severity))


def merge_warnings(warnings: Iterable[ResultWarning]) -> list[ResultWarning]:
    """Return warnings, the worst first: one that is the same for several sets names them all."""
    sets: dict[ResultWarning, dict[str, None]] = {}
    for warning in warnings:
        sets.setdefault(replace(warning, set=""), {})[warning.set] = None
    merged_warnings = []
    for warning, names in sets.items():
        named = ", ".join([*names][:_MAX_NAMED])
        if len(names) > _MAX_NAMED:
            named += f" and {len(names) - _MAX_NAMED} more"
        merged_warnings.append(replace(warning, set=named))
    return worst_first(merged_warnings)


# Packages whose stack frames are skipped to find the user's line.
_SKIPPED_PACKAGES = {
    "fidtool",
    "torch",
    "torchmetrics",
    "lightning",
    "pytorch_lightning",
    "contextlib",
}


def warn_program(message: str, category: type[Warning] = FidtoolWarning) -> None:
    """Issue a warning for the line of the user's program that called fidtool, directly or through a
    library.
    """
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _SKIPPED_PACKAGES:
            break
        level += 1
        frame = frame.f_back
    warnings.warn(render(message), category, stacklevel=level)


@contextlib.contextmanager
def prefix_errors(subject: str = "", setting: str | None = None) -> Iterator[None]:
    """Context manager that begins the messages of errors raised in the block with ``subject``, such
    as "CMMD's".

    Errors that concern no setting then concern ``setting``.
    """
    try:
        yield
    except FidtoolError as error:
        error.begin_with(subject)
        error.setting = error.setting or setting
        raise


def mark_agreed(error: FidtoolError) -> FidtoolError:
    """Mark ``error`` as raised by all ranks with the same message."""
    error.agreed = True
    error.location = error.location or ""
    return error


def format_message(error: BaseException) -> str:
    """Return an exception's message on one line, for use in another; its class name if there is no
    message.
    """
    message = error.text if isinstance(error, FidtoolError) else str(error)
    return " ".join(message.split()) or type(error).__name__


def format_reason(error: BaseException) -> str:
    """Return why the system refused something, without the file's name; of other exceptions, the
    message.
    """
    return getattr(error, "strerror", None) or format_message(error)


def summarize_error(error: BaseException, longest: int | None = 300) -> str:
    """Return an exception's type and at most ``longest`` characters of its message, on one line."""
    message = " ".join(str(error).split())[:longest]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def as_fidtool_error(error: BaseException) -> FidtoolError:
    """Return ``error`` itself if it is a `FidtoolError`, else a `RunError` with its type and
    message.

    It is a `ProgramError` unless the machine may be the reason, such as a full disk.
    """
    if isinstance(error, FidtoolError):
        return error
    kind = RunError if isinstance(error, (OSError, MemoryError)) else ProgramError
    return kind(summarize_error(error, None))
