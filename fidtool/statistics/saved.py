"""Finished work on disk: the cache of the statistics of sets, and checkpoint folders.

The cache has a file per set and layer, named by a hash of everything that determines it.

A checkpoint stores finished work of a run: after a kill at any time, the same command continues from it.
The batches of each set are divided into at most 64 parts, regardless of the number of ranks. The statistics of a part
are a file, which is named after the run and the part, and written atomically when the part is finished. They do not
depend on the rank or the attempt, so it does not matter which of several writers is the last. A part is not used if its
images have changed since, or if it was made with another ``max_pixels``; it is then computed and written again.
``fidtool-checkpoint.json`` states which run the folder belongs to.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fidtool.cache_dir import atomic_write, byte_limit, cache_dir
from fidtool.errors import InputError, RunError, option, redacted
from fidtool.features.protocol import FEATURES, PROBE, Definition
from fidtool.images.batches import Batch
from fidtool.local_files import open_regular, read_file
from fidtool.names import counted, shortened
from fidtool.saved import restored
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.opening import STDIN
from fidtool.statistics.set_statistics import Statistics
from fidtool.statistics.statistics_file import read_statistics, read_summary, write_unredacted

if TYPE_CHECKING:
    from fidtool.features.extractor import BatchFeatures
    from fidtool.images.loader import DecodedBatch
    from fidtool.statistics.accumulator import Accumulator  # it needs torch, which listing the cache does not

SHOWN_DIGITS = 12
"""Hexadecimal digits of an entry's name that lists show; enough to identify the entry."""
_ABANDONED_SECONDS = 3600.0
"""Age from which a temporary file is assumed to belong to a process that was killed."""
_FINE_CLOCK_NS = 50_000_000
"""Resolution of time stamps on local file systems, with a margin: they use the kernel's tick of a few milliseconds."""
_COARSE_CLOCK_NS = 2_100_000_000
"""Resolution on coarse file systems, with a margin: FAT uses even seconds, and some network file systems whole ones."""
MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 4
_MOST_PARTS = 64
"""Maximum number of parts of a set. A file has 17 MB for 2048 dimensions, and 8 KB per image if features are kept."""


class Entry(NamedTuple):
    """A cached statistics file: its path, whose stem is its key, its size in bytes, and when it was last used."""

    path: Path
    size: int
    used: float


def _folder() -> Path:
    return cache_dir() / "statistics"


def cache_file(images: ImageSet, definition: Definition, arithmetic: Mapping[str, Any]) -> Path:
    """Returns the file of the statistics of one layer of a set, whose name is a hexadecimal number.

    The name depends on the definition of the layer's features, the settings that determine their bits
    (``arithmetic``), the source's real path, the names of its images in canonical order, and each file's size,
    mtime, ctime and inode. Different or changed files, ``--num`` or ``--seed`` therefore change it.
    """
    bits = {setting: value for setting, value in arithmetic.items() if not setting.endswith(PROBE)}
    # Of the probes, that of the network which computes the layer.
    bits[PROBE] = arithmetic.get(f"{definition.fingerprint}_{PROBE}")
    bits |= {} if definition.standard else {"kernels": ""}  # those of Inception
    sha = hashlib.sha256(b"with exact sums")  # which entries of earlier versions lack
    for part in (definition.to_json(), json.dumps(bits, sort_keys=True), images.identity(), images.state()):
        sha.update(os.fsencode(part) + b"\0")
    return _folder() / f"{sha.hexdigest()}.npz"


def find_cached(
    images: ImageSet,
    definitions: Mapping[str, Definition],
    collected: Collection[str],
    needed: Collection[str],
    arithmetic: dict[str, Any],
    inspected: bool,
    warn: Callable[[str], None],
) -> Statistics | None:
    """Returns the set's statistics of those of these layers that the cache has; None if it has none.

    Args:
        collected: the layers of which the features of each image are read if they are there.
        needed: those of which they must be there.
        inspected: whether records are needed, which are stored with the statistics of each network.
    """
    found: dict[str, Statistics] = {}
    for name, definition in definitions.items():
        entry = _read_entry(cache_file(images, definition, arithmetic), name in collected, warn)
        if entry is None or entry.arithmetic is None or (name in needed and entry.features is None):
            continue
        if not inspected or entry.pictures is not None:
            found[name] = entry
    if not found:
        return None
    main = next(iter(found.values()))
    return replace(
        main,
        layers={name: entry.layers[FEATURES] for name, entry in found.items()},
        arithmetic=arithmetic,  # equal as far as the keys depend on it
        pictures=main.pictures if inspected else None,
    )


def _read_entry(path: Path, with_features: bool, warn: Callable[[str], None]) -> Statistics | None:
    """Returns the statistics in an entry, or None. A damaged file is reported and deleted."""
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


def put_in_cache(images: ImageSet, statistics: Statistics, warn: Callable[[str], None]) -> bool:
    """Writes an entry per layer, unless files may have changed during the run with the same time stamps.

    An entry that is there and has everything is kept.
    """
    files = images.files
    if not files.versioned or (not files.remote and _too_fresh(images)):
        return False
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        for layer in statistics.layers.values():
            assert layer.definition is not None
            path = cache_file(images, layer.definition, statistics.arithmetic or {})
            pictures, there = statistics.pictures, read_summary(path)
            missing = (layer.features is not None and not there.has_features) or (
                pictures is not None and not there.has_records
            )
            if missing or there.definition is None:
                order = None if layer.features is None else statistics.order
                own = replace(statistics, layers={FEATURES: layer}, pictures=pictures, order=order)
                write_unredacted(path, own, _listed_path(images.path))
        sweep(_ABANDONED_SECONDS)
        total = 0
        for position, entry in enumerate(cache_entries()):  # the least recently used exceed the limit
            total += entry.size
            if position and total > byte_limit("FIDTOOL_CACHE_BYTES"):
                entry.path.unlink(missing_ok=True)
        return True
    except OSError as error:
        warn(f"the statistics are not cached: {_folder()} cannot be written ({error.strerror or error})")
        return False


def cache_entries() -> list[Entry]:
    """Returns all entries, the most recently used first."""
    entries = []
    for path in _folder().glob("*.npz"):
        with contextlib.suppress(OSError):  # another process deleted it
            status = path.stat()
            entries += [Entry(path, status.st_size, status.st_mtime)] if path.is_file() else []
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def matching(name: str) -> list[Entry]:
    """Returns the entries of a set of images, or the entry whose hexadecimal name begins with ``name``.

    This is the path of the set, as in `Summary.source` or relative to the current folder; or at least the first
    `SHOWN_DIGITS` digits of an entry's name, because fewer may be meant as a path.
    """
    entries = cache_entries()
    of_path = [entry for entry in entries if name and read_summary(entry.path).source in (name, _listed_path(name))]
    is_id = len(name) >= SHOWN_DIGITS
    found = of_path or [entry for entry in entries if is_id and entry.path.stem.startswith(name)]
    if not found:
        raise InputError(f"the cache has no entry {name!r}: `fidtool cache` lists paths and IDs")
    if len(found) > 1 and not of_path:
        raise InputError(f"{len(found)} entries of the cache have IDs that begin with {name}:", "pass more digits")
    return found


def sweep(age: float = 0.0) -> None:
    """Deletes temporary files last written this many seconds ago or earlier."""
    for path in _folder().glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime <= time.time() - age:
                path.unlink()


def _listed_path(path: str) -> str:
    """Returns a set's path as lists show it: absolute, or a URL without user, password and query."""
    if path == STDIN:
        return path
    return redacted(path) if "://" in path else real_path(path)


def _too_fresh(images: ImageSet) -> bool:
    """Returns whether a file was so new when listed that a later change could have left its time stamps the same.

    Two changes within the resolution of a file system's time stamps cannot be distinguished. The resolution is taken to
    be coarse if all stamps are whole seconds.
    """
    times = images.files.stamps[:, 1:3]
    coarse = not (times % 1_000_000_000).any()
    return bool(images.listed - times.max() < (_COARSE_CLOCK_NS if coarse else _FINE_CLOCK_NS))


class Part(NamedTuple):
    """Consecutive batches of a set, whose statistics are one file of a checkpoint.

    Attributes:
        name: number of the set and of the part.
        batches: their numbers in the plan.
        mark: a number that changes if the files of the images change.
    """

    name: str
    batches: range
    mark: int


def parts_of(number: int, images: ImageSet, batches: Sequence[Batch]) -> list[Part]:
    """Divides the ``batches`` of a set into parts; ``number`` is that of the set in the run."""
    count = min(len(batches), _MOST_PARTS)
    edges = [len(batches) * part // count for part in range(count + 1)]
    ranges = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    marks = images.marks([np.concatenate([np.asarray(batches[each].images) for each in part]) for part in ranges])
    return [Part(f"{number:03}-{place:02}", each, int(marks[place])) for place, each in enumerate(ranges)]


def _sha256(arrays: Mapping[str, Any]) -> str:
    """Returns the hash of the arrays of a part, by which an edited one is found."""
    sha = hashlib.sha256()
    for name in sorted(arrays.keys() - {"sha256"}):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype} {np.shape(arrays[name])}\0".encode())
        sha.update(array.view(np.uint8).data)
    return sha.hexdigest()


class Checkpoint:
    """A checkpoint folder.

    Args:
        run: the name of the run, as `claim` returned it.
        warn: called, for example, if the folder cannot be written; the run then continues without it.
    """

    def __init__(self, folder: str, run: str, max_pixels: int, warn: Callable[[str], None]) -> None:
        self.folder, self._run, self._max_pixels, self._warn = Path(folder), run, max_pixels, warn

    @property
    def has_work(self) -> bool:
        return any(self.folder.glob(f"{self._run}-*.npz"))

    def _file(self, part: Part) -> Path:
        return self.folder / f"{self._run}-{part.name}.npz"

    def load(self, parts: Iterable[Part], total: Accumulator) -> list[Part]:
        """Adds the parts that are in the folder to statistics, and returns all others. Called on rank zero only."""
        left: list[Part] = []
        unused: dict[str, list[Path]] = {}
        for part in parts:
            file = self._file(part)
            if os.path.exists(file):
                found = total.of_batches(part.batches)
                reason = self._read(file, part, found)
                if not reason:
                    total.absorb(found)
                    continue
                unused.setdefault(reason, []).append(file)
            left.append(part)
        for reason, files in unused.items():
            self._warn(f"{files[0]} is {reason}; computed again: {counted(len(files), 'part')} of a set")
        return left

    def _read(self, file: Path, part: Part, found: Accumulator) -> str:
        """Restores the statistics of a part; returns why they cannot be used, if they cannot."""
        try:
            with open_regular(file) as handle, np.load(handle, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            if _sha256(arrays) != str(arrays.get("sha256")):
                return "damaged (its content has changed)"
            mark, max_pixels = int(arrays["mark"]), int(arrays["max_pixels"])
            found.restore(arrays)
        except Exception as error:  # damaged archives raise many kinds of exceptions
            return f"damaged ({' '.join(str(error).split()) or type(error).__name__})"
        if mark != part.mark:
            return "not used (files of the set have changed since)"
        if max_pixels != self._max_pixels:
            return f"not used (it was made with {option('max_pixels', max_pixels)})"
        return ""

    def save(self, part: Part, statistics: Accumulator) -> None:
        """Writes the statistics of a part. Gives a warning if the folder cannot be written."""
        arrays = {**statistics.to_arrays(), "mark": np.uint64(part.mark), "max_pixels": np.int64(self._max_pixels)}
        arrays["sha256"] = np.array(_sha256(arrays))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._file(part)) as handle:
                np.savez(handle, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            self._warn(_failure(self.folder, error))

    def part_by_part(self, parts: Iterable[Part], total: Accumulator) -> Callable[..., None]:
        """Returns a function like ``total.add`` that takes one of ``parts`` after the other, and saves each."""
        part_of = {batch: part for part in parts for batch in part.batches}
        own = total

        def add(batch: DecodedBatch, features: BatchFeatures) -> None:
            nonlocal own
            part = part_of[batch.number]
            if batch.number == part.batches[0]:
                own = total.of_batches(part.batches)
            own.add(batch, features)
            if batch.number == part.batches[-1]:
                self.save(part, own)
                total.absorb(own)

        return add


@dataclass(frozen=True)
class _Identity:
    """Everything that the parts of a checkpoint depend on, see `claim`."""

    definition: dict[str, Any]
    arithmetic: dict[str, Any]
    order: dict[str, Any]
    sets: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class _Manifest:
    format: int
    identity: _Identity


def claim(folder: str, identity: dict[str, Any], warn: Callable[[str], None]) -> str:
    """Assigns an empty folder to a run, or checks that it belongs to this run. Called on rank zero only.

    ``identity`` is everything that the parts depend on, as JSON values: definition, arithmetic, order, and the sets
    with their images. Returns the name of the run.
    """
    text = json.dumps(identity, sort_keys=True)
    run, now = hashlib.sha256(text.encode()).hexdigest()[:12], restored(_Identity, json.loads(text))
    manifest = Path(folder) / MANIFEST
    try:
        content = restored(_Manifest, json.loads(read_file(manifest)))
        if content.format != _FORMAT:
            raise ValueError
    except FileNotFoundError:
        try:
            manifest.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(manifest) as handle:
                handle.write(json.dumps({"format": _FORMAT, "identity": identity}, indent=1).encode())
        except OSError as error:
            warn(_failure(manifest.parent, error))
        return run
    except OSError as error:
        problem = f"{option('checkpoint', folder)} cannot be read ({error.strerror or error}):"
        raise InputError(problem, "choose another folder", setting="checkpoint") from None
    except (ValueError, TypeError, RecursionError):
        problem = f"{manifest} is damaged, or not a checkpoint of this version of fidtool:"
        raise InputError(problem, "choose another folder", setting="checkpoint") from None
    if difference := _difference(content.identity, now):
        problem = f"{option('checkpoint', folder)} belongs to a different run: {difference}"
        raise InputError(problem, "choose another folder", "delete this one to start again", setting="checkpoint")
    return run


def _failure(folder: Path, error: OSError) -> str:
    reason = f"cannot be written ({error.strerror or error})"
    return f"{option('checkpoint', str(folder))} {reason}: the run continues, but a kill would lose its work"


def _difference(then: _Identity, now: _Identity) -> str:
    """Describes how two runs differ; empty if they do not."""
    then_paths, now_paths = ([str(each.get("path")) for each in run.sets] for run in (then, now))
    if then_paths != now_paths:
        return f"it computed {', '.join(then_paths)}, and this one computes {', '.join(now_paths)}"
    parts = [("", getattr(then, group), getattr(now, group)) for group in ("definition", "arithmetic", "order")]
    parts += [(f" of {new['path']}", old, new) for old, new in zip(then.sets, now.sets, strict=True)]
    for owner, old, new in parts:
        for name in sorted({*old, *new}):
            if old.get(name) == new.get(name):
                continue
            if name == "needed":
                return f"it had different {option('metrics')}, which need different features of the images"
            if name == "identity":
                return f"the names of the images{owner} differ, or it is another folder"
            values = [each.get(name) for each in (old, new)]
            before, after = ("not set" if value is None else shortened(f"{value}") for value in values)
            return f"{name}{owner} was {before} and is now {after}"
    return ""
