"""Results of several days through the command line: histories, differences, the gate, and pages of
saved results.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

import fidtool as package
from support.command_line import Run
from support.degenerate import FLAGS, make_sets
from support.documents import checked, read_document


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def days(here: Run, sets: tuple[Path, ...], tmp_path: Path) -> Path:
    """A folder with ``fake`` and results of two days, on the second of which the generator is as
    good.
    """
    real, _, good, again = sets
    (tmp_path / "real").symlink_to(real)
    for day, fake in (("monday", good), ("tuesday", again)):
        _place(tmp_path / "fake", fake)
        outcome = here(
            "compute",
            "real",
            "fake",
            *FLAGS,
            "--quiet",
            "-o",
            f"{day}.json",
            "--history",
            "h.jsonl",
        )
        assert outcome.status == 0, outcome.stderr
    return tmp_path


def _place(link: Path, folder: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def test_three_days(here: Run, days: Path, sets: tuple[Path, ...]) -> None:
    _place(days / "fake", sets[1])
    arguments = (
        "compute",
        "real",
        "fake/",
        *FLAGS,
        "--quiet",
        "--history",
        "h.jsonl",
        "-o",
        "wednesday.json",
    )
    outcome = here(
        *arguments, "--fail-worse-than", "h.jsonl", "--fail-above", "1e9", "--batch-size", 5
    )
    assert outcome.status == 3
    reason = outcome.stderr.splitlines()[-1]
    assert reason.startswith("gate missed: fake/ is worse than in h.jsonl: bias-corrected FD (")
    document = read_document(days / "wednesday.json")
    assert document["exit"]["code"] == 3
    assert document["exit"]["reason"] == reason
    lines = (days / "h.jsonl").read_text().splitlines()
    assert [checked(json.loads(line))["run"]["date"] for line in lines] == sorted(
        json.loads(line)["run"]["date"] for line in lines
    )
    table = here("history", "h.jsonl").stdout.splitlines()
    assert table[0].startswith("fake against real, ")
    assert [line.split("  ")[-1].strip() for line in table[3:]] == [
        "cannot be distinguished",
        "worse, missed a gate",
    ]
    assert here("diff", "monday.json", "tuesday.json").stdout.startswith(
        "fake: cannot be distinguished: bias-corr"
    )
    printed = here("diff", "monday.json", "wednesday.json").stdout
    assert printed.startswith("fake: worse: bias-corrected FD (")
    assert "  settings.batch_size: - -> 5\n" in printed
    assert here("diff", "wednesday.json", "monday.json").stdout.startswith("fake: better: ")
    same = here("diff", "monday.json", "monday.json").stdout
    assert same.endswith("  no difference in settings, protocol, sets and environment\n")
    (change,) = here("diff", "monday.json", "wednesday.json", "--json").json["changes"]
    assert (change["verdict"], change["besides"]["settings.batch_size"]) == ("worse", [None, 5])
    again = here("compute", "real", "fake", *FLAGS, "--quiet", "--fail-worse-than", "h.jsonl")
    assert again.status == 3, "a run that missed the gate is no baseline"
    passed = here(
        "compute", "real", "fake", *FLAGS, "--quiet", "--fail-worse-than", "wednesday.json"
    )
    assert passed.status == 0


def test_other_images_in_real_are_another_real(
    here: Run, days: Path, sets: tuple[Path, ...]
) -> None:
    """Also under the same name, and of the same number and size."""
    shutil.copytree(sets[0], days / "changed")
    first, other = (sorted(folder.iterdir())[0] for folder in (days / "changed", sets[2]))
    shutil.copy(other, first)
    _place(days / "real", days / "changed")
    arguments = ("compute", "real", "fake", *FLAGS, "--quiet", "-o", "wednesday.json")
    outcome = here(*arguments, "--fail-worse-than", "monday.json")
    assert outcome.status == 3
    assert "gate missed: fake is not comparable with monday.json: REAL.pixels: " in outcome.stderr
    assert here("diff", "monday.json", "wednesday.json").stdout.startswith(
        "fake: not comparable: REAL.pixels: "
    )


def test_a_gate_is_missed_by_one_of_two(here: Run, days: Path, sets: tuple[Path, ...]) -> None:
    (days / "bad").symlink_to(sets[1])
    arguments = ("compute", "real", "bad", "fake", *FLAGS, "--quiet")
    distances = [result["metrics"] for result in here(*arguments, "--json").json["results"]]
    limit = sum(next(iter(metrics.values())) for metrics in distances) / 2
    first = here(*arguments, "--fail-above", limit, "--history", "two.jsonl")
    assert first.status == 3
    bad, fake = (
        checked(json.loads(line)) for line in (days / "two.jsonl").read_text().splitlines()
    )
    assert (len(bad["results"][0]["missed"]), bad["exit"]["code"]) == (1, 3)
    assert (fake["results"][0]["missed"], fake["exit"]["code"]) == ([], 0)
    assert here(*arguments[:2], *arguments[3:], "--fail-worse-than", "two.jsonl").status == 0
    assert "has no result of bad " in here(*arguments, "--fail-worse-than", "two.jsonl").error


def test_a_gate_that_cannot_be_decided_is_missed(here: Run, days: Path) -> None:
    arguments = ("compute", "real", "fake", *FLAGS, "--quiet", "--fail-worse-than", "monday.json")
    outcome = here(*arguments, "--num-fake", 60)
    assert outcome.status == 3
    assert (
        "gate missed: fake cannot be compared with monday.json: no error bars (at least 200"
        in outcome.stderr
    )
    outcome = here(*arguments, "--num-real", 250)
    assert outcome.status == 3
    assert "fake is not comparable with monday.json: REAL.count: 300 -> 250\n" in outcome.stderr


def test_the_first_day_of_a_gate(here: Run, days: Path, sets: tuple[Path, ...]) -> None:
    """The same command, every day."""
    arguments = (
        "compute",
        "real",
        "fake",
        *FLAGS,
        "--quiet",
        "--history",
        "n.jsonl",
        "--fail-worse-than",
        "./n.jsonl",
    )
    first, second = here(*arguments), here(*arguments)
    assert (first.status, second.status) == (0, 0)
    said = "warning: ./n.jsonl has no baseline yet: this result becomes the first"
    assert [said in outcome.stderr.splitlines() for outcome in (first, second)] == [True, False]
    _place(days / "fake", sets[1])
    assert here(*arguments).status == 3
    assert len((days / "n.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--fail-worse-than", "none.json"), "none.json cannot be read: No such file or directory"),
        (
            ("--fail-worse-than", "monday.json", "--protocol", "clean"),
            ", clean (the latest has resize bilinear against ",
        ),
        (
            ("--history", "none/h.jsonl"),
            "--history none/h.jsonl cannot be written: none must be an existing folder",
        ),
        (("--history", "h.json"), "--history h.json: the name must end in .jsonl"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    here: Run, days: Path, arguments: tuple[str, ...], problem: str
) -> None:
    outcome = here("compute", "real", "fake", *FLAGS, "--quiet", *arguments)
    assert outcome.status == 2
    assert problem in outcome.error
    assert outcome.stdout == ""


def test_a_baseline_needs_error_bars_today(here: Run, days: Path) -> None:
    outcome = here("compute", "real", "fake", *FLAGS[:2], "--fail-worse-than", "monday.json")
    assert (outcome.status, outcome.error) == (
        2,
        "error: --fail-worse-than compares error bars, which are not requested: add --uncertainty",
    )


def test_a_history_that_cannot_be_written_loses_nothing_else(
    here: Run, days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the run ends."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fidtool.report.outputs.append_history", full)
    outcome = here(
        "compute", "real", "fake", *FLAGS[:2], "--history", "full.jsonl", "-o", "fid.json"
    )
    assert outcome.status == 1
    assert (
        "the result could not be written to full.jsonl (No space left on device)" in outcome.error
    )
    assert outcome.stdout.startswith("FD (")
    assert read_document(days / "fid.json")["exit"]["code"] == 0


def test_ranks_write_one_line(fidtool: Run, days: Path) -> None:
    before = len((days / "h.jsonl").read_text().splitlines())
    arguments = (
        "compute",
        "real",
        "fake",
        *FLAGS,
        "--quiet",
        "--history",
        "h.jsonl",
        "--fail-worse-than",
        "monday.json",
    )
    assert fidtool(*arguments, ranks=2).status == 0
    assert len((days / "h.jsonl").read_text().splitlines()) == before + 1


def test_in_python(days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(days)
    settings = {"extractor": FLAGS[1], "uncertainty": True}
    with pytest.warns(package.FidtoolWarning):
        evaluation = package.compute(
            "real",
            "fake",
            history="h.jsonl",
            fail_worse_than=Path("monday.json"),
            num_fake=60,
            **settings,
        )
    assert evaluation.missed == (evaluation.exit_reason.removeprefix("gate missed: "),)
    assert len((days / "h.jsonl").read_text().splitlines()) == 3


def test_results_that_cannot_be_read(here: Run, days: Path) -> None:
    document = read_document(days / "monday.json")
    del document["results"][0]["sets"]["real"]["count"]
    (days / "edited.json").write_text(json.dumps(document))
    failed = here("compute", "real", "none", *FLAGS, "-o", "failed.json")
    assert failed.status == 2
    for file, problem in (
        ("edited.json", "edited.json: the result is incomplete or was changed (KeyError: 'count')"),
        ("failed.json", "failed.json has no values: the run failed ("),
        ("h.jsonl", "h.jsonl cannot be read: it is not JSON"),
        ("fake", "fake cannot be read: Is a directory"),
    ):
        for command in (
            ("diff", "monday.json", file),
            ("diff", file, "monday.json"),
            ("report", file),
            ("table", "monday.json", file),
        ):
            outcome = here(*command)
            assert outcome.status == 2
            assert problem in outcome.error
    (days / "h.jsonl").write_bytes(b"\x1b[2J{\n" + (days / "h.jsonl").read_bytes())
    outcome = here("history", "h.jsonl")
    assert outcome.status == 0
    assert outcome.stderr.startswith("warning: h.jsonl: line 1 is left out: ")
    assert "\x1b" not in outcome.stderr
    assert len(outcome.stdout.splitlines()) == 4


def test_no_torch_is_imported(days: Path, environment: dict[str, str]) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from fidtool.cli.main import cli; cli(standalone_mode=False); assert "
        "'torch' not in sys.modules"
    )
    for command in (("diff", "monday.json", "tuesday.json"), ("history", "h.jsonl")):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=days,
            env=environment,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr


def test_the_page_of_a_result(here: Run, days: Path, sets: tuple[Path, ...]) -> None:
    """With its images, without them, and without overwriting a page."""
    for name in ("matplotlib", "jinja2"):
        pytest.importorskip(name, reason="needs fidtool[report]")
    images = shutil.copytree(sets[2], days / "copy")
    options = ("--report", "first.html", "-o", "fid.json", "--quiet")
    assert here("compute", "real", "copy", *FLAGS, *options).status == 0
    outcome = here("report", "fid.json")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "fid.html\n", "")
    first, again = ((days / name).read_text() for name in ("first.html", "fid.html"))
    assert again == first
    shutil.rmtree(images)
    outcome = here("report", "fid.json")
    assert outcome.status == 2
    assert (
        "fid.html exists, and may show images that are gone: pass --output FILE.html"
        in outcome.error
    )
    assert here("report", "fid.json", "-o", "gone.html").status == 0
    gone = (days / "gone.html").read_text()
    assert gone.count('src="data:image/') < first.count('src="data:image/')
    assert "lists no images for the page" in here("report", "monday.json").stderr
    assert "must end in .html" in here("report", "fid.json", "-o", "page.pdf").error
    if os.path.exists("/dev/full"):
        (days / "full.html").symlink_to("/dev/full")
        outcome = here("report", "fid.json", "-o", "full.html")
        assert (
            outcome.error
            == "error: the result could not be written to full.html (No space left on device)"
        )
    if os.geteuid():
        (days / "closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
        assert here("report", "fid.json", "-o", "closed/page.html").status == 2
