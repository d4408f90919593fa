"""Images that are rows of an array: which axis is which, how numbers become bytes, and how rows are read. No torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.sources.contents import READ_AT_ONCE, ContentError, Extent, ExtentReader, Files, Pixels, Read, Reader
from fidtool.sources.image_set import ImageSet, ImageSource, NamedFiles, Names, Numbered, split_common_folder

ValueRange = tuple[float, float]
"""What black and white are in an array of floats."""
_CHANNELS = frozenset({1, 3, 4})


@dataclass(frozen=True)
class Layout:
    """How an image lies in an array.

    Attributes:
        shape: of one image as it is stored.
        channels: which of its axes are the channels; -1 where there is none.
    """

    shape: tuple[int, ...]
    channels: int

    def image(self, values: NDArray[Any]) -> NDArray[Any]:
        """One image in the shape (height, width, channels)."""
        return values[..., None] if self.channels < 0 else np.moveaxis(values, self.channels, -1)

    @property
    def words(self) -> str:
        """For people: ``NHWC``, ``NCHW`` or ``NHW``."""
        return {-1: "NHW", 0: "NCHW", 2: "NHWC"}[self.channels]


def layout_of(shape: Sequence[int], what: str) -> Layout:
    """Finds the axes of an array of images by their lengths: 1, 3 or 4 are channels.

    Args:
        shape: of the array.
        what: the array, for the message.

    Raises:
        InputError: no images, or axes that could mean one thing or another.
    """
    text = "x".join(map(str, shape))
    if len(shape) in (3, 4) and min(shape) <= 0:
        raise InputError(f"no images in {what}: it has the shape {text}")
    if len(shape) == 3 and shape[0] not in (3, 4) and shape[1] > 4 and shape[2] > 4:
        return Layout(tuple(shape[1:]), -1)
    if len(shape) == 4:
        first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
        if first and last:
            raise InputError(
                f"{what} has the shape {text}, which could be NHWC or NCHW:",
                "store it as NHWC with more than 4 rows and columns, or the images as files",
            )
        if first or last:
            return Layout(tuple(shape[1:]), 2 if last else 0)
    hint = "; one image alone: array[None]" if len(shape) == 3 else ""
    raise InputError(
        f"{what} has the shape {text}, which is none of images: it should be NHWC or NCHW with 1, 3 or 4 channels, or "
        f"NHW{hint}"
    )


def refuse_objects(dtype: np.dtype[Any], what: str) -> None:
    """Raises an InputError where an array would have to be unpickled."""
    if dtype.hasobject:
        raise InputError(
            f"{what} holds pickled Python objects, which are never loaded because loading them can run code:",
            "save one uint8 array of all images, of one size, or the images as files",
        )


def check_values(dtype: np.dtype[Any], layout: Layout, value_range: ValueRange | None, what: str) -> None:
    """Refuses numbers that say nothing about black and white.

    Raises:
        InputError: neither uint8 nor floats whose range was stated; or four channels of floats.
    """
    if dtype == np.uint8:
        return
    if dtype.kind == "f" and layout.channels >= 0 and layout.shape[layout.channels] == 4:
        raise InputError(
            f"{what} holds floats in four channels, as latents do:",
            "decode them into images; pictures with transparency are uint8 here",
        )
    if dtype.kind == "f" and value_range is not None:
        return
    if dtype.kind == "f":
        raise InputError(
            f"{what} holds {dtype.name}, and nothing says which numbers are black and white:",
            f"pass {option('value_range', (0, 1))}, or -1,1, or what it is",
            setting="value_range",
        )
    problem = f"{what} holds {dtype.name}; images are uint8, 0 to 255, or floats with {option('value_range')}"
    raise InputError(problem, setting="value_range")


def as_pixels(values: NDArray[Any], value_range: ValueRange | None) -> Pixels | ContentError:
    """One image as bytes.

    Floats are scaled to 0..255 and rounded, halves up, and clipped, as torchvision's ``save_image`` does.

    Args:
        values: array of shape (height, width, channels): uint8, or floats.
        value_range: what black and white are among floats.
    """
    if values.dtype == np.uint8:
        return Pixels(np.ascontiguousarray(values))
    assert value_range is not None
    black, white = value_range
    # Python's numbers take an array's own type; half floats would lose digits.
    exact: NDArray[Any] = values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32)
    if not np.isfinite(exact).all():
        return ContentError("it holds NaN or infinite values")
    scaled = (exact - black) * (255.0 / (white - black))
    # What rounding alone pushes over the edge is not clipped.
    clipped = bool(scaled.min() < -0.5 or scaled.max() > 255.5)
    return Pixels(np.floor(scaled + 0.5).clip(0, 255).astype(np.uint8), clipped)


BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""Stands for the type that NumPy does not have: the higher half of a float32."""


_MOST_IMAGES = 200_000_000
_MOST_SPREAD = 64
"""Largest ratio of the bytes that an image spans to the bytes it has; more than 1 for crops of larger images."""


@dataclass(frozen=True)
class StoredArray:
    """The images of one array.

    Attributes:
        start: byte at which the first begins.
        count: how many there are.
        stride: bytes from one to the next.
        layout: how one lies.
        strides: bytes from one element to the next along the axes of one.
        dtype: of the elements; see `BFLOAT16`.
    """

    start: int
    count: int
    stride: int
    layout: Layout
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def span(self) -> int:
        """Bytes from an image's first to its last."""
        return self.dtype.itemsize + sum(
            (length - 1) * stride for length, stride in zip(self.layout.shape, self.strides, strict=True)
        )

    @property
    def end(self) -> int:
        """The first byte behind them."""
        return self.start + (self.count - 1) * self.stride + self.span

    def values(self, data: bytes) -> NDArray[Any]:
        """One image of its bytes, in the shape (height, width, channels)."""
        if self.dtype != BFLOAT16:
            flat = np.frombuffer(data, dtype=self.dtype)
            return self.layout.image(as_strided(flat, self.layout.shape, self.strides))
        halves = np.frombuffer(data, dtype="<u2")
        flat = (halves.astype("<u4") << 16).view("<f4")
        doubled = tuple(2 * stride for stride in self.strides)
        return self.layout.image(as_strided(flat, self.layout.shape, doubled))


def contiguous(shape: Sequence[int], dtype: np.dtype[Any], layout: Layout, start: int) -> StoredArray:
    """The images of an array whose last axis runs fastest."""
    strides = [dtype.itemsize]
    for length in reversed(layout.shape):
        strides.append(strides[-1] * length)
    *inner, stride = strides
    return StoredArray(start, shape[0], stride, layout, tuple(reversed(inner)), dtype)


@dataclass(frozen=True)
class Checksum:
    """The CRC-32 that a file states for ``length`` of its bytes from ``start`` on; all zero where it states none."""

    start: int
    length: int
    crc: int


NO_CHECKSUM = Checksum(0, 0, 0)


class ArrayReader(ExtentReader):
    """Reads rows of arrays.

    Args:
        files: what the arrays are in.
        arrays: one per file.
        value_range: what black and white are among floats.
        checksums: those of the arrays, where the files state them.
    """

    def __init__(
        self,
        files: Files,
        arrays: Sequence[StoredArray],
        value_range: ValueRange | None,
        checksums: Sequence[Checksum] = (),
    ) -> None:
        super().__init__(files)
        self._checksums = checksums
        self.has_checksums = bool(checksums) and not files.remote
        self._arrays, self._value_range = arrays, value_range
        self._ends = np.cumsum([array.count for array in arrays])
        self.scaled = any(array.dtype != np.uint8 for array in arrays)
        self.variant = f"value range {value_range}" if self.scaled else ""

    def extent(self, item: int) -> Extent:
        file = self._file(item)
        array = self._arrays[file]
        row = item - int(self._ends[file]) + array.count
        return file, array.start + row * array.stride, array.span

    def unpack(self, item: int, data: bytes) -> Read:
        return as_pixels(self._arrays[self._file(item)].values(data), self._value_range)

    def damage(self, stop: Callable[[], bool]) -> str:
        for file, stated in enumerate(self._checksums):
            crc, left = 0, stated.length
            try:
                with self._files.open(file) as handle:
                    handle.seek(stated.start)
                    while left and not stop() and (data := handle.read(min(left, READ_AT_ONCE))):
                        crc, left = zlib.crc32(data, crc), left - len(data)
            except (OSError, ContentError) as error:
                return f"{self._files.paths[file]} cannot be read: {error}"
            if crc != stated.crc and not stop():
                return f"{self._files.paths[file]} is damaged: its array has another checksum; copy or make it anew"
        return ""

    def _file(self, item: int) -> int:
        return int(np.searchsorted(self._ends, item, side="right")) if len(self._arrays) > 1 else 0

    def expecting(self, sizes: NDArray[np.int64]) -> ArrayReader:
        return ArrayReader(self._files.expecting(sizes), self._arrays, self._value_range)


def set_of_rows(named: NamedFiles, kind: str, counts: Sequence[int], reader: Reader, began: int) -> ImageSet:
    """The images in files that hold so many rows each.

    Args:
        named: the files.
        kind: what they are, for people.
        counts: images in each file.
        reader: what reads them.
        began: when the listing began, in nanoseconds since 1970.

    Raises:
        InputError: they claim so many that their numbers alone would fill the memory.
    """
    if sum(counts) > _MOST_IMAGES:
        raise InputError(f"{named.path} claims {sum(counts)} images, and {_MOST_IMAGES} are the most that are read")
    file_index = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if len(counts) == 1:
        names: Names | Numbered = Numbered(counts[0])
    else:
        labels = split_common_folder(named.files.paths)[1]
        names = Names(f"{label}[{row}]" for label, count in zip(labels, counts, strict=True) for row in range(count))
    return ImageSet.of(ImageSource(named.path, kind, names, named.prefix, named.files, reader, file_index, began))


def set_of_arrays(
    named: NamedFiles, arrays: Sequence[StoredArray], began: int, checksums: Sequence[Checksum] = ()
) -> ImageSet:
    """The images of arrays whose rows can be read each on its own; see `set_of_rows`."""
    layouts = ", ".join(dict.fromkeys(f"{array.dtype.name} {array.layout.words}" for array in arrays))
    counts = [array.count for array in arrays]
    reader = ArrayReader(named.files, arrays, named.value_range, checksums)
    return set_of_rows(named, f"array ({layouts})", counts, reader, began)


def scattered_error(what: str) -> InputError:
    """The error for an array that is stored with the images on its fastest axis."""
    return InputError(
        f"{what} is in Fortran order, or permuted likewise: every image is scattered over the whole file",
        "save numpy.ascontiguousarray of it, or the tensor's .contiguous()",
    )


def require_compact(array: StoredArray, what: str) -> None:
    """Raises an InputError where to read an image would mean to read many times as much."""
    if array.span > _MOST_SPREAD * prod(array.layout.shape) * array.dtype.itemsize:
        raise scattered_error(what)


def require_complete(array: StoredArray, size: int, what: str) -> None:
    """Raises an InputError where a file of ``size`` bytes ends before its array does."""
    if array.end > size:
        raise InputError(f"{what} is cut off: its array ends at byte {array.end}, and the file has {size}")
