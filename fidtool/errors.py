"""What can go wrong, as data: what is wrong, which setting it is about, what to do. Each error has its exit status.

The same error names flags on the command line and arguments in Python: whatever names a setting does it by `option`. A
message is one line; the command line prints it without a traceback.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator

from fidtool.redaction import redacted

Spelling = Callable[[str, object], str]
"""Writes a setting down, see `option`."""


def as_argument(name: str, value: object = None) -> str:
    """`option` as Python spells it: ``on_error='skip'``."""
    if name.endswith(")"):
        kind, _, setting = name[:-1].partition("(")
        return f"{setting} of {kind}(...)" if value is None else f"{kind}({setting}={value!r})"
    if "." in name:
        return f"metric_options[{name!r}]" if value is None else f"metric_options={{{name!r}: {value!r}}}"
    return name if value is None else f"{name}={'...' if value is ... else repr(value)}"


_spelling: Spelling = as_argument
"""How this process spells settings: threads of the watchdog and of decoders speak too."""


def option(name: str, value: object = None) -> str:
    """Names a setting as the user gives it, for a message: ``--on-error skip``, or ``on_error='skip'`` in Python.

    Args:
        name: a keyword of `fidtool.compute` or of a class of `fidtool.training`; ``mind.directions`` is a setting of a
            metric that has no keyword, and ``KID(subset_size)`` one of a metric that is given as an object.
        value: what it is set to; None names the setting alone, ``...`` stands for a value of the user's choice.
    """
    return _spelling(name, value)


@contextlib.contextmanager
def spelled_by(spelling: Spelling) -> Iterator[None]:
    """Within the block, all threads of this process spell settings this way."""
    before = current_spelling()
    spell_by(spelling)
    try:
        yield
    finally:
        spell_by(before)


def current_spelling() -> Spelling:
    """How this process spells settings; a process that it starts does not know, unless it is a fork."""
    return _spelling


def spell_by(spelling: Spelling) -> None:
    """From now on, all threads of this process spell settings this way."""
    global _spelling
    _spelling = spelling


class FidtoolError(Exception):
    """Base of every error that fidtool raises on purpose.

    Args:
        problem: what is wrong, and where.
        remedies: what to do about it, in phrases such as "give more images", of which each does by itself. They follow
            behind a semicolon, or behind a colon with which ``problem`` ends.
        setting: the setting that it is about, by the name that `option` takes.
        joiner: what stands between remedies.

    Attributes:
        problem, remedies, setting: as given, without the colon.
        exit_code: status of the process when this error ends it (1 failed at run time, 2 bad usage or bad input).
        subject: what it is about where that is not the run as a whole, such as "CMMD's network".
        location: the rank and the host that it comes from; empty where they do not matter, None where nobody has said.
        note: what was added at the end, such as what is kept.
    """

    exit_code = 1
    subject = ""
    location: str | None = None
    note = ""
    agreed = False
    """Whether every rank raises this very error, so that rank zero alone needs to say it."""
    printed = False
    """Whether it has been printed already."""

    def __init__(self, problem: str, *remedies: str, setting: str | None = None, joiner: str = ", or ") -> None:
        super().__init__(problem, *remedies)
        colon = bool(remedies) and problem.endswith(":")
        self.problem, self.remedies, self.setting = problem.removesuffix(":") if colon else problem, remedies, setting
        self._joints = (": " if colon else "; ", *[joiner] * (len(remedies) - 1))  # what precedes each remedy

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        remedies = "".join(map("".join, zip(self._joints, self.remedies, strict=False)))
        return redacted(f"{subject}{self.problem}{remedies}") + redacted(f"{self.location or ''}{self.note}")

    def at(self, location: str) -> FidtoolError:
        """The same error from this rank and host."""
        other = copy.copy(self)
        other.location = location
        return other

    def also(self, *remedies: str, joiner: str = ", or ") -> FidtoolError:
        """The same error with further remedies."""
        other = copy.copy(self)
        other.remedies += remedies
        other._joints = (*self._joints, *[joiner] * len(remedies))[: len(other.remedies)]
        return other

    def noted(self, note: str) -> FidtoolError:
        """The same error with ``note`` at its end."""
        other = copy.copy(self)
        other.note += note
        return other


class InputError(FidtoolError):
    """The input or the way the tool was called is at fault; trying again will not help."""

    exit_code = 2


class LaunchError(InputError):
    """The launcher's variables make no sense; each rank may see others, so each says so."""


class RunError(FidtoolError):
    """The run itself failed: a lost rank, a full disk, a download that broke off."""

    exit_code = 1


class StoppedError(FidtoolError):
    """A signal asked the run to stop: exit status 128 plus its number, as shells have it (130, 143)."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class FidtoolWarning(UserWarning):
    """A warning about a number, or about the program around it. Inside programs these come through ``warnings``."""


_GONE_THROUGH = {"fidtool", "torch", "torchmetrics", "lightning", "pytorch_lightning", "contextlib"}
"""Whose lines are not the reader's own."""


def warn_program(message: str) -> None:
    """Warns at the line of the program that called fidtool, also through another library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _GONE_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FidtoolWarning, stacklevel=level)


@contextlib.contextmanager
def about(subject: str) -> Iterator[None]:
    """Errors from within the block are about ``subject``, unless they are about something else already."""
    try:
        yield
    except FidtoolError as error:
        error.subject = error.subject or subject
        raise


def on_every_rank(error: FidtoolError) -> FidtoolError:
    """Marks ``error`` as one that every rank raises in these words."""
    error.agreed, error.location = True, error.location or ""
    return error


def as_fidtool_error(error: BaseException) -> FidtoolError:
    """Returns ``error`` itself where it is one of ours, else a RunError that names its type."""
    if isinstance(error, FidtoolError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return StoppedError("interrupted", 130)
    message = " ".join(str(error).split())
    return RunError(f"{type(error).__name__}: {message}" if message else type(error).__name__)
