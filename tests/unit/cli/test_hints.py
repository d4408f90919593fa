"""Errors about mistyped command lines: they suggest the probable intention, and no work is
started.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from fidtool.cli import hints
from support.command_line import Run
from support.inside import COMMANDS

COMPARED = "; to compare two sets, write `fidtool compute REAL FAKE` (see"
HINTS = {
    "real fake": f"no command 'real'{COMPARED}",
    "real/ fake/ --device cuda:0": f"no command 'real/'{COMPARED}",
    "--dims=64 real fake": f"No such option '--dims'{COMPARED}",
    "https://host/a.npz fake -h": f"no command 'https://host/a.npz'{COMPARED}",
    "--json -q compute real fake --num 3": "No such option '--json'; put options after the command "
    "(see",
    "--json metrics": "No such option '--json'; put options after the command (see",
    "evaluate real/ fake/": "no command 'evaluate': in fidtool, use `fidtool compute REAL FAKE` "
    "instead of evaluate (see",
    "calc --images=fake --ref=gone.npz --num=5 --batch 64": "'calc': in fidtool, use "
    "`fidtool compute REAL FAKE --protocol edm` instead of calc, FAKE instead of --images, REAL "
    "instead of --ref, --batch-size instead of --batch (see",
    "calculate_metrics.py ref": "in fidtool, use `fidtool compute REAL FAKE --protocol edm` "
    "instead of calculate_metrics.py (see",
    "calc_metrics --network=a.pkl": "in fidtool, use `fidtool compute REAL FAKE --protocol "
    "stylegan` instead of calc_metrics (see",
    "ref --dest=a.npz": "in fidtool, use `fidtool stats REAL --protocol edm --output "
    "FILE.npz` instead of ref, --output instead of --dest",
    "torchrun --nproc_per_node=8 fid.py": "use `torchrun --nproc-per-node=8 -m fidtool "
    "compute REAL FAKE` instead of torchrun",
    "--fid --input1 fake --input2 real": "No such option '--fid': in fidtool, use --metrics fid "
    "instead of --fid, FAKE instead of --input1",
    "--device cpu --fid real fake": "No such option '--device': in fidtool, use --metrics "
    "fid instead of --fid (see",
    "real fake -n 3": "no command 'real': in fidtool, use --num instead of -n (see",
    "--save-stats real a.npz": "in fidtool, use `fidtool stats REAL --output FILE.npz` "
    "instead of --save-stats",
    "fid real fake": "in fidtool, use `fidtool compute REAL FAKE --metrics fid` instead of fid",
    "compute real fake --metric fid,kid": "No such option '--metric': in fidtool, use "
    "--metrics instead of --metric (see",
    "stats real --batch 4 --images 9": "No such option '--batch': in fidtool, use "
    "--batch-size instead of --batch (see",
    "compute gone fake --batch 4": "No such option '--batch': in fidtool, use --batch-size instead of "
    "--batch (see",
    "compute --real_path real --fake-dir fake": "use REAL instead of --real_path (see `fidtool compute",
    "compute real fake --gpu 0": "No such option '--gpu': in fidtool, use --device cuda:0 instead of --gpu (see",
    "compute real fake --nums 3 --gpu 0": "No such option '--nums'; did you mean --num? (see",
    "html a.json": "`fidtool compute REAL FAKE --report FILE.html`, or `fidtool report "
    "RESULT.json` for a saved result",
    "version": "no command 'version': in fidtool, use `fidtool --version` instead of version",
    "--install-completion": 'use `eval "$(_FIDTOOL_COMPLETE=bash_source fidtool)"` in ~/.bashrc instead of --install-completion',
    "real fakke": "no command 'real'; to compare two sets, write `fidtool compute REAL FAKE` (see",
    "--device cpu real": "No such option '--device'; to compare two sets, write `fidtool compute "
    "REAL FAKE` (see",
    "real fake --foo": "no command 'real'; to compare two sets,",
    "computee real fake": "no command 'computee'; did you mean compute? (see",
    "stat real": "did you mean stats?",
    "reff": "did you mean refs?",
    "doctor": "the commands are cache, check",
    "gate --help": "the commands are cache, check",
    "tables -h": "did you mean table?",
    "check s.npz mine.py real fake": "(mine.py real fake): pass a folder, or quote the wildcard "
    "(see",
    "--verison": "--version",
    "cache --clean": "--clear",
    "compute real fake --timeout x": "not a valid float",
    "compute real fake --nums 3 --metrics kid": "error: No such option '--nums'; did you mean "
    "--num? (see",
    "compute real": "Missing argument 'FAKE...' (see",
    "compute": "error: Missing argument 'REAL' (see",
    "stats real a.npz": "Missing option '--output' / '-o': write `fidtool stats real -o a.npz` "
    "(see",
    "stats real/": "Missing option '--output' / '-o': write `fidtool stats real/ -o real.npz` (see",
    "stats real fake -o a.npz": "Got unexpected extra argument (fake): write `fidtool stats real "
    "-o real.npz; fidtool stats fake -o fake.npz` (see",
    "stats real --timeout x": "'x' is not a valid float (see",
    "stats real fake": "Missing option '--output' / '-o': write `fidtool stats real -o real.npz; "
    "fidtool stats fake -o",
    "check real fake": "Got unexpected extra argument (fake): write `fidtool check real "
    "--against fake` (see",
    "history s.npz mine.py": "Got unexpected extra argument (mine.py): write `fidtool table "
    "s.npz mine.py` (see",
    "history s.npz gone": "Got unexpected extra argument (gone) (see",
    "compute real fake --fp16": "No such option '--fp16': in fidtool, use --precision fp16 "
    "instead of --fp16 (see",
    "compute real fake --half": "in fidtool, use --precision fp16 instead of --half (see",
    "compute real fake --no-diagnose": "No such option '--no-diagnose'; did you mean "
    "--no-diagnosis? (see",
}
"""What was typed, and what the error says. ``real``, ``fake``, ``s.npz`` and ``mine.py`` exist."""
SPACES = {
    "compute real fake --metrics fid kid": "kid, which is a metric: separate metrics by commas, "
    "--metrics fid,kid",
    "compute --metrics fid kid prdc real fake": "separate metrics by commas, --metrics "
    "fid,kid,prdc",
    "compute --metrics fid, kid real fake": "unknown metric ''; choose from fid, kid",
    "stats real -o a.npz --metrics fid kid": "extra argument (kid): separate metrics by commas, "
    "`--metrics fid,kid`",
    "compute real fake --value-range 0 1": "must be two increasing numbers, the values of black and white, "
    "such as 0,1",
    "check --value-range=-1 1 real": "Got unexpected extra argument (real)",
}
"""Values that were separated by spaces, and what the error says."""
SIMILAR = {
    "compute reall/ fake": "reall/; did you mean real/?",
    "compute REAL fake": "REAL; did you mean real?",
    "compute reall fake": "reall; did you mean real?",
    "compute subb/real fake": "subb/real; did you mean sub/real?",
    "check s.np": "s.np; did you mean s.npz?",
    "stats nothing -o a.npz": "nothing",
}


@pytest.fixture
def sets(tmp_path: Path) -> None:
    for name in ("real", "fake", "sub/real"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("s.npz", "mine.py", "real_lab.npz"):
        (tmp_path / name).touch()


@pytest.mark.parametrize("typed", HINTS)
@pytest.mark.usefixtures("sets")
def test_a_mistyped_line_has_a_hint(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert HINTS[typed] in outcome.error
    assert outcome.error.endswith(" --help`)")


@pytest.mark.parametrize("typed", SPACES)
@pytest.mark.usefixtures("sets")
def test_values_separated_by_spaces_are_refused(here: Run, typed: str) -> None:
    outcome = here(*typed.split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert SPACES[typed] in outcome.error


def test_habits_of_other_tools_are_named_in_words_of_fidtool() -> None:
    """No own flag or command is taken for that of another tool, and each answer is one that fidtool
    takes.
    """
    own = {flag for parameter in COMMANDS["compute"].params for flag in parameter.opts}
    # Torchrun's, and those without a command.
    flags = own | {
        "--nproc-per-node",
        "-m",
        "--version",
        "--help",
    }
    for word, meaning in hints.OTHER_TOOLS_NAMES.items():
        assert word not in own
        assert word not in COMMANDS
        assert flags.issuperset(re.findall(r"(?<=[ `])--?[a-z-]+", f" {meaning}"))
        assert COMMANDS.keys() >= set(re.findall(r"(?<=fidtool )[a-z]+", meaning))


@pytest.mark.parametrize("others", [(), ("--metrics", "fid,kid"), ("--num_fake", 3)])
@pytest.mark.usefixtures("sets")
def test_a_value_that_is_no_choice(here: Run, others: tuple[str, ...]) -> None:
    """The problem is said once, and no line is suggested that has it as well."""
    for flag, value in (("--frames", "every"), ("--ties", "x"), ("--num", "x")):
        error = here("compute", "real", "fake", *others, flag, value).error
        start = (
            "No such option '--num_fake'; did you mean --num-fake?"
            if "--num_fake" in others
            else "Invalid value for '--"
        )
        assert error.startswith(f"error: {start}")
        assert error.endswith(" (see `fidtool compute --help`)")
        assert ("--num_fake" in others, error.count("not "), "write" in error) in (
            (True, 0, False),
            (False, 1, False),
        )


def test_files_in_place_of_a_wildcard_are_not_all_repeated(here: Run, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file in files:
        file.touch()
    advice = "Missing option '--output' / '-o': pass a folder, or quote the wildcard"
    assert advice in here("stats", *files).error
    error = here("stats", *[f"real/{number}.png" for number in range(1000)], "-o", "real.npz").error
    assert error.endswith(
        ".png): pass a folder, or quote the wildcard (see `fidtool stats --help`)"
    )
    assert len(error) < 500


@pytest.mark.parametrize("typed", SIMILAR)
@pytest.mark.usefixtures("sets")
def test_a_path_like_an_existing_one(here: Run, typed: str) -> None:
    assert here(*typed.split()).error == f"error: no such file or folder: {SIMILAR[typed]}"


def test_a_set_can_have_the_name_of_a_metric(here: Run, tmp_path: Path) -> None:
    (tmp_path / "kid").mkdir()
    assert (
        here("compute", "--metrics", "fid", "kid", "nowhere").error
        == "error: no such file or folder: nowhere"
    )
    assert (
        here("compute", "--metrics", "fid", "--", "is", "fid").error
        == "error: no such file or folder: is"
    )
    assert (
        here("compute", "kid", "--metrics", "fid", "b.npz:is").error
        == "error: no such file or folder: b.npz:is"
    )


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
    given = (
        "--num",
        3,
        "--num-images",
        4,
        "--recursive",
        "--no-recursive",
        "--metrics",
        "fid",
        "--metrics",
        "kid",
    )
    config = here("compute", "nowhere", "neither", *given, "--json").json["run"]["config"]
    assert config == {"num": 4, "recursive": False, "metrics": ["fid", "kid"]}


def test_short_flags(here: Run, tmp_path: Path) -> None:
    """They equal the long ones: the failed run writes its JSON to the file, and only the error to
    stderr.
    """
    outcome = here("compute", "nowhere", "neither", "-q", "-o", "out.json")
    assert outcome.stderr == "error: no such file or folder: nowhere\n"
    assert '"no such file or folder: nowhere"' in (tmp_path / "out.json").read_text()
    assert here("compute", "nowhere", "neither", "-o").error.endswith(
        "(see `fidtool compute --help`)"
    )


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
    assert (
        outcome.error
        == f"error: --output {name}: the name must end in {ends}: choose {instead}, or {others}"
    )
    assert not (tmp_path / name).exists()


def test_results_without_a_suffix(here: Run, tmp_path: Path) -> None:
    """What follows the dot of cfg1.5 is no suffix, and - is stdout."""
    for name in ("plain", "cfg1.5", "fid.JSON"):
        assert here("compute", "nowhere", "neither", "-q", "-o", name).stdout == ""
        assert '"no such file or folder: nowhere"' in (tmp_path / name).read_text()
    for command in (("compute", "nowhere", "neither"), ("stats", "nowhere")):
        assert (
            "must be a file on this machine, not results/" in here(*command, "-o", "results/").error
        )
    outcome = here("compute", "nowhere", "neither", "-o", "-")
    assert outcome.json["exit"]["code"] == 2
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("command", ["compute", "stats", "check"])
def test_torchrun_takes_a_spelling_of_each_option(command: str) -> None:
    """It refuses an argument that could abbreviate several of its own options, even after the
    program's name.
    """
    from torch.distributed.run import get_args_parser

    others = get_args_parser()._option_string_actions
    for option in COMMANDS[command].params:
        if isinstance(option, click.Option) and option.name != "help_all":
            taken = [
                flag for flag in option.opts if not any(other.startswith(flag) for other in others)
            ]
            assert taken, option.opts
