"""What can go wrong, as the person at the keyboard sees it. Each exception knows its exit status.

Messages say what is wrong, where (the file, the rank) and what to do next. They are one line: the command line
prints them as they are, without a traceback.
"""

from __future__ import annotations

import copy
import sys
import warnings

from fidtool.redaction import redacted


class FidtoolError(Exception):
    """Base of every error that fidtool raises on purpose.

    Attributes:
        exit_code: status of the process when this error ends it (1 failed at run time, 2 bad usage or bad input).
    """

    exit_code = 1
    agreed = False
    """Whether every rank raises this very error, so that rank zero alone needs to say it."""
    located = False
    """Whether the message says where it happened, or concerns all ranks alike: no rank and host are added."""
    printed = False
    """Whether it has been printed already."""

    def __str__(self) -> str:
        return redacted(super().__str__())

    def noted(self, note: str) -> FidtoolError:
        """The same error with ``note`` at its end."""
        other = copy.copy(self)
        other.args = (f"{self}{note}",)
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
    """A doubt about a number, or about the program around it. Inside programs these come through ``warnings``."""


_GONE_THROUGH = {"fidtool", "torch", "torchmetrics", "lightning", "pytorch_lightning", "contextlib"}
"""Whose lines are not the reader's own."""


def warn_program(message: str) -> None:
    """Warns of a doubt, at the line of the program that called fidtool, also through another library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _GONE_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, FidtoolWarning, stacklevel=level)


def on_every_rank(error: FidtoolError) -> FidtoolError:
    """Marks ``error`` as one that every rank raises in these words."""
    error.agreed = True
    return error


def as_fidtool_error(error: BaseException) -> FidtoolError:
    """Returns ``error`` itself where it is one of ours, else a RunError that names its type."""
    if isinstance(error, FidtoolError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return StoppedError("interrupted", 130)
    message = " ".join(str(error).split())
    return RunError(f"{type(error).__name__}: {message}" if message else type(error).__name__)
