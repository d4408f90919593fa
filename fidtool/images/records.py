"""What is kept of each decoded image beside its features, so that copies and faulty images can be found.

All of it is integer arithmetic: the same bytes on every machine that decodes the same pixels.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.images.decode import DecodedImage, ImageProperties
from fidtool.redaction import redacted
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet, Names, absolute_prefix

SIDE = 8
"""Cells along a side of the thumbnail's brightness."""
_COLOUR_SIDE = 2
BRIGHTNESS = SIDE * SIDE
"""Bytes of the thumbnail that are brightness; the others are colour."""
_SAMPLED_SIDE = 64
"""About this many rows and columns of a large image are looked at: they show what the others show."""
_LUMA = np.array([299, 587, 114])
"""ITU-R BT.601, per mille."""
BINS = 16
NOISE = 80
"""Roughness beyond which neighbouring pixels have next to nothing to do with each other."""
FLAGS = {field.name: bit for bit, field in enumerate(fields(ImageProperties))}
"""Bits of a record's ``flags`` by the names of `ImageProperties`."""

_SEPARATOR = b"\0"
RECORD_ARRAYS = ("records", "names", "folder")
"""Names of the arrays in a statistics file."""

RECORD = np.dtype(
    [
        ("digest", "<u8"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("format", "S8"),
        ("mode", "S6"),
        ("quality", "u1"),
        ("flags", "u1"),
        ("gray", "u1"),
        ("low", "u1"),
        ("high", "u1"),
        ("roughness", "u1"),
        ("values", "<u2"),
        ("zeros", "<u2"),
        ("full", "<u2"),
        ("black", "<u2"),
        ("bins", "<u2", (BINS,)),
        ("thumb", "u1", (BRIGHTNESS + 2 * _COLOUR_SIDE**2,)),
    ]
)
"""One image.

``digest``: the first 8 bytes of the SHA-1 of its size and RGB pixels. ``height``, ``width``: in pixels. ``format``,
``mode``: of the file, by Pillow's names. ``quality``: a JPEG's, 1 to 100 on libjpeg's scale, 0 where there is none.
``flags``: see `FLAGS`.

The rest is of the sampled pixels. ``gray``: 1 where all of them are gray. ``low``, ``high``: the smallest and the
largest value. ``roughness``: the mean squared difference of horizontal neighbours (green), in hundredths of what it
would be if they were independent: about 100 for white noise, mostly below 30 for photos. ``values``: how many there
are, of which ``zeros`` are 0 and ``full`` are 255. ``black``: how many pixels are 0 in all channels. ``bins``: the
histogram of the values. ``thumb``: brightness in 8 x 8 cells, then (B - Y) / 2 and (R - Y) / 2, each plus 128, in
2 x 2.
"""

RecordArray = NDArray[np.void]
"""Array of shape (images,) and dtype `RECORD`."""


def no_records() -> RecordArray:
    """An array of shape (0,)."""
    return np.zeros(0, dtype=RECORD)


def record_of(image: DecodedImage) -> RecordArray:
    """One image's record, an array of shape (1,)."""
    height, width, _ = image.pixels.shape
    record = np.zeros(1, dtype=RECORD)
    one = record[0]
    one["digest"] = _digest(image.pixels)
    one["height"], one["width"], one["quality"] = height, width, image.quality
    one["flags"] = sum(getattr(image.properties, name) << bit for name, bit in FLAGS.items())
    one["format"], one["mode"] = image.format.encode()[:8], image.mode.encode()[:6]
    down, right = max(1, height // _SAMPLED_SIDE), max(1, width // _SAMPLED_SIDE)
    sample = np.ascontiguousarray(image.pixels[::down, ::right])
    counts = np.bincount(sample.reshape(-1), minlength=256)
    seen = np.flatnonzero(counts)
    one["low"], one["high"], one["values"] = seen[0], seen[-1], sample.size
    one["zeros"], one["full"] = counts[0], counts[-1]
    one["bins"] = counts.reshape(BINS, -1).sum(1)
    red, green, blue = (np.ascontiguousarray(sample[..., channel]) for channel in range(3))
    # Most images have no such value at all.
    one["black"] = np.count_nonzero((red | green | blue) == 0) if counts[0] else 0
    one["gray"] = np.array_equal(red, green) and np.array_equal(green, blue)
    one["roughness"] = _roughness(green, image.pixels[::down, 1::right, 1])
    one["thumb"] = _thumb(sample)
    return record


def _digest(pixels: NDArray[np.uint8]) -> int:
    # SHA-1 is hashlib's quickest where the processor has instructions for it; forged copies are no concern.
    sha = hashlib.sha1(b"%d %d\0" % pixels.shape[:2], usedforsecurity=False)
    sha.update(np.ascontiguousarray(pixels).data)
    return int.from_bytes(sha.digest()[:8], "little")


def _roughness(green: NDArray[np.uint8], neighbours: NDArray[np.uint8]) -> int:
    values = green.astype(np.float64)  # of small integers, whose sums are exact
    steps = neighbours - values[:, : neighbours.shape[1]]
    scatter = values.size * np.vdot(values, values) - values.sum() ** 2
    if not scatter or not steps.size:
        return 0
    # The mean squared step over twice the variance, which is scatter / size ** 2.
    return min(255, int(50 * np.vdot(steps, steps) * values.size**2 / (steps.size * scatter)))


def _thumb(sample: NDArray[np.uint8]) -> NDArray[np.uint8]:
    for axis in (0, 1):
        if sample.shape[axis] < SIDE:
            sample = np.repeat(sample, -(-SIDE // sample.shape[axis]), axis)
    height, width, _ = sample.shape
    rows, columns = _cells(height), _cells(width)
    # Integers below 2 ** 24, which float32 adds exactly.
    strips = (rows @ sample.reshape(height, -1).astype(np.float32)).reshape(SIDE, width, 3)
    sums = (columns @ strips).astype(np.int64)
    counts = np.outer(rows.sum(1), columns.sum(1)).astype(np.int64)
    luma = sums @ _LUMA
    brightness = _rounded(luma, 1000 * counts)
    share = SIDE // _COLOUR_SIDE
    cells = _COLOUR_SIDE, share, _COLOUR_SIDE, share
    luma, blue, red, counts = (
        values.reshape(cells).sum(axis=(1, 3)) for values in (luma, sums[..., 2], sums[..., 0], counts)
    )
    colours = [_rounded(1000 * colour - luma, 2000 * counts) + 128 for colour in (blue, red)]
    return np.concatenate([part.reshape(-1) for part in (brightness, *colours)]).astype(np.uint8)


@functools.lru_cache
def _cells(length: int) -> NDArray[np.float32]:
    """Which of ``length`` pixels are in which cell: 0 or 1, shape (SIDE, length)."""
    edges = np.arange(SIDE + 1) * length // SIDE
    places = np.arange(length)
    inside = (places >= edges[:-1, None]) & (places < edges[1:, None])
    return inside.astype(np.float32)


def _rounded(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.int64]:
    result: NDArray[np.int64] = (2 * numerator + denominator) // (2 * denominator)
    return result


@dataclass(frozen=True)
class ImageRecords:
    """The records and the names of the images that count in a set, in its canonical order.

    Attributes:
        records: array of shape (images,) and dtype `RECORD`.
        names: of the images, in the order of the records.
        prefix: what stands before a name where an image is shown: the source as the user typed it, or, of a statistics
            file, where it was.
    """

    records: RecordArray
    names: Sequence[str]
    prefix: str = ""

    @classmethod
    def of(cls, images: ImageSet, records: NDArray[np.uint8], skipped: Sequence[BadFile]) -> ImageRecords:
        """The records of a set.

        Args:
            images: the set, in canonical order.
            records: of each image that was not skipped, as bytes: uint8 array of shape (images, bytes of `RECORD`).
            skipped: files that could not be read.
        """
        left_out = {bad.file for bad in skipped}
        names = (name for name in images.names if f"{images.source.prefix}{name}" not in left_out)
        return cls(np.ascontiguousarray(records).view(RECORD).reshape(-1), Names(names), images.source.prefix)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        """Path of image ``index``, for people."""
        return f"{self.prefix}{self.names[index]}"

    def redacted(self) -> ImageRecords:
        """The same without what may be secret in addresses. The images cannot be found by it again."""
        prefix = redacted(self.prefix)
        if not any("://" in text for text in (prefix, *self.names[:1])):
            return self
        files = (redacted(f"{self.prefix}{name}") for name in self.names)
        return replace(self, names=Names(file.removeprefix(prefix) for file in files), prefix=prefix)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What a statistics file keeps, for `from_arrays`: `RECORD_ARRAYS` by name."""
        names, folder = _SEPARATOR.join(map(os.fsencode, self.names)), os.fsencode(absolute_prefix(self.prefix))
        texts = (np.frombuffer(text, dtype=np.uint8) for text in (names, folder))
        return dict(zip(RECORD_ARRAYS, (self.records, *texts), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], count: int | None) -> ImageRecords | None:
        """The images of a statistics file; None where it has none that this version can read."""
        if not arrays.keys() >= set(RECORD_ARRAYS):
            return None
        records, names, folder = (arrays[name] for name in RECORD_ARRAYS)
        if records.dtype != RECORD or records.shape != (count,) or {names.dtype, folder.dtype} != {np.dtype(np.uint8)}:
            return None
        split = [os.fsdecode(name) for name in names.tobytes().split(_SEPARATOR)]
        return cls(records, split, os.fsdecode(folder.tobytes())) if len(split) == count else None
