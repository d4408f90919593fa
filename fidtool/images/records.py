"""Records: small summaries of decoded images, with which duplicates and faulty images are found.

They are computed with integer arithmetic, so that the same pixels give the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import redacted
from fidtool.images.decode import DecodedImage, ImageProperties
from fidtool.sources.image_set import ImageSet, Names, real_path

SIDE = 8
"""Number of cells along each side of the thumbnail's brightness part."""
_COLOUR_SIDE = 2
BRIGHTNESS = SIDE * SIDE
"""Number of the thumbnail's bytes that are brightness; the rest is colour."""
_SAMPLED_SIDE = 64
"""Approximate number of rows and columns that are sampled from a large image."""
_PIXELS_AT_ONCE = 1 << 17
"""Number of sampled pixels to summarise at a time: few enough for the processor's cache."""
_LUMA = 299, 587, 114
"""Luma weights of ITU-R BT.601, in thousandths."""
BINS = 16
"""Number of bins in a record's histogram."""
NOISE = 80
"""Roughness above which neighbouring pixels are almost uncorrelated."""
FLAGS = {each.name: bit for bit, each in enumerate(fields(ImageProperties)) if each.name != "most_bands"}
"""Bits of a record's ``flags`` by the names of `ImageProperties`."""

_TAPS, BANDS = 16, 8
"""Width in pixels, and number, of the filters that measure detail: each passes a band of frequencies."""
_ROWS, _WIDEST = 32, 256
"""Largest number of rows, and of columns in the middle of an image, in which detail along rows is measured; and the
reverse for that along columns."""
_WINDOWS = 8
"""Number of places in a row at which detail is measured."""
_AMPLITUDE = 2047
"""Largest coefficient of a filter: sums of its products with bytes are below 2 ** 24, so exact in float32."""
_PLACES = np.arange(_TAPS) + 0.5 - _TAPS / 2
_WAVES = [wave(np.pi * band / BANDS * _PLACES) for band in range(1, BANDS + 1) for wave in (np.cos, np.sin)]
del _WAVES[-2]  # the cosine of the highest frequency is 0 at all pixels
_WINDOW = _AMPLITUDE * np.cos(np.pi * _PLACES / _TAPS) ** 2
_FILTERS = np.ascontiguousarray(np.rint(_WINDOW * np.array(_WAVES)).T, dtype=np.float32)
_FILTERS[_TAPS // 2 - 1 : _TAPS // 2 + 1] -= _FILTERS.sum(axis=0) / 2  # flat images have no detail
"""The filters, integers of shape (_TAPS, 2 * BANDS - 1): cosine and sine of each band, one of the last."""
_TIMES = 4
"""A column differs from its neighbours by so many times more on one side than on the other if pixels are repeated."""

_SEPARATOR = b"\0"
RECORD_ARRAYS = ("records", "names", "folder")
"""Names of the arrays in a statistics file."""
DETAILS = "details"
"""Name of an array that files of earlier versions lack: the fields of `_DETAILS`, which are then 0."""

STAMPS = "stamps"
"""Name of an array that they lack as well, as do files of images that have no files."""

_DETAILS = [("lowest", "u1"), ("highest", "u1"), ("repeats", "u1"), ("bands", "<f2", (BANDS,))]
_STORED = np.dtype(
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
RECORD = np.dtype(_STORED.descr + _DETAILS)
"""The record of one image.

``digest``: the first 8 bytes of the SHA-1 of its size and RGB pixels. ``height``, ``width``: its size in pixels.
``format``, ``mode``: see `fidtool.images.decode.DecodedImage`. ``quality``: quality of a JPEG, 1 to 100 on
libjpeg's scale; 0 for other formats. ``flags``: see `FLAGS`.

The remaining fields describe the sampled pixels. ``gray``: 1 if all of them are gray. ``low``, ``high``: the smallest
and the largest value. ``roughness``: the mean squared difference of horizontal neighbours in the green channel, in
percent of the value for independent neighbours: about 100 for white noise, mostly below 30 for photos. ``values``:
number of values, of which ``zeros`` are 0 and ``full`` are 255. ``black``: number of pixels that are 0 in all channels.
``bins``: histogram of the values. ``thumb``: brightness in 8 x 8 cells, then (B - Y) / 2 + 128 and (R - Y) / 2 + 128,
each in 2 x 2 cells.

The last fields describe all pixels, or neighbouring ones; they are all 0 if not known. ``lowest``, ``highest``: the
smallest and the largest value of the image. ``bands``: mean squared detail of the green channel, in levels squared, at
1/8, 2/8, ..., 8/8 of the highest frequency that the resolution can hold, along rows or columns, whichever have less;
noise has the same in each. ``repeats``: percentage of columns or rows, whichever are more, that equal one neighbour
much more than the other, because pixels are repeated. The last two are 0 in images of fewer than 16 columns or rows.
"""

RecordArray = NDArray[np.void]
"""Array of shape (images,) and dtype `RECORD`."""
NO_RECORDS: RecordArray = np.zeros(0, dtype=RECORD)


def records_of(images: Sequence[DecodedImage]) -> RecordArray:
    records = np.zeros(len(images), dtype=RECORD)
    digests = bytearray()
    alike: dict[tuple[int, ...], list[int]] = {}
    for position, image in enumerate(images):
        # SHA-1 is hashlib's fastest hash on processors with instructions for it. Collisions on purpose are no concern.
        sha = hashlib.sha1(b"%d %d\0" % image.pixels.shape[:2], usedforsecurity=False)
        sha.update(np.ascontiguousarray(image.pixels).data)
        digests += sha.digest()[:8]
        alike.setdefault(image.pixels.shape, []).append(position)
    records["digest"] = np.frombuffer(digests, dtype="<u8")
    records["format"], records["mode"] = [image.format for image in images], [image.mode for image in images]
    records["quality"] = [image.quality for image in images]
    properties = [vars(image.properties) for image in images]
    records["flags"] = [sum(each[name] << bit for name, bit in FLAGS.items()) for each in properties]
    for (height, width, _), positions in alike.items():
        down, right = max(1, height // _SAMPLED_SIDE), max(1, width // _SAMPLED_SIDE)
        at_once = max(1, _PIXELS_AT_ONCE * down * right // (height * width))
        for start in range(0, len(positions), at_once):
            part = positions[start : start + at_once]
            some = records[part]
            some["height"], some["width"] = height, width
            pixels = [images[position].pixels for position in part]
            _summarise(pixels, down, right, some)
            _measure_detail(pixels, some)  # the arrays of the samples are freed by now, which saves time
            records[part] = some
    return records


def _summarise(images: Sequence[NDArray[np.uint8]], down: int, right: int, records: RecordArray) -> None:
    """Sets the fields that describe the pixels, of which samples are ``down`` rows and ``right`` columns apart."""
    samples = [pixels[::down, ::right] for pixels in images]
    height, width, _ = samples[0].shape
    planes = np.empty((len(images), 3, height, width), dtype=np.uint8)
    counts = np.empty((len(images), 256), dtype=np.int64)
    for number, sample in enumerate(samples):
        planes[number] = sample.transpose(2, 0, 1)
        counts[number] = np.bincount(planes[number].reshape(-1), minlength=256)
    seen = counts > 0
    records["low"], records["high"] = seen.argmax(axis=1), 255 - seen[:, ::-1].argmax(axis=1)
    records["values"], records["zeros"], records["full"] = 3 * height * width, counts[:, 0], counts[:, -1]
    records["bins"] = counts.reshape(-1, BINS, 256 // BINS).sum(axis=2)
    red, green, blue = (planes[:, channel].reshape(len(images), -1) for channel in range(3))
    if seen[:, 0].any():  # most images contain no zeros
        records["black"] = np.count_nonzero((red | green | blue) == 0, axis=1)
    records["gray"] = ((red == green) & (green == blue)).all(axis=1)
    values = planes.astype(np.float32)  # small integers, whose sums are exact
    records["roughness"] = _roughness(values[:, 1], np.stack([pixels[::down, 1::right, 1] for pixels in images]))
    records["thumb"] = _thumbs(values)


def _measure_detail(images: Sequence[NDArray[np.uint8]], records: RecordArray) -> None:
    """Sets the fields that describe all pixels, or neighbouring ones."""
    records["lowest"], records["highest"] = ([end(pixels) for pixels in images] for end in (np.min, np.max))
    if min(images[0].shape[:2]) >= _TAPS:
        greens = [pixels[..., 1] for pixels in images]
        along_rows, along_columns = _detail_along_rows(greens), _detail_along_rows([green.T for green in greens])
        records["bands"] = np.minimum(np.minimum(along_rows[0], along_columns[0]), np.finfo(np.float16).max)
        records["repeats"] = np.maximum(along_rows[1], along_columns[1])


def _detail_along_rows(images: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the ``bands``, shape (n, BANDS), and ``repeats``, shape (n,), of n images of shape (height, width)."""
    height, width = images[0].shape
    down, left = -(-height // _ROWS), max(0, (width - _WIDEST) // 2)
    rows = np.stack([pixels[::down, left : left + _WIDEST] for pixels in images])
    starts = (rows.shape[2] - _TAPS) * np.arange(_WINDOWS) // (_WINDOWS - 1)
    windows = np.concatenate([rows[:, :, start : start + _TAPS] for start in starts], axis=1)
    found = windows.astype(np.float32) @ _FILTERS
    squares = np.einsum("nwf,nwf->nf", found, found, dtype=np.float64)  # sums of integers below 2 ** 53
    squares /= windows.shape[1] * np.square(_FILTERS, dtype=np.float64).sum(axis=0)
    bands = np.append(squares[:, :-1].reshape(len(images), -1, 2).mean(axis=2), squares[:, -1:], axis=1)
    steps = np.abs(np.diff(rows.astype(np.int16), axis=2)).sum(axis=1, dtype=np.int32)
    less, more = np.minimum(steps[:, 1:], steps[:, :-1]), np.maximum(steps[:, 1:], steps[:, :-1])
    uneven = (_TIMES * less < more) & (more >= rows.shape[1])
    return bands, 100 * np.count_nonzero(uneven, axis=1) // uneven.shape[1]


def _roughness(green: NDArray[np.float32], neighbours: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the roughness of n images, shape (n,), from their green values, integers of shape (n, h, w).

    The neighbours are the values to the right of them in the images, shape (n, h, w or w - 1).
    """
    size, count = green[0].size, neighbours[0].size
    steps = neighbours - green[..., : neighbours.shape[2]]
    # A row has fewer than 2 * _SAMPLED_SIDE values below 256, so its sum is an integer below 2 ** 24: exact in float32.
    rows = (np.einsum("nhw,nhw->nh", values, values) for values in (green, steps))
    squares, differences = (each.sum(axis=1, dtype=np.float64) for each in rows)
    scatter = size * squares - green.sum(axis=(1, 2), dtype=np.float64) ** 2
    # The mean squared step divided by twice the variance, where the variance is scatter / size ** 2.
    with np.errstate(divide="ignore", invalid="ignore"):  # where all sampled values are equal
        ratios = 50 * differences * size**2 / (count * scatter)
    return np.where(scatter * count > 0, np.minimum(ratios, 255), 0)


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the ``thumb`` of the records of n images, shape (n, height, width, 3): uint8, shape (n, bytes)."""
    down, right = (max(1, side // _SAMPLED_SIDE) for side in images.shape[1:3])
    samples = images[:, ::down, ::right].transpose(0, 3, 1, 2)
    return _thumbs(samples.astype(np.float32)).astype(np.uint8)


def _thumbs(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the thumbnails of n images, shape (n, bytes of a thumbnail), from values of shape (n, 3, h, w)."""
    for axis in (2, 3):
        if values.shape[axis] < SIDE:
            values = np.repeat(values, -(-SIDE // values.shape[axis]), axis)
    # Which rows and columns are in each cell: 0 or 1, shape (SIDE, h) and (SIDE, w).
    edges = (np.arange(SIDE + 1) * side // SIDE for side in values.shape[2:])
    rows, columns = (np.repeat(np.eye(SIDE, dtype=np.float32), np.diff(each), axis=1) for each in edges)
    sums = (rows @ values @ columns.T).astype(np.int64)
    counts = np.outer(rows.sum(1), columns.sum(1)).astype(np.int64)
    luma = np.tensordot(sums, _LUMA, (1, 0))  # in integers
    brightness = (luma + 500 * counts) // (1000 * counts)  # rounded to the nearest
    share = SIDE // _COLOUR_SIDE
    cells = _COLOUR_SIDE, share, _COLOUR_SIDE, share
    sums, counts = sums.reshape(-1, 3, *cells).sum(axis=(3, 5)), counts.reshape(cells).sum(axis=(1, 3))
    differences = 1000 * sums[:, [2, 0]] - np.tensordot(sums, _LUMA, (1, 0))[:, None]
    blue_and_red = (differences + 1000 * counts) // (2000 * counts) + 128
    return np.concatenate([part.reshape(len(values), -1) for part in (brightness, blue_and_red)], axis=1)


@dataclass(frozen=True)
class ImageRecords:
    """The records and names of the images in a set, in canonical order and without skipped images.

    ``prefix`` precedes a name where an image is shown: the source as passed by the caller, or its absolute path if the
    records were loaded from a statistics file.

    ``stamps`` are those of the images' files, int64 array of shape (images, 2); see `ImageSet.stamps`.
    """

    records: RecordArray
    names: Sequence[str]
    prefix: str = ""
    stamps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64), repr=False)

    @classmethod
    def of(cls, images: ImageSet, records: NDArray[np.uint8]) -> ImageRecords:
        """Returns the records of images, from a uint8 array of shape (images, bytes of `RECORD`)."""
        names = Names(images.stored[number] for number in images.order.tolist())
        found = np.ascontiguousarray(records).view(RECORD).reshape(-1)
        return cls(found, names, images.prefix, images.stamps())

    @classmethod
    def joined(cls, parts: Sequence[ImageRecords], order: NDArray[np.int64]) -> ImageRecords:
        """Returns the records of several parts of a set in this order."""
        names = [name for each in parts for name in each.names]
        stamps = np.concatenate([each.stamps for each in parts])
        stamps = stamps[order] if len(stamps) == len(names) else stamps[:0]
        records = np.concatenate([each.records for each in parts])[order]
        first = parts[int(np.searchsorted(np.cumsum([*map(len, parts)]), order[0], side="right"))]
        return cls(records, Names(names[number] for number in order.tolist()), first.prefix, stamps)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        return f"{self.prefix}{self.names[index]}"

    def redacted(self) -> ImageRecords:
        """Returns the same records with possible secrets removed from URLs, which can then no longer be opened."""
        prefix = redacted(self.prefix)
        if not any("://" in text for text in (prefix, *self.names[:1])):
            return self
        files = (redacted(f"{self.prefix}{name}") for name in self.names)
        return replace(self, names=Names(file.removeprefix(prefix) for file in files), prefix=prefix)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays to store in a statistics file by name, for `from_arrays`."""
        folder = self.prefix and real_path(self.prefix)  # so that the images are found from any working directory
        folder = os.path.join(folder, "") if self.prefix.endswith("/") else folder
        names = _SEPARATOR.join(map(os.fsencode, self.names))
        texts = (np.frombuffer(text, dtype=np.uint8) for text in (names, os.fsencode(folder)))
        parts = np.split(self.records.view(np.uint8).reshape(-1, RECORD.itemsize), [_STORED.itemsize], axis=1)
        records, details = map(np.ascontiguousarray, parts)
        found = dict(zip((*RECORD_ARRAYS, DETAILS), (records.view(_STORED)[:, 0], *texts, details), strict=True))
        return found | ({STAMPS: self.stamps} if len(self.stamps) else {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], count: int | None) -> ImageRecords | None:
        """Returns the records in a statistics file of ``count`` images; None if this version can read none.

        Raises:
            ValueError: if they are damaged.
        """
        if not arrays.keys() >= set(RECORD_ARRAYS) or arrays["records"].dtype != _STORED:
            return None
        records, names, folder = (arrays[name] for name in RECORD_ARRAYS)
        sizes = [records[name].min(initial=1) for name in ("height", "width", "values")]
        if (
            records.shape != (count,)
            or min(sizes) < 1
            or any(each.dtype != np.uint8 or each.ndim != 1 for each in (names, folder))
        ):
            raise ValueError("its records of the images are damaged")
        found = np.zeros((len(records), RECORD.itemsize), dtype=np.uint8)
        found[:, : _STORED.itemsize] = records.view(np.uint8).reshape(-1, _STORED.itemsize)
        details = arrays.get(DETAILS, found[:, _STORED.itemsize :])
        if details.dtype != np.uint8 or details.ndim != 2 or len(details) != count:
            raise ValueError("its details of the images are damaged")
        if details.shape[1] == RECORD.itemsize - _STORED.itemsize:  # not those of another version
            found[:, _STORED.itemsize :] = details
        split = [os.fsdecode(name) for name in names.tobytes().split(_SEPARATOR)] if count else []
        stamps = arrays.get(STAMPS, np.zeros((0, 2), dtype=np.int64))
        if len(split) != count or stamps.dtype != np.int64 or stamps.shape not in ((0, 2), (count, 2)):
            raise ValueError("its names of the images, or the stamps of their files, are damaged")
        if _SEPARATOR in folder.tobytes():
            raise ValueError("the folder of its images has a null character")
        return cls(found.view(RECORD)[:, 0], split, os.fsdecode(folder.tobytes()), stamps)
