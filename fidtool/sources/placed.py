"""Readers of images that lie at known places in files. Imports no torch."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import Read, Reader
from fidtool.sources.files import Extent, Files


class Placed(Reader):
    """Reads pieces of files, and makes an image of each.

    From the disk in any order. From a store in the order in which they lie there: pieces that are next to each other
    come with one request.

    Args:
        files: the files.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.in_order = files.remote

    @abc.abstractmethod
    def extent(self, item: int) -> Extent:
        """Where an image lies; those of ascending images ascend."""

    @abc.abstractmethod
    def unpack(self, item: int, data: bytes) -> Read:
        """The image that these bytes are."""

    def read(self, items: Sequence[int]) -> list[Read]:
        fetched = self._files.fetch([self.extent(int(item)) for item in items])
        return [self._unpacked(int(item), data) for item, data in zip(items, fetched, strict=True)]

    def stream(self, items: NDArray[np.int64]) -> Iterator[Read]:
        flowing = self._files.flow([self.extent(item) for item in items.tolist()])
        for item, data in zip(items.tolist(), flowing, strict=True):
            yield self._unpacked(item, data)

    def _unpacked(self, item: int, data: bytes | Exception) -> Read:
        return data if isinstance(data, Exception) else self.unpack(item, data)
