"""Every field of a file of statistics, of a part, and of a checkpoint is edited: it is refused, or
does no harm.

An exception that is not an error with words fails the tests.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.statistics.checkpoint import MANIFEST, Identity, claim
from fidtool.system.json_fields import from_json_value
from support.command_line import Run
from support.edits import arrays_of, edits_of, edits_of_json, refusal, save
from support.pictures import make_pictures
from support.places import TINY

OF_EACH = ("--extractor", TINY, "--batch-size", 2, "--no-cache", "--metrics", "fid,kid")
METRICS: list[Any] = ["fid", fidtool.KID(subset_size=5, subsets=2)]
HARMLESS = {
    "records",
    "details",
    "stamps",
    "folder",
    "names",
    "run",
    "order",
    "skipped_places",
    "sums_sizes",
    "sums_largest",
}
"""Arrays on which no value depends. Without them, or with others of a possible form, a file is
read.
"""


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", 12, 0), make_pictures(tmp_path / "fake", 12, 1)


def test_edited_statistics(here: Run, tmp_path: Path, sets: tuple[Path, Path]) -> None:
    for name, images in zip(("real.npz", "good.npz"), sets, strict=True):
        assert here("stats", images, "-o", name, *OF_EACH).status == 0
    good, read = tmp_path / "good.npz", dict[str, str]()
    for number, (name, what, arrays) in enumerate(edits_of(arrays_of(good))):
        file = save(tmp_path / f"{number}.npz", arrays)
        message = refusal(lambda: fidtool.read_statistics(file))  # noqa: B023 - it is called at once
        # It may be of another network, or without features.
        if name not in HARMLESS and not message:
            message = refusal(lambda: fidtool.compute("real.npz", file, metrics=METRICS))  # noqa: B023
        if message:
            assert str(file) in message, what
            assert not re.search("has None|of None|no item", message), what
        else:
            assert name in HARMLESS, what
            assert name != "details" or what.endswith(("zeros", "missing")), what
            read[str(file)] = what
    assert len(read) < number / 3
    results = fidtool.compute("real.npz", [good, *read], metrics=METRICS).to_dict()["results"]
    for result, what in zip(results[1:], read.values(), strict=True):
        assert result["metrics"] == results[0]["metrics"], what


@pytest.mark.parametrize(
    ("name", "array"), [("mu", np.full(16, 9.0)), ("count", np.int64(-1)), ("run", np.array("[]"))]
)
def test_an_edited_file_is_refused_by_commands(
    here: Run, tmp_path: Path, sets: tuple[Path, Path], name: str, array: Any
) -> None:
    assert here("stats", sets[0], "-o", "good.npz", "--part", "1/1", *OF_EACH).status == 0
    save(tmp_path / "edited.npz", {**arrays_of(tmp_path / "good.npz"), name: array})
    since = ("stats", sets[0], "--since", "edited.npz", "-o", "new.npz", *OF_EACH)
    for command in (
        ("compute", sets[1], "edited.npz", *OF_EACH[:2]),
        ("merge", "edited.npz", "-o", "new.npz"),
        since,
    ):
        outcome = here(*command)
        assert (outcome.status, outcome.stdout) == (2, "")
        assert outcome.error.startswith("error: edited.npz cannot be read: ")


def test_edited_parts(here: Run, tmp_path: Path, sets: tuple[Path, Path]) -> None:
    for number in (1, 2):
        assert (
            here("stats", sets[1], "-o", f"{number}.npz", "--part", f"{number}/2", *OF_EACH).status
            == 0
        )
    parts = tmp_path / "1.npz", tmp_path / "2.npz"
    whole, second = fidtool.merge_statistics(parts), fidtool.read_statistics(parts[1])
    merged, edited = [whole], tmp_path / "edited.npz"
    for number, (name, what, arrays) in enumerate(edits_of(arrays_of(parts[0]))):
        save(edited, arrays)
        order: Any = [edited, second][:: 1 if number % 2 else -1]
        message = refusal(lambda: merged.append(fidtool.merge_statistics(order)))  # noqa: B023
        if message:
            assert "edited.npz" in message or name in ("part", "order"), what
            assert not re.search("has None|of None|no item", message), what
        else:
            assert name in HARMLESS or what.startswith("part.0") or what == "mu is missing", what
            assert merged[-1].mu.tobytes() == whole.mu.tobytes(), what
            assert merged[-1].sigma.tobytes() == whole.sigma.tobytes(), what
    assert len(merged) < number / 3
    save(edited, {**arrays_of(parts[0]), "part": np.array(json.dumps(["1/2", "x", 10**12]))})
    outcome = here("merge", "edited.npz", "2.npz", "-o", "merged.npz")
    assert (outcome.status, "edited.npz cannot be read: its part is damaged" in outcome.error) == (
        2,
        True,
    )


def test_an_edited_manifest(here: Run, tmp_path: Path, sets: tuple[Path, Path]) -> None:
    run = ("compute", *sets, *OF_EACH, "--kid-subset-size", 5, "--checkpoint", "kept")
    assert here(*run).status == 0
    manifest, said = tmp_path / "kept" / MANIFEST, list[str]()
    content = json.loads(manifest.read_text())
    identity = from_json_value(Identity, content["identity"])
    for what, edited in edits_of_json(content, "manifest"):
        manifest.write_text(json.dumps(edited))
        message = refusal(lambda: claim("kept", identity, said.append))
        assert "choose another folder" in message or what.endswith(
            ("framing is missing", "num is missing")
        ), what
    assert said == []
    manifest.write_text(json.dumps({**content, "identity": {**content["identity"], "sets": 3}}))
    assert here(*run).error.startswith(f"error: kept/{MANIFEST} is damaged")
