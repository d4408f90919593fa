"""Settings from a TOML file: ``--config FILE``, or ``[tool.fidtool]`` of the repository's nearest
pyproject.toml.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fidtool.cli.output import parse_local_file
from fidtool.errors import InputError, format_message, format_reason, prefix_errors
from fidtool.features.choice import parse_networks
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import escape_text, find_similar
from fidtool.settings.settings import ALL_SETTINGS, Settings
from fidtool.system.local_files import read_file
from fidtool.system.user_code import is_code_spec
from fidtool.validation import Setting, find_settings

_NAME = "pyproject.toml"
_SECTION = "[tool.fidtool]"
# How many folders up the root of a repository is looked for, and what it contains.
_MAX_LEVELS = 64
_ROOTS = (".git", ".hg", ".jj", ".svn")
# What a file can have, by key; a command passes over what only another has.
_FILE_SETTINGS = {name: setting for name, setting in ALL_SETTINGS.items() if setting.group}
_FILE_SETTINGS["heldout"] = replace(
    _FILE_SETTINGS["heldout"], kind=str
)  # a path; in Python also images


def command_settings(kind: type) -> dict[str, Setting]:
    """Return the settings of a command by name, whose class of settings this is."""
    settings = {name: setting for name, setting in find_settings(kind).items() if setting.group}
    if "metrics" in settings:
        for key, (metric, setting) in METRIC_SETTINGS.items():
            # A statistics file depends on those of a metric with a network of its own.
            if kind is Settings or metric().network() is not None:
                settings[key] = setting
    return settings


def read_settings(typed: str | None, names: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the name and some settings of the file ``typed``, or of a pyproject.toml, which need
    not exist.
    """
    is_optional = typed is None
    for path in _find_config_files() if typed is None else [parse_local_file("--config", typed)]:
        file = escape_text(str(path))
        table = _read_table(path, file, is_optional)
        if table is not None:
            settings = _check_settings(table, file)
            settings = {name: settings[name] for name in settings if name in names}
            if is_optional:
                _check_no_code(settings, file)
            return file, settings
    return "", {}


def _find_config_files() -> list[Path]:
    """Return the files pyproject.toml from the working directory up to the root of its repository.

    Without a repository, only the working directory counts: others may write to the folders above
    it.
    """
    files = []
    for levels in range(_MAX_LEVELS):
        folder = "../" * levels
        files.append(Path(folder + _NAME))
        if any(os.path.exists(folder + name) for name in _ROOTS):
            return files
    return files[:1]


def _check_no_code(settings: Mapping[str, Any], file: str) -> None:
    """Refuse settings of a pyproject.toml that run code, which must be typed, or be in a file that
    was named.
    """
    for name, value in settings.items():
        code = list[str]()
        if name == "metrics":
            names = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            code = [spec for spec in names.split(",") if is_code_spec(spec.strip())]
        elif name.endswith("extractor"):
            code = [network.extractor for network in parse_networks(value) if network.runs_code]
        if code:
            raise InputError(
                f"{name} in {file} names code ({code[0].strip()}), which is run only if you ask "
                "for it:",
                f"pass the file as `--config {file}`",
                "remove the setting from the file and pass it as a flag",
            )


def _read_table(path: Path, file: str, is_optional: bool) -> Mapping[str, Any] | None:
    """Return the settings in a file; None if it has none and they are optional."""
    try:
        data = read_file(path)
    except OSError as error:
        remedies = []
        if is_optional:
            if isinstance(error, FileNotFoundError) and not path.is_symlink():
                return None
            remedies = ["pass `--config /dev/null` to read no file"]
        raise InputError(f"{file} cannot be read: {format_reason(error)}", *remedies) from None
    toml: Any = None
    for name in ("tomllib", "tomli"):
        if toml is None and find_spec(name) is not None:
            toml = import_module(name)
    # Another project's file need not be valid. Text in UTF-16 has zeros between its letters.
    mention = b"[tool.fidtool" if toml is None else b"fidtool"
    if is_optional and mention not in data.replace(b"\0", b""):
        return None
    if toml is None:
        raise InputError(f"{file} needs Python 3.11 or the package tomli:", "pip install tomli")
    try:
        document = toml.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {format_message(error)}") from None
    tool = document.get("tool", {} if path.name == _NAME else {"fidtool": document})
    table = tool.get("fidtool") if isinstance(tool, dict) else None
    if isinstance(table, dict) or (table is None and is_optional):
        return table
    raise InputError(f"{file} has no table {_SECTION}")


def _check_settings(table: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the settings in a file by name, of the types that they have in Python."""
    settings = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        place = f"{escape_text(key)} in {file}"
        if name not in _FILE_SETTINGS:
            close = find_similar(key, _FILE_SETTINGS, 0.75)
            remedy = f"did you mean {close[0]}?" if close else "see `fidtool guide config`"
            raise InputError(f"{place} is not a setting:", remedy)
        if name in settings:
            raise InputError(f"{place} is set twice")
        settings[name] = _FILE_SETTINGS[name].check(value, place)
        if name == "extractor":
            with prefix_errors(place):
                # A table may have the settings of each network.
                settings[name] = ",".join(map(str, parse_networks(value)))
    return settings


def format_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as the lines of a file that has them, without secrets in URLs."""
    lines = [_SECTION]
    for name, value in settings.items():
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(escape_text(f"{name} = {text}"))
    return lines
