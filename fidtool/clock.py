"""How long the phases of a run take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Wall time of the phases of a run, in seconds."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started

    def snapshot(self) -> dict[str, float]:
        """Seconds by phase so far, and ``total`` since the clock was made."""
        return {**self._seconds, "total": time.perf_counter() - self._started}
