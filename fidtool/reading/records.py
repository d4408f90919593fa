"""Records: small summaries of decoded images, with which duplicates and faulty images are found.

They are computed with integer arithmetic, so that the same pixels give the same bytes on every
machine.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import redacted
from fidtool.reading.decode import DecodedImage, ImageProperties
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
FLAGS = {
    each.name: bit for bit, each in enumerate(fields(ImageProperties)) if each.name != "most_bands"
}
"""Bits of a record's ``flags`` by the names of `ImageProperties`."""

_TAPS = 16
"""Width in pixels of the filters that measure detail: each passes a band of frequencies."""
BANDS = 8
"""Number of these filters."""
_ROWS = 32
"""Largest number of rows in which detail along rows is measured; the reverse for that along
columns.
"""
_WIDEST = 256
"""Largest number of columns in the middle of an image in which it is measured."""
_WINDOWS = 8
"""Number of places in a row at which detail is measured."""
_AMPLITUDE = 2047
"""Largest coefficient of a filter: sums of its products with bytes are below 2 ** 24, so exact in
float32.
"""
_PLACES = np.arange(_TAPS) + 0.5 - _TAPS / 2
_WAVES = [
    wave(np.pi * band / BANDS * _PLACES)
    for band in range(1, BANDS + 1)
    for wave in (np.cos, np.sin)
]
del _WAVES[-2]  # the cosine of the highest frequency is 0 at all pixels
_WINDOW = _AMPLITUDE * np.cos(np.pi * _PLACES / _TAPS) ** 2
_FILTERS = np.ascontiguousarray(np.rint(_WINDOW * np.array(_WAVES)).T, dtype=np.float32)
_FILTERS[_TAPS // 2 - 1 : _TAPS // 2 + 1] -= _FILTERS.sum(axis=0) / 2  # flat images have no detail
"""The filters, integers of shape (_TAPS, 2 * BANDS - 1): cosine and sine of each band, one of the
last.
"""
_TIMES = 4
"""A column differs from its neighbours by so many times more on one side than on the other if
pixels are repeated.
"""

_SEPARATOR = b"\0"
RECORD_ARRAYS = ("records", "names", "folder")
"""Names of the arrays in a statistics file."""
DETAILS = "details"
"""Name of an array that files of earlier versions lack: the fields of `_DETAILS`, which are then
0.
"""

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

``digest``: the first 8 bytes of the SHA-1 of its size and RGB pixels. ``height``, ``width``: its
size in pixels. ``format``, ``mode``: see `fidtool.reading.decode.DecodedImage`. ``quality``:
quality of a JPEG, 1 to 100 on libjpeg's scale; 0 for other formats. ``flags``: see `FLAGS`.

The remaining fields describe the sampled pixels. ``gray``: 1 if all of them are gray. ``low``,
``high``: the smallest and the largest value. ``roughness``: the mean squared difference of
horizontal neighbours in the green channel, in percent of the value for independent neighbours:
about 100 for white noise, mostly below 30 for photos. ``values``: number of values, of which
``zeros`` are 0 and ``full`` are 255. ``black``: number of pixels that are 0 in all channels.
``bins``: histogram of the values. ``thumb``: brightness in 8 x 8 cells, then (B - Y) / 2 + 128 and
(R - Y) / 2 + 128, each in 2 x 2 cells.

The last fields describe all pixels, or neighbouring ones. They are all 0 if they are not known, see
`is_detailed`. ``lowest``, ``highest``: the smallest and the largest value of the image. ``bands``:
mean squared detail of the green channel, in levels squared, at 1/8, 2/8, ..., 8/8 of the highest
frequency that the resolution can hold, along rows or columns, whichever have less; noise has the
same in each. ``repeats``: percentage of columns or rows, whichever are more, that equal one
neighbour much more than the other, because pixels are repeated. The last two are 0 in images of
fewer than 16 columns or rows.
"""

RecordArray = NDArray[np.void]
"""Array of shape (images,) and dtype `RECORD`."""
DETAILED = 2048
"""About as many images of a set have their detail measured: it describes the set, for which a
sample is enough.
"""
NO_RECORDS: RecordArray = np.zeros(0, dtype=RECORD)
_NO_STAMPS = np.zeros((0, 2), dtype=np.int64)


def is_detailed(name: str, count: int) -> bool:
    """Whether the detail of an image is measured, in a set of so many images.

    It depends on the hash of its name, so that those of a set are the same in its parts, and some
    of those before the set grew.
    """
    return zlib.crc32(os.fsencode(name)) * count < DETAILED << 32


def records_of(
    images: Sequence[DecodedImage], measured: Sequence[bool] | None = None
) -> RecordArray:
    """Returns the records of images. Detail is ``measured`` of some of them; None is all."""
    records = np.zeros(len(images), dtype=RECORD)
    records["digest"] = [_digest(image.pixels) for image in images]
    records["format"] = [image.format for image in images]
    records["mode"] = [image.mode for image in images]
    records["quality"] = [image.quality for image in images]
    records["flags"] = [_flags(image.properties) for image in images]
    alike: dict[tuple[int, ...], list[int]] = {}
    for position, image in enumerate(images):
        alike.setdefault(image.pixels.shape, []).append(position)
    for (height, width, _), positions in alike.items():
        down, right = _sample_steps(height, width)
        at_once = max(1, _PIXELS_AT_ONCE * down * right // (height * width))
        for start in range(0, len(positions), at_once):
            part = positions[start : start + at_once]
            some = records[part]
            some["height"] = height
            some["width"] = width
            pixels = [images[position].pixels for position in part]
            _summarise(pixels, down, right, some)
            records[part] = some
            if detailed := [
                position for position in part if measured is None or measured[position]
            ]:
                some = records[detailed]
                _measure_detail([images[position].pixels for position in detailed], some)
                records[detailed] = some
    return records


def _forget_detail(records: RecordArray, names: Sequence[str], count: int) -> None:
    """Clears the detail of images of a set of so many, where it was measured when these were not
    yet known.
    """
    measured = np.flatnonzero(records["highest"]).tolist()
    undetailed = [row for row in measured if not is_detailed(names[row], count)]
    for name, *_ in _DETAILS:
        records[name][undetailed] = 0


def _digest(pixels: NDArray[np.uint8]) -> int:
    # SHA-1 is hashlib's fastest hash on processors with instructions for it. Collisions on purpose
    # are no concern.
    sha = hashlib.sha1(b"%d %d\0" % pixels.shape[:2], usedforsecurity=False)
    sha.update(np.ascontiguousarray(pixels).data)
    return int.from_bytes(sha.digest()[:8], "little")


def _flags(properties: ImageProperties) -> int:
    return sum(getattr(properties, name) << bit for name, bit in FLAGS.items())


def _sample_steps(height: int, width: int) -> tuple[int, int]:
    """Returns how many rows, and columns, the samples of an image are apart."""
    return max(1, height // _SAMPLED_SIDE), max(1, width // _SAMPLED_SIDE)


def _summarise(
    images: Sequence[NDArray[np.uint8]], down: int, right: int, records: RecordArray
) -> None:
    """Sets the fields that describe the pixels, of which samples are ``down`` rows and ``right``
    columns apart.
    """
    planes = np.empty((len(images), 3, *images[0][::down, ::right, 0].shape), dtype=np.uint8)
    counts = np.empty((len(images), 256), dtype=np.int64)
    for number, pixels in enumerate(images):
        planes[number] = pixels[::down, ::right].transpose(2, 0, 1)
        counts[number] = np.bincount(planes[number].reshape(-1), minlength=256)
    records["low"] = planes.min(axis=(1, 2, 3))
    records["high"] = planes.max(axis=(1, 2, 3))
    records["values"] = planes[0].size
    records["zeros"] = counts[:, 0]
    records["full"] = counts[:, -1]
    records["bins"] = counts.reshape(-1, BINS, 256 // BINS).sum(axis=2)
    red, green, blue = planes.reshape(len(images), 3, -1).swapaxes(0, 1)
    if counts[:, 0].any():  # most images contain no zeros
        records["black"] = np.count_nonzero((red | green | blue) == 0, axis=1)
    records["gray"] = ((red == green) & (green == blue)).all(axis=1)
    values = planes.astype(np.float32)  # small integers, whose sums are exact
    records["roughness"] = _roughness(
        values[:, 1], np.stack([pixels[::down, 1::right, 1] for pixels in images])
    )
    records["thumb"] = _thumbs(values)


def _measure_detail(images: Sequence[NDArray[np.uint8]], records: RecordArray) -> None:
    """Sets the fields that describe all pixels, or neighbouring ones."""
    records["lowest"] = [pixels.min() for pixels in images]
    records["highest"] = [pixels.max() for pixels in images]
    if min(images[0].shape[:2]) >= _TAPS:
        greens = [pixels[..., 1] for pixels in images]
        bands, repeats = _detail_along_rows(greens)
        bands_along_columns, repeats_along_columns = _detail_along_rows(
            [green.T for green in greens]
        )
        records["bands"] = np.minimum(bands, bands_along_columns).clip(max=np.finfo(np.float16).max)
        records["repeats"] = np.maximum(repeats, repeats_along_columns)


def _detail_along_rows(
    images: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the ``bands``, shape (n, BANDS), and ``repeats``, shape (n,), of n images of shape
    (height, width).
    """
    height, width = images[0].shape
    down = -(-height // _ROWS)
    left = max(0, (width - _WIDEST) // 2)
    rows = np.stack([pixels[::down, left : left + _WIDEST] for pixels in images])
    starts = (rows.shape[2] - _TAPS) * np.arange(_WINDOWS) // (_WINDOWS - 1)
    windows = np.concatenate([rows[:, :, start : start + _TAPS] for start in starts], axis=1)
    found = windows.astype(np.float32) @ _FILTERS
    squares = np.einsum(
        "nwf,nwf->nf", found, found, dtype=np.float64
    )  # sums of integers below 2 ** 53
    squares /= windows.shape[1] * np.square(_FILTERS, dtype=np.float64).sum(axis=0)
    bands = np.append(
        squares[:, :-1].reshape(len(images), -1, 2).mean(axis=2), squares[:, -1:], axis=1
    )
    steps = np.abs(np.diff(rows.astype(np.int16), axis=2)).sum(axis=1, dtype=np.int32)
    left_steps = steps[:, :-1]
    right_steps = steps[:, 1:]
    less = np.minimum(left_steps, right_steps)
    more = np.maximum(left_steps, right_steps)
    uneven = (_TIMES * less < more) & (more >= rows.shape[1])
    return bands, 100 * np.count_nonzero(uneven, axis=1) // uneven.shape[1]


def _roughness(green: NDArray[np.float32], neighbours: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the roughness of n images, shape (n,), from their green values, integers of shape (n,
    h, w).

    The neighbours are the values to the right of them in the images, shape (n, h, w or w - 1).
    """
    size = green[0].size
    count = neighbours[0].size
    steps = neighbours - green[..., : neighbours.shape[2]]
    # A row has fewer than 2 * _SAMPLED_SIDE values below 256, so its sum is an integer below 2 **
    # 24: exact in float32.
    rows = (np.einsum("nhw,nhw->nh", values, values) for values in (green, steps))
    squares, differences = (each.sum(axis=1, dtype=np.float64) for each in rows)
    scatter = size * squares - green.sum(axis=(1, 2), dtype=np.float64) ** 2
    # The mean squared step divided by twice the variance, where the variance is scatter / size **
    # 2.
    with np.errstate(divide="ignore", invalid="ignore"):  # where all sampled values are equal
        ratios = 50 * differences * size**2 / (count * scatter)
    return np.where(scatter * count > 0, np.minimum(ratios, 255), 0)


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the ``thumb`` of the records of n images, shape (n, height, width, 3): uint8, shape
    (n, bytes).
    """
    down, right = _sample_steps(*images.shape[1:3])
    samples = images[:, ::down, ::right].transpose(0, 3, 1, 2)
    return _thumbs(samples.astype(np.float32)).astype(np.uint8)


def _thumbs(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the thumbnails of n images, shape (n, bytes of a thumbnail), from values of shape (n,
    3, h, w).
    """
    for axis in (2, 3):
        if values.shape[axis] < SIDE:
            values = np.repeat(values, -(-SIDE // values.shape[axis]), axis)
    # Which rows and columns are in each cell: 0 or 1, shape (SIDE, h) and (SIDE, w).
    edges = (np.arange(SIDE + 1) * side // SIDE for side in values.shape[2:])
    rows, columns = (
        np.repeat(np.eye(SIDE, dtype=np.float32), np.diff(each), axis=1) for each in edges
    )
    sums = (rows @ values @ columns.T).astype(np.int64)
    counts = np.outer(rows.sum(1), columns.sum(1)).astype(np.int64)
    luma = np.tensordot(sums, _LUMA, (1, 0))  # in integers
    brightness = (luma + 500 * counts) // (1000 * counts)  # rounded to the nearest
    share = SIDE // _COLOUR_SIDE
    cells = _COLOUR_SIDE, share, _COLOUR_SIDE, share
    sums = sums.reshape(-1, 3, *cells).sum(axis=(3, 5))
    counts = counts.reshape(cells).sum(axis=(1, 3))
    differences = 1000 * sums[:, [2, 0]] - np.tensordot(sums, _LUMA, (1, 0))[:, None]
    blue_and_red = (differences + 1000 * counts) // (2000 * counts) + 128
    return np.concatenate(
        [part.reshape(len(values), -1) for part in (brightness, blue_and_red)], axis=1
    )


@dataclass(frozen=True)
class ImageRecords:
    """The records and names of the images in a set, in canonical order and without skipped images.

    ``prefix`` precedes a name where an image is shown: the source as passed by the caller, or its
    absolute path if the records were loaded from a statistics file.

    ``stamps`` are those of the images' files, int64 array of shape (images, 2); see
    `ImageSet.stamps`.
    """

    records: RecordArray
    names: Sequence[str]
    prefix: str = ""
    stamps: NDArray[np.int64] = field(default_factory=lambda: _NO_STAMPS, repr=False)

    @classmethod
    def of(cls, images: ImageSet, records: NDArray[np.uint8]) -> ImageRecords:
        """Returns the records of images, from a uint8 array of shape (images, bytes of
        `RECORD`).
        """
        names = Names(images.stored[number] for number in images.order.tolist())
        found = np.ascontiguousarray(records).view(RECORD).reshape(-1)
        _forget_detail(found, names, images.whole_count)
        return cls(found, names, images.prefix, images.stamps())

    @classmethod
    def joined(
        cls, parts: Sequence[ImageRecords], order: NDArray[np.int64], count: int
    ) -> ImageRecords:
        """Returns the records of several parts of a set of ``count`` images, skipped ones too, in
        this order.
        """
        names = [name for each in parts for name in each.names]
        stamps = np.concatenate([each.stamps for each in parts])
        stamps = stamps[order] if len(stamps) == len(names) else stamps[:0]
        records = np.concatenate([each.records for each in parts])[order]
        first = parts[int(np.searchsorted(np.cumsum([*map(len, parts)]), order[0], side="right"))]
        own = Names(names[number] for number in order.tolist())
        _forget_detail(records, own, count)
        return cls(records, own, first.prefix, stamps)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        return f"{self.prefix}{self.names[index]}"

    def redacted(self) -> ImageRecords:
        """Returns the same records with possible secrets removed from URLs, which can then no
        longer be opened.
        """
        prefix = redacted(self.prefix)
        if not any("://" in text for text in (prefix, *self.names[:1])):
            return self
        files = (redacted(f"{self.prefix}{name}") for name in self.names)
        return replace(
            self, names=Names(file.removeprefix(prefix) for file in files), prefix=prefix
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays to store in a statistics file by name, for `from_arrays`."""
        folder = self.prefix and real_path(
            self.prefix
        )  # so that the images are found from any working directory
        folder = os.path.join(folder, "") if self.prefix.endswith("/") else folder
        whole = self.records.view(np.uint8).reshape(-1, RECORD.itemsize)
        arrays = {
            "records": np.ascontiguousarray(whole[:, : _STORED.itemsize]).view(_STORED)[:, 0],
            "names": np.frombuffer(_SEPARATOR.join(map(os.fsencode, self.names)), dtype=np.uint8),
            "folder": np.frombuffer(os.fsencode(folder), dtype=np.uint8),
            DETAILS: np.ascontiguousarray(whole[:, _STORED.itemsize :]),
        }
        if len(self.stamps):
            arrays[STAMPS] = self.stamps
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], count: int | None
    ) -> ImageRecords | None:
        """Returns the records in a statistics file of ``count`` images; None if this version can
        read none.

        Raises:
            ValueError: if they are damaged.
        """
        if not arrays.keys() >= set(RECORD_ARRAYS) or arrays["records"].dtype != _STORED:
            return None
        records, names, folder = (arrays[name] for name in RECORD_ARRAYS)
        details = arrays.get(
            DETAILS, np.zeros((len(records), RECORD.itemsize - _STORED.itemsize), dtype=np.uint8)
        )
        stamps = arrays.get(STAMPS, _NO_STAMPS)
        split = [os.fsdecode(name) for name in names.tobytes().split(_SEPARATOR)] if count else []
        if not (
            records.shape == (count,)
            and all(records[name].min(initial=1) > 0 for name in ("height", "width", "values"))
            and details.dtype == np.uint8
            and details.shape == (count, RECORD.itemsize - _STORED.itemsize)
            and len(split) == count
            and stamps.dtype == np.int64
            and stamps.shape in ((0, 2), (count, 2))
        ):
            raise ValueError(
                "its records of the images, their names, or the stamps of their files are damaged"
            )
        whole = np.concatenate(
            [records.view(np.uint8).reshape(-1, _STORED.itemsize), details], axis=1
        )
        return cls(whole.view(RECORD)[:, 0], split, os.fsdecode(folder.tobytes()), stamps)
