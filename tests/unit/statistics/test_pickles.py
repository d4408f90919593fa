"""Pickles are read without running anything: all protocols, both versions of NumPy and of Python,
and hostile ones.
"""

from __future__ import annotations

import collections
import copyreg
import importlib
import io
import pickle
import struct
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.errors import InputError
from fidtool.system.safe_pickle import begins_like_pickle, load_data
from support import hostile_pickles as hostile
from support.hostile_pickles import DAMAGED, NESTED, NOT_DATA, RUNNING

RANDOM = np.random.RandomState(0).standard_normal((60, 50))
DATA: dict[str, Any] = {
    "mu": RANDOM[0],
    "sigma": RANDOM,
    "by column": np.asfortranarray(RANDOM[:, :7]),
    "every second": RANDOM[::2, ::3],
    "read only": np.frombuffer(RANDOM.tobytes()),
    "float32": RANDOM.astype(np.float32),
    "half": np.float16([1, 2]),
    "big endian": np.arange(3, dtype=">f4"),
    "integers": np.arange(-3, 9, dtype=np.int64).reshape(3, 4),
    "booleans": np.array([True, False]),
    "texts": np.array(["ab", "c"]),
    "bytes": np.array([b"x", b"yz"]),
    "none at all": np.zeros((0, 4)),
    "one": np.array(3.0),
    "a NumPy number": np.float64(3.5),
    "a NumPy integer": np.int32(-7),
    "numbers": [0, 1, 255, 65536, -5, 2**40, -(2**70), 0.1, True, False, None],
    "strings": ("", "ü", "x" * 300, b"", b"\xff\x00", b"x" * 300),
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "ordered": collections.OrderedDict(b=1, a=[]),
    "shared": [RANDOM[1], RANDOM[1]],
}


def loaded(data: bytes) -> Any:
    return load_data(io.BytesIO(data))


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_equal(found, wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.dtype.isnative == wanted.dtype.isnative


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(protocol: int) -> None:
    data = pickle.dumps(DATA, protocol)
    assert begins_like_pickle(data)
    found = loaded(data)
    assert list(found) == list(DATA)
    for name, value in pickle.loads(data).items():
        same(found[name], value)


@pytest.fixture
def numpy_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets NumPy pickle its functions under the names that they have in the other version."""
    pytest.importorskip(
        "numpy._core", reason="NumPy before 1.26 cannot pickle the names of NumPy 2"
    )
    core = importlib.import_module(
        "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    )
    other = "numpy.core" if core.__name__ == "numpy._core" else "numpy._core"
    for module, function in (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    ):
        monkeypatch.setattr(
            getattr(getattr(core, module), function), "__module__", f"{other}.{module}"
        )


@pytest.mark.filterwarnings("ignore:numpy.core")
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_both_versions_of_numpy_are_read(numpy_1: None, protocol: int) -> None:
    data = pickle.dumps({"mu": RANDOM[0], "sigma": RANDOM, "count": np.int64(60)}, protocol)
    usual = b"numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else b"numpy.core"
    assert usual not in data, "it must differ from the pickles of the installed version"
    found = loaded(data)
    same(found["mu"], RANDOM[0])
    same(found["sigma"], RANDOM)
    assert found["count"] == 60


def of_python_2(protocol: int, values: bytes) -> bytes:
    """Returns a dict with a vector as Python 2 and NumPy 1 pickled it, whose strings are bytes."""

    def quoted(content: bytes) -> bytes:
        if protocol == 0:
            return b"S" + repr(content)[1:].encode() + b"\n"
        if len(content) < 256:
            return pickle.SHORT_BINSTRING + bytes([len(content)]) + content
        return pickle.BINSTRING + struct.pack("<i", len(content)) + content

    integer = {0: lambda n: b"I%d\n" % n}.get(
        protocol, lambda n: pickle.BININT + struct.pack("<i", n)
    )
    true, false = (b"\x88", b"\x89") if protocol == 2 else (b"I01\n", b"I00\n")

    def group(*items: bytes) -> bytes:
        return b"(" + b"".join(items) + b"t"

    dtype = b"cnumpy\ndtype\n" + group(quoted(b"f8"), integer(0), integer(1)) + b"R"
    dtype += group(integer(3), quoted(b"<"), b"NNN", integer(-1), integer(-1), integer(0)) + b"b"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + group(
        b"cnumpy\nndarray\n", group(integer(0)), quoted(b"b")
    )
    state = group(integer(1), group(integer(len(values) // 8)), dtype, false, quoted(values))
    flag = quoted(b"flag") + true + b"s"
    begin = {0: b"(d", 1: b"}", 2: b"\x80\x02}"}[protocol]
    return begin + quoted(b"mu") + array + b"R" + state + b"b" + b"s" + flag + b"."


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_pickles_of_python_2_are_read(protocol: int) -> None:
    values = RANDOM.ravel()
    data = of_python_2(protocol, values.tobytes())
    wanted = pickle.loads(data, encoding="latin1")  # what NumPy's loader recommends for such files
    same(wanted["mu"], values)
    assert loaded(data).keys() == wanted.keys()
    same(loaded(data)["mu"], values)
    assert loaded(data)["flag"] is True


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists if code in a pickle was run."""
    trace = tmp_path / "trace"
    hostile.write_module(tmp_path, trace)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield trace
    sys.modules.pop(hostile.MODULE, None)


def refusal(folder: Path, data: bytes) -> str:
    """Returns the message with which a statistics file is refused."""
    (folder / "bad.pkl").write_bytes(data)
    with pytest.raises(InputError) as error:
        fidtool.read_statistics(folder / "bad.pkl")
    return str(error.value)


@pytest.mark.parametrize("kind", RUNNING)
@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_nothing_in_a_pickle_is_run(tmp_path: Path, trace: Path, kind: str) -> None:
    data = RUNNING[kind](trace)
    assert "contains pickled objects (it " in (message := refusal(tmp_path, data))
    assert "never loaded" in message
    assert hostile.MODULE not in sys.modules
    assert not trace.exists()
    # Python's own loader runs it; otherwise the test could not fail.
    pickle.loads(data)
    for _ in range(500):  # a process that was started leaves its trace later
        if trace.exists():
            break
        time.sleep(0.01)
    assert trace.exists()


def refusal_in_little_memory(folder: Path, data: bytes, most: float) -> str:
    tracemalloc.start()
    try:
        message = refusal(folder, data)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    return message


@pytest.mark.parametrize("kind", [*NOT_DATA, *DAMAGED])
def test_other_pickles_are_refused(tmp_path: Path, kind: str) -> None:
    message = refusal_in_little_memory(tmp_path, {**NOT_DATA, **DAMAGED}[kind](), 64e6)
    assert ("contains pickled objects (it " if kind in NOT_DATA else "cannot be read: ") in message
    assert len(message) < 400 + len(str(tmp_path))
    assert message.isprintable()


@pytest.mark.parametrize("kind", NESTED)
def test_nested_lists_are_no_statistics(kind: str, tmp_path: Path) -> None:
    message = refusal_in_little_memory(tmp_path, NESTED[kind](), 16e6)
    assert "is a pickled list; statistics are a dict of arrays" in message


def test_arrays_share_no_memory() -> None:
    """A pickle may replace the content of an array, which frees the memory of the one before."""
    array, copy = loaded(hostile.view_of_an_array())
    assert not np.may_share_memory(array, copy)


@pytest.fixture
def extension() -> Iterator[int]:
    """The code of a name that is registered as an extension, and which Python's own loader has
    looked up.
    """
    copyreg.add_extension("os", "system", 200)
    pickle.loads(hostile.whole(pickle.EXT1 + b"\xc8"))
    yield 200
    copyreg.remove_extension("os", "system", 200)
    copyreg.clear_extension_cache()


def test_registered_extensions_are_refused(tmp_path: Path, extension: int) -> None:
    code = pickle.EXT1 + bytes([extension])
    data = hostile.whole(hostile.call(code, hostile.text(f"touch {tmp_path / 'trace'}")))
    assert "it has an opcode that" in refusal(tmp_path, data)
    assert not (tmp_path / "trace").exists()


def test_damage_anywhere_is_an_error_or_other_data() -> None:
    """One bit of each byte in turn is flipped."""
    good = pickle.dumps({"mu": np.arange(3.0), "sigma": np.eye(3), "n": 7, "kind": "x"}, 4)
    refusals = 0
    for place in range(len(good)):
        for bit in (place % 8, (place + 3) % 8):
            damaged = good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :]
            try:
                loaded(damaged)
            except Exception:  # a reader of files makes one error of them
                refusals += 1
    assert refusals > len(good)
