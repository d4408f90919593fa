"""Files of arrays: ``.npy``, ``.npz`` such as the samples of guided-diffusion, torch.save and
safetensors.

No code in the files is executed, and nothing but plain data is unpickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.archives import check_member, member_offset
from fidtool.sources.arrays import (
    BFLOAT16,
    SAMPLES,
    StoredArray,
    dtype_name,
    find_image_arrays,
    has_floats,
    make_file_index,
    make_image_set,
    read_header,
    refuse_values,
    to_hwc,
    to_pixels,
)
from fidtool.sources.contents import (
    ExtentReader,
    Files,
    Numbers,
    Read,
    open_with_errors,
    pickle_error,
    read_extent,
)
from fidtool.sources.image_set import ImageSet, SourceFiles
from fidtool.sources.kinds import HEAD, NPY, detect_container, file_suffix, first_member
from fidtool.sources.labels import LABEL_NAMES, NO_LABELS, Labels
from fidtool.system.safe_pickle import NotDataError, SafeUnpickler

# Placeholder for dtypes that images cannot have.
_UNKNOWN = np.dtype("V1")
# The arrays or tensors in a file by name, which is empty for that of a file with only one.
_Arrays = dict[str, StoredArray]
# Maximum number of arrays that a message names.
_MAX_NAMED = 8
# NumPy dtypes, without byte order, of the torch storages that can contain images; newer dtypes have
# their names.
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


def list_images(named: SourceFiles) -> ImageSet:
    """List the images in one array or tensor of each file. Compressed arrays are read
    sequentially.

    The key is its name. The default is `SAMPLES`, or the only one that has the shape of images.
    """
    arrays = []
    for file, name in enumerate(named.files.paths):
        with open_with_errors(named.files, file) as handle:
            stored = _read_headers(name, handle, named.key or SAMPLES)
            chosen = _choose_array(name, stored, named.key)
            what = f"{chosen} in {name}" if chosen else name
            arrays.append(stored[chosen].check_images(what, handle.seek(0, io.SEEK_END)))
    reader = ArrayReader(named, arrays)
    counts = [array.shape[0] for array in arrays]
    if any(array.dtype != np.uint8 for array in arrays):
        # Refused here, a run would otherwise process the sets before.
        refuse_values(reader, [0, *np.cumsum(counts[:-1]).tolist()])
    kind = "compressed array"
    if not any(array.member for array in arrays):
        forms = dict.fromkeys(f"{dtype_name(array.dtype)} {array.layout}" for array in arrays)
        kind = f"array ({', '.join(forms)})"
    return make_image_set(named, kind, counts, reader)


def read_arrays(files: Files) -> _Arrays:
    """Return the arrays or tensors in the first file by name; none if it is another file, or
    damaged.
    """
    with contextlib.suppress(Exception), files.open(0) as handle:
        return _read_headers(files.paths[0], handle)
    return {}


def _read_headers(name: str, handle: BinaryIO, usual: str = "") -> _Arrays:
    """Return the arrays or tensors in a file by name, which is empty if the file has only one.

    Of an archive of arrays that has the ``usual`` one, only this is returned.
    """
    head = handle.read(HEAD)
    handle.seek(0)
    suffix = file_suffix(name)
    if suffix == ".npy" or detect_container(head) == NPY:
        return {"": read_header(handle)}
    if suffix == ".npz" or first_member(head).endswith(b".npy"):
        return _read_npz_headers(name, handle, usual)
    if suffix == ".safetensors":
        return _read_safetensors_headers(handle)
    return _read_torch_headers(name, handle)


def _choose_array(name: str, arrays: _Arrays, key: str) -> str:
    """Return the name of the array of images: ``key``, else the only array, or the only one that
    may be it.
    """
    images = find_image_arrays(arrays)
    candidates = images if len(arrays) > 1 else list(arrays)
    if key:
        candidates = [key]
    if len(candidates) == 1 and candidates[0] in arrays:
        return candidates[0]
    contained = [
        f"{label or 'one tensor'} ({array.kind or array.dtype} {array.shape})"
        for label, array in arrays.items()
    ]
    has = ", ".join(contained[:_MAX_NAMED]) or "no array or tensor"
    if len(contained) > _MAX_NAMED:
        has += f" and {len(contained) - _MAX_NAMED} more"
    advice = f"name the array of images, {name}:NAME"
    if not images:
        advice = "save the images as one uint8 array or tensor"
    elif key:
        advice = f"none is named {key}"
    raise InputError(f"{name} contains {has}:", advice)


class ArrayReader(ExtentReader):
    """Reads rows of arrays, one array per file."""

    encoded = False

    def __init__(self, named: SourceFiles, arrays: Sequence[StoredArray]) -> None:
        self.scaled = any(has_floats(array.dtype) for array in arrays)
        variant = ""
        if self.scaled and named.value_range is not None:
            variant = named.value_range.variant
        in_order = named.files.remote or any(array.member for array in arrays)
        file_index = make_file_index(named, [array.shape[0] for array in arrays])
        super().__init__(named.files, file_index, in_order, variant)
        self._arrays = arrays
        self._value_range = named.value_range

    def content(self, item: int, stream: IO[bytes]) -> Read:
        file = int(self.file_index[item])
        array = self._arrays[file]
        row = item - self.first_image(file)
        data = read_extent(stream, array.start + row * array.strides[0], array.span)
        image: NDArray[Any] = np.ndarray(
            array.shape[1:], array.dtype, data, strides=array.strides[1:]
        )
        return to_pixels(
            to_hwc(image, array.axis), self._value_range, f"{self.files.paths[file]}[{row}]"
        )

    def read_labels(self, items: Numbers, requested: bool) -> Labels:
        count = len(self.file_index)
        for name, array in read_arrays(self.files).items():
            if name in LABEL_NAMES and array.shape == (count,) and array.dtype.kind in "iuU":
                return Labels.of(array.read(self.files).tolist())
        return NO_LABELS

    def open_stream(self, handle: BinaryIO, file: int) -> IO[bytes]:
        return self._arrays[file].open(handle)


# --- NumPy ----------------------------------------------------------------------------------------


def _read_npz_headers(name: str, handle: BinaryIO, usual: str) -> _Arrays:
    """Return the arrays of an archive whose headers can be read, see `_read_headers`. Raises if
    there are none.
    """
    arrays: _Arrays = {}
    failure: Exception | None = None
    with zipfile.ZipFile(handle) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        if f"{usual}.npy" in names:
            names = [f"{usual}.npy"]
        for member in names:
            info = archive.getinfo(member)
            try:
                check_member(name, info)
                arrays[member.removesuffix(".npy")] = _member(archive, info, handle)
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
    first = member_offset(info, handle)
    return replace(array, start=first + array.start, limit=first + info.file_size)


# --- safetensors ----------------------------------------------------------------------------------


def _read_safetensors_headers(handle: BinaryIO) -> _Arrays:
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
        dtype = _safetensors_dtype(str(entry["dtype"]))
        first, last = entry["data_offsets"]
        if dtype != _UNKNOWN and (first < 0 or last - first != prod(shape) * dtype.itemsize):
            raise ValueError(f"{name} has {last - first} bytes, which does not match its shape")
        start = 8 + length + int(first)
        tensors[str(name)] = StoredArray.contiguous(shape, dtype, start, str(entry["dtype"]))
    return tensors


def _safetensors_dtype(kind: str) -> np.dtype[Any]:
    """Return the dtype of which a name such as F16 or U8 gives the kind and the number of bits."""
    if kind == "BF16":
        return BFLOAT16
    if kind == "BOOL":
        return np.dtype("?")
    if not re.fullmatch("[UI](8|16|32|64)|F(16|32|64)", kind):
        return _UNKNOWN
    return np.dtype(f"<{kind[0].lower()}{int(kind[1:]) // 8}")


# --- torch ----------------------------------------------------------------------------------------


def _read_torch_headers(name: str, handle: BinaryIO) -> _Arrays:
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
        raise pickle_error(
            name, "save a tensor of the images or a dict of tensors", example=error
        ) from None
    if isinstance(value, StoredArray):
        return {"": value}
    if isinstance(value, dict):
        return {
            str(key): tensor for key, tensor in value.items() if isinstance(tensor, StoredArray)
        }
    raise InputError(
        f"{name} contains a {type(value).__name__}:",
        "save one tensor of all images, torch.stack(images)",
    )


def _read_zip_record(info: zipfile.ZipInfo, handle: BinaryIO) -> bytes:
    # Not read with zipfile, which would refuse records without a checksum.
    if info.file_size > 16_000_000:  # a tensor takes about two hundred bytes
        raise ValueError(f"its record {info.filename} is too large ({info.file_size} bytes)")
    handle.seek(member_offset(info, handle))
    data = handle.read(info.file_size)
    if info.CRC and zlib.crc32(data) != info.CRC:
        raise ValueError(f"the checksum of its record {info.filename} does not match")
    return data


class _Storage(NamedTuple):
    """The elements of tensors.

    Attributes:
        kind: name of its class.
        start: position of the first byte in the file.
        size: number of bytes.
        order: NumPy's sign of the byte order.
    """

    kind: str
    start: int
    size: int
    order: str


class _Unpickler(SafeUnpickler):
    """Reads tensors written by torch.save, whose storages are other ``records`` of the archive."""

    def __init__(self, records: Mapping[str, zipfile.ZipInfo], handle: BinaryIO) -> None:
        super().__init__(
            io.BytesIO(_read_zip_record(records["data.pkl"], handle)), _ALLOWED_GLOBALS
        )
        self._records = records
        self._handle = handle
        self._order = "<"
        if "byteorder" in records and _read_zip_record(records["byteorder"], handle) != b"little":
            self._order = ">"

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and (name.endswith("Storage") or name in _STORAGES):
            return name
        return super().find_class(module, name)

    def persistent_load(self, reference: Any) -> _Storage:
        _, kind, record, *_ = reference
        info = self._records["data/" + record]
        return _Storage(kind, member_offset(info, self._handle), info.file_size, self._order)


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *rest: object
) -> StoredArray:
    kind = storage.kind.removesuffix("Storage")
    for argument in rest:
        if isinstance(argument, str):  # storages of newer dtypes are untyped; the tensor has it
            kind = argument
    dtype = _UNKNOWN
    if kind == "BFloat16" and storage.order == "<":
        dtype = BFLOAT16
    elif kind in _STORAGES:
        dtype = np.dtype(storage.order + _STORAGES[kind])
    if min(offset, *shape, *strides, 0) < 0:
        raise ValueError("a tensor has a negative offset, size or stride")
    start = storage.start + offset * dtype.itemsize
    steps = tuple(step * dtype.itemsize for step in strides)
    tensor = StoredArray(tuple(shape), dtype, start, steps, kind.lower())
    if 0 not in shape and tensor.end > storage.start + storage.size:
        raise ValueError("a tensor extends beyond its storage")
    return tensor


_ALLOWED_GLOBALS = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): lambda *_: {},
    ("torch", "Size"): tuple,
}
