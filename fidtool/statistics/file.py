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

from fidtool.errors import InputError, option, redacted, without_secrets
from fidtool.features.models.families import NetworkChoice, layers_in
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION_DIMS,
    SPATIAL,
    WRITTEN_LAYOUTS,
    Definition,
    inception_definition,
    protocol_named,
    spatial_definition,
)
from fidtool.reading.decode import ImageProperties
from fidtool.reading.records import DETAILS, RECORD_ARRAYS, STAMPS, ImageRecords
from fidtool.sources.contents import BadFile, Files, explained
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.sources.listing import split_key
from fidtool.statistics.foreign import (
    AS_ARRAY,
    MOST_IMAGES,
    NamedArrays,
    of_features,
    open_arrays,
    read_foreign,
    with_origin,
)
from fidtool.statistics.set_statistics import (
    NO_IMAGES,
    SUMS,
    LayerStatistics,
    Statistics,
    reordered,
)
from fidtool.system.cache_dir import atomic_write
from fidtool.system.json_fields import plain
from fidtool.system.local_files import open_regular

_SUFFIXES = {FEATURES: "", SPATIAL: "_s"}
"""Suffixes of the names of a layer's arrays; ADM's reference files have ``mu_s`` and ``sigma_s``.
The suffix of any other layer is ``_`` and its name.
"""
_SUMS = "sums_"
"""Prefix of the names of the arrays with a layer's exact sums."""


def write_statistics(
    path: str | Path,
    statistics: Statistics,
    layout: str | None = None,
    images: NDArray[np.uint8] | None = None,
    overwrite: bool = True,
) -> None:
    """Writes a statistics file atomically. pytorch-fid can read it.

    The archive contains ``mu`` and ``sigma`` (float64) and, if known, ``count``, ``fingerprint``
    and ``run`` (JSON strings), ``features`` (float32) and the exact sums, see `LayerStatistics`;
    the same for further layers, with a suffix; ``order``, the number in stored order of each row of
    the features; ``records``, ``names``, ``folder``, ``details`` and ``stamps`` of the images; and
    ``part``, ``places`` and ``skipped_places`` if they are a part of a set. Parts of URLs that may
    be secret are removed.

    Args:
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
    if layout is not None:
        return _write_layout(Path(path), statistics, layout, images, overwrite)
    pictures = None if statistics.pictures is None else statistics.pictures.redacted()
    skipped = tuple(BadFile(redacted(bad.file), redacted(bad.reason)) for bad in statistics.skipped)
    config = None if statistics.config is None else without_secrets(statistics.config)
    shown = replace(statistics, pictures=pictures, skipped=skipped, config=config)
    save_arrays(path, arrays_of(shown), overwrite)


def save_arrays(path: str | Path, arrays: Mapping[str, Any], overwrite: bool = True) -> None:
    """Writes an ``.npz`` archive atomically."""
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
            "statistics for ADM's evaluator need a sample of the images, and others cannot have one"
        )
    if images is not None and (images.dtype != np.uint8 or images.shape[3:] != (3,)):
        shape = f"{images.dtype} of shape {images.shape}"
        raise InputError(f"images must be uint8 of shape (n, height, width, 3), not {shape}")
    statistics.whole(str(path))
    protocol = protocol_named(layout)
    definitions = {FEATURES: inception_definition(protocol, max(INCEPTION_DIMS))}
    if layout == "adm":
        definitions[SPATIAL] = spatial_definition(definitions[FEATURES])
    arrays: dict[str, Any] = {} if images is None else {"arr_0": images}
    for name, definition in definitions.items():
        layer = statistics.layers.get(name)
        if layer is None or layer.definition != definition:
            needed = (
                f"{option('protocol', protocol.name)} and "
                f"{option('metrics', WRITTEN_LAYOUTS[layout])}"
            )
            raise InputError(
                f"{layout}'s statistics are others than these:", f"compute them with {needed}"
            )
        arrays |= _arrays(name, replace(layer, features=None, sums=None))
    save_arrays(path, arrays, overwrite)
    if layout == "clean-fid" and statistics.features is not None:
        rows = statistics.features
        if statistics.order is not None:
            rows = reordered(rows, np.argsort(statistics.order))
        save_arrays(
            features_file(path), {"feats": rows, "fingerprint": arrays["fingerprint"]}, overwrite
        )


def features_file(path: Path) -> Path:
    """Returns the file with the features that clean-fid reads for KID, beside the one that it reads
    for FID.
    """
    return path.with_name(f"{path.stem}_kid.npz")


def arrays_of(statistics: Statistics) -> dict[str, Any]:
    """Returns the arrays of a statistics file, with complete URLs, for `own_statistics`."""
    arrays: dict[str, Any] = {}
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
        run["skipped"] = [[bad.file, bad.reason] for bad in statistics.skipped]
        if statistics.framing is None:
            del run["framing"]
        arrays["run"] = np.array(json.dumps(run, sort_keys=True, default=plain))
    if statistics.order is not None:
        arrays["order"] = statistics.order
    if statistics.pictures is not None:
        arrays |= statistics.pictures.to_arrays()
    if (part := statistics.part) is not None:
        arrays |= {
            "part": np.array(json.dumps([part.name, part.whole, part.total])),
            "places": part.places,
        }
        arrays["skipped_places"] = part.skipped
    return arrays


def _arrays(name: str, layer: LayerStatistics) -> dict[str, Any]:
    """Returns one layer's arrays, by their names in the archive."""
    suffix = _SUFFIXES.get(name, f"_{name}")
    arrays: dict[str, Any] = (
        {f"mu{suffix}": layer.mu, f"sigma{suffix}": layer.sigma} if len(layer.mu) else {}
    )
    if layer.definition is not None:
        arrays[f"fingerprint{suffix}"] = np.array(layer.definition.to_json())
    if layer.features is not None:
        arrays[f"features{suffix}"] = layer.features
    return arrays | {f"{_SUMS}{key}{suffix}": array for key, array in (layer.sums or {}).items()}


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
    """Reads a file's summary without its large arrays. The summary of a damaged or missing file is
    empty.
    """
    try:
        with open_regular(path) as handle, np.load(handle, allow_pickle=False) as archive:
            arrays = NamedArrays(archive)
            names = {*arrays.names}
            run = arrays.json("run", _Run) if "run" in names else None
            return Summary(
                source=os.fsdecode(arrays.array("source").tobytes()) if "source" in names else "",
                count=arrays.count() if "count" in names else None,
                found=run and run.found,
                definition=_definition(arrays, "fingerprint"),
                framing=run and run.framing,
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
    """Reads a statistics file: ours, or one of another tool in a layout of
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
            `layers_in`; None keeps the names in the file.

    Raises:
        InputError: if there is no such file, it is damaged, keys are missing, shapes are wrong, the
            values are not a mean and a covariance, or it has several statistics of which none was
            named.
        RunError: if there is not enough space for the features.
    """
    if files is None:
        name, key = (str(path), key) if key else split_key(str(path))
        if not os.path.isfile(name):
            raise InputError(f"no statistics file {path}")
        files = Files([name])
    with explained(str(path)), open_arrays(str(path), files, key) as arrays:
        statistics = read_foreign(arrays, features_of)
        if statistics is None:
            statistics = own_statistics(arrays, str(path), features_of, networks)
        elif (
            definition := _definition(arrays, "fingerprint")
        ) is not None:  # of features for clean-fid
            main = replace(statistics.layers[FEATURES], definition=definition)
            statistics = replace(statistics, layers={FEATURES: main})
        stated = any(layer.definition is not None for layer in statistics.layers.values())
        return statistics if stated else with_origin(statistics, arrays.writer)


def statistics_in(given: str | os.PathLike[str] | Statistics) -> Statistics:
    """Returns the statistics in a file, or those that are given."""
    return given if isinstance(given, Statistics) else read_statistics(os.fspath(given))


def features_alone(path: str, features: NDArray[Any], name: str, wanted: bool) -> Statistics:
    """Returns the statistics of an array (N, D) of features, called ``name`` in messages; with it
    if ``wanted``.
    """
    with explained(path):
        return of_features(NamedArrays({name: features}).rows(name), wanted, ddof=1)


def own_statistics(
    arrays: NamedArrays,
    path: str = "",
    features_of: Collection[str] | None = None,
    networks: Mapping[str, NetworkChoice] | None = None,
) -> Statistics:
    """Reads statistics in our own layout, of which other tools' ``mu`` and ``sigma`` are a part.

    The arguments are those of `read_statistics`. A part of a set may have no layer, or layers of
    sums alone.
    """
    names, of_part = {*arrays.names}, "part" in arrays.names
    missing = (
        [] if of_part or arrays.layers else [name for name in ("mu", "sigma") if name not in names]
    )
    if missing:
        has = ", ".join([*arrays.names][:8]) or "nothing"
        raise InputError(
            f"the statistics file {path} has no {' and no '.join(missing)}; it contains {has}:",
            "create it with `fidtool stats`",
            AS_ARRAY,
        )
    # Of a part, no image may have been readable.
    count = arrays.count(least=not of_part) if "count" in names else None
    # Only layers with a fingerprint, which other tools do not write: the meaning of their arrays is
    # unknown.
    own = [
        name.removeprefix("fingerprint_")
        for name in arrays.names
        if name.startswith("fingerprint_")
    ]
    suffixes = _SUFFIXES | {
        name: f"_{name}" for name in (*own, *arrays.layers) if f"_{name}" not in _SUFFIXES.values()
    }
    in_file = {
        name: suffix
        for name, suffix in suffixes.items()
        if {f"mu{suffix}", f"sigma{suffix}"} <= names
        or (of_part and f"{_SUMS}count{suffix}" in names)
    }
    definitions = {
        name: _definition(arrays, f"fingerprint{suffix}") for name, suffix in in_file.items()
    }
    found = {
        layer: _layer(
            arrays,
            in_file[name],
            count,
            definitions[name],
            features_of is None or layer in features_of,
        )
        for layer, name in layers_in(definitions, networks or {}).items()
    }
    if FEATURES not in found and not of_part:
        network = networks[FEATURES].extractor if networks else "inception"
        raise InputError(
            f"{path} has no statistics of {network}; it has those of {' and '.join(found)}:",
            f"pass {option('extractor', next(iter(found)))}",
            setting="extractor",
        )
    records = {
        name: arrays.array(name) for name in (*RECORD_ARRAYS, DETAILS, STAMPS) if name in names
    }
    statistics = Statistics(
        found,
        count,
        pictures=ImageRecords.from_arrays(records, count),
        order=arrays.numbers("order", count) if "order" in names else None,
        part=_part(arrays, count) if of_part else None,
    )
    return _with_run(statistics, arrays) if "run" in names else statistics


def _layer(
    arrays: NamedArrays,
    suffix: str,
    count: int | None,
    definition: Definition | None,
    with_features: bool,
) -> LayerStatistics:
    """Returns one layer of the file after checking it."""
    sums = {
        key: arrays.array(f"{_SUMS}{key}{suffix}")
        for key in SUMS
        if f"{_SUMS}{key}{suffix}" in arrays.names
    }
    if sums and sums["count"].tolist() != count:
        raise ValueError("its count of images is not that of its exact sums")
    if sums and definition is None:
        raise ValueError("it has exact sums, but no fingerprint")
    found = LayerStatistics(NO_IMAGES.mu, NO_IMAGES.sigma, definition, sums=sums or None)
    if f"mu{suffix}" in arrays.names:
        mu, sigma = arrays.gaussian(f"mu{suffix}", f"sigma{suffix}")
        found = replace(found, mu=mu, sigma=sigma)
    if definition is not None and definition.dims != found.dims:
        raise ValueError(f"its fingerprint states {definition.dims} dims, but mu has {found.dims}")
    kept = f"features{suffix}"
    if (
        with_features and count is not None and kept in arrays.names
    ):  # without a count, another tool wrote them
        features = arrays.rows(kept) if count else np.zeros((0, found.dims), np.float32)
        if features.shape != (count, found.dims):
            raise ValueError(
                f"it has {kept} of shape {features.shape}, but {count} images and {found.dims} dims"
            )
        found = replace(found, features=features)
    if definition is not None:  # fidtool wrote them
        _check_layer(found, definition)
    return found


def _check_layer(layer: LayerStatistics, definition: Definition) -> None:
    """Checks that the mean and covariance are those of the sums and of the features; a ValueError
    if not.
    """
    size = math.sqrt(
        np.max(layer.mu**2 + layer.sigma.diagonal(), initial=0.0)
    )  # of the largest feature
    if layer.features is not None and len(layer.mu):
        mean = layer.features.mean(axis=0, dtype=np.float64)
        if not np.allclose(mean, layer.mu, rtol=0.0, atol=1e-4 * size):
            raise ValueError("its mean is not that of its features")
    if layer.sums is None:
        return
    from fidtool.statistics.moments import (
        ExactMoments,  # deferred: files without sums are read without torch
    )

    moments = ExactMoments(definition.dims, definition.feature_step)
    moments.absorb(layer.sums)
    if len(layer.mu):
        exact = moments.mean_covariance(definition.ddof)
        same_mean = np.allclose(exact.mu, layer.mu, rtol=0.0, atol=1e-9 * size)
        if not same_mean or not np.allclose(
            exact.sigma, layer.sigma, rtol=0.0, atol=1e-9 * size**2
        ):
            raise ValueError("its mean and covariance are not those of its exact sums")


def _part(arrays: NamedArrays, count: int | None) -> SetPart:
    name, whole, total = arrays.json("part", tuple[str, str, Annotated[int, 1, MOST_IMAGES]])
    places = arrays.numbers("places", count, total)
    return SetPart(name, whole, total, places, arrays.numbers("skipped_places", None, total))


def _definition(arrays: NamedArrays, name: str) -> Definition | None:
    """Returns the definition in an array; None if there is no such array."""
    if name not in arrays.names:
        return None
    text = arrays.text(name)
    try:
        return Definition.from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its protocol fingerprint: {error}") from None


@dataclass(frozen=True)
class _Run:
    """The file's record of the run that computed the statistics, as `arrays_of` returns it."""

    arithmetic: dict[str, str | int | None]
    traits: ImageProperties
    skipped: tuple[tuple[str, str], ...] = ()
    found: int | None = None
    config: dict[str, Any] | None = None
    framing: Crop | None = None


def _with_run(statistics: Statistics, arrays: NamedArrays) -> Statistics:
    """Adds the file's record of its run to the statistics."""
    run = arrays.json("run", _Run)
    return replace(statistics, **{**vars(run), "skipped": tuple(starmap(BadFile, run.skipped))})
