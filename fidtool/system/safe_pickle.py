"""Pickles read without running anything that they name: numbers, strings and NumPy arrays in lists,
tuples and dicts.

A pickle is a program, and Python's own loader imports and calls whatever it names. Here, a name
stands for one of a few functions, and opcodes that make other objects are refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# What NumPy writes for the dtypes of numbers, booleans and strings.
_DTYPE = re.compile(r"b1|[iufc][0-9]{1,2}|[SU][1-9][0-9]{0,5}")
_BEGINNING = re.compile(rb"\x80[\x00-\x0f]|\(d[pSV]|\}[q(]|ccollections\nOrderedDict\n", re.DOTALL)


class NotDataError(Exception):
    """The pickle contains something that is not data; the message says what."""


def begins_like_pickle(head: bytes) -> bool:
    """Return whether a file with these first bytes is a pickle: of any object, or before protocol
    2 of a dict.
    """
    return _BEGINNING.match(head) is not None


def load_data(handle: IO[bytes]) -> Any:
    """Read the pickle that a file consists of, of any protocol, also one written by Python 2.

    Raises:
        NotDataError: if it contains anything else than numbers, strings, None and arrays in lists,
            tuples and dicts.
        Exception: of any kind, if it is damaged or followed by other data.
    """
    file = io.BytesIO(handle.read())
    value = SafeUnpickler(file, _NAMES).load()
    if left := len(file.read()):
        raise ValueError(f"{left} bytes follow its end")
    return value


class _Dtype:
    """A dtype in a pickle, whose byte order is stated after its name."""

    def __init__(self, name: str, *_: object) -> None:
        if not _DTYPE.fullmatch(name):
            raise NotDataError(
                f"it has an array of dtype {name!r:.80}, which is neither a number nor a string"
            )
        self.dtype = np.dtype(name)


def _rebuild_array(data: Any, dtype: _Dtype, shape: Any = (), order: Any = "C") -> NDArray[Any]:
    """Return an array that shares the memory of its content."""
    # Python 2 had no other bytes.
    content = data.encode("latin-1") if isinstance(data, str) else data
    return np.ndarray(shape, dtype.dtype, memoryview(content), order=order)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError("it has bytes in an encoding other than latin1")
    return text.encode(encoding)


# What stands for each name that a pickle may contain, as NumPy 1 writes it. Nothing is imported by
# its name.
_NAMES: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: np.empty(0),
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: _rebuild_array(data, dtype).item(),
    # A copy, because the memory may be that of another array, which is freed if that array gets
    # other content.
    ("numpy.core.numeric", "_frombuffer"): lambda *given: np.copy(_rebuild_array(*given)),
    ("numpy", "ndarray"): None,  # an argument of the first
    ("numpy", "dtype"): _Dtype,
    ("__builtin__", "bytes"): lambda: b"",
    ("collections", "OrderedDict"): lambda: {},
}

# Not the unpickler in C, which takes any key of a dict: the hash of nested tuples takes forever or
# ends the process.
# Opcodes that make objects, and that data do not need.
_PythonUnpickler: Any = pickle._Unpickler
_REFUSED = (
    pickle.INST,
    pickle.OBJ,
    pickle.NEWOBJ,
    pickle.NEWOBJ_EX,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
    pickle.EMPTY_SET,
    pickle.ADDITEMS,
    pickle.FROZENSET,
    pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)


def _check_keys(opcode: bytes, keys: slice) -> Callable[[Any], None]:
    """Return the usual function of an opcode that fills a dict, after a check of these keys on the
    stack.
    """

    def load(self: Any) -> None:
        for key in self.stack[keys]:
            if not isinstance(key, (str, bytes, int, float, type(None))):
                raise NotDataError(f"it has a dict with a key of type {type(key).__name__}")
        _PythonUnpickler.dispatch[opcode[0]](self)

    return load


class SafeUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Reads a pickle, and calls only known functions.

    Args:
        file: its bytes.
        names: what stands for each name (module and attribute) that it may contain.
    """

    def __init__(self, file: IO[bytes], names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file, encoding="latin-1")
        self._names = {**names, ("_codecs", "encode"): _encode}

    def find_class(self, module: str, name: str) -> Any:
        key = module.replace("numpy._core.", "numpy.core."), name
        if key not in self._names:
            raise NotDataError(f"it names {f'{module}.{name}'!r:.80}, which is not data")
        return self._names[key]

    def persistent_load(self, _: Any) -> Any:
        raise NotDataError("it refers to data outside of it")

    def _refuse(self) -> None:
        raise NotDataError("it has an opcode that numbers, strings and arrays do not need")

    def _build(self) -> None:
        # The usual function sets the attributes of any object.
        state: Any = self.stack.pop()
        target: Any = self.stack[-1]
        if isinstance(target, _Dtype):
            target.dtype = target.dtype.newbyteorder(state[1])
        elif isinstance(target, np.ndarray):
            _, shape, dtype, by_column, data = state
            made = _rebuild_array(data, dtype, shape, "F" if by_column else "C")
            checked: Any = 1, made.shape, made.dtype, bool(by_column), made.tobytes("A")
            target.__setstate__(checked)
        else:
            raise NotDataError(f"it sets the state of an object of type {type(target).__name__}")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_PythonUnpickler.dispatch,
        **dict.fromkeys(b"".join(_REFUSED), _refuse),
        pickle.DICT[0]: _check_keys(pickle.DICT, slice(None, None, 2)),
        pickle.SETITEM[0]: _check_keys(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _check_keys(pickle.SETITEMS, slice(None, None, 2)),
        pickle.BUILD[0]: _build,
    }
