"""Errors about mistyped command lines: they suggest the probable intention, and no work is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run

COMMANDS = {
    "real/ fake/ --device cuda:0": "`fidtool compute real/ fake/ --device cuda:0`",
    "real fake": "`fidtool compute real fake`",
    "computee": "did you mean 'compute'?",
    "stat real/ -o real.npz": "did you mean 'stats'?",
    "evaluate real/ fake/": "the commands are ",
    "--verison": "--version",
}
FLAGS = {
    "compute a b --gpu": "--device cuda; on several GPUs start one process per GPU with torchrun",
    "compute a b --batch 4": "--batch-size",
    "compute a b --model x": "--extractor",
    "compute a b --save-stats": "`fidtool stats IMAGES -o FILE.npz`",
    "stats a --mode clean": "--protocol",
    "cache --older 30d": "--older-than",
    "compute a b --timeout x": "not a valid float",
}
METRICS = {
    "compute a b --metrics fid kid": "fid,kid",
    "compute --metrics fid kid prdc a b": "fid,kid,prdc",
    "compute a b --metrics fid, kid, is": "fid,kid,is",
    "stats a -o a.npz --metrics fid kid": "fid,kid",
    "compute a b --metrics fid Inception-Score": "fid,Inception-Score",
    "compute a b --metrics fid mine.py:Shift": "fid,mine.py:Shift",
}


@pytest.mark.parametrize("typed", COMMANDS)
def test_an_unknown_command(here: Run, tmp_path: Path, typed: str) -> None:
    (tmp_path / "real").mkdir()
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert COMMANDS[typed] in outcome.error
    assert outcome.error.endswith("(see `fidtool --help`)")


@pytest.mark.parametrize("typed", FLAGS)
def test_a_wrong_command_line(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert FLAGS[typed] in outcome.error
    assert outcome.error.endswith(" --help`)")


@pytest.mark.parametrize("typed", METRICS)
def test_metrics_without_commas(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert f"error: metrics are separated by commas: write --metrics {METRICS[typed]} (see" in outcome.error


def test_a_set_can_have_the_name_of_a_metric(here: Run, tmp_path: Path) -> None:
    (tmp_path / "kid").mkdir()
    assert here("compute", "--metrics", "fid", "kid", "nowhere").error == "error: no such file or folder: nowhere"
    assert here("compute", "--metrics", "fid", "--", "is", "fid").error == "error: no such file or folder: is"
    assert here("compute", "kid", "--metrics", "fid", "b.npz:is").error == "error: no such file or folder: b.npz:is"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num", "0"], "--num must be at least 1, not 0"),
        (["--max-skip", "1.5"], "--max-skip must be from 0 to 1, not 1.5"),
        (["--timeout", "1e9"], "--timeout must be from 1 to 2592000, not 1000000000.0"),
        (["--fail-above", "nan"], "--fail-above must be at least 0, not nan"),
    ],
)
def test_a_value_outside_its_limits(here: Run, flags: list[str], said: str) -> None:
    outcome = here("compute", "real", "fake", *flags)
    assert (outcome.status, outcome.error) == (2, f"error: {said}")


def test_two_formats(here: Run) -> None:
    outcome = here("compute", "real", "fake", "--json", "--format", "table")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "--json and --format table contradict each other" in outcome.error


def test_the_last_of_two_values_counts_except_for_metrics(here: Run) -> None:
    given = ("--num", 3, "--num-images", 4, "--recursive", "--no-recursive", "--metrics", "fid", "--metrics", "kid")
    config = here("compute", "nowhere", "neither", *given, "--json").json["run"]["config"]
    assert config == {"num": 4, "recursive": False, "metrics": ["fid", "kid"]}


def test_short_flags(here: Run, tmp_path: Path) -> None:
    """They equal the long ones: the failed run writes its JSON to the file, and only the error to stderr."""
    outcome = here("compute", "nowhere", "neither", "-q", "-o", "out.json")
    assert outcome.stderr == "error: no such file or folder: nowhere\n"
    assert '"no such file or folder: nowhere"' in (tmp_path / "out.json").read_text()
    assert here("compute", "nowhere", "neither", "-o").error.endswith("(see `fidtool compute --help`)")


@pytest.mark.parametrize(
    ("name", "instead"),
    {
        "fid.csv": "choose fid.json",
        "out/fid.TXT": "choose out/fid.json, or redirect stdout for the text: > out/fid.TXT",
        "fid.v2.html": "choose fid.v2.json, or pass --report fid.v2.html for a page",
        "fid.png": "choose fid.json, or pass --plot fid.png for a plot",
        "fid.npz": "choose fid.json, or write statistics with `fidtool stats IMAGES -o fid.npz`",
        "fid.json.gz": "choose fid.json",
    }.items(),
)
def test_a_result_of_another_suffix(here: Run, tmp_path: Path, name: str, instead: str) -> None:
    outcome = here("compute", "nowhere", "neither", "-o", name)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.error == f"error: --output {name}: the name must end in .json: {instead}"
    assert not (tmp_path / name).exists()


def test_results_without_a_suffix(here: Run, tmp_path: Path) -> None:
    """What follows the dot of cfg1.5 is no suffix, and - is stdout."""
    for name in ("plain", "cfg1.5", "fid.JSON"):
        assert here("compute", "nowhere", "neither", "-q", "-o", name).stdout == ""
        assert '"no such file or folder: nowhere"' in (tmp_path / name).read_text()
    for command in (("compute", "nowhere", "neither"), ("stats", "nowhere")):
        assert "must be a file, and results/ is a folder" in here(*command, "-o", "results/").error
    outcome = here("compute", "nowhere", "neither", "-o", "-")
    assert outcome.json["exit"]["code"] == 2
    assert not (tmp_path / "-").exists()
