"""The training examples in scripts/, under torchrun, each to the end that it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from support.command_line import Run
from support.pictures import make_pictures
from support.training_programs import SCRIPTS, Programs

SMALL = f"{SCRIPTS / 'small_network.py'}:network"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("example") / "real", 80, 1)


def test_lightning_keeps_the_best_epochs(programs: Programs, real: Path, tmp_path: Path) -> None:
    """ModelCheckpoint goes by the FID, which every rank knows; a second training goes on from the last checkpoint."""
    kept = tmp_path / "checkpoints"
    settings = ("--num-samples", 96, "--feature", SMALL, "--checkpoints", kept)
    run = programs.run(2, "train_lightning.py", real, "--epochs", 3, *settings)
    assert run.status == 0, run.stderr
    said = re.findall(r"^rank (\d): Fréchet distance (\S+), best (\S+)$", run.stdout, re.MULTILINE)
    assert {rank for rank, *_ in said} == {"0", "1"}
    assert len({(fid, best) for _, fid, best in said}) == 1, "one value on all ranks"
    files = {file.name for file in kept.iterdir()}
    assert said[0][2] in files
    assert len(files) == 3, "the best two and the last"
    scores = sorted(float(score) for score in re.findall(r"fid=([\d.]+)\.ckpt", " ".join(files)))
    assert float(re.findall(r"fid=([\d.]+)\.ckpt", said[0][2])[0]) == scores[0]
    resumed = programs.run(2, "train_lightning.py", real, "--epochs", 5, *settings, "--resume", kept / "last.ckpt")
    assert resumed.status == 0, resumed.stderr
    assert float(re.findall(r"distance (\S+),", resumed.stdout)[0]) < float(said[0][1]), "two more epochs do it good"


def test_tuning_lowers_the_held_out_fid(programs: Programs, real: Path) -> None:
    settings = ("--feature", SMALL, "--steps", 60, "--batch", 16, "--samples", 256)
    found = []
    for ranks in (1, 2):
        run = programs.run(ranks, "tune_generator.py", real, *settings)
        assert run.status == 0, run.stderr
        before, after = map(float, re.findall(r"held-out samples: (\S+) before, (\S+) after", run.stdout)[0])
        assert after < before / 2
        found.append(before)
    assert found[0] == found[1], "the held-out samples are the same ones at any number of ranks"


def test_arcface_encoder(programs: Programs, fidtool: Run, real: Path, tmp_path: Path) -> None:
    """W stays in sync, the classes are told apart, and the encoder serves as an extractor."""
    for seed in range(3):
        make_pictures(tmp_path / "classes" / str(seed), 20, 20)
        for number, file in enumerate(sorted((tmp_path / "classes" / str(seed)).iterdir())):
            tint(file, seed, number)
    run = programs.run(2, "train_arcface.py", tmp_path / "classes", "--steps", 40, "--output", tmp_path / "encoder.pt")
    assert run.status == 0, run.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+), the ranks are in sync", run.stdout)]
    assert len(losses) > 5
    assert losses[-1] < losses[0] / 2
    extractor = f"{SCRIPTS / 'train_arcface.py'}:network"
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
    few = programs.run(2, "train_arcface.py", tmp_path / "classes", "--batch", 31)
    assert few.status == 1
    assert "30 images a rank are fewer than a batch; pass --batch 30" in few.stderr


@pytest.mark.parametrize("script", ["train_lightning.py", "tune_generator.py", "train_arcface.py"])
@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_that_is_none(programs: Programs, tmp_path: Path, script: str, folder: str) -> None:
    """A typo is said, not the error of a library that meets it later."""
    (tmp_path / "empty").mkdir()
    run = programs.run(1, script, tmp_path / folder)
    assert run.status == 1, "torchrun's own, whatever its ranks' is"
    assert re.search(rf"{script}: error: no .*{folder}", run.stderr), run.stderr


def tint(file: Path, channel: int, number: int) -> None:
    """Makes one colour of a picture stronger: the class that is to be learned."""
    from PIL import Image

    bands = list(Image.open(file).convert("RGB").split())
    bands[channel] = bands[channel].point(lambda value: min(255, value + 90 + number % 5))
    Image.merge("RGB", bands).save(file)
