"""Files of arrays: ``.npy``, ``.npz`` such as the samples of guided-diffusion, torch.save and safetensors.

No code in the files is executed, and nothing but plain data is unpickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import IO, Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.safe_pickle import CheckedReader, NotDataError, SafeUnpickler
from fidtool.sources.archives import check_member, stored_at
from fidtool.sources.arrays import (
    BFLOAT16,
    Layout,
    as_pixels,
    check_dtype,
    dtype_name,
    has_floats,
    layout_of,
    refused,
    set_of_rows,
    widened,
)
from fidtool.sources.contents import READ_AT_ONCE, Extent, ExtentReader, Files, Read, SequentialReader, opened
from fidtool.sources.image_set import ImageSet, NamedFiles
from fidtool.sources.kinds import HEAD, refuse_foreign

SAMPLES = "arr_0"
"""Name that numpy.savez gives the first array, as in the files of guided-diffusion."""
_MOST_SPREAD = 64
"""Largest ratio of the bytes that an image spans to its own bytes; it exceeds 1 for crops of larger images."""
_UNKNOWN = np.dtype("V1")
"""Placeholder for dtypes that images cannot have."""
_NAMED = 8
"""Maximum number of tensors that a message names."""
_MOST_HEADER = 10_000
"""Largest header of a NumPy array in bytes."""
_MOST_JSON = 100_000_000
"""Largest header of safetensors in bytes, the same limit as in safetensors' own readers."""
_MOST_RECORD = 16_000_000
"""Largest pickle in bytes; a tensor takes about two hundred bytes of it."""
_NUMBERS = ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "u2", "u4", "u8")
_SAFETENSORS = {"BOOL": "?", **{f"{kind[0].upper()}{8 * int(kind[1])}": f"<{kind}" for kind in _NUMBERS}}
_STORAGES = {
    **dict(zip(("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double"), _NUMBERS, strict=False)),
    **{f"uint{8 * int(kind[1])}": kind for kind in ("u2", "u4", "u8")},
    "Bool": "?",
}
"""NumPy dtypes, without byte order, of the torch storages that can contain images; newer dtypes have their names."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a file.

    Attributes:
        dtype: see `BFLOAT16`.
        start: position of its first byte in the file; if it is compressed, in the member of the archive.
        strides: bytes from one element to the next along each axis; empty for Fortran's order.
        kind: name of the dtype in the file's format, for messages.
        member: name of the compressed member of the archive that holds it; empty if it is not compressed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    strides: tuple[int, ...]
    kind: str = ""
    member: str = ""

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: np.dtype[Any], start: int, kind: str = "") -> StoredArray:
        """Returns an array in C order."""
        strides = tuple(dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(shape, dtype, start, strides, kind)

    @property
    def span(self) -> int:
        """Number of bytes from the first to the last byte of an image, both included."""
        inner = zip(self.shape[1:], self.strides[1:], strict=True)
        return self.dtype.itemsize + sum((length - 1) * stride for length, stride in inner)

    def row(self, data: bytes) -> NDArray[Any]:
        """Returns the image in these bytes, as stored."""
        return np.ndarray(self.shape[1:], self.dtype, data, strides=self.strides[1:])

    def read(self, files: Files) -> NDArray[Any]:
        """Returns all values from the array's file, the first of ``files``."""
        with opened(files, 0) as handle:
            handle.seek(self.start)
            values: NDArray[Any] = np.ndarray(self.shape, self.dtype, handle.read(), strides=self.strides)
        return widened(values) if values.dtype == BFLOAT16 else values

    def layout(self, what: str, size: int) -> Layout:
        """Returns the layout of its images, after checks; ``size`` is that of the file or member in bytes."""
        check_dtype(self.dtype, what, self.kind)
        layout = layout_of(self.shape, what)
        # Reading an image must not require reading many times its bytes.
        if not self.strides or self.span > _MOST_SPREAD * prod(self.shape[1:]) * self.dtype.itemsize:
            raise InputError(
                f"{what} is in Fortran order or permuted, so that each image is scattered over the whole file",
                "save numpy.ascontiguousarray(array)",
                "save tensor.contiguous()",
            )
        end = self.start + (self.shape[0] - 1) * self.strides[0] + self.span
        if end > size:
            raise InputError(f"{what} is truncated: its array ends at byte {end}, and the file has {size} bytes")
        return layout


def list_npy(named: NamedFiles) -> ImageSet:
    """Lists the images in ``.npy`` files, which contain one array each."""

    def find(name: str, handle: BinaryIO) -> Found:
        array = _stored(handle)
        return array, array.layout(name, handle.seek(0, 2))

    return _list_arrays(named, find)


def list_npz(named: NamedFiles) -> ImageSet:
    """Lists the images in one array of each ``.npz`` file. Compressed arrays are read sequentially.

    The key is the array's name. The default is `SAMPLES`, or the only array that has the shape of images.
    """
    return _list_arrays(named, lambda name, handle: _in_npz(name, handle, named.key))


def list_torch(named: NamedFiles) -> ImageSet:
    """Lists the images in one tensor of each file, as written by ``torch.save``.

    The key is the tensor's name; the default is the only tensor that has the shape of images.
    """
    return _list_tensors(named, _of_torch)


def list_safetensors(named: NamedFiles) -> ImageSet:
    """Lists the images in safetensors files; see `list_torch`."""
    return _list_tensors(named, _of_safetensors)


def _list_tensors(named: NamedFiles, tensors_of: Callable[[BinaryIO, str], dict[str, StoredArray]]) -> ImageSet:
    def find(name: str, handle: BinaryIO) -> Found:
        tensor, what = _chosen_tensor(name, tensors_of(handle, name), named.key)
        return tensor, tensor.layout(what, handle.seek(0, 2))

    return _list_arrays(named, find)


Found: TypeAlias = tuple[StoredArray, Layout]


def _list_arrays(named: NamedFiles, find: Callable[[str, BinaryIO], Found]) -> ImageSet:
    found = []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle:
            found.append(find(name, handle))
    packed = any(array.member for array, _ in found)
    rows = ArrayReader(named, found)
    reader = PackedReader(rows) if packed else rows
    counts = [array.shape[0] for array, _ in found]
    if any(array.dtype != np.uint8 for array, _ in found):
        # Refused here, a run would otherwise process the sets before.
        for first in reader.read(np.cumsum([0, *counts[:-1]])):
            if isinstance(first, InputError):
                raise refused(first, reader, sum(counts), spread=not packed)
    axes = {-1: "NHW", 0: "NCHW", 2: "NHWC"}
    kinds = ", ".join(dict.fromkeys(f"{dtype_name(array.dtype)} {axes[layout.channels]}" for array, layout in found))
    return set_of_rows(named, "compressed array" if packed else f"array ({kinds})", counts, reader)


class ArrayReader(ExtentReader):
    """Reads rows of arrays, one array per file."""

    encoded = False

    def __init__(self, named: NamedFiles, found: Sequence[Found]) -> None:
        super().__init__(named.files)
        self.arrays, self._layouts = zip(*found, strict=True)
        self._value_range = named.value_range
        self._ends = np.cumsum([array.shape[0] for array in self.arrays])
        self.scaled = any(has_floats(array.dtype) for array in self.arrays)
        self.variant = self._value_range.variant if self.scaled and self._value_range is not None else ""

    def _place(self, item: int) -> tuple[int, int]:
        """Returns the file and the row of an image."""
        file = int(np.searchsorted(self._ends, item, side="right")) if len(self.arrays) > 1 else 0
        return file, item - int(self._ends[file]) + self.arrays[file].shape[0]

    def extent(self, item: int) -> Extent:
        file, row = self._place(item)
        array = self.arrays[file]
        return file, array.start + row * array.strides[0], array.span

    def unpack(self, item: int, data: bytes) -> Read:
        file, row = self._place(item)
        image = self._layouts[file].image(self.arrays[file].row(data))
        return as_pixels(image, self._value_range, f"{self.files.paths[file]}[{row}]")


class PackedReader(SequentialReader):
    """Reads ``rows`` of compressed arrays sequentially."""

    encoded = False

    def __init__(self, rows: ArrayReader) -> None:
        super().__init__(rows.files, [array.shape[0] for array in rows.arrays])
        self._rows, self.scaled, self.variant = rows, rows.scaled, rows.variant

    def walk(self, handle: BinaryIO, file: int, first: int, items: NDArray[np.int64]) -> Iterator[Read]:
        with zipfile.ZipFile(handle) as archive:
            member = cast(io.RawIOBase, archive.open(self._rows.arrays[file].member))
            with io.BufferedReader(member, READ_AT_ONCE) as data:
                for item in items.tolist():
                    _, start, length = self._rows.extent(item)
                    data.seek(start)
                    content = data.read(length)
                    if len(content) < length:
                        raise EOFError("its array is truncated")
                    yield self._rows.unpack(item, content)

    def damaged(self, file: int, reason: str) -> InputError:
        return InputError(f"{self.files.paths[file]} is damaged: {reason}", "copy or create it again")


# --- NumPy -----------------------------------------------------------------------------------------------------------


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


def _in_npz(name: str, handle: BinaryIO, key: str) -> Found:
    with zipfile.ZipFile(handle) as archive:
        chosen = key or _chosen_name(name, archive)
        infos = [info for info in archive.infolist() if info.filename == f"{chosen}.npy"]
        if len(infos) != 1:
            has = ", ".join(entry.removesuffix(".npy") for entry in archive.namelist()[:8]) or "nothing"
            number = "no array" if not infos else f"{len(infos)} arrays"
            raise InputError(f"{name} has {number} named {chosen}; it contains {has}")
        (info,) = infos
        check_member(name, info)
        with archive.open(info) as member:
            array = _stored(member)
    layout = array.layout(f"{chosen} in {name}", info.file_size)
    if info.compress_type != zipfile.ZIP_STORED:
        return replace(array, member=info.filename), layout
    return replace(array, start=array.start + stored_at(info, handle)), layout


def _chosen_name(name: str, archive: zipfile.ZipFile) -> str:
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


def _stored(member: IO[bytes]) -> StoredArray:
    """Returns the position of an array in a file or a member of an archive that begins with its header."""
    shape, by_column, dtype = read_header(member)
    array = StoredArray.contiguous(shape, dtype, member.tell())
    return replace(array, strides=()) if by_column else array


def read_header(member: IO[bytes]) -> Header:
    """Reads the header of an array in NumPy's format, after which its values begin."""
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


# --- tensors ---------------------------------------------------------------------------------------------------------


def tensors_in(files: Files) -> dict[str, StoredArray]:
    """Returns the tensors in a file of ``torch.save`` or safetensors by name; none of other files."""
    tensors_of = _of_safetensors if files.paths[0].endswith(".safetensors") else _of_torch
    with contextlib.suppress(Exception), files.open(0) as handle:
        return tensors_of(handle, "")
    return {}


def _chosen_tensor(name: str, tensors: Mapping[str, StoredArray], key: str) -> tuple[StoredArray, str]:
    if not key and len(tensors) == 1:
        ((key, tensor),) = tensors.items()
        return tensor, f"{key} in {name}" if key else name
    images = [each for each, tensor in tensors.items() if len(tensor.shape) in (3, 4)]
    chosen = key or (images[0] if len(images) == 1 else "")
    if chosen not in tensors:
        some = list(tensors.items())[:_NAMED]
        has = ", ".join(f"{each or 'one tensor'} ({tensor.kind} {tensor.shape})" for each, tensor in some)
        if len(tensors) > _NAMED:
            has += f" and {len(tensors) - _NAMED} more tensors"
        advice = f"it contains no {key}" if key else f"name the tensor of images, {name}:NAME"
        if not images:
            advice = "save the images as one uint8 tensor, torch.save(images, …)"
        raise InputError(f"{name} contains {has or 'no tensor at its top level'}: {advice}")
    return tensors[chosen], f"{chosen} in {name}"


# --- safetensors -----------------------------------------------------------------------------------------------------


def _of_safetensors(handle: BinaryIO, _: str) -> dict[str, StoredArray]:
    # The file begins with the header's length (8 bytes) and the header, a JSON object of names, dtypes and positions.
    length = int.from_bytes(handle.read(8), "little")
    if length > _MOST_JSON:
        raise ValueError("its header is not that of a safetensors file")
    header = json.loads(handle.read(length))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape = tuple(int(side) for side in entry["shape"])
        kind = str(entry["dtype"])
        dtype = BFLOAT16 if kind == "BF16" else np.dtype(_SAFETENSORS.get(kind, _UNKNOWN))
        first, last = entry["data_offsets"]
        if dtype != _UNKNOWN and (first < 0 or last - first != prod(shape) * dtype.itemsize):
            raise ValueError(f"{name} has {last - first} bytes, which does not match its shape")
        tensors[str(name)] = StoredArray.contiguous(shape, dtype, 8 + length + int(first), kind)
    return tensors


# --- torch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _View:
    """A tensor as torch.save describes it: in a record of the archive. Offset and strides are numbers of elements."""

    record: str
    kind: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _of_torch(handle: BinaryIO, name: str) -> dict[str, StoredArray]:
    # torch.save writes a zip archive of a pickle and the storages, none of them compressed.
    if not zipfile.is_zipfile(handle):
        handle.seek(0)
        refuse_foreign(name, handle.read(HEAD))
        raise InputError(f"{name} was not written by torch.save of torch 1.6 or later:", "save the tensor again")
    with zipfile.ZipFile(handle) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records or "constants.pkl" in records:
            raise InputError(f"{name} is not a tensor written by torch.save, but perhaps a TorchScript program")
        views = _views(io.BytesIO(_record(records["data.pkl"], handle)), name)
        order = _record(records["byteorder"], handle).decode() if "byteorder" in records else "little"
        return {key: _located(view, records, handle, "<" if order == "little" else ">") for key, view in views.items()}


def _located(view: _View, records: Mapping[str, zipfile.ZipInfo], handle: BinaryIO, order: str) -> StoredArray:
    info = records[f"data/{view.record}"]
    first = stored_at(info, handle)
    known = _STORAGES.get(view.kind)
    dtype = np.dtype(f"{order}{known}") if known else _UNKNOWN
    if view.kind == "BFloat16" and order == "<":
        dtype = BFLOAT16
    if min([view.offset, *view.shape, *view.strides]) < 0:
        raise ValueError("a tensor has a negative offset, size or stride")
    last = view.offset + 1 + sum((side - 1) * step for side, step in zip(view.shape, view.strides, strict=True))
    if 0 not in view.shape and last * dtype.itemsize > info.file_size:
        raise ValueError("a tensor extends beyond its storage")
    strides = tuple(step * dtype.itemsize for step in view.strides)
    return StoredArray(view.shape, dtype, first + view.offset * dtype.itemsize, strides, view.kind.lower())


def _record(info: zipfile.ZipInfo, handle: BinaryIO) -> bytes:
    # Not read with zipfile, which would refuse records without a checksum.
    if info.file_size > _MOST_RECORD:
        raise ValueError(f"its record {info.filename} is too large ({info.file_size} bytes)")
    handle.seek(stored_at(info, handle))
    data = handle.read(info.file_size)
    if info.CRC and zlib.crc32(data) != info.CRC:
        raise ValueError(f"the checksum of its record {info.filename} does not match")
    return data


def _views(text: BinaryIO, name: str) -> dict[str, _View]:
    try:
        value = _Unpickler(CheckedReader(text), _KNOWN).load()
    except NotDataError as error:
        raise InputError(
            f"{name} is not read: {error}. Python objects are not loaded, because loading them can run code:",
            "save a tensor of the images or a dict of tensors",
        ) from None
    if isinstance(value, _View):
        return {"": value}
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if isinstance(each, _View)}
    raise InputError(f"{name} contains a {type(value).__name__}:", "save one tensor of all images, torch.stack(images)")


class _Unpickler(SafeUnpickler):
    """Reads tensors written by torch.save."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and (name.endswith("Storage") or name in _STORAGES):
            return name
        return super().find_class(module, name)

    def persistent_load(self, reference: Any) -> Any:
        """Returns the record of a storage and the name of its class."""
        _, kind, record, *_ = reference
        return record, kind


def _tensor(storage: Any, offset: int, shape: Sequence[int], strides: Sequence[int], *rest: object) -> _View:
    record, kind = storage
    kind = next((each for each in rest if isinstance(each, str)), kind)  # of newer dtypes, in untyped storages
    return _View(record, kind.removesuffix("Storage"), int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda view, *_: view,
    ("collections", "OrderedDict"): lambda *_: {},
    ("torch", "Size"): tuple,
}
