"""The cache of the statistics of sets: a file per set and layer, named by a hash of everything that
determines it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidtool.errors import RunError, Say, format_reason, redact
from fidtool.features.protocol import FEATURES, PROBE, Definition
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.listing import STDIN
from fidtool.statistics.file import read_statistics, save_arrays, to_arrays
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.cache_dir import cache_dir
from fidtool.system.variables import CACHE_BYTES

# Age from which a temporary file is assumed to belong to a process that was killed.
_ABANDONED_SECONDS = 3600.0
# Resolution of time stamps on local file systems, with a margin: they use the kernel's tick of a
# few milliseconds.
_FINE_CLOCK_NS = 50_000_000
# Resolution on coarse file systems, with a margin: FAT uses even seconds, and some network file
# systems whole ones.
_COARSE_CLOCK_NS = 2_100_000_000


class CacheEntry(NamedTuple):
    """A cached statistics file: its path, whose stem is its key, its size in bytes, and when it was
    last used.
    """

    path: Path
    size: int
    used: float


def _folder() -> Path:
    return cache_dir() / "statistics"


def cache_file(images: ImageSet, definition: Definition, arithmetic: Mapping[str, Any]) -> Path:
    """Return the file of the statistics of one layer of a set, whose name is a hexadecimal number.

    The name depends on the definition of the layer's features, the settings that determine their
    bits (``arithmetic``), the source's real path, the names of its images in canonical order, and
    each file's size, mtime, ctime and inode. Different or changed files, ``--num`` or ``--seed``
    therefore change it.
    """
    bits = {setting: value for setting, value in arithmetic.items() if not setting.endswith(PROBE)}
    # Of the probes, that of the network which computes the layer.
    bits[PROBE] = arithmetic.get(f"{definition.fingerprint}_{PROBE}")
    if not definition.standard:
        bits["kernels"] = ""  # those of Inception
    bits_as_json = json.dumps(bits, sort_keys=True)
    sha = hashlib.sha256(b"with exact sums")  # which entries of earlier versions lack
    for text in (definition.to_json(), bits_as_json, images.identity(), images.hash_stamps()):
        sha.update(os.fsencode(text) + b"\0")
    return _folder() / f"{sha.hexdigest()}.npz"


def find_cached(
    images: ImageSet,
    definitions: Mapping[str, Definition],
    collected: Collection[str],
    needed: Collection[str],
    arithmetic: dict[str, Any],
    inspected: bool,
    warn: Say,
) -> Statistics | None:
    """Return the set's statistics of those of these layers that the cache has; None if it has
    none.

    Args:
        collected: the layers of which the features of each image are read if they are there.
        needed: those of which they must be there.
        inspected: whether records are needed, which are stored with the statistics of each network.
    """
    layers = {}
    first: Statistics | None = None
    for name, definition in definitions.items():
        entry = _read_entry(cache_file(images, definition, arithmetic), name in collected, warn)
        if entry is None:
            continue
        lacks_features = name in needed and entry.features is None
        lacks_records = inspected and entry.pictures is None
        if not lacks_features and not lacks_records:
            layers[name] = entry.layers[FEATURES]
            first = first or entry
    if first is None:
        return None
    pictures = None
    if inspected and first.pictures is not None:
        pictures = replace(first.pictures, prefix=images.prefix)
    has_features = any(layer.features is not None for layer in layers.values())
    return replace(
        first,
        layers=layers,
        arithmetic=arithmetic,  # equal as far as the keys depend on it
        found=len(images.stored),
        pictures=pictures,
        order=images.numbers() if has_features else None,
    )


def _read_entry(path: Path, with_features: bool, warn: Say) -> Statistics | None:
    """Return the statistics in an entry, or None. A damaged file is reported and deleted."""
    if not os.path.isfile(path):
        return None
    try:
        statistics = read_statistics(path, None if with_features else ())
    except RunError as error:  # there is no room for the features, but the file is intact
        warn(f"the cache is not used: {error}")
        return None
    except Exception as error:
        with contextlib.suppress(OSError):  # another process deleted it
            path.unlink()
            warn(f"a cache file is damaged, and its statistics are computed again: {error}")
        return None
    with contextlib.suppress(OSError):  # another user's cache may be read-only
        os.utime(path)  # marks it as recently used
    return statistics


def put_in_cache(images: ImageSet, statistics: Statistics, warn: Say) -> bool:
    """Write an entry per layer, unless files may have changed during the run with the same time
    stamps.
    """
    if not images.files.versioned or (not images.files.remote and _is_too_new(images)):
        return False
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        for layer in statistics.layers.values():
            assert layer.definition is not None
            order = None if layer.features is None else statistics.order
            arrays = to_arrays(replace(statistics, layers={FEATURES: layer}, order=order))
            source = images.source
            if source != STDIN:  # as lists show it: a URL without user, password and query
                source = redact(real_path(source))
            arrays["source"] = np.frombuffer(os.fsencode(source), dtype=np.uint8)
            save_arrays(cache_file(images, layer.definition, statistics.arithmetic or {}), arrays)
        delete_temporary_files(_ABANDONED_SECONDS)
        entries = cache_entries()
        total = 0
        for entry in entries:  # the least recently used exceed the limit
            total += entry.size
            if total > CACHE_BYTES.byte_limit() and entry is not entries[0]:
                entry.path.unlink(missing_ok=True)
        return True
    except OSError as error:
        warn(
            f"the statistics are not cached: {_folder()} cannot be written ({format_reason(error)})"
        )
        return False


def cache_entries() -> list[CacheEntry]:
    """Return all entries, the most recently used first."""
    entries = []
    for path in _folder().glob("*.npz"):
        with contextlib.suppress(OSError):  # another process deleted it
            status = path.stat()
            if path.is_file():
                entries.append(CacheEntry(path, status.st_size, status.st_mtime))
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def delete_temporary_files(age: float = 0.0) -> None:
    """Delete temporary files last written this many seconds ago or earlier."""
    for path in _folder().glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime <= time.time() - age:
                path.unlink()


def _is_too_new(images: ImageSet) -> bool:
    """Return whether a file was so new when listed that a later change could have left its time
    stamps the same.

    Two changes within the resolution of a file system's time stamps cannot be distinguished. The
    resolution is taken to be coarse if all stamps are whole seconds.
    """
    times = images.files.stamps[:, 1:3]
    coarse = not (times % 1_000_000_000).any()
    resolution = _COARSE_CLOCK_NS if coarse else _FINE_CLOCK_NS
    return bool(images.listed - times.max() < resolution)
