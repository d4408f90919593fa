"""What a stranger needs to repeat a run, beside its images: settings, command, place and time."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

from fidtool.config import Config
from fidtool.redaction import redacted


@dataclass(frozen=True)
class Origin:
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
        began = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(command if isinstance(command, str) else tuple(command), socket.gethostname(), began)


def changed_settings(config: Config) -> dict[str, Any]:
    """The settings that are not at their defaults, by their names in Python, as JSON has them."""
    values = {each.name: (getattr(config, each.name), each.default) for each in fields(config)}
    changed = {
        name: list(value) if isinstance(value, tuple) else value
        for name, (value, default) in values.items()
        if value != default
    }
    changed.pop("exhibits", None)  # which is how a report gets them
    if changed.pop("inception_named", False):
        changed["extractor"] = config.extractor
    return changed


def call_of(
    real: str,
    fakes: Sequence[str],
    kinds: Mapping[str, str],
    config: Config,
    files: Mapping[str, str | os.PathLike[str] | None],
) -> str:
    """A call of `fidtool.compute` as text.

    Args:
        real, fakes: names of the sets.
        kinds: what those are that are in no file, by name.
        config: the settings.
        files: ``report`` and ``plot``.
    """

    def shown(name: str) -> str:
        return f"<{name}: {kinds[name]}>" if name in kinds else repr(name)

    sets = [shown(real), shown(fakes[0]) if len(fakes) == 1 else f"[{', '.join(map(shown, fakes))}]"]
    settings = changed_settings(config) | {name: os.fspath(file) for name, file in files.items() if file is not None}
    keywords = [f"{name}={value!r}" for name, value in settings.items()]
    return redacted(f"fidtool.compute({', '.join([*sets, *keywords])})")
