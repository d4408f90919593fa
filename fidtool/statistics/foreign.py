"""Layouts of other tools' statistics: which arrays they have, what these mean, and which protocol
follows from them.

A file is an ``.npz`` archive or a pickle, whatever its name. Besides `LAYOUTS`, EDM2 pickles
``{"fid": {"mu", "sigma"}, …}`` by network, and FD-Loss several files as one, ``{name: {"mu",
"sigma"}, …}``. ADM's evaluator (guided-diffusion) also writes ``mu_s`` and ``sigma_s``.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fidtool.errors import InputError, ResultWarning, format_message, option
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    INCEPTION_SIZES,
    SPATIAL,
    SPATIAL_DIMS,
    find_protocol,
    inception_definition,
    spatial_definition,
)
from fidtool.names import shorten
from fidtool.references.catalogue import FD_LOSS
from fidtool.sources.array_files import read_arrays
from fidtool.sources.arrays import StoredArray, find_image_arrays, read_header
from fidtool.sources.contents import Files, pickle_error, read_head
from fidtool.sources.image_set import canonical_order
from fidtool.sources.kinds import HEAD, PLAIN, file_suffix, first_member, refuse_foreign
from fidtool.statistics.rows import CHUNK_BYTES, empty_rows, reorder
from fidtool.statistics.set_statistics import (
    Features,
    LayerStatistics,
    Moments,
    Statistics,
    check_moments,
)
from fidtool.system.json_fields import from_json_value

NPZ = "npz"
ZIP = "zip"
NPY = "npy"
PICKLE = "pickle"
TORCH = "torch"
AS_ARRAY = "write images or features as one array with numpy.save, as .npy"
# How many times the sizes of statistics may be outside `INCEPTION_SIZES`, which are of the sets
# that were measured.
_MAX_SIZE_RATIO = 3.0
Arrays = dict[str, Any]
"""Arrays by name; in a pickle also numbers and lists of arrays."""
MAX_IMAGES = (1 << 31) - 1
"""Largest number of images in a set."""
_STYLEGAN = "StyleGAN2-ADA or StyleGAN3 (it has raw_mean)"
LAYOUTS = {
    ("ref_mu", "ref_sigma"): "MeanFlow's code (it has ref_mu)",
    ("mu", "sigma"): "",  # pytorch-fid, clean-fid, EDM and many others
    ("num_items", "raw_mean", "raw_cov"): _STYLEGAN,
    ("feats",): "clean-fid (it has feats)",
    ("pool_3",): "score_sde (it has pool_3)",
    ("reps",): "dgm-eval (it has reps)",
}
"""The arrays that hold statistics of Inception or another network, and the tool that writes them.
The first that a file has all of are read.
"""
# Beginning of EDM2's entries for other networks than Inception, such as `fd_dinov2`.
_OTHER_NETWORKS_PREFIX = "fd_"
# Entries of the pickles of EDM2 and FD-Loss, and the layers of their networks; empty for Inception.
_LAYERS = {"fid": "", **FD_LOSS}
_EDM2 = "EDM2 (it has {})"
_FD_LOSS = "FD-Loss (it has guided_diffusion_stats.npz)"
_ADM = "ADM's evaluator (it has mu_s)"
# The protocols of Inception's statistics by the tools that have one protocol only.
_PROTOCOLS = {
    _ADM: "tensorflow",
    _EDM2.format("fid"): "tensorflow",
    _FD_LOSS: "tensorflow",
    _STYLEGAN: "stylegan",
}
# StyleGAN's list of the features of each batch.
_ALL_FEATURES = "all_features"


def _detect_kind(head: bytes) -> str:
    """Return what a file is by its first `HEAD` bytes: `NPZ`, `ZIP`, `NPY`, `PICKLE`, `TORCH` or
    an empty string.
    """
    if head.startswith(b"\x93NUMPY"):
        return NPY
    if head.startswith(b"PK"):
        first = first_member(head)
        if first.endswith(b".npy"):
            return NPZ
        return TORCH if first.endswith(b"/data.pkl") else ZIP
    from fidtool.system.safe_pickle import begins_like_pickle

    return PICKLE if begins_like_pickle(head) else ""


@dataclass(eq=False)
class NamedArrays:
    """Arrays by name, which an archive reads when they are needed.

    A method raises a ValueError if the array is not what it should be.

    Attributes:
        arrays: an ``.npz`` archive, or the arrays, numbers and lists of arrays in a pickled dict. A
            list is one array, divided by its first axis.
        writer: the tool that wrote them, if the file as a whole shows it; empty otherwise.
        layers: layers whose arrays have the layer's name behind ``_``, besides those with a
            fingerprint.
    """

    arrays: NpzFile | Mapping[str, Any]
    writer: str = ""
    layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._archive = self.arrays.zip if isinstance(self.arrays, NpzFile) else None
        self.names = dict.fromkeys(self.arrays).keys()

    def array(self, name: str) -> NDArray[Any]:
        if name not in self.names:
            raise ValueError(f"it has no array {name}")
        if self._archive is not None:
            self._header(name)
        value = self.arrays[name]
        return np.concatenate(value) if isinstance(value, list) else np.asarray(value)

    def _header(self, name: str) -> StoredArray | NDArray[Any]:
        """Read the header of an array in an archive. Checks that it has all bytes, before memory
        is allocated for them.
        """
        if self._archive is None:
            return self.array(name)
        member = self._archive.getinfo(f"{name}.npy")
        with self._archive.open(member) as stream:
            header = read_header(stream)
        if header.end != member.file_size and not header.dtype.hasobject:  # NumPy refuses objects
            raise ValueError(f"{name} has the shape {header.shape}, but {member.file_size} bytes")
        return header

    def text(self, name: str) -> str:
        value = self.array(name)
        if value.dtype.kind != "U" or value.ndim != 0:
            raise ValueError(f"it has a {name} that is not a string")
        return str(value)

    def json(self, name: str, kind: Any) -> Any:
        """Return the JSON in a string as a value of this type, see `from_json_value`."""
        try:
            return from_json_value(
                kind, json.loads(self.text(name), parse_constant=_refuse_constant)
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"its {name} is damaged, or a newer version wrote it ({format_message(error)})"
            ) from None

    def numbers(self, name: str, count: int | None, below: int = 1 << 63) -> NDArray[np.int64]:
        """Return different integers from 0 to ``below`` - 1, int64 array of shape (count,), of any
        length if None.
        """
        values = self.array(name)
        if values.dtype.kind in "iu" and values.ndim == 1 and count in (None, values.size):
            possible = values[(values >= 0) & (values < below)]
            if len(np.unique(possible)) == values.size:
                return values.astype(np.int64)
        raise ValueError(
            f"its array {name} must have one integer per image, all different and from 0 to "
            f"{below - 1}"
        )

    def count(self, name: str = "count", least: int = 1) -> int:
        value = self.array(name)
        if value.dtype.kind in "iu" and value.ndim == 0 and least <= int(value) <= MAX_IMAGES:
            return int(value)
        raise ValueError(f"it has a {name} that cannot be a number of images")

    def gaussian(self, mu: str, sigma: str) -> Moments:
        """Return a mean and a covariance as float64."""
        return check_moments(self.array(mu), self.array(sigma), mu, sigma)

    def rows(self, name: str) -> Features:
        """Return feature vectors: float32 array of shape (n, dims), mapped from an unnamed file if
        it is large.

        An archive is read a part at a time.
        """
        header = self._header(name)
        if len(header.shape) != 2 or 0 in header.shape or header.dtype.kind != "f":
            raise ValueError(
                f"{name} has shape {header.shape} and dtype {header.dtype}; it should contain "
                "floats, one row per image"
            )
        rows = empty_rows(*header.shape)
        start = 0
        for chunk in self._chunks(name, header):
            part = rows[start : start + len(chunk)]
            part[:] = chunk
            if not np.isfinite(part).all():
                raise ValueError(f"{name} contains NaN or infinite values")
            start += len(chunk)
        return rows

    def _chunks(self, name: str, header: StoredArray | NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the rows of an array, of an archive a part at a time unless they are stored by
        column.
        """
        if isinstance(header, np.ndarray):
            yield header
            return
        if self._archive is None or not header.strides:
            yield self.array(name)
            return
        row = header.strides[0]
        with self._archive.open(f"{name}.npy") as member:
            member.seek(header.start)
            while data := member.read(max(1, CHUNK_BYTES // row) * row):
                yield np.frombuffer(data, dtype=header.dtype).reshape(-1, header.shape[1])


def _refuse_constant(text: str) -> None:
    raise ValueError(f"it contains {text}")


def match_layout(names: Collection[str]) -> tuple[str, ...]:
    """Return the one of `LAYOUTS` that a file with arrays of these names has; empty if it has
    none.
    """
    for layout in LAYOUTS:
        if {*layout} <= {*names}:
            return layout
    return ()


def _read_pickle(path: str, handle: BinaryIO, kind: str) -> dict[str, Any]:
    """Read the numbers, strings and arrays in a pickled dict, see
    `fidtool.system.safe_pickle.load_data`.

    It is the file, or in one of ``torch.save``, which has NumPy arrays in the pickle and tensors
    beside it.
    """
    from fidtool.system.safe_pickle import NotDataError, load_data

    try:
        if kind == TORCH:
            with zipfile.ZipFile(handle) as archive:
                record = archive.infolist()[0]
                # A compressed one; statistics of 2048 dimensions take 50 MB.
                if record.file_size > 1 << 30:
                    raise ValueError(f"it has {record.file_size} bytes")
                # All of it is read, which checks its CRC, unlike seeking in it.
                handle = io.BytesIO(archive.read(record))
        value = load_data(handle)
    except NotDataError as error:
        remedy = "write mu and sigma as float64 arrays with numpy.savez"
        raise pickle_error(path, remedy, AS_ARRAY, example=error) from None
    if not isinstance(value, dict):
        raise InputError(
            f"{path} is a pickled {type(value).__name__}; statistics are a dict of arrays:",
            AS_ARRAY,
        )
    return value


def _select_arrays(value: Any) -> Arrays:
    """Return the items of a pickled dict that are arrays, lists of arrays or numbers."""
    arrays: Arrays = {}
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, list):
                is_array = item and all(isinstance(part, np.ndarray) for part in item)
            else:
                is_array = isinstance(item, (np.ndarray, int, float))
            if is_array:
                arrays[str(name)] = item
    return arrays


def _select_entries(value: dict[str, Any]) -> dict[str, Arrays]:
    """Return the arrays of each of the statistics in a pickled dict by name, an empty one if it is
    statistics itself.

    There are none if it is neither.
    """
    own = _select_arrays(value)
    if match_layout(own):
        return {"": own}
    entries = {}
    for name, item in value.items():
        arrays = _select_arrays(item)
        if match_layout(arrays):
            entries[str(name)] = arrays
    return entries


@contextlib.contextmanager
def open_arrays(path: str, files: Files, entry: str) -> Iterator[NamedArrays]:
    """Open a file. If a pickle has several statistics, ``entry`` names those that are read.

    Without an ``entry`` of EDM2's, those of each network are read.
    """
    with files.open(0) as handle:
        head = handle.read(HEAD)
        handle.seek(0)
        kind = _detect_kind(head)
        refuse_foreign(path, head, [PLAIN] if kind else ())  # a pickle of protocol 0 is text
        if kind in (PICKLE, TORCH):
            yield _choose_entry(path, _read_pickle(path, handle, kind), entry)
            return
        if kind not in (NPZ, ZIP):
            what = "neither an .npz archive nor a pickle of arrays"
            if kind == NPY:
                what = "a single array (.npy)"
            raise InputError(
                f"{path} is {what}:", "copy or create it again, with the arrays mu and sigma"
            )
        if entry:
            raise InputError(
                f"{path} names an entry, but the file is not a pickle of several statistics:",
                f"omit :{entry}",
            )
        with np.load(handle, allow_pickle=False) as archive:
            yield NamedArrays(archive)


def _choose_entry(path: str, value: dict[str, Any], entry: str) -> NamedArrays:
    """Return the arrays of the statistics in a pickled dict that ``entry`` names, or all that
    belong together.
    """
    entries = _select_entries(value)
    names = [name for name in entries if name]
    if not names and not entry:
        return NamedArrays(_select_arrays(value))
    layers = {
        name: _LAYERS.get(name, name.removeprefix(_OTHER_NETWORKS_PREFIX))
        for name in names
        if name in _LAYERS or name.startswith(_OTHER_NETWORKS_PREFIX)
    }
    arrays: Arrays = {}
    if isinstance(value.get("num_images"), int):
        arrays["count"] = value["num_images"]
    if layers and not entry:
        for name, layer in layers.items():
            for key, array in entries[name].items():
                arrays[f"{key}_{layer}" if layer else key] = array
        writer = _entry_writer(next(iter(layers)))
        return NamedArrays(arrays, writer, [layer for layer in layers.values() if layer])
    listed = f"it has {shorten(', '.join(names)) or 'none with a name'}"
    if not entry and len(names) > 1:
        raise InputError(f"{path} has several statistics: {listed}:", f"name one, {path}:NAME")
    entry = entry or names[0]
    if entry not in names:
        raise InputError(f"{path}: the file has no statistics named {entry}; {listed}")
    return NamedArrays(entries[entry] | arrays, _entry_writer(entry) if entry in layers else "")


def _entry_writer(entry: str) -> str:
    return _FD_LOSS if entry in FD_LOSS else _EDM2.format(entry)


def detect_layout(files: Files) -> tuple[str, bool, str]:
    """Return what the first of ``files`` holds by its bytes, as far as it is not damaged, without
    its large arrays.

    This is its kind, `NPZ`, `PICKLE` or an empty string; whether it has statistics; and the array
    of images that is read if none is named, empty if there is none.
    """
    kind = _detect_kind(read_head(files))
    # Of an archive that begins with another member, not every member is read: it may have a million
    # images.
    if kind == NPZ or (kind == ZIP and file_suffix(files.paths[0]) == ".npz"):
        headers = read_arrays(files)
        images = find_image_arrays(headers)
        has_statistics = not {*chain(*LAYOUTS)}.isdisjoint(headers.keys() - {*images})
        return NPZ, has_statistics, images[0] if images else ""
    if kind in (PICKLE, TORCH):
        statistics = False
        # Damaged ones raise many kinds of exceptions.
        with contextlib.suppress(Exception), files.open(0) as handle:
            statistics = bool(_select_entries(_read_pickle(files.paths[0], handle, kind)))
        # Without statistics, a file of torch.save may have tensors, which are images.
        if kind == PICKLE or statistics:
            return PICKLE, statistics, ""
    return "", False, ""


def read_foreign(arrays: NamedArrays, features_of: Collection[str] | None) -> Statistics | None:
    """Read statistics in another layout than ``mu`` and ``sigma``; None if the file has these."""
    layout = match_layout(arrays.names)
    origin = LAYOUTS.get(layout)
    if not origin:
        return None
    wanted = features_of is None or FEATURES in features_of
    if origin == _STYLEGAN:
        statistics = _read_stylegan(arrays, wanted)
    elif len(layout) == 1:
        statistics = statistics_from_features(arrays.rows(layout[0]), wanted, ddof=1)
    else:
        statistics = Statistics.of(*arrays.gaussian(*layout))
    return replace(statistics, origin=origin)


def _read_stylegan(arrays: NamedArrays, wanted: bool) -> Statistics:
    """Read sums of features and of their outer products, or the features, of which StyleGAN stores
    one or both.
    """
    count = arrays.count("num_items")
    has_rows = _ALL_FEATURES in arrays.names
    if "capture_mean_cov" in arrays.names and not arrays.array("capture_mean_cov"):
        if not has_rows:
            raise ValueError(f"it has neither sums nor features of its {count} images")
        return statistics_from_features(arrays.rows(_ALL_FEATURES), wanted, ddof=0)
    total, squares = arrays.gaussian("raw_mean", "raw_cov")
    mu = total / count
    sigma = squares / count - np.outer(mu, mu)
    # Rounding can make the variance of a constant feature negative.
    rounded = np.abs(sigma.diagonal()) < 1e-12 * squares.diagonal() / count
    np.fill_diagonal(sigma, np.where(rounded, 0.0, sigma.diagonal()))
    statistics = Statistics.of(*check_moments(mu, sigma), count)
    if not has_rows or not wanted:
        return statistics
    rows = arrays.rows(_ALL_FEATURES)
    if rows.shape != (count, len(mu)):
        raise ValueError(
            f"it has features of shape {rows.shape}, but sums of {count} images and {len(mu)} dims"
        )
    return _add_features(statistics, rows)


def statistics_from_features(rows: Features, wanted: bool, ddof: int) -> Statistics:
    """Return the exact statistics of features, which are kept in canonical order if they are
    ``wanted``.
    """
    import torch  # deferred: most statistics files are read without it

    from fidtool.statistics.moments import ExactMoments, suggest_step

    step = INCEPTION_FEATURE_STEP
    largest = float(max(rows.max(), -rows.min()))
    # Features of an unknown network may have any scale.
    if largest != 0 and not 1.0 <= largest < 31.0:
        step = suggest_step(0, largest)
    moments = ExactMoments(rows.shape[1], step)
    for start in range(0, len(rows), 1024):
        moments.add(torch.from_numpy(rows[start : start + 1024]))
    gaussian = moments.mean_covariance(ddof)
    statistics = Statistics.of(gaussian.mu, gaussian.sigma, len(rows))
    return _add_features(statistics, rows) if wanted else statistics


def _add_features(statistics: Statistics, rows: Features) -> Statistics:
    """Add features in stored order, which become those in canonical order."""
    order = canonical_order(len(rows))
    layer = replace(statistics.layers[FEATURES], features=reorder(rows, order))
    return replace(statistics, layers={FEATURES: layer}, order=order)


def add_origin(statistics: Statistics, writer: str) -> Statistics:
    """Return statistics with their origin and with the definitions of its protocol, as far as they
    are known.
    """
    origin = writer or statistics.origin
    if not origin and _has_spatial(statistics):
        origin = _ADM
    statistics = replace(statistics, origin=origin)
    if _inception_mismatch(statistics.layers[FEATURES]):
        return statistics
    return add_definitions(statistics, _PROTOCOLS.get(origin, ""))


def _has_spatial(statistics: Statistics) -> bool:
    return SPATIAL in statistics.layers and statistics.layers[SPATIAL].dims == SPATIAL_DIMS


def add_definitions(statistics: Statistics, protocol: str) -> Statistics:
    """Return Inception's statistics with the definitions of a protocol."""
    # The other networks of these tools have other dimensions.
    if not protocol or statistics.dims != max(INCEPTION_DIMS):
        return statistics
    definition = inception_definition(find_protocol(protocol), statistics.dims)
    layers = dict(statistics.layers)
    layers[FEATURES] = replace(layers[FEATURES], definition=definition)
    if _has_spatial(statistics):
        layers[SPATIAL] = replace(layers[SPATIAL], definition=spatial_definition(definition))
    return replace(statistics, layers=layers)


def check_inception(name: str, layer: LayerStatistics, extractor: str) -> list[ResultWarning]:
    """Return a warning about statistics that state no network, for a run with Inception, if they
    are unlike its own.

    Raises:
        InputError: if they cannot be Inception's.
    """
    if extractor != "inception" or layer.definition is not None:
        return []
    doubt = _inception_mismatch(layer)
    if not doubt:
        return []
    if layer.mu.min() < 0:
        raise InputError(
            f"{name} was not computed with Inception, {doubt}:",
            "pass statistics of Inception",
            f"name their network with {option('extractor', ...)}",
        )
    advice = "check which network and weights they were computed with"
    return [ResultWarning(name, f"probably not statistics of Inception: {doubt}; {advice}", "high")]


def _inception_mismatch(layer: LayerStatistics) -> str:
    """Return why statistics cannot be Inception's, or are far from the usual; empty if they may
    be.
    """
    if layer.dims not in INCEPTION_DIMS:
        return ""
    lowest = layer.mu.min()
    if lowest < 0:
        return f"whose features are never negative, but the mean of one is {lowest:.3g}"
    length = np.linalg.norm(layer.mu)
    spread = np.sqrt(np.trace(layer.sigma))
    shortest, longest, widest = INCEPTION_SIZES[layer.dims]
    if (
        shortest / _MAX_SIZE_RATIO <= length <= longest * _MAX_SIZE_RATIO
        and spread <= widest * _MAX_SIZE_RATIO
    ):
        return ""
    return (
        f"the mean has the length {length:.3g} and the features have the spread {spread:.3g}, but "
        f"for Inception's {layer.dims} features the length is {shortest} to {longest} and the "
        f"spread at most {widest}"
    )
