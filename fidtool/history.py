"""Results of several days: files of them with a line per FAKE, what changed from one to another, what must agree."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from os.path import normpath
from pathlib import Path
from typing import Any

from fidtool.errors import InputError, option, redacted
from fidtool.explanations import Interval
from fidtool.features.protocol import Definition
from fidtool.local_files import read_file
from fidtool.metrics.registry import BUILT_IN, METRIC_SETTINGS
from fidtool.names import legible, shortened
from fidtool.results import Comparison, Evaluation, SetResult
from fidtool.validation import declared
from fidtool.values import Value

NOT_COMPARABLE, CANNOT_TELL, WORSE = "not comparable", "cannot tell", "worse"
_VERDICTS = {1: WORSE, 0: "cannot be distinguished", -1: "better"}
_WORDS = {"with_features": "images with features", "made_with": "settings of its file"}
_MUST_AGREE = (
    *(f"REAL.{each}" for each in ("name", "count", "framing", "sha256", "pixels", "precision")),
    *("FAKE.framing", "FAKE.precision"),
)
_ENVIRONMENT = ("host", "device", "precision", "kernels", "batch_size", "world_size", "versions")
Differing = dict[str, tuple[Any, Any]]
"""Both values of what differs, by its place. None stands for a default, and for what only one of the two has."""


@dataclass(frozen=True)
class Change:
    """What changed from one result of a FAKE to another.

    Attributes:
        fake: the path of FAKE; if it changed, both.
        verdict: ``worse``, ``better``, ``cannot be distinguished``, ``cannot tell`` or ``not comparable``.
        reason: why this is the verdict.
        difference: bias-corrected Fréchet distance after minus that before, see `Interval`; None if it is unknown.
        metrics: the values of both, by their names in the JSON; ``classes.mean.fid`` is the mean of all classes.
        besides: what else differs in settings, protocol, sets and environment.
        classes: the values of each class, or folder, by its name.
    """

    fake: str
    verdict: str
    reason: str
    difference: Interval | None
    metrics: Differing
    besides: Differing
    classes: Mapping[str, Differing] = field(default_factory=dict)


def per_fake(evaluation: Evaluation) -> list[Evaluation]:
    """Return one evaluation per FAKE."""
    return [replace(evaluation, results=(each,), differences=()) for each in evaluation.results]


def append_history(evaluation: Evaluation, file: Path) -> None:
    """Add a line of JSON per FAKE to a file, or make it: an evaluation without what is about single images or classes.

    It is one write at the end of the file, so that lines of two runs do not mix.
    """
    data = b""
    for each in per_fake(evaluation):
        small = replace(each.results[0], skipped=(), diagnosis=None, influence=None, exhibit=None, classes=None)
        data += json.dumps(replace(each, results=(small,)).to_dict()).encode() + b"\n"
    with open(file, "ab+", buffering=0) as handle:
        if handle.seekable() and handle.tell():
            handle.seek(-1, os.SEEK_END)
            data = data if handle.read() == b"\n" else b"\n" + data  # after a line that was cut short
        while data:  # a full disk takes a part without an error, and nothing the next time
            data = data[handle.write(data) :]


def read_history(file: str | os.PathLike[str]) -> tuple[list[Evaluation], list[str]]:
    """Return the results of a history, the oldest first, and a sentence about each line that is none.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        lines = read_file(file).split(b"\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    found, problems = list[Evaluation](), list[str]()
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found += per_fake(Evaluation.from_dict(json.loads(line)))
        except (ValueError, RecursionError) as error:
            problems.append(f"{file}: line {number} is left out: {shortened(legible(str(error)))}")
    if problems and not found:
        raise InputError(f"{problems[0]}; so are all others:", f"pass the file of {option('history')}")
    return sorted(found, key=lambda each: each.run.date), problems


def changes_of(before: Evaluation, after: Evaluation) -> list[Change]:
    """Return the changes of the FAKEs by name, then those that only one result has; if each has only one, of these."""
    was, now = ({path_of(each.results[0].fake.name): each for each in per_fake(one)} for one in (before, after))
    if len(was) == len(now) == 1:
        return [change_of(*was.values(), *now.values())]
    both = [change_of(was[path], each) for path, each in now.items() if path in was]
    for path in {**was, **now}:
        if path not in was or path not in now:
            old, new = ({} if path not in one else _values(one[path]) for one in (was, now))
            names = path if path in was else None, path if path in now else None
            reason = f"only result {'A' if path in was else 'B'} has this FAKE"
            both.append(Change(path, CANNOT_TELL, reason, None, _pairs(old, new), {"FAKE.name": names}))
    return both


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Differing:
    return {name: (old.get(name), new.get(name)) for name in {**old, **new}}


def _values(evaluation: Evaluation) -> dict[str, float]:
    """Return the values of the only FAKE by their names in the JSON."""
    (result,) = evaluation.results
    means = {} if result.classes is None else result.classes.mean
    return {**result.metrics, **{f"classes.mean.{name}": mean for name, mean in means.items()}}


def _of_classes(result: Comparison) -> dict[str, Mapping[str, float]]:
    return {} if result.classes is None else {each.name: each.metrics for each in result.classes.classes}


def change_of(before: Evaluation, after: Evaluation) -> Change:
    """Return what changed between two results of one FAKE."""
    (old,), (new,) = before.results, after.results
    difference = None
    were = _of_classes(old)
    are = _of_classes(new)
    if found := obstacles(before, after, new.distance or new.values[0]):
        verdict, reason = NOT_COMPARABLE, "; ".join(lines_of(found))
    elif old.corrected is None or new.corrected is None:
        bars = [each.uncertainty for each in (old, new)]
        without = {each.withheld if each else option("uncertainty", True): None for each in bars}
        verdict, reason = CANNOT_TELL, f"no error bars ({'; '.join(filter(None, without))})"
    else:
        difference = new.corrected - old.corrected
        title = new.distance.title if new.distance else ""
        verdict, reason = _VERDICTS[difference.sign], f"bias-corrected {title} {difference.signed}"
    return Change(
        fake=" -> ".join(dict.fromkeys(map(path_of, (old.fake.name, new.fake.name)))),
        verdict=verdict,
        reason=reason,
        difference=difference,
        metrics=_pairs(_values(before), _values(after)),
        besides=differences_of(before, after),
        classes={
            name: _pairs(were.get(name, {}), are.get(name, {}))
            for name in {**were, **are}
            if were.get(name) or are.get(name)
        },
    )


def differences_of(before: Evaluation, after: Evaluation) -> Differing:
    """Return what differs in settings, protocol, sets and environment of two results of one FAKE."""
    both = before.settings.keys() & after.settings.keys()
    was, now = (
        {
            "settings": {key: value for key, value in each.run.config.items() if key not in METRIC_SETTINGS}
            | {name: (_usual(name) if name in both else {}) | dict(values) for name, values in each.settings.items()},
            "protocol": {layer: asdict(found) if found else None for layer, found in definitions.items()},
            "REAL": _facts(each.results[0].real),
            "FAKE": _facts(each.results[0].fake),
            "environment": {name: getattr(each.run, name) for name in _ENVIRONMENT},
        }
        for each, definitions in ((before, _definitions_as(before, after)), (after, after.definitions))
    )
    return _differing(was, now)


def _usual(metric: str) -> dict[str, Any]:
    """Return the defaults of a metric's settings: an earlier version may have had fewer."""
    return {name: each.default for name, each in declared(BUILT_IN[metric]).items()} if metric in BUILT_IN else {}


def _definitions_as(before: Evaluation, after: Evaluation) -> dict[str, Definition | None]:
    """Return the definitions of a result by the layers that another one has for the same networks."""
    now = {replace(value.features, layer=""): value.features.layer for value in after.values}
    layers = {value.features.layer: now.get(replace(value.features, layer="")) for value in before.values}
    names = {layer: layers.get(layer) or layer for layer in before.definitions}
    order = sorted(names, key=lambda layer: names[layer] != layer)  # those that have another layer replace others
    return {names[layer]: before.definitions[layer] for layer in order}


def obstacles(before: Evaluation, after: Evaluation, value: Value) -> Differing:
    """Return what differs and must agree, so that two results of one FAKE have comparable values of this kind.

    It is the protocol of its features, the settings of its metric, REAL, and framing and precision of FAKE.
    """
    places = f"protocol.{value.features.layer}", f"settings.{value.metric}", *_MUST_AGREE
    needed = tuple(f"{place}." for place in places)
    found = {place: pair for place, pair in differences_of(before, after).items() if f"{place}.".startswith(needed)}
    if "" in found.get("REAL.pixels", ()):
        del found["REAL.pixels"]  # unknown without the diagnosis
    elif "REAL.pixels" not in found and after.results[0].real.facts.pixels:
        found.pop("REAL.name", None)  # the same images at another path
    return found


def lines_of(found: Differing) -> list[str]:
    """Return a line per difference, ``REAL.count: 250 -> 200``, without those that follow from number or crop."""
    lines = []
    for place, pair in found.items():
        role, _, fact = place.partition(".")
        counts, crops = (found.get(f"{role}.{each}") for each in ("count", "framing"))
        if fact == "count" or not (pair == counts or (fact == "pixels" and (counts or crops))):
            if fact in _WORDS:
                place = f"{role}.{_WORDS[fact]}"
            lines.append(f"{place}: {' -> '.join(map(_text, pair))}")
    return lines


def _text(value: object) -> str:
    if isinstance(value, str):
        return shortened(value, 40) or "-"
    text = re.sub(r'[]["{}]', "", json.dumps(value, ensure_ascii=False))
    return "-" if text in ("", "null") else textwrap.shorten(text, 40, placeholder=" …")


def path_of(name: str) -> str:
    """Return the path of a set without secrets in URLs, the same for ``real``, ``real/`` and ``./real``."""
    return redacted(name) if "://" in name else normpath(name)


def _facts(each: SetResult) -> dict[str, Any]:
    names = "count", "found", "framing", "made_with"
    return {"name": path_of(each.name)} | {name: getattr(each, name) for name in names} | asdict(each.facts)


def _differing(before: object, after: object, place: str = "") -> Differing:
    """Return what differs in two JSON values, by the keys that lead there, which points join."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return {} if before == after else {place: (before, after)}
    found: Differing = {}
    for key in {**before, **after}:
        found |= _differing(before.get(key), after.get(key), f"{place}.{key}" if place else key)
    return found
