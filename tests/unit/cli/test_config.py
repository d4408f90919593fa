"""Settings from ``[tool.fidtool]`` in pyproject.toml and from ``--config``: what is read, refused,
and overridden.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import fidtool
from fidtool.cli import config
from fidtool.cli.options import Command
from fidtool.settings.settings import ALL_SETTINGS, Settings
from support.command_line import Run
from support.inside import COMMANDS

SECTION = "[tool.fidtool]"
SETS = {
    "compute": ["nowhere", "neither"],
    "stats": ["nowhere", "-o", "x.npz"],
    "check": ["nowhere"],
}
"""The arguments of the commands that read a file."""


@pytest.fixture
def written(here: Run, tmp_path: Path) -> Callable[..., Run]:
    """Return a function that writes settings to pyproject.toml in the working directory."""

    def write(text: str, name: str = "pyproject.toml", section: str = f"{SECTION}\n") -> Run:
        (tmp_path / name).write_text(section + text)
        return here

    return write


def dumped(run: Run, *arguments: object) -> list[str]:
    """Return the lines that ``--dump-config`` prints, without the first."""
    name, *flags = arguments or ["compute"]
    outcome = run(name, *SETS[str(name)], *flags, "--dump-config")
    assert (outcome.status, outcome.stderr) == (0, "")
    first, *lines = outcome.stdout.splitlines()
    assert first == SECTION
    return lines


REFUSED = {
    'metrcs = "fid"': "metrcs in pyproject.toml is not a setting: did you mean metrics?",
    "Num = 3": "Num in pyproject.toml is not a setting: did you mean num?",
    "diagnosis = false": "diagnosis in pyproject.toml is not a setting: did you mean diagnose?",
    "qwxyz = 3": "qwxyz in pyproject.toml is not a setting: see `fidtool guide config`",
    '"a\\u001bb" = 3': "a\\x1bb in pyproject.toml is not a setting: see `fidtool guide config`",
    "[tool.fidtool.compute]\nnum = 5": "compute in pyproject.toml is not a setting: ",
    'config = "x"': "config in pyproject.toml is not a setting: ",
    'real = "real/"': "real in pyproject.toml is not a setting: see `fidtool guide config`",
    "quiet = true": "quiet in pyproject.toml is not a setting: see `fidtool guide config`",
    'num = "5"': "num in pyproject.toml must be an integer, not '5'",
    "num = 5.5": "num in pyproject.toml must be an integer, not 5.5",
    "num = true": "num in pyproject.toml must be an integer, not True",
    "num = 0": "num in pyproject.toml must be at least 1, not 0",
    "num = {a = 1}": "num in pyproject.toml must be an integer, not {'a': 1}",
    "num = 2020-01-01": "num in pyproject.toml must be an integer, not datetime.date(2020, 1, 1)",
    "num = 3\nbatch_size = 4\nbatch-size = 5": "batch-size in pyproject.toml is set twice",
    "dims = 65": "dims in pyproject.toml must be one of 64, 192, 768, 2048, not 65",
    'cache = "no"': "cache in pyproject.toml must be True or False, not 'no'",
    "fail_above = nan": "fail_above in pyproject.toml must be at least 0, not nan",
    "kid_subset_size = 0": "kid_subset_size in pyproject.toml must be at least 2, not 0",
    "log = 2020-01-01": "log in pyproject.toml must be a string or a list of strings, not "
    "datetime.date(2020, 1, 1)",
    'metric_option = ["a.b=3"]': "metric_option in pyproject.toml is not a setting: see `fidtool "
    "guide config`",
    'extractor = ["a"]': "extractor in pyproject.toml: unknown network 'a'",
    "extractor = 3": "extractor in pyproject.toml: --extractor must be a string, a "
    "fidtool.Network, a torch.nn.Module or a list",
    'extractor = [{name = "dinov2", way = 3}]': "extractor in pyproject.toml: --extractor: way=3 "
    "is not a setting of a network; choose from name",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_mistake_is_named_with_its_key_and_file(written: Callable[..., Run], text: str) -> None:
    for name, sets in SETS.items():
        outcome = written(text)(name, *sets)
        assert outcome.status == 2
        assert outcome.error.startswith(f"error: {REFUSED[text]}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('protocol = "cleann"', "unknown protocol 'cleann'; did you mean clean"),
        ('metrics = ["fid", "kidd"]', "unknown metric 'kidd'; did you mean kid?"),
        ("metrics = []", "--metrics is empty"),
        ("metrics = 3", "--metrics must be a string or a list of metrics, not 3"),
        ("device = 3", "--device must be a string"),
        ('crop = "adm"', "--crop must be a crop"),
        ("value_range = [1, 0]", "--value-range must be two increasing numbers"),
        ('metrics = "kid"\nuncertainty = true', "--uncertainty applies to the metric fid"),
        ('metrics = "kid"\nfail_above = 3', "--fail-above limits none of the requested metrics"),
    ],
)
def test_what_the_settings_refuse_together_names_the_file_too(
    written: Callable[..., Run], text: str, words: str
) -> None:
    key = text.splitlines()[-1].split()[0]
    error = written(text)("compute", *SETS["compute"]).error
    assert words in error
    assert error.endswith(f" ({key} in pyproject.toml)")


ANY = [
    "-1",
    "true",
    "1.5",
    "nan",
    '""',
    '"x"',
    "[]",
    "[1]",
    "[[1]]",
    "{a = 1}",
    "2020-01-01",
    '"\\u0000"',
    '["a.b=3"]',
]
"""Values of each type of TOML."""


def test_no_value_is_a_traceback(written: Callable[..., Run]) -> None:
    for key, value in itertools.product(ALL_SETTINGS, ANY):
        written(f"{key} = {value}")
        with contextlib.suppress(fidtool.InputError):
            COMMANDS["compute"].main(["real", "fake", "--dump-config"], standalone_mode=False)


ACCEPTED = {
    'metrics = ["fid", "kid"]': 'metrics = ["fid", "kid"]',
    "dims = 64": "dims = 64",
    "cache = false": "cache = false",
    "diagnose = false": "diagnose = false",
    "kid-subset-size = 5": "kid_subset_size = 5",
    "value_range = [-1, 1]": "value_range = [-1, 1]",
    'value_range = "0,1.0"': 'value_range = "0,1.0"',
    "timeout = 60": "timeout = 60.0",
    "fail_above = 1e-7": "fail_above = 1e-07",
    "fail_above = inf": "fail_above = inf",
    'protocol = "CLEAN"': 'protocol = "CLEAN"',
    'checkpoint = "a \\"b\\\\ ü\\t"': 'checkpoint = "a \\"b\\\\ ü\\t"',
    'metrics = "fid"\nlog = ["tensorboard:a", "wandb:b"]\nstep = 3': None,
    'log = "tensorboard:a"': 'log = ["tensorboard:a"]',
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_values_are_those_of_python(written: Callable[..., Run], text: str) -> None:
    assert dumped(written(text)) == (ACCEPTED[text] or text).splitlines()


def test_flags_override_the_file_and_the_file_a_preset(written: Callable[..., Run]) -> None:
    run = written('preset = "adm"\nprotocol = "clean"\nnum = 5\nkid_subset_size = 9\nis_splits = 3')

    def recorded(*flags: object) -> dict[str, Any]:
        settings: dict[str, Any] = run("compute", "nowhere", "neither", "--json", *flags).json[
            "run"
        ]["config"]
        return settings

    assert recorded()["protocol"] == "clean"
    assert recorded()["preset"] == "adm"
    assert "sfid" in recorded()["metrics"], "the preset's"
    assert recorded()["is_splits"] == 3
    assert "is_split_size" not in recorded(), "the preset's other way to divide a set"
    flagged = recorded("--protocol", "tensorflow", "--num", 6)
    assert (flagged["protocol"], flagged["num"]) == ("tensorflow", 6)
    assert recorded("--is-split-size", 7)["is_split_size"] == 7
    assert "metrics" not in recorded("--metrics", "fid"), (
        "no need for the metric of a setting in the file"
    )
    assert recorded("--metrics", "kid")["kid_subset_size"] == 9
    assert recorded("--metrics", "kid", "--kid-subset-size", 8)["kid_subset_size"] == 8


def test_what_is_on_in_the_file_can_be_turned_off(written: Callable[..., Run]) -> None:
    run = written("uncertainty = true\nallow_mismatch = true")
    assert dumped(
        run, "compute", "--metrics", "kid", "--no-uncertainty", "--no-allow-mismatch"
    ) == [
        'metrics = "kid"',
        "allow_mismatch = false",
        "uncertainty = false",
    ]


def test_a_key_of_another_command_is_passed_over(written: Callable[..., Run]) -> None:
    run = written('num = 5\nmetrics = "kid"\nuncertainty = true\nkid_subset_size = 9')
    assert dumped(run, "check") == ["num = 5"]
    assert dumped(run, "stats") == ["num = 5", 'metrics = "kid"']


FLAGS: list[list[object]] = [
    [],
    ["--preset", "torch-fidelity", "--protocol", "clean", "--kid-subsets", 3],
    [
        "--metrics",
        "fid,kid",
        "--metrics",
        "is",
        "--is-splits",
        3,
        "--no-cache",
        "--value-range",
        "-1,1",
        "--weights",
        'x"y\\z',
    ],
    [
        "--num",
        7,
        "--seed",
        -3,
        "--uncertainty",
        "--fail-above",
        "1e-9",
        "--max-skip",
        0.1,
        "--on-error",
        "skip",
    ],
    ["--extractor", "a b.pt2", "--input-size", 3, "--value-range", "-1,1", "--report", "r.html"],
]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_dump_gives_the_same_settings(
    written: Callable[..., Run], tmp_path: Path, flags: list[object]
) -> None:
    """With ``--config``, also without the heading, or pasted into pyproject.toml unless they name
    code.
    """

    @click.command(cls=Command, settings=Settings)
    def command(settings: Callable[[], Settings]) -> Settings:
        return settings()

    run = written("")
    lines = dumped(run, "compute", *flags)
    expected = command.main([*map(str, flags)], standalone_mode=False)
    written("\n".join(lines), "own.toml")
    written("\n".join(lines), "plain.toml", section="")
    for name in ("own.toml", "plain.toml"):
        assert dumped(run, "compute", "--config", name) == lines
        assert command.main(["--config", name], standalone_mode=False) == expected
    if "a b.pt2" not in flags:
        written("\n".join(lines))
        assert dumped(run) == lines
        assert command.main([], standalone_mode=False) == expected


def test_the_nearest_file_with_settings_counts(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / ".git").touch()  # a file in a worktree
    (tmp_path / "pyproject.toml").write_text(f"{SECTION}\nseed = 3\n")
    (tmp_path / "a" / "pyproject.toml").write_text('[project]\nname = "fidtool-user"\n')
    (inner / "pyproject.toml").write_text("[broken, and about something else\n")
    monkeypatch.chdir(inner)
    assert dumped(here) == ["seed = 3"]
    outcome = here("compute", "nowhere", "neither", "--seed", 3)
    assert outcome.stderr.splitlines() == [outcome.error], "the file decided nothing"
    shown = here("compute", "nowhere", "neither").stderr.splitlines()
    assert shown[0] == "settings from ../../pyproject.toml: seed = 3"
    assert dumped(here, "compute", "--config", os.devnull) == []


def test_only_files_of_the_repository_count(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to the folders above it, such as /tmp; without a repository, to all above
    this one.
    """
    inner = tmp_path / "shared" / "project" / "code"
    inner.mkdir(parents=True)
    (tmp_path / "shared" / "pyproject.toml").write_text(f"{SECTION}\nseed = 3\n")
    monkeypatch.chdir(inner)
    assert dumped(here) == []
    (tmp_path / "shared" / "project" / ".git").mkdir()
    assert dumped(here) == []
    (tmp_path / "shared" / "project" / "pyproject.toml").write_text(f"{SECTION}\nseed = 4\n")
    assert dumped(here) == ["seed = 4"]


CODE = {
    'metrics = "fid,{0}:Own"': "metrics",
    'metrics = ["fid", "{0}:Own"]': "metrics",
    'extractor = "dinov2,{0}:made"': "extractor",
    'extractor = [{{name = "{0}:made", step = 3}}]': "extractor",
    'extractor = "own_package.module:made"': "extractor",
    'extractor = "program.pt2@size=32"': "extractor",
    'extractor = "program.pt"': "extractor",
    'metrics = "cmmd"\ncmmd-extractor = "{0}:made"': "cmmd_extractor",
}


@pytest.mark.parametrize("line", CODE)
def test_code_is_only_run_if_it_was_named(
    written: Callable[..., Run], tmp_path: Path, line: str
) -> None:
    """In the command or in the file of ``--config``. A repository may have been cloned a minute
    ago.
    """
    marker, code = tmp_path / "ran", tmp_path / "own.py"
    code.write_text(f"open({str(marker)!r}, 'w').close()\n")
    run, name = written(line.format(code)), CODE[line]
    for flags in ([], ["--dump-config"]):
        error = run("compute", *SETS["compute"], *flags).error
        assert error.startswith(f"error: {name} in pyproject.toml names code (")
        assert "`--config pyproject.toml`" in error
    assert not marker.exists()
    typed = ["--metrics", "fid"] if name == "metrics" else [f"--{name.replace('_', '-')}", "clip"]
    assert dumped(run, "compute", *typed), "the code in the file was replaced"
    assert "names code" not in run("compute", *SETS["compute"], "--config", "pyproject.toml").error
    assert marker.exists() == (name == "metrics"), "metrics are made first"


def test_files_that_cannot_be_read(here: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    errors = {
        "-": "- cannot be read: No such file or directory",
        "nowhere.toml": "nowhere.toml cannot be read: No such file or directory",
        str(tmp_path): f"{tmp_path} cannot be read: Is a directory",
        "pyproject.toml": f"pyproject.toml has no table {SECTION}",
        "https://user:pw@host/c.toml?key=1": "--config must be a file on this machine, not "
        "https://host/c.toml",
    }
    for name, error in errors.items():
        assert here("compute", "--config", name, "real", "fake").error == f"error: {error}"
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "pyproject.toml").symlink_to("nowhere")
    error = (
        "pyproject.toml cannot be read: No such file or directory; pass `--config /dev/null` to "
        "read no file"
    )
    assert here("compute", "real", "fake").error == f"error: {error}"
    assert "cannot be read" not in here("compute", "real", "fake", "--config", os.devnull).error
    (tmp_path / "pyproject.toml").unlink()
    contents = {
        b"[tool]\nfidtool = 3": f"pyproject.toml has no table {SECTION}",
        b"[[tool.fidtool]]\nnum = 3": f"pyproject.toml has no table {SECTION}",
        b"[fidtool": "pyproject.toml is not valid TOML: ",
        b"[tool.fidtool]\nnum = 3 # \xff": "pyproject.toml is not valid TOML: 'utf-8' codec "
        "can't decode byte 0xff",
        "[tool.fidtool]\nnum = 3".encode(
            "utf-16"
        ): "pyproject.toml is not valid TOML: 'utf-8' codec can't decode",
        b"fidtool = " + b"[" * 10_000: "pyproject.toml is not valid TOML: ",
    }
    for content, error in contents.items():
        (tmp_path / "pyproject.toml").write_bytes(content)
        assert here("stats", *SETS["stats"]).error.startswith(f"error: {error}")
        assert here("compute", "--help").status == 0
        assert here("compute", "--bad").error.startswith("error: No such option")
    (tmp_path / "pyproject.toml").write_bytes(b"\xef\xbb\xbf[tool.fidtool]\r\nnum = 3\r\n")
    assert dumped(here) == ["num = 3"], "a byte order mark, as Windows' editors write it"


def test_python_3_10_needs_tomli_only_for_a_file_with_settings(
    written: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert dumped(written("", section='[project]\nname = "fidtool-user"')) == []
    needed = "pyproject.toml needs Python 3.11 or the package tomli: pip install tomli"
    assert written("num = 3")("check", "nowhere").error == f"error: {needed}"


def test_a_run_says_where_its_settings_are_from(written: Callable[..., Run]) -> None:
    run = written('weights = "https://name:pa55word@host/w?key=pa55word"\nnum = 5')
    sets = ("compute", *SETS["compute"])
    told = 'settings from pyproject.toml: weights = "https://host/w"'
    assert run(*sets, "--seed", 3).stderr.splitlines()[0] == f"{told}, num = 5"
    assert run(*sets, "--num", 3).stderr.splitlines()[0] == told
    assert told in run(*sets, "--quiet").stderr, "it may change the values"
    assert run(*sets, "--json").json["run"]["config"]["num"] == 5
    assert "pa55word" not in run(*sets, "--dump-config").stdout


def test_python_does_not_read_it(written: Callable[..., Run]) -> None:
    written("qwxyz = 3")
    with pytest.raises(fidtool.InputError, match="nowhere"):
        fidtool.compute("nowhere", "neither")


def test_the_files_in_the_guide(written: Callable[..., Run]) -> None:
    page = (Path(fidtool.__file__).parent / "guide" / "config.md").read_text()
    for block in re.findall(r"```toml\n(.+?)```", page, re.DOTALL):
        assert len(dumped(written(block, section=""))) == len(block.splitlines()) - 1
