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
from fidtool.features.protocol import FEATURES, PROBE
from fidtool.names import format_count, format_optional, shorten
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import explain_errors
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.statistics.accumulator import Accumulator, Layers, LayerSpec
from fidtool.statistics.file import load_statistics
from fidtool.statistics.set_statistics import AbsentStatistics, Statistics
from fidtool.validation import MAX_SKIP, max_skipped_files


def merge_statistics(parts: Iterable[str | os.PathLike[str] | Statistics]) -> Statistics:
    """Merge the statistics of all parts of a set, in any order. The result has the bits of a single
    run.

    Args:
        parts: all parts of one set: files that ``fidtool stats --part`` has written, or
            `Statistics` that `fidtool.compute_statistics` has returned with ``part``. They are read
            one after the other.

    Returns:
        The statistics of the whole set, as a single run computes them. Other ranks than rank 0, on
            which the parts are placeholders, get a placeholder.

    Raises:
        InputError: if images are missing or in several parts, or if the sets, protocols, versions
            or devices of the parts differ. The message names the files.
    """
    if isinstance(parts, str | os.PathLike | Statistics):
        parts = [parts]
    merger: _Merger | None = None
    remaining = iter(parts)
    for number, given in enumerate(remaining, 1):
        if isinstance(given, AbsentStatistics):
            for _ in remaining:  # which this rank may be computing with the others
                pass
            return given
        name = f"part {number}" if isinstance(given, Statistics) else os.fspath(given)
        statistics = load_statistics(given)
        merger = merger or _Merger(name, statistics)
        merger.add(name, statistics)
    if merger is None:
        raise InputError("there are no parts to merge")
    return merger.result()


Facts = Mapping[str, Any]
"""What must be equal of statistics that are merged, by the names in messages."""


def describe_run(
    layers: Layers,
    arithmetic: Mapping[str, Any],
    config: Mapping[str, Any],
    crop: Crop | None,
    records: bool,
) -> Facts:
    """Return the facts of a run."""
    networks = [layer.definition.network for layer in layers.values()]
    facts: dict[str, Any] = {"networks": " and ".join(networks)}
    for name, layer in layers.items():
        prefix = "" if name == FEATURES else f"{name} "
        for key, value in asdict(layer.definition).items():
            facts[f"{prefix}{key}"] = value
        facts[f"{prefix}features of each image"] = layer.with_features
    for key in ("value_range", "float_to_byte"):
        facts[key] = config.get(key, "none")
    return {**facts, "crop": crop or "none", "diagnosis": records, **arithmetic}


def describe_statistics(name: str, statistics: Statistics) -> Facts:
    """Return the facts of statistics. An InputError if they have no exact sums."""
    layers = _layers(statistics)
    if len(layers) < len(statistics.layers) or statistics.arithmetic is None:
        raise InputError(
            f"{name} has no exact sums; another tool or an earlier version wrote it:",
            "compute it again with `fidtool stats`",
        )
    records = statistics.pictures is not None
    return describe_run(
        layers, statistics.arithmetic, statistics.config or {}, statistics.framing, records
    )


def _layers(statistics: Statistics) -> dict[str, LayerSpec]:
    return {
        name: LayerSpec(layer.definition, layer.features is not None)
        for name, layer in statistics.layers.items()
        if layer.definition is not None and layer.sums is not None
    }


def check_same_run(name: str, facts: Facts, other_name: str, other: Facts) -> None:
    """Raise an InputError that says what differs, unless one run could have computed both."""
    keys = [key for key in {**facts, **other} if facts.get(key) != other.get(key)]
    if not keys:
        return
    if "networks" in keys:  # all else follows from them
        keys = ["networks"]
    differences = [
        f"{key} {format_optional(facts.get(key))} against {format_optional(other.get(key))}"
        for key in keys
        if not key.endswith(PROBE)
    ]
    how = shorten(", ".join(differences) or "different features for a probe batch", 400)
    raise InputError(
        f"{name} and {other_name} were not computed in the same way ({how}):",
        "compute one of them again, with the same settings, software and kind of device",
    )


class _Merger:
    """Adds the statistics of the parts of a set, each of which must be like the ``first``."""

    def __init__(self, name: str, first: Statistics) -> None:
        self._name = name
        self._facts = describe_statistics(name, first)
        self._first = _get_part(name, first)
        self._sums = Accumulator(_layers(first), self._first.total)
        self._names: list[str] = []
        self._parts: list[SetPart] = []
        self._statistics: list[Statistics] = []
        # The number of the part that has the image, or -1.
        self._owners = np.full(self._first.total, -1)

    def add(self, name: str, statistics: Statistics) -> None:
        part = _get_part(name, statistics)
        check_same_run(name, describe_statistics(name, statistics), self._name, self._facts)
        if (part.whole, part.total) != (self._first.whole, self._first.total):
            raise InputError(
                f"{name} and {self._name} come from different sets: the names, sizes or contents "
                "of the images, or num, seed or sample, differ"
            )
        images = np.concatenate([part.places, part.skipped])
        owners = self._owners[images]
        number = owners.max(initial=-1)
        if number >= 0:
            common = format_count(int((owners >= 0).sum()), "image")
            raise InputError(
                f"{name} ({part.name}) and {self._names[number]} ({self._parts[number].name}) have "
                f"{common} in common:",
                "pass each part once",
            )
        with explain_errors(name):
            self._sums.add_part(statistics)
        self._owners[images] = len(self._parts)
        self._names.append(name)
        self._parts.append(part)
        self._statistics.append(replace(statistics, layers={}))

    def result(self) -> Statistics:
        """Return the statistics of the whole set, whose rows are in its order."""
        sums = self._sums
        count = len(self._owners)
        self._check_complete()
        first = self._statistics[int(self._owners[sums.used.argmax()])]
        skipped = sorted(sums.skipped, key=lambda bad_file: bad_file.file)
        allowed = max_skipped_files(
            (self._statistics[0].config or {}).get("max_skip", MAX_SKIP), count
        )
        if len(skipped) > allowed or not sums.count:
            raise InputError(
                f"{len(skipped)} of {format_count(count, 'file')} cannot be used, but "
                f"{option('max_skip')} allows {allowed} ({skipped[0].file}: {skipped[0].reason}):",
                "fix them, and compute their parts again",
            )
        sums.check_precision()
        order = np.argsort(np.concatenate([part.places for part in self._parts]))
        pictures = [part.pictures for part in self._statistics if part.pictures is not None]
        numbers = [part.order for part in self._statistics if part.order is not None]
        return replace(
            first,
            layers=sums.layer_statistics(sums.rows()),
            count=sums.count,
            traits=sums.traits,
            skipped=tuple(skipped),
            pictures=ImageRecords.join(pictures, order, count) if pictures else None,
            order=np.concatenate(numbers)[order] if len(numbers) == len(self._parts) else None,
            part=None,
        )

    def _check_complete(self) -> None:
        missing = int((self._owners < 0).sum())
        if not missing:
            return
        names = {part.name for part in self._parts}
        totals = {name.partition("/")[2] for name in names}
        which = ""
        if len(totals) == 1:
            (total,) = totals
            every = [f"{number}/{total}" for number in range(1, int(total) + 1)]
            lacking = [name for name in every if name not in names]
            which = f": part {shorten(', '.join(lacking))}" if lacking else ""
        raise InputError(
            f"the files lack {format_count(missing, 'image')} of the set's "
            f"{len(self._owners)}{which}:",
            "pass all parts of the set",
        )


def _get_part(name: str, statistics: Statistics) -> SetPart:
    if statistics.part is None:
        raise InputError(f"{name} has statistics of a whole set, not of a part of it:", "omit it")
    return statistics.part
