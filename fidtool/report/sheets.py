"""Contact sheets of a page: which images it shows, what stands under them, and their thumbnails."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError
from fidtool.images.decode import DecodeError, decode_content
from fidtool.report.names import shortened
from fidtool.results import MOST_NEIGHBOURS, MOST_RANDOM, Comparison, Exhibit
from fidtool.sources.contents import ContentError, ForeignError, ProgramError, Read, StoreError

MOST_IMAGES = 800
"""On one page, for all FAKEs together: with `MOST_BYTES` each they take 6.3 MiB."""
LONG_SIDE = 128
"""Of a thumbnail, in pixels; smaller images keep their size."""
MOST_BYTES = 6 * 1024
"""Of a thumbnail, before base64 makes it a third larger. Only noise comes near."""
SMALL = 64
"""Images up to this long side are shown with their pixels as squares, and losslessly if they fit."""
_QUALITIES = (85, 75, 60, 40, 20, 5)


@dataclass(frozen=True)
class Quota:
    """How many images of each kind a page shows of one FAKE.

    Attributes:
        random, harmful: number of images.
        groups, copies: number of groups of copies, and of images of each group.
        shared, neighbours: number of pairs of images.
    """

    random: int = MOST_RANDOM
    harmful: int = 24
    groups: int = 8
    copies: int = 8
    shared: int = 8
    neighbours: int = MOST_NEIGHBOURS

    @property
    def images(self) -> int:
        """Number of all images."""
        return self.random + self.harmful + self.groups * self.copies + 2 * (self.shared + self.neighbours)


def quota_for(fakes: int) -> Quota:
    """The quota of each FAKE on a page of so many."""
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
    """A thumbnail and its description for screen readers."""

    thumbnail: Thumbnail
    words: str


@dataclass(frozen=True)
class Card:
    """Pictures that belong together, and a caption, which may be empty."""

    pictures: tuple[Picture, ...]
    caption: str = ""


def sheets_of(
    result: Comparison, exhibit: Exhibit | None, quota: Quota, thumbnail: Callable[[str], Thumbnail]
) -> dict[str, list[Card]]:
    """The contact sheets of one FAKE, by name.

    Args:
        result: names its harmful images, copies, and images of REAL.
        exhibit: names its random images and their neighbours; None if unknown.
        quota: how many are shown.
        thumbnail: of an image file.
    """
    random, neighbours = ((), ()) if exhibit is None else (exhibit.random, exhibit.neighbours)
    harmful = () if result.influence is None else result.influence.most_harmful
    groups = () if result.duplicates is None else result.duplicates.examples
    shared = () if result.diagnosis is None or result.diagnosis.shared is None else result.diagnosis.shared.examples
    nearest = sorted(neighbours, key=lambda each: each.distance)  # copies of REAL would come first
    card = partial(_card, thumbnail)
    return {
        "random": [card([(file, "Generated image")]) for file in random[: quota.random]],
        "harmful": [card([(each.file, "Harmful image")], _change(each.effect)) for each in harmful[: quota.harmful]],
        "copies": [card([(file, "Copy") for file in group[: quota.copies]]) for group in groups[: quota.groups]],
        "shared": [card(_pair(fake, real)) for fake, real in shared[: quota.shared]],
        "neighbours": [
            card(_pair(each.fake, each.real), f"distance {each.distance:.4g}") for each in nearest[: quota.neighbours]
        ],
    }


def files_of(sheets: Mapping[str, Sequence[Card]]) -> list[str]:
    """Paths of the images on contact sheets."""
    cards = [card for cards in sheets.values() for card in cards]
    return [picture.thumbnail.file for card in cards for picture in card.pictures if picture.thumbnail.file]


def _pair(fake: str, real: str) -> list[tuple[str, str]]:
    return [(fake, "Generated image"), (real, "Real image")]


def _card(thumbnail: Callable[[str], Thumbnail], files: Iterable[tuple[str, str]], caption: str = "") -> Card:
    return Card(tuple(_picture(thumbnail, file, kind) for file, kind in files), caption)


def _picture(thumbnail: Callable[[str], Thumbnail], file: str, kind: str) -> Picture:
    small = thumbnail(file) if file else Thumbnail("", problem="only its features are known")
    words = f"{kind} {shortened(file)}" if file else f"{kind} of unknown name"
    return Picture(small, words if not small.problem else f"{words}: {small.problem}")


def _change(effect: float) -> str:
    """What an image adds to the distance, with two digits."""
    return f"{effect:+#.2g}".rstrip(".")


def shown(cards: Sequence[Card]) -> int:
    """Number of images on a contact sheet that could be read."""
    return sum(not picture.thumbnail.problem for card in cards for picture in card.pictures)


# --- thumbnails, of the pixels that were measured --------------------------------------------------------------------


@dataclass(frozen=True)
class Thumbnail:
    """An image made small, or why there is none.

    Attributes:
        file: path of the image.
        uri: ``data:image/…``; empty if there is none.
        width, height: of the thumbnail in pixels; 0 if there is none.
        problem: why there is none, in a few words; empty if there is one.
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


def thumbnail_of(file: str, content: Read) -> Thumbnail:
    """The thumbnail of an image. Never an exception, as a report is written after hours of work.

    Args:
        file: path of the image.
        content: of the file, or why there is none.
    """
    try:
        pixels = decode_content(content).pixels
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
    """Format and bytes of the first encoding that is small enough, or else of the smallest one."""
    data = b""
    for kind, data in _encodings(image):
        if len(data) <= MOST_BYTES:
            return kind, data
    return "jpeg", data


def _encodings(image: Image.Image) -> Iterator[tuple[str, bytes]]:
    if max(image.size) <= SMALL:
        yield "png", _saved(image, "PNG", optimize=True)
    for quality in _QUALITIES:
        yield "jpeg", _saved(image, "JPEG", quality=quality, optimize=True)


def _saved(image: Image.Image, kind: str, *, optimize: bool, quality: int = 0) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=optimize, quality=quality)
    return buffer.getvalue()
