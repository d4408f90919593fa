"""Rank 0's output on stderr: warnings, information and progress. Only results go to stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tqdm import tqdm

from fidtool.errors import FidtoolError, Spelling, format_argument, render
from fidtool.names import escape_text

_LOGGER = logging.getLogger("fidtool")
Report = Callable[[str, int, int | None], None]
"""Called with the name of a set, the number of its images that were processed, and how many will
be, if known.
"""


@dataclass
class Console:
    """Prints on stderr, what `render` returns.

    Attributes:
        warnings: whether to print warnings and verdicts.
        progress: whether to print information and progress.
        on_failure: called with the error of a run that can no longer raise it.
        report: shows progress in a program; True shows bars, as a notebook does if it is one.
        spelling: formats settings in messages, also in the warnings that results have.
        warned: the warnings so far.
    """

    warnings: bool = False
    progress: bool = False
    on_failure: Callable[[FidtoolError], None] | None = None
    report: Report | bool | None = None
    spelling: Spelling = format_argument
    warned: dict[str, None] = field(default_factory=dict)

    def render(self, text: str) -> str:
        """Return a message as this console prints it."""
        return render(text, self.spelling)

    def warn(self, line: str) -> None:
        """Print a warning. Repeated warnings are printed once."""
        line = self.render(line)
        if self.warnings and line not in self.warned:
            tqdm.write(f"warning: {escape_text(line)}", file=sys.stderr)
        self.warned[line] = None

    def fail(self, error: FidtoolError, prints: bool) -> None:
        """Report the error that ends the run while the main thread may be busy; another rank prints
        it, or this one.
        """
        if prints:
            line = " ".join(self.render(error.text).split())
            os.write(2, f"error: {line}\n".encode("utf-8", "backslashreplace"))
        if self.on_failure is not None:
            self.on_failure(error)

    def log(self, line: str) -> None:
        """Write to the log ``fidtool``, at the level INFO."""
        _LOGGER.info("%s", self.render(line))

    def say(self, line: str, is_result: bool = False, warns: bool = False) -> None:
        """Print and log information; a part of the result, such as a verdict, also where only
        warnings are printed.

        To a program, which prints neither, the line is a warning if it ``warns``.
        """
        self.log(line)
        if self.progress or (is_result and self.warnings):
            tqdm.write(escape_text(self.render(line)), file=sys.stderr)
        elif warns:
            self.warned[self.render(line)] = None

    @contextlib.contextmanager
    def show_progress(self, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show progress over ``total`` images; None if their number is unknown. Yields the function
        that advances it.

        It is a tqdm bar on a terminal; in a log file, one line every ten seconds.
        """
        self.log(f"{label}: processing {'its' if total is None else total} images")
        label = escape_text(self.render(label))
        report = self.report
        terminal = self.progress and sys.stderr.isatty()
        kind = tqdm
        if report is True:
            from tqdm.auto import tqdm as kind  # imports IPython, if it is there
        bar = None
        if terminal or report is True:
            bar = kind(total=total, desc=label, unit=" images", file=sys.stderr, leave=False)
        started = logged = time.monotonic()
        done = 0

        def advance(images: int) -> None:
            nonlocal done, logged
            done += images
            if bar is not None:
                bar.update(images)
            if callable(report):
                report(label, done, total)
            now = time.monotonic()
            if self.progress and not terminal and now - logged >= 10.0:
                logged = now
                rate = done / (now - started)
                line = f"{done} images, {rate:.1f} images/s"
                if total is not None:
                    left = (total - done) / rate
                    line = f"{done}/{total} images, {rate:.1f} images/s, {left:.0f} s left"
                print(f"{label}: {line}", file=sys.stderr, flush=True)

        advance(0)
        try:
            yield advance
        finally:
            if bar is not None:
                bar.close()


def log_warning(line: str) -> None:
    """Write to the log ``fidtool``, at the level WARNING."""
    _LOGGER.warning("%s", render(line))
