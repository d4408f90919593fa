"""Pickles that would run code, exhaust the memory or crash a careless reader, put together from single opcodes."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODULE = "touched_when_imported"
"""A module whose import leaves a trace, see `write_module`."""


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


def framed(body: bytes, size: int) -> bytes:
    return pickle.FRAME + struct.pack("<Q", size) + body


def dtype(kind: str = "f8", state: bytes | None = None) -> bytes:
    made = call(name("numpy", "dtype"), text(kind), pickle.NEWFALSE, pickle.NEWTRUE)
    usual = tuple_of(number(3), text("<"), *[pickle.NONE] * 3, number(-1), number(-1), number(0))
    return made + (state or usual) + pickle.BUILD


def array(shape: bytes, content: bytes, kind: bytes | None = None, column: bytes = pickle.NEWFALSE) -> bytes:
    """Return an array, without checks of its shape and content."""
    empty = tuple_of(name("numpy", "ndarray"), tuple_of(number(0)), data(b"b"))
    made = name("numpy._core.multiarray", "_reconstruct") + empty + pickle.REDUCE
    return made + tuple_of(number(1), shape, kind or dtype(), column, content) + pickle.BUILD


def statistics(extra: bytes) -> bytes:
    """Return valid statistics in a dict with a further value."""
    mu = array(tuple_of(number(1)), data(bytes(8)))
    sigma = array(tuple_of(number(1), number(1)), data(bytes(8)))
    items = [text("mu"), mu, text("sigma"), sigma, text("x"), extra]
    return whole(pickle.EMPTY_DICT + pickle.MARK + b"".join(items) + pickle.SETITEMS)


def written(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    return pickle.dumps(value, protocol)


def with_buffers() -> bytes:
    """Return an array whose elements are outside of the pickle."""
    return pickle.dumps({"mu": np.zeros(3)}, 5, buffer_callback=lambda _: None)


def persistent() -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return "elsewhere" if value == 1 else None

    buffer = io.BytesIO()
    Pickler(buffer, 4).dump([1])
    return buffer.getvalue()


def recursive_dict() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["x"] = [found]
    return found


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


Make = Callable[[Path], bytes]

RUNNING: dict[str, tuple[Make, str]] = {
    "os.system": (lambda p: whole(call(name("os", "system"), text(f"touch {p}"))), "os.system"),
    "os.system by its real name": (
        lambda p: whole(call(stacked("posix", "system"), text(f"touch {p}"))),
        "posix.system",
    ),
    "subprocess.Popen": (
        lambda p: whole(call(stacked("subprocess", "Popen"), tuple_of(text("touch"), text(str(p))))),
        "subprocess.Popen",
    ),
    "eval": (lambda p: whole(call(name("builtins", "eval"), text(f"open({str(p)!r}, 'w')"))), "builtins.eval"),
    "eval of Python 2": (
        lambda p: whole(call(name("__builtin__", "eval"), text(f"open({str(p)!r}, 'w')")), 2),
        "__builtin__.eval",
    ),
    "exec": (lambda p: whole(call(stacked("builtins", "exec"), text(f"open({str(p)!r}, 'w')"))), "builtins.exec"),
    "open": (lambda p: whole(call(stacked("io", "open"), text(str(p)), text("w"))), "io.open"),
    "__import__": (lambda p: whole(call(name("builtins", "__import__"), text(MODULE))), "builtins.__import__"),
    "a name that is only imported": (lambda p: whole(name(MODULE, "Kind")), f"{MODULE}.Kind"),
    "a name inside statistics": (lambda p: statistics(stacked(MODULE, "Kind")), f"{MODULE}.Kind"),
    "a dotted name": (
        lambda p: whole(call(stacked("pathlib", "Path.touch"), call(name("pathlib", "Path"), text(str(p))))),
        "pathlib.Path.touch",
    ),
    "another loader": (
        lambda p: whole(call(name("pickle", "loads"), data(whole(call(name("os", "system"), text(f"touch {p}")))))),
        "pickle.loads",
    ),
    "INST": (
        lambda p: whole(pickle.MARK + text(f"touch {p}") + pickle.INST + b"os\nsystem\n", 2),
        "INST",
    ),
    "OBJ": (
        lambda p: whole(pickle.MARK + name("io", "FileIO") + text(str(p)) + text("w") + pickle.OBJ, 2),
        "io.FileIO",
    ),
    "NEWOBJ": (lambda p: whole(name(MODULE, "Kind") + pickle.EMPTY_TUPLE + pickle.NEWOBJ), f"{MODULE}.Kind"),
    "BUILD": (
        lambda p: whole(name(MODULE, "Kind") + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.NONE + pickle.BUILD),
        f"{MODULE}.Kind",
    ),
}
"""Pickles of which Python's own loader runs the code, at the latest when it imports a module; and what is named."""

NUMPY_2 = "numpy._core.multiarray"
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "numpy.load": (lambda: whole(call(name("numpy", "load"), text("x.npy"))), "numpy.load"),
    "numpy.fromfile": (lambda: whole(call(name(NUMPY_2, "fromfile"), text("x"))), f"{NUMPY_2}.fromfile"),
    "numpy.memmap": (lambda: whole(call(name("numpy", "memmap"), text("x"))), "numpy.memmap"),
    "numpy.void": (lambda: whole(call(name("numpy", "void"), number(2**30))), "numpy.void"),
    "a call of numpy.ndarray": (
        lambda: whole(call(name("numpy", "ndarray"), tuple_of(number(2**30)))),
        "calls numpy.ndarray",
    ),
    "a dotted name in NumPy": (
        lambda: whole(call(stacked("numpy.core.multiarray", "os.system"), text("true"))),
        "numpy.core.multiarray.os.system",
    ),
    "an attribute of a known function": (
        lambda: whole(stacked("numpy.core.multiarray", "_reconstruct.__globals__")),
        "_reconstruct.__globals__",
    ),
    "copyreg": (
        lambda: whole(call(name("copyreg", "_reconstructor"), name("builtins", "object"))),
        "copyreg._reconstructor",
    ),
    "a getattr": (lambda: whole(call(name("builtins", "getattr"), name("numpy", "dtype"))), "builtins.getattr"),
    "bytes of any size": (lambda: whole(call(name("__builtin__", "bytes"), number(2**30)), 2), "damaged"),
    "a codec": (lambda: whole(call(name("_codecs", "encode"), text("x"), text("rot13"))), "rot13"),
    "a lookup of codecs": (lambda: whole(call(name("_codecs", "lookup"), text("x"))), "_codecs.lookup"),
    "a name with control characters": (lambda: whole(stacked("a\x1b[2J", "b\n" * 500)), "a?[2J.b?"),
    "a name that is a number": (lambda: whole(text("numpy") + number(1) + pickle.STACK_GLOBAL), "not a string"),
    "a name cut in two": (lambda: whole(stacked("numpy.core", "multiarray _reconstruct")), "numpy.core.multiarray"),
    "a tensor": (
        lambda: whole(call(name("torch._utils", "_rebuild_tensor_v2"), number(0))),
        "torch._utils._rebuild_tensor_v2",
    ),
    "a storage": (lambda: whole(name("torch", "FloatStorage")), "torch.FloatStorage"),
    "NEWOBJ_EX": (
        lambda: whole(text("x") + pickle.EMPTY_TUPLE + pickle.EMPTY_DICT + pickle.NEWOBJ_EX),
        "NEWOBJ_EX",
    ),
    "NEWOBJ of a known name": (
        lambda: whole(name("numpy", "dtype") + tuple_of(text("O")) + pickle.NEWOBJ),
        "NEWOBJ",
    ),
    "EXT1": (lambda: whole(pickle.EXT1 + b"\x01"), "EXT1"),
    "EXT2": (lambda: whole(pickle.EXT2 + b"\x01\x01"), "EXT2"),
    "EXT4": (lambda: whole(pickle.EXT4 + b"\x01\x01\x01\x01"), "EXT4"),
    "PERSID": (lambda: whole(pickle.PERSID + b"1\n", 1), "PERSID"),
    "BINPERSID": (persistent, "BINPERSID"),
    "NEXT_BUFFER": (with_buffers, "NEXT_BUFFER"),
    "READONLY_BUFFER": (lambda: whole(pickle.READONLY_BUFFER, 5), "READONLY_BUFFER"),
    "a set": (lambda: written({1, 2}), "EMPTY_SET"),
    "POP": (lambda: whole(pickle.NONE + pickle.NONE + pickle.POP), "POP"),
    "BUILD of a dict": (
        lambda: whole(pickle.EMPTY_DICT + written({"__setstate__": 1}, 0)[:-1] + pickle.BUILD),
        "sets the state of an object of type dict",
    ),
    "BUILD of a list": (lambda: whole(pickle.EMPTY_LIST + pickle.EMPTY_TUPLE + pickle.BUILD), "type list"),
    "BUILD of a dtype with a dict": (
        lambda: whole(call(name("numpy", "dtype"), text("f8")) + pickle.EMPTY_DICT + pickle.BUILD),
        "not a tuple",
    ),
    "items of a tuple": (
        lambda: whole(pickle.EMPTY_TUPLE + text("a") + number(1) + pickle.SETITEM),
        "type tuple",
    ),
    "an array of objects": (lambda: written(np.array([{}, None], dtype=object)), "Python objects"),
    "a structured array": (lambda: written(np.zeros(2, [("a", "f8")])), "V8"),
    "dates": (lambda: written(np.zeros(2, "M8[s]")), "M8"),
    "a dtype with metadata": (lambda: written(np.zeros(2, np.dtype("f8", metadata={"a": 1}))), "metadata"),
    "a dtype with fields": (
        lambda: whole(
            dtype(
                "f8",
                tuple_of(number(3), text("<"), pickle.NONE, tuple_of(text("a")), pickle.EMPTY_DICT, *[number(0)] * 3),
            )
        ),
        "fields",
    ),
    "a dtype of a file": (lambda: whole(call(name("numpy", "dtype"), text("(2,)O"))), "dtype (2,)O"),
    "an array of a subclass": (
        lambda: written(np.ma.masked_array([1.0], [False])),
        "numpy.ma",
    ),
    "a shape beyond memory": (lambda: whole(array(tuple_of(number(2**30), number(2**30)), data(bytes(8)))), "8 bytes"),
    "a shape too large for its bytes": (lambda: whole(array(tuple_of(number(3)), data(bytes(16)))), "has 16 bytes"),
    "a shape too small for its bytes": (lambda: whole(array(tuple_of(number(1)), data(bytes(16)))), "has 16 bytes"),
    "a shape below zero": (lambda: whole(array(tuple_of(number(-1), number(-2)), data(bytes(16)))), "(-1, -2)"),
    "a shape of booleans": (lambda: whole(array(tuple_of(pickle.NEWTRUE), data(bytes(8)))), "no shape"),
    "a shape that is a list": (lambda: whole(array(pickle.EMPTY_LIST, data(bytes(8)))), "no shape"),
    "too many axes": (lambda: whole(array(tuple_of(*[number(1)] * 33), data(bytes(8)))), "no shape"),
    "elements that are numbers": (lambda: whole(array(tuple_of(number(1)), number(0))), "type int"),
    "an array without a dtype": (
        lambda: whole(array(tuple_of(number(1)), data(bytes(8)), call(name("numpy", "dtype"), text("f8")))),
        "no dtype",
    ),
    "an array of another array's dtype": (
        lambda: whole(array(tuple_of(number(1)), data(bytes(8)), array(tuple_of(number(1)), data(bytes(8))))),
        "no dtype",
    ),
    "an array built twice": (
        lambda: whole(
            array(tuple_of(number(1)), data(bytes(8)))
            + tuple_of(number(1), tuple_of(number(1)), dtype(), pickle.NEWFALSE, data(bytes(8)))
            + pickle.BUILD
        ),
        "built twice",
    ),
    "an array in no order": (
        lambda: whole(call(name("numpy._core.numeric", "_frombuffer"), data(b""), dtype(), tuple_of(), text("K"))),
        "the order K",
    ),
    "a number of many bytes": (
        lambda: whole(call(name(NUMPY_2, "scalar"), dtype("S5000"), data(bytes(5000)))),
        "has 5000 bytes",
    ),
    "a memo beyond memory": (
        lambda: whole(pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 2**31)),
        "number 2147483648",
    ),
    "a memo below zero": (lambda: whole(pickle.NONE + pickle.PUT + b"-1\n", 1), "number -1"),
    "an empty memo": (lambda: whole(pickle.BINGET + b"\x07"), "number 7"),
    "a tuple as a key": (lambda: written({(1, 2): 3}), "key of type tuple"),
    "a key without a value": (
        lambda: whole(pickle.EMPTY_DICT + pickle.MARK + text("a") + pickle.SETITEMS),
        "no value",
    ),
    "nothing on the stack": (lambda: whole(pickle.APPEND), "stack"),
    "no mark": (lambda: whole(pickle.TUPLE), "mark"),
    "an item below a mark": (lambda: whole(pickle.NONE + pickle.MARK + pickle.TUPLE1), "stack"),
    "several objects": (lambda: whole(pickle.NONE + pickle.NONE), "ends early"),
    "nothing but its beginning": (lambda: pickle.PROTO + b"\x04", "it ends at byte 2"),
    "truncated": (lambda: written({"mu": np.zeros(400)})[:900], "ends"),
    "without an end": (lambda: written({"mu": 1}, 2)[:-1], "it ends"),
    "other data behind it": (lambda: written({"mu": 1}) + b"x", "1 bytes follow"),
    "another pickle behind it": (lambda: written({"mu": 1}) + written({}), "follow its end"),
    "a byte that is no opcode": (lambda: whole(b"\xff"), "no opcode"),
    "a newer protocol": (lambda: whole(pickle.NONE, 9), "protocol is 9"),
    "a frame beyond the file": (lambda: whole(framed(pickle.NONE, 2**60)), "inside a frame"),
    "a frame that ends in an opcode": (lambda: whole(framed(text("a long string"), 9)), "middle of an opcode"),
    "a frame in a frame": (lambda: whole(framed(framed(pickle.NONE, 1), 11)), "in another one"),
    "bytes beyond memory": (
        lambda: whole(pickle.BINBYTES8 + struct.pack("<Q", 2**62) + bytes(8)),
        f"needs {2**62} bytes",
    ),
    "a string beyond memory": (
        lambda: whole(pickle.BINUNICODE8 + struct.pack("<Q", 2**63) + bytes(8)),
        f"needs {2**63} bytes",
    ),
    "a number beyond memory": (
        lambda: whole(pickle.LONG4 + struct.pack("<i", 2**31 - 1) + bytes(8)),
        f"needs {2**31 - 1} bytes",
    ),
    "a length below zero": (lambda: whole(pickle.LONG4 + struct.pack("<i", -1)), "damaged"),
    "a string without quotes": (lambda: whole(pickle.STRING + b"abc\n", 1), "quotes"),
    "a call of a string": (lambda: whole(call(text("os.system"), text("x"))), "os.system"),
    "a call of an array": (
        lambda: whole(call(array(tuple_of(number(1)), data(bytes(8))), text("x"))),
        "PickledArray",
    ),
    "a call without arguments": (lambda: whole(name("numpy", "dtype") + pickle.EMPTY_LIST + pickle.REDUCE), "tuple"),
    "a call with too many arguments": (
        lambda: whole(call(name("collections", "OrderedDict"), pickle.EMPTY_LIST)),
        "damaged",
    ),
    "lists inside each other": (
        lambda: whole(pickle.EMPTY_LIST * 100_000 + pickle.APPEND * 99_999),
        "nested too deeply",
    ),
    "tuples inside each other": (lambda: whole(pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100_000), "nested too deeply"),
    "lists inside each other in statistics": (
        lambda: statistics(pickle.EMPTY_LIST * 100_000 + pickle.APPEND * 99_999),
        "nested too deeply",
    ),
    "a list that contains itself": (lambda: written(recursive_list()), "nested too deeply"),
    "a dict that contains itself": (lambda: written(recursive_dict()), "nested too deeply"),
    "a billion billion lists": (lambda: written(laughs()), "nested too deeply"),
}
"""Other pickles that are not read, and a part of the message."""
