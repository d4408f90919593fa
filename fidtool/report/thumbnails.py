"""Small pictures that a page carries within itself, of the pixels that were measured."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError
from fidtool.images.decode import DecodeError, decode_content
from fidtool.images.lookup import ImageLookup
from fidtool.sources.contents import ContentError, ForeignError, ProgramError, Read, StoreError

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

    def __init__(self, gallery: ImageLookup) -> None:
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
        super().__init__(ImageLookup())
        self.files: list[str] = []

    def of(self, file: str) -> Thumbnail:
        """No thumbnail yet."""
        self.files.append(file)
        return Thumbnail(file)


def _thumbnail(file: str, content: Read) -> Thumbnail:
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
