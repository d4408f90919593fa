"""The record of a run, with which it can be repeated: where it came from, its settings, and
versions.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from fidtool.errors import ResultWarning, option
from fidtool.features.choice import VALUE_SETTINGS
from fidtool.metrics.registry import BUILT_IN, setting_key
from fidtool.names import format_count
from fidtool.settings.presets import PRESETS, apply_preset
from fidtool.settings.settings import ALL_SETTINGS, OUTPUT, PYTHON, Settings
from fidtool.system.json_fields import to_json_value
from fidtool.validation import find_settings


class Origin(NamedTuple):
    """Where a run came from.

    Attributes:
        command: the command line, one entry per argument; for a Python program, its name.
        host: name of rank 0's machine.
        date: when the run started, in UTC, such as ``2025-01-31T23:59:59Z``.
    """

    command: tuple[str, ...] | str
    host: str
    date: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Where and how the metric values were computed.

    Attributes:
        world_size: number of ranks.
        device: device of the network on rank 0.
        backend: backend of the collectives: none or gloo.
        precision: precision of the network; empty if both sets are statistics files, which state
            their own.
        kernels: implementation of the convolutions: ``torch`` or ``oneDNN, packed``; empty if both
            sets are statistics files.
        batch_size: images in a full forward pass.
        num_workers: decoding workers per rank.
        images_computed: images that went through the network in this run, over all ranks.
        forward_passes: batches that went through the network.
        images_resumed: images whose features were in the checkpoint.
        cached: sets whose statistics came from the cache.
        probe: SHA-256 of the features of a fixed batch; equal on all machines that compute the same
            bits.
        linear_algebra_threads: number of threads that computed the distance on rank 0.
        seconds: wall time of each phase on rank 0.
        timeline: seconds from the start of rank 0's process, or from the call of `fidtool.compute`,
            until these events: ``import`` (torch and all other modules are imported; absent for a
            call), the last end of each phase in ``seconds``, ``first_batch`` (its features are in
            the sums; on a GPU, their addition has been launched) and ``end`` (the result is
            complete). An event that did not occur is absent.
        extraction: seconds that the phase ``extract`` spent on decoding (or on waiting for the
            decoding workers), on copying pixels to the device (on a GPU, only on starting that), in
            the network (with resizing; on a GPU, measured by its events), on the values of pairs of
            images, and on the moments (on a GPU, with waiting for the network). These times
            overlap.
        images_per_second: ``images_computed`` divided by the seconds of extraction; None if nothing
            was extracted.
        versions: versions of Python and of the libraries that affect the values.
        command: the command line, one entry per argument; for a Python program, its name.
        host: name of rank 0's machine.
        date: when the run started, in UTC, such as ``2025-01-31T23:59:59Z``.
        config: settings that differ from their defaults, by the names of their keywords.
        warnings: what may be wrong with the whole run.
        notes: further information, such as which settings were taken from a statistics file.
        advice: how the same run would have taken much less time; empty if nothing is known.
    """

    world_size: int
    device: str
    backend: str
    precision: str = ""
    kernels: str = ""
    batch_size: int = 0
    num_workers: int = 0
    images_computed: int = 0
    forward_passes: int = 0
    images_resumed: int = 0
    cached: tuple[str, ...] = ()
    probe: str | None = None
    linear_algebra_threads: int
    seconds: dict[str, float]
    timeline: dict[str, float] = field(default_factory=dict)
    extraction: dict[str, float]
    images_per_second: float | None
    versions: dict[str, str]
    command: tuple[str, ...] | str
    host: str
    date: str
    config: dict[str, Any]
    warnings: tuple[ResultWarning, ...] = ()
    notes: tuple[str, ...] = ()
    advice: str = ""


def make_origin(command: tuple[str, ...] | str) -> Origin:
    """Return the origin of a run that starts now, on this machine."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Origin(command, socket.gethostname(), date)


def record_settings(settings: Settings) -> dict[str, Any]:
    """Return all settings that can change a result, by their Python names, as JSON values.

    Those of the built-in metrics are named like their flags; ``metric_options`` has those of custom
    ones.
    """
    values = {
        name: getattr(settings, name)
        for name, setting in find_settings(Settings).items()
        if setting.group not in (OUTPUT, PYTHON)
    }
    for name in VALUE_SETTINGS.values():
        values[name] = getattr(settings.network, name)
    if settings.extractor:
        values["extractor"] = ",".join(map(str, values["extractor"]))
    values["float_to_byte"] = settings.rounding
    values["metrics"] = [asked.spec for asked in settings.metrics_as_requested]
    if isinstance(settings.captions, tuple):
        values["captions"] = format_count(len(settings.captions), "caption")
    for name in ("labels", "labels_fake"):
        if isinstance(values[name], tuple):
            values[name] = (
                f"{format_count(len(values[name]), 'label')} of "
                f"{format_count(len({*values[name]}), 'class')}"
            )
    custom = dict[str, Any]()
    for asked in settings.selected_metrics:
        metric = asked.metric
        for name, setting in find_settings(type(metric)).items():
            key = setting_key(metric.name, name)
            value = getattr(metric, name)
            if metric.name in BUILT_IN:
                values[key] = value
            elif value != setting.default:
                custom[key] = value
    values["metric_options"] = custom or None
    return {name: to_json_value(value) for name, value in values.items()}


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of `record_settings` that differ from their defaults; with a value
    range, how floats become bytes.
    """
    defaults = {name: setting.default for name, setting in ALL_SETTINGS.items()}
    defaults |= record_settings(Settings())
    if settings.floats is not None:
        defaults["float_to_byte"] = None
    return {
        name: value for name, value in record_settings(settings).items() if value != defaults[name]
    }


def settings_of_set(settings: Settings) -> dict[str, Any]:
    """Return the `changed_settings` that can change the statistics of a set, whose file has
    them.
    """
    changed = changed_settings(settings)
    for name, setting in ALL_SETTINGS.items():
        if not setting.defines:
            changed.pop(name, None)
    return changed


def describe_overrides(settings: Settings) -> list[str]:
    """Return one sentence per setting that replaces that of the preset, if there is one."""
    if settings.preset is None:
        return []
    named = option("preset", settings.preset)
    values = record_settings(settings)
    usual = record_settings(Settings(**apply_preset({"preset": settings.preset})))
    lines = []
    for name in PRESETS[settings.preset].settings:
        if name in values and values[name] != usual[name]:
            changed = option(name, _format_value(values[name]))
            lines.append(f"{named}: {changed} instead of {_format_value(usual[name])}")
    return lines


def _format_value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value}"


def known_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a statistics file that this version knows."""
    return {
        name: value
        for name, value in config.items()
        if name in ALL_SETTINGS or name == "metric_options"
    }


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a result: Python, libraries, and Pillow's
    JPEG decoder.
    """
    import platform  # deferred: these imports would slow down `fidtool --help` by a quarter
    from importlib.metadata import PackageNotFoundError, version

    from PIL import features

    installed = {"python": platform.python_version()}
    for name in ("fidtool", "torch", "torchvision", "numpy", "scipy", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    installed["libjpeg"] = features.version("libjpeg_turbo") or features.version("jpg") or "none"
    return installed
