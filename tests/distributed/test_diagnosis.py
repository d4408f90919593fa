"""Diagnosis, influence and error bars on several ranks are bit-identical to those on one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import degenerate
from support.command_line import Run
from support.degenerate import FLAGS, RANKS, make_real, make_sets
from support.influences import with_harmful
from support.places import TINY
from support.processes import PATIENCE
from support.ranks import RankServer, exported


def test_check_shares_the_work(fidtool: Run, here: Run, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, lambda rank, i: f"rank{rank}_{i}.png")
    (fake / "x.png").write_bytes(b"no image")
    arguments = ("check", fake, "--against", degenerate.distinct(tmp_path / "real", 70, 999), "--json", "--strict")
    expected = here(*arguments)
    findings = expected.json["images"]["findings"] + expected.json["between"]
    assert {each["code"] for each in findings} == {"unreadable", "copies"}
    outcome = fidtool(*arguments, ranks=3)
    assert outcome.json == expected.json


def test_copies_are_found_across_ranks(fidtool: Run, here: Run, tmp_path: Path) -> None:
    real = make_real(tmp_path)
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["rank in the name"])
    (fake / "rank2_7.png").write_bytes(b"no image")
    arguments = ["compute", real, fake, "--extractor", TINY, "--json", "--no-cache", "--batch-size", 4]
    arguments += ["--on-error", "skip", "--max-skip", 0.1]
    expected = here(*arguments).json["results"]
    assert expected[0]["diagnosis"]["duplicates"]["fake"]["multiplicities"] == {"3": 1, "4": 39}
    assert fidtool(*arguments, ranks=3).json["results"] == expected


def test_influence_has_the_same_bits_at_any_world_size(fidtool: Run, here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    arguments = ["compute", real, with_harmful(tmp_path / "fake", 60, 3), "--extractor", TINY]
    arguments += ["--influence", "--uncertainty", "--batch-size", 4, "--no-cache", "--json"]
    expected = here(*arguments).json["results"]
    assert fidtool(*arguments, ranks=3, FIDTOOL_FEATURE_BYTES="0").json["results"] == expected


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    return make_sets(tmp_path)


def test_error_bars_have_the_same_bits_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, ...]) -> None:
    arguments = ["compute", *sets[:3], *FLAGS, "--no-cache", "--json"]
    expected = here(*arguments).json
    found = fidtool(*arguments, ranks=3, FIDTOOL_FEATURE_BYTES="0").json
    assert [found[key] for key in ("results", "differences")] == [expected[key] for key in ("results", "differences")]


def test_the_report_of_two_ranks(fidtool: Run, sets: tuple[Path, ...], tmp_path: Path) -> None:
    outcome = fidtool("compute", *sets[:2], "--extractor", TINY, "--report", tmp_path / "r.html", ranks=2)
    assert outcome.status == 0, outcome.stderr
    page = (tmp_path / "r.html").read_text()
    assert "<figcaption>distance " in page


def test_a_report_of_files_needs_no_features(fidtool: Run, here: Run, sets: tuple[Path, ...], tmp_path: Path) -> None:
    """Only rank zero knows whether a file has features."""
    here("stats", sets[0], "-o", tmp_path / "real.npz", "--extractor", TINY, "--metrics", "kid")
    here("stats", sets[1], "-o", tmp_path / "fake.npz", "--extractor", TINY)
    files = [tmp_path / "real.npz", tmp_path / "fake.npz"]
    outcome = fidtool("compute", *files, "--report", tmp_path / "r.html", ranks=2)
    assert outcome.status == 0, outcome.stderr
    page = (tmp_path / "r.html").read_text()
    assert "<figcaption>distance " not in page
    assert f"There are no per-image features in {tmp_path / 'fake.npz'}." in page


PROGRAM = """
import numpy as np
from fidtool.distributed.launch import discover
from fidtool.distributed.world import open_world
from fidtool.statistics.moments import Gaussian
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.error_bars import error_bars
fake = np.load("fake.npy")
with open_world(discover()) as world:
    found = error_bars(Gaussian(np.zeros(12), np.eye(12), None), fake, FeatureSettings(18), world)
    everywhere = world.gather(repr((found.corrected, found.parts.tobytes(), found.curve)))
    if world.rank == 0:
        print(world.size, sorted(set(everywhere)))
"""


def test_error_bars_of_features_have_the_same_bits_at_any_world_size(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    np.save(tmp_path / "fake.npy", np.random.RandomState(9).randn(333, 12).astype(np.float32))
    found = set()
    for size in (1, 2, 3):
        places = [{**environment, **own} for own in exported(size)]
        ranks = [rank_server.launch("script", ["program.py"], own, tmp_path) for own in places]
        assert rank_server.wait(ranks, PATIENCE) == [0] * size, [rank.stderr for rank in ranks]
        said, results = ranks[0].stdout.split(" ", 1)
        assert (int(said), results.count("Interval")) == (size, 1), "every rank has the same"
        found.add(results)
    assert len(found) == 1
