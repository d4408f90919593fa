"""JSON and gates on several ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.command_line import Run, frechet
from support.documents import read_document
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path]:
    """REAL and two FAKEs."""
    return tuple(make_pictures(tmp_path / name, 40, seed) for seed, name in enumerate(("real", "fake", "other")))  # type: ignore[return-value]


@pytest.mark.parametrize("ranks", [None, 2])
def test_json_has_the_documented_structure(fidtool: Run, sets: tuple[Path, Path, Path], ranks: int | None) -> None:
    real, fake, _ = sets
    record = fidtool("compute", real, fake, "--extractor", TINY, "--json", "--no-cache", ranks=ranks).json
    assert record["schema"] == 2
    assert record["protocol"]["name"] == "pytorch-fid"
    assert len(record["protocol"]["fingerprint"]) == 64
    for key in ("extractor", "weights_sha256", "dims", "resize", "decoder", "ddof", "feature_step"):
        assert key in record["protocol"]
    (result,) = record["results"]
    assert (result["real"], result["fake"]) == (str(real), str(fake))
    assert result["count"] == {"real": 40, "fake": 40}
    assert result["skipped"] == []
    assert math.isfinite(frechet(result))
    run = record["run"]
    assert run["world_size"] == (ranks or 1)
    assert run["precision"] == "fp32"
    assert {"list", "extract", "merge", "distance", "total"} <= set(run["seconds"])
    assert set(run["extraction"]) == {"decode", "transfer", "network", "moments"}
    assert 0 < run["extraction"]["network"] <= run["seconds"]["extract"]
    assert run["images_per_second"] > 0
    assert {"python", "torch", "torchvision", "scipy", "pillow", "fidtool"} <= set(run["versions"])
    assert record["exit"] == {"code": 0, "reason": "done"}


@pytest.mark.parametrize("ranks", [None, 2])
def test_gate(fidtool: Run, sets: tuple[Path, Path, Path], ranks: int | None) -> None:
    real, fake, _ = sets
    common = ("compute", real, fake, "--extractor", TINY, "--json")
    value = fidtool(*common).fid
    passed = fidtool(*common, "--fail-above", value, ranks=ranks)
    missed = fidtool(*common, "--fail-above", math.nextafter(value, 0), ranks=ranks)
    assert (passed.status, passed.json["exit"]["code"]) == (0, 0), "a value equal to the limit is not above it"
    assert missed.json["exit"]["code"] == 3
    assert missed.status == (3 if ranks is None else 1), "torchrun replaces the ranks' status"
    assert missed.fid == value
    assert missed.stderr.count("gate missed") == 1


def test_only_rank_zero_prints_the_table(fidtool: Run, sets: tuple[Path, Path, Path]) -> None:
    """torchrun rejects ``--num`` as ambiguous, except after ``--``."""
    arguments = ("--", "compute", *sets, "--extractor", TINY, "--num", 30, "--format", "table", "-o", "out.json")
    run = fidtool(*arguments, ranks=2, fresh=True)
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["FAKE", "fake", "other", "*"], run.stderr
    command = read_document(sets[0].parent / "out.json")["run"]["command"]
    assert command == ["fidtool", *map(str, arguments[1:])]
