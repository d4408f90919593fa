"""The programs in scripts/examples: each does what its docstring says."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageFilter

from support.command_line import Run, frechet
from support.documents import read_document
from support.pictures import make_pictures
from support.places import EXAMPLES, FD, SMALL_NETWORK, TINY
from support.processes import PATIENCE
from support.ranks import RankServer


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("example") / "real", 80, 1)


@pytest.mark.slow
def test_lightning_saves_the_best_epochs(programs: Run, real: Path, tmp_path: Path) -> None:
    """ModelCheckpoint uses the FID, which is equal on all ranks."""
    checkpoints = tmp_path / "checkpoints"
    settings = ("--num-samples", 96, "--feature", SMALL_NETWORK, "--checkpoints", checkpoints)
    run = programs(2, "train_lightning.py", real, "--epochs", 3, *settings)
    assert run.status == 0, run.stderr
    said = re.findall(r"^rank (\d): Fréchet distance (\S+), best (\S+)$", run.stdout, re.MULTILINE)
    assert {rank for rank, *_ in said} == {"0", "1"}
    assert len({(fid, best) for _, fid, best in said}) == 1, "one value on all ranks"
    files = {file.name for file in checkpoints.iterdir()}
    assert said[0][2] in files
    assert len(files) == 3, "the best two and the last"
    scores = sorted(
        float(score) for score in re.findall(r"distance=([\d.]+)\.ckpt", " ".join(files))
    )
    assert float(re.findall(r"distance=([\d.]+)\.ckpt", said[0][2])[0]) == scores[0]


@pytest.mark.slow
def test_tuning_lowers_the_held_out_fid(programs: Run, real: Path) -> None:
    settings = ("--feature", SMALL_NETWORK, "--steps", 60, "--batch", 16, "--samples", 256)
    run = programs(2, "tune_generator.py", real, *settings)
    assert run.status == 0, run.stderr
    before, after = map(
        float, re.findall(r"held-out samples: (\S+) before, (\S+) after", run.stdout)[0]
    )
    assert after < before / 2


@pytest.mark.slow
def test_arcface_encoder(programs: Run, fidtool: Run, real: Path, tmp_path: Path) -> None:
    """W stays in sync, the encoder distinguishes the classes, and fidtool can use it as an
    extractor.
    """
    for seed in range(3):
        make_pictures(tmp_path / "classes" / str(seed), 20, 20)
        for number, file in enumerate(sorted((tmp_path / "classes" / str(seed)).iterdir())):
            tint(file, seed, number)
    run = programs(
        2,
        "train_arcface.py",
        tmp_path / "classes",
        "--steps",
        40,
        "--output",
        tmp_path / "encoder.pt",
    )
    assert run.status == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+), the ranks are in sync", run.stdout)]
    assert len(losses) > 5
    assert losses[-1] < losses[0] / 2
    extractor = f"{EXAMPLES / 'train_arcface.py'}:network"
    near, far = (
        fidtool(
            "compute",
            tmp_path / "classes" / "0",
            tmp_path / "classes" / other,
            "--extractor",
            extractor,
            "--json",
            ENCODER=str(tmp_path / "encoder.pt"),
        ).fid
        for other in ("0", "1")
    )
    assert near < 1e-9
    assert far > 0.1
    assert set(torch.load(tmp_path / "encoder.pt", weights_only=True)) >= {"layers.0.weight"}


def test_metrics_of_a_whole_validation_set(programs: Run, tmp_path: Path) -> None:
    """Loss, accuracy and names of 31 samples as of one process; checkpoints and early stopping use
    them.
    """
    for seed in range(2):
        make_pictures(tmp_path / "classes" / str(seed), 40, 20)
        for number, file in enumerate(sorted((tmp_path / "classes" / str(seed)).iterdir())):
            tint(file, seed, number)
    said = {}
    for ranks in (1, 2):
        checkpoints = tmp_path / str(ranks)
        settings = ("--validation", 31, "--epochs", 30, "--checkpoints", checkpoints)
        run = programs(ranks, "validate_whole_set.py", tmp_path / "classes", *settings)
        assert run.status == 0, run.stderr
        lines = re.findall(
            r"^rank \d: (31 samples, loss \S+, accuracy \S+, least likely [^\s,]+)(.*)$",
            run.stdout,
            re.M,
        )
        before, after = lines[:ranks], lines[ranks:]
        assert len(set(before)) == len(set(after)) == 1, "every rank has the values"
        said[ranks] = before[0][0]
        (best,) = checkpoints.iterdir()
        stopped = re.fullmatch(rf", (\d+) epochs, best {re.escape(best.name)}", after[0][1])
        assert stopped is not None
        assert int(stopped[1]) < 30, "EarlyStopping"
        assert re.fullmatch(r"epoch=\d+-val_loss=0\.\d{4}\.ckpt", best.name)
    assert said[1] == said[2]


@pytest.mark.slow
def test_an_empty_folder_is_reported(programs: Run, tmp_path: Path) -> None:
    """The message names the folder; without the check, a library would fail later."""
    (tmp_path / "empty").mkdir()
    run = programs(1, "train_lightning.py", tmp_path / "empty")
    assert run.status == 1, "torchrun's own status, regardless of its ranks'"
    assert re.search(r"train_lightning.py: error: no .*empty", run.stderr), run.stderr


EXAMPLE_FILES = sorted(file for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh"))


@pytest.mark.parametrize("file", EXAMPLE_FILES, ids=lambda file: file.name)
def test_every_example_documents_its_command(file: Path) -> None:
    """The docstring, or the leading comment of a shell script, has the exact command."""
    text = file.read_text()
    opening = (
        ast.get_docstring(ast.parse(text))
        if file.suffix == ".py"
        else text.partition("\nset -eu")[0]
    )
    assert opening is not None
    assert "Example: " in opening
    assert re.search(rf"^#?\s+.*\bscripts/examples/{file.name}\b", opening, re.MULTILINE)
    assert re.search(r"prints?\b", opening)


def test_custom_network(fidtool: Run, real: Path, tmp_path: Path) -> None:
    """Blurred images are farther from the real ones than other sharp images."""
    sharp = make_pictures(tmp_path / "sharp", 80, 2)
    (tmp_path / "blurred").mkdir()
    for file in sharp.iterdir():
        Image.open(file).convert("RGB").filter(ImageFilter.GaussianBlur(2)).save(
            tmp_path / "blurred" / file.name
        )
    extractor = f"{EXAMPLES / 'custom_network.py'}:network"
    near, far = (
        fidtool(
            "compute", real, tmp_path / name, "--extractor", extractor, "--no-cache", "--json"
        ).fid
        for name in ("sharp", "blurred")
    )
    assert 0 < 10 * near < far


def tint(file: Path, channel: int, number: int) -> None:
    """Amplify one colour of an image: the class to learn."""
    bands = list(Image.open(file).convert("RGB").split())
    bands[channel] = bands[channel].point(lambda value: min(255, value + 90 + number % 5))
    Image.merge("RGB", bands).save(file)


Gate = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gate(environment: dict[str, str], tmp_path: Path, rank_server: RankServer) -> Gate:
    """Run ci_gate.sh in ``tmp_path``, with a fork as ``fidtool``."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "fidtool"
    stand_in.write_text(f'#!/bin/sh\nexec {shlex.join(rank_server.stand_in("fidtool", []))} "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{environment['PATH']}"

    def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(EXAMPLES / "ci_gate.sh"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**environment, "PATH": path, **variables},
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """Two different sets, in folders whose names need quoting."""
    return make_pictures(tmp_path / "real ones", 20, seed=1), make_pictures(
        tmp_path / "$fake*", 20, seed=2
    )


OPTIONS = ("--extractor", TINY, "--no-cache", "--quiet")


def test_gate_passes(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    done = gate(*sets, 1000, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{FD}: ")
    assert "gate PASSED: at most 1000 (details in fid.json)" in done.stderr
    report = read_document(tmp_path / "fid.json")
    assert report["exit"]["code"] == 0
    assert 0 < frechet(report["results"][0]) < 1000


def test_missed_gate_is_status_3(gate: Gate, sets: tuple[Path, Path], tmp_path: Path) -> None:
    done = gate(*sets, 0, *OPTIONS, "--json", FID_JSON="reports.json")
    assert done.returncode == 3, done.stderr
    assert "gate MISSED: above 0 (details in reports.json)" in done.stderr
    report = read_document(tmp_path / "reports.json")
    assert report["exit"]["code"] == 3
    assert json.loads(done.stdout) == report, "stdout has the JSON and nothing else"


def test_bad_input_is_status_2_without_a_verdict(
    gate: Gate, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    stale = tmp_path / "fid.json"
    stale.write_text('{"exit": {"code": 0}}')
    (sets[1] / "00003.png").write_bytes(b"not an image")
    done = gate(*sets, 1000, *OPTIONS)
    assert done.returncode == 2, done.stderr
    assert "00003.png" in done.stderr
    assert "gate NOT EVALUATED: bad usage or bad input" in done.stderr
    assert read_document(stale)["exit"]["code"] == 2


def test_bad_limit_removes_an_earlier_result(
    gate: Gate, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    stale = tmp_path / "fid.json"
    stale.write_text('{"exit": {"code": 0}}')
    done = gate(*sets, "ten", *OPTIONS)
    assert done.returncode == 2, done.stderr
    assert "NOT EVALUATED" in done.stderr
    assert not stale.exists() or read_document(stale)["exit"]["code"] == 2
