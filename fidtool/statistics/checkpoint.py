"""Checkpoint folders: after a kill at any time, the same command continues from the finished parts
of its sets.

The batches of each set are divided into at most 64 parts, regardless of the number of ranks. A part
is saved when it is finished, as a statistics file that is written atomically and named after the
run and the part; resuming is merging. Parts do not depend on the rank or the attempt, so it does
not matter which of several writers is the last. One is not used if its images have changed since,
or if it was made with another ``max_pixels``; it is then computed and written again.
``fidtool-checkpoint.json`` states which run the folder belongs to.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, Say, format_message, format_reason, option
from fidtool.features.passes import GroupFeatures
from fidtool.names import format_count, shorten
from fidtool.reading.batches import Batch
from fidtool.reading.loader import Piece
from fidtool.reading.records import STAMPS
from fidtool.sources.image_set import ImageSet, SetPart
from fidtool.statistics.accumulator import PAIRS, Accumulator, Places
from fidtool.statistics.file import parse_statistics, save_arrays, to_arrays
from fidtool.statistics.foreign import Arrays, NamedArrays
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.cache_dir import atomic_write
from fidtool.system.json_fields import from_json_value
from fidtool.system.local_files import open_regular, read_file

MANIFEST = "fidtool-checkpoint.json"
_FORMAT = 5
# Maximum number of parts of a set. A file has 17 MB for 2048 dimensions, and 8 KB per image if
# features are kept.
_MAX_PARTS = 64
# Suffix of the names of the files with the statistics of the partners.
_PARTNER = "-real"


class CheckpointPart(NamedTuple):
    """Consecutive batches of a set, whose statistics are one file of a checkpoint.

    Attributes:
        file: number of the set and of the part.
        batches: their numbers in the plan.
        images: those of the batches; ``whole`` changes if the files of the images change.
    """

    file: str
    batches: range
    images: SetPart


def plan_parts(number: int, images: ImageSet, batches: Sequence[Batch]) -> list[CheckpointPart]:
    """Divide the ``batches`` of a set into parts; ``number`` is that of the set in the run."""
    count = min(len(batches), _MAX_PARTS)
    edges = [len(batches) * part // count for part in range(count + 1)]
    parts = []
    for place, (start, stop) in enumerate(itertools.pairwise(edges)):
        positions = np.concatenate([batch.images for batch in batches[start:stop]])
        mark = images.hash_files(positions)
        part = SetPart(f"{place + 1}/{count}", f"{mark:016x}", len(images), np.sort(positions))
        parts.append(CheckpointPart(f"{number:03}-{place:02}", range(start, stop), part))
    return parts


@dataclass(eq=False)
class Checkpoint:
    """A checkpoint folder.

    Attributes:
        run: the name of the run, as `claim` returned it.
        arithmetic, config: those of the statistics of its parts, see `Statistics`.
        warn: called, for example, if the folder cannot be written; the run then continues without
            it.
    """

    folder: Path
    run: str
    arithmetic: dict[str, Any]
    config: dict[str, Any]
    warn: Say

    @property
    def has_work(self) -> bool:
        return any(self.folder.glob(f"{self.run}-*.npz"))

    def _file(self, part: CheckpointPart, suffix: str = "") -> Path:
        return self.folder / f"{self.run}-{part.file}{suffix}.npz"

    def load(self, parts: Iterable[CheckpointPart], total: Accumulator) -> list[CheckpointPart]:
        """Add the parts that are in the folder to statistics, and return all others. Called on
        rank 0 only.
        """
        left: list[CheckpointPart] = []
        unused: dict[str, list[Path]] = {}
        for part in parts:
            file = self._file(part)
            if not os.path.exists(file):
                left.append(part)
                continue
            reason = self._add(part, total)
            if reason:
                left.append(part)
                unused.setdefault(reason, []).append(file)
        for reason, files in unused.items():
            self.warn(
                f"{files[0]} is {reason}; computing {format_count(len(files), 'chunk')} of a set "
                "again"
            )
        return left

    def _add(self, part: CheckpointPart, total: Accumulator) -> str:
        """Add a part to statistics; return why it cannot be used, if it cannot."""
        files = {self._file(part): total}
        if total.partner is not None:
            files[self._file(part, _PARTNER)] = total.partner
        try:
            contents = [_read(file) for file in files]
        except Exception as error:  # damaged archives raise many kinds of exceptions
            return f"damaged ({format_message(error)})"
        for statistics, _ in contents:
            if statistics.part != part.images:
                return "not used (files of the set have changed since)"
            if statistics.config != self.config:
                before = option("max_pixels", (statistics.config or {}).get("max_pixels"))
                return f"not used (it was made with {before})"
        for (statistics, pairs), sums in zip(contents, files.values(), strict=True):
            sums.add_part(statistics, pairs)
        return ""

    def save(self, part: CheckpointPart, images: ImageSet, sums: Accumulator) -> None:
        """Write the statistics of a part of the images. Gives a warning if the folder cannot be
        written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # First, because a part is complete if its own file is there.
            if images.partner is not None and sums.partner is not None:
                file = self._file(part, _PARTNER)
                save_arrays(file, self._arrays(part, images.partner, sums.partner))
            save_arrays(self._file(part), self._arrays(part, images, sums))
        except OSError as error:
            self.warn(_unwritable_warning(self.folder, error))

    def _arrays(self, part: CheckpointPart, images: ImageSet, sums: Accumulator) -> Arrays:
        rows = sums.rows()
        statistics = sums.statistics(
            images.take_part(part.images), rows, self.arithmetic, sums_alone=True
        )
        arrays = to_arrays(replace(statistics, config=self.config))
        # The times of the files, which other ranks do not know: those of the part are in its
        # `whole`.
        arrays.pop(STAMPS, None)
        if PAIRS in rows:
            arrays[PAIRS] = rows[PAIRS]
        return arrays

    def make_adder(
        self, parts: Iterable[CheckpointPart], images: ImageSet, total: Accumulator
    ) -> Callable[..., None]:
        """Return a function like ``total.add`` that takes one of ``parts`` after the other, and
        saves each.
        """
        part_of: dict[int, CheckpointPart] = {}
        for part in parts:
            part_of |= dict.fromkeys(part.batches, part)
        sums: Accumulator | None = None

        def add(piece: Piece, features: GroupFeatures, places: Places) -> None:
            nonlocal sums
            part = part_of[piece.number]
            sums = sums or total.empty_copy(len(part.images.places))
            sums.add(piece, features, np.searchsorted(part.images.places, places))
            if piece.number == part.batches[-1] and piece.last:
                sums.finish()
                self.save(part, images, sums)
                total.absorb(sums, part.images.places)
                sums = None

        return add


def _read(file: Path) -> tuple[Statistics, NDArray[np.float64] | None]:
    with open_regular(file) as handle, np.load(handle, allow_pickle=False) as archive:
        arrays = NamedArrays(archive)
        pairs = arrays.array(PAIRS) if PAIRS in arrays.names else None
        return parse_statistics(arrays), pairs


@dataclass(frozen=True)
class Identity:
    """Everything that the parts of a checkpoint depend on, as values of JSON. Each set has its
    ``path``.
    """

    definition: dict[str, Any]
    arithmetic: dict[str, Any]
    order: dict[str, Any]
    sets: tuple[dict[str, Any], ...]

    @property
    def run(self) -> str:
        """The name of the run in the names of files."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def _paths(self) -> str:
        return ", ".join(str(images.get("path")) for images in self.sets)

    def describe_difference(self, now: Identity) -> str:
        """Describe how a run ``now`` differs from this one; empty if it does not."""
        if self._paths != now._paths:
            return f"it computed {self._paths}, and this one computes {now._paths}"
        pairs = [
            ("", self.definition, now.definition),
            ("", self.arithmetic, now.arithmetic),
            ("", self.order, now.order),
        ]
        for old, new in zip(self.sets, now.sets, strict=True):
            pairs.append((f" of {new['path']}", old, new))
        for owner, old, new in pairs:
            for name in sorted({*old, *new}):
                if old.get(name) != new.get(name):
                    return _difference(name, owner, old.get(name), new.get(name))
        return ""


def _difference(name: str, owner: str, before: Any, after: Any) -> str:
    if name == "needed":
        return f"it had different {option('metrics')}, which need different features of the images"
    if name == "identity":
        return f"the names of the images{owner} differ, or the folder is a different one"
    was, is_now = ("not set" if value is None else shorten(f"{value}") for value in (before, after))
    return f"{name}{owner} was {was} and is now {is_now}"


@dataclass(frozen=True)
class _Manifest:
    format: int
    identity: Identity


def claim(folder: str, identity: Identity, warn: Say) -> str:
    """Assign an empty folder to a run, or check that it belongs to this run. Called on rank 0
    only.

    Returns the name of the run.
    """
    manifest = Path(folder) / MANIFEST
    try:
        content = from_json_value(_Manifest, json.loads(read_file(manifest)))
        if content.format != _FORMAT:
            raise ValueError
    except FileNotFoundError:
        try:
            manifest.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(manifest) as handle:
                handle.write(json.dumps(asdict(_Manifest(_FORMAT, identity)), indent=1).encode())
        except OSError as error:
            warn(_unwritable_warning(manifest.parent, error))
        return identity.run
    except OSError as error:
        raise _checkpoint_error(
            f"{option('checkpoint', folder)} cannot be read ({format_reason(error)}):"
        ) from None
    except (ValueError, TypeError, RecursionError):
        raise _checkpoint_error(
            f"{manifest} is damaged, or not a checkpoint of this version of fidtool:"
        ) from None
    difference = content.identity.describe_difference(identity)
    if difference:
        problem = f"{option('checkpoint', folder)} belongs to a different run: {difference}"
        raise _checkpoint_error(problem, "delete this one to start again")
    return identity.run


def _checkpoint_error(problem: str, *remedies: str) -> InputError:
    return InputError(problem, "choose another folder", *remedies, setting="checkpoint")


def _unwritable_warning(folder: Path, error: OSError) -> str:
    reason = f"cannot be written ({format_reason(error)})"
    return (
        f"{option('checkpoint', str(folder))} {reason}: the run continues, but its work is lost "
        "if it is killed"
    )
