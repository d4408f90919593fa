"""Rank zero's output on stderr: warnings, information and progress. Only results go to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

from fidtool.errors import FidtoolError
from fidtool.redaction import redacted

_LOG_SECONDS = 10.0


class Console:
    """Prints on stderr. Secrets in URLs are removed.

    Args:
        warnings: whether to print warnings and verdicts.
        progress: whether to print information and progress.
        on_failure: called with the error that ends the run. The second argument is whether to print the error; it is
            False if another rank prints it.
    """

    def __init__(
        self,
        warnings: bool = False,
        progress: bool = False,
        on_failure: Callable[[FidtoolError, bool], None] | None = None,
    ) -> None:
        self._warnings = warnings
        self._progress = progress
        self.fail = on_failure
        """See ``on_failure``."""
        self.warned: dict[str, None] = {}
        """The warnings so far."""

    def warn(self, line: str) -> None:
        """Print a warning. Repeated warnings are printed once."""
        line = redacted(line)
        if self._warnings and line not in self.warned:
            tqdm.write(f"warning: {line}", file=sys.stderr)
        self.warned[line] = None

    def tell(self, line: str) -> None:
        """Print a part of the result, such as a verdict."""
        if self._warnings:
            tqdm.write(redacted(line), file=sys.stderr)

    def say(self, line: str) -> None:
        if self._progress:
            tqdm.write(redacted(line), file=sys.stderr)

    def progress(self, label: str, total: int | None) -> Progress:
        """Return a context manager that shows progress over ``total`` images; None if their number is unknown."""
        return Progress(redacted(label), total, self._progress)


class Progress:
    """A tqdm bar on a terminal; in a log file, one line every ten seconds."""

    def __init__(self, label: str, total: int | None, enabled: bool) -> None:
        self._label, self._total, self._done = label, total, 0
        terminal = enabled and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=label, unit=" images", file=sys.stderr, leave=False) if terminal else None
        self._log = enabled and not terminal
        self._started = self._logged = time.monotonic()

    def advance(self, images: int) -> None:
        self._done += images
        if self._bar is not None:
            self._bar.update(images)
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
