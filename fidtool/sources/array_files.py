"""Files of arrays: ``.npy``, ``.npz`` such as the samples of guided-diffusion, torch.save and
safetensors.

No code in the files is executed, and nothing but plain data is unpickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.archives import check_member, stored_at
from fidtool.sources.arrays import (
    BFLOAT16,
    SAMPLES,
    StoredArray,
    as_hwc,
    as_pixels,
    dtype_name,
    has_floats,
    index_of_files,
    names_of_images,
    read_header,
    refuse_values,
    set_of_rows,
)
from fidtool.sources.contents import ExtentReader, Files, Read, opened, read_extent
from fidtool.sources.image_set import ImageSet, NamedFiles
from fidtool.sources.kinds import HEAD, NPY, container_of, first_member, suffix_of
from fidtool.system.safe_pickle import NotDataError, SafeUnpickler

_UNKNOWN = np.dtype("V1")
"""Placeholder for dtypes that images cannot have."""
_NAMED = 8
"""Maximum number of arrays that a message names."""
_SAFETENSORS = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}
_STORAGES = {
    "Bool": "?",
    "Byte": "u1",
    "Char": "i1",
    "Short": "i2",
    "Int": "i4",
    "Long": "i8",
    "Half": "f2",
    "Float": "f4",
    "Double": "f8",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
}
"""NumPy dtypes, without byte order, of the torch storages that can contain images; newer dtypes
have their names.
"""


def list_images(named: NamedFiles) -> ImageSet:
    """Lists the images in one array or tensor of each file. Compressed arrays are read
    sequentially.

    The key is its name. The default is `SAMPLES`, or the only one that has the shape of images.
    """
    arrays = []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle:
            arrays.append(_images_in(name, handle, named.key))
    reader = ArrayReader(named, arrays)
    counts = [array.shape[0] for array in arrays]
    if any(array.dtype != np.uint8 for array in arrays):
        # Refused here, a run would otherwise process the sets before.
        refuse_values(reader, [0, *np.cumsum(counts[:-1]).tolist()])
    kinds = ", ".join(
        dict.fromkeys(f"{dtype_name(array.dtype)} {array.layout}" for array in arrays)
    )
    is_compressed = any(array.member for array in arrays)
    return set_of_rows(
        named, "compressed array" if is_compressed else f"array ({kinds})", counts, reader
    )


def _images_in(name: str, handle: BinaryIO, key: str) -> StoredArray:
    arrays = _arrays_of(name, handle, key or SAMPLES)
    chosen = _chosen(name, arrays, key)
    return arrays[chosen].of_images(
        f"{chosen} in {name}" if chosen else name, handle.seek(0, io.SEEK_END)
    )


def arrays_in(files: Files) -> dict[str, StoredArray]:
    """Returns the arrays or tensors in the first file by name; none if it is another file, or
    damaged.
    """
    with contextlib.suppress(Exception), files.open(0) as handle:
        return _arrays_of(files.paths[0], handle)
    return {}


def _arrays_of(name: str, handle: BinaryIO, usual: str = "") -> dict[str, StoredArray]:
    """Returns the arrays or tensors in a file by name, which is empty if the file has only one.

    Of an archive of arrays that has the ``usual`` one, only this is returned.
    """
    head = handle.read(HEAD)
    handle.seek(0)
    suffix, first = suffix_of(name), first_member(head)
    if suffix == ".npy" or container_of(head) == NPY:
        return {"": read_header(handle)}
    if suffix == ".npz" or first.endswith(b".npy"):
        return _of_npz(name, handle, usual)
    return _of_safetensors(handle) if suffix == ".safetensors" else _of_torch(name, handle)


def _chosen(name: str, arrays: Mapping[str, StoredArray], key: str) -> str:
    """Returns the name of the array of images: ``key``, else the only array, or the only one that
    may be it.
    """
    images = names_of_images(arrays)
    candidates = images if len(arrays) > 1 else [*arrays]
    if key:
        candidates = [key]
    if len(candidates) == 1 and candidates[0] in arrays:
        return candidates[0]
    has = [
        f"{each or 'one tensor'} ({array.kind or array.dtype} {array.shape})"
        for each, array in arrays.items()
    ]
    more = f" and {len(has) - _NAMED} more" if len(has) > _NAMED else ""
    advice = f"none is named {key}" if key else f"name the array of images, {name}:NAME"
    if not images:
        advice = "save the images as one uint8 array or tensor"
    raise InputError(
        f"{name} contains {', '.join(has[:_NAMED]) or 'no array or tensor'}{more}:", advice
    )


class ArrayReader(ExtentReader):
    """Reads rows of arrays, one array per file."""

    encoded = False

    def __init__(self, named: NamedFiles, arrays: Sequence[StoredArray]) -> None:
        self.scaled = any(has_floats(array.dtype) for array in arrays)
        value_range = named.value_range
        variant = value_range.variant if self.scaled and value_range is not None else ""
        in_order = named.files.remote or any(array.member for array in arrays)
        file_index = index_of_files(named, [array.shape[0] for array in arrays])
        super().__init__(named.files, file_index, in_order, variant)
        self._arrays, self._value_range = arrays, value_range

    def content(self, item: int, stream: IO[bytes]) -> Read:
        file = int(self.file_index[item])
        array = self._arrays[file]
        row = item - self.first_of(file)
        data = read_extent(stream, array.start + row * array.strides[0], array.span)
        image: NDArray[Any] = np.ndarray(
            array.shape[1:], array.dtype, data, strides=array.strides[1:]
        )
        return as_pixels(
            as_hwc(image, array.axis), self._value_range, f"{self.files.paths[file]}[{row}]"
        )

    def decompressed(self, handle: BinaryIO, file: int) -> IO[bytes]:
        return self._arrays[file].opened(handle)


# --- NumPy ----------------------------------------------------------------------------------------


def _of_npz(name: str, handle: BinaryIO, usual: str) -> dict[str, StoredArray]:
    """Returns the arrays of an archive whose headers can be read, see `_arrays_of`. Raises if there
    are none.
    """
    arrays: dict[str, StoredArray] = {}
    failure: Exception | None = None
    with zipfile.ZipFile(handle) as archive:
        members = {
            info.filename[:-4]: info
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        for array in [usual] if usual in members else members:
            try:
                check_member(name, members[array])
                arrays[array] = _member(archive, members[array], handle)
            except Exception as error:  # damaged headers raise many kinds of exceptions
                failure = error
    if failure is not None and not arrays:
        raise failure
    return arrays


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, handle: BinaryIO) -> StoredArray:
    with archive.open(info) as member:
        array = read_header(member)
    if info.compress_type != zipfile.ZIP_STORED:
        return replace(array, member=info.filename, limit=info.file_size)
    first = stored_at(info, handle)
    return replace(array, start=first + array.start, limit=first + info.file_size)


# --- safetensors ----------------------------------------------------------------------------------


def _of_safetensors(handle: BinaryIO) -> dict[str, StoredArray]:
    # The file begins with the header's length (8 bytes) and the header, a JSON object of names,
    # dtypes and positions.
    length = int.from_bytes(handle.read(8), "little")
    if length > 100_000_000:  # the limit of safetensors' own readers
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


# --- torch ----------------------------------------------------------------------------------------


def _of_torch(name: str, handle: BinaryIO) -> dict[str, StoredArray]:
    # torch.save writes a zip archive of a pickle and the storages, none of them compressed.
    if not zipfile.is_zipfile(handle):
        raise InputError(
            f"{name} was not written by torch.save of torch 1.6 or later:", "save the tensor again"
        )
    with zipfile.ZipFile(handle) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    if "data.pkl" not in records or "constants.pkl" in records:
        raise InputError(
            f"{name} is not a tensor written by torch.save, but perhaps a TorchScript program"
        )
    try:
        value = _Unpickler(records, handle).load()
    except NotDataError as error:
        raise InputError(
            f"{name} is not read: {error}. Python objects are not loaded, because loading them "
            "can run code:",
            "save a tensor of the images or a dict of tensors",
        ) from None
    if isinstance(value, StoredArray):
        return {"": value}
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if isinstance(each, StoredArray)}
    raise InputError(
        f"{name} contains a {type(value).__name__}:",
        "save one tensor of all images, torch.stack(images)",
    )


def _record(info: zipfile.ZipInfo, handle: BinaryIO) -> bytes:
    # Not read with zipfile, which would refuse records without a checksum.
    if info.file_size > 16_000_000:  # a tensor takes about two hundred bytes
        raise ValueError(f"its record {info.filename} is too large ({info.file_size} bytes)")
    handle.seek(stored_at(info, handle))
    data = handle.read(info.file_size)
    if info.CRC and zlib.crc32(data) != info.CRC:
        raise ValueError(f"the checksum of its record {info.filename} does not match")
    return data


_Storage = tuple[str, int, int, str]
"""The elements of tensors: name of their class, first byte and number of the bytes, and their
order.
"""


class _Unpickler(SafeUnpickler):
    """Reads tensors written by torch.save, whose storages are other ``records`` of the archive."""

    def __init__(self, records: Mapping[str, zipfile.ZipInfo], handle: BinaryIO) -> None:
        super().__init__(io.BytesIO(_record(records["data.pkl"], handle)), _KNOWN)
        self._records, self._handle = records, handle
        order = _record(records["byteorder"], handle) if "byteorder" in records else b"little"
        self._order = "<" if order == b"little" else ">"

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and (name.endswith("Storage") or name in _STORAGES):
            return name
        return super().find_class(module, name)

    def persistent_load(self, reference: Any) -> _Storage:
        _, kind, record, *_ = reference
        info = self._records["data/" + record]
        return kind, stored_at(info, self._handle), info.file_size, self._order


def _tensor(
    storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *rest: object
) -> StoredArray:
    storage_kind, start, storage_size, order = storage
    # The storages of newer dtypes are untyped, and the tensor has the dtype.
    kind = next((each for each in rest if isinstance(each, str)), storage_kind).removesuffix(
        "Storage"
    )
    dtype = np.dtype(f"{order}{_STORAGES[kind]}") if kind in _STORAGES else _UNKNOWN
    if kind == "BFloat16" and order == "<":
        dtype = BFLOAT16
    if any(number < 0 for number in (offset, *shape, *strides)):
        raise ValueError("a tensor has a negative offset, size or stride")
    steps = tuple(step * dtype.itemsize for step in strides)
    tensor = StoredArray(tuple(shape), dtype, start + offset * dtype.itemsize, steps, kind.lower())
    if 0 not in shape and tensor.end > start + storage_size:
        raise ValueError("a tensor extends beyond its storage")
    return tensor


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): lambda *_: {},
    ("torch", "Size"): tuple,
}
