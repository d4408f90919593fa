"""How long ranks wait for each other. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from fidtool.errors import RunError


class LostContactError(RunError):
    """A collective broke: a symptom, the cause is elsewhere."""

    located = True


class TooSlowError(LostContactError):
    """The others did not come to a collective in time, though they live."""


@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits, in seconds.

    Attributes:
        peer: for a sign of life of another rank.
        collective: in one collective, which includes waiting for the slowest rank's share.
    """

    peer: float = 20.0
    collective: float = 1800.0

    @property
    def start(self) -> float:
        """For the others to start."""
        return min(120.0, self.collective)
