"""Merging of the statistics of a set's parts, which were computed apart, to the bits of a single
run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fidtool.errors import InputError, option
from fidtool.features.protocol import PROBE, layer_prefix
from fidtool.names import counted, or_none, shortened
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import explained
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.statistics.accumulator import Accumulator, Layer
from fidtool.statistics.file import statistics_in
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import MAX_SKIP, most_skipped


def merge_statistics(parts: Iterable[str | os.PathLike[str] | Statistics]) -> Statistics:
    """Merges the statistics of the parts of a set, in any order, to those of a single run: all bits
    are the same.

    Args:
        parts: all parts of one set: files that ``fidtool stats --part`` has written, or
            `Statistics` that `fidtool.compute_statistics` has returned with ``part``. They are read
            one after the other.

    Returns:
        The statistics of the whole set, as if computed at once.

    Raises:
        InputError: if images are missing or in several parts, or the parts are of different sets,
            protocols, versions or devices. The message names the files.
    """
    if isinstance(parts, str | os.PathLike | Statistics):
        parts = [parts]
    merger: _Merger | None = None
    for number, given in enumerate(parts, 1):
        if given is None:  # what `compute_statistics` returns there
            raise InputError(
                f"part {number} is None, as on ranks above zero:", "merge the parts on rank zero"
            )
        name = f"part {number}" if isinstance(given, Statistics) else os.fspath(given)
        statistics = statistics_in(given)
        merger = merger or _Merger(name, statistics)
        merger.add(name, statistics)
    if merger is None:
        raise InputError("there are no parts to merge")
    return merger.merged()


Facts = Mapping[str, Any]
"""What must be equal of statistics that are merged, by the names in messages."""


def facts_of(
    layers: Mapping[str, Layer],
    arithmetic: Mapping[str, Any],
    config: Mapping[str, Any],
    crop: Crop | None,
    records: bool,
) -> Facts:
    """Returns the facts of a run."""
    facts: dict[str, Any] = {
        "networks": " and ".join(layer.definition.network for layer in layers.values())
    }
    for name, layer in layers.items():
        prefix = layer_prefix(name, " ")
        facts |= {f"{prefix}{key}": value for key, value in asdict(layer.definition).items()}
        facts[f"{prefix}features of each image"] = layer.with_features
    facts |= {key: config.get(key, "none") for key in ("value_range", "float_to_byte")}
    return {**facts, "crop": crop or "none", "diagnosis": records, **arithmetic}


def known_facts(name: str, statistics: Statistics) -> Facts:
    """Returns the facts of statistics. An InputError if they have no exact sums."""
    layers = _layers(statistics)
    if len(layers) < len(statistics.layers) or statistics.arithmetic is None:
        raise InputError(
            f"{name} has no exact sums; another tool or an earlier version wrote it:",
            "compute it again with `fidtool stats`",
        )
    records = statistics.pictures is not None
    return facts_of(
        layers, statistics.arithmetic, statistics.config or {}, statistics.framing, records
    )


def _layers(statistics: Statistics) -> dict[str, Layer]:
    """Returns the layers with exact sums."""
    return {
        name: Layer(layer.definition, layer.features is not None)
        for name, layer in statistics.layers.items()
        if layer.definition is not None and layer.sums is not None
    }


def refuse_other(name: str, facts: Facts, other_name: str, other: Facts) -> None:
    """Raises an InputError that says what differs, unless one run could have computed both."""
    keys = [key for key in {**facts, **other} if facts.get(key) != other.get(key)]
    if keys:
        named = (
            ["networks"] if "networks" in keys else [key for key in keys if not key.endswith(PROBE)]
        )
        differ = [
            f"{key} {or_none(facts.get(key))} against {or_none(other.get(key))}" for key in named
        ] or ["other bits of a probe batch"]
        how = shortened(", ".join(differ), 400)
        raise InputError(
            f"{name} and {other_name} were not computed in the same way ({how}):",
            "compute one of them again, with the same settings, software and kind of device",
        )


class _Merger:
    """Adds the statistics of the parts of a set, each of which must be like the ``first``."""

    def __init__(self, name: str, first: Statistics) -> None:
        self._name = name
        self._part = first.part
        self._facts = known_facts(name, first)
        total = first.part.total if first.part else 0
        self._sums = Accumulator(_layers(first), total)
        self._parts: list[tuple[str, SetPart, Statistics]] = []
        self._owners = np.full(total, -1)  # the index of each image's part

    def add(self, name: str, statistics: Statistics) -> None:
        part = statistics.part
        if part is None or self._part is None:
            raise InputError(
                f"{name} has statistics of a whole set, not of a part of it:", "omit it"
            )
        refuse_other(name, known_facts(name, statistics), self._name, self._facts)
        if (part.whole, part.total) != (self._part.whole, self._part.total):
            causes = "the names, sizes or contents of the images, or num, seed or sample, differ"
            raise InputError(f"{name} and {self._name} are of different sets: {causes}")
        images = np.concatenate([part.places, part.skipped])
        owners = self._owners[images]
        if owners.max(initial=-1) >= 0:
            other, its, _ = self._parts[owners.max()]
            both = f"{name} ({part.name}) and {other} ({its.name})"
            common = int((owners >= 0).sum())
            raise InputError(
                f"{both} have {counted(common, 'image')} in common:", "pass each part once"
            )
        with explained(name):
            self._sums.add_part(statistics)
        self._owners[images] = len(self._parts)
        self._parts.append((name, part, replace(statistics, layers={})))

    def merged(self) -> Statistics:
        """Returns the statistics of the whole set, whose rows are in its order."""
        sums, parts = self._sums, [statistics for *_, statistics in self._parts]
        self._check_complete()
        skipped = sorted(sums.skipped, key=lambda bad: bad.file)
        allowed = most_skipped((parts[0].config or {}).get("max_skip", MAX_SKIP), len(self._owners))
        if len(skipped) > allowed or not sums.count:
            files = counted(len(self._owners), "file")
            raise InputError(
                f"{len(skipped)} of {files} cannot be used, but {option('max_skip')} allows "
                f"{allowed} ({skipped[0].file}: {skipped[0].reason}):",
                "fix them, and do their parts again",
            )
        order = np.argsort(np.concatenate([part.places for _, part, _ in self._parts]))
        numbers = [part.order for part in parts if part.order is not None]
        pictures = [part.pictures for part in parts if part.pictures is not None]
        sums.check_precision()
        return replace(
            parts[int(self._owners[sums.used][0])],
            layers=sums.layer_statistics(sums.rows()),
            count=sums.count,
            traits=sums.traits,
            skipped=tuple(skipped),
            pictures=ImageRecords.joined(pictures, order, len(self._owners)) if pictures else None,
            order=np.concatenate(numbers)[order] if len(numbers) == len(parts) else None,
            part=None,
        )

    def _check_complete(self) -> None:
        missing = int((self._owners < 0).sum())
        if not missing:
            return
        names = {part.name for _, part, _ in self._parts}
        total, *others = {name.partition("/")[2] for name in names}
        every = [] if others else [f"{number}/{total}" for number in range(1, int(total) + 1)]
        which = shortened(", ".join(name for name in every if name not in names))
        lacking = f"no file has {counted(missing, 'image')} of the set's {len(self._owners)}"
        raise InputError(
            f"{lacking}{f': part {which}' if which else ''}:", "pass all parts of the set"
        )
