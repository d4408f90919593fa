"""What a report shows of one FAKE beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fidtool.diagnose.diagnosis import Health

MOST_RANDOM = 48
"""Random images of one FAKE that a report shows at most."""
MOST_NEIGHBOURS = 24
"""Images of one FAKE that a report shows at most beside their nearest real ones."""


@dataclass(frozen=True)
class Neighbour:
    """A generated image and the real one that is nearest to it.

    Attributes:
        fake, real: their paths; the real one's is empty where only its features are known.
        distance: Euclidean, between their features.
    """

    fake: str
    real: str
    distance: float


@dataclass(frozen=True)
class Exhibit:
    """What there is to be seen of one FAKE beside REAL. On rank zero.

    Attributes:
        fake, real: what the sets are made of; None where their images were not looked at.
        random: files of some images of FAKE, the first of its pseudo-random order.
        neighbours: some images of FAKE, each with its nearest real one; empty where a set's features are not known.
        curve: the distance against the number of images, as of `fidtool.annexes.Uncertainty`; empty likewise.
    """

    fake: Health | None
    real: Health | None
    random: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    curve: tuple[tuple[int, float], ...] = ()
