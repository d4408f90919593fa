"""Files of statistics: ours (``.npz``), which pytorch-fid can read, and those of other tools."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option, redact, redact_json
from fidtool.features.choice import NetworkChoice, match_layers
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION_DIMS,
    SPATIAL,
    WRITTEN_LAYOUTS,
    Definition,
    find_protocol,
    inception_definition,
    spatial_definition,
)
from fidtool.reading.decode import ImageProperties
from fidtool.reading.records import DETAILS, RECORD_ARRAYS, STAMPS, ImageRecords
from fidtool.sources.contents import BadFile, Files, explain_errors
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.sources.listing import split_key
from fidtool.statistics.foreign import (
    AS_ARRAY,
    MAX_IMAGES,
    Arrays,
    NamedArrays,
    add_origin,
    open_arrays,
    read_foreign,
    statistics_from_features,
)
from fidtool.statistics.rows import reorder
from fidtool.statistics.set_statistics import (
    NO_IMAGES,
    SUMS,
    AbsentStatistics,
    LayerStatistics,
    Statistics,
)
from fidtool.system.cache_dir import atomic_write
from fidtool.system.json_fields import to_json_value
from fidtool.system.local_files import open_regular

# Suffixes of the names of a layer's arrays; ADM's reference files have `mu_s` and `sigma_s`. The
# suffix of any other layer is `_` and its name.
_SUFFIXES = {FEATURES: "", SPATIAL: "_s"}
# Prefix of the names of the arrays with a layer's exact sums.
_SUMS = "sums_"


def write_statistics(
    path: str | Path,
    statistics: Statistics,
    layout: str | None = None,
    images: NDArray[np.uint8] | None = None,
    overwrite: bool = True,
) -> None:
    """Write a statistics file atomically, on the rank that has the statistics. pytorch-fid can read
    it.

    The archive contains ``mu`` and ``sigma`` (float64) and, if known, ``count``, ``fingerprint``
    and ``run`` (JSON strings), ``features`` (float32) and the exact sums, see `LayerStatistics`;
    the same for further layers, with a suffix; ``order``, the number in stored order of each row of
    the features; ``records``, ``names``, ``folder``, ``details`` and ``stamps`` of the images; and
    ``part``, ``places`` and ``skipped_places`` if they are a part of a set. Parts of URLs that may
    be secret are removed.

    Args:
        path: path of the file. No suffix is added.
        statistics: what `fidtool.compute_statistics`, `fidtool.merge_statistics` or
            `fidtool.read_statistics` returned.
        layout: ``adm``, ``clean-fid``, ``edm`` or ``pytorch-fid`` for the evaluator of that
            project, whose protocol the statistics must have. The file then has ``mu``, ``sigma``
            and ``fingerprint``, for ``adm`` also ``mu_s``, ``sigma_s``, ``fingerprint_s`` and
            ``arr_0``; these evaluators do not read the fingerprints. Features are written to a
            second file ``*_kid.npz`` for ``clean-fid``.
        images: ``arr_0``, a sample of the images, uint8 of shape (n, height, width, 3); ADM's files
            have 10,000.
        overwrite: whether to replace an existing file.

    Raises:
        InputError: if a layer other than fidtool's own has no definition, or ``layout`` is not that
            of the statistics.
        OSError: if the file cannot be written, or exists and ``overwrite`` is false; no partial
            file is left behind.
    """
    if isinstance(statistics, AbsentStatistics):
        return
    if layout is not None:
        _write_layout(Path(path), statistics, layout, images, overwrite)
        return
    skipped = tuple(
        BadFile(redact(bad_file.file), redact(bad_file.reason)) for bad_file in statistics.skipped
    )
    statistics = replace(statistics, skipped=skipped, config=redact_json(statistics.config))
    if statistics.pictures is not None:
        statistics = replace(statistics, pictures=statistics.pictures.redact())
    save_arrays(path, to_arrays(statistics), overwrite)


def save_arrays(path: str | Path, arrays: Mapping[str, Any], overwrite: bool = True) -> None:
    """Write an ``.npz`` archive atomically."""
    with atomic_write(Path(path), overwrite) as handle:
        np.savez(handle, **arrays)


def _write_layout(
    path: Path,
    statistics: Statistics,
    layout: str,
    images: NDArray[np.uint8] | None,
    overwrite: bool,
) -> None:
    if layout not in WRITTEN_LAYOUTS:
        raise InputError(f"layout {layout!r} is not one of {', '.join(WRITTEN_LAYOUTS)}")
    if (images is not None) != (layout == "adm"):
        raise InputError(
            "statistics for ADM's evaluator need a sample of the images, and other layouts "
            "cannot contain one"
        )
    if images is not None and (images.dtype != np.uint8 or images.shape[3:] != (3,)):
        raise InputError(
            "images must be uint8 of shape (n, height, width, 3), not "
            f"{images.dtype} of shape {images.shape}"
        )
    statistics.whole(str(path))
    protocol = find_protocol(layout)
    definitions = {FEATURES: inception_definition(protocol, max(INCEPTION_DIMS))}
    arrays: Arrays = {}
    if images is not None:
        definitions[SPATIAL] = spatial_definition(definitions[FEATURES])
        arrays["arr_0"] = images
    for name, definition in definitions.items():
        layer = statistics.layers.get(name)
        if layer is None or layer.definition != definition:
            raise InputError(
                f"{layout} needs different statistics than these:",
                f"compute them with {option('protocol', protocol.name)} and "
                f"{option('metrics', WRITTEN_LAYOUTS[layout])}",
            )
        arrays |= _arrays(name, replace(layer, features=None, sums=None))
    save_arrays(path, arrays, overwrite)
    if layout == "clean-fid" and statistics.features is not None:
        rows = statistics.features
        if statistics.order is not None:
            rows = reorder(rows, np.argsort(statistics.order))
        of_kid = {"feats": rows, "fingerprint": arrays["fingerprint"]}
        save_arrays(features_file(path), of_kid, overwrite)


def features_file(path: Path) -> Path:
    """Return the file with the features that clean-fid reads for KID, beside the one that it reads
    for FID.
    """
    return path.with_name(f"{path.stem}_kid.npz")


def to_arrays(statistics: Statistics) -> Arrays:
    """Return the arrays of a statistics file, with complete URLs, for `parse_statistics`."""
    arrays: Arrays = {}
    for name, layer in statistics.layers.items():
        if name not in _SUFFIXES and layer.definition is None:
            raise InputError(
                f"the layer {name!r} has no definition, without which it cannot be found in a "
                "file again"
            )
        arrays |= _arrays(name, layer)
    if statistics.count is not None:
        arrays["count"] = np.int64(statistics.count)
    if statistics.arithmetic is not None and statistics.traits is not None:
        run = {field.name: getattr(statistics, field.name) for field in fields(_Run)}
        run["skipped"] = [[bad_file.file, bad_file.reason] for bad_file in statistics.skipped]
        if run["framing"] is None:
            del run["framing"]
        arrays["run"] = np.array(json.dumps(run, sort_keys=True, default=to_json_value))
    if statistics.order is not None:
        arrays["order"] = statistics.order
    if statistics.pictures is not None:
        arrays |= statistics.pictures.to_arrays()
    part = statistics.part
    if part is not None:
        arrays["part"] = np.array(json.dumps([part.name, part.whole, part.total]))
        arrays["places"] = part.places
        arrays["skipped_places"] = part.skipped
    return arrays


def _arrays(name: str, layer: LayerStatistics) -> Arrays:
    arrays: Arrays = {}
    if len(layer.mu):
        arrays["mu"] = layer.mu
        arrays["sigma"] = layer.sigma
    if layer.definition is not None:
        arrays["fingerprint"] = np.array(layer.definition.to_json())
    if layer.features is not None:
        arrays["features"] = layer.features
    for key, array in (layer.sums or {}).items():
        arrays[f"{_SUMS}{key}"] = array
    suffix = _SUFFIXES.get(name, f"_{name}")
    return {f"{key}{suffix}": array for key, array in arrays.items()}


@dataclass(frozen=True)
class Summary:
    """Summary of a statistics file.

    Attributes:
        source: path of the images; empty if not recorded.
        found: number of images in the source, of which ``num`` may have selected some; None if not
            recorded.
        definition: definition of the extractor's features; None if not recorded.
        framing: see `Statistics`.
    """

    source: str = ""
    count: int | None = None
    found: int | None = None
    definition: Definition | None = None
    framing: Crop | None = None


def read_summary(path: Path) -> Summary:
    """Read a file's summary without its large arrays. The summary of a damaged or missing file is
    empty.
    """
    try:
        with open_regular(path) as handle, np.load(handle, allow_pickle=False) as archive:
            arrays = NamedArrays(archive)
            names = arrays.names
            run = arrays.json("run", _Run) if "run" in names else None
            return Summary(
                source=os.fsdecode(arrays.array("source").tobytes()) if "source" in names else "",
                count=arrays.count() if "count" in names else None,
                found=run.found if run else None,
                definition=_read_definition(arrays, "fingerprint"),
                framing=run.framing if run else None,
            )
    except Exception:  # damaged archives and headers raise many kinds of exceptions
        return Summary()


def read_statistics(
    path: str | Path,
    features_of: Collection[str] | None = None,
    files: Files | None = None,
    key: str = "",
    networks: Mapping[str, NetworkChoice] | None = None,
) -> Statistics:
    """Read a statistics file that was written by fidtool, or by another tool in a layout of
    `fidtool.statistics.foreign`.

    The file is an ``.npz`` archive or a pickle, whatever its name. Pickled objects are refused and
    never loaded; only numbers, strings and arrays are read. Features of another tool's file are
    returned in canonical order, see `Statistics`.

    Args:
        path: path of the file, or ``FILE.pkl:NAME`` for one of several statistics in a pickle.
        features_of: layers whose per-image features are read if the file has them; None reads all.
        files: opens the file if it is not on this machine; ``path`` then is its name in messages.
        key: name of one of several statistics in a pickle, for ``files``.
        networks: the run's networks by its layers, which the layers of the file become, see
            `match_layers`; None keeps the names in the file.

    Returns:
        The statistics, with ``mu`` of shape (dims,) and ``sigma`` of shape (dims, dims), both
        float64. Their attributes are None where the file does not have them.

    Raises:
        InputError: if the file does not exist or is damaged, if keys are missing, shapes are wrong
            or the values are not a mean and a covariance, or if the file has several statistics and
            none is named.
        RunError: if there is not enough space for the features.
    """
    path = str(path)
    if files is None:
        name, key = (path, key) if key else split_key(path)
        if not os.path.isfile(name):
            raise InputError(f"no statistics file {path}")
        files = Files([name])
    with explain_errors(path), open_arrays(path, files, key) as arrays:
        statistics = read_foreign(arrays, features_of)
        if statistics is None:
            statistics = parse_statistics(arrays, path, features_of, networks)
        else:
            definition = _read_definition(arrays, "fingerprint")  # as of features for clean-fid
            main = replace(statistics.layers[FEATURES], definition=definition)
            statistics = replace(statistics, layers={FEATURES: main})
        if all(layer.definition is None for layer in statistics.layers.values()):
            statistics = add_origin(statistics, arrays.writer)
        return statistics


def load_statistics(given: str | os.PathLike[str] | Statistics) -> Statistics:
    """Return the statistics in a file, or those that are given."""
    return given if isinstance(given, Statistics) else read_statistics(os.fspath(given))


def statistics_from_array(path: str, features: NDArray[Any], name: str, wanted: bool) -> Statistics:
    """Return the statistics of an array (N, D) of features, called ``name`` in messages; with it
    if ``wanted``.
    """
    with explain_errors(path):
        return statistics_from_features(NamedArrays({name: features}).rows(name), wanted, ddof=1)


def parse_statistics(
    arrays: NamedArrays,
    path: str = "",
    features_of: Collection[str] | None = None,
    networks: Mapping[str, NetworkChoice] | None = None,
) -> Statistics:
    """Read statistics in our own layout, of which other tools' ``mu`` and ``sigma`` are a part.

    The arguments are those of `read_statistics`. A part of a set may have no layer, or layers of
    sums alone.
    """
    names = arrays.names
    of_part = "part" in names
    if not of_part and not arrays.layers:
        missing = [name for name in ("mu", "sigma") if name not in names]
        if missing:
            has = ", ".join([*names][:8]) or "nothing"
            raise InputError(
                f"the statistics file {path} has no {' and no '.join(missing)}; it contains {has}:",
                "create it with `fidtool stats`",
                AS_ARRAY,
            )
    # Of a part, no image may have been readable.
    count = arrays.count(least=not of_part) if "count" in names else None
    suffixes = _find_suffixes(arrays)
    definitions = {
        name: _read_definition(arrays, f"fingerprint{suffix}") for name, suffix in suffixes.items()
    }
    layers = {}
    for layer, name in match_layers(definitions, networks or {}).items():
        with_features = features_of is None or layer in features_of
        layers[layer] = _read_layer(arrays, suffixes[name], count, definitions[name], with_features)
    if FEATURES not in layers and not of_part:
        network = networks[FEATURES].extractor if networks else "inception"
        raise InputError(
            f"{path} has no statistics of {network}; it has statistics of {' and '.join(layers)}:",
            f"pass {option('extractor', next(iter(layers)))}",
            setting="extractor",
        )
    records = {
        name: arrays.array(name) for name in (*RECORD_ARRAYS, DETAILS, STAMPS) if name in names
    }
    run: dict[str, Any] = {}
    if "run" in names:
        run |= vars(arrays.json("run", _Run))
        run["skipped"] = tuple(starmap(BadFile, run["skipped"]))
    return Statistics(
        layers,
        count,
        pictures=ImageRecords.from_arrays(records, count),
        order=arrays.numbers("order", count) if "order" in names else None,
        part=_read_part(arrays, count) if of_part else None,
        **run,
    )


def _find_suffixes(arrays: NamedArrays) -> dict[str, str]:
    """Return the suffixes of the layers in a file, by layer.

    Of layers that are not in `_SUFFIXES`, these are only those with a fingerprint, which other
    tools do not write: the meaning of their arrays is unknown.
    """
    suffixes = dict(_SUFFIXES)
    fingerprints = [name for name in arrays.names if name.startswith("fingerprint_")]
    for layer in (*(name.removeprefix("fingerprint_") for name in fingerprints), *arrays.layers):
        if f"_{layer}" not in _SUFFIXES.values():
            suffixes[layer] = f"_{layer}"
    return {
        layer: suffix
        for layer, suffix in suffixes.items()
        if {f"mu{suffix}", f"sigma{suffix}"} <= arrays.names
        or {"part", f"{_SUMS}count{suffix}"} <= arrays.names
    }


def _read_layer(
    arrays: NamedArrays,
    suffix: str,
    count: int | None,
    definition: Definition | None,
    with_features: bool,
) -> LayerStatistics:
    mu = NO_IMAGES.mu
    sigma = NO_IMAGES.sigma
    if f"mu{suffix}" in arrays.names:
        mu, sigma = arrays.gaussian(f"mu{suffix}", f"sigma{suffix}")
    sums = {}
    for key in SUMS:
        name = f"{_SUMS}{key}{suffix}"
        if name in arrays.names:
            sums[key] = arrays.array(name)
    layer = LayerStatistics(mu, sigma, definition, sums=sums or None)
    dims = layer.dims
    if definition is not None and definition.dims != dims:
        raise ValueError(f"its fingerprint states {definition.dims} dims, but mu has {dims}")
    kept = f"features{suffix}"
    # Without a count, another tool wrote them.
    if with_features and count is not None and kept in arrays.names:
        features = arrays.rows(kept) if count else np.zeros((0, dims), np.float32)
        if features.shape != (count, dims):
            raise ValueError(
                f"it has {kept} of shape {features.shape}, but {count} images and {dims} dims"
            )
        layer = replace(layer, features=features)
    if not _is_consistent(layer, count):
        raise ValueError(
            "its mean, covariance, features and exact sums were not computed from the same images"
        )
    return layer


def _is_consistent(layer: LayerStatistics, count: int | None) -> bool:
    """Whether the mean and covariance are those of the features and of the sums; a ValueError if
    the sums are damaged.
    """
    definition = layer.definition
    if definition is None:  # another tool wrote it
        return layer.sums is None
    # The size of the largest feature.
    size = math.sqrt(np.max(layer.mu**2 + layer.sigma.diagonal(), initial=0.0))
    if layer.sums is not None:
        # Deferred: files without sums are read without torch.
        from fidtool.statistics.moments import ExactMoments

        moments = ExactMoments(definition.dims, definition.feature_step)
        moments.absorb(layer.sums)
        if moments.count != count:
            return False
        if len(layer.mu):
            exact = moments.mean_covariance(definition.ddof)
            if not np.allclose(exact.mu, layer.mu, rtol=0.0, atol=1e-9 * size):
                return False
            if not np.allclose(exact.sigma, layer.sigma, rtol=0.0, atol=1e-9 * size**2):
                return False
    if layer.features is None or not len(layer.mu):
        return True
    mean = layer.features.mean(axis=0, dtype=np.float64)
    return np.allclose(mean, layer.mu, rtol=0.0, atol=1e-4 * size)


def _read_part(arrays: NamedArrays, count: int | None) -> SetPart:
    name, whole, total = arrays.json("part", tuple[str, str, Annotated[int, 1, MAX_IMAGES]])
    places = arrays.numbers("places", count, total)
    skipped = arrays.numbers("skipped_places", None, total)
    return SetPart(name, whole, total, places, skipped)


def _read_definition(arrays: NamedArrays, name: str) -> Definition | None:
    if name not in arrays.names:
        return None
    text = arrays.text(name)
    try:
        return Definition.from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its protocol fingerprint: {error}") from None


@dataclass(frozen=True)
class _Run:
    """The file's record of the run that computed the statistics, as `to_arrays` returns it."""

    arithmetic: dict[str, str | int | None]
    traits: ImageProperties
    skipped: tuple[tuple[str, str], ...] = ()
    found: int | None = None
    config: dict[str, Any] | None = None
    framing: Crop | None = None
