"""Rank zero's voice on stderr: warnings, news, progress. stdout is left to the result. Imports no torch."""

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
    """Speaks on stderr, or not at all; of addresses without what may be secret in them.

    Args:
        warnings: print what the user must know.
        progress: print bars and news as well.
        on_failure: tells the user of an error that ends the run, in words only where the second argument says so
            (another rank has done it otherwise).
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
        self._said: set[str] = set()

    def warn(self, line: str) -> None:
        """A warning about the result, or something that did not work; said once however often it comes up."""
        if self._warnings and line not in self._said:
            self._said.add(line)
            tqdm.write(f"warning: {redacted(line)}", file=sys.stderr)

    def say(self, line: str) -> None:
        """News: what is being done."""
        if self._progress:
            tqdm.write(redacted(line), file=sys.stderr)

    def progress(self, label: str, total: int | None) -> Progress:
        """Progress over ``total`` images, None if nobody knows; a context manager."""
        return Progress(redacted(label), total, self._progress)


class Progress:
    """A tqdm bar on a terminal, a line every ten seconds in a log file."""

    def __init__(self, label: str, total: int | None, enabled: bool) -> None:
        self._label, self._total, self._done = label, total, 0
        terminal = enabled and sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=label, unit=" images", file=sys.stderr, leave=False) if terminal else None
        self._log = enabled and not terminal
        self._started = self._spoken = time.monotonic()

    def advance(self, images: int) -> None:
        """Counts ``images`` more as done."""
        self._done += images
        if self._bar is not None:
            self._bar.update(images)
        now = time.monotonic()
        if self._log and now - self._spoken >= _LOG_SECONDS:
            self._spoken = now
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
