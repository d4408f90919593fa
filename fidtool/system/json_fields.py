"""Dataclasses as JSON, whose fields it has, and back."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from sys import float_info
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, Any] = {str: str, bool: bool, NoneType: NoneType}
NOT_IN_JSON = {"json": False}
"""Metadata of a field that the JSON does not have."""
Share = Annotated[float, 0, 1]
# What other numbers in a result are: an integer counts something.
_LIMITED = {
    int: Annotated[int, 0, 1 << 62],
    float: Annotated[float, -float_info.max, float_info.max],
}


def to_json_value(value: Any) -> Any:
    """Return a value as it is in the JSON: a dataclass is its fields, see `to_json_fields`, or what
    its ``to_dict`` returns.

    If a class method ``parse`` makes it of text, such as a crop, it is this text.
    `from_json_value` is the inverse.
    """
    if is_dataclass(value):
        if hasattr(value, "parse"):
            return str(value)
        return value.to_dict() if hasattr(value, "to_dict") else to_json_fields(value)
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return value


def to_json_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass but those with `NOT_IN_JSON`, and the properties that its
    ``DERIVED`` names.
    """
    names = [field.name for field in fields(value) if field.metadata != NOT_IN_JSON]
    return {
        name: to_json_value(getattr(value, name))
        for name in (*names, *getattr(value, "DERIVED", ()))
    }


def from_json_value(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a value of the type ``kind``: a dataclass, or a tuple, mapping or
    union of such types.

    A number with limits is ``Annotated`` with them, such as `Share`. Keys that a dataclass does not
    have are ignored, since a newer version may have written them.

    Raises:
        KeyError, TypeError, ValueError: if the value is not what ``kind`` becomes in JSON.
    """
    if isinstance(value, (int, float)) and not abs(value) <= float_info.max:
        raise ValueError("a number is not finite")  # no gate would notice NaN
    kind = _LIMITED.get(kind, kind)
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is Annotated:
        return _check_number(value, *parts)
    is_plain = isinstance(value, _PLAIN.get(kind, ()))
    if origin in (Union, UnionType):
        for part in parts:
            with contextlib.suppress(TypeError):
                return from_json_value(part, value)
    elif is_dataclass(kind) and isinstance(value, str if hasattr(kind, "parse") else dict):
        return _dataclass_from_json(kind, value)
    elif origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(
            from_json_value(item_kind, item) for item_kind, item in zip(kinds, value, strict=True)
        )
    elif origin is Counter and isinstance(value, dict):
        return Counter(from_json_value(dict[str, int], value))
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {parts[0](key): from_json_value(parts[1], item) for key, item in value.items()}
    elif kind is Any or is_plain or value in (parts if origin is Literal else ()):
        return value
    wanted = "an object" if is_dataclass(kind) else getattr(kind, "__name__", kind)
    wanted = f"one of {', '.join(map(repr, parts))}" if origin is Literal else wanted
    raise TypeError(f"{repr(value)[:80]} is not {wanted}")


def _dataclass_from_json(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        try:
            return kind.parse(value)
        except ValueError:  # its message names the setting of a run
            raise ValueError(f"{value!r} is not a {kind.__name__.lower()}") from None
    if hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    return kind(**from_json_fields(kind, value))


def from_json_fields(
    kind: Any, content: Mapping[str, Any], complete: bool = False
) -> dict[str, Any]:
    """Return the fields of a dataclass that ``content`` has, or if ``complete`` all, for its
    constructor.

    Raises:
        KeyError, TypeError, ValueError: see `from_json_value`.
    """
    hints = _read_type_hints(kind)
    names = [field.name for field in fields(kind) if field.metadata != NOT_IN_JSON]
    return {
        name: from_json_value(hints[name], content[name])
        for name in names
        if complete or name in content
    }


@functools.cache  # evaluating the hints takes longer than reading the fields
def _read_type_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _check_number(value: Any, kind: Any, least: float, most: float) -> Any:
    """Return a number of the type ``kind`` and from ``least`` to ``most``; an integer can be a
    float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise TypeError(f"{repr(value)[:80]} is not {kind.__name__}")
    if not least <= value <= most:
        raise ValueError(f"{value} is not from {least} to {most}")
    return value
