"""NumPy files: ``.npy``, and ``.npz`` such as the samples of guided-diffusion. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import io
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.archives import check_member, stored_at
from fidtool.sources.arrays import (
    StoredArray,
    as_pixels,
    check_dtype,
    contiguous,
    has_floats,
    layout_of,
    require_complete,
    scattered_error,
    set_of_arrays,
)
from fidtool.sources.contents import READ_AT_ONCE, Files, Read, ValueRange, opened
from fidtool.sources.image_set import ImageSet, NamedFiles
from fidtool.sources.readers import SequentialReader

SAMPLES = "arr_0"
"""Name that numpy.savez gives the first array, as in the files of guided-diffusion."""
_MOST_HEADER = 10_000
"""Largest size of an array's header in bytes."""


def list_npy(named: NamedFiles) -> ImageSet:
    """Lists the images in ``.npy`` files, which contain one array each."""
    began = time.time_ns()
    arrays = []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle:
            arrays.append(_array(handle, name))
            require_complete(arrays[-1], handle.seek(0, 2), name)
    return set_of_arrays(named, arrays, began, None)


def list_npz(named: NamedFiles) -> ImageSet:
    """Lists the images in one array of each ``.npz`` file. Compressed arrays are read sequentially.

    The key is the array's name. The default is `SAMPLES`, or the only array that has the shape of images.
    """
    began = time.time_ns()
    members = []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle, zipfile.ZipFile(handle) as archive:
            members.append(_member(name, handle, archive, named.key))
    arrays = [replace(each.array, start=each.array.start + (each.start or 0)) for each in members]
    compressed = any(member.start is None for member in members)
    reader = CompressedNpzReader(named.files, members, named.value_range) if compressed else None
    return set_of_arrays(named, arrays, began, reader)


class Header(NamedTuple):
    """The header of an array; ``by_column`` is Fortran's order."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]


def array_headers(files: Files) -> dict[str, Header]:
    """Returns the headers of the arrays in a file by name, which is empty in ``.npy``; unreadable ones are omitted."""
    found = {}
    with contextlib.suppress(Exception), files.open(0) as handle:
        if not zipfile.is_zipfile(handle):
            handle.seek(0)
            return {"": read_header(handle)}
        with zipfile.ZipFile(handle) as archive:
            for name in archive.namelist():
                with contextlib.suppress(Exception), archive.open(name) as member:
                    found[name.removesuffix(".npy")] = read_header(member)
    return found


@dataclass(frozen=True)
class _Member:
    """An array in an ``.npz`` file, and the position of its first byte in the file; None if it is compressed."""

    name: str
    array: StoredArray
    start: int | None = None


def _member(name: str, handle: BinaryIO, archive: zipfile.ZipFile, key: str) -> _Member:
    chosen = key or _chosen(name, archive)
    what = f"{chosen} in {name}"
    infos = [info for info in archive.infolist() if info.filename == f"{chosen}.npy"]
    if len(infos) != 1:
        has = ", ".join(entry.removesuffix(".npy") for entry in archive.namelist()[:8]) or "nothing"
        number = "no array" if not infos else f"{len(infos)} arrays"
        raise InputError(f"{name} has {number} named {chosen}; it contains {has}")
    (info,) = infos
    check_member(name, info)
    with archive.open(info) as member:
        array = _array(member, what)
    require_complete(array, info.file_size, what)
    if info.compress_type != zipfile.ZIP_STORED:
        return _Member(info.filename, array)
    return _Member(info.filename, array, stored_at(info, handle))


def _chosen(name: str, archive: zipfile.ZipFile) -> str:
    names = [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
    if SAMPLES in names:
        return SAMPLES
    several = []
    for each in names:
        with archive.open(f"{each}.npy") as member:
            shape, _, dtype = read_header(member)
        several.append((each, shape, dtype))
    shaped = [(each, shape) for each, shape, dtype in several if len(shape) > 2 and not dtype.hasobject]
    images = [each for each, shape in shaped if len(shape) < 5] or [each for each, _ in shaped]
    if len(images) == 1:
        return images[0]
    has = ", ".join(f"{each} ({dtype.name} {shape})" for each, shape, dtype in several[:8]) or "no array"
    raise InputError(f"{name} has no array {SAMPLES}; it contains {has}:", f"name the array of images, {name}:NAME")


def _array(member: IO[bytes], what: str) -> StoredArray:
    """Returns the position of an array in a file or a member of an archive that begins with its header."""
    shape, by_column, dtype = read_header(member)
    check_dtype(dtype, what)
    layout = layout_of(shape, what)
    if by_column:
        raise scattered_error(what)
    return contiguous(shape, dtype, layout, member.tell())


def read_header(member: IO[bytes]) -> Header:
    version = npy.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format is not supported")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    size = member.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > _MOST_HEADER:  # NumPy reads the whole header before it checks the length
        raise ValueError(f"its header of {length} bytes is too long for an array of images")
    shape, by_column, dtype = read(io.BytesIO(size + member.read(length)))
    return Header(tuple(map(int, shape)), bool(by_column), dtype)


class CompressedNpzReader(SequentialReader):
    """Reads compressed arrays sequentially, row by row."""

    encoded = False

    def __init__(self, files: Files, members: Sequence[_Member], value_range: ValueRange | None) -> None:
        super().__init__(files, [member.array.count for member in members])
        self._members, self._value_range = members, value_range
        self.scaled = any(has_floats(member.array.dtype) for member in members)
        self.variant = value_range.variant if self.scaled and value_range is not None else ""

    def walk(self, handle: BinaryIO, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        array = self._members[file].array
        with zipfile.ZipFile(handle) as archive:
            member = cast(io.RawIOBase, archive.open(self._members[file].name))
            with io.BufferedReader(member, READ_AT_ONCE) as data:
                for row in items.tolist():
                    data.seek(array.start + row * array.stride)
                    what = f"{self._files.paths[file]}[{row}]"
                    yield as_pixels(array.values(_exactly(data, array.span)), self._value_range, what)

    def damaged(self, file: int, reason: str) -> InputError:
        return InputError(f"{self._files.paths[file]} is damaged: {reason}", "copy or create it again")


def _exactly(data: IO[bytes], length: int) -> bytes:
    content = data.read(length)
    if len(content) < length:
        raise EOFError("its array is truncated")
    return content
