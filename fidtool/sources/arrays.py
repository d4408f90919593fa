"""Images that are rows of an array: their layout, and conversion of their values to uint8."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import IO, Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.sources.contents import (
    ContentError,
    Files,
    Pixels,
    Reader,
    ValueRange,
    open_with_errors,
    pickle_error,
)
from fidtool.sources.image_set import ImageSet, Names, Numbered, SourceFiles, split_common_folder

_CHANNELS = frozenset({1, 3, 4})
# The value ranges that are suggested, and how far floats may exceed them: networks overshoot.
_RANGES = ((0, 1), (-1, 1), (0, 255))
_RANGE_TOLERANCE = 0.1
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""Placeholder dtype for bfloat16, which NumPy lacks: the upper half of a float32."""


def to_hwc(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return a view of an image in the shape (height, width, channels); see `channel_axis`."""
    return values[..., None] if axis < 0 else np.moveaxis(values, axis, -1)


def channel_axis(shape: Sequence[int], what: str, single: bool = False) -> int:
    """Return the axis of the channels in each image of an array, which has the length 1, 3 or 4;
    -1 if there is none.

    If it is a ``single`` image, whose first axis of length 1 was added, messages have the shape
    without it.
    """
    text = "x".join(map(str, shape))
    axes = len(shape)
    if axes in (3, 4) and min(shape) <= 0:
        raise InputError(f"no images in {what}: its shape is {text}")
    is_vectors = axes in (2, 4) and prod(shape[2:]) == 1
    if axes == 3 and shape[0] not in (3, 4) and min(shape[1:]) > 4:
        return -1
    if axes == 4 and not is_vectors:
        is_first = shape[1] in _CHANNELS
        is_last = shape[3] in _CHANNELS
        if is_first and is_last:
            raise InputError(
                f"{what} has the shape {text}, which may be NHWC or NCHW:",
                "store it as NHWC with more than 4 rows and columns, or store the images as files",
            )
        if is_first:
            return 0
        if is_last:
            return 2
    needed = "NHWC or NCHW with 1, 3 or 4 channels, or NHW"
    hint = hint_of_videos(shape)
    remedies = []  # apart, because a setting in the problem would be what the error is about
    if axes == 3:
        remedies.append("for a single image, use array[None]")
    elif is_vectors:
        remedies.append(f"`compute` takes features of images, NxD, with {option('features', True)}")
    if single:
        text = text.partition("x")[2]
        needed = needed.replace("N", "")
    raise InputError(
        f"{what} has the shape {text}; images must have the shape {needed}{hint}", *remedies
    )


def hint_of_videos(shape: Sequence[int], name: str = "x") -> str:
    """Return a hint for videos, which have an axis too many; empty for other shapes."""
    if len(shape) < 5:
        return ""
    return f"; for videos in NTHWC or NTCHW, pass {name}.reshape(-1, *{name}.shape[2:])"


def check_dtype(dtype: np.dtype[Any], what: str, name: str = "") -> None:
    """Check that an array can be of images, see `to_pixels`. ``name`` is that of the dtype in the
    file's format.
    """
    if dtype.hasobject:
        raise pickle_error(
            what,
            "save one uint8 array of all images, which must have the same size",
            "save the images as files",
        )
    if not has_floats(dtype) and dtype.kind not in "biu":
        raise InputError(
            f"{what} contains {name or dtype.name}; images must be integers, floats or bool"
        )


def has_floats(dtype: np.dtype[Any]) -> bool:
    """Whether the values of an array become bytes by a value range."""
    return dtype.kind == "f" or dtype == BFLOAT16


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, also of `BFLOAT16`."""
    return dtype.names[0] if dtype.names else dtype.name


def widen_bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of `BFLOAT16` as float32, and others as they are."""
    if values.dtype != BFLOAT16:
        return values
    return (values["bfloat16"].astype("<u4") << 16).view("<f4")


def to_pixels(
    values: NDArray[Any], value_range: ValueRange | None, what: str = "it"
) -> Pixels | Exception:
    """Convert one image to uint8.

    Integers must be in 0..255, except uint16, whose high byte is used, as that of 16-bit PNGs. True
    is white. Floats are scaled to 0..255, rounded half up and clipped, as torchvision's
    ``save_image`` does; or truncated, as ``(x * 255).to(torch.uint8)`` does, whose product has the
    precision of x. ``values`` have the shape (height, width, channels). Instead of pixels, NaN
    gives a `ContentError`, and floats without a ``value_range`` an `InputError`.
    """
    if values.dtype == np.uint8:
        return Pixels(np.ascontiguousarray(values))
    if values.dtype.kind in "biu":
        return _pixels_from_integers(values, what)
    if values.shape[2] == 4:
        return InputError(
            f"{what} contains floats with four channels, which look like latents:",
            "decode latents to images",
            "pass images with transparency as uint8",
        )
    # Python scalars would adopt the array's dtype, so half precision would lose digits below.
    exact = widen_bfloat16(values).astype("f4" if values.dtype.itemsize < 8 else "f8")
    if not np.isfinite(exact).all():
        return ContentError("it contains NaN or infinite values")
    if value_range is None:
        return UnknownRangeError.suggest(what, exact, dtype_name(values.dtype))
    scaled = (exact - value_range.black) * (255.0 / (value_range.white - value_range.black))
    # Up to half a step beyond the range does not count as clipped: rounding gives 0 or 255.
    clipped = bool(scaled.min() < -0.5 or scaled.max() > 255.5)
    if not value_range.floor:
        scaled = scaled + 0.5
    elif values.dtype == BFLOAT16:
        bits = scaled.view("<u4")
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # to the nearest, ties to even
        scaled = bits.view("<f4")
    else:
        scaled = scaled.astype(values.dtype)
    return Pixels(np.floor(scaled).clip(0, 255).astype(np.uint8), clipped)


def _pixels_from_integers(values: NDArray[Any], what: str) -> Pixels | InputError:
    if values.dtype.kind == "b":
        return Pixels(values * np.uint8(255))
    low = int(values.min())
    high = int(values.max())
    has = f"{what} contains {values.dtype.name} from {low} to {high}"
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        if 0 < high < 256:
            return InputError(
                f"{has}, which may be bytes or nearly black 16-bit values:",
                "use images.astype('uint8')",
                "(images >> 8).astype('uint8')",
            )
        return Pixels((values >> 8).astype(np.uint8), deep=True)
    if low >= 0 and high < 256:
        return Pixels(values.astype(np.uint8))
    return InputError(
        f"{has}; image values must be from 0 to 255:",
        "with the values of black and white as BLACK and WHITE, use ((numpy.asarray(images, float)"
        " - BLACK) / (WHITE - BLACK) * 255).round().clip(0, 255).astype('uint8')",
    )


class UnknownRangeError(InputError):
    """An image contains floats, and the values of black and white are unknown."""

    @classmethod
    def suggest(cls, what: str, values: NDArray[Any], dtype: str) -> UnknownRangeError:
        """Return the error, which suggests the usual range that fits the values, or both that
        may.
        """
        low = float(values.min())
        high = float(values.max())
        fitting = [
            (black, white)
            for black, white in _RANGES
            if black - _RANGE_TOLERANCE <= low and high <= white + _RANGE_TOLERANCE
        ]
        if not fitting:
            remedies = ["undo their normalisation", f"pass {option('value_range', ...)}"]
        elif fitting[0] == (0, 1):  # an image may have no value below the middle
            remedies = [
                f"pass {option('value_range', (0, 1))} if 0 is black",
                f"{option('value_range', (-1, 1))} if 0 is grey",
            ]
        else:
            remedies = [f"pass {option('value_range', fitting[0])}"]
        return cls(
            f"{what} contains {dtype} from {low:.4g} to {high:.4g}, and the values of black and "
            "white are unknown:",
            *remedies,
            setting="value_range",
        )


def refuse_values(reader: Reader, firsts: Sequence[int]) -> None:
    """Raise the error of the first of these images that has one for all images of a source."""
    for content in reader.read(np.array(firsts, dtype=np.int64)):
        if isinstance(content, InputError):
            raise content


_MAX_IMAGES = 200_000_000


def make_file_index(named: SourceFiles, counts: Sequence[int]) -> NDArray[np.int32]:
    """Return the index of each row's file, for files with so many rows."""
    if sum(counts) > _MAX_IMAGES:
        raise InputError(
            f"{named.path} states that it contains {sum(counts)} images; the limit is {_MAX_IMAGES}"
        )
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def make_image_set(
    named: SourceFiles, kind: str, counts: Sequence[int], reader: Reader
) -> ImageSet:
    """Return the images in files whose images have row numbers instead of names."""
    names: Names = Numbered(sum(counts))
    if len(counts) > 1:
        _, labels = split_common_folder(named.files.paths)
        names = Names(_name_rows(labels, counts))
    order = np.arange(len(names), dtype=np.uint32)
    return ImageSet(named.path, kind, names, named.prefix, reader, order)


def _name_rows(labels: Sequence[str], counts: Sequence[int]) -> Iterator[str]:
    for label, count in zip(labels, counts, strict=True):
        for row in range(count):
            yield f"{label}[{row}]"


# --- arrays in files ------------------------------------------------------------------------------

SAMPLES = "arr_0"
"""Name that numpy.savez gives the first array, as in the files of guided-diffusion."""


def find_image_arrays(arrays: Mapping[str, StoredArray]) -> list[str]:
    """Return the names of the arrays that may be of images: `SAMPLES`, else those of 3 or 4 axes,
    else of more.
    """
    if SAMPLES in arrays:
        return [SAMPLES]
    shapes = {
        name: array.shape
        for name, array in arrays.items()
        if len(array.shape) > 2 and not array.dtype.hasobject
    }
    return [name for name in shapes if len(shapes[name]) < 5] or list(shapes)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file.

    Attributes:
        dtype: see `BFLOAT16`.
        start: position of its first byte in the file; if it is compressed, in the member of the
            archive.
        strides: bytes from one element to the next along each axis; empty for Fortran's order.
        kind: name of the dtype in the file's format, for messages.
        member: name of the compressed member of the archive that holds it; empty if it is not
            compressed.
        axis: axis of the channels in each of its images, see `channel_axis`; -1 if there is none,
            or it is unknown.
        limit: position where its member of an archive of arrays ends; 0 in other files.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    strides: tuple[int, ...]
    kind: str = ""
    member: str = ""
    axis: int = -1
    limit: int = 0

    @classmethod
    def contiguous(
        cls, shape: tuple[int, ...], dtype: np.dtype[Any], start: int, kind: str = ""
    ) -> StoredArray:
        """Return an array in C order."""
        strides = [dtype.itemsize * prod(shape[axis:]) for axis in range(1, len(shape) + 1)]
        return cls(shape, dtype, start, tuple(strides), kind)

    @property
    def span(self) -> int:
        """Number of bytes from the first to the last byte of an image, both included."""
        return self._reach(1)

    @property
    def end(self) -> int:
        """Position after its last byte."""
        if not self.strides:
            return self.start + prod(self.shape) * self.dtype.itemsize
        return self.start + self._reach(0)

    def _reach(self, first: int) -> int:
        """Number of bytes from the first to the last byte along the axes from ``first`` on."""
        axes = zip(self.shape[first:], self.strides[first:], strict=True)
        return self.dtype.itemsize + sum((length - 1) * stride for length, stride in axes)

    def open(self, handle: BinaryIO) -> IO[bytes]:
        """Return the contents of its compressed member of an open archive; of other files
        ``handle`` itself.
        """
        if not self.member:
            return handle
        # Between two steps of so many bytes, other threads can run.
        return io.BufferedReader(
            cast(io.RawIOBase, zipfile.ZipFile(handle).open(self.member)), 1 << 21
        )

    def read(self, files: Files) -> NDArray[Any]:
        """Return all values from the array's file, the first of ``files``."""
        with open_with_errors(files, 0) as handle, self.open(handle) as stream:
            stream.seek(self.start)
            data = stream.read(self.end - self.start)
        values: NDArray[Any] = np.ndarray(
            self.shape, self.dtype, data, strides=self.strides or None, order="F"
        )
        return widen_bfloat16(values)

    @property
    def layout(self) -> str:
        return {-1: "NHW", 0: "NCHW", 2: "NHWC"}[self.axis]

    def check_images(self, what: str, size: int) -> StoredArray:
        """Return it with its `axis`, after checks; its file has ``size`` bytes."""
        check_dtype(self.dtype, what, self.kind)
        axis = channel_axis(self.shape, what)
        # Reading an image must not require reading many times its bytes, as it does a little for
        # crops of larger ones.
        if not self.strides or self.span > 64 * prod(self.shape[1:]) * self.dtype.itemsize:
            raise InputError(
                f"{what} is in Fortran order or permuted, so that each image is scattered over "
                "the whole file",
                "save numpy.ascontiguousarray(array)",
                "save tensor.contiguous()",
            )
        limit = self.limit or size
        if self.end > limit:
            raise InputError(
                f"{what} is truncated: its array ends at byte {self.end}, and the file has "
                f"{limit} bytes"
            )
        return replace(self, axis=axis)


def read_header(member: IO[bytes]) -> StoredArray:
    """Read the header of an array in NumPy's format, after which its values begin."""
    version = npy.read_magic(member)
    readers = {(1, 0): (2, npy.read_array_header_1_0), (2, 0): (4, npy.read_array_header_2_0)}
    if version not in readers:
        raise ValueError(f"version {version} of the format is not supported")
    digits, read = readers[version]
    size = member.read(digits)
    length = int.from_bytes(size, "little")
    if length > 10_000:  # NumPy reads the whole header before it checks the length
        raise ValueError(f"its header of {length} bytes is too long for an array of images")
    shape, by_column, dtype = read(io.BytesIO(size + member.read(length)))
    array = StoredArray.contiguous(shape, dtype, member.tell())
    return replace(array, strides=()) if by_column else array
