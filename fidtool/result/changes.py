"""Results of several days: files of them with a line per FAKE, what changed from one to another,
what must agree.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fidtool.errors import InputError, ResultWarning, option
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import escape_text, shorten
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Interval
from fidtool.result.values import Definitions, Value
from fidtool.sources.contents import explain_errors
from fidtool.system.json_fields import to_json_fields, to_json_value
from fidtool.system.local_files import StrPath, read_file

NOT_COMPARABLE, CANNOT_TELL, WORSE = "not comparable", "cannot tell", "worse"
_VERDICTS = {1: WORSE, 0: "cannot be distinguished", -1: "better"}
_WORDS = {"with_features": "images with features", "made_with": "settings of its file"}
# What must agree of the sets of two comparable results.
_SET_KEYS = {
    ("REAL", "name"),
    ("REAL", "count"),
    ("REAL", "framing"),
    ("REAL", "sha256"),
    ("REAL", "pixels"),
    ("REAL", "precision"),
    ("FAKE", "framing"),
    ("FAKE", "precision"),
}
_ENVIRONMENT = ("host", "device", "precision", "kernels", "batch_size", "world_size", "versions")
KeyPath = tuple[str, ...]
"""Where something is in a result: ``("REAL", "count")``."""
JSONDiff = dict[KeyPath, tuple[Any, Any]]
"""Both values of what differs, by its place. None stands for a default, and for what only one of
the two has.
"""
Values = dict[str, tuple[float | None, float | None]]
"""A value in both results, by its key in the JSON; None if one does not have it."""


@dataclass(frozen=True)
class Change:
    """What changed from one result of a FAKE to another.

    Attributes:
        fake: the path of FAKE; both paths if it changed.
        verdict: ``worse``, ``better``, ``cannot be distinguished``, ``cannot tell`` or ``not
            comparable``.
        reason: why this is the verdict.
        difference: bias-corrected Fréchet distance after minus that before, see `Interval`; None if
            it is unknown.
        metrics: the values of both, by their names in the JSON; ``classes.mean.fid`` is the mean of
            all classes.
        besides: what else differs in settings, protocol, sets and environment.
        classes: the values of each class, or folder, by its name.
    """

    fake: str
    verdict: str
    reason: str
    difference: Interval | None
    metrics: Values
    besides: JSONDiff
    classes: Mapping[str, Values] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry in the JSON of ``fidtool diff``, where points join the parts of a
        place.
        """
        besides = {".".join(place): to_json_value(pair) for place, pair in self.besides.items()}
        return to_json_fields(self) | {"besides": besides}


def split_by_fake(evaluation: Evaluation) -> list[Evaluation]:
    """Return one evaluation per FAKE."""
    return [replace(evaluation, results=(result,), differences=()) for result in evaluation.results]


def append_history(evaluation: Evaluation, file: Path) -> None:
    """Add a line of JSON per FAKE to a file, or make it: an evaluation without what is about single
    images or classes.

    It is one write at the end of the file, so that lines of two runs do not mix.
    """
    lines = b""
    for alone in split_by_fake(evaluation):
        (result,) = alone.results
        small = replace(
            result, skipped=(), diagnosis=None, influence=None, exhibit=None, classes=None
        )
        lines += json.dumps(replace(alone, results=(small,)).to_dict()).encode() + b"\n"
    with open(file, "ab+") as handle:
        if handle.tell():
            handle.seek(-1, os.SEEK_END)
            if handle.read() != b"\n":  # the last line was cut short
                lines = b"\n" + lines
        handle.write(lines)


def read_history(file: StrPath) -> tuple[list[Evaluation], list[ResultWarning]]:
    """Return the results of a history, the oldest first, and a warning about each line that is
    none.

    Raises:
        InputError: if the file cannot be read.
    """
    with explain_errors(str(file)):
        lines = read_file(file).split(b"\n")
    results = []
    problems = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                results += split_by_fake(Evaluation.from_dict(json.loads(line)))
        except (ValueError, RecursionError) as error:
            text = f"{file}: line {number} is left out: {shorten(escape_text(str(error)))}"
            problems.append(ResultWarning("", text))
    if problems and not results:
        raise InputError(
            f"{problems[0]}; all other lines are left out as well:",
            f"pass the file of {option('history')}",
        )
    return sorted(results, key=lambda result: result.run.date), problems


def compare_results(before: Evaluation, after: Evaluation) -> list[Change]:
    """Return the changes of the FAKEs by name, then those that only one result has; if each has
    only one, of these.
    """
    old = {alone.results[0].fake.path: alone for alone in split_by_fake(before)}
    new = {alone.results[0].fake.path: alone for alone in split_by_fake(after)}
    if len(old) == len(new) == 1:
        return [compare_result(*old.values(), *new.values())]
    changes = [compare_result(old[path], new[path]) for path in new if path in old]
    for path in old:
        if path not in new:
            changes.append(
                _unmatched_change("A", path, _pairs(_values(old[path]), {}), (path, None))
            )
    for path in new:
        if path not in old:
            changes.append(
                _unmatched_change("B", path, _pairs({}, _values(new[path])), (None, path))
            )
    return changes


def _unmatched_change(
    result: str, path: str, metrics: Values, names: tuple[str | None, str | None]
) -> Change:
    reason = f"only result {result} has this FAKE"
    return Change(path, CANNOT_TELL, reason, None, metrics, {("FAKE", "name"): names})


def _pairs(old: Mapping[str, float], new: Mapping[str, float]) -> Values:
    return {key: (old.get(key), new.get(key)) for key in {**old, **new}}


def _values(evaluation: Evaluation) -> dict[str, float]:
    """Return the values of the only FAKE by their keys in the JSON."""
    (result,) = evaluation.results
    values = dict(result.metrics)
    if result.classes is not None:
        values |= {f"classes.mean.{key}": mean for key, mean in result.classes.mean.items()}
    return values


def _values_of_classes(result: Comparison) -> dict[str, Mapping[str, float]]:
    classes = () if result.classes is None else result.classes.classes
    return {entry.name: entry.metrics for entry in classes if entry.metrics}


def compare_result(before: Evaluation, after: Evaluation) -> Change:
    """Return what changed between two results of one FAKE."""
    (old,) = before.results
    (new,) = after.results
    difference = None
    differing = find_obstacles(before, after, new.distance or new.values[0])
    if differing:
        verdict = NOT_COMPARABLE
        reason = "; ".join(difference_lines(differing))
    elif old.corrected is None or new.corrected is None:
        verdict = CANNOT_TELL
        bars = (old.uncertainty, new.uncertainty)
        reasons = {bar.withheld if bar else option("uncertainty", True): None for bar in bars}
        reason = f"no error bars ({'; '.join(filter(None, reasons))})"
    else:
        difference = new.corrected - old.corrected
        verdict = _VERDICTS[difference.sign]
        title = new.distance.title if new.distance else ""
        reason = f"bias-corrected {title} {difference.signed}"
    old_classes = _values_of_classes(old)
    new_classes = _values_of_classes(new)
    return Change(
        fake=" -> ".join(dict.fromkeys((old.fake.path, new.fake.path))),
        verdict=verdict,
        reason=reason,
        difference=difference,
        metrics=_pairs(_values(before), _values(after)),
        besides=diff_results(before, after),
        classes={
            name: _pairs(old_classes.get(name, {}), new_classes.get(name, {}))
            for name in {**old_classes, **new_classes}
        },
    )


def diff_results(before: Evaluation, after: Evaluation) -> JSONDiff:
    """Return what differs in settings, protocol, sets and environment of two results of one
    FAKE.
    """
    old = _comparable_facts(before, _rename_layers(before, after))
    return _diff(old, _comparable_facts(after, after.definitions))


def _comparable_facts(evaluation: Evaluation, definitions: Definitions) -> dict[str, Any]:
    """Return what a result states besides its values."""
    (result,) = evaluation.results
    config = evaluation.run.config
    others = {key: config[key] for key in config if key not in METRIC_SETTINGS}
    return {
        "settings": {**others, **evaluation.complete_settings},
        "protocol": to_json_value(definitions),
        "REAL": _set_facts(result.real),
        "FAKE": _set_facts(result.fake),
        "environment": {name: getattr(evaluation.run, name) for name in _ENVIRONMENT},
    }


def _set_facts(image_set: SetResult) -> dict[str, Any]:
    facts = to_json_fields(image_set) | {"name": image_set.path}
    del facts["passed_over"]
    return facts


def _rename_layers(before: Evaluation, after: Evaluation) -> Definitions:
    """Return the definitions of a result by the layers that another one has for the same
    networks.
    """
    layers = {replace(value.features, layer=""): value.features.layer for value in after.values}
    names = {}
    for value in before.values:
        layer = value.features.layer
        names[layer] = layers.get(replace(value.features, layer=""), layer)
    # Those that have another layer come last, and replace others.
    ordered = sorted(before.definitions, key=lambda layer: names.get(layer, layer) != layer)
    return {names.get(layer, layer): before.definitions[layer] for layer in ordered}


def find_obstacles(before: Evaluation, after: Evaluation, value: Value) -> JSONDiff:
    """Return what differs and must agree, so that two results of one FAKE have comparable values of
    this kind.

    It is the protocol of its features, the settings of its metric, REAL, and framing and precision
    of FAKE.
    """
    needed = {*_SET_KEYS, ("protocol", value.features.layer), ("settings", value.metric)}
    differing = diff_results(before, after)
    differing = {place: differing[place] for place in differing if place[:2] in needed}
    # Features that differ only by their rounding are comparable.
    differing.pop(("protocol", value.features.layer, "feature_step"), None)
    pixels = "REAL", "pixels"
    if "" in differing.get(pixels, ()):
        del differing[pixels]  # unknown without the diagnosis
    elif pixels not in differing and after.results[0].real.pixels:
        differing.pop(("REAL", "name"), None)  # the same images at another path
    return differing


def difference_lines(differing: JSONDiff) -> list[str]:
    """Return a line per difference, ``REAL.count: 250 -> 200``, without those that follow from
    number or crop.
    """
    lines = []
    for place, pair in differing.items():
        role, *fact = place
        counts = differing.get((role, "count"))
        crops = differing.get((role, "framing"))
        follows = pair == counts or (fact == ["pixels"] and (counts or crops))
        if follows and fact != ["count"]:
            continue
        if len(fact) == 1:
            fact = [_WORDS.get(fact[0], fact[0])]
        lines.append(f"{'.'.join([role, *fact])}: {' -> '.join(map(_format_value, pair))}")
    return lines


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return shorten(value, 40) or "-"
    text = re.sub(r'[]["{}]', "", json.dumps(value, ensure_ascii=False))
    return "-" if text in ("", "null") else textwrap.shorten(text, 40, placeholder=" …")


def _diff(before: object, after: object, place: KeyPath = ()) -> JSONDiff:
    """Return what differs in two JSON values, by the keys that lead there."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return {} if before == after else {place: (before, after)}
    differing: JSONDiff = {}
    for key in {**before, **after}:
        differing |= _diff(before.get(key), after.get(key), (*place, key))
    return differing
