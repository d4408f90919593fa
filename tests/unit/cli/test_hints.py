"""Errors about mistyped command lines: they suggest the probable intention, and no work is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run

TORCHRUN = "start one process per GPU: `torchrun --nproc-per-node=N -m fidtool ...`"
WITHOUT_FLAGS = "sets are arguments without flags, as in `fidtool compute REAL FAKE`"

COMMANDS = {
    "real/ fake/": "no command 'real/': to compare two sets write `fidtool compute real/ fake/`",
    "real/ fake/ --device cuda:0": (
        "no command 'real/': to compare two sets write `fidtool compute real/ fake/ --device cuda:0`"
    ),
    "real fake": "no command 'real': to compare two sets write `fidtool compute real fake`",
    "real.npz": "no command 'real.npz': to compare two sets write `fidtool compute REAL FAKE`",
    "here there": "no command 'here': to compare two sets write `fidtool compute here there`",
    "computee": "no command 'computee': did you mean 'compute'?",
    "stat real/ -o real.npz": "no command 'stat': did you mean 'stats'?",
    "evaluate real/ fake/": "no command 'evaluate'; the commands are ",
    "--save-stats real/ real.npz": "no such option --save-stats: use `fidtool stats IMAGES -o FILE.npz`",
    "--device cuda real/ fake/": (
        "no such option --device before a command: the command comes first, as in "
        "`fidtool compute --device cuda real/ fake/`"
    ),
    "--gpu real/ fake/": (
        "no such option --gpu: write `fidtool compute REAL FAKE`, and after it --device cuda; on several GPUs start "
        "one process per GPU with torchrun"
    ),
    "--path1 real/ --path2 fake/": f"no such option --path1: {WITHOUT_FLAGS}",
    "help": "no command 'help': write `fidtool --help`",
    "help compute": "no command 'help': write `fidtool compute --help`",
    "--verison": "no such option --verison: did you mean --version?",
    "--compute real/ fake/": "no such option --compute: did you mean 'compute'?",
    "-v": "no such option -v: did you mean --version?",
    "--nonsense": "no such option --nonsense (",
}
FLAGS = {
    "compute a b --gpu": "--gpu: use --device cuda; on several GPUs start one process per GPU with torchrun",
    "compute a b --cuda": "--cuda: use --device cuda; on several GPUs start one process per GPU with torchrun",
    "compute a b --gpus 8": f"--gpus: {TORCHRUN}",
    "compute a b --gpus=8": f"--gpus: {TORCHRUN}",
    "compute a b --dataset-res 1024": "--dataset-res: published statistics have names, such as clean-fid:",
    "compute a b --dataset_res 1024": "--dataset_res: published statistics have names, such as clean-fid:",
    "compute --path1 a --path2 b": f"--path1: {WITHOUT_FLAGS}",
    "compute a b --batch 4": "--batch: use --batch-size",
    "compute a b --bs 4": "--bs: use --batch-size",
    "compute a b --batch_size 4": "--batch_size: did you mean --batch-size?",
    "compute a b --batchsiez 4": "--batchsiez: did you mean --batch-size?",
    "compute a b --workers 4": "--workers: use --num-workers",
    "compute a b --model x": "--model: use --extractor",
    "compute a b --extract x": "--extract: did you mean --extractor?",
    "compute a b --save-stats": "--save-stats: use `fidtool stats IMAGES -o FILE.npz`",
    "stats a --mode clean": "--mode: use --protocol",
    "compute a b -v": "-v: progress, timings and warnings are shown by default; --quiet hides progress and timings",
    "compute a b --nun 3": "--nun: did you mean --num?",
    "compute a b --nonsense": "--nonsense (",
    "check a --gpu": "--gpu (",
    "cache --older 30d": "--older: did you mean --older-than?",
    "cache -v": "-v (",
}
METRICS = {
    "compute a b --metrics fid kid": "fid,kid",
    "compute --metrics fid kid prdc a b": "fid,kid,prdc",
    "compute a b --metrics fid, kid, is": "fid,kid,is",
    "compute a b --metrics=fid,sfid kid": "fid,sfid,kid",
    "stats a -o a.npz --metrics fid kid": "fid,kid",
    "compute a b --metrics precision recall": "precision,recall",
    "compute a b --metrics FID KID": "FID,KID",
    "compute a b --metrics fid all": "fid,all",
    "compute a b --metrics fid Inception-Score": "fid,Inception-Score",
    "compute a b --metrics fid mine.py:Shift": "fid,mine.py:Shift",
}


@pytest.mark.parametrize("typed", COMMANDS)
def test_an_unknown_command(here: Run, tmp_path: Path, typed: str) -> None:
    (tmp_path / "real").mkdir()
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.error.startswith(f"error: {COMMANDS[typed]}")
    assert outcome.error.endswith("(see `fidtool --help`)")


def test_what_was_typed_is_quoted(here: Run) -> None:
    assert "write `fidtool compute 'my real/' 'it'\"'\"'s/'`" in here("my real/", "it's/").error


@pytest.mark.parametrize("typed", FLAGS)
def test_an_unknown_flag(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.error.startswith(f"error: no such option {FLAGS[typed]}")
    assert outcome.error.endswith(f"(see `fidtool {typed.split()[0]} --help`)")


@pytest.mark.parametrize("typed", METRICS)
def test_metrics_without_commas(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert f"error: metrics are separated by commas: write --metrics {METRICS[typed]} (see" in outcome.error


def test_a_set_can_have_the_name_of_a_metric(here: Run, tmp_path: Path) -> None:
    (tmp_path / "kid").mkdir()
    assert here("compute", "--metrics", "fid", "kid", "nowhere").error == "error: no such file or folder: nowhere"
    assert here("compute", "kid", "is").error == "error: no such file or folder: is"
    assert here("compute", "--metrics", "fid", "--", "is", "fid").error == "error: no such file or folder: is"
    assert here("compute", "kid", "--metrics", "fid", "b.npz:is").error == "error: no such file or folder: b.npz:is"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num", "0"], "--num must be at least 1, not 0"),
        (["--num-images", "-3"], "--num must be at least 1, not -3"),
        (["--max-skip", "1.5"], "--max-skip must be from 0 to 1, not 1.5"),
        (["--timeout", "1e9"], "--timeout must be from 1 to 2592000, not 1e9"),
        (["--feature-step", "101"], "--feature-step must be from -100 to 100, not 101"),
        (["--fail-above", "nan"], "--fail-above must be at least 0, not nan"),
    ],
)
def test_a_value_outside_its_limits(here: Run, flags: list[str], said: str) -> None:
    outcome = here("compute", "real", "fake", *flags)
    assert (outcome.status, outcome.error) == (2, f"error: {said} (see `fidtool compute --help`)")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("check a b", "unexpected second argument b: to compare with real images, pass --against REAL"),
        ("stats a a.npz", "unexpected second argument a.npz: the file to write is -o FILE.npz"),
        ("compute a b --fail-above", "Option '--fail-above' requires an argument"),
    ],
)
def test_wrong_numbers_of_arguments(here: Run, typed: str, said: str) -> None:
    outcome = here(*typed.split())
    command = typed.split()[0]
    assert (outcome.status, outcome.error) == (2, f"error: {said} (see `fidtool {command} --help`)")


@pytest.mark.parametrize("form", ["table", "lines"])
def test_two_formats(here: Run, form: str) -> None:
    outcome = here("compute", "real", "fake", "--json", "--format", form)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.error == f"error: --json and --format {form} contradict each other: pass one of them"


def test_short_flags(here: Run, tmp_path: Path) -> None:
    """They equal the long ones: the failed run writes its JSON to the file, and only the error to stderr."""
    outcome = here("compute", "nowhere", "neither", "-q", "-o", "out.json")
    assert outcome.stderr == "error: no such file or folder: nowhere\n"
    assert '"no such file or folder: nowhere"' in (tmp_path / "out.json").read_text()
