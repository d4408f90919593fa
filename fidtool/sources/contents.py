"""What is read of an image before it is decoded, by whom, and what can go wrong. Imports no torch."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

READ_AT_ONCE = 1 << 21
"""Bytes of a compressed stream that are unpacked at a time: meanwhile other threads can work."""
MOST_BYTES = 2**31
"""No image file is larger: what is would fill the memory before it could be refused."""


class ContentError(Exception):
    """There is something in the image's place, and it is no image; the message says what is wrong with it."""


class ForeignError(Exception):
    """This rank sees other contents than rank zero, which listed them; the message is a whole sentence."""


class StoreError(Exception):
    """A remote store does not answer, or refuses, which says nothing about the image; the message is a sentence."""


class RefusedError(StoreError):
    """A store's answer that would be the same the next time: access is denied, or pieces are asked for in vain."""


class ProgramError(Exception):
    """The program that should give the image failed; the message is a whole sentence."""


@dataclass(frozen=True)
class Pixels:
    """An image that needs no decoder.

    Attributes:
        values: uint8 array of shape (height, width, channels), with 1, 3 or 4 channels.
        clipped: some of the numbers that it was made from lay outside their range.
    """

    values: NDArray[np.uint8]
    clipped: bool = False


Content: TypeAlias = "bytes | Pixels | Image"
"""An encoded image, pixels, or what Pillow has opened or made."""
Read: TypeAlias = "Content | Exception"
"""A content, or why there is none: `ContentError`, `ForeignError`, `StoreError`, `ProgramError`, `OSError`,
`MemoryError`, or an `InputError` where it is not about one image."""


def bytes_of(content: Read) -> bytes:
    """What tells a content from others; of one that is missing the kind of reason."""
    if isinstance(content, Exception):
        return type(content).__name__.encode()
    if isinstance(content, bytes):
        return content
    try:
        return np.asarray(content.values if isinstance(content, Pixels) else content).tobytes()
    except Exception as error:  # a damaged image that Pillow has opened and not yet decoded
        return type(error).__name__.encode()


@dataclass(frozen=True)
class BadFile:
    """An image file that cannot be used.

    Attributes:
        file: its path, as the user typed the folder's.
        reason: what is wrong with it.
    """

    file: str
    reason: str


class Reader(abc.ABC):
    """Gets the contents of a source's images, which it numbers from 0 in the order of their names.

    It travels to other ranks and to decoding processes.

    Attributes:
        in_order: images can only be read from first to last, with `stream`; else with `read`, in any order.
        at_once: so many are worth asking for together.
        variant: what decides the contents beside the files.
        scaled: they were floats, which a value range makes images.
        has_checksums: there is something that `damage` can find.
    """

    in_order = False
    at_once = 1
    variant = ""
    scaled = False
    has_checksums = False

    def damage(self, stop: Callable[[], bool]) -> str:
        """What is wrong with the files, a sentence; empty if nothing is. Gives up where ``stop`` says so."""
        return ""

    def read(self, items: Sequence[int]) -> list[Read]:
        """The contents of these images. One of this and `stream` is a reader's own."""
        order = np.argsort(np.asarray(items, dtype=np.int64), kind="stable")
        found = dict(zip(order.tolist(), self.stream(np.asarray(items, dtype=np.int64)[order]), strict=True))
        return [found[place] for place in range(len(items))]

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        """The contents of these images, whose numbers ascend."""
        for item in items.tolist():
            yield from self.read([item])

    @abc.abstractmethod
    def expecting(self, sizes: NDArray[np.int64]) -> Reader:
        """The same reader on another rank, where the files must have these sizes."""
