"""Saved results: the JSON of a file, and the objects that it was made of."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from sys import float_info
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fidtool.errors import InputError

_PLAIN: dict[Any, Any] = {str: str, bool: bool, int: int, float: (int, float), NoneType: NoneType}


def saved_result(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the result JSON that ``fidtool compute -o`` wrote to a file; ``-`` is stdin.

    Raises:
        InputError: if the file cannot be read, is not a result, or is that of a failed run.
    """
    try:
        content = json.loads(Path("/dev/stdin" if file == "-" else file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise InputError(f"{file} cannot be read: {reason}") from None
    check_result(content, f"{file} ")
    return dict(content)


def check_result(content: Any, named: str = "") -> None:
    """Check that ``content`` is a result with values; ``named`` precedes the problem.

    Raises:
        InputError: if it is not.
    """
    results, run = (content.get(key) for key in ("results", "run")) if isinstance(content, Mapping) else (None, None)
    if not isinstance(results, list) or not isinstance(run, Mapping):
        problem = f"{named or 'this '}is not the JSON of `fidtool compute`, which has results and run:"
        raise InputError(problem, "pass the file that its option -o wrote")
    if not results:
        reason = (content.get("exit") or {}).get("reason", "")
        raise InputError(f"{named or 'the result '}has no values: the run failed ({reason})")


def restored(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a value of the type ``kind``: a dataclass, or a tuple, mapping or union of such types.

    Keys that a dataclass does not have are ignored, since a newer version may have written them.

    Raises:
        KeyError, TypeError, ValueError: if the value is not what ``kind`` becomes in JSON.
    """
    if isinstance(value, (int, float)) and not abs(value) <= float_info.max:  # no gate would notice NaN
        raise ValueError("a number is not finite")
    origin, parts = get_origin(kind), get_args(kind)
    is_plain = isinstance(value, _PLAIN.get(kind, ())) and (kind is bool or not isinstance(value, bool))
    if origin in (Union, UnionType):
        for part in parts:
            with contextlib.suppress(TypeError):
                return restored(part, value)
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__dataclass_fields__}
        return kind(**{name: restored(hint, value[name]) for name, hint in hints.items() if name in value})
    elif origin is tuple and isinstance(value, list):
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(restored(one, item) for one, item in zip(each, value, strict=True))
    elif origin is Counter and isinstance(value, dict):
        return Counter(restored(dict[str, int], value))
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {parts[0](key): restored(parts[1], item) for key, item in value.items()}
    elif kind is Any or is_plain or value in (parts if origin is Literal else ()):
        return value
    wanted = "an object" if is_dataclass(kind) else getattr(kind, "__name__", kind)
    raise TypeError(f"{repr(value)[:80]} is not {wanted}")
