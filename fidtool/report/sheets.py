"""Contact sheets of a page: which images it shows, their captions and their thumbnails."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from PIL import Image

from fidtool.errors import InputError
from fidtool.images.decode import DecodeError, decode_content
from fidtool.images.framing import Crop
from fidtool.report.names import shortened
from fidtool.results import MOST_NEIGHBOURS, MOST_RANDOM, Comparison, Exhibit, HarmfulImage
from fidtool.sources.contents import ContentError, ForeignError, ProgramError, Read, StoreError

MOST_IMAGES = 800
"""Maximum number of images on a page, over all its sheets."""
PAGE_BYTES = 5 * 2**20
"""Maximum size of all images of a page together, in bytes, before base64 makes them a third larger."""
SHORTEST_SIDE, LONGEST_SIDE = 128, 384
"""Range of the long side of a thumbnail, in pixels: the fewer images on the page, the larger they are."""
BYTES_AT_SHORTEST_SIDE = 4 * 1024
"""Bytes that a photo of `SHORTEST_SIDE` pixels takes in good quality."""
SMALL = 64
"""Images up to this long side are shown with visible pixels, and stored losslessly if they fit."""
MOST_COLUMNS = 8
"""Maximum number of FAKEs that a table of equal names shows side by side."""
MOST_TABLES = 3
"""Maximum number of tables of equal names."""
_MOST_COMPARED = 72
"""Maximum number of images in the tables of equal names."""
_MOST_ROWS = 12
_QUALITIES = (85, 75, 60, 40, 20, 5)

MakeThumbnail = Callable[[str, str | None], "Thumbnail"]
"""Returns the thumbnail of an image file of a set with this framing, see `thumbnail_of`."""


@dataclass(frozen=True)
class Quota:
    """How many images of each kind a page shows of one FAKE.

    Attributes:
        random, harmful: number of images.
        groups, copies: number of groups of duplicates, and of images per group.
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
        """Total number of images."""
        return self.random + self.harmful + self.groups * self.copies + 2 * (self.shared + self.neighbours)


def quota_for(fakes: int) -> Quota:
    """The quota of each FAKE on a page with ``fakes`` of them."""
    whole = Quota()
    left = MOST_IMAGES - MOST_RANDOM - _MOST_COMPARED
    part = min(1.0, left / (whole.images * fakes))
    side = int(whole.groups * math.sqrt(part))
    return Quota(
        random=int(whole.random * part),
        harmful=int(whole.harmful * part),
        groups=side if side > 1 else 0,  # a single image is not a group of duplicates
        copies=side,
        shared=int(whole.shared * part),
        neighbours=int(whole.neighbours * part),
    )


@dataclass(frozen=True)
class Picture:
    """A thumbnail and its text alternative."""

    thumbnail: Thumbnail
    alt: str


@dataclass(frozen=True)
class Card:
    """Images that belong together, and a caption, which may be empty."""

    pictures: tuple[Picture, ...]
    caption: str = ""


@dataclass(frozen=True)
class NameTable:
    """Images with equal names in several FAKEs, side by side.

    Attributes:
        columns: short names of the FAKEs.
        rows: name of the images, and the image of each FAKE; None if it has no image with that name.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Picture | None, ...]], ...]


@dataclass(frozen=True)
class SameNames:
    """Images with equal names.

    Attributes:
        tables: one per group of FAKEs that share names.
        left_out: number of further FAKEs that share names but have no column.
    """

    tables: tuple[NameTable, ...]
    left_out: int


@dataclass(frozen=True)
class Sheets:
    """All contact sheets of a page.

    Attributes:
        fakes: the sheets of each FAKE, by name.
        real: random images of REAL.
        same_names: images with equal names; None if no two FAKEs share names.
    """

    fakes: list[dict[str, list[Card]]]
    real: list[Card]
    same_names: SameNames | None

    @property
    def files(self) -> list[str]:
        """Paths of the images, repeated as often as the page shows them."""
        cards = [card for sheets in self.fakes for cards in sheets.values() for card in cards]
        pictures = [picture for card in [*cards, *self.real] for picture in card.pictures]
        if self.same_names is not None:
            rows = [row for table in self.same_names.tables for _, row in table.rows]
            pictures += [picture for row in rows for picture in row if picture is not None]
        return [picture.thumbnail.file for picture in pictures if picture.thumbnail.file]


def sheets_of(
    results: Sequence[Comparison],
    exhibits: Sequence[Exhibit | None],
    names: Sequence[str],
    thumbnail: MakeThumbnail,
) -> Sheets:
    """The contact sheets of a page.

    Args:
        results: one per FAKE.
        exhibits: what the page can show of each FAKE; None if unknown.
        names: short names of the FAKEs.
        thumbnail: makes the thumbnails.
    """
    quota = quota_for(len(results))
    real = next((each.random_real for each in exhibits if each is not None), ())
    of_real = partial(_picture, thumbnail, results[0].real.framing)
    return Sheets(
        [_sheets_of_fake(*each, quota, thumbnail) for each in zip(results, exhibits, strict=True)],
        [Card((of_real(file, "Real image"),)) for file in real],
        _same_names(results, exhibits, names, thumbnail),
    )


def _sheets_of_fake(
    result: Comparison, exhibit: Exhibit | None, quota: Quota, thumbnail: MakeThumbnail
) -> dict[str, list[Card]]:
    random, neighbours = ((), ()) if exhibit is None else (exhibit.random, exhibit.neighbours)
    harmful: Sequence[HarmfulImage] = () if result.influence is None else result.influence.raising
    groups = () if result.duplicates is None else result.duplicates.examples
    shared = () if result.diagnosis is None or result.diagnosis.shared is None else result.diagnosis.shared.examples
    nearest = sorted(neighbours, key=lambda each: each.distance)  # images that repeat a real one come first
    of_fake = partial(_picture, thumbnail, result.fake.framing)
    of_real = partial(_picture, thumbnail, result.real.framing)

    def pair(fake: str, real: str) -> tuple[Picture, Picture]:
        return of_fake(fake, "Generated image"), of_real(real, "Real image")

    return {
        "random": [Card((of_fake(file, "Generated image"),)) for file in random[: quota.random]],
        "harmful": [
            Card((of_fake(each.file, "Harmful image"),), _change(each.effect)) for each in harmful[: quota.harmful]
        ],
        "copies": [
            Card(tuple(of_fake(file, "Duplicate") for file in group[: quota.copies]))
            for group in groups[: quota.groups]
        ],
        "shared": [Card(pair(*files)) for files in shared[: quota.shared]],
        "neighbours": [
            Card(pair(each.fake, each.real), f"distance {each.distance:.4g}") for each in nearest[: quota.neighbours]
        ],
    }


class _Named(NamedTuple):
    """A FAKE in a table of equal names: its short name, its images by name, and its framing."""

    name: str
    files: Mapping[str, str]
    framing: str | None


def _same_names(
    results: Sequence[Comparison], exhibits: Sequence[Exhibit | None], names: Sequence[str], thumbnail: MakeThumbnail
) -> SameNames | None:
    sets = {
        result.fake.name: _Named(name, exhibit.named, result.fake.framing)
        for result, exhibit, name in zip(results, exhibits, names, strict=True)
        if exhibit is not None
    }
    counts = Counter(name for each in sets.values() for name in each.files)
    groups = _sharing_names({path: each.files.keys() for path, each in sets.items()})
    shown_groups = [_most_shared(group, sets, counts) for group in groups[:MOST_TABLES]]
    columns = sum(map(len, shown_groups))
    if not columns:
        return None
    most_rows = min(_MOST_ROWS, _MOST_COMPARED // columns)
    tables = tuple(_name_table([sets[path] for path in group], most_rows, thumbnail) for group in shown_groups)
    return SameNames(tables, sum(map(len, groups)) - columns)


def _sharing_names(names: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of paths that share names, directly or through others of the group; the largest first."""
    groups: list[tuple[list[str], set[str]]] = []
    for path, own in names.items():
        joined = [group for group in groups if group[1].intersection(own)]
        groups = [group for group in groups if group not in joined]
        members = [member for group in joined for member in group[0]]
        groups.append(([*members, path], set(own).union(*(group[1] for group in joined))))
    order = list(names)
    found = [sorted(members, key=order.index) for members, _ in groups if len(members) > 1]
    return sorted(found, key=lambda members: (-len(members), order.index(members[0])))


def _most_shared(group: Sequence[str], sets: Mapping[str, _Named], counts: Mapping[str, int]) -> list[str]:
    """At most `MOST_COLUMNS` paths of a group, those with the most shared names, in their order."""
    shared = {path: sum(counts[name] > 1 for name in sets[path].files) for path in group}
    chosen = sorted(group, key=lambda path: -shared[path])[:MOST_COLUMNS]
    return [path for path in group if path in chosen]


def _name_table(columns: Sequence[_Named], most_rows: int, thumbnail: MakeThumbnail) -> NameTable:
    """The table of these FAKEs. Names that more of them have come first."""
    counts = Counter(name for each in columns for name in each.files)
    rows = sorted(name for name, count in counts.most_common(most_rows) if count > 1)

    def picture(row: str, of: _Named) -> Picture | None:
        return _picture(thumbnail, of.framing, of.files[row], f"{of.name}:") if row in of.files else None

    pictures = {row: tuple(picture(row, each) for each in columns) for row in rows}
    return NameTable(tuple(each.name for each in columns), tuple(pictures.items()))


def _picture(thumbnail: MakeThumbnail, framing: str | None, file: str, kind: str) -> Picture:
    small = thumbnail(file, framing) if file else Thumbnail("", problem="no image file")
    alt = f"{kind} {shortened(file)}" if file else f"{kind} of unknown name"
    return Picture(small, alt if not small.problem else f"{alt}: {small.problem}")


def _change(effect: float) -> str:
    """The effect of an image on the distance, with two digits."""
    return f"{effect:+#.2g}".rstrip(".")


def shown(cards: Sequence[Card]) -> int:
    """Number of images on a contact sheet that could be read."""
    return sum(not picture.thumbnail.problem for card in cards for picture in card.pictures)


# --- thumbnails ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThumbnailSize:
    """Limits of a thumbnail.

    Attributes:
        side: limit of the long side, in pixels; smaller images keep their size.
        most_bytes: limit of its encoding in bytes, before base64.
    """

    side: int
    most_bytes: int

    @classmethod
    def for_page(cls, images: int) -> ThumbnailSize:
        """The limits on a page of that many images, which keep all of them together within `PAGE_BYTES`."""
        most_bytes = PAGE_BYTES // max(1, images)
        side = SHORTEST_SIDE * math.sqrt(most_bytes / BYTES_AT_SHORTEST_SIDE)
        side = max(SHORTEST_SIDE, min(LONGEST_SIDE, int(side)))
        return cls(side, min(most_bytes, BYTES_AT_SHORTEST_SIDE * (LONGEST_SIDE // SHORTEST_SIDE) ** 2))


@dataclass(frozen=True)
class Thumbnail:
    """A reduced image, or the reason why there is none.

    Attributes:
        file: path of the image.
        framing: how its set was cropped and resized; None if it was not.
        uri: ``data:image/…``; empty if there is none.
        width, height: size of the thumbnail in pixels; 0 if there is none.
        problem: why there is none; empty if there is one.
    """

    file: str
    framing: str | None = None
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""

    @property
    def small(self) -> bool:
        """Whether the image is so small that its pixels are shown as squares."""
        return max(self.width, self.height) <= SMALL


def thumbnail_of(file: str, content: Read, size: ThumbnailSize, framing: str | None = None) -> Thumbnail:
    """The thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the report is written after hours of work.

    Args:
        file: path of the image.
        content: content of the file, or the error that occurred.
        size: limits of the thumbnail.
        framing: how its set was cropped and resized, see `fidtool.images.framing.Crop`; None if it was not. If a newer
            version did it in a way that this one does not know, the whole image is shown.
    """
    try:
        image = Image.fromarray(decode_content(content, crop=_known_crop(framing)).pixels)
        image.thumbnail((size.side, size.side), Image.Resampling.LANCZOS, reducing_gap=None)
        kind, data = _encoded(image, size.most_bytes)
    except FileNotFoundError:
        return Thumbnail(file, framing, problem="not found")
    except (OSError, ValueError, ContentError, StoreError, ForeignError, ProgramError, InputError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Thumbnail(file, framing, problem=reason)
    except (DecodeError, MemoryError) as error:
        return Thumbnail(file, framing, problem=str(error) or "too large to show")
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Thumbnail(file, framing, uri, *image.size)


def _known_crop(framing: str | None) -> Crop | None:
    try:
        return None if framing is None else Crop.parse(framing)
    except InputError:
        return None


def _encoded(image: Image.Image, most_bytes: int) -> tuple[str, bytes]:
    """Format and bytes of the first encoding that is small enough, or else of the smallest one."""
    data = b""
    for kind, data in _encodings(image):
        if len(data) <= most_bytes:
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
