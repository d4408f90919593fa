"""``--log``: what each experiment tracker gets, read back; and what fails before a run, or after
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fidtool as package
from fidtool.report import loggers
from fidtool.report.loggers import log_values, split_runs
from fidtool.result.explanations import Interval, Uncertainty
from fidtool.settings.settings import Settings
from support.command_line import Run
from support.documents import read_document
from support.logs import READERS
from support.pictures import make_pictures
from support.places import TINY
from support.processes import wait_until
from support.report_samples import bare

QUIET = ("--extractor", TINY, "--metrics", "fid,kid", "--kid-subset-size", 20, "--quiet")


@pytest.fixture
def sets(tmp_path: Path) -> list[Path]:
    """REAL and three FAKEs with steps in their names."""
    names = ("real", "step1000", "step200", "step30")
    return [make_pictures(tmp_path / name, 40, seed) for seed, name in enumerate(names)]


def variables(folder: Path) -> dict[str, str]:
    """Variables with which each tracker writes below a folder, and needs no network."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_X_SERVICE_WAIT": "600",
        "MLFLOW_TRACKING_URI": str(folder / "mlruns"),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # a data base takes seconds to create
        "TRACKIO_DIR": str(folder),
    }


@pytest.mark.parametrize("kind", READERS)
def test_values_are_read_back(
    fidtool: Run, sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Steps of a sweep in one run, in their order; then one run per FAKE. Stdout has the result
    alone.
    """
    pytest.importorskip(kind, reason=f"needs fidtool[{kind}]")
    folder = tmp_path / "logs"
    folder.mkdir()
    place = folder if kind == "tensorboard" else "place"
    for name, value in variables(folder).items():
        monkeypatch.setenv(name, value)
    arguments = ("compute", *sets, *QUIET, "--log", f"{kind}:{place}", "--json")
    logged = fidtool(*arguments, **variables(folder))
    assert logged.status == 0, logged.stderr
    assert "warning: --log" not in logged.stderr
    values = {
        result["fake"].rpartition("/")[2]: result["metrics"] for result in logged.json["results"]
    }
    assert any(key.startswith("kid_std") for key in values["step30"])
    rows = READERS[kind](folder)
    assert [step for _, step, _ in rows] == [30, 200, 1000]
    for _, step, logged_values in rows:
        assert logged_values == pytest.approx(values[f"step{step}"], rel=1e-6, abs=1e-9)
    assert len({name for name, _, _ in rows}) == 1
    if kind == "trackio":
        return  # in this process it may have been imported with another folder
    warned: list[str] = []
    log_values(
        bare("a/gan", "a/vae").results, Settings(log=f"{kind}:{place}", step=7), warned.append
    )
    assert warned == []

    def written() -> bool:
        return {(name, step) for name, step, _ in READERS[kind](folder) if step == 7} == {
            ("gan", 7),
            ("vae", 7),
        }

    # Wandb's service writes its file after the run is finished.
    wait_until(written, "the values of both runs")


def named(*fakes: str, step: int | None = None) -> list[tuple[str, list[int | None]]]:
    """Return the names of the runs for FAKEs, each with its steps."""
    return [
        (name, [row[0] for row in rows]) for name, rows in split_runs(bare(*fakes).results, step)
    ]


def test_runs_and_steps() -> None:
    assert named("out/step10") == [("", [None])], "one set is no sweep"
    assert named("out/step10", step=5) == [("", [5])]
    assert named("out/step10", "out/step9") == [("", [9, 10])]
    assert named("cfg1.5", "cfg2.5") == [("cfg1.5", [None]), ("cfg2.5", [None])]
    assert named("ddpm1", "edm2") == [("ddpm1", [None]), ("edm2", [None])], (
        "these numbers are no steps"
    )
    assert named("a/gan", "a/vae/s") == [("gan", [None]), ("vae-s", [None])]
    assert named("step1", "step2", step=3) == [("step1", [3]), ("step2", [3])]
    assert named("/x/a", "../b c") == [("x-a", [None]), ("b-c", [None])], (
        "a folder of TensorBoard stays in its own"
    )
    assert named("a/b", "a-b", "a-c") == [("1-a-b", [None]), ("2-a-b", [None]), ("3-a-c", [None])]
    assert named("s3://me:pa55@b/x?key=pa55", "y") == [("s3-b-x", [None]), ("y", [None])]


def test_the_corrected_value_is_logged_with_its_interval() -> None:
    (result,) = bare("fake").results
    interval = Uncertainty(1.0, Interval(11.5, 0.5, 10.5, 12.5), "", ())
    ((_, ((step, values),)),) = split_runs([replace(result, uncertainties={"fid": interval})], 3)
    corrected = {"fid_corrected": 11.5, "fid_corrected_low": 10.5, "fid_corrected_high": 12.5}
    assert (step, values) == (3, {**result.metrics, **corrected})


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("tensorbord:runs", "--log tensorbord:runs must be KINDS; did you mean tensorboard?"),
        ("runs", "--log runs must be KINDS"),
        ("wandb:", "--log wandb: must be KINDS"),
        ("wandb", "--log wandb must be KINDS"),
        ("mlflow:x", "--log mlflow:x needs the package mlflow: pip install 'fidtool[mlflow]'"),
    ],
)
def test_mistakes_are_errors_before_any_work(
    here: Run,
    sets: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    error: str,
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    outcome = here("compute", *sets, *QUIET, "--log", value, "-o", "out.json")
    assert outcome.status == 2
    kinds = "KIND:PLACE, where KIND is one of tensorboard, wandb, mlflow, trackio"
    assert outcome.error == f"error: {error.replace('KINDS', kinds)}"
    assert read_document(tmp_path / "out.json")["results"] == []


def test_a_folder_of_logs_is_not_the_package(
    here: Run, sets: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb writes to the folder ``wandb``, from which ``python -m fidtool`` could import."""
    (tmp_path / "trackerless").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(loggers.LOGGERS, "trackerless", loggers.LOGGERS["wandb"])  # type: ignore[index]
    error = here("compute", *sets, *QUIET, "--log", "trackerless:p").error
    assert error.startswith("error: --log trackerless:p needs the package trackerless: ")


def failing(*_: object) -> None:
    print("chatter")
    raise OSError("no space left in https://me:pa55word@host/.")


@pytest.fixture
def failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: loggers.__spec__)
    monkeypatch.setattr(loggers, "check_loggers", lambda places: None)
    monkeypatch.setitem(loggers.LOGGERS, "wandb", (failing, "try again"))  # type: ignore[index]


@pytest.mark.usefixtures("failure")
def test_a_logger_that_fails_is_a_warning(here: Run, sets: list[Path], tmp_path: Path) -> None:
    outcome = here(
        "compute", *sets[:2], *QUIET, "--log", "wandb:p", "--fail-above", 0, "-o", "out.json"
    )
    assert outcome.status == 3
    assert "chatter" not in outcome.stdout
    (line,) = (line for line in outcome.stderr.splitlines() if "--log" in line)
    assert (
        line == "warning: --log wandb:p failed, but the result is complete: no space left in "
        "https://host/; try again"
    )
    assert read_document(tmp_path / "out.json")["exit"]["code"] == 3


@pytest.mark.usefixtures("failure")
def test_in_python_too(
    sets: list[Path], environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"^log='wandb:p' failed, but the result is complete: .*; try again$"
    ):
        evaluation = package.compute(*sets[:2], extractor=TINY, log="wandb:p", step=1000)
    assert evaluation.frechet_distance is not None
    assert capsys.readouterr().out == "chatter\n", (
        "what a tracker prints in a program is the program's"
    )


def test_a_logger_that_waits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer, for example."""
    import threading

    release = threading.Event()
    waits: Callable[..., Any] = lambda *_: release.wait()  # noqa: E731
    monkeypatch.setattr(loggers, "LOG_SECONDS", 0.05)
    monkeypatch.setitem(loggers.LOGGERS, "wandb", (waits, "try again"))  # type: ignore[index]
    warned: list[str] = []
    log_values(bare("a", "b").results, Settings(log="wandb:p"), warned.append)
    release.set()
    assert len(warned) == 1
    assert "no response within 0.05 s; try again" in warned[0]


def test_only_rank_zero_logs(fidtool: Run, sets: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs fidtool[tensorboard]")
    run = fidtool(
        "compute",
        *sets[:2],
        *QUIET,
        "--log-to",
        f"tensorboard:{tmp_path / 'runs'}",
        "--step",
        5,
        ranks=2,
    )
    ((name, step, values),) = READERS["tensorboard"](tmp_path / "runs")
    assert (name, step) == ("", 5)
    assert len(values) == 3, run.stderr
