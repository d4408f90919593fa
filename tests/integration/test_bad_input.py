"""Invalid input is refused in one line that names the problem, the location and the remedy, with the right status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bad_sets import COUNT, SMALL, half, make_place
from support.command_line import Outcome, Run, frechet
from support.documents import read_document
from support.pictures import make_pictures
from support.places import FD


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(environment, tmp_path)


def refused(outcome: Outcome, *texts: str, status: int = 2) -> None:
    """Check for one line on stderr with all of ``texts``, and an empty stdout."""
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1), outcome
    assert [text for text in texts if text not in outcome.error] == [], outcome.error


REFUSALS = {
    "a later FAKE missing": (["real", "fake", "fake", "nowhere"], ["nowhere"]),
    "no name": (["real", ""], ["no such file or folder"]),
    "a line break in the name": (["real", "no\nwhere"], ["no where"]),
    "an empty folder": (["real", "empty"], ["empty", "no images"]),
    "too large a --num": (["real", "fake", "--num", "21"], ["--num", "21", "real", str(COUNT)]),
    "an unknown protocol for files": (["a.npz", "b.npz", "--protocol", "inception"], ["inception", "tensorflow"]),
    "a GPU that is not there": (["real", "fake", "--device", "cuda:99"], ["--device cuda", "CUDA device"]),
    "weights with the wrong hash": (["real", "fake", "--weights", "wrong.pth"], ["wrong.pth", "hash"]),
    "weights missing": (["real", "fake", "--weights", "nowhere.pth"], ["nowhere.pth", "--weights"]),
}
"""What the golden of messages does not have, or a failure late in a run."""


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
    [
        *(["--help"], ["stats", "-h"], ["--version"], ["protocols"], ["real/", "fake/"]),
        *(["compute", "nowhere", "fake"], ["compute", "real"], ["compute", "real", "fake", "--num", "0"]),
        *(["stats", "real", "-o", "a.npz"], ["check", "real", "--gpu"]),
    ],
)
def test_help_and_usage_errors_import_no_torch(environment: dict[str, str], place: Path, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom fidtool.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print([name for name in ('torch', 'torchvision', 'scipy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    asked = {"--help", "-h", "--version", "protocols"} & set(arguments)
    assert finished.returncode == (0 if asked else 2), finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["an empty folder", "weights missing"])
def test_a_failure_writes_json(here: Run, place: Path, name: str) -> None:
    arguments, texts = REFUSALS[name]
    (place / "out.json").write_text('{"exit": "the last run\'s"}')
    outcome = here("compute", *arguments, "--json", "--output", "out.json")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    result = outcome.json
    assert (result["schema"], result["results"]) == (2, [])
    assert result["exit"] == {"code": 2, "reason": outcome.error.removeprefix("error: ")}
    assert [text for text in texts if text not in result["exit"]["reason"]] == []
    # The result of an earlier successful run must not remain in the --output file.
    assert read_document(place / "out.json") == result


def test_a_missed_gate_is_status_3(here: Run, place: Path) -> None:
    (place / "real2").symlink_to("real")
    fid = here("compute", "real", "fake", *SMALL, "--json").fid
    assert fid > 0
    for gate, status in ((fid, 0), (fid * 1.001, 0), (fid * 0.999, 3), (fid * 0.01, 3)):
        outcome = here("compute", "real", "real2", "fake", *SMALL, "--json", "--fail-above", gate, "--quiet")
        assert (outcome.status, outcome.json["exit"]["code"]) == (status, status)
        assert [frechet(result) == fid for result in outcome.json["results"]] == [False, True]
        reason = outcome.json["exit"]["reason"]
        assert ("gate missed" in reason and "fake has" in reason) if status else reason == "done"
        assert "real2 has" not in reason
        assert (reason in outcome.stderr) == bool(status)
    text = here("compute", "real", "fake", *SMALL, "--fail-above", fid / 2, "--quiet")
    assert (text.status, text.stdout) == (3, f"{FD}: {fid:.4f}\n")
    assert "Traceback" not in text.stderr


@pytest.mark.parametrize("arguments", [["--json"], ["--output", "out.json"], ["fake"]], ids=" ".join)
def test_a_result_with_a_file_name_that_is_not_unicode(here: Run, place: Path, arguments: list[str]) -> None:
    """Linux file names are bytes. Printing such a name must not lose the result."""
    odd = os.fsdecode(b"f\xffake")
    try:
        make_pictures(place / odd, COUNT, 1)
    except OSError:
        pytest.skip("this file system takes no such names")
    outcome = here("compute", "real", odd, *arguments, *SMALL, "--quiet")
    assert (outcome.status, outcome.stderr) == (0, "")
    if arguments == ["--json"]:
        assert outcome.fid > 0
    if "--output" in arguments:
        assert frechet(read_document(place / "out.json")["results"][0]) > 0


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _web_page(file: Path) -> None:
    file.write_text("<!doctype html><title>404</title>")


def _broken_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere.png")


@pytest.mark.parametrize("damage", [half, _empty, _web_page, _broken_link])
def test_an_unreadable_image_is_named(here: Run, place: Path, damage: Callable[[Path], None]) -> None:
    damage(place / "fake" / "00011.png")
    refused(here("compute", "real", "fake", *SMALL, "--quiet"), "fake/00011.png", "fix or remove")
    outcome = here("compute", "real", "fake", *SMALL, "--json", "--quiet", "--output", "out.json")
    assert outcome.json["exit"] == {"code": 2, "reason": outcome.error.removeprefix("error: ")}
    assert read_document(place / "out.json") == outcome.json
