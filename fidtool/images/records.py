"""Records: small summaries of decoded images, with which duplicates and faulty images are found.

They are computed with integer arithmetic, so that the same pixels give the same bytes on every machine.
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
"""Number of cells along each side of the thumbnail's brightness part."""
_COLOUR_SIDE = 2
BRIGHTNESS = SIDE * SIDE
"""Number of the thumbnail's bytes that are brightness; the rest is colour."""
_SAMPLED_SIDE = 64
"""Approximate number of rows and columns that are sampled from a large image."""
_LUMA = np.array([299, 587, 114])
"""Luma weights of ITU-R BT.601, in thousandths."""
BINS = 16
"""Number of bins in a record's histogram."""
NOISE = 80
"""Roughness above which neighbouring pixels are almost uncorrelated."""
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
"""The record of one image.

``digest``: the first 8 bytes of the SHA-1 of its size and RGB pixels. ``height``, ``width``: its size in pixels.
``format``, ``mode``: Pillow's names of the file's format and mode. ``quality``: quality of a JPEG, 1 to 100 on
libjpeg's scale; 0 for other formats. ``flags``: see `FLAGS`.

The remaining fields describe the sampled pixels. ``gray``: 1 if all of them are gray. ``low``, ``high``: the smallest
and the largest value. ``roughness``: the mean squared difference of horizontal neighbours in the green channel, in
percent of the value for independent neighbours: about 100 for white noise, mostly below 30 for photos. ``values``:
number of values, of which ``zeros`` are 0 and ``full`` are 255. ``black``: number of pixels that are 0 in all channels.
``bins``: histogram of the values. ``thumb``: brightness in 8 x 8 cells, then (B - Y) / 2 + 128 and (R - Y) / 2 + 128,
each in 2 x 2 cells.
"""

RecordArray = NDArray[np.void]
"""Array of shape (images,) and dtype `RECORD`."""


def no_records() -> RecordArray:
    """Returns an empty array of records, shape (0,)."""
    return np.zeros(0, dtype=RECORD)


def record_of(image: DecodedImage) -> RecordArray:
    """Returns the record of one image as an array of shape (1,)."""
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
    # Most images contain no zeros, so counting black pixels can be skipped.
    one["black"] = np.count_nonzero((red | green | blue) == 0) if counts[0] else 0
    one["gray"] = np.array_equal(red, green) and np.array_equal(green, blue)
    one["roughness"] = _roughness(green, image.pixels[::down, 1::right, 1])
    one["thumb"] = _thumb(sample)
    return record


def _digest(pixels: NDArray[np.uint8]) -> int:
    # SHA-1 is hashlib's fastest hash on processors with instructions for it. Collisions on purpose are no concern.
    sha = hashlib.sha1(b"%d %d\0" % pixels.shape[:2], usedforsecurity=False)
    sha.update(np.ascontiguousarray(pixels).data)
    return int.from_bytes(sha.digest()[:8], "little")


def _roughness(green: NDArray[np.uint8], neighbours: NDArray[np.uint8]) -> int:
    values = green.astype(np.float64)  # small integers, whose sums are exact
    steps = neighbours - values[:, : neighbours.shape[1]]
    scatter = values.size * np.vdot(values, values) - values.sum() ** 2
    if not scatter or not steps.size:
        return 0
    # The mean squared step divided by twice the variance, where the variance is scatter / size ** 2.
    return min(255, int(50 * np.vdot(steps, steps) * values.size**2 / (steps.size * scatter)))


def _thumb(sample: NDArray[np.uint8]) -> NDArray[np.uint8]:
    for axis in (0, 1):
        if sample.shape[axis] < SIDE:
            sample = np.repeat(sample, -(-SIDE // sample.shape[axis]), axis)
    height, width, _ = sample.shape
    rows, columns = _cells(height), _cells(width)
    # The sums are integers below 2 ** 24, which are exact in float32.
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
    """Returns which of ``length`` pixels are in each cell: 0 or 1, shape (SIDE, length)."""
    edges = np.arange(SIDE + 1) * length // SIDE
    positions = np.arange(length)
    inside = (positions >= edges[:-1, None]) & (positions < edges[1:, None])
    return inside.astype(np.float32)


def _rounded(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.int64]:
    result: NDArray[np.int64] = (2 * numerator + denominator) // (2 * denominator)
    return result


@dataclass(frozen=True)
class ImageRecords:
    """The records and names of the images in a set, in canonical order and without skipped images.

    Attributes:
        records: array of shape (images,) and dtype `RECORD`.
        names: names of the images, in the order of the records.
        prefix: prefix of a name where an image is shown: the source as passed by the caller, or its absolute path if
            the records were loaded from a statistics file.
    """

    records: RecordArray
    names: Sequence[str]
    prefix: str = ""

    @classmethod
    def of(cls, images: ImageSet, records: NDArray[np.uint8], skipped: Sequence[BadFile]) -> ImageRecords:
        """Returns the records of a set.

        Args:
            images: the set, in canonical order.
            records: records of the images that were not skipped, uint8 array of shape (images, bytes of `RECORD`).
            skipped: files that could not be read.
        """
        left_out = {bad.file for bad in skipped}
        names = (name for name in images.names if f"{images.source.prefix}{name}" not in left_out)
        return cls(np.ascontiguousarray(records).view(RECORD).reshape(-1), Names(names), images.source.prefix)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        """Returns the path of image ``index``, for messages."""
        return f"{self.prefix}{self.names[index]}"

    def redacted(self) -> ImageRecords:
        """Returns the same records with possible secrets removed from URLs, which can then no longer be opened."""
        prefix = redacted(self.prefix)
        if not any("://" in text for text in (prefix, *self.names[:1])):
            return self
        files = (redacted(f"{self.prefix}{name}") for name in self.names)
        return replace(self, names=Names(file.removeprefix(prefix) for file in files), prefix=prefix)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays to store in a statistics file by name (`RECORD_ARRAYS`), for `from_arrays`."""
        names, folder = _SEPARATOR.join(map(os.fsencode, self.names)), os.fsencode(absolute_prefix(self.prefix))
        texts = (np.frombuffer(text, dtype=np.uint8) for text in (names, folder))
        return dict(zip(RECORD_ARRAYS, (self.records, *texts), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], count: int | None) -> ImageRecords | None:
        """Returns the records in a statistics file; None if it contains none that this version can read.

        Args:
            arrays: the arrays in the file by name.
            count: number of images in the file.
        """
        if not arrays.keys() >= set(RECORD_ARRAYS):
            return None
        records, names, folder = (arrays[name] for name in RECORD_ARRAYS)
        if records.dtype != RECORD or records.shape != (count,) or {names.dtype, folder.dtype} != {np.dtype(np.uint8)}:
            return None
        split = [os.fsdecode(name) for name in names.tobytes().split(_SEPARATOR)]
        return cls(records, split, os.fsdecode(folder.tobytes())) if len(split) == count else None
