"""Records: small summaries of decoded images, with which duplicates and faulty images are found.

They are computed with integer arithmetic, so that the same pixels give the same bytes on every
machine.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import redact
from fidtool.reading.decode import DecodedImage, ImageProperties
from fidtool.sources.image_set import ImageSet, Names, real_path

SIDE = 8
"""Number of cells along each side of the thumbnail's brightness part."""
BRIGHTNESS = SIDE * SIDE
"""Number of the thumbnail's bytes that are brightness; the rest is colour."""
BINS = 16
"""Number of bins in a record's histogram."""
BANDS = 8
"""Number of bands of frequencies in which detail is measured."""
NOISE = 80
"""Roughness above which neighbouring pixels are almost uncorrelated."""
DETAILED = 2048
"""About as many images of a set have their detail measured: it describes the set, for which a
sample is enough.
"""
FLAGS = {
    counted.name: bit
    for bit, counted in enumerate(fields(ImageProperties))
    if counted.name != "most_bands"
}
"""Bits of a record's ``flags`` by the names of `ImageProperties`."""

RECORD_ARRAYS = ("records", "names", "folder")
"""Names of the arrays in a statistics file."""
DETAILS = "details"
"""Name of an array that files of earlier versions lack: the fields of `_DETAIL`, which are then
0.
"""
STAMPS = "stamps"
"""Name of an array that they lack as well, as do files of images that have no files."""

_COLOUR_SIDE = 2
# Approximate number of rows and columns that are sampled from a large image.
_SAMPLED_SIDE = 64
# Number of sampled pixels to summarise at a time: few enough for the processor's cache.
_PIXELS_AT_ONCE = 1 << 17
# Luma weights of ITU-R BT.601, in thousandths.
_LUMA = (299, 587, 114)
# Width in pixels of the filters that measure detail: each passes a band of frequencies.
_TAPS = 16
# Largest coefficient of a filter: sums of its products with bytes are below 2 ** 24, so exact in
# float32.
_AMPLITUDE = 2047
# Largest number of rows in which detail along rows is measured; the reverse for that along columns.
_ROWS = 32
# Largest number of columns in the middle of an image in which it is measured.
_WIDEST = 256
# Number of places in a row at which detail is measured.
_WINDOWS = 8
# A column differs from its neighbours by so many times more on one side than on the other if pixels
# are repeated.
_REPEAT_RATIO = 4
_SEPARATOR = b"\0"

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
_DETAIL = np.dtype(
    [("lowest", "u1"), ("highest", "u1"), ("repeats", "u1"), ("bands", "<f2", (BANDS,))]
)
RECORD = np.dtype(_STORED.descr + _DETAIL.descr)
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
NO_RECORDS: RecordArray = np.zeros(0, dtype=RECORD)
_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_NO_STAMPS = np.zeros((0, 2), dtype=np.int64)


def is_detailed(name: str, count: int) -> bool:
    """Whether the detail of an image is measured, in a set of so many images.

    It depends on the hash of its name, so that those of a set are the same in its parts, and some
    of those before the set grew.
    """
    return zlib.crc32(os.fsencode(name)) * count < DETAILED << 32


def _forget_detail(records: RecordArray, names: Sequence[str], count: int) -> None:
    """Clear the detail of images of a set of so many, where it was measured when these were not
    yet known.
    """
    measured = np.flatnonzero(records["highest"]).tolist()
    rows = [row for row in measured if not is_detailed(names[row], count)]
    for name in _DETAIL.names or ():
        records[name][rows] = 0


# --- the record of an image -----------------------------------------------------------------------


def make_records(
    images: Sequence[DecodedImage], measured: Sequence[bool] | None = None
) -> RecordArray:
    """Return the records of images. Detail is ``measured`` of some of them; None is all."""
    records = np.zeros(len(images), dtype=RECORD)
    records["digest"] = [_digest(image.pixels) for image in images]
    for name in ("format", "mode", "quality"):
        records[name] = [getattr(image, name) for image in images]
    records["flags"] = [_flags(image.properties) for image in images]
    for positions in _groups(images):
        group = records[positions]
        _summarise([images[position].pixels for position in positions], group)
        records[positions] = group
        if measured is not None:
            positions = [position for position in positions if measured[position]]
        if positions:
            group = records[positions]
            _measure_detail([images[position].pixels for position in positions], group)
            records[positions] = group
    return records


def _digest(pixels: _Bytes) -> int:
    # SHA-1 is hashlib's fastest hash on processors with instructions for it. Collisions on purpose
    # are no concern.
    sha = hashlib.sha1(b"%d %d\0" % pixels.shape[:2], usedforsecurity=False)
    sha.update(np.ascontiguousarray(pixels).data)
    return int.from_bytes(sha.digest()[:8], "little")


def _flags(properties: ImageProperties) -> int:
    return sum(getattr(properties, name) << bit for name, bit in FLAGS.items())


def _sample_steps(height: int, width: int) -> tuple[int, int]:
    """Return how many rows, and columns, the samples of an image are apart."""
    return max(1, height // _SAMPLED_SIDE), max(1, width // _SAMPLED_SIDE)


def _groups(images: Sequence[DecodedImage]) -> Iterator[list[int]]:
    """Yield the positions of images of the same size, a limited number at a time."""
    of_size = defaultdict[tuple[int, ...], list[int]](list)
    for position, image in enumerate(images):
        of_size[image.pixels.shape].append(position)
    for (height, width, _), positions in of_size.items():
        down, right = _sample_steps(height, width)
        at_once = max(1, _PIXELS_AT_ONCE * down * right // (height * width))
        for start in range(0, len(positions), at_once):
            yield positions[start : start + at_once]


def _summarise(images: Sequence[_Bytes], records: RecordArray) -> None:
    """Set the size, and the fields that describe samples of the pixels."""
    height, width, _ = images[0].shape
    down, right = _sample_steps(height, width)
    # Filled in place: of transposed arrays, np.stack keeps the order in memory, which is slower.
    planes = np.empty((len(images), 3, -(-height // down), -(-width // right)), dtype=np.uint8)
    for number, pixels in enumerate(images):
        planes[number] = pixels[::down, ::right].transpose(2, 0, 1)
    counts = np.stack([np.bincount(plane.reshape(-1), minlength=256) for plane in planes])
    records["height"] = height
    records["width"] = width
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
    neighbours = np.stack([pixels[::down, 1::right, 1] for pixels in images])
    records["roughness"] = _roughness(values[:, 1], neighbours)
    records["thumb"] = _shrink(values)


def _roughness(green: _Floats, neighbours: _Bytes) -> NDArray[np.float64]:
    """Return the roughness of n images, shape (n,), from their green values, integers of shape (n,
    h, w).

    The neighbours are the values to the right of them in the images, shape (n, h, w or w - 1).
    """
    size = green[0].size
    count = neighbours[0].size
    squares = _sum_of_squares(green)
    differences = _sum_of_squares(neighbours - green[..., : neighbours.shape[2]])
    scatter = size * squares - green.sum(axis=(1, 2), dtype=np.float64) ** 2
    # The mean squared step divided by twice the variance, where the variance is scatter / size **
    # 2.
    with np.errstate(divide="ignore", invalid="ignore"):  # where all sampled values are equal
        ratios = 50 * differences * size**2 / (count * scatter)
    return np.where(scatter * count > 0, np.minimum(ratios, 255), 0)


def _sum_of_squares(values: _Floats) -> NDArray[np.float64]:
    # A row has fewer than 2 * _SAMPLED_SIDE values below 256, so its sum is an integer below 2 **
    # 24: exact in float32.
    rows: _Floats = np.einsum("nhw,nhw->nh", values, values)
    squares: NDArray[np.float64] = rows.sum(axis=1, dtype=np.float64)
    return squares


def thumbnails(images: _Bytes) -> _Bytes:
    """Return the ``thumb`` of the records of n images, shape (n, height, width, 3): uint8, shape
    (n, bytes).
    """
    down, right = _sample_steps(*images.shape[1:3])
    samples = images[:, ::down, ::right].transpose(0, 3, 1, 2)
    return _shrink(samples.astype(np.float32)).astype(np.uint8)


def _shrink(values: _Floats) -> NDArray[np.int64]:
    """Return the thumbnails of n images, shape (n, bytes of a thumbnail), from values of shape (n,
    3, h, w).
    """
    for axis in (2, 3):
        if values.shape[axis] < SIDE:
            values = np.repeat(values, -(-SIDE // values.shape[axis]), axis)
    rows = _cells(values.shape[2])
    columns = _cells(values.shape[3])
    sums = (rows @ values @ columns.T).astype(np.int64)
    counts = np.outer(rows.sum(1), columns.sum(1)).astype(np.int64)
    luma = np.tensordot(sums, _LUMA, (1, 0))  # in integers
    brightness = (luma + 500 * counts) // (1000 * counts)  # rounded to the nearest
    share = SIDE // _COLOUR_SIDE
    cells = (_COLOUR_SIDE, share, _COLOUR_SIDE, share)
    sums = sums.reshape(-1, 3, *cells).sum(axis=(3, 5))
    counts = counts.reshape(cells).sum(axis=(1, 3))
    differences = 1000 * sums[:, [2, 0]] - np.tensordot(sums, _LUMA, (1, 0))[:, None]
    blue_and_red = (differences + 1000 * counts) // (2000 * counts) + 128
    flat = (brightness.reshape(-1, BRIGHTNESS), blue_and_red.reshape(len(values), -1))
    return np.concatenate(flat, axis=1)


def _cells(side: int) -> _Floats:
    """Return which rows, or columns, are in each cell: 0 or 1, shape (SIDE, side)."""
    edges = np.arange(SIDE + 1) * side // SIDE
    return np.repeat(np.eye(SIDE, dtype=np.float32), np.diff(edges), axis=1)


# --- detail ---------------------------------------------------------------------------------------


def _filters() -> _Floats:
    """Return integers of shape (_TAPS, 2 * BANDS - 1): cosine and sine of each band, one of the
    last.
    """
    places = np.arange(_TAPS) + 0.5 - _TAPS / 2
    waves = []
    for band in range(1, BANDS + 1):
        phases = np.pi * band / BANDS * places
        if band < BANDS:  # the cosine of the highest frequency is 0 at all pixels
            waves.append(np.cos(phases))
        waves.append(np.sin(phases))
    window = _AMPLITUDE * np.cos(np.pi * places / _TAPS) ** 2
    filters = np.ascontiguousarray(np.rint(window * np.array(waves)).T, dtype=np.float32)
    filters[_TAPS // 2 - 1 : _TAPS // 2 + 1] -= filters.sum(axis=0) / 2  # of flat images it is 0
    return filters


_FILTERS = _filters()


def _measure_detail(images: Sequence[_Bytes], records: RecordArray) -> None:
    """Set the fields that describe all pixels, or neighbouring ones."""
    records["lowest"] = [pixels.min() for pixels in images]
    records["highest"] = [pixels.max() for pixels in images]
    if min(images[0].shape[:2]) < _TAPS:
        return
    rows = _middle_rows([pixels[..., 1] for pixels in images])
    columns = _middle_rows([pixels[..., 1].T for pixels in images])
    bands = np.minimum(_bands(rows), _bands(columns))
    records["bands"] = bands.clip(max=np.finfo(np.float16).max)
    records["repeats"] = np.maximum(_repeats(rows), _repeats(columns))


def _middle_rows(images: Sequence[_Bytes]) -> _Bytes:
    """Return the middle of some rows of n images (height, width): shape (n, rows, columns)."""
    height, width = images[0].shape
    down = -(-height // _ROWS)
    left = max(0, (width - _WIDEST) // 2)
    return np.stack([pixels[::down, left : left + _WIDEST] for pixels in images])


def _bands(rows: _Bytes) -> NDArray[np.float64]:
    """Return the ``bands`` along rows of n images: shape (n, BANDS)."""
    starts = (rows.shape[2] - _TAPS) * np.arange(_WINDOWS) // (_WINDOWS - 1)
    windows = np.concatenate([rows[:, :, start : start + _TAPS] for start in starts], axis=1)
    responses = windows.astype(np.float32) @ _FILTERS
    # Sums of integers below 2 ** 53.
    squares = np.einsum("nwf,nwf->nf", responses, responses, dtype=np.float64)
    squares /= windows.shape[1] * np.square(_FILTERS, dtype=np.float64).sum(axis=0)
    pairs = squares[:, :-1].reshape(len(rows), -1, 2)
    return np.append(pairs.mean(axis=2), squares[:, -1:], axis=1)


def _repeats(rows: _Bytes) -> NDArray[np.int64]:
    """Return the ``repeats`` along rows of n images: shape (n,)."""
    steps = np.abs(np.diff(rows.astype(np.int16), axis=2)).sum(axis=1, dtype=np.int32)
    less = np.minimum(steps[:, :-1], steps[:, 1:])
    more = np.maximum(steps[:, :-1], steps[:, 1:])
    uneven = (_REPEAT_RATIO * less < more) & (more >= rows.shape[1])
    percentages: NDArray[np.int64] = 100 * np.count_nonzero(uneven, axis=1) // uneven.shape[1]
    return percentages


# --- the records of a set -------------------------------------------------------------------------


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
    def from_images(cls, images: ImageSet, records: _Bytes) -> ImageRecords:
        """Return the records of images, from a uint8 array of shape (images, bytes of
        `RECORD`).
        """
        names = Names(images.stored[number] for number in images.order.tolist())
        rows = np.ascontiguousarray(records).view(RECORD).reshape(-1)
        _forget_detail(rows, names, images.whole_count)
        return cls(rows, names, images.prefix, images.stamps())

    @classmethod
    def join(
        cls, parts: Sequence[ImageRecords], order: NDArray[np.int64], count: int
    ) -> ImageRecords:
        """Return the records of several parts of a set of ``count`` images, skipped ones too, in
        this order.
        """
        names = list[str]()
        prefixes = list[str]()
        for part in parts:
            names += part.names
            prefixes += [part.prefix] * len(part)
        stamps = np.concatenate([part.stamps for part in parts])
        stamps = stamps[order] if len(stamps) == len(names) else _NO_STAMPS
        records = np.concatenate([part.records for part in parts])[order]
        own = Names(names[number] for number in order.tolist())
        _forget_detail(records, own, count)
        return cls(records, own, prefixes[order[0]], stamps)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, index: int) -> str:
        return f"{self.prefix}{self.names[index]}"

    def redact(self) -> ImageRecords:
        """Return the same records with possible secrets removed from URLs, which can then no
        longer be opened.
        """
        prefix = redact(self.prefix)
        files = map(self.file, range(len(self)))
        names = Names(redact(file).removeprefix(prefix) for file in files)
        return replace(self, names=names, prefix=prefix)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store in a statistics file by name, for `from_arrays`."""
        folder = self.prefix
        if folder:  # absolute, so that the images are found from any working directory
            folder = real_path(folder)
            if self.prefix.endswith("/"):
                folder = os.path.join(folder, "")
        names = _SEPARATOR.join(map(os.fsencode, self.names))
        stored, details = np.split(to_bytes_array(self.records), [_STORED.itemsize], axis=1)
        arrays = {
            "records": np.ascontiguousarray(stored).view(_STORED)[:, 0],
            "names": np.frombuffer(names, dtype=np.uint8),
            "folder": np.frombuffer(os.fsencode(folder), dtype=np.uint8),
            DETAILS: np.ascontiguousarray(details),
        }
        if len(self.stamps):
            arrays[STAMPS] = self.stamps
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], count: int | None
    ) -> ImageRecords | None:
        """Return the records in a statistics file of ``count`` images; None if this version can
        read none.

        Raises:
            ValueError: if they are damaged.
        """
        if not arrays.keys() >= set(RECORD_ARRAYS) or arrays["records"].dtype != _STORED:
            return None
        stored = to_bytes_array(arrays["records"])
        details = arrays.get(DETAILS, np.zeros((len(stored), _DETAIL.itemsize), dtype=np.uint8))
        # Any exception says that the file cannot be read.
        whole = np.concatenate([stored, details], axis=1, dtype=np.uint8, casting="no")
        records = whole.view(RECORD)[:, 0]
        names = []
        if count:
            names = list(map(os.fsdecode, arrays["names"].tobytes().split(_SEPARATOR)))
        stamps = arrays.get(STAMPS, _NO_STAMPS)
        if not (
            len(records) == len(names) == count
            and arrays["records"].shape == (count,)
            and details.shape == (count, _DETAIL.itemsize)
            and all(records[name].all() for name in ("height", "width", "values"))
            and stamps.dtype == np.int64
            and stamps.shape in ((0, 2), (count, 2))
        ):
            raise ValueError(
                "its records of the images, their names, or the stamps of their files are damaged"
            )
        return cls(records, names, os.fsdecode(arrays["folder"].tobytes()), stamps)


def to_bytes_array(records: RecordArray) -> _Bytes:
    return np.ascontiguousarray(records).view(np.uint8).reshape(-1, records.itemsize)
