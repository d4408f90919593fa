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

from fidtool.cli.output import local_file
from fidtool.errors import InputError, about, message_of
from fidtool.features.models.families import networks_of
from fidtool.metrics.metric import METRICS
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import closest, legible
from fidtool.settings.settings import ALL_SETTINGS, Settings
from fidtool.system.local_files import read_file
from fidtool.system.user_code import is_code_spec
from fidtool.validation import Setting, declared

_NAME, _SECTION, _MOST_LEVELS = "pyproject.toml", "[tool.fidtool]", 64
_ROOTS = (".git", ".hg", ".jj", ".svn")
"""What the root of a repository contains."""
_KNOWN = {name: each for name, each in ALL_SETTINGS.items() if each.group}
"""What a file can have, by key; a command passes over what only another has."""
_KNOWN["heldout"] = replace(_KNOWN["heldout"], kind=str)  # a path; in Python also images


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a command by name, whose class of settings this is."""
    settings = {name: each for name, each in declared(kind).items() if each.group}
    if METRICS in {each.group for each in settings.values()}:
        for key, (metric, each) in METRIC_SETTINGS.items():
            if (
                kind is Settings or metric().network() is not None
            ):  # on which a statistics file depends
                settings[key] = each
    return settings


def read_settings(typed: str | None, names: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the name and some settings of the file ``typed``, or of a pyproject.toml, which need
    not exist.
    """
    for path in _nearest() if typed is None else [local_file("--config", typed)]:
        file = legible(str(path))
        table = _table_in(path, file, typed is None)
        if table is not None:
            settings = {
                name: value for name, value in _checked(table, file).items() if name in names
            }
            if typed is None:
                _check_no_code(settings, file)
            return file, settings
    return "", {}


def _nearest() -> list[Path]:
    """Return the files pyproject.toml from the working directory up to the root of its repository.

    Without a repository, only the working directory counts: others may write to the folders above
    it.
    """
    files = []
    for levels in range(_MOST_LEVELS):
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
            items = value if isinstance(value, list) else [value]
            code = [
                spec
                for item in items
                for spec in f"{item}".split(",")
                if is_code_spec(spec.strip())
            ]
        elif name.endswith("extractor"):
            code = [network.extractor for network in networks_of(value) if network.runs_code]
        if code:
            raise InputError(
                f"{name} in {file} names code ({code[0].strip()}), which is run only if you ask "
                "for it:",
                f"name the file, `--config {file}`",
                "remove the setting, and type it as a flag",
            )


def _table_in(path: Path, file: str, optional: bool) -> Mapping[str, Any] | None:
    """Return the settings in a file; None if it has none and they are ``optional``."""
    try:
        data = read_file(path)
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError) and not path.is_symlink():
            return None
        unread = ["pass `--config /dev/null` to read none"] if optional else []
        raise InputError(f"{file} cannot be read: {error.strerror or error}", *unread) from None
    toml: Any = next(
        (import_module(each) for each in ("tomllib", "tomli") if find_spec(each)), None
    )
    if optional and (b"fidtool" if toml else b"[tool.fidtool") not in data.replace(
        b"\0", b""
    ):  # also in UTF-16
        return None  # another project's file need not be valid
    if toml is None:
        raise InputError(
            f"{file} needs the package tomli, which Python has since 3.11:", "pip install tomli"
        )
    try:
        document = toml.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML: {message_of(error)}") from None
    tool = document.get("tool", {} if path.name == _NAME else {"fidtool": document})
    table = tool.get("fidtool") if isinstance(tool, dict) else None
    if isinstance(table, dict) or (table is None and optional):
        return table
    raise InputError(f"{file} has no table {_SECTION}")


def _checked(table: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the settings in a file by name, of the types that they have in Python."""
    settings = dict[str, Any]()
    for key, value in table.items():
        name, named = key.replace("-", "_"), f"{legible(key)} in {file}"
        if name not in _KNOWN:
            close = closest(key, _KNOWN, 0.75)
            raise InputError(
                f"{named} is not a setting:",
                f"did you mean {close[0]}?" if close else "see `fidtool guide config`",
            )
        if name in settings:
            raise InputError(f"{named} is set twice")
        settings[name] = _KNOWN[name].checked(value, named)
        if name == "extractor":
            with about(named):
                settings[name] = ",".join(
                    map(str, networks_of(value))
                )  # a table may have the settings of each
    return settings


def lines_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as the lines of a file that has them, without secrets in URLs."""
    lines = [_SECTION]
    for name, value in settings.items():
        text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        lines.append(legible(f"{name} = {text}"))
    return lines
