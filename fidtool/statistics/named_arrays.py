"""The arrays in a statistics file by name, whether it is an ``.npz`` archive or a pickle. Its name does not matter."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.safe_pickle import NotDataError, begins_like_pickle, load_data
from fidtool.sources.archives import first_member
from fidtool.sources.contents import Files, StoreError, message_of
from fidtool.sources.signatures import HEAD, PLAIN, refuse_foreign
from fidtool.statistics.feature_buffer import Features, read_features, store_features

NPZ, ZIP, NPY, PICKLE, TORCH = "npz", "zip", "npy", "pickle", "torch"
_MOST_PICKLED = 1 << 30
"""Largest size in bytes of the pickle in a file of ``torch.save``. Statistics of 2048 dimensions take 50 MB."""
AS_ARRAY = "write images or features as one array with numpy.save, as .npy"
_NAMED = 12
"""Maximum number of entries that a message names."""
LAYOUTS = (
    ("ref_mu", "ref_sigma"),
    ("mu", "sigma"),
    ("num_items", "raw_mean", "raw_cov"),
    ("feats",),
    ("pool_3",),
    ("reps",),
)
"""The arrays that hold statistics of Inception or another network. The first that a file has all of are read."""
_OF_INCEPTION = "fid"
_OF_OTHERS = "fd_"
"""EDM2's entry for Inception, and the beginning of those for other networks, such as ``fd_dinov2``."""
_EDM2 = "EDM2 (it has {})"
EDM2_INCEPTION = _EDM2.format(_OF_INCEPTION)
"""What EDM2 is called as the writer of statistics of Inception."""


def kind_of(head: bytes) -> str:
    """Returns what a file is by its first `HEAD` bytes: `NPZ`, `ZIP`, `NPY`, `PICKLE`, `TORCH` or an empty string."""
    if head.startswith(b"\x93NUMPY"):
        return NPY
    if head.startswith(b"PK"):
        first = first_member(head)
        return NPZ if first.endswith(b".npy") else TORCH if first.endswith(b"/data.pkl") else ZIP
    return PICKLE if begins_like_pickle(head) else ""


class NamedArrays:
    """Arrays by name, which an archive reads when they are needed.

    Args:
        arrays: an ``.npz`` archive, or the arrays, numbers and lists of arrays in a pickled dict. A list is one array,
            divided by its first axis.
        writer: the tool that wrote them, if the file as a whole shows it; empty otherwise.
    """

    def __init__(self, arrays: NpzFile | Mapping[str, Any], writer: str = "") -> None:
        self._arrays, self.writer = arrays, writer
        self.names: Collection[str] = [*arrays]

    def array(self, name: str) -> NDArray[Any]:
        """Returns an array."""
        value = self._arrays[name]
        if isinstance(value, list):
            raise ValueError(f"{name} is a list of arrays")
        return np.asarray(value)

    def rows(self, name: str) -> Features:
        """Returns feature vectors: float32 array of shape (n, dims), mapped from an unnamed file if it is large."""
        if isinstance(self._arrays, NpzFile):
            return read_features(self._arrays, name)
        value = self._arrays[name]
        parts = value if isinstance(value, list) else [np.asarray(value)]
        shapes = [each.shape for each in parts]
        dims = {shape[1:] for shape in shapes}
        if any(len(shape) != 2 or 0 in shape for shape in shapes) or len(dims) > 1:
            shown = ", ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"{name} has the shape {shown}; it should contain one row of equal length per image")
        if any(each.dtype.kind != "f" for each in parts):
            raise ValueError(f"{name} has dtype {parts[0].dtype}; it should contain floats")
        ((length,),) = dims
        return store_features(name, sum(shape[0] for shape in shapes), length, parts)


def read_pickle(path: str, handle: BinaryIO) -> Any:
    """Reads the numbers, strings and arrays in a pickle, see `fidtool.safe_pickle.load_data`."""
    try:
        return load_data(handle)
    except NotDataError as error:
        raise InputError(
            f"{path} is a pickle and {error}: objects in pickles are never loaded, because loading them can run code",
            "write mu and sigma as float64 arrays with numpy.savez",
            AS_ARRAY,
        ) from None
    except (StoreError, OSError, MemoryError):
        raise
    except Exception as error:  # invalid arguments raise many kinds of exceptions
        raise InputError(f"{path} is a damaged pickle: {message_of(error)}", "copy or create it again") from None


def known_layout(names: Collection[str]) -> tuple[str, ...]:
    """Returns the one of `LAYOUTS` that a file with arrays of these names has; empty if it has none."""
    return next((layout for layout in LAYOUTS if {*layout} <= {*names}), ())


def arrays_of(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the items of a pickled dict that are arrays, lists of arrays or numbers."""
    return {str(name): value for name, value in values.items() if isinstance(name, str) and _is_array(value)}


def _is_array(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, np.ndarray) for each in value)
    return isinstance(value, (np.ndarray, int, float))


def entries_of(value: Any) -> dict[str, Mapping[Any, Any]]:
    """Returns the statistics by name in a pickled dict of several; empty if it is none, or itself is statistics."""
    if not isinstance(value, dict) or known_layout(arrays_of(value)):
        return {}
    return {str(name): each for name, each in value.items() if isinstance(each, dict) and known_layout(arrays_of(each))}


@contextlib.contextmanager
def open_arrays(path: str, files: Files, extractor: str, entry: str) -> Iterator[NamedArrays]:
    """Opens a file. If a pickle has several statistics, ``entry`` names those that are read.

    Of EDM2's without an ``entry``, those of the network ``extractor`` are read.
    """
    with files.open(0) as handle:
        head = handle.read(HEAD)
        handle.seek(0)
        kind = kind_of(head)
        refuse_foreign(path, head, [PLAIN] * bool(kind))  # a pickle of protocol 0 is text
        if kind == NPY:
            raise InputError(f"{path} is a single array (.npy); a statistics file is an .npz archive with mu and sigma")
        if kind in (PICKLE, TORCH):
            yield _pickled(path, pickle_in(handle) if kind == TORCH else handle, extractor, entry)
            return
        if not kind:
            problem = f"{path} cannot be read: it is neither an .npz archive nor a pickle of arrays"
            raise InputError(problem, "copy or create it again")
        if entry:
            raise InputError(
                f"{path} names a part of a file that is no pickle of several statistics:", f"omit :{entry}"
            )
        with np.load(handle, allow_pickle=False) as archive:
            yield NamedArrays(archive)


def pickle_in(handle: BinaryIO) -> BinaryIO:
    """Returns the pickle in a file of ``torch.save``, which has NumPy arrays in itself and tensors beside it."""
    with zipfile.ZipFile(handle) as archive:
        info = archive.infolist()[0]
        if info.file_size > _MOST_PICKLED:
            raise ValueError(f"its pickle has {info.file_size} bytes")
        return io.BytesIO(archive.read(info))


def _pickled(path: str, handle: BinaryIO, extractor: str, entry: str) -> NamedArrays:
    value = read_pickle(path, handle)
    if not isinstance(value, dict):
        problem = f"{path} is a pickled {type(value).__name__}; statistics are a dict of arrays:"
        raise InputError(problem, AS_ARRAY)
    entries = entries_of(value)
    if not entries and not (entry and known_layout(arrays_of(value))):
        return NamedArrays(arrays_of(value))
    of_edm2 = _OF_INCEPTION in entries or any(name.startswith(_OF_OTHERS) for name in entries)
    chosen = entry or (_of_network(path, entries, extractor) if of_edm2 else _only(path, entries))
    if chosen not in entries:
        raise InputError(f"{path}: the file has no statistics named {chosen}; {_listed(entries)}")
    counted = {"count": value["num_images"]} if isinstance(value.get("num_images"), int) else {}
    return NamedArrays(arrays_of({**entries[chosen], **counted}), _EDM2.format(chosen) if of_edm2 else "")


def _of_network(path: str, entries: Collection[str], extractor: str) -> str:
    """Returns the name of EDM2's statistics for a network."""
    wanted = _OF_INCEPTION if extractor == "inception" else f"{_OF_OTHERS}{extractor.partition(':')[0]}"
    if wanted not in entries:
        others = ["inception" if name == _OF_INCEPTION else name.removeprefix(_OF_OTHERS) for name in entries]
        raise InputError(
            f"{path} has no statistics of {extractor}; {_listed(entries)}:",
            *(f"pass {option('extractor', name)}" for name in others[:1]),
            setting="extractor",
        )
    return wanted


def _only(path: str, entries: Collection[str]) -> str:
    if len(entries) > 1:
        raise InputError(f"{path} has several statistics: {_listed(entries)}:", f"name one, {path}:NAME")
    return next(iter(entries))


def _listed(entries: Collection[str]) -> str:
    names = ", ".join([*entries][:_NAMED])
    more = f" and {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
    return f"it has {names}{more}" if entries else "it has only one, without a name"
