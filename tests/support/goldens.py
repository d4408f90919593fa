"""Goldens: output that users depend on, in readable files with which tests compare.

A golden is ``tests/goldens/NAME.json``. ``pytest --write-goldens`` writes the ones that differ.
Review the difference before you commit it: users will notice it. Without the option, a missing
golden is a failure. The files in ``tests/goldens/files`` are different: see `support.old_files`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT, TESTS

FOLDER = TESTS / "goldens"
_WIDTH = 116
_SHOWN = 8
"""Maximum number of differences in a message."""
_EXCERPT = 60
_DATE = re.compile(r"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\dZ")
"""Format of dates in JSON."""


class GoldenWarning(UserWarning):
    """A golden was written."""


@dataclass(frozen=True)
class Near:
    """A number whose last digits depend on the processor.

    Attributes:
        value: the number.
        relative, absolute: tolerances, as in `math.isclose`.
    """

    value: float
    relative: float = 0.0
    absolute: float = 0.0


def near(value: Any, relative: float = 0.0, absolute: float = 0.0) -> Any:
    """Return ``value`` with each float replaced by a `Near`."""
    if isinstance(value, float):
        return Near(value, relative, absolute)
    if isinstance(value, Mapping):
        return {name: near(each, relative, absolute) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [near(each, relative, absolute) for each in value]
    return value


def masked(value: Any, *paths: str, where: str = "") -> Any:
    """Return ``value`` with the values at these ``paths``, such as ``run.seconds.*``, replaced by
    their types.

    A star matches every key or index. None stays None, because it does not depend on the machine.
    Dates are distinguished from other strings, because scripts parse them.
    """
    if any(_matches(path, where) for path in paths):
        if isinstance(value, str) and _DATE.fullmatch(value):
            return "<date in UTC>"
        return None if value is None else f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        return {
            name: masked(each, *paths, where=f"{where}.{name}".strip("."))
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            masked(each, *paths, where=f"{where}.{place}".strip("."))
            for place, each in enumerate(value)
        ]
    return value


def _matches(pattern: str, where: str) -> bool:
    parts, found = pattern.split("."), where.split(".")
    return len(parts) == len(found) and all(
        part in ("*", name) for part, name in zip(parts, found, strict=True)
    )


def placed(value: Any, places: Mapping[str, str]) -> Any:
    """Return ``value`` with all matches of the regular expressions in ``places`` replaced by their
    names.
    """
    if isinstance(value, str):
        for pattern, name in places.items():
            value = re.sub(pattern, name, value)
        return value
    if isinstance(value, Mapping):
        return {placed(name, places): placed(each, places) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [placed(each, places) for each in value]
    return value


def differences(golden: Any, value: Any, where: str = "") -> Iterator[str]:
    """Yield the differences between ``value`` and its golden, one per line. The order of keys
    counts.

    Args:
        golden: as read from the file.
        value: JSON types and `Near`.
        where: path of the value.
    """
    here = where or "the whole"
    if isinstance(value, Near):
        yield from _far(golden, value, here)
    elif isinstance(golden, dict) and isinstance(value, dict):
        yield from _of_keys(list(golden), list(value), here)
        for name in (name for name in golden if name in value):
            yield from differences(golden[name], value[name], f"{where}.{name}".strip("."))
    elif isinstance(golden, list) and isinstance(value, list):
        if len(golden) != len(value):
            yield f"{here}: {len(golden)} entries in the golden and {len(value)} now"
        for place, (old, new) in enumerate(zip(golden, value, strict=False)):
            yield from differences(old, new, f"{where}[{place}]")
    elif type(golden) is not type(value) or repr(golden) != repr(value):  # -0.0 is not 0.0
        yield f"{here}: {_excerpts(golden, value)}"


def _far(golden: Any, value: Near, here: str) -> Iterator[str]:
    number = isinstance(golden, (int, float)) and not isinstance(golden, bool)
    if not (
        number and math.isclose(golden, value.value, rel_tol=value.relative, abs_tol=value.absolute)
    ):
        yield (
            f"{here}: {golden!r} in the golden and {value.value!r} now, beyond {value.relative:g} "
            "of it"
        )


def _of_keys(golden: list[str], value: list[str], here: str) -> Iterator[str]:
    if missing := [name for name in golden if name not in value]:
        yield f"{here}: {', '.join(missing)} is missing"
    if new := [name for name in value if name not in golden]:
        yield f"{here}: {', '.join(new)} is new"
    both = [name for name in golden if name in value], [name for name in value if name in golden]
    if both[0] != both[1]:
        old, now = next(pair for pair in zip(*both, strict=True) if pair[0] != pair[1])
        yield f"{here}: the order of the keys differs: {now} is where {old} was"


def _excerpts(golden: Any, value: Any) -> str:
    """Format both values; of long strings, only the parts where they start to differ."""
    old, new = repr(golden), repr(value)
    if max(len(old), len(new)) > 2 * _EXCERPT:
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        start = max(0, sum(1 for _ in alike) - 20)
        old, new = (f"…{text[start : start + 2 * _EXCERPT]}…" for text in (old, new))
    return f"{old} in the golden and {new} now"


def plain(value: Any) -> Any:
    """Convert ``value`` to JSON types, and each `Near` to its number."""
    if isinstance(value, Near):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return json.loads(json.dumps(value, allow_nan=False))
    raise TypeError(f"a golden contains JSON types only, not {type(value).__name__}")


def _keeping_near(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _keeping_near(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_keeping_near(each) for each in value]
    return value if isinstance(value, Near) else plain(value)


def as_text(value: Any, indent: int = 0) -> str:
    """Return JSON in which a value that fits on one line is on one line, for readable
    differences.
    """
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(flat) + indent <= _WIDTH:
        return flat
    start, pad = "\n" + " " * indent, "\n" + " " * (indent + 1)
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(name, ensure_ascii=False)}: {as_text(each, indent + 1)}"
            for name, each in value.items()
        ]
        return f"{{{pad}{f',{pad}'.join(entries)}{start}}}"
    if all(isinstance(each, (int, float)) for each in value):
        return f"[{pad}{pad.join(_filled([json.dumps(each) for each in value], _WIDTH - indent))}{start}]"
    return f"[{pad}{f',{pad}'.join(as_text(each, indent + 1) for each in value)}{start}]"


def _filled(words: list[str], width: int) -> list[str]:
    """Join words with commas, as many per line as fit."""
    lines, line = [], ""
    for place, word in enumerate(words):
        word += "," if place + 1 < len(words) else ""
        if line and len(line) + len(word) >= width:
            lines, line = [*lines, line], ""
        line = f"{line} {word}".strip()
    return [*lines, line]


class Golden:
    """Compares values with goldens; see the module.

    Args:
        write: whether to write goldens that differ.
        folder: folder of the goldens.
    """

    def __init__(self, write: bool, folder: Path = FOLDER) -> None:
        self._write, self._folder = write, folder

    def __call__(self, name: str, value: Any) -> None:
        """Compare ``value``, which consists of JSON types and `Near`, with the golden of that
        ``name``.
        """
        file, value = self._folder / f"{name}.json", _keeping_near(value)
        known = file.is_file()
        found = (
            list(differences(json.loads(file.read_text("utf-8")), value))
            if known
            else ["there is none"]
        )
        if not found:
            return
        if self._write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(as_text(plain(value)) + "\n", "utf-8")
            warnings.warn(
                f"wrote the golden {name} ({len(found)} differences)", GoldenWarning, stacklevel=2
            )
            return
        more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        lines = [f"  {line}" for line in [*found[:_SHOWN], *more]]
        advice = "If users are meant to see this, `pytest --write-goldens` writes it down."
        pytest.fail(
            "\n".join([f"{shown} is not what fidtool gives:", *lines, advice]), pytrace=False
        )
