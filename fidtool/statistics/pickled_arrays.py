"""What stands in a pickle for NumPy's arrays, dtypes and numbers, and how they are made from it.

NumPy pickles an array as a call of one of its functions. The functions here take the same arguments, check them, and
make a `PickledArray`, whose elements may stay in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_MOST_AXES = 32
_SHOWN = 80
"""Maximum number of characters of a name in a message."""
_DTYPE = re.compile(r"b1|[iufc][0-9]{1,2}|[SU][1-9][0-9]{0,5}")
"""What NumPy writes for the dtypes of numbers, booleans and strings."""


class ForeignError(Exception):
    """The pickle contains something that is not data; the message says what."""


class DamagedError(Exception):
    """The pickle is damaged; the message says how."""


@dataclass(frozen=True)
class Name:
    """A name that the pickle refers to: the module and the name in it, separated by a space."""

    name: str


@dataclass(frozen=True)
class Extent:
    """Bytes or a string that were not read.

    Attributes:
        start, size: position in the file, in bytes.
        encoded: whether the bytes are a string in UTF-8.
    """

    start: int
    size: int
    encoded: bool


@dataclass
class PickledArray:
    """An array in a pickle. Its elements stay in the file until they are read.

    Attributes:
        dtype: dtype of its elements; None in a damaged pickle.
        shape: its shape.
        by_column: whether it is in Fortran order.
        data: its elements, or where they are.
    """

    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    by_column: bool = False
    data: bytes | Extent = b""

    def read(self, handle: BinaryIO) -> NDArray[Any]:
        """Returns the array.

        Args:
            handle: the file, as passed to `fidtool.statistics.pickles.read_pickle`.

        Raises:
            ValueError: if the file does not contain the elements.
        """
        data = self.data
        if isinstance(data, Extent):
            handle.seek(data.start)
            content = handle.read(data.size)
            data = content.decode("utf-8").encode("latin-1") if data.encoded else content
        if self.dtype is None or len(data) != prod(self.shape) * self.dtype.itemsize:
            raise ValueError(f"an array of shape {self.shape} has {len(data)} bytes")
        if not data:
            return np.zeros(self.shape, self.dtype)
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.by_column else "C")


@dataclass
class PickledDtype:
    """A dtype in a pickle: its name, and the dtype once its byte order is known."""

    name: str
    dtype: np.dtype[Any] | None = None


def shown(value: Any) -> str:
    """Returns a name in the pickle for a message."""
    text = value.name.replace(" ", ".") if isinstance(value, Name) else value
    if not isinstance(text, str):
        return f"an object of type {type(value).__name__}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])


def _new_array(kind: Name, *_: Any) -> PickledArray:
    # The other arguments are those of an empty array; `build` supplies the content.
    if kind != Name("numpy ndarray"):
        raise ForeignError(f"it has an array of the kind {shown(kind)}")
    return PickledArray()


def _new_dtype(name: str, *_: Any) -> PickledDtype:
    if isinstance(name, str) and name.startswith("O"):
        raise ForeignError("it has an array of Python objects")
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ForeignError(f"it has an array of dtype {shown(name)}, which is no number or string")
    return PickledDtype(name)


def _scalar(dtype: PickledDtype, data: Any) -> Any:
    array = _checked(dtype, (), False, data)
    if isinstance(array.data, Extent):
        raise DamagedError(f"a number has {array.data.size} bytes")
    return np.frombuffer(array.data, array.dtype)[0].item()


def _from_buffer(data: Any, dtype: PickledDtype, shape: Any, order: str) -> PickledArray:
    if order not in ("C", "F"):
        raise DamagedError(f"an array has the order {shown(order)}")
    return _checked(dtype, shape, order == "F", data)


def _encoded(text: Any, encoding: str) -> Any:
    if encoding not in ("latin1", "latin-1"):
        raise DamagedError(f"bytes are encoded in {shown(encoding)}")
    return text if isinstance(text, Extent) else text.encode("latin-1")


def _empty_dict() -> dict[Any, Any]:
    return {}  # the pickle adds the items afterwards


def _empty_bytes() -> bytes:
    return b""


_NUMPY = ("numpy.core", "numpy._core")
"""Its internal package in versions 1 and 2."""
FUNCTIONS: dict[Name, Callable[..., Any]] = {
    **{Name(f"{package}.multiarray _reconstruct"): _new_array for package in _NUMPY},
    **{Name(f"{package}.multiarray scalar"): _scalar for package in _NUMPY},
    **{Name(f"{package}.numeric _frombuffer"): _from_buffer for package in _NUMPY},
    Name("numpy dtype"): _new_dtype,
    Name("_codecs encode"): _encoded,
    Name("__builtin__ bytes"): _empty_bytes,
    Name("collections OrderedDict"): _empty_dict,
}
"""What is called for the names that a pickle may call. Nothing is imported by its name."""
KNOWN = frozenset({*FUNCTIONS, Name("numpy ndarray")})
"""All names that a pickle may contain."""


def build(target: Any, state: Any) -> None:
    """Completes an array or a dtype with the state that NumPy pickled.

    Raises:
        ForeignError: if the object is no array and no dtype, or the dtype has fields or metadata.
        DamagedError: if the state does not fit.
    """
    if not isinstance(target, (PickledArray, PickledDtype)):
        raise ForeignError(f"it sets the state of {shown(target)}")
    if not isinstance(state, tuple):
        raise DamagedError("the state of an array is not a tuple")
    if isinstance(target, PickledDtype):
        _build_dtype(target, *state)
    else:
        _build_array(target, *state)


def _build_dtype(dtype: PickledDtype, version: Any, order: Any, *parts: Any) -> None:
    # After the byte order come the three parts of a structured dtype, which others lack, its size, alignment and flags.
    if version != 3 or len(parts) != 6 or any(each is not None for each in parts[:3]):
        raise ForeignError(f"it has a dtype {shown(dtype.name)} with fields or metadata")
    if order not in ("<", ">", "|", "="):
        raise DamagedError(f"a dtype has the byte order {shown(order)}")
    dtype.dtype = np.dtype(dtype.name).newbyteorder(order)


def _build_array(array: PickledArray, _: Any, shape: Any, dtype: Any, by_column: Any, data: Any) -> None:
    if array.dtype is not None:
        raise DamagedError("an array is built twice")
    found = _checked(dtype, shape, by_column, data)
    array.dtype, array.shape, array.by_column, array.data = found.dtype, found.shape, found.by_column, found.data


def _checked(dtype: Any, shape: Any, by_column: Any, data: Any) -> PickledArray:
    """Returns the array with this content, whose size it checks as far as it can without reading."""
    if not isinstance(dtype, PickledDtype) or dtype.dtype is None:
        raise DamagedError("an array has no dtype")
    if not isinstance(shape, tuple) or len(shape) > _MOST_AXES or any(type(side) is not int for side in shape):
        raise DamagedError("an array has no shape")
    if any(side < 0 for side in shape):
        raise DamagedError(f"an array has the shape {shape}")
    if isinstance(data, str):  # bytes of Python 2
        data = data.encode("latin-1")
    if not isinstance(data, (bytes, Extent)):
        raise DamagedError(f"an array has {shown(data)} for its elements")
    size, has = prod(shape) * dtype.dtype.itemsize, data.size if isinstance(data, Extent) else len(data)
    # A character of a string in UTF-8 takes one or two bytes.
    if has != size and not (isinstance(data, Extent) and data.encoded and size <= has <= 2 * size):
        raise DamagedError(f"an array of shape {shape} and dtype {dtype.dtype} has {has} bytes")
    return PickledArray(dtype.dtype, shape, bool(by_column), data)
