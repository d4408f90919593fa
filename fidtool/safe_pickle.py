"""Pickles read without running anything that they name: numbers, strings and NumPy arrays in lists, tuples and dicts.

A pickle is a program, and Python's own loader imports and calls whatever it names. Here, a name stands for one of a few
functions, which check their arguments, and opcodes that make other objects are refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_TIMES_FILE, _LEAST_ROOM = 4, 1 << 20
"""Largest size of all arrays and bytes: that of the file, multiplied, and some bytes for small files."""
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
    reader = CheckedReader(handle)
    value = SafeUnpickler(reader).load()
    if reader.left:
        raise ValueError(f"{reader.left} bytes follow its end")
    return value


class CheckedReader:
    """Reads a file without requesting more bytes than it has, because they would be allocated before they are read."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.left = handle.seek(0, 2)
        handle.seek(0)

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise EOFError(f"it ends early: it needs {count} bytes, and {self.left} are left")
        self.left -= count
        return self._handle.read(count)

    def readline(self) -> bytes:
        line = self._handle.readline()
        self.left -= len(line)
        return line


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
        if version != 3 or len(parts) != 6 or any(each is not None for each in parts[:3]):
            raise NotDataError(f"it has a dtype {self.dtype} with fields or metadata")
        self.dtype = self.dtype.newbyteorder(order)


def _new_array(kind: Any, *_: Any) -> NDArray[Any]:
    # The other arguments are those of an empty array; BUILD supplies the content.
    if kind != _NDARRAY:
        raise NotDataError(f"it has an array of the kind {_shown(kind)}")
    return np.empty(0)


def _array(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple) or any(type(side) is not int for side in shape):
        raise ValueError("an array has no dtype or no shape")
    content = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 had no other bytes
    if not isinstance(content, (bytes, bytearray)) or order not in ("C", "F") or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} has {_shown(data)} for its elements, in order {_shown(order)}")
    if prod(shape) * dtype.dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} and dtype {dtype.dtype} has {len(content)} bytes")
    flat = np.frombuffer(content, dtype.dtype) if content else np.empty(0, dtype.dtype)
    return flat.reshape(shape, order=order)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes are encoded in {_shown(encoding)}")
    return text.encode("latin-1")


_NDARRAY = "numpy.ndarray"
"""Stands for the class, which must not be called."""
_NAMES: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: _array(data, dtype, (), "C").item(),
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encoded,
    ("__builtin__", "bytes"): lambda: b"",
    ("collections", "OrderedDict"): lambda: {},
}
"""What stands for each name that a pickle may contain, as NumPy 1 writes it. Nothing is imported by its name."""


# Not the unpickler in C, which allocates a memo as large as the largest index in it.
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
        file: its bytes; ``read`` must check lengths, which the pickle states.
        names: what stands for each name (module and attribute) that it may contain.
    """

    def __init__(self, file: Any, names: Mapping[tuple[str, str], Any] = _NAMES) -> None:
        super().__init__(file, encoding="latin-1")
        self._names = names
        self._room = _TIMES_FILE * file.left + _LEAST_ROOM

    def find_class(self, module: str, name: str) -> Any:
        key = re.sub(r"^numpy\._core\.", "numpy.core.", module), name
        if key not in self._names:
            raise NotDataError(f"it names {_shown(f'{module}.{name}')}, which is not data")
        return self._names[key]

    def persistent_load(self, _: Any) -> Any:
        raise NotDataError("it refers to data outside of it")

    def _count(self) -> None:
        """Counts the bytes of the latest object: a few bytes suffice to refer to a large one and copy it."""
        made = self.stack[-1]
        self._room -= made.nbytes if isinstance(made, np.ndarray) else len(made) if isinstance(made, bytes) else 0
        if self._room < 0:
            raise ValueError("its data need more memory than a file of this size can have")

    def _reduce(self) -> None:
        _PythonUnpickler.dispatch[pickle.REDUCE[0]](self)
        self._count()

    def _refuse(self) -> None:
        raise NotDataError("it has an opcode that numbers, strings and arrays do not need")

    def _bytearray(self) -> None:
        # The usual function allocates the stated length before it reads.
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    def _build(self) -> None:
        # The usual function sets the attributes of any object.
        state: Any = self.stack.pop()
        target: Any = self.stack[-1]
        if not isinstance(target, (_Dtype, np.ndarray)):
            raise NotDataError(f"it sets the state of {_shown(target)}")
        if isinstance(target, _Dtype):
            target.build(*state)
        else:
            _, shape, dtype, by_column, data = state
            made = _array(data, dtype, shape, "F" if by_column else "C")
            state = (1, made.shape, made.dtype, bool(by_column), made.tobytes("A"))
            target.__setstate__(state)
            self._count()

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_PythonUnpickler.dispatch,
        **dict.fromkeys((opcode[0] for opcode in _REFUSED), _refuse),
        pickle.FRAME[0]: lambda self: self.read(8),  # a hint for buffers; without frames, every read is checked
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.DICT[0]: _checking_keys(pickle.DICT, slice(None, None, 2)),
        pickle.SETITEM[0]: _checking_keys(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _checking_keys(pickle.SETITEMS, slice(None, None, 2)),
        pickle.BUILD[0]: _build,
        pickle.REDUCE[0]: _reduce,
    }
