"""How long the phases of a run take."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class Clock:
    """Wall time of the phases of a run, and of what is done side by side within one, in seconds."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._busy: dict[str, float] = {}
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started

    @contextlib.contextmanager
    def busy(self, part: str, share: float = 1.0) -> Iterator[None]:
        """For what is done beside other things, in any thread: this ``share`` of the time counts."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._turn:
                self._busy[part] = self._busy.get(part, 0.0) + share * (time.perf_counter() - started)

    def snapshot(self) -> dict[str, float]:
        """Seconds by phase so far, and ``total`` since the clock was made."""
        return {**self._seconds, "total": time.perf_counter() - self._started}

    def parts(self) -> dict[str, float]:
        """Seconds by part, which overlap."""
        with self._turn:
            return dict(self._busy)
