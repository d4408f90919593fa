"""Merging of the statistics of a set's parts, which were computed apart, to the bits of a single run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fidtool.errors import InputError, option
from fidtool.features.protocol import PROBE, Definition, layer_prefix
from fidtool.images.decode import ImageProperties
from fidtool.images.records import ImageRecords
from fidtool.names import counted, or_none, shortened
from fidtool.sources.contents import explained
from fidtool.sources.image_set import SetPart
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.set_statistics import Features, LayerStatistics, RowStorage, Statistics, reordered
from fidtool.statistics.statistics_file import statistics_in
from fidtool.validation import MAX_SKIP, most_skipped


def layer_statistics(moments: ExactMoments, definition: Definition, features: Features | None) -> LayerStatistics:
    """Returns the statistics of a layer from its exact sums. A RunError if the features have too few bits."""
    if not definition.standard:
        moments.check_precision()
    if not moments.count:  # of a part whose files are all skipped
        return LayerStatistics(
            np.zeros(moments.dims), np.zeros((moments.dims,) * 2), definition, features, moments.totals()
        )
    gaussian = moments.mean_covariance(definition.ddof)
    return LayerStatistics(gaussian.mu, gaussian.sigma, definition, features, moments.totals())


def merge_statistics(parts: Iterable[str | os.PathLike[str] | Statistics]) -> Statistics:
    """Merges the statistics of the parts of a set, in any order, to those of a single run: all bits are the same.

    Args:
        parts: all parts of one set: files that ``fidtool stats --part`` has written, or `Statistics` that
            `fidtool.compute_statistics` has returned with ``part``. They are read one after the other.

    Returns:
        The statistics of the whole set, as if computed at once.

    Raises:
        InputError: if images are missing or in several parts, or the parts are of different sets, protocols, versions
            or devices. The message names the files.
    """
    if isinstance(parts, str | os.PathLike | Statistics):
        parts = [parts]
    merger: _Merger | None = None
    for number, each in enumerate(parts, 1):
        if each is None:  # what `compute_statistics` returns there
            raise InputError(f"part {number} is None, as on ranks above zero:", "merge the parts on rank zero")
        name = f"part {number}" if isinstance(each, Statistics) else os.fspath(each)
        part = statistics_in(each)
        merger = merger or _Merger(name, part)
        merger.add(name, part)
    if merger is None:
        raise InputError("there are no parts to merge")
    return merger.merged()


Facts = Mapping[str, Any]
"""What must be equal of statistics that are merged, by the names in messages."""


def facts_of(
    layers: Mapping[str, tuple[Definition, bool]],
    arithmetic: Mapping[str, Any],
    config: Mapping[str, Any],
    crop: str | None,
    records: bool,
) -> Facts:
    """Returns the facts of a run. Each layer has its definition and whether the features of each image are kept."""
    facts: dict[str, Any] = {"networks": " and ".join(definition.network for definition, _ in layers.values())}
    for layer, (definition, kept) in layers.items():
        prefix = layer_prefix(layer, " ")
        facts |= {f"{prefix}{key}": value for key, value in asdict(definition).items()}
        facts[f"{prefix}features of each image"] = kept
    facts |= {key: config.get(key, "none") for key in ("value_range", "float_to_byte")}
    return {**facts, "crop": crop or "none", "diagnosis": records, **arithmetic}


def known_facts(name: str, statistics: Statistics) -> Facts:
    """Returns the facts of statistics. An InputError if they have no exact sums."""
    layers = {
        layer: (each.definition, each.features is not None)
        for layer, each in statistics.layers.items()
        if each.definition is not None and each.sums is not None
    }
    if len(layers) < len(statistics.layers) or statistics.arithmetic is None:
        problem = f"{name} has no exact sums; another tool or an earlier version wrote it:"
        raise InputError(problem, "compute it again with `fidtool stats`")
    records = statistics.pictures is not None
    return facts_of(layers, statistics.arithmetic, statistics.config or {}, statistics.framing, records)


def refuse_other(name: str, facts: Facts, other_name: str, other: Facts) -> None:
    """Raises an InputError that says what differs, unless one run could have computed both."""
    keys = [key for key in {**facts, **other} if facts.get(key) != other.get(key)]
    if keys:
        named = ["networks"] if "networks" in keys else [key for key in keys if not key.endswith(PROBE)]
        differ = [f"{key} {or_none(facts.get(key))} against {or_none(other.get(key))}" for key in named] or [
            "other bits of a probe batch"
        ]
        how = shortened(", ".join(differ), 400)
        problem = f"{name} and {other_name} were not computed in the same way ({how}):"
        raise InputError(problem, "compute one of them again, with the same settings, software and kind of device")


class _Merger:
    """Adds the statistics of the parts of a set, each of which must be like the ``first``."""

    def __init__(self, name: str, first: Statistics) -> None:
        self._first, self._facts, self._parts = first, known_facts(name, first), list[tuple[str, SetPart, Statistics]]()
        self._total = first.part.total if first.part else 0
        self._owners = np.zeros(self._total, dtype=np.int32)  # numbers of the parts from 1, 0 for none
        steps = {layer: each.definition.feature_step for layer, each in first.layers.items() if each.definition}
        self._moments = {layer: ExactMoments(first.layers[layer].dims, step) for layer, step in steps.items()}
        kept = {layer: each.dims for layer, each in first.layers.items() if each.features is not None}
        self._rows = {layer: RowStorage(self._total, dims) for layer, dims in kept.items()}

    def add(self, name: str, statistics: Statistics) -> None:
        if (part := statistics.part) is None:
            raise InputError(f"{name} has statistics of a whole set, not of a part of it:", "omit it")
        first_name, first, _ = self._parts[0] if self._parts else (name, part, None)
        refuse_other(name, known_facts(name, statistics), first_name, self._facts)
        if (part.whole, part.total) != (first.whole, first.total):
            causes = "the names, sizes or contents of the images, or num, seed or sample, differ"
            raise InputError(f"{name} and {first_name} are of different sets: {causes}")
        if (statistics.order is None) != (self._first.order is None):
            problem = f"only one of {name} and {first_name} has the stored order of its images:"
            raise InputError(problem, "compute both again, with this version")
        every = np.concatenate([part.places, part.skipped])
        owners = self._owners[every]
        if common := int(np.count_nonzero(owners)):
            other, its, _ = self._parts[int(owners.max()) - 1]
            both = f"{name} ({part.name}) and {other} ({its.name})"
            raise InputError(f"{both} have {counted(common, 'image')} in common:", "pass each part once")
        self._owners[every] = len(self._parts) + 1
        for layer, each in statistics.layers.items():
            with explained(name):
                self._moments[layer].absorb(each.sums or {})
            if each.features is not None:
                self._rows[layer].write(sum(len(its.places) for _, its, _ in self._parts), each.features)
        self._parts.append((name, part, replace(statistics, layers={})))

    def merged(self) -> Statistics:
        """Returns the statistics of the whole set, whose rows are in its order."""
        places, parts = np.concatenate([part.places for _, part, _ in self._parts]), [each for *_, each in self._parts]
        if missing := self._total - int(np.count_nonzero(self._owners)):
            raise self._incomplete(missing)
        skipped = sorted((bad for each in parts for bad in each.skipped), key=lambda bad: bad.file)
        allowed = most_skipped((self._first.config or {}).get("max_skip", MAX_SKIP), self._total)
        if len(skipped) > allowed or not len(places):
            problem = (
                f"{len(skipped)} of {counted(self._total, 'file')} cannot be used, but {option('max_skip')} allows"
            )
            raise InputError(
                f"{problem} {allowed} ({skipped[0].file}: {skipped[0].reason}):", "fix them, and do their parts again"
            )
        layers, order = {}, np.argsort(places)
        for name, moments in self._moments.items():
            definition = self._first.layers[name].definition
            assert definition is not None
            rows = reordered(self._rows[name].array(), order) if name in self._rows else None
            layers[name] = layer_statistics(moments, definition, rows)
        numbers = [each.order for each in parts if each.order is not None]
        if numbers and len(np.unique(np.concatenate(numbers))) < len(places):
            raise InputError("parts state the same number in the stored order for two images:", "compute them again")
        pictures = [each.pictures for each in parts if each.pictures is not None]
        return replace(
            min((each for each in self._parts if len(each[1].places)), key=lambda each: each[1].places[0])[2],
            layers=layers,
            count=len(places),
            traits=ImageProperties.total(each.traits for each in parts if each.traits is not None),
            skipped=tuple(skipped),
            pictures=ImageRecords.joined(pictures, order) if pictures else None,
            order=np.concatenate(numbers)[order] if numbers else None,
            part=None,
        )

    def _incomplete(self, missing: int) -> InputError:
        names = {part.name for _, part, _ in self._parts}
        numbers = {name.partition("/")[2] for name in names}
        every = [f"{number}/{of}" for of in numbers if len(numbers) == 1 for number in range(1, int(of) + 1)]
        which = shortened(", ".join(name for name in every if name not in names))
        lacking = f"no file has {counted(missing, 'image')} of the set's {self._total}"
        return InputError(f"{lacking}{f': part {which}' if which else ''}:", "pass all parts of the set")
