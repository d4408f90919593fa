"""Pickles that would run code, exhaust the memory or crash a careless reader, put together from
single opcodes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

MODULE = "touched_when_imported"
"""A module whose import leaves a trace, see `write_module`."""
CORE = "numpy._core" if find_spec("numpy._core") else "numpy.core"
"""The package of the functions in pickles of arrays, for the installed NumPy."""


def write_module(folder: Path, trace: Path) -> None:
    (folder / f"{MODULE}.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Kind: pass\n")


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()


def data(value: bytes) -> bytes:
    return pickle.BINBYTES + struct.pack("<I", len(value)) + value


def name(module: str, attribute: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def stacked(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + pickle.STACK_GLOBAL


def tuple_of(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + pickle.REDUCE


def number(value: int) -> bytes:
    return pickle.BININT + struct.pack("<i", value)


def whole(body: bytes, protocol: int = 4) -> bytes:
    return pickle.PROTO + bytes([protocol]) + body + pickle.STOP


def dtype(kind: str = "f8", state: bytes | None = None) -> bytes:
    made = call(name("numpy", "dtype"), text(kind), pickle.NEWFALSE, pickle.NEWTRUE)
    usual = tuple_of(number(3), text("<"), *[pickle.NONE] * 3, number(-1), number(-1), number(0))
    return made + (state or usual) + pickle.BUILD


def array(shape: bytes, content: bytes) -> bytes:
    """Return an array, without checks of its shape and content."""
    empty = tuple_of(name("numpy", "ndarray"), tuple_of(number(0)), data(b"b"))
    made = name(f"{CORE}.multiarray", "_reconstruct") + empty + pickle.REDUCE
    return made + tuple_of(number(1), shape, dtype(), pickle.NEWFALSE, content) + pickle.BUILD


def statistics(extra: bytes) -> bytes:
    """Return valid statistics in a dict with a further value."""
    mu = array(tuple_of(number(1)), data(bytes(8)))
    sigma = array(tuple_of(number(1), number(1)), data(bytes(8)))
    items = [text("mu"), mu, text("sigma"), sigma, text("x"), extra]
    return whole(pickle.EMPTY_DICT + pickle.MARK + b"".join(items) + pickle.SETITEMS)


def written(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    return pickle.dumps(value, protocol)


def persistent() -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return "elsewhere" if value == 1 else None

    buffer = io.BytesIO()
    Pickler(buffer, 4).dump([1])
    return buffer.getvalue()


def recursive_list() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def laughs() -> Any:
    """Return lists inside each other, 2 ** 60 in all, but with few objects."""
    found: list[Any] = []
    for _ in range(60):
        found = [found, found]
    return found


def view_of_an_array() -> bytes:
    """Return a list of an array and of another one that is made of its bytes."""
    first = array(tuple_of(number(2)), data(bytes(16))) + pickle.BINPUT + b"\0"
    second = call(
        name(f"{CORE}.numeric", "_frombuffer"),
        pickle.BINGET + b"\0",
        dtype(),
        tuple_of(number(2)),
        text("C"),
    )
    return whole(pickle.EMPTY_LIST + pickle.MARK + first + second + pickle.APPENDS)


RUNNING: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda p: whole(call(name("os", "system"), text(f"touch {p}"))),
    "subprocess.Popen": lambda p: whole(
        call(stacked("subprocess", "Popen"), tuple_of(text("touch"), text(str(p))))
    ),
    "eval": lambda p: whole(call(name("builtins", "eval"), text(f"open({str(p)!r}, 'w')"))),
    "open": lambda p: whole(call(stacked("io", "open"), text(str(p)), text("w"))),
    "a name inside statistics": lambda p: statistics(stacked(MODULE, "Kind")),
    "a dotted name": lambda p: whole(
        call(stacked("pathlib", "Path.touch"), call(name("pathlib", "Path"), text(str(p))))
    ),
    "another loader": lambda p: whole(
        call(name("pickle", "loads"), data(whole(call(name("os", "system"), text(f"touch {p}")))))
    ),
    "INST": lambda p: whole(pickle.MARK + text(f"touch {p}") + pickle.INST + b"os\nsystem\n", 2),
    "OBJ": lambda p: whole(
        pickle.MARK + name("io", "FileIO") + text(str(p)) + text("w") + pickle.OBJ, 2
    ),
    "NEWOBJ": lambda p: whole(name(MODULE, "Kind") + pickle.EMPTY_TUPLE + pickle.NEWOBJ),
    "BUILD": lambda p: whole(
        name(MODULE, "Kind") + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.NONE + pickle.BUILD
    ),
}
"""Pickles of which Python's own loader runs the code, at the latest when it imports a module."""

NOT_DATA: dict[str, Callable[[], bytes]] = {
    "numpy.load": lambda: whole(call(name("numpy", "load"), text("x.npy"))),
    "numpy.void": lambda: whole(call(name("numpy", "void"), number(2**30))),
    "a dotted name in NumPy": lambda: whole(
        call(stacked("numpy.core.multiarray", "os.system"), text("true"))
    ),
    "an attribute of a known function": lambda: whole(
        stacked("numpy.core.multiarray", "_reconstruct.__globals__")
    ),
    "copyreg": lambda: whole(call(name("copyreg", "_reconstructor"), name("builtins", "object"))),
    "a getattr": lambda: whole(call(name("builtins", "getattr"), name("numpy", "dtype"))),
    "a lookup of codecs": lambda: whole(call(name("_codecs", "lookup"), text("x"))),
    "a name with control characters": lambda: whole(stacked("a\x1b[2J", "b\n" * 500)),
    "a name cut in two": lambda: whole(stacked("numpy.core", "multiarray _reconstruct")),
    "a tensor": lambda: whole(call(name("torch._utils", "_rebuild_tensor_v2"), number(0))),
    "a storage": lambda: whole(name("torch", "FloatStorage")),
    "NEWOBJ_EX": lambda: whole(
        text("x") + pickle.EMPTY_TUPLE + pickle.EMPTY_DICT + pickle.NEWOBJ_EX
    ),
    "NEWOBJ of a known name": lambda: whole(
        name("numpy", "dtype") + tuple_of(text("O")) + pickle.NEWOBJ
    ),
    "EXT1": lambda: whole(pickle.EXT1 + b"\x01"),
    "PERSID": lambda: whole(pickle.PERSID + b"1\n", 1),
    "BINPERSID": persistent,
    "READONLY_BUFFER": lambda: whole(pickle.READONLY_BUFFER, 5),
    "a set": lambda: written({1, 2}),
    "BUILD of a dict": lambda: whole(
        pickle.EMPTY_DICT + written({"__setstate__": 1}, 0)[:-1] + pickle.BUILD
    ),
    "an array of objects": lambda: written(np.array([{}, None], dtype=object)),
    "a structured array": lambda: written(np.zeros(2, [("a", "f8")])),
    "a dtype of a file": lambda: whole(call(name("numpy", "dtype"), text("(2,)O"))),
    "an array of a subclass": lambda: written(np.ma.masked_array([1.0], [False])),
    "a tuple as a key": lambda: written({(1, 2): 3}),
    "tuples inside each other as a key": lambda: whole(
        pickle.EMPTY_DICT
        + pickle.EMPTY_TUPLE
        + pickle.TUPLE1 * 500_000
        + pickle.NONE
        + pickle.SETITEM
    ),
    "a billion billion tuples as a key": lambda: whole(
        pickle.EMPTY_DICT
        + pickle.MARK
        + pickle.EMPTY_TUPLE
        + (pickle.DUP + pickle.TUPLE2) * 60
        + pickle.NONE
        + pickle.SETITEMS
    ),
    "BUILD of a known function": lambda: whole(
        name("_codecs", "encode")
        + pickle.NONE
        + written({"__defaults__": (1,)}, 0)[:-1]
        + pickle.TUPLE2
        + pickle.BUILD
    ),
}
"""Pickles of something that is not data."""

DAMAGED: dict[str, Callable[[], bytes]] = {
    "a call of numpy.ndarray": lambda: whole(
        call(name("numpy", "ndarray"), tuple_of(number(2**30)))
    ),
    "bytes of any size": lambda: whole(call(name("__builtin__", "bytes"), number(2**30)), 2),
    "a codec of tuples": lambda: whole(
        call(
            name("_codecs", "encode"),
            text("x"),
            pickle.EMPTY_TUPLE + (pickle.DUP + pickle.TUPLE2) * 60,
        )
    ),
    "a codec": lambda: whole(call(name("_codecs", "encode"), text("x"), text("rot13"))),
    "BUILD of a dtype with a dict": lambda: whole(
        call(name("numpy", "dtype"), text("f8")) + pickle.EMPTY_DICT + pickle.BUILD
    ),
    "items of a tuple": lambda: whole(pickle.EMPTY_TUPLE + text("a") + number(1) + pickle.SETITEM),
    "a shape beyond memory": lambda: whole(
        array(tuple_of(number(2**30), number(2**30)), data(bytes(8)))
    ),
    "a shape too large for its bytes": lambda: whole(array(tuple_of(number(3)), data(bytes(16)))),
    "a shape below zero": lambda: whole(array(tuple_of(number(-1), number(-2)), data(bytes(16)))),
    "an array in no order": lambda: whole(
        call(name(f"{CORE}.numeric", "_frombuffer"), data(b""), dtype(), tuple_of(), text("K"))
    ),
    "a memo below zero": lambda: whole(pickle.NONE + pickle.PUT + b"-1\n", 1),
    "a key without a value": lambda: whole(
        pickle.EMPTY_DICT + pickle.MARK + text("a") + pickle.SETITEMS
    ),
    "nothing on the stack": lambda: whole(pickle.APPEND),
    "truncated": lambda: written({"mu": np.zeros(400)})[:900],
    "other data behind it": lambda: written({"mu": 1}) + b"x",
    "a byte that is no opcode": lambda: whole(b"\xff"),
    "a newer protocol": lambda: whole(pickle.NONE, 9),
    "bytes beyond memory": lambda: whole(pickle.BINBYTES8 + struct.pack("<Q", 2**62) + bytes(8)),
    "a number beyond memory": lambda: whole(pickle.LONG4 + struct.pack("<i", 2**31 - 1) + bytes(8)),
    "a string without quotes": lambda: whole(pickle.STRING + b"abc\n", 1),
    "a call of a string": lambda: whole(call(text("os.system"), text("x"))),
    "a call without arguments": lambda: whole(
        name("numpy", "dtype") + pickle.EMPTY_LIST + pickle.REDUCE
    ),
    "a call with too many arguments": lambda: whole(
        call(name("collections", "OrderedDict"), pickle.EMPTY_LIST)
    ),
}
"""Pickles that are malformed, or would exhaust the memory."""

NESTED: dict[str, Callable[[], bytes]] = {
    "lists inside each other": lambda: whole(pickle.EMPTY_LIST * 100_000 + pickle.APPEND * 99_999),
    "a list that contains itself": lambda: written(recursive_list()),
    "a billion billion lists": lambda: written(laughs()),
}
"""Pickles of plain data over which a careless reader would recurse."""
