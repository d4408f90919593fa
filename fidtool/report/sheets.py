"""Contact sheets of a page: which images it shows, what stands under them, and their thumbnails."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.diagnose.duplicates import Duplicates
from fidtool.errors import InputError
from fidtool.images.decode import DecodeError
from fidtool.images.gallery import Gallery
from fidtool.images.unpacked import image_of
from fidtool.report.exhibits import MOST_NEIGHBOURS, MOST_RANDOM, Exhibit
from fidtool.report.names import shortened
from fidtool.results import Comparison
from fidtool.sources.contents import ContentError, ForeignError, ProgramError, Read, StoreError

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

    random: int = MOST_RANDOM
    harmful: int = 24
    groups: int = 8
    copies: int = 8
    shared: int = 8
    neighbours: int = MOST_NEIGHBOURS

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


# --- thumbnails, of the pixels that were measured --------------------------------------------------------------------


LONG_SIDE = 128
"""Pixels; smaller images stay as they are."""
MOST_BYTES = 6 * 1024
"""Of one thumbnail, before base64 makes it a third larger. Only noise comes near."""
SMALL = 64
"""Images up to this long side are shown with their pixels as squares, and without loss where that fits."""
_QUALITIES = (85, 75, 60, 40, 20, 5)


@dataclass(frozen=True)
class Thumbnail:
    """An image made small, or why there is none.

    Attributes:
        file: path of the image.
        uri: ``data:image/…``; empty where there is none.
        width, height: of the thumbnail in pixels; 0 where there is none.
        problem: why there is none, a few words; empty where there is one.
    """

    file: str
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""

    @property
    def small(self) -> bool:
        """Whether the image itself has so few pixels that they should be seen."""
        return max(self.width, self.height) <= SMALL


class Thumbnails:
    """Makes thumbnails, each file's once: the same image can stand in several places of a page.

    Args:
        gallery: gets the images.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._made: dict[str, Thumbnail] = {}

    def of(self, file: str) -> Thumbnail:
        """The thumbnail of a file; never an exception, as a report is written after hours of work."""
        if file not in self._made:
            self._made[file] = _thumbnail(file, self._gallery.read(file))
        return self._made[file]


class WantedThumbnails(Thumbnails):
    """Only notes what a page will show.

    Attributes:
        files: that.
    """

    def __init__(self) -> None:
        super().__init__(Gallery())
        self.files: list[str] = []

    def of(self, file: str) -> Thumbnail:
        """No thumbnail yet."""
        self.files.append(file)
        return Thumbnail(file)


def _thumbnail(file: str, content: Read) -> Thumbnail:
    try:
        pixels = image_of(content).pixels
        image = _made_small(pixels)
        kind, data = _encoded(image)
    except FileNotFoundError:
        return Thumbnail(file, problem="not found")
    except (OSError, ValueError, ContentError, StoreError, ForeignError, ProgramError, InputError) as error:
        return Thumbnail(file, problem=getattr(error, "strerror", None) or str(error) or type(error).__name__)
    except (DecodeError, MemoryError) as error:
        return Thumbnail(file, problem=str(error) or "too large to be shown")
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Thumbnail(file, uri, *image.size)


def _made_small(pixels: NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(pixels)
    image.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
    return image


def _encoded(image: Image.Image) -> tuple[str, bytes]:
    """The format's name and the bytes: the first way that is small enough, or else the smallest."""
    data = b""
    for kind, data in _ways(image):
        if len(data) <= MOST_BYTES:
            return kind, data
    return "jpeg", data


def _ways(image: Image.Image) -> Iterator[tuple[str, bytes]]:
    if max(image.size) <= SMALL:
        yield "png", _saved(image, "PNG", optimize=True)
    for quality in _QUALITIES:
        yield "jpeg", _saved(image, "JPEG", quality=quality, optimize=True)


def _saved(image: Image.Image, kind: str, *, optimize: bool, quality: int = 0) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=optimize, quality=quality)
    return buffer.getvalue()
