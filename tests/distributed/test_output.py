"""JSON and gates on several ranks."""

from __future__ import annotations

import math
from pathlib import Path

from support.command_line import Run
from support.documents import read_document
from support.pictures import make_pictures
from support.places import TINY
from support.ranks import RankServer


def make_sets(folder: Path) -> list[Path]:
    """REAL and two FAKEs."""
    return [
        make_pictures(folder / name, 40, seed)
        for seed, name in enumerate(("real", "fake", "other"))
    ]


def test_gate(fidtool: Run, here: Run, tmp_path: Path) -> None:
    real, fake, _ = make_sets(tmp_path)
    common = ("compute", real, fake, "--extractor", TINY, "--json")
    value = here(*common).fid
    missed = fidtool(*common, "--fail-above", math.nextafter(value, 0), ranks=2)
    assert missed.json["exit"]["code"] == 3
    assert missed.status == 1, "torchrun replaces the ranks' status"
    assert missed.fid == value
    assert missed.stderr.count("gate missed") == 1


def test_only_rank_zero_prints_the_table(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """In new interpreters. torchrun rejects ``--num`` as ambiguous, except after ``--``."""
    arguments = [
        "compute",
        *make_sets(tmp_path),
        "--extractor",
        TINY,
        "--num",
        30,
        "--format",
        "table",
    ]
    command = ["--nproc-per-node=2", "-m", "fidtool", "--", *arguments, "-o", "out.json"]
    run = rank_server.launch("torchrun", command, environment, tmp_path).outcome()
    assert [line.split()[0] for line in run.stdout.splitlines()] == [
        "FAKE",
        "fake",
        "other",
        "*",
    ], run.stderr
    recorded = read_document(tmp_path / "out.json")["run"]["command"]
    assert recorded == ["fidtool", *map(str, arguments), "-o", "out.json"]


def test_settings_from_a_file(fidtool: Run, tmp_path: Path) -> None:
    """Each rank reads it; rank zero says so. Ranks whose files differ do not start."""
    real, fake, _ = make_sets(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.fidtool]\nextractor = '{TINY}'\nnum = 30\n")
    run = fidtool("compute", real, fake, "--config", "pyproject.toml", "--json", ranks=2)
    typed = fidtool(
        "compute",
        real,
        fake,
        "--extractor",
        TINY,
        "--num-images",
        30,
        "--config",
        "/dev/null",
        "--json",
    )
    assert run.fid == typed.fid
    assert run.json["run"]["config"] == typed.json["run"]["config"]
    assert run.stderr.count("settings from pyproject.toml: ") == 1
    assert fidtool("check", real, "--dump-config", ranks=2).stdout == "[tool.fidtool]\nnum = 30\n"
    (tmp_path / "pyproject.toml").write_text("[tool.fidtool]\nnum = 0\n")
    refused = fidtool("compute", real, fake, ranks=2)
    assert refused.stderr.count("error: num in pyproject.toml must be at least 1, not 0") == 1
