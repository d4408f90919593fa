"""Invalid input is refused in one line that names the problem, the location and the remedy, with
the right status.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bad_sets import COUNT, SMALL, half, make_place
from support.command_line import Outcome, Run, frechet
from support.documents import read_document
from support.pictures import make_pictures
from support.places import FD, TINY


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(tmp_path)


def refused(outcome: Outcome, *texts: str, status: int = 2) -> None:
    """Check for one line on stderr with all of ``texts``, and an empty stdout."""
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1), outcome
    assert [text for text in texts if text not in outcome.error] == [], outcome.error


REFUSALS = {
    "a later FAKE missing": (["real", "fake", "fake", "nowhere"], ["nowhere"]),
    "a line break in the name": (["real", "no\nwhere"], ["no where"]),
    "a device that does not exist": (
        ["real", "fake", "--device", "gpu"],
        ["--device gpu is not the name", "use cpu"],
    ),
    "a GPU that is not there": (
        ["real", "fake", "--device", "cuda:99"],
        ["--device cuda:99", "no such device"],
    ),
    "weights with the wrong hash": (
        ["real", "fake", "--weights", "wrong.pth"],
        ["wrong.pth", "hash"],
    ),
}
"""What the golden of messages does not have."""


@pytest.mark.parametrize("name", REFUSALS)
def test_compute_refuses(here: Run, place: Path, name: str) -> None:
    arguments, texts = REFUSALS[name]
    before = sorted(place.rglob("*"))
    refused(here("compute", *arguments), *texts)
    assert sorted(place.rglob("*")) == before  # No output file is left behind.


def test_stats_refuses(here: Run, place: Path) -> None:
    """Without ``--force`` a file is kept, and a failed run leaves none behind."""
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    refused(here("stats", "real", "-o", "a.npz"), "a.npz exists", "--force")
    refused(here("stats", "real", "-o", "out.npz", *SMALL, "--num", "21"), "--num", "21", "real")
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_force_overwrites(here: Run, place: Path) -> None:
    before = (place / "a.npz").read_bytes()
    assert here("stats", "real", "-o", "a.npz", *SMALL, "--force").status == 0
    assert (place / "a.npz").read_bytes() != before


def test_without_a_command_help_is_shown(here: Run) -> None:
    outcome = here()
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr == here("--help").stdout
    assert outcome.stderr.startswith("Usage: fidtool [OPTIONS] COMMAND [ARGS]...\n")


@pytest.mark.parametrize(
    "arguments",
    [["stats", "-h"], ["protocols"], ["compute", "nowhere", "fake"], ["compute", "real", "--gpu"]],
)
def test_help_and_usage_errors_import_no_torch(
    environment: dict[str, str], place: Path, arguments: list[str]
) -> None:
    code = (
        "import sys\nfrom fidtool.cli.main import main\ntry: main(sys.argv[1:])\nfinally: "
        "print([name for name in ('torch', 'torchvision', 'scipy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    asked = {"-h", "protocols"} & set(arguments)
    assert finished.returncode == (0 if asked else 2), finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"


def test_a_failure_writes_json(here: Run, place: Path) -> None:
    """Also over that of another run that failed."""
    assert here("compute", "real", "fake", "--device", "gpu", "--output", "out.json").status == 2
    outcome = here("compute", "real", "empty", "--json", "--output", "out.json")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    result = outcome.json
    assert (result["schema"], result["results"]) == (3, [])
    assert result["exit"] == {"code": 2, "reason": outcome.error.removeprefix("error: ")}
    assert read_document(place / "out.json") == result


def test_a_failure_keeps_an_earlier_result(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yesterday's values, and what is no result: of a typo, an early refusal, one during the run,
    and Ctrl-C.
    """
    assert here("compute", "real", "fake", *SMALL, "--uncertainty", "-o", "fid.json").status == 0
    (place / "names.json").write_text('{"a": "user\'s"}')
    kept = {name: (place / name).read_bytes() for name in ("fid.json", "names.json")}
    outputs = [argument for name in kept for argument in ("--output", name)]
    half(place / "fake" / "00011.png")
    failing = {
        ("reall", "fake"): "no such file or folder: reall",
        ("real", "fake", "--num", "99"): "--num asks for 99 images but real has 20",
        ("real", "fake"): "fake/00011.png",
        (
            "real",
            "fake",
            "--uncertainty",
            "--fail-worse-than",
            "fid.json",
        ): "would replace a file that this command",
    }
    for arguments, problem in failing.items():
        outcome = here("compute", *arguments, *SMALL, *outputs, "--quiet")
        assert (outcome.status, outcome.stdout) == (2, "")
        assert problem in outcome.error
        lines = [
            f"{name} keeps its earlier content, because this run has no values" for name in kept
        ]
        assert outcome.stderr.splitlines()[:-1] == lines

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fidtool.run.opening.check_paths", interrupt)
    monkeypatch.setattr("fidtool.distributed.signals.received", [signal.SIGINT])
    assert here("compute", "real", "fake", *outputs).status == 130
    assert {name: (place / name).read_bytes() for name in kept} == kept


def test_outputs_replace_no_input(here: Run, place: Path) -> None:
    """Whatever the files are called: a link to a list, or to a file with captions."""
    (place / "list.csv").write_text(
        "real,fake,path\n" + "".join(f",,real/{each:05}.png\n" for each in range(COUNT))
    )
    (place / "captions.json").write_text('{"00000.png": "a cat"}')
    (place / "link.csv").symlink_to("list.csv")
    kept = {name: (place / name).read_bytes() for name in ("list.csv", "captions.json")}
    refused(
        here("compute", "list.csv", "fake", *SMALL, "-o", "link.csv"),
        "--output link.csv",
        "would replace a file",
    )
    arguments = (
        "real",
        "fake",
        "--metrics",
        "clip_score",
        "--captions",
        "captions.json",
        "-o",
        "captions.json",
    )
    assert (
        "--output captions.json cannot be written: it would replace"
        in here("compute", *arguments).error
    )
    paired = (
        "real",
        "list.csv",
        "--metrics",
        "psnr",
        "--pairs",
        "position",
        "--pairs-output",
        "list.csv",
    )
    refused(here("compute", *paired), "--pairs-output list.csv", "would replace a file")
    refused(here("stats", "a.npz", "-o", "./a.npz", "--force"), "-o a.npz", "would replace a file")
    assert {name: (place / name).read_bytes() for name in kept} == kept


def test_a_missed_gate_is_status_3(here: Run, place: Path) -> None:
    (place / "real2").symlink_to("real")
    fid = here("compute", "real", "fake", *SMALL, "--json").fid
    assert fid > 0
    for gate, status in ((fid, 0), (fid * 0.999, 3)):
        outcome = here(
            "compute", "real", "real2", "fake", *SMALL, "--json", "--fail-above", gate, "--quiet"
        )
        assert (outcome.status, outcome.json["exit"]["code"]) == (status, status)
        assert [frechet(result) == fid for result in outcome.json["results"]] == [False, True]
        reason = outcome.json["exit"]["reason"]
        assert ("gate missed" in reason and "fake has" in reason) if status else reason == "done"
        assert "real2 has" not in reason
        assert (reason in outcome.stderr) == bool(status)
    text = here("compute", "real", "fake", *SMALL, "--fail-above", fid / 2, "--quiet")
    assert (text.status, text.stdout) == (3, f"{FD}: {fid:.4f}\n")
    assert "Traceback" not in text.stderr


def test_a_result_with_a_file_name_that_is_not_unicode(here: Run, place: Path) -> None:
    """Linux file names are bytes. Printing such a name must not lose the result."""
    odd = os.fsdecode(b"f\xffake")
    try:
        make_pictures(place / odd, COUNT, 1)
    except OSError:
        pytest.skip("this file system takes no such names")
    outcome = here("compute", "real", odd, "fake", *SMALL, "--output", "out.json", "--quiet")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert frechet(read_document(place / "out.json")["results"][0]) > 0


def _broken_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere.png")


@pytest.mark.parametrize("damage", [half, _broken_link])
def test_an_unreadable_image_is_named(
    here: Run, place: Path, damage: Callable[[Path], None]
) -> None:
    damage(place / "fake" / "00011.png")
    refused(here("compute", "real", "fake", *SMALL, "--quiet"), "fake/00011.png", "fix the file")


@pytest.mark.parametrize(
    "flag",
    ["--extractor", "--weights", "--output", "--labels", "--config", "--history", "--report"],
)
def test_names_that_are_too_long(here: Run, tmp_path: Path, flag: str) -> None:
    make_pictures(tmp_path / "real", 3)
    endings = {
        "--extractor": ".pt2",
        "--labels": ".csv",
        "--history": ".jsonl",
        "--report": ".html",
    }
    name = "x" * 256 + endings.get(flag, ".json")
    network = () if flag in ("--extractor", "--weights") else ("--extractor", TINY)
    outcome = here("compute", "real", "real", *network, flag, name, "--quiet")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1), outcome
    assert name in outcome.error


def test_a_history_is_a_regular_file(here: Run, tmp_path: Path) -> None:
    """A line would be lost in a pipe."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    error = here(
        "compute", make_pictures(tmp_path / "real", 3), "real", "--history", "pipe.jsonl"
    ).error
    assert (
        error == "error: --history pipe.jsonl must be a regular file, which lines can be added to"
    )
