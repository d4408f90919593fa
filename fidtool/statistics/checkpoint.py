"""Checkpoint folder, which stores finished work: after a kill at any time, the same command continues from it.

``fidtool-checkpoint.json`` states which run the folder belongs to. Each rank of each attempt writes one part per set,
atomically: the batches that are done, and their exact sums. Per-image rows (features, records), if they are collected,
are in one file per layer next to the part. The name of a part contains the name of the run, so that no other run reads
it. A part is not used if its files have changed since, or if a file that it skipped can be read now.

Rank zero reads all parts when a run starts, and continues from their total. After writing its own part, it deletes the
parts that are contained in it. If the process is killed before that, the contained parts are ignored, because the new
part lists them. Of two parts with a batch in common, from concurrent runs, only one is used.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError, option
from fidtool.images.records import DETAILS, RECORD_ARRAYS
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import FeatureBuffer
from fidtool.statistics.partial import OverlapError, PartialStatistics, StaleError, skipped_in

MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 2
_ABANDONED_SECONDS = 60.0
"""Age from which a temporary file is assumed to belong to a process that was killed."""
_PART_SUFFIX = ".part.npz"
_ROWS_SUFFIX = ".rows"
_ROWS_PREFIX = "kept."
"""Prefix of the arrays in a part that describe its files of rows."""

Identity = dict[str, Any]
"""Everything that a run's parts depend on, as JSON values: definition, arithmetic, order, and the sets with their
images."""

_BatchRows = Mapping[int, NDArray[Any]]
"""Rows by number of the batch, each an array of shape (n, dims)."""


class Checkpoint:
    """One rank's access to a checkpoint folder, with ``every`` seconds between two calls of `save`.

    ``warn`` is called, for example, if the folder cannot be written; the run then continues without it.
    """

    def __init__(self, folder: str, every: float, max_pixels: int, warn: Callable[[str], None]) -> None:
        self._folder, self._every, self._warn = Path(folder), every, warn
        self._max_pixels = max_pixels
        self._run = self._writer = ""
        self._forerunners: dict[int, list[str]] = {}
        self._writers: dict[Path, _RowsWriter] = {}
        self._next = time.monotonic() + every
        self._claimed = True
        self._has_own_work, self._began = False, time.time()

    @property
    def has_work(self) -> bool:
        """Whether the folder contains work of this rank, or of another rank since this run started."""
        if self._has_own_work:
            return True
        with contextlib.suppress(OSError):
            parts = self._folder.glob(f"*-{self._run}-*{_PART_SUFFIX}") if self._run else ()
            return any(part.stat().st_mtime >= self._began for part in parts)
        return False

    def claim(self, identity: Identity) -> str:
        """Assigns an empty folder to this run, or checks that it belongs to this run. Called on rank zero only.

        Returns the name of the run, to be passed to `join` on all ranks.
        """
        identity = json.loads(json.dumps(identity))
        if difference := _difference(self._manifest(identity), identity):
            raise InputError(
                f"{self._named} belongs to a different run: {difference}",
                "choose another folder",
                "delete this one to start again",
                setting="checkpoint",
            )
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def _manifest(self, identity: Identity) -> Identity:
        """Returns the identity in the folder's manifest, which is written if there is none."""
        manifest = self._folder / MANIFEST
        if os.path.exists(self._folder) and not os.path.isdir(self._folder):
            raise InputError(f"{self._named} is a file", "choose a folder", setting="checkpoint")
        if not os.path.exists(manifest):  # Path.exists raises if a name is too long or a parent is not accessible
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(manifest) as handle:
                    handle.write(json.dumps({"format": _FORMAT, "identity": identity}, indent=1).encode())
            except OSError as error:
                self._claimed = False
                self._warn(self._failure(error))
                return identity
        try:
            content = json.loads(manifest.read_text())
        except OSError as error:
            problem = f"the checkpoint {manifest} cannot be read: {error.strerror or error}"
            raise InputError(problem, setting="checkpoint") from None
        except ValueError as error:
            problem = f"the checkpoint {manifest} is damaged ({error}):"
            raise InputError(problem, f"delete {self._folder}", setting="checkpoint") from None
        stored = content.get("identity") if isinstance(content, dict) and content.get("format") == _FORMAT else None
        if not isinstance(stored, dict):
            problem = f"{manifest} is not a checkpoint of this version of fidtool:"
            raise InputError(problem, "choose another folder", setting="checkpoint")
        return stored

    def join(self, run: str, attempt: str, rank: int) -> None:
        """Sets the names of this rank's parts."""
        self._run, self._writer = run, f"{attempt}-{rank:05}"

    def load(self, number: int, partial: PartialStatistics, now_readable: Callable[[Sequence[BadFile]], str]) -> None:
        """Adds all parts of a set to empty statistics. Called on rank zero only, before anything is written.

        Parts that skipped a file that can be read now are not used: ``now_readable`` returns the name of one, or an
        empty string.
        """
        self._sweep()
        files = self._files(f"{number:03}-{self._run}-*{_PART_SUFFIX}")
        parts = [(file, arrays) for file in files if (arrays := self._read(file, {"done", "forerunners"})) is not None]
        replaced = {name for _, arrays in parts for name in arrays["forerunners"].tolist()}
        # The largest part comes first, because only one of two parts with a batch in common can be used.
        for file, _ in sorted(parts, key=lambda part: int(part[1]["done"].sum()), reverse=True):
            if file.name not in replaced:
                self._absorb(file, partial, now_readable)
        self._forerunners[number] = [file.name for file in files]

    def _absorb(self, file: Path, partial: PartialStatistics, now_readable: Callable[[Sequence[BadFile]], str]) -> None:
        arrays = self._read(file)
        if arrays is None:
            return
        try:
            if int(arrays["max_pixels"]) > self._max_pixels:
                raise StaleError(f"it was made with {option('max_pixels', int(arrays['max_pixels']))}")
            if readable := now_readable(skipped_in(arrays)):
                raise StaleError(f"{readable}, which it skipped, can be read now")
            partial.absorb(arrays, _rows_of(file, arrays, partial))
            self._has_own_work = True
        except OverlapError:
            self._warn(f"{file} is not used: a concurrent run has done some of the same work")
        except StaleError as error:
            self._warn(f"{file} is not used ({error}): its images are computed again")
        except Exception as error:
            self._damaged(file, error)

    def _files(self, pattern: str) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            if self._claimed:
                reason = error.strerror or str(error)
                self._warn(f"{self._named} cannot be read ({reason}): any work stored there is done again")
            return []
        return [self._folder / name for name in sorted(fnmatch.filter(names, pattern))]

    def _read(self, file: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays with these ``names``, or all; None, after a warning, if the file is damaged."""
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in names or archive.files}
        except Exception as error:  # damaged archives raise many kinds of exceptions
            self._damaged(file, error)
            return None

    def _damaged(self, file: Path, error: Exception) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        self._warn(f"{file} is damaged ({reason}): its images are computed again")

    def _sweep(self) -> None:
        """Deletes incomplete files left by processes that were killed."""
        parts = {_stem(part) for part in self._files(f"*{_PART_SUFFIX}")}
        alone = [file for file in self._files(f"*{_ROWS_SUFFIX}") if _stem(file) not in parts]
        for file in [*self._files(f".*{_PART_SUFFIX}.*.tmp"), *self._files(f".{MANIFEST}.*.tmp"), *alone]:
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    file.unlink()

    def due(self) -> bool:
        """Returns whether it is time for the next `save`."""
        return time.monotonic() >= self._next

    def save(self, number: int, partial: PartialStatistics) -> None:
        """Writes this rank's part of set ``number``. Gives a warning if the folder cannot be written."""
        arrays = partial.to_arrays()
        if arrays is None or not partial.done.any():
            return
        forerunners = self._forerunners.get(number, [])  # listed in every save, because deleting them may fail
        file = self._folder / f"{number:03}-{self._run}-{self._writer}{_PART_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            arrays |= self._write_rows(file, partial)
            with atomic_write(file) as handle:
                arrays["forerunners"] = np.array(forerunners, dtype=np.str_)
                arrays["max_pixels"] = np.array(self._max_pixels)
                np.savez(handle, **arrays)  # type: ignore[arg-type]
            self._has_own_work = True
            for forerunner in (self._folder / name for name in forerunners):
                forerunner.unlink(missing_ok=True)
                for layer in partial.buffers:
                    _rows_file(forerunner, layer).unlink(missing_ok=True)
        except OSError as error:
            self._warn(self._failure(error))
        # Measured from the end of the save, so that a slow disk does not take up all of the run's time.
        self._next = time.monotonic() + self._every

    def _write_rows(self, part: Path, partial: PartialStatistics) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for layer, buffer in partial.buffers.items():
            file = _rows_file(part, layer)
            writer = self._writers.setdefault(file, _RowsWriter(file, len(partial.done)))
            arrays |= {f"{_ROWS_PREFIX}{layer}.{name}": array for name, array in writer.update(buffer).items()}
        return arrays

    def _failure(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        return f"{self._named} cannot be written ({reason}): the run continues, but a kill would lose its work"

    @property
    def _named(self) -> str:
        return option("checkpoint", str(self._folder))


def _rows_of(part: Path, arrays: dict[str, NDArray[Any]], partial: PartialStatistics) -> dict[str, _BatchRows]:
    """Reads the rows of the batches in ``part``, by layer."""
    rows: dict[str, _BatchRows] = {}
    for layer, empty in partial.buffers.items():
        prefix = f"{_ROWS_PREFIX}{layer}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        if layer == DETAILS and not own:  # an earlier version wrote this part
            counts = {batch: len(each) for batch, each in rows[RECORD_ARRAYS[0]].items()}
            rows[layer] = {batch: np.zeros((count, empty.dims), empty.dtype) for batch, count in counts.items()}
            continue
        rows[layer] = _read_rows(_rows_file(part, layer), own, empty)
    return rows


def _difference(then: Identity, now: Identity) -> str:
    """Describes how two runs differ; empty if they do not."""
    for group in ("definition", "arithmetic", "order"):
        old, new = then.get(group, {}), now[group]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"{name} was {old.get(name)} and is now {new.get(name)}"
    return _sets_difference(then.get("sets", []), now["sets"])


def _sets_difference(then: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> str:
    then_paths, now_paths = ([str(entry.get("path")) for entry in sets] for sets in (then, now))
    if then_paths != now_paths:
        return f"it computed {', '.join(then_paths)}, and this one computes {', '.join(now_paths)}"
    for old, new in zip(then, now, strict=True):
        if old.get("count") != new["count"]:
            return f"{new['path']} had {old.get('count')} images and now has {new['count']}"
        if old.get("needed") != new.get("needed"):
            return f"it had different {option('metrics')}, which need different features of the images"
        if old.get("framing") != new.get("framing"):
            was, now_is = (
                f"framed by {each['framing']}" if each.get("framing") else "not framed" for each in (old, new)
            )
            return f"{new['path']} was {was} and is now {now_is}"
        if old.get("identity") != new["identity"]:
            return f"{new['path']} now contains files with different names, or is a different folder"
    return ""


def _rows_file(part: Path, layer: str) -> Path:
    """Returns the path of the file with a layer's rows of the batches in ``part``."""
    return part.with_name(f"{part.name.partition('.')[0]}.{layer}{_ROWS_SUFFIX}")


def _stem(file: Path) -> str:
    """Returns the beginning that the names of a part and of its files of rows have in common."""
    return file.name.partition(".")[0]


class _RowsWriter:
    """Writes one layer's rows to a file. Batches that are in the file are not written again."""

    def __init__(self, file: Path, batches: int) -> None:
        self._file = file
        self._checksums = np.zeros(batches, dtype=np.uint32)
        self._written = np.zeros(batches, dtype=bool)

    def update(self, buffer: FeatureBuffer) -> dict[str, NDArray[Any]]:
        """Writes new batches, each at its position in the plan; returns the arrays that `_read_rows` needs."""
        if not self._file.exists():
            self._written[:] = False
        new = np.flatnonzero((buffer.counts >= 0) & ~self._written)
        with open(self._file, "r+b" if self._written.any() else "w+b") as handle:
            for batch in map(int, new):
                data = buffer.rows(batch).tobytes()
                handle.seek(buffer.row_bytes * buffer.start(batch))
                handle.write(data)
                self._checksums[batch] = zlib.crc32(data)
            handle.flush()
            os.fsync(handle.fileno())
        self._written[new] = True  # only now, because a full disk may not be reported before fsync
        return {"counts": buffer.counts, "checksums": self._checksums}


def _read_rows(file: Path, arrays: Mapping[str, NDArray[Any]], empty: FeatureBuffer) -> _BatchRows:
    """Reads the rows that `_RowsWriter.update` wrote, by batch, memory-mapped; it returned these ``arrays``."""
    counts, checksums = arrays["counts"], arrays["checksums"]
    if counts.shape != empty.counts.shape or checksums.shape != empty.counts.shape:
        raise ValueError(f"it has {counts.size} batches instead of {empty.counts.size}")
    size = os.path.getsize(file) // empty.row_bytes
    everything: NDArray[Any] = np.empty((0, empty.dims), dtype=empty.dtype)
    if size:
        everything = np.memmap(file, dtype=empty.dtype, mode="r", shape=(size, empty.dims))
    batches = {}
    for batch in map(int, np.flatnonzero(counts >= 0)):
        start = empty.start(batch)
        rows = everything[start : start + int(counts[batch])]
        if len(rows) != counts[batch] or zlib.crc32(rows.tobytes()) != checksums[batch]:
            raise ValueError(f"{file.name} is damaged")
        batches[batch] = rows
    return batches
