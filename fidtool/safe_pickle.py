"""Pickles read without running anything that they name: numbers, strings and NumPy arrays in lists, tuples and dicts.

A pickle is a program, and Python's own loader imports and calls whatever it names. Here, a name stands for one of a few
functions, which check their arguments, and opcodes that make other objects are refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_SHOWN = 80
"""Maximum number of characters of a name in a message."""
_DTYPE = re.compile(r"b1|[iufc][0-9]{1,2}|[SU][1-9][0-9]{0,5}")
"""What NumPy writes for the dtypes of numbers, booleans and strings."""
_BEGINNING = re.compile(rb"\x80[\x00-\x0f]|\(d[pSV]|\}[q(]|ccollections\nOrderedDict\n", re.DOTALL)


class NotDataError(Exception):
    """The pickle contains something that is not data; the message says what."""


def begins_like_pickle(head: bytes) -> bool:
    """Returns whether a file with these first bytes is a pickle: of any object, or before protocol 2 of a dict."""
    return _BEGINNING.match(head) is not None


def load_data(handle: IO[bytes]) -> Any:
    """Reads the pickle that a file consists of, of any protocol, also one written by Python 2.

    Raises:
        NotDataError: if it contains anything else than numbers, strings, None and arrays in lists, tuples and dicts.
        Exception: of any kind, if it is damaged or followed by other data.
    """
    file = io.BytesIO(handle.read())
    value = SafeUnpickler(file).load()
    if left := len(file.read()):
        raise ValueError(f"{left} bytes follow its end")
    return value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else f"an object of type {type(value).__name__}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])


class _Dtype:
    """A dtype in a pickle, whose byte order is stated after its name."""

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or not _DTYPE.fullmatch(name):
            raise NotDataError(f"it has an array of dtype {_shown(name)}, which is no number or string")
        self.dtype = np.dtype(name)

    def build(self, version: Any, order: Any, *parts: Any) -> None:
        # After the byte order come the three parts of a structured dtype, which others lack, size, alignment and flags.
        if version != 3 or len(parts) != 6 or any(part is not None for part in parts[:3]):
            raise NotDataError(f"it has a dtype {self.dtype} with fields or metadata")
        self.dtype = self.dtype.newbyteorder(order)


def _empty_array(kind: Any, *_: Any) -> NDArray[Any]:
    if kind != _NDARRAY:
        raise NotDataError(f"it has an array of the kind {_shown(kind)}")
    return np.empty(0)


def _fill(array: NDArray[Any], _: Any, shape: Any, dtype: _Dtype, by_column: bool, data: Any) -> None:
    """Gives an empty array its content."""
    made = _array(data, dtype, shape, "F" if by_column else "C")
    state: Any = 1, made.shape, made.dtype, bool(by_column), made.tobytes("A")
    array.__setstate__(state)


def _array(data: Any, dtype: _Dtype, shape: Any = (), order: Any = "C") -> NDArray[Any]:
    content = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 had no other bytes
    # Of a view, so that no memory is allocated for a shape without content.
    return np.ndarray(shape, dtype.dtype, memoryview(content), order=order)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes are encoded in {_shown(encoding)}")
    return text.encode("latin-1")


_NDARRAY = "numpy.ndarray"
"""Stands for the class, which must not be called."""
_NAMES: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: _array(data, dtype).item(),
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("__builtin__", "bytes"): lambda: b"",
    ("collections", "OrderedDict"): lambda: {},
}
"""What stands for each name that a pickle may contain, as NumPy 1 writes it. Nothing is imported by its name."""

# Not the unpickler in C, which allocates a memo as large as the largest index in it, and bytes of any stated length.
_PythonUnpickler: Any = pickle._Unpickler
_REFUSED = (
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.PERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    *(pickle.POP, pickle.POP_MARK),
)
"""Opcodes that make objects, and ones that data do not need."""


def _checking_keys(opcode: bytes, keys: slice) -> Callable[[Any], None]:
    """Returns the usual function of an opcode that fills a dict, after a check of these keys on the stack."""

    def load(self: Any) -> None:
        for key in self.stack[keys]:
            # A few bytes suffice for nested tuples whose hash or comparison would take forever.
            if not isinstance(key, (str, bytes, int, float, type(None))):
                raise NotDataError(f"it has a dict with a key of type {type(key).__name__}")
        _PythonUnpickler.dispatch[opcode[0]](self)

    return load


class SafeUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Reads a pickle, and calls only known functions.

    Args:
        file: its bytes, in memory, so that no more is allocated than there is.
        names: what stands for each name (module and attribute) that it may contain.
    """

    def __init__(self, file: io.BytesIO, names: Mapping[tuple[str, str], Any] = _NAMES) -> None:
        super().__init__(file, encoding="latin-1")
        # Cached, because a few bytes suffice to ask for another copy of a long string.
        self._names = {**names, ("_codecs", "encode"): cache(_encoded)}

    def find_class(self, module: str, name: str) -> Any:
        key = re.sub(r"^numpy\._core\.", "numpy.core.", module), name
        if key not in self._names:
            raise NotDataError(f"it names {_shown(f'{module}.{name}')}, which is not data")
        return self._names[key]

    def persistent_load(self, _: Any) -> Any:
        raise NotDataError("it refers to data outside of it")

    def _refuse(self) -> None:
        raise NotDataError("it has an opcode that numbers, strings and arrays do not need")

    def _bytearray(self) -> None:
        # The usual function allocates the stated length before it reads.
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def _build(self) -> None:
        # The usual function sets the attributes of any object.
        state: Any = self.stack.pop()
        target: Any = self.stack[-1]
        if isinstance(target, _Dtype):
            target.build(*state)
        elif isinstance(target, np.ndarray):
            _fill(target, *state)
        else:
            raise NotDataError(f"it sets the state of {_shown(target)}")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_PythonUnpickler.dispatch,
        **dict.fromkeys((opcode[0] for opcode in _REFUSED), _refuse),
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.DICT[0]: _checking_keys(pickle.DICT, slice(None, None, 2)),
        pickle.SETITEM[0]: _checking_keys(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _checking_keys(pickle.SETITEMS, slice(None, None, 2)),
        pickle.BUILD[0]: _build,
    }
