"""Errors and warnings. Each error holds the problem, the setting it concerns, remedies and its exit status.

The same error names flags on the command line and arguments in Python: messages name settings through `option`. A
message is one line; the command line prints it without a traceback.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

from fidtool.redaction import redacted

Spelling = Callable[[str, object], str]
"""Formats the name of a setting and its value, see `option`."""


def as_argument(name: str, value: object = None) -> str:
    """Format a setting as a Python argument: ``on_error='skip'``. See `option`."""
    if name.endswith(")"):
        kind, _, setting = name[:-1].partition("(")
        return f"{setting} of {kind}(...)" if value is None else f"{kind}({setting}={value!r})"
    return name if value is None else f"{name}={'...' if value is ... else repr(value)}"


_spelling: Spelling = as_argument
"""The formatter of this process. It is global because threads of the watchdog and of decoders raise errors, too."""


def option(name: str, value: object = None) -> str:
    """Return a setting as the user writes it: ``--on-error skip``, or ``on_error='skip'`` in Python.

    Args:
        name: keyword of `fidtool.compute` or of a class of `fidtool.training`; ``KID(subset_size)`` for a setting of a
            metric.
        value: its value. None names the setting only; ``...`` is a placeholder for any value.
    """
    return _spelling(name, value)


@contextlib.contextmanager
def spelled_by(spelling: Spelling | Mapping[str, str]) -> Iterator[None]:
    """Context manager that sets the formatter of settings, or other names, for all threads of this process."""
    before = current_spelling()
    if isinstance(spelling, Mapping):
        spell_by(lambda name, value: before(spelling.get(name, name), value))
    else:
        spell_by(spelling)
    try:
        yield
    finally:
        spell_by(before)


def current_spelling() -> Spelling:
    """Return the formatter of this process. Forked processes inherit it, spawned ones do not."""
    return _spelling


def spell_by(spelling: Spelling) -> None:
    global _spelling
    _spelling = spelling


class FidtoolError(Exception):
    """Base class of all errors that fidtool raises on purpose.

    Args:
        problem: what is wrong, and where.
        remedies: alternative ways to fix it, as phrases such as "pass more images". The message appends them after a
            semicolon, or after the colon that ends ``problem``.
        setting: name of the setting that the error concerns, as `option` takes it.
        joiner: separator between remedies.

    Attributes:
        exit_code: exit status of the process (1 failed at run time, 2 bad usage or bad input).
        subject: the part of the run that the error concerns, such as "CMMD's network"; empty for the run as a whole.
        location: rank and host of origin; empty if irrelevant, None if not set yet.
        note: text at the end of the message, such as which work was saved.
    """

    exit_code = 1
    subject = ""
    location: str | None = None
    note = ""
    agreed = False
    """Whether all ranks raise this error, so that only rank zero prints it."""
    printed = False
    """Whether the error was already printed."""

    def __init__(self, problem: str, *remedies: str, setting: str | None = None, joiner: str = ", or ") -> None:
        super().__init__(problem, *remedies)
        colon = bool(remedies) and problem.endswith(":")
        self.problem, self.remedies, self.setting = problem.removesuffix(":") if colon else problem, remedies, setting
        self._joints = (": " if colon else "; ", *[joiner] * (len(remedies) - 1))  # the separator before each remedy

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        remedies = "".join(map("".join, zip(self._joints, self.remedies, strict=False)))
        return redacted(f"{subject}{self.problem}{remedies}") + redacted(f"{self.location or ''}{self.note}")

    def at(self, location: str) -> FidtoolError:
        other = copy.copy(self)
        other.location = location
        return other

    def also(self, *remedies: str, joiner: str = ", or ") -> FidtoolError:
        other = copy.copy(self)
        other.remedies += remedies
        other._joints = (*self._joints, *[joiner] * len(remedies))[: len(other.remedies)]
        return other

    def noted(self, note: str) -> FidtoolError:
        """Return a copy with ``note`` at the end of its message."""
        other = copy.copy(self)
        other.note += note
        return other


class InputError(FidtoolError, ValueError):
    """The input or the call is wrong; running it again does not help."""

    exit_code = 2


class LaunchError(InputError):
    """The launcher's environment variables are invalid. They can differ between ranks, so each rank reports them."""


class TooFewImagesError(InputError, RuntimeError):
    """A metric has fewer than two images. torchmetrics raises a `RuntimeError` in this case."""


class RunError(FidtoolError, RuntimeError):
    """The run failed: a rank was lost, the disk is full, a download was interrupted."""


class ProgramError(RunError):
    """An exception of the calling program's code (a generator, dataset, network or metric) or an unexpected one.

    That exception is its cause, and is raised in its place where `own_exceptions` applies.
    """


@contextlib.contextmanager
def own_exceptions() -> Iterator[None]:
    """Context manager that raises the cause of a `ProgramError` instead, unchanged but for a note on its origin."""
    try:
        yield
    except ProgramError as error:
        if not isinstance(own := error.__cause__, Exception):
            raise
        if sys.version_info >= (3, 11):
            own.add_note(f"fidtool: {error}")
        raise own from own.__cause__ or own.__context__


class StoppedError(FidtoolError):
    """The run was stopped by a signal. The exit status is 128 plus its number, as in shells (130, 143)."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class FidtoolWarning(UserWarning):
    """A warning about a metric value or about the calling program, issued through the module ``warnings``."""


_GONE_THROUGH = {"fidtool", "torch", "torchmetrics", "lightning", "pytorch_lightning", "contextlib"}
"""Packages whose stack frames are skipped to find the user's line."""


def warn_program(message: str) -> None:
    """Issue a warning for the line of the user's program that called fidtool, directly or through a library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _GONE_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FidtoolWarning, stacklevel=level)


@contextlib.contextmanager
def about(subject: str) -> Iterator[None]:
    """Context manager that sets the ``subject`` of errors raised in the block, unless they have one."""
    try:
        yield
    except FidtoolError as error:
        error.subject = error.subject or subject
        raise


def on_every_rank(error: FidtoolError) -> FidtoolError:
    """Mark ``error`` as raised by all ranks with the same message."""
    error.agreed, error.location = True, error.location or ""
    return error


def as_fidtool_error(error: BaseException) -> FidtoolError:
    """Return ``error`` itself if it is a `FidtoolError`, else a `RunError` with its type and message.

    It is a `ProgramError` unless the machine may be the reason, such as a full disk.
    """
    if isinstance(error, FidtoolError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return StoppedError("interrupted", 130)
    message = " ".join(str(error).split())
    kind = RunError if isinstance(error, (OSError, MemoryError)) else ProgramError
    return kind(f"{type(error).__name__}: {message}" if message else type(error).__name__)
