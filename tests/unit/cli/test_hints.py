"""Errors about mistyped command lines: they suggest the probable intention, and no work is started."""

from __future__ import annotations

import re
from glob import glob
from pathlib import Path

import click
import pytest

from fidtool.cli import hints
from support.command_line import Run
from support.inside import COMMANDS

LINES = {
    "real fake": "compute real fake",
    "real/ fake/ --device cuda:0": "compute real/ fake/ --device cuda:0",
    "--dims=64 real fake": "compute --dims=64 real fake",
    "evaluate real/ fake/": "compute real/ fake/",
    "computee real fake": "compute real fake",
    "stat real -o a.npz": "stats real -o a.npz",
    "calc --images=fake --ref=real --num=5 --batch 64": ("compute real fake --num=5 --protocol edm --batch-size 64"),
    "fid.py calc --images fake --ref s.npz": "compute s.npz fake --protocol edm --metrics fid",
    "ref --data=real --dest=a.npz": "stats real --protocol edm --output a.npz",
    "python fid.py ref --data real --dest a.npz": "stats real --protocol edm --output a.npz --metrics fid",
    "calc --images=fake --num=5 --ref=https://host/a.npz": "compute https://host/a.npz fake --num=5 --protocol edm",
    "torchrun --standalone --nproc_per_node=8 fid.py calc --images=fake --ref=https://host/a.npz": (
        "compute https://host/a.npz fake --protocol edm --metrics fid"
    ),
    "--fid --kid --input1 fake --input2 real": ("compute real fake --protocol torch-fidelity --metrics fid,kid"),
    "fidelity --prc --input1 fake --input2 real --save-cpu-ram": (
        "compute real fake --protocol torch-fidelity --nearest-k 3 --ties inclusive --metrics prdc"
    ),
    "fidelity -b 8 -i -f -k --input1 fake --input2 real --samples-find-ext png": (
        "compute real fake --protocol torch-fidelity --batch-size 8 --metrics is,fid,kid"
    ),
    "compute real fake --metric fid,kid -n 3 -d cpu": "compute real fake --num 3 --device cpu --metrics fid,kid",
    "--path1 real --path2 fake": "compute real fake",
    "calculate_metrics.py ref --data=real --dest=x.pkl": "stats real --protocol edm --output x.npz",
    "fidelity --isc --input1 fake --input2 real --verbose": (
        "compute real fake --protocol torch-fidelity --metrics is"
    ),
    "python -m pytorch_fid real fake --device cpu": "compute real fake --device cpu --protocol pytorch-fid",
    "--save-stats real a.npz": "stats real --output a.npz",
    "stats real a.npz --layout adm --images 10": "stats real --output a.npz --layout adm --images 10",
    "stats real a.npz": "stats real --output a.npz",
    "check fake real --num 3": "check fake --against real --num 3",
    "cleanfid --fdir1 fake --fdir2 real --mode legacy_tensorflow": "compute real fake --protocol legacy_tensorflow",
    "evaluator.py s.npz fake": "compute s.npz fake --preset adm",
    "calc_metrics --metrics=fid50k_full,kid50k_full real fake": (
        "compute real fake --protocol stylegan --metrics fid,kid"
    ),
    "calc_metrics.py --metrics=pr50k3_full --data=real fake": "compute real fake --protocol stylegan --metrics prdc",
    "fidelity real fake --cpu --isc-splits=5 --silent": (
        "compute real fake --protocol torch-fidelity --device cpu --is-splits 5 --quiet"
    ),
    "--json -q compute real fake --num 3": "compute --json -q real fake --num 3",
    "--json metrics": "metrics --json",
    "fid real fake": "compute real fake --metrics fid",
    "kid real fake --kid-subset-size 5": "compute real fake --kid-subset-size 5 --metrics kid",
    "html real fake": "compute real fake --report report.html",
    "compute --real_path real --fake-dir fake --batch_size 4": "compute real fake --batch-size 4",
    "compute real fake --workers 2 --fid --seed=3": "compute real fake --seed=3 --num-workers 2 --metrics fid",
    "compute --images fake --ref real --protocol=clean": "compute real fake --protocol=clean",
    "compute s.npz:mu --fake fake": "compute s.npz:mu fake",
    "compute real fake --metrics fid kid": "compute real fake --metrics fid,kid",
    "compute --metrics fid, kid, is real fake": "compute real fake --metrics fid,kid,is",
    "compute --metrics=fid Inception-Score real fake": "compute real fake --metrics fid,Inception-Score",
    "compute real fake --metrics fid mine.py:Shift": "compute real fake --metrics fid,mine.py:Shift",
    "stats real -o a.npz --metrics fid kid": "stats real -o a.npz --metrics fid,kid",
    "compute real fake --value-range 0 1 --metrics kid": "compute real fake --value-range 0,1 --metrics kid",
    "check --value-range=-1 1 real": "check --value-range=-1,1 real",
    "stats real -o a.npz --value-range -1 1": "stats real -o a.npz --value-range -1,1",
}
"""What was typed, and what the error suggests. ``real``, ``fake``, ``s.npz`` and ``mine.py`` exist."""
OTHERS = {
    "real fakke": "no such file or folder: fakke (did you mean fake?); to compare two sets write `fidtool",
    "calc --images=fake --ref=gone.npz": "no such file or folder: gone.npz; to compare two sets",
    "compute gone fake --batch 4": "no such file or folder: gone; to compare two sets",
    "--gpu 0 --fid": "Missing argument 'REAL'; to compare two sets",
    "calc_metrics.py --network=a.pkl --data=real": "No such option",
    "calc_metrics --metrics=ppl2_wend,fid50k real fake": "unknown metric 'ppl2_wend'; to compare two sets",
    "stat real": "did you mean 'stats'?",
    "reff": "did you mean 'refs'?",
    "doctor": "the commands are cache, check",
    "gate --help": "the commands are cache, check",
    "tables -h": "did you mean 'table'?",
    "html a.json": "no command 'html': `fidtool compute REAL FAKE --report FILE.html` writes a page, `fidtool report",
    "version": "no command 'version': `fidtool --version` shows the version",
    "--install-completion": 'write `eval "$(fidtool completion bash)"` in ~/.bashrc',
    "completion": "Missing argument 'SHELL'",
    "completion tcsh": "'tcsh' is not one of 'bash', 'zsh', 'fish'",
    "check s.npz mine.py real fake": "(mine.py real fake): pass a folder, or quote the wildcard (see",
    "--verison": "--version",
    "--help-all": "No such option '--help-all'; did you mean --help?",
    "cache --older 30d": "--older-than",
    "compute real fake --timeout x": "not a valid float",
    "compute real fake --nums 3 --metrics kid": "error: No such option '--nums'; did you mean --num? (see",
    "check --value-range 0 1 gone": "separated by a comma: no such file or folder: gone (see",
    "compute real": "Missing argument 'FAKE...' (see",
    "compute": "error: Missing argument 'REAL'; to compare two sets write `fidtool compute REAL FAKE` (see",
    "compute --metrics fid kid gone": "metrics are separated by commas",
}
SIMILAR = {
    "compute reall/ fake": "reall/; did you mean real/?",
    "compute REAL fake": "REAL; did you mean real?",
    "compute subb/real fake": "subb/real; did you mean sub/real?",
    "check s.np": "s.np; did you mean s.npz?",
    "stats nothing -o a.npz": "nothing",
}


@pytest.fixture
def sets(tmp_path: Path) -> None:
    for name in ("real", "fake", "sub/real"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("s.npz", "mine.py"):
        (tmp_path / name).touch()


@pytest.mark.parametrize("typed", LINES)
@pytest.mark.usefixtures("sets")
def test_the_line_that_does_what_was_meant(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert re.search(rf": write `fidtool {re.escape(LINES[typed])}` \(see `", outcome.error)


@pytest.mark.parametrize("typed", OTHERS)
@pytest.mark.usefixtures("sets")
def test_no_line_is_suggested_that_would_fail(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert OTHERS[typed] in outcome.error
    assert ": write `fidtool" not in outcome.error
    assert outcome.error.endswith(" --help`)")


@pytest.mark.parametrize("others", [(), ("--metrics", "fid,kid"), ("--num_fake", 3)])
@pytest.mark.usefixtures("sets")
def test_a_value_that_is_no_choice(here: Run, others: tuple[str, ...]) -> None:
    """The line that follows the habits of other tools has the same problem, which is said once."""
    for flag, value in (("--frames", "every"), ("--ties", "x"), ("--num", "x")):
        error = here("compute", "real", "fake", *others, flag, value).error
        start = (
            "No such option '--num_fake'; did you mean --num-fake?"
            if "--num_fake" in others
            else "Invalid value for '--"
        )
        assert error.startswith(f"error: {start}")
        assert error.endswith(" (see `fidtool compute --help`)")
        assert ("--num_fake" in others, error.count("not "), "write" in error) in ((True, 0, False), (False, 1, False))


def test_files_in_place_of_a_wildcard_are_not_all_repeated(here: Run, tmp_path: Path) -> None:
    error = here("stats", *[f"real/{number}.png" for number in range(1000)], "-o", "real.npz").error
    assert error.endswith(".png): pass a folder, or quote the wildcard (see `fidtool stats --help`)")
    assert len(error) < 500


@pytest.mark.parametrize("typed", SIMILAR)
@pytest.mark.usefixtures("sets")
def test_a_path_like_an_existing_one(here: Run, typed: str) -> None:
    assert here(*typed.split()).error == f"error: no such file or folder: {SIMILAR[typed]}"


def test_a_suggested_line_is_quoted_for_a_shell(here: Run, tmp_path: Path) -> None:
    for name in ("real set", "fake;set"):
        (tmp_path / name).mkdir()
    assert "write `fidtool compute 'real set' 'fake;set'` (see" in here("real set", "fake;set").error


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([], "compute real fake` (see"),
        (["/dev/nvidia0"], "compute real fake --device cuda:1` (see"),
    ],
)
@pytest.mark.usefixtures("sets")
def test_a_gpu_is_named_where_there_is_one(
    here: Run, monkeypatch: pytest.MonkeyPatch, gpus: list[str], said: str
) -> None:
    monkeypatch.setattr(hints, "glob", lambda pattern: gpus if pattern.startswith("/dev") else glob(pattern))
    assert said in here("compute", "--gpu", "1", "real", "fake").error


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
        "out/fid.TXT": "out/fid.json",
        "fid.v2.html": "fid.v2.json",
        "fid.png": "fid.json",
        "fid.npz": "fid.json",
        "fid.json.gz": "fid.json",
    }.items(),
)
def test_a_result_of_another_suffix(here: Run, tmp_path: Path, name: str, instead: str) -> None:
    outcome = here("compute", "nowhere", "neither", "-o", name)
    assert (outcome.status, outcome.stdout) == (2, "")
    others = "write pages with --report, plots with --plot and statistics with `fidtool stats`"
    ends = ".json, .csv, .md, .tex"
    assert outcome.error == f"error: --output {name}: the name must end in {ends}: choose {instead}, or {others}"
    assert not (tmp_path / name).exists()


def test_results_without_a_suffix(here: Run, tmp_path: Path) -> None:
    """What follows the dot of cfg1.5 is no suffix, and - is stdout."""
    for name in ("plain", "cfg1.5", "fid.JSON"):
        assert here("compute", "nowhere", "neither", "-q", "-o", name).stdout == ""
        assert '"no such file or folder: nowhere"' in (tmp_path / name).read_text()
    for command in (("compute", "nowhere", "neither"), ("stats", "nowhere")):
        assert "must be a file on this machine, not results/" in here(*command, "-o", "results/").error
    outcome = here("compute", "nowhere", "neither", "-o", "-")
    assert outcome.json["exit"]["code"] == 2
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("command", ["compute", "stats", "check"])
def test_torchrun_takes_a_spelling_of_each_option(command: str) -> None:
    """It refuses an argument that could abbreviate several of its own options, even after the program's name."""
    from torch.distributed.run import get_args_parser

    others = get_args_parser()._option_string_actions
    for option in COMMANDS[command].params:
        if isinstance(option, click.Option) and option.name != "help_all":
            taken = [flag for flag in option.opts if not any(other.startswith(flag) for other in others)]
            assert taken, option.opts
