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
from fidtool.features.protocol import Definition
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import legible, shortened
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Interval
from fidtool.result.values import Value
from fidtool.system.json_fields import fields_of, plain
from fidtool.system.local_files import read_file

NOT_COMPARABLE, CANNOT_TELL, WORSE = "not comparable", "cannot tell", "worse"
_VERDICTS = {1: WORSE, 0: "cannot be distinguished", -1: "better"}
_WORDS = {"with_features": "images with features", "made_with": "settings of its file"}
_OF_REAL = ("name", "count", "framing", "sha256", "pixels", "precision")
_OF_FAKE = ("framing", "precision")
"""What must agree of the sets of two comparable results."""
_ENVIRONMENT = ("host", "device", "precision", "kernels", "batch_size", "world_size", "versions")
Place = tuple[str, ...]
"""Where something is in a result: ``("REAL", "count")``."""
Differing = dict[Place, tuple[Any, Any]]
"""Both values of what differs, by its place. None stands for a default, and for what only one of
the two has.
"""
Values = dict[str, tuple[float | None, float | None]]
"""A value in both results, by its key in the JSON; None if one does not have it."""


@dataclass(frozen=True)
class Change:
    """What changed from one result of a FAKE to another.

    Attributes:
        fake: the path of FAKE; if it changed, both.
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
    besides: Differing
    classes: Mapping[str, Values] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry in the JSON of ``fidtool diff``, where points join the parts of a
        place.
        """
        return fields_of(self) | {
            "besides": {".".join(place): [*pair] for place, pair in self.besides.items()}
        }


def per_fake(evaluation: Evaluation) -> list[Evaluation]:
    """Return one evaluation per FAKE."""
    return [replace(evaluation, results=(each,), differences=()) for each in evaluation.results]


def append_history(evaluation: Evaluation, file: Path) -> None:
    """Add a line of JSON per FAKE to a file, or make it: an evaluation without what is about single
    images or classes.

    It is one write at the end of the file, so that lines of two runs do not mix.
    """
    data = b""
    for each in per_fake(evaluation):
        small = replace(
            each.results[0], skipped=(), diagnosis=None, influence=None, exhibit=None, classes=None
        )
        data += json.dumps(replace(each, results=(small,)).to_dict()).encode() + b"\n"
    with open(file, "ab+") as handle:
        if handle.seekable() and handle.tell():
            handle.seek(-1, os.SEEK_END)
            data = (
                data if handle.read() == b"\n" else b"\n" + data
            )  # after a line that was cut short
        handle.write(data)


def read_history(file: str | os.PathLike[str]) -> tuple[list[Evaluation], list[ResultWarning]]:
    """Return the results of a history, the oldest first, and a warning about each line that is
    none.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        lines = read_file(file).split(b"\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
    found, problems = list[Evaluation](), list[ResultWarning]()
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found += per_fake(Evaluation.from_dict(json.loads(line)))
        except (ValueError, RecursionError) as error:
            text = f"{file}: line {number} is left out: {shortened(legible(str(error)))}"
            problems.append(ResultWarning("", text))
    if problems and not found:
        raise InputError(
            f"{problems[0]}; so are all others:", f"pass the file of {option('history')}"
        )
    return sorted(found, key=lambda each: each.run.date), problems


def changes_of(before: Evaluation, after: Evaluation) -> list[Change]:
    """Return the changes of the FAKEs by name, then those that only one result has; if each has
    only one, of these.
    """
    old = {each.results[0].fake.path: each for each in per_fake(before)}
    new = {each.results[0].fake.path: each for each in per_fake(after)}
    if len(old) == len(new) == 1:
        return [change_of(*old.values(), *new.values())]
    changes = [change_of(old[path], new[path]) for path in new if path in old]
    changes += [
        _only_in("A", path, _pairs(_values(old[path]), {}), (path, None))
        for path in old
        if path not in new
    ]
    changes += [
        _only_in("B", path, _pairs({}, _values(new[path])), (None, path))
        for path in new
        if path not in old
    ]
    return changes


def _only_in(
    result: str, path: str, values: Values, names: tuple[str | None, str | None]
) -> Change:
    reason = f"only result {result} has this FAKE"
    return Change(path, CANNOT_TELL, reason, None, values, {("FAKE", "name"): names})


def _pairs(old: Mapping[str, float], new: Mapping[str, float]) -> Values:
    return {key: (old.get(key), new.get(key)) for key in {**old, **new}}


def _values(evaluation: Evaluation) -> dict[str, float]:
    """Return the values of the only FAKE by their keys in the JSON."""
    (result,) = evaluation.results
    means = {} if result.classes is None else result.classes.mean
    return {**result.metrics, **{f"classes.mean.{key}": mean for key, mean in means.items()}}


def _values_of_classes(result: Comparison) -> dict[str, Mapping[str, float]]:
    if result.classes is None:
        return {}
    return {each.name: each.metrics for each in result.classes.classes if each.metrics}


def change_of(before: Evaluation, after: Evaluation) -> Change:
    """Return what changed between two results of one FAKE."""
    (old,), (new,) = before.results, after.results
    difference = None
    if found := obstacles(before, after, new.distance or new.values[0]):
        verdict, reason = NOT_COMPARABLE, "; ".join(lines_of(found))
    elif old.corrected is None or new.corrected is None:
        bars = [old.uncertainty, new.uncertainty]
        without = {bar.withheld if bar else option("uncertainty", True): None for bar in bars}
        verdict, reason = CANNOT_TELL, f"no error bars ({'; '.join(filter(None, without))})"
    else:
        difference = new.corrected - old.corrected
        title = new.distance.title if new.distance else ""
        verdict, reason = _VERDICTS[difference.sign], f"bias-corrected {title} {difference.signed}"
    old_classes, new_classes = _values_of_classes(old), _values_of_classes(new)
    return Change(
        fake=" -> ".join(dict.fromkeys((old.fake.path, new.fake.path))),
        verdict=verdict,
        reason=reason,
        difference=difference,
        metrics=_pairs(_values(before), _values(after)),
        besides=differences_of(before, after),
        classes={
            name: _pairs(old_classes.get(name, {}), new_classes.get(name, {}))
            for name in {**old_classes, **new_classes}
        },
    )


def differences_of(before: Evaluation, after: Evaluation) -> Differing:
    """Return what differs in settings, protocol, sets and environment of two results of one
    FAKE.
    """
    old = _stated(before, _definitions_as(before, after))
    return _differing(old, _stated(after, after.definitions))


def _stated(evaluation: Evaluation, definitions: Mapping[str, Definition | None]) -> dict[str, Any]:
    """Return what a result states besides its values."""
    (result,) = evaluation.results
    others = {
        key: value for key, value in evaluation.run.config.items() if key not in METRIC_SETTINGS
    }
    return {
        "settings": {**others, **evaluation.settings},
        "protocol": {layer: plain(definition) for layer, definition in definitions.items()},
        "REAL": _facts(result.real),
        "FAKE": _facts(result.fake),
        "environment": {name: getattr(evaluation.run, name) for name in _ENVIRONMENT},
    }


def _facts(image_set: SetResult) -> dict[str, Any]:
    facts = fields_of(image_set) | {"name": image_set.path}
    del facts["passed_over"]
    return facts


def _definitions_as(before: Evaluation, after: Evaluation) -> dict[str, Definition | None]:
    """Return the definitions of a result by the layers that another one has for the same
    networks.
    """
    now = {replace(value.features, layer=""): value.features.layer for value in after.values}
    layers = {
        value.features.layer: now.get(replace(value.features, layer="")) for value in before.values
    }
    names = {layer: layers.get(layer) or layer for layer in before.definitions}
    order = sorted(
        names, key=lambda layer: names[layer] != layer
    )  # those that have another layer replace others
    return {names[layer]: before.definitions[layer] for layer in order}


def obstacles(before: Evaluation, after: Evaluation, value: Value) -> Differing:
    """Return what differs and must agree, so that two results of one FAKE have comparable values of
    this kind.

    It is the protocol of its features, the settings of its metric, REAL, and framing and precision
    of FAKE.
    """
    needed = {("protocol", value.features.layer), ("settings", value.metric)}
    needed |= {("REAL", name) for name in _OF_REAL}
    needed |= {("FAKE", name) for name in _OF_FAKE}
    found = {
        place: pair for place, pair in differences_of(before, after).items() if place[:2] in needed
    }
    pixels = "REAL", "pixels"
    if "" in found.get(pixels, ()):
        del found[pixels]  # unknown without the diagnosis
    elif pixels not in found and after.results[0].real.pixels:
        found.pop(("REAL", "name"), None)  # the same images at another path
    return found


def lines_of(found: Differing) -> list[str]:
    """Return a line per difference, ``REAL.count: 250 -> 200``, without those that follow from
    number or crop.
    """
    lines = []
    for place, pair in found.items():
        role, *fact = place
        counts = found.get((role, "count"))
        crops = found.get((role, "framing"))
        follows = pair == counts or (fact == ["pixels"] and (counts or crops))
        if follows and fact != ["count"]:
            continue
        words = [_WORDS.get(fact[0], fact[0])] if len(fact) == 1 else fact
        lines.append(f"{'.'.join([role, *words])}: {' -> '.join(map(_text, pair))}")
    return lines


def _text(value: object) -> str:
    if isinstance(value, str):
        return shortened(value, 40) or "-"
    text = re.sub(r'[]["{}]', "", json.dumps(value, ensure_ascii=False))
    return "-" if text in ("", "null") else textwrap.shorten(text, 40, placeholder=" …")


def _differing(before: object, after: object, place: Place = ()) -> Differing:
    """Return what differs in two JSON values, by the keys that lead there."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return {} if before == after else {place: (before, after)}
    found: Differing = {}
    for key in {**before, **after}:
        found |= _differing(before.get(key), after.get(key), (*place, key))
    return found
