"""Tensors of images in torch.save and safetensors files. No code in the files is executed, and torch is not used."""

from __future__ import annotations

import contextlib
import io
import json
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.safe_pickle import CheckedReader, NotDataError, SafeUnpickler
from fidtool.sources.archives import stored_at
from fidtool.sources.arrays import (
    BFLOAT16,
    StoredArray,
    check_dtype,
    contiguous,
    layout_of,
    require_compact,
    require_complete,
    set_of_arrays,
    widened,
)
from fidtool.sources.contents import Files, opened
from fidtool.sources.image_set import ImageSet, NamedFiles
from fidtool.sources.signatures import HEAD, refuse_foreign

_UNKNOWN = np.dtype("V1")
"""Placeholder for dtypes that images cannot have."""
_NAMED = 8
"""Maximum number of tensors that a message names."""
_MOST_HEADER = 100_000_000
"""Largest header in bytes, the same limit as in safetensors' own readers."""
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


def list_torch(named: NamedFiles) -> ImageSet:
    """Lists the images in one tensor of each file, as written by ``torch.save``.

    The key is the tensor's name; the default is the only tensor that has the shape of images.
    """
    return _list_tensors(named, _of_torch)


def list_safetensors(named: NamedFiles) -> ImageSet:
    """Lists the images in safetensors files; see `list_torch`."""
    return _list_tensors(named, _of_safetensors)


def _list_tensors(named: NamedFiles, tensors_of: Callable[[BinaryIO, str], dict[str, Tensor]]) -> ImageSet:
    began = time.time_ns()
    arrays = []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle:
            tensor, what = _chosen(name, tensors_of(handle, name), named.key)
            check_dtype(tensor.dtype, what, tensor.kind)
            array = _stored_array(tensor, what)
            require_compact(array, what)
            require_complete(array, handle.seek(0, 2), name)
            arrays.append(array)
    return set_of_arrays(named, arrays, began, None)


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        start: position of its first byte in the file.
        strides: number of elements from one to the next along each axis; None if it is contiguous.
        kind: name of the dtype in the file's format, for messages.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    strides: tuple[int, ...] | None = None
    kind: str = ""

    def read(self, files: Files) -> NDArray[Any]:
        """Returns the tensor's values from its file, the first of ``files``."""
        strides = self.strides and tuple(step * self.dtype.itemsize for step in self.strides)
        with opened(files, 0) as handle:
            handle.seek(self.start)
            values = np.ndarray(self.shape, self.dtype, handle.read(), strides=strides)
        return widened(values) if values.dtype == BFLOAT16 else values


def tensors_in(files: Files) -> dict[str, Tensor]:
    """Returns the tensors in a file of ``torch.save`` or safetensors by name; none of other files."""
    tensors_of = _of_safetensors if files.paths[0].endswith(".safetensors") else _of_torch
    with contextlib.suppress(Exception), files.open(0) as handle:
        return tensors_of(handle, "")
    return {}


def _chosen(name: str, tensors: Mapping[str, Tensor], key: str) -> tuple[Tensor, str]:
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


def _stored_array(tensor: Tensor, what: str) -> StoredArray:
    layout = layout_of(tensor.shape, what)
    if tensor.strides is None:
        return contiguous(tensor.shape, tensor.dtype, layout, tensor.start)
    stride, *inner = (each * tensor.dtype.itemsize for each in tensor.strides)
    return StoredArray(tensor.start, tensor.shape[0], stride, layout, tuple(inner), tensor.dtype)


# --- safetensors -----------------------------------------------------------------------------------------------------


def _of_safetensors(handle: BinaryIO, _: str) -> dict[str, Tensor]:
    # The file begins with the header's length (8 bytes) and the header, a JSON object of names, dtypes and positions.
    length = int.from_bytes(handle.read(8), "little")
    if length > _MOST_HEADER:
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
        tensors[str(name)] = Tensor(shape, dtype, 8 + length + int(first), kind=kind)
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


def _of_torch(handle: BinaryIO, name: str) -> dict[str, Tensor]:
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


def _located(view: _View, records: Mapping[str, zipfile.ZipInfo], handle: BinaryIO, order: str) -> Tensor:
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
    return Tensor(view.shape, dtype, first + view.offset * dtype.itemsize, view.strides, view.kind.lower())


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
