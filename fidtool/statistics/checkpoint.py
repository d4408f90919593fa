"""A folder that keeps finished work: after a kill at any instant the same command continues from there.

``fidtool-checkpoint.json`` says which run the folder belongs to. Each rank of each attempt writes a part for each set,
whole and atomically: the batches that are done, and their sums. Each image's rows, where they are gathered, lie beside
the part in one file per layer. A part's name holds the run's, so that no other run reads it. A part is not used if
files of it have changed since, or if a file that it left out can be read by now.

Rank zero reads all parts when a run begins and starts from their total. Once it has written its own part, it deletes
those in it; should the process die before, the new part names them (its forerunners), and they do not count. Of two
parts with a batch in common, from concurrent runs, only one is used.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError, option
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import FeatureBuffer
from fidtool.statistics.partial import OverlapError, PartialStatistics, StaleError, skipped_in

MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 2
_ABANDONED_SECONDS = 60.0
"""A temporary file that was last written so long ago belongs to a process that was killed."""
_PART_SUFFIX = ".part.npz"
_ROWS_SUFFIX = ".rows"
_ROWS_PREFIX = "kept."
"""What the names of those arrays in a part begin with that are about its files of rows."""

Identity = dict[str, Any]
"""What a run's parts depend on, as JSON has it: definition, arithmetic, and the sets with their images."""

_BatchRows = Mapping[int, NDArray[Any]]
"""Rows by batch, each an array of shape (n, dims)."""


class Checkpoint:
    """A checkpoint folder, as one rank uses it.

    Args:
        folder: it is created if need be.
        every: seconds from one `save` to the next.
        max_pixels: the setting of that name.
        complain: takes a warning, as where the folder cannot be written; the run goes on without.
    """

    def __init__(self, folder: str, every: float, max_pixels: int, complain: Callable[[str], None]) -> None:
        self._folder, self._every, self._complain = Path(folder), every, complain
        self._max_pixels = max_pixels
        self._run = self._writer = ""
        self._forerunners: dict[int, list[str]] = {}
        self._writers: dict[Path, _RowsWriter] = {}
        self._next = time.monotonic() + every
        self._claimed = True
        self._has_own_work, self._began = False, time.time()

    @property
    def has_work(self) -> bool:
        """Whether there is work in the folder: this rank's, or another's that was written since this run began."""
        if self._has_own_work:
            return True
        with contextlib.suppress(OSError):
            parts = self._folder.glob(f"*-{self._run}-*{_PART_SUFFIX}") if self._run else ()
            return any(part.stat().st_mtime >= self._began for part in parts)
        return False

    def claim(self, identity: Identity) -> str:
        """Makes the folder this run's, or checks that it is. On rank zero.

        Returns:
            The run's name, for `join` on every rank.

        Raises:
            InputError: it belongs to another run; the message names the difference.
        """
        identity = json.loads(json.dumps(identity))
        if difference := _difference(self._manifest(identity), identity):
            raise InputError(
                f"{self._named} belongs to another run: {difference}",
                "name another folder",
                "delete that one to begin anew",
                setting="checkpoint",
            )
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def _manifest(self, identity: Identity) -> Identity:
        """The identity in the folder's manifest, which is written if there is none: the first to write it wins."""
        manifest = self._folder / MANIFEST
        if os.path.exists(self._folder) and not os.path.isdir(self._folder):
            raise InputError(f"{self._named} is a file", "name a folder", setting="checkpoint")
        if not os.path.exists(manifest):  # Path.exists raises where a name is too long or a folder above is closed
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                _create(manifest, json.dumps({"format": _FORMAT, "identity": identity}, indent=1))
            except OSError as error:
                self._claimed = False
                self._complain(self._failure(error))
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
            problem = f"{manifest} is no checkpoint of this version of fidtool:"
            raise InputError(problem, "name another folder", setting="checkpoint")
        return stored

    def join(self, run: str, attempt: str, rank: int) -> None:
        """Names this rank's parts after the run and the attempt, of which every one has another name."""
        self._run, self._writer = run, f"{attempt}-{rank:05}"

    def load(self, number: int, partial: PartialStatistics, mended: Callable[[Sequence[BadFile]], str]) -> None:
        """Adds all parts of a set to empty statistics. On rank zero, before anything is written.

        Args:
            number: which set of the run.
            partial: the statistics.
            mended: names one of these files that can be read by now, if there is one: its part is not used.
        """
        self._sweep()
        files = self._files(f"{number:03}-{self._run}-*{_PART_SUFFIX}")
        parts = [(file, arrays) for file in files if (arrays := self._read(file, {"done", "forerunners"})) is not None]
        replaced = {name for _, arrays in parts for name in arrays["forerunners"].tolist()}
        # The one with the most work comes first: of two with a batch in common only one can count.
        for file, _ in sorted(parts, key=lambda part: int(part[1]["done"].sum()), reverse=True):
            if file.name not in replaced:
                self._absorb(file, partial, mended)
        self._forerunners[number] = [file.name for file in files]

    def _absorb(self, file: Path, partial: PartialStatistics, mended: Callable[[Sequence[BadFile]], str]) -> None:
        arrays = self._read(file)
        if arrays is None:
            return
        try:
            if int(arrays["max_pixels"]) > self._max_pixels:
                raise StaleError(f"it was made with {option('max_pixels', int(arrays['max_pixels']))}")
            if readable := mended(skipped_in(arrays)):
                raise StaleError(f"{readable}, which it left out, can be read by now")
            partial.absorb(arrays, _rows_of(file, arrays, partial))
            self._has_own_work = True
        except OverlapError:
            self._complain(f"{file} is not used: another run at the same time did some of its work too")
        except StaleError as error:
            self._complain(f"{file} is not used, {error}: its images are computed again")
        except Exception as error:
            self._damaged(file, error)

    def _files(self, pattern: str) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            if self._claimed:
                reason = error.strerror or str(error)
                self._complain(f"{self._named} cannot be read ({reason}): what it may hold is done again")
            return []
        return [self._folder / name for name in sorted(fnmatch.filter(names, pattern))]

    def _read(self, file: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]] | None:
        """The arrays of these ``names``, or all; None where the file is damaged, with a warning."""
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in names or archive.files}
        except Exception as error:  # damaged archives raise a dozen kinds
            self._damaged(file, error)
            return None

    def _damaged(self, file: Path, error: Exception) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        self._complain(f"{file} is damaged ({reason}): its images are computed again")

    def _sweep(self) -> None:
        """Deletes incomplete files of processes that were killed."""
        parts = {_stem(part) for part in self._files(f"*{_PART_SUFFIX}")}
        alone = [file for file in self._files(f"*{_ROWS_SUFFIX}") if _stem(file) not in parts]
        for file in [*self._files(f".*{_PART_SUFFIX}.*.tmp"), *self._files(f".{MANIFEST}.*.tmp"), *alone]:
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    file.unlink()

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def save(self, number: int, partial: PartialStatistics) -> None:
        """Writes this rank's part of set ``number``; a warning where the folder cannot be written."""
        arrays = partial.to_arrays()
        if arrays is None or not partial.done.any():
            return
        forerunners = self._forerunners.get(number, [])  # named in every version: a deletion may fail
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
            self._complain(self._failure(error))
        # Counted from the end: a slow disk must not take all of the run's time.
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
        return f"{self._named} cannot be written ({reason}): the run goes on, but a kill would lose its work"

    @property
    def _named(self) -> str:
        return option("checkpoint", str(self._folder))


def _rows_of(part: Path, arrays: dict[str, NDArray[Any]], partial: PartialStatistics) -> dict[str, _BatchRows]:
    """The rows of the batches in ``part``, by layer."""
    rows = {}
    for layer, empty in partial.buffers.items():
        prefix = f"{_ROWS_PREFIX}{layer}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        rows[layer] = _read_rows(_rows_file(part, layer), own, empty)
    return rows


def _create(file: Path, text: str) -> None:
    """Creates ``file`` unless it exists; of two processes at once the first wins, and neither reads it half written."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text)
        try:
            os.link(temporary, file)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            if not file.exists():
                os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _difference(then: Identity, now: Identity) -> str:
    """How two runs differ, in words; empty if they do not."""
    for group in ("definition", "arithmetic", "order"):
        old, new = then.get(group, {}), now[group]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"{name} was {old.get(name)} then and is {new.get(name)} now"
    return _sets_difference(then.get("sets", []), now["sets"])


def _sets_difference(then: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> str:
    then_paths, now_paths = ([str(entry.get("path")) for entry in sets] for sets in (then, now))
    if then_paths != now_paths:
        return f"it was of {', '.join(then_paths)} and this one is of {', '.join(now_paths)}"
    for old, new in zip(then, now, strict=True):
        if old.get("count") != new["count"]:
            return f"{new['path']} had {old.get('count')} images then and has {new['count']} now"
        if old.get("needed") != new.get("needed"):
            return f"it was for other {option('metrics')}, which need other features of the images"
        if old.get("identity") != new["identity"]:
            return f"{new['path']} holds files of other names now, or is another folder of that name"
    return ""


def _rows_file(part: Path, layer: str) -> Path:
    """The file with a layer's rows of the batches in ``part``."""
    return part.with_name(f"{part.name.partition('.')[0]}.{layer}{_ROWS_SUFFIX}")


def _stem(file: Path) -> str:
    """What the names of a part and of its files of rows have in common."""
    return file.name.partition(".")[0]


class _RowsWriter:
    """Keeps the file of one layer's rows up to date: batches that are in it are not written again.

    Args:
        file: see `_rows_file`.
        batches: number of batches in the plan.
    """

    def __init__(self, file: Path, batches: int) -> None:
        self._file = file
        self._checksums = np.zeros(batches, dtype=np.uint32)
        self._written = np.zeros(batches, dtype=bool)

    def update(self, buffer: FeatureBuffer) -> dict[str, NDArray[Any]]:
        """Writes new batches, each at the place that it has in the plan.

        Returns:
            What must stand in the part for `_read_rows`.

        Raises:
            OSError: the file cannot be written; what the last part says of it is still true.
        """
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
        self._written[new] = True  # not before: a full disk is often noticed last
        return {"counts": buffer.counts, "checksums": self._checksums}


def _read_rows(file: Path, arrays: Mapping[str, NDArray[Any]], empty: FeatureBuffer) -> _BatchRows:
    """The rows that `_RowsWriter.update` wrote, by batch, mapped.

    Args:
        file: see `_rows_file`.
        arrays: what it returned.
        empty: the buffer where the rows will go.

    Raises:
        OSError: there is no such file.
        ValueError, KeyError: it is damaged.
    """
    counts, checksums = arrays["counts"], arrays["checksums"]
    if counts.shape != empty.counts.shape or checksums.shape != empty.counts.shape:
        raise ValueError(f"it is of {counts.size} batches and not of {empty.counts.size}")
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
