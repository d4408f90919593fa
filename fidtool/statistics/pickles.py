"""Pickles of arrays, numbers and strings in lists, tuples and dicts, read without running anything that they name.

A pickle is a program for a stack machine, and Python's own loader imports and calls whatever it names. `read_pickle`
has a machine of its own. It knows the few names with which NumPy pickles its arrays, for which
`fidtool.statistics.pickled_arrays` has functions, and refuses every other name and every opcode that makes objects.
"""

from __future__ import annotations

import codecs
import pickletools
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from fidtool.errors import FidtoolError, InputError
from fidtool.sources.contents import StoreError, message_of
from fidtool.statistics.pickled_arrays import FUNCTIONS, KNOWN, DamagedError, Extent, ForeignError, Name, build, shown

_LONG = 4096
"""Bytes and strings longer than this stay in the file."""
_MOST_STEPS = 1_000_000
"""Largest number of opcodes. Statistics take a few thousand."""
_DEEPEST = 32
"""Largest number of containers inside each other."""
_NEWEST = 5
"""The newest protocol."""
_OPCODES = {each.code.encode("latin-1"): each for each in pickletools.opcodes}
_BEGINNING = re.compile(rb"\x80[\x00-\x0f]|\(d[pSV]|\}[q(]|ccollections\nOrderedDict\n", re.DOTALL)


def begins_like_pickle(head: bytes) -> bool:
    """Returns whether a file with these first bytes is a pickle: of any object, or before protocol 2 of a dict."""
    return _BEGINNING.match(head) is not None


def read_pickle(path: str, handle: BinaryIO) -> Any:
    """Reads the data in a pickle of any protocol, also one written by Python 2.

    Args:
        path: path of the file, for messages.
        handle: the file.

    Returns:
        Numbers, strings, bytes and None in lists, tuples and dicts. An array is a
        `fidtool.statistics.pickled_arrays.PickledArray`. Strings and bytes of more than 4096 bytes were not read and
        are an `Extent`.

    Raises:
        InputError: if the pickle contains anything else, is damaged or is followed by other data.
    """
    try:
        value = _Machine(handle).run()
        _check_depth(value)
        return value
    except ForeignError as error:
        raise InputError(
            f"{path} is a pickle and {error}: objects in pickles are never loaded, because loading them can run code",
            "write mu and sigma as float64 arrays with numpy.savez",
        ) from None
    except (FidtoolError, StoreError, OSError, MemoryError):
        raise
    except Exception as error:  # invalid arguments raise many kinds of exceptions
        raise InputError(f"{path} is a damaged pickle: {message_of(error)}", "copy or create it again") from None


def _check_depth(value: Any) -> None:
    """Refuses data that are nested too deeply or contain themselves."""
    level = [value]
    for _ in range(_DEEPEST):
        inside = (child for each in level for child in _children(each))
        # A container counts once a level: a few bytes suffice to refer to one a billion times.
        level = list({id(child): child for child in inside if isinstance(child, (list, tuple, dict))}.values())
        if not level:
            return
    raise DamagedError("its data are nested too deeply")


def _children(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ())


class _Reader:
    """Reads a file without requesting more bytes than it has.

    A pickle states lengths, and the memory for so many bytes would be allocated before they are read.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.size = handle.seek(0, 2)
        self.position = handle.seek(0)

    def read(self, count: int) -> bytes:
        self._require(count)
        data = self._handle.read(count)
        self.position += len(data)
        return data

    def readline(self) -> bytes:
        data = self._handle.readline()
        self.position += len(data)
        return data

    def skip(self, count: int) -> None:
        self._require(count)
        self.position = self._handle.seek(self.position + count)

    def _require(self, count: int) -> None:
        if not 0 <= count <= self.size - self.position:
            raise DamagedError(f"it ends at byte {self.size}, and needs {count} bytes from byte {self.position} on")


class _Machine:
    """The stack machine.

    Args:
        handle: the file.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self._file = _Reader(handle)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._steps = 0
        self._frame_end = 0

    def run(self) -> Any:
        """Returns the object that the pickle describes."""
        for self._steps in range(1, _MOST_STEPS + 1):
            opcode = _OPCODES.get(self._file.read(1))
            if opcode is None:
                raise DamagedError(f"there is no opcode at byte {self._file.position - 1}")
            if opcode.name == "STOP":
                return self._result()
            self._step(opcode)
            if self._frame_end and self._file.position >= self._frame_end:
                if self._file.position > self._frame_end:
                    raise DamagedError("a frame ends in the middle of an opcode")
                self._frame_end = 0
        raise DamagedError(f"it has more than {_MOST_STEPS} opcodes")

    def _step(self, opcode: pickletools.OpcodeInfo) -> None:
        name, file = opcode.name, cast(Any, self._file)
        if name in _CONSTANTS:
            self._push(_CONSTANTS[name]())
        elif name in _SIZED:
            self._push_sized(*_SIZED[name])
        elif name == "STRING":
            self._push_quoted()
        elif name in _WORK:
            _WORK[name](self, opcode.arg.reader(file) if opcode.arg else None)
        else:
            raise ForeignError(f"it has the opcode {name}, which numbers, strings and arrays do not need")

    def _result(self) -> Any:
        if len(self._stack) != 1 or self._marks:
            raise DamagedError("it ends early")
        if rest := self._file.size - self._file.position:
            raise DamagedError(f"{rest} bytes follow its end")
        return self._stack[0]

    # The stack.

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise DamagedError("its stack is empty")
        return self._stack.pop()

    def _pop_marked(self) -> list[Any]:
        """Pops everything above the last mark."""
        if not self._marks:
            raise DamagedError("its stack has no mark")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _mark(self, _: None) -> None:
        self._marks.append(len(self._stack))

    # Bytes and strings.

    def _push_sized(self, width: int, encoding: str) -> None:
        """Pushes bytes, or a string if there is an encoding, of a stated length; if they are long, their position."""
        size = int.from_bytes(self._file.read(width), "little")
        if size > _LONG:
            self._push(Extent(self._file.position, size, encoding == "utf-8"))
            self._file.skip(size)
            return
        data = self._file.read(size)
        self._push(data.decode(encoding, "surrogatepass" if encoding == "utf-8" else "strict") if encoding else data)

    def _push_quoted(self) -> None:
        # Not with the reader of pickletools, which takes ASCII only.
        quoted = self._file.readline().strip()
        if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
            raise DamagedError("a string has no quotes")
        self._push(codecs.escape_decode(quoted[1:-1])[0].decode("latin-1"))

    # Containers.

    def _append(self, _: None) -> None:
        item = self._pop()
        self._extend([item])

    def _appends(self, _: None) -> None:
        self._extend(self._pop_marked())

    def _extend(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _set_item(self, _: None) -> None:
        value = self._pop()
        self._update([self._pop(), value])

    def _set_items(self, _: None) -> None:
        self._update(self._pop_marked())

    def _update(self, pairs: list[Any]) -> None:
        self._top(dict).update(_dict_of(pairs))

    def _top(self, kind: type[Any]) -> Any:
        """Returns the top of the stack, which must be of this type."""
        value = self._pop()
        if type(value) is not kind:
            raise ForeignError(f"it adds items to an object of type {type(value).__name__}")
        self._push(value)
        return value

    def _tuple(self, count: int) -> None:
        self._push(tuple([self._pop() for _ in range(count)][::-1]))

    # The memo.

    def _put(self, index: int) -> None:
        if not 0 <= index <= self._steps:  # picklers number the objects consecutively
            raise DamagedError(f"it stores an object under the number {index}")
        value = self._pop()
        self._push(value)
        self._memo[index] = value

    def _memoize(self, _: None) -> None:
        self._put(len(self._memo))

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise DamagedError(f"it has no object of the number {index}")
        self._push(self._memo[index])

    # Names.

    def _push_name(self, name: str) -> None:
        if Name(name) not in KNOWN:
            raise ForeignError(f"it names {shown(Name(name))}, which is not data")
        self._push(Name(name))

    def _push_popped_name(self, _: None) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedError("a name is not a string")
        self._push_name(f"{module} {name}")

    def _reduce(self, _: None) -> None:
        arguments, name = self._pop(), self._pop()
        function = FUNCTIONS.get(name) if isinstance(name, Name) else None
        if function is None:
            raise ForeignError(f"it calls {shown(name)}, which is not data")
        if not isinstance(arguments, tuple):
            raise DamagedError("the arguments of a call are not a tuple")
        self._push(function(*arguments))

    def _build(self, _: None) -> None:
        state, target = self._pop(), self._pop()
        build(target, state)
        self._push(target)

    # Framing.

    def _protocol(self, version: int) -> None:
        if version > _NEWEST:
            raise DamagedError(f"its protocol is {version}; the newest known is {_NEWEST}")

    def _frame(self, size: int) -> None:
        if self._frame_end:
            raise DamagedError(f"a frame begins in another one, at byte {self._file.position}")
        self._frame_end = self._file.position + size
        if self._frame_end > self._file.size:
            raise DamagedError(f"it ends at byte {self._file.size}, inside a frame of {size} bytes")


def _dict_of(pairs: list[Any]) -> dict[Any, Any]:
    if len(pairs) % 2:
        raise DamagedError("a key has no value")
    for key in pairs[::2]:
        # A few bytes suffice for nested tuples whose hash or comparison would take forever.
        if not isinstance(key, (str, bytes, int, float, type(None))):
            raise ForeignError(f"it has a dict with a key of type {type(key).__name__}")
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_SIZED = {
    "BINBYTES": (4, ""),
    "BINBYTES8": (8, ""),
    "BYTEARRAY8": (8, ""),
    "BINUNICODE": (4, "utf-8"),
    "BINUNICODE8": (8, "utf-8"),
    "BINSTRING": (4, "latin-1"),
}
"""Opcodes of bytes and strings that may be long: the width of their length in bytes, and the encoding."""
_PLAIN = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("SHORT_BINBYTES", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE"),
)
"""Opcodes whose argument is the value."""
_WORK: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_PLAIN, _Machine._push),
    "MARK": _Machine._mark,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "LIST": lambda machine, _: machine._push(machine._pop_marked()),
    "TUPLE": lambda machine, _: machine._push(tuple(machine._pop_marked())),
    "TUPLE1": lambda machine, _: machine._tuple(1),
    "TUPLE2": lambda machine, _: machine._tuple(2),
    "TUPLE3": lambda machine, _: machine._tuple(3),
    "DICT": lambda machine, _: machine._push(_dict_of(machine._pop_marked())),
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine._put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine._get),
    "MEMOIZE": _Machine._memoize,
    "GLOBAL": _Machine._push_name,
    "STACK_GLOBAL": _Machine._push_popped_name,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "PROTO": _Machine._protocol,
    "FRAME": _Machine._frame,
}
"""What the other opcodes do, given their argument."""
