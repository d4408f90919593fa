"""Defaults of a command's options from a TOML file: ``--config FILE``, or ``[tool.fidtool]`` of pyproject.toml."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fidtool.cli.output import local_file
from fidtool.errors import InputError, message_of
from fidtool.names import closest, legible

if TYPE_CHECKING:
    from fidtool.cli.options import Command

NAME = "pyproject.toml"
SECTION = "[tool.fidtool]"
_HEADING = re.compile(rb"^\s*\[\s*tool\s*\.\s*[\"']?fidtool\b", re.MULTILINE)
_READING = ("compute", "stats", "check")
"""Commands that take settings from a file, in which a setting may stand that another one of them has."""
_ALTERNATIVES = (("is_splits", "is_part_size"), ("form", "as_json"))
"""Parameters of which one on the command line replaces both in a file."""


def read_settings(typed: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the file with settings, and these: of ``typed``, or of the nearest pyproject.toml with any."""
    if typed is not None:
        return legible(typed), _settings_of(local_file("--config", typed), legible(typed)) or {}
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return "", {}
    for folder in (here, *here.parents):
        name = NAME if folder == here else legible(str(folder / NAME))
        if os.path.isfile(folder / NAME) and (found := _settings_of(folder / NAME, name, optional=True)) is not None:
            return name, found
    return "", {}


def _settings_of(file: Path, name: str, optional: bool = False) -> Mapping[str, Any] | None:
    """Return the settings in a file; None if it has none and they are ``optional``."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    toml: Any = next((import_module(each) for each in ("tomllib", "tomli") if find_spec(each)), None)
    if optional and (b"fidtool" not in data or (toml is None and not _HEADING.search(data))):
        return None  # another project's file need not be valid
    if toml is None:
        raise InputError(f"{name} needs the package tomli, which Python has since 3.11:", "pip install tomli")
    try:
        document = toml.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not valid TOML: {message_of(error)}") from None
    tools = document.get("tool")
    if file.name != NAME and not isinstance(tools, Mapping):
        return document  # type: ignore[no-any-return]
    found = tools.get("fidtool") if isinstance(tools, Mapping) else None
    if found is None and not optional:
        raise InputError(f"{name} has no {SECTION}")
    if not isinstance(found, Mapping | None):
        raise InputError(f"fidtool in {name} must be a table, {SECTION}, not {found!r}")
    return found


def options_by_key(command: Command) -> dict[str, click.Option]:
    """Return the options that a file can set by their keys: the names of settings in Python, and those of flags."""
    options = [each for each in command.params if isinstance(each, click.Option) and each.expose_value]
    flags = {flag[2:]: each for each in options for flag in each.opts if flag.startswith("--")}
    named = {str(each.name): each for each in options if each.name in command.fields}
    return {key.replace("-", "_"): each for key, each in (named | flags).items()}


def defaults_from(
    table: Mapping[str, Any], file: str, command: Command, ctx: click.Context, typed: Collection[str]
) -> dict[str, Any]:
    """Return the values in a file as click's defaults: by parameter, as text like that of a flag.

    Args:
        typed: the parameters on the command line.
    """
    known, found = options_by_key(command), dict[str, Any]()
    for key, value in table.items():
        named, name = f"{legible(key)} in {file}", key.replace("-", "_")
        if isinstance(value, Mapping):
            raise InputError(f"{named} is a table; the settings of all commands stand in {SECTION} itself")
        if (option := known.get(name)) is None:
            _check_known(name, named)
        elif option.name in found:
            raise InputError(f"{named} is set twice")
        else:
            found[str(option.name)] = _checked(option, value, command, ctx, named)
    replaced = {each for names in _ALTERNATIVES if not {*names}.isdisjoint(typed) for each in names}
    return {name: value for name, value in found.items() if name not in replaced}


def _check_known(key: str, named: str) -> None:
    """Refuse a key that no command has."""
    commands = [getattr(import_module(f"fidtool.cli.{each}"), each) for each in _READING]
    known = dict.fromkeys(key for each in commands for key in options_by_key(each))
    if key in ("real", "fake", "fakes"):
        raise InputError(f"{named} is no setting:", "pass sets of images on the command line")
    if key not in known:
        close = closest(key, known)[:1]
        remedy = f"did you mean {close[0]}?" if close else "`fidtool compute --help-all` lists all"
        raise InputError(f"{named} is not a setting:", remedy)


def _checked(option: click.Option, value: Any, command: Command, ctx: click.Context, named: str) -> Any:
    """Return a value as click takes it. Its type must be right: a file has numbers and booleans, not only text."""
    if option.is_flag != isinstance(value, bool):
        wrong = f"must be true or false, not {value!r}" if option.is_flag else f"cannot be {json.dumps(value)}"
        raise InputError(f"{named} {wrong}")
    if option.is_flag:
        return value
    if field := command.fields.get(str(option.name)):
        value = field.checked(value, named)
    listed = [str(each) for each in value] if isinstance(value, list) else [str(value)]
    text: Any = listed if option.multiple else ",".join(listed)
    try:
        option.type_cast_value(ctx, text)
    except click.BadParameter as error:
        raise InputError(f"{named}: {error.message.rstrip('.')}") from None
    return text


def lines_of(command: Command, ctx: click.Context, *sources: ParameterSource) -> list[str]:
    """Return the values of a command's options that are from these sources as lines of a file, without secrets."""
    keys: dict[str, str] = {}
    for key, option in options_by_key(command).items():
        keys.setdefault(str(option.name), key)
    return [
        legible(f"{key} = {repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)}")
        for name, key in keys.items()
        if ctx.get_parameter_source(name) in sources
        for value in [ctx.params[name]]
    ]
