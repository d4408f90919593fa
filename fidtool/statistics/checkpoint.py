"""A folder that keeps finished work: after a kill at any instant the same command goes on from there.

``fidtool-checkpoint.json`` says which run the folder belongs to. Each rank of each attempt writes a part for each set,
whole and atomically: the batches that are in, and their sums. Its name holds the run's, so that no other run reads it;
a part of files that have changed since, or that it left out and that can be read by now, is not used. Rank zero reads
all parts when a run begins and makes them the start of its own. When that has been written, the parts in it are
deleted; should the process die before, the names of its forerunners in the new part tell that they count no more. Two
parts with a batch in common, from runs at the same time, are never both used.
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
from fidtool.errors import InputError
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import KeptRows
from fidtool.statistics.partial import OverlapError, Share, StaleError, skipped_in

MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 2
_ABANDONED_SECONDS = 60.0
"""A temporary file that nobody has written to for so long is nobody's any more."""
_SUFFIX = ".part.npz"
_ROWS_SUFFIX = ".rows"
KEPT_PATTERN = f"*{_ROWS_SUFFIX}"
"""What these files are called, for `glob`."""
_KEPT = "kept."
"""What the names of the arrays about kept features begin with."""

Identity = dict[str, Any]
"""What a run's parts depend on, as JSON has it: definition, arithmetic, and the sets with their images."""

BatchRows = Mapping[int, NDArray[Any]]
"""Rows by batch, each an array of shape (n, dims)."""


class Checkpoint:
    """A checkpoint folder, as one rank uses it.

    Args:
        folder: it is made if need be.
        every: seconds from one writing to the next.
        max_pixels: the setting of that name.
        complain: takes a line when the folder cannot be written; the run goes on without.
    """

    def __init__(self, folder: str, every: float, max_pixels: int, complain: Callable[[str], None]) -> None:
        self._folder, self._every, self._complain = Path(folder), every, complain
        self._max_pixels = max_pixels
        self._run = self._writer = ""
        self._forerunners: dict[int, list[str]] = {}
        self._writers: dict[Path, KeptWriter] = {}
        self._next = time.monotonic() + every
        self._claimed = True
        self._kept, self._began = False, time.time()

    @property
    def kept(self) -> bool:
        """Whether there is work in the folder: this rank's, or another's that was written since this run began."""
        if self._kept:
            return True
        with contextlib.suppress(OSError):
            parts = self._folder.glob(f"*-{self._run}-*{_SUFFIX}") if self._run else ()
            return any(part.stat().st_mtime >= self._began for part in parts)
        return False

    def claim(self, identity: Identity) -> str:
        """Makes the folder this run's, or finds that it is. On rank zero.

        Returns:
            The run's name, for `join` on every rank.

        Raises:
            InputError: it belongs to another run; the message names the difference.
        """
        identity = json.loads(json.dumps(identity))
        kept = self._manifest(identity)
        if difference := _difference(kept, identity):
            raise InputError(
                f"--checkpoint {self._folder} belongs to another run: {difference}; name another folder, or delete "
                "that one to begin anew"
            )
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def _manifest(self, identity: Identity) -> Identity:
        """What the folder's manifest says, which is ``identity`` where there was none: the first to write it wins."""
        manifest = self._folder / MANIFEST
        if os.path.exists(self._folder) and not os.path.isdir(self._folder):
            raise InputError(f"--checkpoint {self._folder} is a file; name a folder")
        if not os.path.exists(manifest):  # Path.exists raises where a name is too long or a folder above is closed
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                _create(manifest, json.dumps({"format": _FORMAT, "identity": identity}, indent=1))
            except OSError as error:
                self._claimed = False
                self._complain(self._failure(error))
                return identity
        try:
            kept = json.loads(manifest.read_text())
        except OSError as error:
            raise InputError(f"the checkpoint {manifest} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise InputError(f"the checkpoint {manifest} is damaged ({error}): delete {self._folder}") from None
        if not isinstance(kept, dict) or kept.get("format") != _FORMAT or not isinstance(kept.get("identity"), dict):
            raise InputError(f"{manifest} is no checkpoint of this version of fidtool: name another folder")
        found: Identity = kept["identity"]
        return found

    def join(self, run: str, attempt: str, rank: int) -> None:
        """Names this rank's parts after the run and after ``attempt``, which no other attempt is called."""
        self._run, self._writer = run, f"{attempt}-{rank:05}"

    def load(self, number: int, share: Share, mended: Callable[[Sequence[BadFile]], str]) -> None:
        """Puts all parts of set ``number`` into an empty ``share``. On rank zero, before anything is written.

        Args:
            number: which set of the run.
            share: where they go.
            mended: names one of these files that can be read by now, if there is one: its part is not used.
        """
        self._sweep()
        files = self._files(f"{number:03}-{self._run}-*{_SUFFIX}")
        found = [(file, known) for file in files if (known := self._read(file, {"done", "forerunners"})) is not None]
        replaced = {name for _, known in found for name in known["forerunners"].tolist()}
        # The one with the most work comes first: of two with a batch in common only one can count.
        for file, _ in sorted(found, key=lambda entry: int(entry[1]["done"].sum()), reverse=True):
            if file.name not in replaced:
                self._absorb(file, share, mended)
        self._forerunners[number] = [file.name for file in files]

    def _absorb(self, file: Path, share: Share, mended: Callable[[Sequence[BadFile]], str]) -> None:
        arrays = self._read(file)
        if arrays is None:
            return
        try:
            if int(arrays["max_pixels"]) > self._max_pixels:
                raise StaleError(f"it was made with --max-pixels {arrays['max_pixels']}")
            if readable := mended(skipped_in(arrays)):
                raise StaleError(f"{readable}, which it left out, can be read by now")
            share.absorb(arrays, _kept_features(file, arrays, share))
            self._kept = True
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
                self._complain(f"--checkpoint {self._folder} cannot be read ({reason}): what it may hold is done again")
            return []
        return [self._folder / name for name in sorted(fnmatch.filter(names, pattern))]

    def _read(self, file: Path, names: set[str] | None = None) -> dict[str, NDArray[Any]] | None:
        """The arrays of these ``names``, or all; None where the file is damaged, which is said."""
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
        """Deletes what writers that were killed left half written."""
        parts = {part_stem(part) for part in self._files(f"*{_SUFFIX}")}
        alone = [file for file in self._files(KEPT_PATTERN) if part_stem(file) not in parts]
        for file in [*self._files(f".*{_SUFFIX}.*.tmp"), *self._files(f".{MANIFEST}.*.tmp"), *alone]:
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    file.unlink()

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def keep(self, number: int, share: Share) -> None:
        """Writes this rank's part of set ``number``. A folder that cannot be written is said once."""
        arrays = share.freeze()
        if arrays is None or not share.done.any():
            return
        forerunners = self._forerunners.get(number, [])  # named in every version: a deletion may fail
        file = self._folder / f"{number:03}-{self._run}-{self._writer}{_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            arrays |= self._write_kept(file, share)
            with atomic_write(file) as handle:
                arrays["forerunners"] = np.array(forerunners, dtype=np.str_)
                arrays["max_pixels"] = np.array(self._max_pixels)
                np.savez(handle, **arrays)  # type: ignore[arg-type]
            self._kept = True
            for forerunner in (self._folder / name for name in forerunners):
                forerunner.unlink(missing_ok=True)
                for layer in share.kept:
                    kept_file(forerunner, layer).unlink(missing_ok=True)
        except OSError as error:
            self._complain(self._failure(error))
        # Counted from the end: a slow disk must not keep the run from its work.
        self._next = time.monotonic() + self._every

    def _write_kept(self, part: Path, share: Share) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for layer, kept in share.kept.items():
            file = kept_file(part, layer)
            writer = self._writers.setdefault(file, KeptWriter(file, len(share.done)))
            arrays |= {f"{_KEPT}{layer}.{name}": array for name, array in writer.update(kept).items()}
        return arrays

    def _failure(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        return (
            f"--checkpoint {self._folder} cannot be written ({reason}): the run goes on, but a kill would lose its work"
        )


def _kept_features(part: Path, arrays: dict[str, NDArray[Any]], share: Share) -> dict[str, BatchRows]:
    """The kept features of the batches in ``part``, by layer."""
    found = {}
    for layer, empty in share.kept.items():
        prefix = f"{_KEPT}{layer}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        found[layer] = read_kept(kept_file(part, layer), own, empty)
    return found


def _create(file: Path, text: str) -> None:
    """Makes ``file`` unless it is there: of two processes that try at once the first wins, and neither reads half."""
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


def _difference(kept: Identity, now: Identity) -> str:
    """What tells two runs apart, in words; empty if nothing does."""
    for room in ("definition", "arithmetic", "order"):
        old, new = kept.get(room, {}), now[room]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"{name} was {old.get(name)} then and is {new.get(name)} now"
    return _sets_difference(kept.get("sets", []), now["sets"])


def _sets_difference(kept: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> str:
    then_paths, now_paths = ([str(entry.get("path")) for entry in sets] for sets in (kept, now))
    if then_paths != now_paths:
        return f"it was of {', '.join(then_paths)} and this one is of {', '.join(now_paths)}"
    for old, new in zip(kept, now, strict=True):
        if old.get("count") != new["count"]:
            return f"{new['path']} had {old.get('count')} images then and has {new['count']} now"
        if old.get("needed") != new.get("needed"):
            return "it was for other --metrics, which need other features of the images"
        if old.get("identity") != new["identity"]:
            return f"{new['path']} holds files of other names now, or is another folder of that name"
    return ""


def kept_file(part: Path, layer: str) -> Path:
    """The file that holds a layer's features of the batches in ``part``."""
    return part.with_name(f"{part.name.partition('.')[0]}.{layer}{_ROWS_SUFFIX}")


def part_stem(file: Path) -> str:
    """What the names of a part and of its `kept_file` begin with."""
    return file.name.partition(".")[0]


class KeptWriter:
    """Keeps one layer's features of one rank's part up to date: batches that are in are not written again.

    Args:
        file: see `kept_file`.
        batches: number of batches in the plan.
    """

    def __init__(self, file: Path, batches: int) -> None:
        self._file = file
        self._checksums = np.zeros(batches, dtype=np.uint32)
        self._written = np.zeros(batches, dtype=bool)

    def update(self, kept: KeptRows) -> dict[str, NDArray[Any]]:
        """Writes what is new.

        Returns:
            What must stand in the part for `read_kept`.

        Raises:
            OSError: the file cannot be written; what the last part says of it still holds.
        """
        if not self._file.exists():
            self._written[:] = False
        new = np.flatnonzero((kept.counts >= 0) & ~self._written)
        with open(self._file, "r+b" if self._written.any() else "w+b") as handle:
            for batch in map(int, new):
                data = kept.rows(batch).tobytes()
                handle.seek(kept.row_bytes * kept.start(batch))
                handle.write(data)
                self._checksums[batch] = zlib.crc32(data)
            handle.flush()
            os.fsync(handle.fileno())
        self._written[new] = True  # not before: a full disk is often noticed last
        return {"counts": kept.counts, "checksums": self._checksums}


def read_kept(file: Path, arrays: Mapping[str, NDArray[Any]], empty: KeptRows) -> BatchRows:
    """What `KeptWriter.update` wrote, mapped.

    Args:
        file: see `kept_file`.
        arrays: what it returned.
        empty: where the features will go.

    Raises:
        OSError: there is no such file.
        ValueError, KeyError: it is damaged.
    """
    counts, checksums = arrays["counts"], arrays["checksums"]
    if counts.shape != empty.counts.shape or checksums.shape != empty.counts.shape:
        raise ValueError(f"it is of {counts.size} batches and not of {empty.counts.size}")
    size = os.path.getsize(file) // empty.row_bytes
    rows: NDArray[Any] = np.empty((0, empty.dims), dtype=empty.dtype)
    if size:
        rows = np.memmap(file, dtype=empty.dtype, mode="r", shape=(size, empty.dims))
    found = {}
    for batch in map(int, np.flatnonzero(counts >= 0)):
        start = empty.start(batch)
        found[batch] = rows[start : start + int(counts[batch])]
        if len(found[batch]) != counts[batch] or zlib.crc32(found[batch].tobytes()) != checksums[batch]:
            raise ValueError(f"{file.name} is damaged")
    return found
