"""Rank zero's output on stderr: warnings, information and progress. Only results go to stdout."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from fidtool.errors import FidtoolError, Spelling, as_argument, rendered

_LOG_SECONDS = 10.0
_LOGGER = logging.getLogger("fidtool")
Report = Callable[[str, int, int | None], None]
"""Called with the name of a set, the number of its images that were processed, and how many will be, if known."""


class Console:
    """Prints on stderr, what `rendered` returns.

    Args:
        warnings: whether to print warnings and verdicts.
        progress: whether to print information and progress.
        on_failure: called with the error of a run that can no longer raise it.
        report: shows progress in a program; True shows bars, as a notebook does if it is one.
        spelling: formats settings in messages, also in the warnings that results have.
    """

    def __init__(
        self,
        warnings: bool = False,
        progress: bool = False,
        on_failure: Callable[[FidtoolError], None] | None = None,
        report: Report | bool | None = None,
        spelling: Spelling = as_argument,
    ) -> None:
        self._report = report
        self.spelling = spelling
        self._warnings = warnings
        self._progress = progress
        self._on_failure = on_failure
        self.warned: dict[str, None] = {}
        """The warnings so far."""

    def shown(self, text: str) -> str:
        """Return a message as this console prints it."""
        return rendered(text, self.spelling)

    def warn(self, line: str) -> None:
        """Print a warning. Repeated warnings are printed once."""
        line = self.shown(line)
        if self._warnings and line not in self.warned:
            tqdm.write(f"warning: {line}", file=sys.stderr)
        self.warned[line] = None

    def fail(self, error: FidtoolError, prints: bool) -> None:
        """Report the error that ends the run while the main thread may be busy; another rank prints it, or this one."""
        if prints:
            line = " ".join(self.shown(error.text).split())
            os.write(2, f"error: {line}\n".encode("utf-8", "backslashreplace"))
        if self._on_failure is not None:
            self._on_failure(error)

    def log(self, line: str) -> None:
        """Write to the log ``fidtool``, at the level INFO."""
        _LOGGER.info("%s", self.shown(line))

    def say(self, line: str, is_result: bool = False, warns: bool = False) -> None:
        """Print and log information; a part of the result, such as a verdict, also where only warnings are printed.

        To a program, which prints neither, the line is a warning if it ``warns``.
        """
        self.log(line)
        if self._progress or (is_result and self._warnings):
            tqdm.write(self.shown(line), file=sys.stderr)
        elif warns:
            self.warned[self.shown(line)] = None

    def progress(self, label: str, total: int | None) -> Progress:
        """Return a context manager that shows progress over ``total`` images; None if their number is unknown."""
        self.log(f"{label}: processing {'its' if total is None else total} images")
        return Progress(self.shown(label), total, self._progress, self._report)


def log_warning(line: str) -> None:
    """Write to the log ``fidtool``, at the level WARNING."""
    _LOGGER.warning("%s", rendered(line))


class Progress:
    """A tqdm bar on a terminal; in a log file, one line every ten seconds."""

    def __init__(self, label: str, total: int | None, enabled: bool, report: Report | bool | None = None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._report = report if callable(report) else None
        terminal, kind = enabled and sys.stderr.isatty(), tqdm
        if report is True:
            from tqdm.auto import tqdm as kind  # imports IPython, if it is there
        shown = terminal or report is True
        self._bar = kind(total=total, desc=label, unit=" images", file=sys.stderr, leave=False) if shown else None
        self._log = enabled and not terminal
        self._started = self._logged = time.monotonic()

    def advance(self, images: int) -> None:
        self._done += images
        if self._bar is not None:
            self._bar.update(images)
        if self._report is not None:
            self._report(self._label, self._done, self._total)
        now = time.monotonic()
        if self._log and now - self._logged >= _LOG_SECONDS:
            self._logged = now
            rate = self._done / (now - self._started)
            line = f"{self._label}: {self._done} images, {rate:.1f} images/s"
            if self._total is not None:
                left = (self._total - self._done) / rate
                line = f"{self._label}: {self._done}/{self._total} images, {rate:.1f} images/s, {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        self.advance(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
