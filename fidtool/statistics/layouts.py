"""Layouts of other tools' statistics: which arrays they have, what these mean, and which protocol follows from them.

A file is an ``.npz`` archive or a pickle, whatever its name.

====================================  ===================================================================
arrays                                written by
====================================  ===================================================================
``mu``, ``sigma``                     pytorch-fid, clean-fid, EDM and many others
the same, ``mu_s``, ``sigma_s``       ADM's evaluator (guided-diffusion): ``tensorflow``
``ref_mu``, ``ref_sigma``             MeanFlow and its successors
``feats``; ``pool_3``; ``reps``       clean-fid for KID; score_sde; dgm-eval: the features of each image
``num_items``, ``raw_mean``, …        StyleGAN2-ADA and StyleGAN3, which pickle sums: ``stylegan``
``{"fid": {"mu", "sigma"}, …}``       EDM2, which pickles them by network: ``tensorflow`` for Inception
``{name: {"mu", "sigma"}, …}``        FD-Loss, which pickles several files as one
====================================  ===================================================================
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fidtool.errors import InputError, message_of, option
from fidtool.features.protocol import (
    EMBEDDING,
    FEATURES,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    INCEPTION_SHA256,
    SPATIAL,
    SPATIAL_DIMS,
    inception_definition,
    protocol_named,
    spatial_definition,
)
from fidtool.safe_pickle import NotDataError, begins_like_pickle, load_data
from fidtool.sources.archives import first_member
from fidtool.sources.array_files import SAMPLES, array_headers
from fidtool.sources.contents import ContentError, Files, StoreError, head_of
from fidtool.sources.image_set import canonical_order
from fidtool.sources.kinds import HEAD, PLAIN, refuse_foreign
from fidtool.sources.opening import suffix_of
from fidtool.statistics.rows import Features, read_features, reordered, store_features
from fidtool.statistics.set_statistics import Statistics

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
_SUFFIXES = {FEATURES: "", SPATIAL: "_s", EMBEDDING: "_embedding"}
"""Suffixes of the names of a layer's arrays; ADM's reference files have ``mu_s`` and ``sigma_s``. The suffix of any
other layer is ``_`` and its name."""
_ADM = "ADM's evaluator (it has mu_s)"
_STYLEGAN = "StyleGAN2-ADA or StyleGAN3 (it has raw_mean)"
_WRITERS = {
    "ref_mu": "MeanFlow's code (it has ref_mu)",
    "feats": "clean-fid (it has feats)",
    "pool_3": "score_sde (it has pool_3)",
    "reps": "dgm-eval (it has reps)",
}
_PROTOCOLS = {_ADM: "tensorflow", EDM2_INCEPTION: "tensorflow", _STYLEGAN: "stylegan"}
"""The protocols of Inception's statistics by the tools that have one protocol only."""
_ALL_FEATURES = "all_features"
"""StyleGAN's list of the features of each batch."""
_CHUNK_ROWS = 1024
_USUAL = (1.0, 31.0)
"""Range of the largest feature for which Inception's feature step is used."""
_ROUNDING = 1e-12
"""Relative rounding error of a sum of squares."""


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


def array_suffix(layer: str) -> str:
    """Returns the suffix of the names of a layer's arrays in fidtool's own files."""
    return _SUFFIXES.get(layer, f"_{layer}")


def layers_in(names: Collection[str]) -> list[str]:
    """Returns the layers with ``mu`` and ``sigma`` in a file, given the names of its arrays."""
    # Only layers with a fingerprint, which other tools do not write: the meaning of their arrays is unknown.
    own = [name.removeprefix("fingerprint_") for name in names if name.startswith("fingerprint_")]
    layers = [*_SUFFIXES, *(layer for layer in own if f"_{layer}" not in _SUFFIXES.values())]
    return [layer for layer in layers if {f"mu{array_suffix(layer)}", f"sigma{array_suffix(layer)}"} <= {*names}]


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """What a file holds, by its bytes.

    Attributes:
        kind: ``npz`` or ``pickle``; empty if it is neither.
        images: the array of images that is read if none is named; empty if there is none.
    """

    kind: str = ""
    statistics: bool = False
    images: str = ""


def layout_of(files: Files) -> FileLayout:
    """Returns what the first of ``files`` holds, without reading its large arrays.

    Of a damaged file, as much as can be read is returned.
    """
    kind = kind_of(head_of(files))
    # Of an archive that begins with another member, not every member is read: it may have a million images.
    if kind == NPZ or (kind == ZIP and suffix_of(files.paths[0]) == ".npz"):
        headers = array_headers(files)
        images = [name for name, each in headers.items() if name == SAMPLES or len(each.shape) in (3, 4)]
        images = images or [name for name, each in headers.items() if len(each.shape) > 4]
        others = headers.keys() - {*images}
        return FileLayout(
            kind=NPZ,
            statistics=any(name in others for layout in LAYOUTS for name in layout),
            images=SAMPLES if SAMPLES in images else next(iter(images), ""),
        )
    if kind in (PICKLE, TORCH):
        value: Any = None
        with (
            contextlib.suppress(InputError, OSError, ContentError, ValueError, zipfile.BadZipFile),
            files.open(0) as handle,
        ):
            value = read_pickle(files.paths[0], pickle_in(handle) if kind == TORCH else handle)
        statistics = bool(entries_of(value) or (isinstance(value, dict) and known_layout(arrays_of(value))))
        if kind == PICKLE or statistics:  # without statistics, a file of torch.save may have tensors, which are images
            return FileLayout(kind=PICKLE, statistics=statistics)
    return FileLayout()


def read_foreign(path: str, arrays: NamedArrays, features_of: Collection[str] | None) -> Statistics | None:
    """Reads statistics in another layout than ``mu`` and ``sigma``; None if the file has these."""
    layout = known_layout(arrays.names)
    wanted = features_of is None or FEATURES in features_of
    if layout == ("ref_mu", "ref_sigma"):
        mu, sigma = checked_gaussian(path, *(arrays.array(name) for name in layout), names=layout)
        return replace(Statistics.of(mu, sigma), origin=_WRITERS["ref_mu"])
    if len(layout) == 1:
        (name,) = layout
        return replace(of_features(arrays.rows(name), wanted, ddof=1), origin=_WRITERS[name])
    return _of_stylegan(path, arrays, wanted) if layout and layout[0] == "num_items" else None


def _of_stylegan(path: str, arrays: NamedArrays, wanted: bool) -> Statistics:
    """Reads sums of features and of their outer products, or the features, of which StyleGAN stores one or both."""
    count = checked_count(path, arrays.array("num_items"), "num_items")
    has_features = _ALL_FEATURES in arrays.names
    has_sums = "capture_mean_cov" not in arrays.names or bool(arrays.array("capture_mean_cov"))
    found: Statistics | None = None
    if has_features and (wanted or not has_sums):
        found = of_features(arrays.rows(_ALL_FEATURES), wanted, ddof=0)
        if found.count != count:
            raise InputError(f"the statistics file {path} has features of {found.count} images, but {count} images")
    if has_sums:
        names = ("raw_mean", "raw_cov")
        total, squares = checked_gaussian(path, *(arrays.array(name) for name in names), names=names)
        if found is not None and found.dims != len(total):
            raise InputError(f"the statistics file {path} has features of {found.dims} dims, but sums of {len(total)}")
        mu = total / count
        sigma = squares / count - np.outer(mu, mu)
        # Rounding can make the variance of a constant feature negative.
        rounded = np.abs(sigma.diagonal()) < _ROUNDING * squares.diagonal() / count
        np.fill_diagonal(sigma, np.where(rounded, 0.0, sigma.diagonal()))
        mu, sigma = checked_gaussian(path, mu, sigma)
        features, order = (None, None) if found is None else (found.features, found.order)
        found = replace(Statistics.of(mu, sigma, count, features=features), order=order)
    if found is None:
        raise InputError(f"the statistics file {path} has neither sums nor features of its {count} images")
    return replace(found, origin=_STYLEGAN)


def of_features(rows: Features, wanted: bool, ddof: int) -> Statistics:
    """Returns the exact statistics of features, which are kept in canonical order if they are ``wanted``."""
    import torch  # deferred: most statistics files are read without it

    from fidtool.statistics.moments import ExactMoments, better_step

    chunks = [rows[start : start + _CHUNK_ROWS] for start in range(0, len(rows), _CHUNK_ROWS)]
    largest = max(float(np.abs(chunk).max()) for chunk in chunks)
    usual = _USUAL[0] <= largest < _USUAL[1] or largest == 0
    # Features of an unknown network may have any scale.
    moments = ExactMoments(rows.shape[1], INCEPTION_FEATURE_STEP if usual else better_step(0, largest))
    for chunk in chunks:
        moments.add(torch.from_numpy(np.array(chunk)))  # a copy, because mapped memory cannot be written
    found = moments.mean_covariance(ddof)
    order = canonical_order(len(rows)) if wanted else None
    features = None if order is None else reordered(rows, order)
    return replace(Statistics.of(found.mu, found.sigma, len(rows), features=features), order=order)


def checked_gaussian(
    path: str, mu: NDArray[Any], sigma: NDArray[Any], *, names: tuple[str, ...] = ("mu", "sigma")
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a mean and a covariance as float64 after checking them."""
    mean, covariance = (_as_float64(path, *each) for each in zip(names, (mu, sigma), strict=True))
    first, second = names
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or len(mean) == 0:
        raise InputError(
            f"the statistics file {path} has {first} of shape {mean.shape} and {second} of shape {covariance.shape}; "
            "they should be (D,) and (D, D)"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise InputError(f"the statistics file {path} contains NaN or infinite values", "compute it again")
    if np.abs(covariance - covariance.T).max() > 1e-6 * np.abs(covariance).max() or covariance.diagonal().min() < 0:
        raise InputError(f"{second} in {path} is not a covariance: it is not symmetric, or has a negative variance")
    return mean, covariance


def _as_float64(path: str, name: str, value: NDArray[Any]) -> NDArray[np.float64]:
    if value.dtype.kind not in "fiu":
        raise InputError(f"{name} in the statistics file {path} has dtype {value.dtype}; it should be float64")
    return value.astype(np.float64)


def checked_count(path: str, value: NDArray[Any], name: str = "count") -> int:
    """Returns the number of images in a file."""
    if value.dtype.kind not in "iu" or value.ndim != 0 or int(value) < 1:
        raise InputError(f"the statistics file {path} has a {name} that is not a positive integer")
    return int(value)


def with_origin(statistics: Statistics, writer: str) -> Statistics:
    """Returns statistics with their origin and with the definitions of its protocol, as far as they are known."""
    spatial = statistics.layers.get(SPATIAL)
    origin = writer or statistics.origin or (_ADM if spatial is not None and spatial.dims == SPATIAL_DIMS else "")
    return with_protocol(replace(statistics, origin=origin), _PROTOCOLS.get(origin, ""))


def with_protocol(statistics: Statistics, protocol: str) -> Statistics:
    """Returns Inception's statistics with the definitions of a protocol."""
    # The other networks of these tools have other dimensions.
    if not protocol or statistics.dims != max(INCEPTION_DIMS):
        return statistics
    spatial = statistics.layers.get(SPATIAL)
    definition = inception_definition(protocol_named(protocol), statistics.dims, INCEPTION_SHA256)
    layers = {**statistics.layers, FEATURES: replace(statistics.layers[FEATURES], definition=definition)}
    if spatial is not None and spatial.dims == SPATIAL_DIMS:
        layers[SPATIAL] = replace(spatial, definition=spatial_definition(definition))
    return replace(statistics, layers=layers)
