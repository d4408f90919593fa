"""Edits of the arrays in a file, and of the JSON in some: another type, sign, size or shape, or
nothing at all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fidtool.errors import InputError

JSON = ("fingerprint", "run", "part", "record")
"""Arrays that contain JSON."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    float("nan"),
    0.5,
    "text",
    "a\0b",
    [],
    [[1]],
    {},
    {"a": 1},
)
"""What a value of JSON becomes."""


def _filled(value: int) -> Callable[[Any], Any]:
    """Returns a function that fills an array of numbers, and one of text with integers."""
    return lambda array: np.full(
        array.shape, value, dtype=array.dtype if array.dtype.kind in "if" else np.int64
    )


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "text": lambda array: np.array("text"),
    "objects": lambda array: np.array([{}], dtype=object),
    "complex": lambda array: np.ones(array.shape, dtype=complex),
    "floats": lambda array: np.full(array.shape, 0.5),
    "not a number": lambda array: np.full(array.shape, np.nan),
    "negative": _filled(-3),
    "huge": _filled(1 << 62),
    "an axis more": lambda array: array[None],
    "twice": lambda array: np.concatenate([np.atleast_1d(array)] * 2),
    "empty": lambda array: np.zeros(0, dtype=array.dtype),
    "zeros": np.zeros_like,
}
"""Edits of an array."""


def arrays_of(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def save(file: Path, arrays: Mapping[str, Any]) -> Path:
    """Writes an archive, also with objects, which are pickled."""
    np.savez(file, **arrays)
    return file


def edits_of_json(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields copies of a value of JSON in which one value, at any depth, is another or missing."""
    yield from ((f"{place} = {other!r}", other) for other in VALUES if other != value)
    keys = (
        [*value] if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    )
    for key in keys:
        without = copy.copy(value)
        del without[key]
        yield f"{place}.{key} is missing", without
        for what, inner in edits_of_json(value[key], f"{place}.{key}"):
            changed = copy.copy(value)
            changed[key] = inner
            yield what, changed


def edits_of(arrays: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the name of an array, what is edited, and all arrays with this edit."""
    for name, array in arrays.items():
        yield name, f"{name} is missing", {key: each for key, each in arrays.items() if key != name}
        for what, edit in ARRAYS.items():
            yield name, f"{name}: {what}", {**arrays, name: edit(array)}
        if name in JSON:
            for what, value in edits_of_json(json.loads(str(array)), name):
                yield name, what, {**arrays, name: np.array(json.dumps(value))}


def refusal(call: Callable[[], Any]) -> str:
    """Returns the message with which a call refuses its input; empty if it returns."""
    try:
        call()
    except InputError as error:
        return str(error)
    return ""
