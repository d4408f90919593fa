"""``compute`` in each format, its files, and ``fidtool table``."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import FD, TINY
from support.ranks import RankServer

FLAGS = ("--extractor", TINY, "--quiet")
KID = ("--metrics", "kid,fid", "--kid-subset-size", 10)


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    """REAL and two FAKEs."""
    for seed, name in enumerate(("real", "fake_1", "other|2")):
        make_pictures(tmp_path / name, 40, seed)
    return ["real", "fake_1", "other|2"]


def test_formats_on_stdout_and_in_files(here: Run, sets: list[str], tmp_path: Path) -> None:
    """A file has the format of its suffix, whatever is printed; all are of one run."""
    results = here("compute", *sets, *FLAGS, *KID, "--json").json["results"]
    starts = {"csv": "real,fake,", "markdown": "<!-- fidtool -->\n", "latex": "% fidtool: needs "}
    for form, suffix in (("csv", "CSV"), ("markdown", "md"), ("latex", "tex")):
        run = here("compute", *sets, *FLAGS, *KID, "--format", form, "-o", f"out.{suffix}")
        assert run.stdout.startswith(starts[form])
        assert (tmp_path / f"out.{suffix}").read_text() == run.stdout
        other = here("compute", *sets, *FLAGS, *KID, "--format", "lines", "-o", f"out.{suffix}")
        assert other.stdout.startswith(f"{FD}: ")
        assert (tmp_path / f"out.{suffix}").read_text() == run.stdout, (
            "it is replaced, and it is the same"
        )
    rows = list(csv.DictReader((tmp_path / "out.CSV").open()))
    for row, result in zip(rows, results, strict=True):
        assert {key: float(row[key]) for key in result["metrics"]} == result["metrics"]
        assert (row["fake"], row["count.fake"]) == (result["fake"], "40")
    assert r"| fake\_1 |" in (tmp_path / "out.md").read_text()
    assert r"| other\|2 |" in (tmp_path / "out.md").read_text()
    assert r"    fake\_1 & " in (tmp_path / "out.tex").read_text()


def test_a_file_of_another_kind_is_not_overwritten(
    here: Run, sets: list[str], tmp_path: Path
) -> None:
    for name, content in (
        ("paper.tex", "\\documentclass{article}"),
        ("README.md", "# Readme"),
        ("images.csv", "path,label\na.png,1"),
        ("data.json", "[1]"),
    ):
        (tmp_path / name).write_text(content)
        refused = here("compute", *sets, *FLAGS, "-o", name)
        what = "JSON" if name == "data.json" else "a table written by fidtool"
        assert (refused.status, refused.stdout) == (2, "")
        assert (
            refused.error
            == f"error: --output {name} exists and is not {what}: choose another name, or delete "
            "the file"
        )
        assert (tmp_path / name).read_text() == content
        (tmp_path / name).write_text("")
        assert here("compute", *sets, *FLAGS, "-o", name).status == 0, "an empty file is"


def test_a_failed_run_leaves_tables_alone(here: Run, sets: list[str], tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("real,fake,fid\n")
    (tmp_path / "fake_1" / "bad.png").write_text("no image")
    assert here("compute", *sets, *FLAGS, "-o", "out.csv").status == 2
    assert (tmp_path / "out.csv").read_text() == "real,fake,fid\n"
    assert here("compute", *sets, *FLAGS, "-o", "out").status == 2
    assert json.loads((tmp_path / "out").read_text())["exit"]["code"] == 2


def test_a_number_alone(here: Run, sets: list[str]) -> None:
    """The first that was requested, as in the JSON."""
    results = here("compute", *sets, *FLAGS, *KID, "--json").json["results"]
    kids = [
        next(value for key, value in result["metrics"].items() if key.startswith("kid"))
        for result in results
    ]
    assert here("compute", *sets, *FLAGS, *KID, "--value").stdout == "".join(
        f"{kid!r}\n" for kid in kids
    )
    one = here("compute", *sets[:2], *FLAGS, "--value", "--fail-above", 1e-9)
    assert one.status == 3
    assert float(one.stdout) == pytest.approx(
        next(value for key, value in results[0]["metrics"].items() if key[0] == "f")
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--json", "--format", "csv"), "--json and --format csv"),
        (("--value", "--format", "table"), "--value and --format table"),
        (("--value", "--json"), "--value and --json"),
    ],
)
def test_two_formats_are_refused(here: Run, flags: tuple[str, ...], named: str) -> None:
    refused = here("compute", "real", "fake", *flags)
    assert (refused.status, refused.error) == (
        2,
        f"error: {named} contradict each other: pass one of them",
    )


def test_a_metric_without_a_value_and_a_gate_come_last(here: Run, sets: list[str]) -> None:
    """By themselves, after the warnings: the last lines of a log."""
    flags = (*FLAGS, "--metrics", "fid,kid", "--num", 10, "--fail-above", 1e-9)
    for form in ("csv", "json", "lines"):
        lines = here("compute", *sets, *flags, "--format", form).stderr.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["warning", "warning", "gate missed"]
    missing = ("--extractor", TINY, "--metrics", "all", "--fail-above", 1e-9)
    lines = here("compute", *sets, *missing, "--format", "csv").stderr.splitlines()
    assert lines[-1].startswith("gate missed: ")
    assert lines[-2].startswith("CLIP score: not computed: ")
    text = here("compute", *sets, *missing, "--format", "lines")
    assert "not computed" in text.stdout
    assert text.stderr.splitlines()[-2].partition(":")[0] != "CLIP score", "it is on stdout"


def test_only_rank_zero_prints_a_table(sets: list[str], tmp_path: Path, fidtool: Run) -> None:
    arguments = ("compute", *sets, *FLAGS, *KID, "--format", "csv", "-o")
    alone, both = (fidtool(*arguments, f"{ranks}.tex", ranks=ranks) for ranks in (1, 2))
    assert both.stdout == alone.stdout
    assert (tmp_path / "1.tex").read_text() == (tmp_path / "2.tex").read_text()


def test_saved_results_are_a_table(here: Run, sets: list[str], tmp_path: Path) -> None:
    real, fake, other = sets
    for name, arguments in (
        ("monday", (real, fake, *KID)),
        ("tuesday", (real, other, *KID)),
        ("few", (real, other, *KID, "--num-real", 20)),
        ("again", (real, fake, "--metrics", "fid")),
    ):
        assert here("compute", *arguments, *FLAGS, "-o", f"{name}.json").status == 0
    run = here("table", "monday.json", "tuesday.json")
    both = here("compute", *sets, *FLAGS, *KID, "--format", "table")
    assert (run.status, run.stdout, run.stderr) == (0, both.stdout, "")
    for form, suffix in (("csv", "csv"), ("markdown", "md"), ("latex", "tex")):
        printed = here(
            "table", "monday.json", "tuesday.json", "--format", form, "-o", f"both.{suffix}"
        )
        assert (tmp_path / f"both.{suffix}").read_text() == printed.stdout
    assert "\nreal,fake_1,monday.json,40,40," in (tmp_path / "both.csv").read_text()
    few = here("table", "monday.json", "few.json")
    doubt = "REAL.count: 40 -> 20 (monday.json -> few.json)"
    said = f"The rows are not all comparable, so none is marked as best: {doubt}."
    assert (few.stdout.splitlines()[1], few.stderr) == (said, "")
    assert (
        here("table", "monday.json", "few.json", "--format", "csv").stderr == f"warning: {said}\n"
    )
    assert "*" not in few.stdout
    assert here("table", "monday.json", "--columns", "KID").stdout.split()[:2] == ["FAKE", "KID"]
    again = here("table", "monday.json", "again.json").stdout
    assert [line.split("  ")[0] for line in again.splitlines()[-2:]] == [
        "fake_1 (monday.json)",
        "fake_1 (again.json)",
    ]


def test_a_table_needs_a_result_and_a_suffix(here: Run, sets: list[str]) -> None:
    here("compute", *sets, *FLAGS, "-o", "good.json")
    for name in ("new.json", "new", "new.html"):
        refused = here("table", "good.json", "-o", name)
        assert (
            refused.error
            == f"error: --output {name}: the name must end in .csv, .md, .tex: choose new.csv"
        )
    assert "Missing argument" in here("table").error


def test_paths_in_any_encoding(here: Run, tmp_path: Path) -> None:
    """Tables are valid UTF-8 on one line per row."""
    make_pictures(tmp_path / "real", 8, 0)
    odd = [
        os.fsdecode(name) for name in (b"bad\xff", b"new\nline", "😀 %_&|".encode(), b"\x1b[31mred")
    ]
    for seed, name in enumerate(odd, 1):
        make_pictures(tmp_path / name, 8, seed)
    for form, suffix in (("csv", "csv"), ("markdown", "md"), ("latex", "tex"), ("table", "csv")):
        run = here("compute", "real", *odd, *FLAGS, "--format", form, "-o", f"out.{suffix}")
        assert run.status == 0
        text = (tmp_path / f"out.{suffix}").read_bytes().decode()
        for shown in (text, run.stdout):
            assert "\x1b" not in shown
            assert (
                sum("bad" in line or "line" in line or "red" in line for line in shown.splitlines())
                >= 3
            )
    assert [row["fake"] for row in csv.DictReader((tmp_path / "out.csv").open())] == [
        "bad\ufffd",
        "new\\nline",
        "😀 %_&|",
        "\\x1b[31mred",
    ]


def test_a_closed_stdout_does_not_lose_the_table(
    sets: list[str], environment: dict[str, str], tmp_path: Path, rank_server: RankServer
) -> None:
    import subprocess

    command = rank_server.stand_in(
        "fidtool", ["compute", *sets, *FLAGS, "--value", "-o", "out.tex"]
    )
    reader, gone = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        command, env=environment, stdout=gone, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    os.close(gone)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "error: the result could not be written to stdout"
    )
    assert (tmp_path / "out.tex").read_text().startswith("% fidtool")


def test_several_files_of_one_result(here: Run, tmp_path: Path) -> None:
    real, fake = (
        make_pictures(tmp_path / name, 6, seed) for seed, name in enumerate(("real", "fake"))
    )
    files = ("-o", "a.json", "-o", "a.md", "-o", "a.csv")
    run = here("compute", real, fake, "--extractor", TINY, "--quiet", *files)
    assert run.status == 0
    assert (tmp_path / "a.csv").read_text().startswith("real,fake,")
    again = here("table", "a.json", "--format", "markdown", "-o", "b.csv", "-o", "b.md")
    assert (tmp_path / "b.md").read_text() == (tmp_path / "a.md").read_text() == again.stdout
    assert (tmp_path / "b.csv").exists()
    failed = here("compute", real, "none", *files, "-o", "b.json")
    assert failed.status == 2
    for name, code in {"a.json": 0, "b.json": 2}.items():
        assert json.loads((tmp_path / name).read_text())["exit"]["code"] == code, (
            "results with values stay"
        )
    assert (tmp_path / "b.md").read_text() == (tmp_path / "a.md").read_text()
