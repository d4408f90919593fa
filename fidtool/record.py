"""Record of a run, with which it can be repeated: settings, command, host, date and versions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from fidtool.errors import option
from fidtool.metrics.registry import BUILT_IN, key_of, metric_settings
from fidtool.presets import preset_named, with_preset
from fidtool.settings import OUTPUT, PYTHON, Settings
from fidtool.validation import declared


class Origin(NamedTuple):
    """Where a run came from.

    Attributes:
        command: the command line, one entry per argument; for a Python program, its name.
        host: name of rank zero's machine.
        date: when the run started, in UTC, such as ``2025-01-31T23:59:59Z``.
    """

    command: tuple[str, ...] | str
    host: str
    date: str

    @classmethod
    def here(cls, command: tuple[str, ...] | str) -> Origin:
        """Returns the origin of a run that starts now, on this machine."""
        import socket  # deferred, so that the command line reports usage errors fast

        began = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(command, socket.gethostname(), began)


def recorded(settings: Settings) -> dict[str, Any]:
    """Returns all settings that can change a result, by their Python names, as JSON values.

    Those of the built-in metrics are named like their flags; ``metric_options`` has those of custom ones.
    """
    values: dict[str, Any] = {}
    for name, each in declared(Settings).items():
        if name == "metrics":
            values |= _of_metrics(settings)
        elif each.group not in (OUTPUT, PYTHON):
            values[name] = getattr(settings, name)
    values["float_to_byte"] = settings.rounding
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _of_metrics(settings: Settings) -> dict[str, Any]:
    built_in: dict[str, Any] = {}
    custom: dict[str, Any] = {}
    for metric in (each.metric for each in settings.requested):
        for name, each in declared(type(metric)).items():
            key, value = key_of(metric.name, name), getattr(metric, name)
            if metric.name in BUILT_IN:
                built_in[key] = value
            elif value != each.default:
                custom[key] = value
    return {"metrics": [each.spec for each in settings.requested], "metric_options": custom or None, **built_in}


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Returns the `recorded` settings that differ from their defaults; with a value range, how floats become bytes."""
    of_metrics = {key: each.default for key, (_, each) in metric_settings().items()}
    defaults = recorded(Settings()) | of_metrics | ({} if settings.floats is None else {"float_to_byte": None})
    return {name: value for name, value in recorded(settings).items() if value != defaults[name]}


def overrides(settings: Settings) -> list[str]:
    """Returns one sentence per setting that replaces that of the preset."""
    if settings.preset is None:
        return []
    preset, found = preset_named(settings.preset), recorded(settings)
    usual = recorded(Settings(**with_preset({"preset": preset.name})))
    named = option("preset", preset.name)
    changed = [name for name in preset.settings if name in found and found[name] != usual[name]]
    return [f"{named}: {option(name, _shown(found[name]))} instead of {_shown(usual[name])}" for name in changed]


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value}"


def known_settings(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the settings of a statistics file that this version knows."""
    known = {*declared(Settings), *metric_settings(), "metric_options"}
    return None if config is None else {name: value for name, value in config.items() if name in known}


def versions() -> dict[str, str]:
    """Returns the versions of everything that can change a result: Python, libraries, and Pillow's JPEG decoder."""
    import platform  # deferred: this import and the next would slow down `fidtool --help` by a quarter
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("fidtool", "torch", "torchvision", "numpy", "scipy", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    found["libjpeg"] = libjpeg()
    return found


def libjpeg() -> str:
    """Returns the version of Pillow's JPEG decoder."""
    from PIL import features  # deferred, so that the command line reports usage errors fast

    return features.version("libjpeg_turbo") or features.version("jpg") or "none"
