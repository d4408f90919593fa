"""Contact sheets of a page: which images it shows, their captions and their thumbnails."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from fidtool.errors import FidtoolError
from fidtool.images.decode import DecodeError, DecodeOptions, decode
from fidtool.images.framing import Crop
from fidtool.names import shortened
from fidtool.pipeline.compare import MOST_RANDOM, Exhibit
from fidtool.results import Comparison, HarmfulImage
from fidtool.sources.contents import ContentError, Read, ValueRange

LONGEST_SIDE = 160
"""Limit of the long side of a thumbnail, in pixels."""
SMALL = 64
"""Images up to this long side are shown with visible pixels, and stored losslessly."""
_QUALITY = 85
_MOST_CARDS = 24
_MOST_CARDS_OF_ALL = 96
_MOST_GROUPS = 8
"""Maximum number of groups of duplicates, and of images per group."""

MakeThumbnail = Callable[[str, str | None], "Thumbnail"]
"""Returns the thumbnail of an image file of a set with this framing, see `thumbnail_of`."""


@dataclass(frozen=True)
class Thumbnail:
    """A reduced image, or the reason why there is none.

    Attributes:
        framing: how its set was cropped and resized; None if it was not.
        uri: ``data:image/…``; empty if there is none.
        problem: why there is none; empty if there is one.
    """

    file: str
    framing: str | None = None
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""

    @property
    def alt(self) -> str:
        """The text alternative: the image's path, and why it is not shown."""
        name = shortened(self.file) or "image of unknown name"
        return f"{name}: {self.problem}" if self.problem else name

    @property
    def small(self) -> bool:
        """Whether the image is so small that its pixels are shown as squares."""
        return max(self.width, self.height) <= SMALL


@dataclass(frozen=True)
class Card:
    """Images that belong together, and a caption, which may be empty."""

    pictures: tuple[Thumbnail, ...]
    caption: str = ""


@dataclass(frozen=True)
class Sheets:
    """All contact sheets of a page: those of each FAKE, by name, and random images of REAL."""

    fakes: list[dict[str, list[Card]]]
    real: list[Card]

    @property
    def files(self) -> list[str]:
        """Paths of the images, repeated as often as the page shows them."""
        cards = [card for sheets in self.fakes for cards in sheets.values() for card in cards]
        pictures = [picture for card in [*cards, *self.real] for picture in card.pictures]
        return [picture.file for picture in pictures if picture.file]


def sheets_of(results: Sequence[Comparison], exhibits: Sequence[Exhibit | None], thumbnail: MakeThumbnail) -> Sheets:
    """The contact sheets of a page, with fewer images per FAKE if there are many FAKEs."""
    most = max(1, min(_MOST_CARDS, _MOST_CARDS_OF_ALL // len(results)))
    real = next((each.random_real for each in exhibits if each is not None), ())
    return Sheets(
        [_sheets_of_fake(*each, most, thumbnail) for each in zip(results, exhibits, strict=True)],
        [Card((_picture(thumbnail, file, results[0].real.framing),)) for file in real],
    )


def _sheets_of_fake(
    result: Comparison, exhibit: Exhibit | None, most: int, thumbnail: MakeThumbnail
) -> dict[str, list[Card]]:
    random, neighbours = ((), ()) if exhibit is None else (exhibit.random, exhibit.neighbours)
    harmful: Sequence[HarmfulImage] = () if result.influence is None else result.influence.raising
    groups = () if result.duplicates is None else result.duplicates.examples
    shared = () if result.diagnosis is None or result.diagnosis.shared is None else result.diagnosis.shared.examples
    nearest = sorted(neighbours, key=lambda each: each.distance)  # images that repeat a real one come first
    few = min(most, _MOST_GROUPS)

    def of_fake(*files: str) -> tuple[Thumbnail, ...]:
        return tuple(_picture(thumbnail, file, result.fake.framing) for file in files)

    def pair(fake: str, real: str) -> tuple[Thumbnail, ...]:
        return (*of_fake(fake), _picture(thumbnail, real, result.real.framing))

    return {
        "random": [Card(of_fake(file)) for file in random[: min(MOST_RANDOM, 2 * most)]],
        "harmful": [Card(of_fake(each.file), f"{each.effect:+#.2g}".rstrip(".")) for each in harmful[:most]],
        "copies": [Card(of_fake(*group[:_MOST_GROUPS])) for group in groups[:few]],
        "shared": [Card(pair(*files)) for files in shared[:few]],
        "neighbours": [Card(pair(each.fake, each.real), f"distance {each.distance:.4g}") for each in nearest[:most]],
    }


def _picture(thumbnail: MakeThumbnail, file: str, framing: str | None) -> Thumbnail:
    return thumbnail(file, framing) if file else Thumbnail("", problem="no image file")


def shown(cards: Sequence[Card]) -> int:
    """Number of images on a contact sheet that could be read."""
    return sum(not picture.problem for card in cards for picture in card.pictures)


def thumbnail_of(file: str, content: Read, framing: str | None = None, floats: ValueRange | None = None) -> Thumbnail:
    """The thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the report is written after hours of work.

    Args:
        framing: how its set was cropped and resized, see `fidtool.images.framing.Crop`; None if it was not.
        floats: how floats become bytes.
    """
    try:
        crop = None if framing is None else Crop.parse(framing)
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=_QUALITY)
    except FileNotFoundError:
        return Thumbnail(file, framing, problem="not found")
    except (OSError, ValueError, ContentError, FidtoolError, DecodeError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Thumbnail(file, framing, problem=reason)
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Thumbnail(file, framing, uri, *image.size)
