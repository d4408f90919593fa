"""What it takes to repeat a run, beside its images: settings, command, place, time and versions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from fidtool.metrics.metric import ALL, keyword
from fidtool.metrics.registry import BUILT_IN, spec_of
from fidtool.redaction import redacted
from fidtool.settings import OUTPUT, Settings
from fidtool.validation import declared


class Origin(NamedTuple):
    """Who asked for a run, where and when.

    Attributes:
        command: the command line, an argument an entry, or a Python call as text; empty where nobody knows.
        host: name of rank zero's machine.
        date: when the run began: UTC, as in ``2025-01-31T23:59:59Z``.
    """

    command: tuple[str, ...] | str
    host: str
    date: str

    @classmethod
    def here(cls, command: Sequence[str] | str = "") -> Origin:
        """That of a run which begins now, on this machine."""
        import socket  # the command line answers a typo before

        began = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(command if isinstance(command, str) else tuple(command), socket.gethostname(), began)


def recorded(settings: Settings) -> dict[str, Any]:
    """All settings that touch a number, by their names in Python, as JSON has them."""
    values = {
        name: getattr(settings, name) for name, each in declared(Settings).items() if each.setting.group != OUTPUT
    }
    options: dict[str, Any] = {}
    for metric in settings.chosen:
        for name, field in declared(type(metric)).items():
            key, value = keyword(type(metric), field), getattr(metric, name)
            if type(metric) in BUILT_IN.values() and key in values:
                values[key] = value
            elif value != field.default:
                options[f"{metric.name}.{name}"] = value
    values |= {"metrics": [spec_of(metric) for metric in settings.chosen], "metric_options": options or None}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Those of `recorded` that are not at their defaults."""
    defaults = recorded(Settings())
    return {name: value for name, value in recorded(settings).items() if value != defaults[name]}


def known_settings(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Those of a statistics file's settings that this version has."""
    return None if config is None else {name: value for name, value in config.items() if name in declared(Settings)}


def call_of(
    real: str,
    fakes: Sequence[str],
    kinds: Mapping[str, str],
    settings: Settings,
) -> str:
    """A call of `fidtool.compute` as text.

    Args:
        real, fakes: names of the sets.
        kinds: what those are that are in no file, by name.
        settings: its keywords.
    """

    def shown(name: str) -> str:
        return f"<{name}: {kinds[name]}>" if name in kinds else repr(name)

    sets = [shown(real), shown(fakes[0]) if len(fakes) == 1 else f"[{', '.join(map(shown, fakes))}]"]
    files = {name: file for name in ("report", "plot") if (file := getattr(settings, name)) is not None}
    changed = changed_settings(settings)
    if any(metric.spec == ALL for metric in settings.chosen):
        changed["metrics"] = list(dict.fromkeys(ALL if each.spec == ALL else spec_of(each) for each in settings.chosen))
    keywords = [f"{name}={value!r}" for name, value in (changed | files).items()]
    return redacted(f"fidtool.compute({', '.join([*sets, *keywords])})")


def versions() -> dict[str, str]:
    """Versions of what touches the numbers: Python, the libraries, and the JPEG decoder inside Pillow."""
    import platform  # these two take a quarter of what `fidtool --help` does
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("fidtool", "torch", "torchvision", "numpy", "scipy", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    found["libjpeg"] = libjpeg()
    return found


def libjpeg() -> str:
    """Version of the JPEG decoder inside Pillow."""
    from PIL import features  # not for the first answer of the command line

    return features.version("libjpeg_turbo") or features.version("jpg") or "none"
