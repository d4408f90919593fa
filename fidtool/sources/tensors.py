"""Tensors of images in files of torch and safetensors. Nothing in them is run, and torch is not needed."""

from __future__ import annotations

import io
import json
import pickle
import time
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any, BinaryIO, ClassVar

import numpy as np

from fidtool.errors import InputError, option
from fidtool.sources.archives import body_start
from fidtool.sources.arrays import (
    BFLOAT16,
    NO_CHECKSUM,
    Checksum,
    StoredArray,
    check_values,
    contiguous,
    layout_of,
    require_compact,
    require_complete,
    set_of_arrays,
)
from fidtool.sources.contents import readable
from fidtool.sources.image_set import ImageSet, NamedFiles

_UNKNOWN = np.dtype("V1")
"""Stands for a type that no images have."""
_NAMED = 8
_MOST_HEADER = 100_000_000
"""Bytes; what safetensors' own readers allow."""
_MOST_RECORD = 16_000_000
"""Bytes of a pickle, of which a tensor takes about two hundred."""
_SAFETENSORS = {"U8": "|u1", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STORAGES = {"ByteStorage": "u1", "HalfStorage": "f2", "FloatStorage": "f4", "DoubleStorage": "f8"}
"""The types of torch's storages that can be images, as NumPy has them without the order of bytes."""


def list_torch(named: NamedFiles) -> ImageSet:
    """The images in one tensor of each file that ``torch.save`` wrote.

    Args:
        named: the files. The key is the tensor's name where a file holds several; without one it is the only one of
            images.

    Raises:
        InputError: a file that is damaged, holds anything but tensors, or several of images.
    """
    return _list_tensors(named, _of_torch, checked=True)


def list_safetensors(named: NamedFiles) -> ImageSet:
    """The same in files of safetensors, which state no checksums."""
    return _list_tensors(named, _of_safetensors, checked=False)


def _list_tensors(
    named: NamedFiles, tensors_of: Callable[[BinaryIO, str], dict[str, _Tensor]], checked: bool
) -> ImageSet:
    began = time.time_ns()
    arrays, checksums = [], []
    for file, name in enumerate(named.files.paths):
        with readable(name), named.files.open(file) as handle:
            tensor, what = _chosen(name, tensors_of(handle, name), named.key)
            if tensor.dtype == _UNKNOWN:
                problem = (
                    f"{what} holds {tensor.kind}; images are uint8, 0 to 255, or floats with {option('value_range')}"
                )
                raise InputError(problem, setting="value_range")
            array = _stored_array(tensor, what)
            numbers = tensor.dtype if tensor.dtype != BFLOAT16 else np.dtype("f4")
            check_values(numbers, array.layout, named.value_range, what)
            require_compact(array, what)
            require_complete(array, handle.seek(0, 2), name)
            arrays.append(array)
            checksums.append(tensor.checksum)
    return set_of_arrays(named, arrays, began, checksums if checked else [])


@dataclass(frozen=True)
class _Tensor:
    """A tensor in a file: its shape, its type, its first byte, and elements from one to the next along each axis."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    strides: tuple[int, ...] | None = None
    kind: str = ""
    checksum: Checksum = NO_CHECKSUM


def _chosen(name: str, tensors: Mapping[str, _Tensor], key: str) -> tuple[_Tensor, str]:
    if not key and len(tensors) == 1:
        ((key, tensor),) = tensors.items()
        return tensor, f"{key} in {name}" if key else name
    images = [each for each, tensor in tensors.items() if len(tensor.shape) in (3, 4)]
    chosen = key or (images[0] if len(images) == 1 else "")
    if chosen not in tensors:
        some = list(tensors.items())[:_NAMED]
        has = ", ".join(f"{each or 'one tensor'} ({tensor.kind} {tensor.shape})" for each, tensor in some)
        if len(tensors) > _NAMED:
            has += f" and {len(tensors) - _NAMED} more tensors, as a model's weights do"
        advice = f"it has no {key}" if key else f"name the one of the images as in {name}:NAME"
        if not images:
            advice = "save the images as one tensor, torch.save(images, …), uint8"
        raise InputError(f"{name} holds {has or 'no tensor at its top'}: {advice}")
    return tensors[chosen], f"{chosen} in {name}"


def _stored_array(tensor: _Tensor, what: str) -> StoredArray:
    layout = layout_of(tensor.shape, what)
    if tensor.strides is None:
        return contiguous(tensor.shape, tensor.dtype, layout, tensor.start)
    stride, *inner = (each * tensor.dtype.itemsize for each in tensor.strides)
    return StoredArray(tensor.start, tensor.shape[0], stride, layout, tuple(inner), tensor.dtype)


# --- safetensors -----------------------------------------------------------------------------------------------------


def _of_safetensors(handle: BinaryIO, _: str) -> dict[str, _Tensor]:
    """Eight bytes say how long a JSON text is, which says where each tensor lies behind it."""
    length = int.from_bytes(handle.read(8), "little")
    if length > _MOST_HEADER:
        raise ValueError("it does not begin as a safetensors file does")
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
            raise ValueError(f"{name} takes {last - first} bytes, which is not what its shape needs")
        tensors[str(name)] = _Tensor(shape, dtype, 8 + length + int(first), kind=kind)
    return tensors


# --- torch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Storage:
    """Where a tensor's elements are: which record of the archive, and their type."""

    record: str
    kind: str


@dataclass(frozen=True)
class _View:
    """What torch.save wrote of a tensor."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _of_torch(handle: BinaryIO, name: str) -> dict[str, _Tensor]:
    """The tensors of a file of torch.save: a zip archive of a pickle and of the storages, which are not compressed."""
    if not zipfile.is_zipfile(handle):
        raise InputError(f"{name} is no file that torch.save wrote since torch 1.6:", "save the tensor anew")
    with zipfile.ZipFile(handle) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records or "constants.pkl" in records:
            raise InputError(f"{name} holds no tensor that torch.save wrote, but a program or something else")
        views = _views(io.BytesIO(_record(records["data.pkl"], handle)), name)
        order = _record(records["byteorder"], handle).decode() if "byteorder" in records else "little"
        return {key: _located(view, records, handle, "<" if order == "little" else ">") for key, view in views.items()}


def _located(view: _View, records: Mapping[str, zipfile.ZipInfo], handle: BinaryIO, order: str) -> _Tensor:
    info = records[f"data/{view.storage.record}"]
    first = _start(info, handle)
    if view.storage.kind == "BFloat16Storage" and order == "<":
        dtype = BFLOAT16
    else:
        known = _STORAGES.get(view.storage.kind)
        dtype = np.dtype(f"{order}{known}") if known else _UNKNOWN
    kind = view.storage.kind.removesuffix("Storage").lower()
    if min([view.offset, *view.shape, *view.strides]) < 0:
        raise ValueError("a tensor reaches out of its storage")
    last = view.offset + 1 + sum((side - 1) * step for side, step in zip(view.shape, view.strides, strict=True))
    if 0 not in view.shape and last * dtype.itemsize > info.file_size:
        raise ValueError("a tensor reaches beyond its storage")
    # Where torch was told to compute none, its records state the checksum 0.
    checksum = Checksum(first, info.file_size, info.CRC) if info.CRC else NO_CHECKSUM
    return _Tensor(view.shape, dtype, first + view.offset * dtype.itemsize, view.strides, kind, checksum)


def _start(info: zipfile.ZipInfo, handle: BinaryIO) -> int:
    """The first byte of a record, none of which is compressed."""
    handle.seek(info.header_offset)
    start = body_start(handle.read(30))
    if start is None or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(f"its record {info.filename} is not where it should be")
    return info.header_offset + start


def _record(info: zipfile.ZipInfo, handle: BinaryIO) -> bytes:
    """A record's bytes. zipfile would take the checksum of those that have none for another one."""
    if info.file_size > _MOST_RECORD:
        raise ValueError(f"its record {info.filename} claims {info.file_size} bytes")
    handle.seek(_start(info, handle))
    data = handle.read(info.file_size)
    if info.CRC and zlib.crc32(data) != info.CRC:
        raise ValueError(f"its record {info.filename} has another checksum")
    return data


def _views(text: IO[bytes], name: str) -> dict[str, _View]:
    try:
        value = _Unpickler(text).load()
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{name} holds {error}; Python objects are not loaded, because loading them can run code:",
            "save a tensor of the images, or a dict of tensors",
        ) from None
    if isinstance(value, _View):
        return {"": value}
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if isinstance(each, _View)}
    raise InputError(f"{name} holds a {type(value).__name__}:", "save one tensor of all images, torch.stack(images)")


_Pythons: Any = pickle._Unpickler
"""The unpickler that is written in Python: single steps of it can be replaced."""
_SETITEM, _SETITEMS = pickle.SETITEM[0], pickle.SETITEMS[0]
_UNUSED = {pickle.EMPTY_SET[0], pickle.ADDITEMS[0], pickle.FROZENSET[0], pickle.DICT[0]}
"""Steps that torch's files do without."""


class _Unpickler(_Pythons):  # type: ignore[misc]
    """Reads what torch.save wrote of tensors, and calls nothing but the functions below.

    Keys of dicts are strings and numbers: comparing nested tuples from a few bytes of a file could take forever.
    """

    def _setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        _Pythons.dispatch[_SETITEM](self)

    def _setitems(self) -> None:
        _check_keys(self.stack[::2])
        _Pythons.dispatch[_SETITEMS](self)

    dispatch: ClassVar[dict[int, Any]] = {
        **{step: work for step, work in _Pythons.dispatch.items() if step not in _UNUSED},
        **{_SETITEM: _setitem, _SETITEMS: _setitems},
    }

    def find_class(self, module: str, name: str) -> Any:
        """Raises an UnpicklingError for whatever is no tensor."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"a {module}.{name}")

    def persistent_load(self, reference: Any) -> _Storage:
        """A storage, by what the pickle says of it."""
        _, kind, record, *_ = reference
        if not isinstance(kind, str) or not isinstance(record, str):
            raise ValueError("a storage is not named as torch does it")
        return _Storage(record, kind)


def _check_keys(keys: Sequence[object]) -> None:
    for key in keys:
        if not isinstance(key, (str, int, float)):
            raise pickle.UnpicklingError(f"a dict with a key of the type {type(key).__name__}")


def _ordered(*_: object) -> OrderedDict[Any, Any]:
    """An empty one: torch puts the items into it afterwards."""
    return OrderedDict()


def _tensor(storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *_: object) -> _View:
    return _View(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _parameter(view: _View, *_: object) -> _View:
    return view


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): tuple,
}
