"""The schema of the results' JSON, made from the dataclasses whose fields it has, and from their
docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fidtool.diagnose.diagnosis import Diagnosis, Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import Finding
from fidtool.errors import EXIT_STATUSES
from fidtool.metrics.metric import Number
from fidtool.result.evaluation import Comparison, SetResult
from fidtool.result.explanations import (
    Classes,
    Difference,
    Exhibit,
    Heldout,
    Influence,
    Interval,
    Nearest,
    NotComputed,
    Uncertainty,
)
from fidtool.result.values import FeatureSource, Value
from fidtool.settings.record import RunRecord
from fidtool.system.json_fields import NOT_IN_JSON

DOCUMENTED: dict[str, type] = {
    "comparison": Comparison,
    "set": SetResult,
    "value": Value,
    "number": Number,
    "features": FeatureSource,
    "uncertainty": Uncertainty,
    "interval": Interval,
    "difference": Difference,
    "not_computed": NotComputed,
    "influence": Influence,
    "diagnosis": Diagnosis,
    "duplicates": Duplicates,
    "finding": Finding,
    "health": Health,
    "heldout": Heldout,
    "nearest": Nearest,
    "exhibit": Exhibit,
    "classes": Classes,
    "run": RunRecord,
}
"""The dataclasses that have a section of their own, by its name. Others are part of what they are
in.
"""
_NAMES = {"IgnoredFiles": "passed_over"}
_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
_WORDS = {"None": "null", "True": "true", "False": "false"}


def generated() -> dict[str, Any]:
    """Return the definitions that follow from dataclasses, by name."""
    definitions = {name: _object(kind) for name, kind in DOCUMENTED.items()}
    comparison = definitions["comparison"]["properties"]
    number = {"type": ["integer", "null"]}
    of_sets = {
        "real": {"type": "string", "description": "REAL, as passed by the caller."},
        "fake": {"type": "string", "description": "FAKE, as passed by the caller."},
        "count": _pair(
            "Numbers of images used. null if a statistics file does not have it.", number
        ),
        "sets": _pair("The two sets.", {"$ref": "#/$defs/set"}),
    }
    definitions["comparison"] |= {
        "properties": comparison | of_sets,
        "required": [*(comparison | of_sets)],
    }
    run = definitions["run"]
    run["description"] += " A run that failed has only `command`, `host`, `date` and `config`."
    run["required"] = ["command", "host", "date", "config"]
    run["properties"]["config"] |= {"type": ["object", "null"]}
    return definitions


def exit_code() -> dict[str, Any]:
    """Return the schema of the exit status."""
    statuses = (f"{status} {meaning}" for status, meaning in EXIT_STATUSES.items())
    return {"type": "integer", "description": f"Exit status: {'; '.join(statuses)}."}


def _pair(description: str, kind: dict[str, Any]) -> dict[str, Any]:
    properties = {"real": kind, "fake": kind}
    return _closed({"description": description}, properties)


def _closed(
    head: dict[str, Any], properties: dict[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    required = [*properties] if required is None else required
    return head | {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _object(kind: type) -> dict[str, Any]:
    """Return the schema of a dataclass: its fields, and the properties in its ``DERIVED``."""
    summary, texts = _documented(kind)
    hints = get_type_hints(kind, include_extras=True)
    kinds = {
        field.name: hints[field.name] for field in fields(kind) if field.metadata != NOT_IN_JSON
    }
    for name in getattr(kind, "DERIVED", ()):
        kinds[name] = get_type_hints(getattr(kind, name).fget)["return"]
    properties = {}
    for name, hint in kinds.items():
        schema = _schema(hint)
        if name in texts:
            schema = schema | {"description": texts[name]}
        properties[name] = schema
    return _closed({"description": summary}, properties)


def _documented(kind: type) -> tuple[str, dict[str, str]]:
    """Return the first sentence of a docstring, and the texts of its attributes, in words for
    JSON.
    """
    text = inspect.cleandoc(kind.__doc__ or "")
    summary = text.split("\n\n")[0]
    _, _, listed = text.partition("Attributes:\n")
    texts = dict[str, str]()
    for names, words in re.findall(r"^ {4}([a-z_0-9, ]+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE):
        for name in names.split(", "):
            texts[name] = _words(words)
    for name in getattr(kind, "DERIVED", ()):
        texts[name] = _words(inspect.cleandoc(getattr(kind, name).__doc__ or ""))
    return _words(summary), texts


def _words(text: str) -> str:
    """Return the text of a docstring as the guide writes: None is null, and literals are in single
    backticks.
    """
    text = " ".join(text.split()).replace("``", "`")
    text = re.sub(r"\b(None|True|False)\b", lambda word: _WORDS[word[0]], text)
    text = re.sub(r"`([A-Z]\w+)\.(\w+)`", r"`\2`", text)
    return text[:1].upper() + text[1:]


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of the values of a type."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Annotated:
        return {"type": "number", "minimum": parts[1], "maximum": parts[2]}
    if origin is Literal:
        return {"type": "string", "enum": [*parts]}
    if origin in (Union, UnionType):
        return _either([_schema(part) for part in parts])
    if origin is tuple:
        return _list_of(parts)
    if origin is Counter or kind is Counter:
        return {"type": "object", "additionalProperties": {"type": "integer"}}
    if origin in (dict, Mapping):
        inner = _schema(parts[1])
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    if hasattr(kind, "parse"):
        return {"type": "string"}
    if is_dataclass(kind):
        name = {known: name for name, known in DOCUMENTED.items()}.get(kind) or _NAMES.get(
            kind.__name__
        )
        return {"$ref": f"#/$defs/{name}"} if name else _object(kind)
    assert kind is Any, kind
    return {}


def _list_of(parts: tuple[Any, ...]) -> dict[str, Any]:
    if parts[-1] is Ellipsis:
        return {"type": "array", "items": _schema(parts[0])}
    kinds = [_schema(part) for part in parts]
    if len({str(kind) for kind in kinds}) == 1:
        return {"type": "array", "items": kinds[0], "minItems": len(kinds), "maxItems": len(kinds)}
    return {"type": "array", "prefixItems": kinds, "minItems": len(kinds), "maxItems": len(kinds)}


def _either(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of a union: one list of types if no two of them are objects or lists."""
    simple = [kind for kind in kinds if "$ref" not in kind]
    merged: dict[str, Any] = {}
    for kind in simple:
        merged |= kind
    if len(simple) == len(kinds) and sum(len(kind) > 1 for kind in kinds) <= 1:
        return merged | {"type": [kind["type"] for kind in kinds]}
    return {"anyOf": kinds}
