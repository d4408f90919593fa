"""The fixture ``golden``: the differences it finds, its messages, and that it only writes on
request.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.goldens import FOLDER, Golden, GoldenWarning, differences, near
from support.places import TESTS


@pytest.mark.parametrize(
    ("golden", "value", "said"),
    [
        ({"a": [1, 2.5, None, "x"]}, {"a": [1, 2.5, None, "x"]}, []),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]: 2 in the golden and 3 now"]),
        (
            {"a": 1, "b": 2},
            {"b": 2, "a": 1},
            ["the whole: the order of the keys differs: b is where a was"],
        ),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, ["the whole: b is missing", "the whole: c is new"]),
        ([1, 2, 3], [1, 2], ["the whole: 3 entries in the golden and 2 now"]),
        (1, 1.0, ["the whole: 1 in the golden and 1.0 now"]),
        (0.0, -0.0, ["the whole: 0.0 in the golden and -0.0 now"]),
        (0.1, 0.1 + 2e-17, ["the whole: 0.1 in the golden and 0.10000000000000002 now"]),
        (1.0, near(1.0 + 1e-13, 1e-12), []),
        (
            [1.0],
            near([1.0 + 1e-11], 1e-12),
            ["[0]: 1.0 in the golden and 1.00000000001 now, beyond 1e-12 of it"],
        ),
        ({"x": 0.0}, near({"x": 1e-9}, 1e-12, 1e-8), []),
        (None, near(1.0, 1e-2), ["the whole: None in the golden and 1.0 now, beyond 0.01 of it"]),
    ],
)
def test_differences_are_named(golden: Any, value: Any, said: list[str]) -> None:
    assert list(differences(golden, value)) == said


def test_goldens_are_only_written_on_request(tmp_path: Path) -> None:
    value = {"numbers": near([0.1, 2.0], 1e-12), "text": "é"}
    strict, writing = Golden(False, tmp_path), Golden(True, tmp_path)
    with pytest.raises(pytest.fail.Exception, match="there is none"):
        strict("some/where", value)
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(GoldenWarning, match="wrote the golden some/where"):
        writing("some/where", value)
    strict("some/where", value)
    file = tmp_path / "some" / "where.json"
    assert json.loads(file.read_text("utf-8")) == {"numbers": [0.1, 2.0], "text": "é"}
    before = file.stat().st_mtime_ns
    writing("some/where", {**value, "numbers": near([0.1 + 1e-14, 2.0], 1e-12)})
    assert file.stat().st_mtime_ns == before, (
        "differences in the last digits must not cause a write"
    )
    with pytest.raises(pytest.fail.Exception, match=r"numbers\[0\]: 0.1 in the golden and 0.2 now"):
        strict("some/where", {**value, "numbers": near([0.2, 2.0], 1e-12)})


def test_every_golden_is_used() -> None:
    """Each file name is in a test, or has the prefix of an f-string in a test."""
    tests = "".join(file.read_text("utf-8") for file in TESTS.rglob("*.py"))
    names = [file.relative_to(FOLDER).with_suffix("") for file in FOLDER.rglob("*.json")]
    own = [name for name in names if name.parts[0] != "files"]
    made = tuple(re.findall(r'golden\(f"([^{]+)\{', tests))
    assert [
        name for name in own if f'"{name}"' not in tests and not str(name).startswith(made)
    ] == []
