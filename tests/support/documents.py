"""The JSON documents that fidtool writes: their schema, and how the guide describes their keys."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from support.places import ROOT

SCHEMA_FILE = ROOT / "fidtool" / "guide" / "schema.json"
_KINDS = {
    "results": "compute",
    "against": "check",
    "files": "list",
    "entries": "cache",
    "metrics": "metrics",
    "verdicts": "verify",
    "changes": "diff",
    "presets": "presets",
    "references": "refs",
    "published": "published",
}
"""A top-level key that only documents of one kind have, and the kind."""
_PATTERNS = {"^f(id|d)": "fid"}
"""Keys whose names depend on the network, as they are for Inception's 2048 features."""


@cache
def schema() -> Any:
    """Return the contents of the schema file."""
    return json.loads(SCHEMA_FILE.read_text("utf-8"))


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return ``document``, which must match its schema; a key that is not in the schema is a
    failure.
    """
    kind = next(kind for key, kind in _KINDS.items() if key in document)
    validator = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema()["$defs"]})
    faults = [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(document)]
    assert not faults, "\n".join(faults)
    return document


def read_document(path: Path) -> dict[str, Any]:
    """Return the document in a file, see `check`."""
    return checked(json.loads(path.read_text("utf-8")))


def described_keys() -> str:
    """Return every key of every document as Markdown, at most 80 columns wide: one section per
    object of the schema.
    """
    parts = [
        f"### {name}\n\n{_fill(each.get('description', ''))}\n\n{_list(each)}"
        for name, each in _objects()
    ]
    return "\n\n".join(parts)


def _objects() -> Iterator[tuple[str, Any]]:
    return ((name, each) for name, each in schema()["$defs"].items() if "properties" in each)


def _list(found: Mapping[str, Any], prefix: str = "") -> str:
    return "\n".join(_lines(found, prefix))


def _lines(found: Mapping[str, Any], prefix: str) -> Iterator[str]:
    keys = found.get("properties", {}) | {
        _PATTERNS[key]: each for key, each in found.get("patternProperties", {}).items()
    }
    for key, each in keys.items():
        words = f"- `{prefix}{key}` ({_kind(each)})" + (
            f": {each['description']}" if each.get("description") else ""
        )
        yield _fill(words, "  ")
        for inner, mark in _inner(each):
            # A pair needs no separate lines.
            if list(inner.get("properties", ())) != [
                "real",
                "fake",
            ]:
                yield from _lines(inner, f"{prefix}{key}{mark}.")


def _inner(found: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Return the unnamed objects in a key's value, and the mark for a list of them."""
    for each in [found, *found.get("anyOf", ())]:
        if "properties" in each:
            yield each, ""
    if "properties" in found.get("items", {}):
        yield found["items"], "[]"


def _kind(found: Mapping[str, Any]) -> str:
    """Return the type of a key's value as text."""
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        return "object or null" if name == "config" else f"[{name}](#{name})"
    if "anyOf" in found:
        return " or ".join(_kind(each) for each in found["anyOf"])
    if "const" in found:
        return f"always {json.dumps(found['const'])}"
    kinds = found.get("type", "any")
    words = [
        f"list of {_items(found)}" if kind == "array" else kind
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ]
    if list(found.get("properties", ())) == ["real", "fake"]:
        words = [f"`real` and `fake`, each {_kind(found['properties']['real'])}"]
    elif isinstance(found.get("additionalProperties"), Mapping):
        words = [f"object of {_kind(found['additionalProperties'])} values"]
    return " or ".join(words)


def _items(found: Mapping[str, Any]) -> str:
    each = found.get("items")
    if each is None:
        return " and ".join(_kind(one) for one in found["prefixItems"])
    if "$ref" in each:
        return _kind(each)
    if "prefixItems" in each:
        return f"pairs of {_items(each)}"
    plain = _kind(each)
    return plain.replace("list", "lists", 1) if plain.startswith("list") else f"{plain}s"


def _fill(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
