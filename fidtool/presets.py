"""Presets: the settings with which a published value was made, and what else such a value requires."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidtool.errors import InputError, option
from fidtool.metrics.registry import METRIC_SETTINGS, requested
from fidtool.names import closest, folded, unknown


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one project computes its published values.

    Attributes:
        name: value of ``--preset``.
        settings: settings by their names in `fidtool.settings.Settings`, and those of metrics by
            `fidtool.metrics.registry.key_of`.
        optional: metrics that are left out with the reason if they cannot be computed.
        fakes: number of generated images; None if it is left to the paper.
        reference: the statistics or images of REAL.
        prefix: prefix of the named references that are expected, such as ``adm``; empty if any REAL is.
        images_with_features: number of real images for precision and recall; None if it does not matter.
        crop: name of the crop of real images that are not stored in their final size; empty if there is none.
        further_crops: names of crops that it uses for some data sets, such as square images.
        further_networks: networks besides Inception of which it also gives values.
        classes: how the generated images are distributed over the classes.
        notes: what differs from the program, and what papers report in addition; one sentence each.
        source: file of the program that these facts are from.
        other_names: further values of ``--preset``, of projects that use the same program.
    """

    name: str
    about: str
    settings: Mapping[str, Any]
    optional: Sequence[str] = ()
    fakes: int | None = 50_000
    reference: str
    prefix: str = ""
    images_with_features: int | None = None
    crop: str = ""
    further_crops: Sequence[str] = ()
    further_networks: Sequence[str] = ()
    classes: str = ""
    notes: Sequence[str] = ()
    source: str
    other_names: Sequence[str] = ()


PRESETS = {
    each["name"]: Preset(**each)
    for each in json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
}
"""The presets by name, from `presets.json`."""
_REPLACED = {"is_splits": "is_part_size"}
"""Settings that replace another one."""


def preset_named(name: str) -> Preset:
    """Return the preset with this name, or with one of its other names; case, hyphens and underscores do not matter."""
    names = {each: preset for preset in PRESETS.values() for each in (preset.name, *preset.other_names)}
    found = {folded(each): preset for each, preset in names.items()}.get(folded(name))
    if found is None:
        problem = unknown("preset", name, closest(name, names), ", ".join(PRESETS))
        raise InputError(problem, setting="preset")
    return found


def with_preset(given: Mapping[str, Any], metric_values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return settings that were passed by the caller, completed by those of their preset.

    Args:
        given: settings of the run by name.
        metric_values: settings of metrics by `fidtool.metrics.registry.key_of`, which apply to metrics named in
            ``metrics``.
    """
    name, metric_values = given.get("preset"), metric_values or {}
    preset = preset_named(name) if isinstance(name, str) else None
    usual = preset.settings if preset else {}
    settings = {each: value for each, value in usual.items() if each not in METRIC_SETTINGS} | dict(given)
    replaced = {other for setting, other in _REPLACED.items() if setting in metric_values}
    values = {each: value for each, value in usual.items() if each not in replaced}
    settings["metrics"] = requested(settings.get("metrics", "fid"), metric_values, values)
    if preset and "metrics" not in given:
        settings["metrics"] = tuple(
            each._replace(optional=option("preset", preset.name)) if each.metric.name in preset.optional else each
            for each in settings["metrics"]
        )
    return settings
