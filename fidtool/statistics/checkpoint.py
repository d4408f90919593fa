"""Checkpoint folder, which stores finished work: after a kill at any time, the same command continues from it.

The batches of each set are divided into at most 64 parts, regardless of the number of ranks. The statistics of a part
are a file, which is named after the run and the part, and written atomically when the part is finished. They do not
depend on the rank or the attempt, so it does not matter which of several writers is the last. A part is not used if its
images have changed since, or if a file that it skipped can be read now; it is then computed and written again.
``fidtool-checkpoint.json`` states which run the folder belongs to.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError, option
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet, Indices
from fidtool.statistics.accumulator import Accumulator

MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 4
_MOST_PARTS = 64
"""Maximum number of parts of a set. A file has 17 MB for 2048 dimensions, and 8 KB per image if features are kept."""

Identity = dict[str, Any]
"""Everything that a run's parts depend on, as JSON values: definition, arithmetic, order, and the sets with their
images."""


@dataclass(frozen=True)
class Part:
    """Consecutive batches of a set, whose statistics are one file of a checkpoint.

    Attributes:
        name: number of the set and of the part.
        batches: their numbers in the plan.
        mark: a number that changes if the files of the images change.
    """

    name: str
    batches: range
    mark: int


def parts_of(number: int, images: ImageSet, batches: Sequence[Indices]) -> list[Part]:
    """Divides the ``batches`` of a set into parts; ``number`` is that of the set in the run."""
    count = min(len(batches), _MOST_PARTS)
    edges = [len(batches) * part // count for part in range(count + 1)]
    ranges = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    marks = images.marks(np.concatenate([np.asarray(batches[each]) for each in part]) for part in ranges)
    return [Part(f"{number:03}-{place:02}", each, int(marks[place])) for place, each in enumerate(ranges)]


class Checkpoint:
    """A checkpoint folder.

    Args:
        run: the name of the run, as `claim` returned it.
        warn: called, for example, if the folder cannot be written; the run then continues without it.
    """

    def __init__(self, folder: str, run: str, max_pixels: int, warn: Callable[[str], None]) -> None:
        self._folder, self._run, self._max_pixels, self._warn = Path(folder), run, max_pixels, warn

    @property
    def has_work(self) -> bool:
        """Whether the folder contains work of this run."""
        return any(self._folder.glob(f"{self._run}-*.npz"))

    def _file(self, part: Part) -> Path:
        return self._folder / f"{self._run}-{part.name}.npz"

    def load(
        self, parts: Iterable[Part], total: Accumulator, now_readable: Callable[[Sequence[BadFile]], str]
    ) -> list[Part]:
        """Adds the parts that are in the folder to statistics, and returns all others. Called on rank zero only.

        Parts that skipped a file that can be read now are not used: ``now_readable`` returns the name of one, or an
        empty string.
        """
        left: list[Part] = []
        unused: dict[str, list[Path]] = {}
        for part in parts:
            file = self._file(part)
            if os.path.exists(file):
                found = total.of_batches(part.batches)
                reason = self._read(file, part, found, now_readable)
                if not reason:
                    total.absorb(found)
                    continue
                unused.setdefault(reason, []).append(file)
            left.append(part)
        for reason, (file, *more) in unused.items():
            files, whose = (f"{file} and {len(more)} more files are", "their") if more else (f"{file} is", "its")
            self._warn(f"{files} {reason}: {whose} images are computed again")
        return left

    def _read(
        self, file: Path, part: Part, found: Accumulator, now_readable: Callable[[Sequence[BadFile]], str]
    ) -> str:
        """Restores the statistics of a part; returns why they cannot be used, if they cannot."""
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            mark, max_pixels = int(arrays["mark"]), int(arrays["max_pixels"])
            found.restore(arrays)
        except Exception as error:  # damaged archives raise many kinds of exceptions
            return f"damaged ({' '.join(str(error).split()) or type(error).__name__})"
        if mark != part.mark:
            return "not used (files of the set have changed since)"
        if max_pixels > self._max_pixels:
            return f"not used (it was made with {option('max_pixels', max_pixels)})"
        readable = now_readable(found.skipped)
        return f"not used ({readable}, which it skipped, can be read now)" if readable else ""

    def save(self, part: Part, statistics: Accumulator) -> None:
        """Writes the statistics of a part. Gives a warning if the folder cannot be written."""
        arrays = {**statistics.to_arrays(), "mark": np.uint64(part.mark), "max_pixels": np.int64(self._max_pixels)}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._file(part)) as handle:
                np.savez(handle, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            self._warn(_failure(self._folder, error))

    def part_by_part(self, parts: Iterable[Part], total: Accumulator) -> Callable[..., None]:
        """Returns a function like ``total.add`` that takes one of ``parts`` after the other, and saves each."""
        part_of = {batch: part for part in parts for batch in part.batches}
        own = total

        def add(batch: int, *content: Any) -> None:
            nonlocal own
            part = part_of[batch]
            if batch == part.batches[0]:
                own = total.of_batches(part.batches)
            own.add(batch, *content)
            if batch == part.batches[-1]:
                self.save(part, own)
                total.absorb(own)

        return add


def claim(folder: str, identity: Identity, warn: Callable[[str], None]) -> str:
    """Assigns an empty folder to a run, or checks that it belongs to this run. Called on rank zero only.

    Returns the name of the run.
    """
    text = json.dumps(identity, sort_keys=True)
    run, identity = hashlib.sha256(text.encode()).hexdigest()[:12], json.loads(json.dumps(identity))
    manifest = Path(folder) / MANIFEST
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"{option('checkpoint', folder)} is a file", "choose a folder", setting="checkpoint")
    if not os.path.exists(manifest):  # Path.exists raises if a name is too long or a parent is not accessible
        try:
            manifest.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(manifest) as handle:
                handle.write(json.dumps({"format": _FORMAT, "identity": identity}, indent=1).encode())
        except OSError as error:
            warn(_failure(manifest.parent, error))
        return run
    content: Any = None
    try:
        content = json.loads(manifest.read_text())
    except OSError as error:
        problem = f"the checkpoint {manifest} cannot be read: {error.strerror or error}"
        raise InputError(problem, setting="checkpoint") from None
    except ValueError:
        pass
    ours = isinstance(content, dict) and content.get("format") == _FORMAT and isinstance(content.get("identity"), dict)
    if not ours:
        problem = f"{manifest} is damaged, or not a checkpoint of this version of fidtool:"
        raise InputError(problem, "choose another folder", f"delete {folder}", setting="checkpoint")
    if difference := _difference(content["identity"], identity):
        problem = f"{option('checkpoint', folder)} belongs to a different run: {difference}"
        raise InputError(problem, "choose another folder", "delete this one to start again", setting="checkpoint")
    return run


def _failure(folder: Path, error: OSError) -> str:
    reason = f"cannot be written ({error.strerror or error})"
    return f"{option('checkpoint', str(folder))} {reason}: the run continues, but a kill would lose its work"


def _difference(then: Identity, now: Identity) -> str:
    """Describes how two runs differ; empty if they do not."""
    for group in ("definition", "arithmetic", "order"):
        old, new = then.get(group, {}), now[group]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"{name} was {old.get(name)} and is now {new.get(name)}"
    then_paths, now_paths = ([str(each.get("path")) for each in sets] for sets in (then.get("sets", []), now["sets"]))
    if then_paths != now_paths:
        return f"it computed {', '.join(then_paths)}, and this one computes {', '.join(now_paths)}"
    for old, new in zip(then["sets"], now["sets"], strict=True):
        path, framings = new["path"], (old.get("framing"), new.get("framing"))
        changes = {
            "count": f"{path} had {old.get('count')} images and now has {new['count']}",
            "needed": f"it had different {option('metrics')}, which need different features of the images",
            "framing": f"the crop of {path} was {framings[0]} and is now {framings[1]}",
            "identity": f"{path} now contains files with different names, or is a different folder",
        }
        for name, change in changes.items():
            if old.get(name) != new.get(name):
                return change
    return ""
