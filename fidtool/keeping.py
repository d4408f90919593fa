"""What is left of a run's work should it end early, in words for the user."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from fidtool.statistics.checkpoint import Checkpoint

WORTH_TELLING_SECONDS = 30.0
"""Less work than this is lost without a word."""


class Keeping:
    """Keeps account of the work that a run has done, and of what keeps it. Each rank has one.

    Args:
        folder: of the checkpoint, as it was given; None where there is none.
        checkpoint: what keeps finished work there.
    """

    def __init__(self, folder: str | None, checkpoint: Checkpoint | None) -> None:
        self._folder, self._checkpoint = folder, checkpoint
        self._cached: list[str] = []
        self._seconds: dict[str, float] = {}  # by set, of those that are not in the cache
        self._began: float | None = None

    @contextlib.contextmanager
    def at_work(self, path: str) -> Iterator[None]:
        """For the time in which a set goes through the networks."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[path] = time.monotonic() - self._began
            self._began = None

    def cached(self, path: str) -> None:
        """The set is in the cache now."""
        self._seconds.pop(path, None)
        self._cached.append(path)

    def words(self) -> str:
        """How to go on after an error, to be put at the end of its message; may be empty."""
        if self._checkpoint is not None and self._checkpoint.has_work:
            return f"; finished work is kept in {self._folder}: the same command goes on from there"
        rest, words = "nothing is kept", ""
        if self._cached:
            first, *others = self._cached
            sets = f"{first} and {len(others)} more" if others else first
            words = f"; the statistics of {sets} are in the cache: the same command goes on from there"
            rest = "of the rest nothing is kept"
        if self._lost() >= WORTH_TELLING_SECONDS:
            words += f"; {rest}: " + (
                "--checkpoint DIR would have kept what was finished"
                if self._checkpoint is None
                else f"{self._folder} could not be written, or no part was finished"
            )
        return words

    def _lost(self) -> float:
        """Seconds of work that is to be done again."""
        began = self._began  # the guard's thread may ask, while the main one is at work
        return sum(self._seconds.values()) + (0.0 if began is None else time.monotonic() - began)
