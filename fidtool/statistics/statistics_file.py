"""Files of statistics (``.npz``): ours, which pytorch-fid can read, and those of other tools."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fidtool.cache_dir import atomic_write
from fidtool.errors import FidtoolError, InputError
from fidtool.features.definition import Definition
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RECORD_ARRAYS, ImageRecords
from fidtool.redaction import redacted, without_secrets
from fidtool.sources.contents import BadFile, Files, LocalFiles, StoreError
from fidtool.statistics.feature_buffer import read_features
from fidtool.statistics.set_statistics import LayerStatistics, Statistics

_SUFFIXES = {FEATURES: "", SPATIAL: "_s", EMBEDDING: "_embedding"}
"""Suffixes of the names of a layer's arrays; ADM's reference files have ``mu_s`` and ``sigma_s``. The suffix of any
other layer is ``_`` and its name."""
_WANTED = ("mu", "sigma", "count", "fingerprint", "run")
_LONGEST_TEXT = 4096
"""Largest number of characters that are read of a string in a file: the maximum length of a path."""


def write_statistics(path: str | Path, statistics: Statistics) -> None:
    """Writes a statistics file atomically, replacing an existing one. pytorch-fid can read it.

    The archive contains ``mu`` and ``sigma`` (float64) and, if known, ``count``, ``fingerprint`` and ``run`` (JSON
    strings) and ``features`` (float32); the same for further layers, with a suffix; ``order``, the number in stored
    order of each row of the features; and ``records``, ``names`` and ``folder`` of the images. Parts of URLs that may
    be secret are removed.

    Args:
        path: path of the file.
        statistics: statistics to write.

    Raises:
        InputError: if a layer other than fidtool's own has no definition.
        OSError: if the file cannot be written; no partial file is left behind.
    """
    pictures = None if statistics.pictures is None else statistics.pictures.redacted()
    skipped = tuple(BadFile(redacted(bad.file), redacted(bad.reason)) for bad in statistics.skipped)
    config = None if statistics.config is None else without_secrets(statistics.config)
    write_unredacted(path, replace(statistics, pictures=pictures, skipped=skipped, config=config))


def write_unredacted(path: str | Path, statistics: Statistics, source: str = "") -> None:
    """Writes a statistics file with complete URLs, for use on this machine only.

    Args:
        path, statistics: see `write_statistics`.
        source: path of the images, for `read_summary`.

    Raises:
        InputError: see `write_statistics`.
        OSError: see `write_statistics`.
    """
    arrays: dict[str, Any] = {}
    for name, layer in statistics.layers.items():
        if name not in _SUFFIXES and layer.definition is None:
            raise InputError(f"the layer {name!r} has no definition, without which it cannot be found in {path} again")
        arrays |= _arrays(layer, _suffix(name))
    if statistics.count is not None:
        arrays["count"] = np.int64(statistics.count)
    if statistics.arithmetic is not None and statistics.traits is not None:
        skipped = [[bad.file, bad.reason] for bad in statistics.skipped]
        run: dict[str, Any] = {
            "arithmetic": statistics.arithmetic,
            "traits": asdict(statistics.traits),
            "skipped": skipped,
            "found": statistics.found,
            "config": statistics.config,
        }
        if statistics.framing is not None:
            run["framing"] = statistics.framing
        arrays["run"] = np.array(json.dumps(run, sort_keys=True))
    if statistics.order is not None:
        arrays["order"] = statistics.order
    if statistics.pictures is not None:
        arrays |= statistics.pictures.to_arrays()
    if source:
        arrays["source"] = np.frombuffer(os.fsencode(source), dtype=np.uint8)
    with atomic_write(Path(path)) as handle:
        np.savez(handle, **arrays)


@dataclass(frozen=True)
class Summary:
    """Summary of a statistics file.

    Attributes:
        source: path of the images; empty if not recorded.
        count: number of images; None if not recorded.
        found: number of images in the source, of which ``num`` may have selected some; None if not recorded.
        definitions: definitions of the features by layer, as far as they are recorded.
        with_features: the layers whose per-image features are stored.
        has_records: whether the records of the images are stored.
        arithmetic: see `Statistics`; empty if not recorded.
    """

    source: str = ""
    count: int | None = None
    found: int | None = None
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    with_features: frozenset[str] = frozenset()
    has_records: bool = False
    arithmetic: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, statistics: Statistics) -> Summary:
        """Returns the summary of statistics in memory, without their source."""
        return cls(
            count=statistics.count,
            found=statistics.found,
            definitions={name: each.definition for name, each in statistics.layers.items() if each.definition},
            with_features=frozenset(name for name, each in statistics.layers.items() if each.features is not None),
            has_records=statistics.pictures is not None,
            arithmetic=statistics.arithmetic or {},
        )

    @property
    def definition(self) -> Definition | None:
        """Definition of the extractor's features; None if not recorded."""
        return self.definitions.get(FEATURES)

    def contains(self, other: Summary) -> bool:
        """Returns whether statistics of the same images have everything that ``other`` has."""
        return (
            self.definitions.items() >= other.definitions.items()
            and self.with_features >= other.with_features
            and self.has_records >= other.has_records
            and self.arithmetic.items() >= other.arithmetic.items()
        )


def read_summary(path: Path) -> Summary:
    """Reads a file's summary without its large arrays. The summary of a damaged or missing file is empty."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            source = os.fsdecode(archive["source"].tobytes()) if "source" in archive.files else ""
            count = _count(path, archive["count"]) if "count" in archive.files else None
            run = json.loads(_text(path, archive["run"])) if "run" in archive.files else {}
            layers = [layer for layer in _layers_in(archive.files) if f"fingerprint{_suffix(layer)}" in archive.files]
            return Summary(
                source,
                count,
                _found_of(run.get("found"), count),
                {layer: _definition(path, archive[f"fingerprint{_suffix(layer)}"]) for layer in layers},
                frozenset(layer for layer in layers if f"features{_suffix(layer)}" in archive.files),
                {*RECORD_ARRAYS} <= {*archive.files},
                dict(run.get("arithmetic") or {}),
            )
    except Exception:  # damaged archives and headers raise many kinds of exceptions
        return Summary()


def _suffix(layer: str) -> str:
    return _SUFFIXES.get(layer, f"_{layer}")


def _layers_in(names: Collection[str]) -> list[str]:
    """Returns the layers in an archive, given the names of its arrays."""
    # Only layers with a fingerprint, which other tools do not write: the meaning of their arrays is unknown.
    own = [name.removeprefix("fingerprint_") for name in names if name.startswith("fingerprint_")]
    layers = [*_SUFFIXES, *(layer for layer in own if f"_{layer}" not in _SUFFIXES.values())]
    return [layer for layer in layers if {f"mu{_suffix(layer)}", f"sigma{_suffix(layer)}"} <= {*names}]


def _arrays(layer: LayerStatistics, suffix: str) -> dict[str, Any]:
    """Returns one layer's arrays, by their names in the archive."""
    arrays: dict[str, Any] = {f"mu{suffix}": layer.mu, f"sigma{suffix}": layer.sigma}
    if layer.definition is not None:
        arrays[f"fingerprint{suffix}"] = np.array(layer.definition.to_json())
    if layer.features is not None:
        arrays[f"features{suffix}"] = layer.features
    return arrays


def read_statistics(
    path: str | Path, features_of: Collection[str] | None = None, files: Files | None = None
) -> Statistics:
    """Reads a statistics file: ours, or one of pytorch-fid, clean-fid, ADM or EDM.

    Pickled objects are refused and never loaded.

    Args:
        path: path of the file.
        features_of: layers whose per-image features are read if the file has them; None reads all.
        files: opens the file if it is not on this machine.

    Raises:
        InputError: if there is no such file, it is damaged, keys are missing, shapes are wrong, or the values are not a
            mean and a covariance.
        RunError: if there is not enough space for the features.
    """
    if files is None and not Path(path).is_file():
        raise InputError(f"no statistics file {path}")
    fields = _read_arrays(str(path), files or LocalFiles([str(path)]), features_of)
    count = _count(path, fields["count"]) if "count" in fields else None
    layers = {name: _layer(path, fields, _suffix(name), count) for name in _layers_in(fields)}
    order = _order(path, fields["order"], count) if "order" in fields else None
    statistics = Statistics(layers, count, pictures=ImageRecords.from_arrays(fields, count), order=order)
    return _with_run(path, statistics, fields["run"]) if "run" in fields else statistics


def _layer(path: str | Path, fields: dict[str, NDArray[Any]], suffix: str, count: int | None) -> LayerStatistics:
    """Returns one layer of the file after checking it.

    Raises:
        InputError: see `read_statistics`.
    """
    mu, sigma = (_as_float64(path, f"{name}{suffix}", fields[f"{name}{suffix}"]) for name in ("mu", "sigma"))
    if mu.ndim != 1 or sigma.shape != (len(mu), len(mu)) or len(mu) == 0:
        raise InputError(
            f"the statistics file {path} has mu of shape {mu.shape} and sigma of shape {sigma.shape}; "
            "they should be (D,) and (D, D)"
        )
    if not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
        raise InputError(f"the statistics file {path} contains NaN or infinite values", "compute it again")
    if np.abs(sigma - sigma.T).max() > 1e-6 * np.abs(sigma).max() or sigma.diagonal().min() < 0:
        raise InputError(f"sigma in {path} is not a covariance: it is not symmetric, or has a negative variance")
    fingerprint, features = fields.get(f"fingerprint{suffix}"), fields.get(f"features{suffix}")
    definition = None if fingerprint is None else _definition(path, fingerprint)
    if definition is not None and definition.dims != len(mu):
        raise InputError(f"the fingerprint in {path} states {definition.dims} dims, but mu has {len(mu)}")
    if features is not None and features.shape != (count, len(mu)):
        raise InputError(
            f"the statistics file {path} has features{suffix} of shape {features.shape}, but {count} images and "
            f"{len(mu)} dims"
        )
    return LayerStatistics(mu, sigma, definition, features)


def _read_arrays(path: str, files: Files, features_of: Collection[str] | None) -> dict[str, NDArray[Any]]:
    """Reads the arrays of a file, with the per-image features of the layers ``features_of``, or of all."""
    try:
        with files.open(0) as handle:
            return _arrays_in(path, handle, features_of)
    except (FidtoolError, StoreError):
        raise
    except Exception as error:  # damaged archives and headers raise many kinds of exceptions
        looks_right = _starts_like_data(files)
        if "pickle" in str(error).lower() and looks_right:
            raise InputError(
                f"{path} contains pickled objects, which are never loaded, because loading them can run code",
                "write mu and sigma as float64 arrays with numpy.savez",
            ) from None
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, BadZipFile):
            message = "it is damaged or truncated"
        if not looks_right:
            message = "it is not an .npz archive"
        raise InputError(f"{path} cannot be read: {message}", "copy or create it again") from None


def _arrays_in(path: str, handle: BinaryIO, features_of: Collection[str] | None) -> dict[str, NDArray[Any]]:
    archive = np.load(handle, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is a single array (.npy); a statistics file is an .npz archive with mu and sigma")
    with archive:
        missing = [name for name in ("mu", "sigma") if name not in archive.files]
        if missing:
            has = ", ".join(archive.files[:8]) or "nothing"
            raise InputError(f"the statistics file {path} has no {' and no '.join(missing)}; it contains {has}")
        layers = _layers_in(archive.files)
        names = [f"{name}{_suffix(layer)}" for layer in layers for name in _WANTED]
        names += [*RECORD_ARRAYS, "order"]
        fields = {name: archive[name] for name in names if name in archive.files}
        for name in (f"features{_suffix(layer)}" for layer in layers if features_of is None or layer in features_of):
            if name in archive.files and "count" in fields:  # without a count, another tool wrote them
                fields[name] = read_features(archive, name)
        return fields


def _starts_like_data(files: Files) -> bool:
    """Returns whether a file starts like an .npz, an .npy or a pickle."""
    with files.open(0) as handle:
        return handle.read(6).startswith((b"PK", b"\x93NUMPY", b"\x80"))


def _as_float64(path: str | Path, name: str, value: NDArray[Any]) -> NDArray[np.float64]:
    if value.dtype.kind not in "fiu":
        raise InputError(f"{name} in the statistics file {path} has dtype {value.dtype}; it should be float64")
    return value.astype(np.float64)


def _definition(path: str | Path, value: NDArray[Any]) -> Definition:
    try:
        return Definition.from_json(_text(path, value))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the protocol fingerprint in {path} cannot be read: {error}") from None


def _text(path: str | Path, value: NDArray[Any]) -> str:
    if value.dtype.kind != "U" or value.ndim != 0:
        raise InputError(f"the statistics file {path} has a fingerprint that is not a string")
    return str(value)


def _count(path: str | Path, value: NDArray[Any]) -> int:
    if value.dtype.kind not in "iu" or value.ndim != 0 or int(value) < 1:
        raise InputError(f"the statistics file {path} has a count that is not a positive integer")
    return int(value)


def _order(path: str | Path, value: NDArray[Any], count: int | None) -> NDArray[np.int64]:
    if value.dtype.kind not in "iu" or value.shape != (count,):
        raise InputError(f"the statistics file {path} has an order that is not one integer per image")
    return value.astype(np.int64)


def _with_run(path: str | Path, statistics: Statistics, value: NDArray[Any]) -> Statistics:
    """Adds the file's record of its run to the statistics, as far as it is plausible."""
    try:
        run = json.loads(_text(path, value))
        traits = ImageProperties(**{name: int(number) for name, number in run["traits"].items()})
        skipped = tuple(BadFile(_capped(file), _capped(reason)) for file, reason in run.get("skipped", ()))
        return replace(
            statistics,
            arithmetic=dict(run["arithmetic"]),
            traits=traits,
            skipped=skipped,
            found=_found_of(run.get("found"), statistics.count),
            config=_settings_of(run.get("config")),
            framing=_capped(framing) if isinstance(framing := run.get("framing"), str) else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        # The record does not affect results, and a newer version may have written it in a different form.
        return statistics


def _capped(value: object) -> str:
    text = str(value)
    # Redacted before it is truncated, because a truncated URL might not be recognised as one.
    return text if len(text) <= _LONGEST_TEXT else redacted(text)[:_LONGEST_TEXT]


def _found_of(value: object, count: int | None) -> int | None:
    """Returns the number of images in the source; None if the value is not plausible."""
    if count is None or not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if count <= value <= np.iinfo(np.int64).max else None


def _settings_of(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the settings that are plain values or lists of them, and not too long."""
    if config is None:
        return None
    plain = (str, int, float, type(None))
    lists = {
        name: value if isinstance(value, list) else [value] for name, value in config.items() if name.isidentifier()
    }
    usable = {name: config[name] for name, values in lists.items() if all(isinstance(each, plain) for each in values)}
    return {name: value for name, value in usable.items() if len(json.dumps(value, allow_nan=False)) <= _LONGEST_TEXT}
