"""Contact sheets: which images a page shows, in what company, and what stands under them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fidtool.diagnose.duplicates import Duplicates
from fidtool.report.exhibits import Exhibit
from fidtool.report.names import shortened
from fidtool.report.sheets import Thumbnail, Thumbnails
from fidtool.results import Comparison

MOST_IMAGES = 800
"""On one page, over all FAKEs: with `fidtool.report.sheets.MOST_BYTES` each they take 6.3 MiB at the very most."""


@dataclass(frozen=True)
class Quota:
    """How much of each kind one FAKE may show.

    Attributes:
        random, harmful: images.
        groups, copies: groups of copies, and images of each.
        shared, neighbours: pairs of images.
    """

    random: int = 48
    harmful: int = 24
    groups: int = 8
    copies: int = 8
    shared: int = 8
    neighbours: int = 24

    @property
    def images(self) -> int:
        """All together."""
        return self.random + self.harmful + self.groups * self.copies + 2 * (self.shared + self.neighbours)


def quota_for(fakes: int) -> Quota:
    """Each FAKE's part of what a page may show."""
    whole = Quota()
    part = min(1.0, MOST_IMAGES / (whole.images * fakes))
    side = int(whole.groups * math.sqrt(part))
    return Quota(
        random=int(whole.random * part),
        harmful=int(whole.harmful * part),
        groups=side if side > 1 else 0,  # one image is no group of copies
        copies=side,
        shared=int(whole.shared * part),
        neighbours=int(whole.neighbours * part),
    )


@dataclass(frozen=True)
class Picture:
    """A thumbnail and what it is, in words for those who cannot see it."""

    thumbnail: Thumbnail
    words: str


@dataclass(frozen=True)
class Card:
    """Pictures that belong together, and what is said of them; empty if nothing."""

    pictures: tuple[Picture, ...]
    caption: str = ""


class Sheets:
    """Makes the contact sheets of one FAKE.

    Args:
        thumbnails: of the whole page.
        quota: how many.
    """

    def __init__(self, thumbnails: Thumbnails, quota: Quota) -> None:
        self._thumbnails = thumbnails
        self._quota = quota

    def random(self, exhibit: Exhibit | None) -> list[Card]:
        """Some images, as they come."""
        files = () if exhibit is None else exhibit.random[: self._quota.random]
        return [self._card([(file, "Generated image")]) for file in files]

    def harmful(self, result: Comparison) -> list[Card]:
        """Those that raise the distance most, the worst first."""
        influence = result.influence
        images = () if influence is None else influence.most_harmful[: self._quota.harmful]
        return [self._card([(each.file, "Harmful image")], _change(each.effect)) for each in images]

    def copies(self, duplicates: Duplicates | None) -> list[Card]:
        """Groups of copies."""
        groups = () if duplicates is None else duplicates.examples[: self._quota.groups]
        return [self._card([(file, "Copy") for file in group[: self._quota.copies]]) for group in groups]

    def shared(self, result: Comparison) -> list[Card]:
        """Images of FAKE beside those of REAL that they equal."""
        diagnosis = result.diagnosis
        pairs = () if diagnosis is None or diagnosis.shared is None else diagnosis.shared.examples
        return [self._pair(fake, real) for fake, real in pairs[: self._quota.shared]]

    def neighbours(self, exhibit: Exhibit | None) -> list[Card]:
        """Images of FAKE beside their nearest real ones, the nearest first: there copies of REAL would be."""
        found = () if exhibit is None else exhibit.neighbours
        nearest = sorted(found, key=lambda each: each.distance)[: self._quota.neighbours]
        return [self._pair(each.fake, each.real, f"distance {each.distance:.4g}") for each in nearest]

    def _pair(self, fake: str, real: str, caption: str = "") -> Card:
        return self._card([(fake, "Generated image"), (real, "Real image")], caption)

    def _card(self, files: Iterable[tuple[str, str]], caption: str = "") -> Card:
        return Card(tuple(self._picture(file, kind) for file, kind in files), caption)

    def _picture(self, file: str, kind: str) -> Picture:
        thumbnail = self._thumbnails.of(file) if file else Thumbnail("", problem="only its features are known")
        words = f"{kind} {shortened(file)}" if file else f"{kind} of unknown name"
        return Picture(thumbnail, words if not thumbnail.problem else f"{words}: {thumbnail.problem}")


def _change(effect: float) -> str:
    """What an image adds to the distance, two digits."""
    return f"{effect:+#.2g}".rstrip(".")


def shown(cards: Sequence[Card]) -> int:
    """How many images of a sheet could be shown."""
    return sum(not picture.thumbnail.problem for card in cards for picture in card.pictures)
