"""A held-out set: the floor of the FID, and memorisation, of generators that copy a share of their
training images.
"""

from __future__ import annotations

import csv
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.neighbors import nearest_reals
from fidtool.result.evaluation import Evaluation, read_evaluation
from fidtool.result.explanations import Heldout
from support.command_line import Run
from support.feature_sets import Features, mixture, normal
from support.pictures import make_pictures
from support.places import COLOURS, TINY

COUNT, DIMS = 1000, 64
NETWORK = ("--extractor", TINY)


def generated(train: Features, share: float, noise: float, seed: int) -> Features:
    """Return samples of which a share are images of ``train`` with a little noise, in random
    order.
    """
    rng = np.random.RandomState(seed)
    copied = round(share * COUNT)
    fresh = normal(COUNT - copied, DIMS, seed + 1)
    copies = train[rng.choice(len(train), copied)] + noise * rng.randn(copied, DIMS).astype(
        np.float32
    )
    return rng.permutation(np.concatenate([fresh, copies]))


def evaluated(
    real: object, fake: object, heldout: object, **settings: Any
) -> tuple[Evaluation, Heldout]:
    """Return an evaluation of features and its comparison with the held-out set."""
    with pytest.warns(fidtool.FidtoolWarning, match="does not state its protocol"):
        found = fidtool.compute(real, fake, heldout=heldout, features=True, **settings)  # type: ignore[arg-type]
    compared = found.results[0].heldout
    assert compared is not None
    return found, compared


@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["exact", "near"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_a_generator_that_copies_its_training_images(share: float, noise: float) -> None:
    """Of exact and near copies, and fresh samples, the truth is in the interval, and copying lowers
    the FID.
    """
    train, heldout = normal(COUNT, DIMS, 0), normal(COUNT, DIMS, 1)
    found, compared = evaluated(train, generated(train, share, noise, 2), heldout)
    near, settings = compared.nearest, FeatureSettings(18)
    known = nearest_reals(train, heldout, settings)[1]
    by_chance = float(
        (nearest_reals(train, normal(20_000, DIMS, 5), settings)[1] < known.min()).mean()
    )
    assert by_chance < 0.005
    assert near.low <= share + (1 - share) * by_chance <= near.high
    assert near.high - near.low < 0.07
    assert near.copies == (share * COUNT if noise == 0 else 0)
    assert near.heldout_copies == 0
    assert near.heldout_median == np.median(known)
    assert abs(near.probability - (0.5 + share / 2)) < 3 * near.error
    assert (near.probability > 0.5 + 3 * near.error) == (share == 0.5), (
        "5 % of copies hide in the overall distances"
    )
    distance, floor = found.frechet_distance, compared.floors["fd_64"]
    assert distance is not None
    if share == 0.5:
        assert distance < 0.7 * floor, "it is nearer to REAL than real images are"
    else:
        assert abs(distance / floor - 1) < 0.1


def test_a_generator_that_is_bad_has_no_copies() -> None:
    train, heldout = mixture(COUNT, DIMS, 0), mixture(COUNT, DIMS, 1)
    found, compared = evaluated(train, mixture(COUNT, DIMS, 2) + normal(COUNT, DIMS, 3), heldout)
    assert found.frechet_distance is not None
    assert found.frechet_distance > 2 * compared.floors["fd_64"]
    assert compared.nearest.probability < 0.2
    assert (compared.nearest.closer, compared.nearest.low) == (0, 0)


def test_the_floor_is_the_distance_of_the_held_out_features() -> None:
    train, heldout = normal(COUNT, DIMS, 0), normal(500, DIMS, 1)
    found, compared = evaluated(train, normal(COUNT, DIMS, 2), heldout)
    with pytest.warns(fidtool.FidtoolWarning):
        floors = {
            "fd_64": fidtool.compute(train, heldout, features=True).results[0].metrics["fd_64"]
        }
    assert compared == Heldout("heldout", 500, 500, floors, compared.nearest)
    assert Evaluation.from_dict(found.to_dict()).results[0].heldout == compared


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Folders: REAL, held-out images, a FAKE with 10 of REAL's images among 60, and one with 20
    images.
    """
    for seed, (name, count) in enumerate((("real", 80), ("val", 40), ("fake", 50), ("few", 20))):
        make_pictures(tmp_path / name, count, seed)
    for number in range(10):
        shutil.copy(tmp_path / "real" / f"{number:05}.png", tmp_path / "fake" / f"copy{number}.png")
    time.sleep(0.08)  # younger files are not cached
    return tmp_path


def heldout_of(here: Run, *arguments: object) -> list[dict[str, Any]]:
    """Return what the JSON of a run has of the held-out set, by FAKE."""
    outcome = here("compute", *arguments, "--json")
    assert outcome.status == 0, outcome.stderr
    return [each["heldout"] for each in outcome.json["results"]]


def test_images_in_every_output(here: Run, place: Path) -> None:
    files = ("-o", "fid.json", "-o", "fid.csv", "--report", "fid.html")
    done = here(
        "compute", "real", "fake", "few", "--heldout", "val", *NETWORK, "--format", "lines", *files
    )
    assert done.status == 0, done.stderr
    first, second = (each.heldout for each in read_evaluation(place / "fid.json").results)
    assert first is not None
    assert second is not None
    assert (first.name, first.count, first.images, second.images) == ("val", 40, 40, 20)
    assert (first.nearest.copies, second.nearest.copies, first.nearest.heldout_copies) == (10, 0, 0)
    assert (first.nearest.low < 10 / 60 < first.nearest.high, second.nearest.low) == (True, 0)
    (key,) = first.floors
    lines = done.stdout.splitlines()
    floor, verdict = (line for line in lines if line.endswith("  fake") and "val" in line)
    too_high = "(floor: 40 images not in REAL; too high, because FAKE has 60 images)  fake"
    assert floor == f"FD ({TINY}) of val: {first.floors[key]:.4f} {too_high}"
    said = "memorisation (diagnostic, no quality score): FAKE has 10 copies of images in REAL ("
    assert verdict.startswith(f"{said}{first.nearest.closer:.2%} of the images in FAKE (95 %: ")
    assert (
        "the chance that an image in FAKE is closer than one in val is "
        f"{first.nearest.probability:.3f} (0.5 ± 0.0" in verdict
    )
    assert verdict.endswith("; 10 and 0 images at distance 0)  fake")
    assert f"{second.floors[key]:.4f} (floor: 20 images not in REAL)  few" in done.stdout
    page, table = (place / "fid.html").read_text(), here("table", "fid.json").stdout
    for line in (floor, verdict):
        assert line in table
        assert line.removesuffix("  fake")[1:] in page
    assert page.count("<h4>Held-out images</h4>") == 2
    row, _ = csv.DictReader((place / "fid.csv").read_text().splitlines())
    assert row["heldout.name"] == "val"
    assert float(row[f"heldout.floors.{key}"]) == first.floors[key]
    assert float(row["heldout.nearest.closer"]) == first.nearest.closer


def test_the_floor_is_that_of_a_run_of_its_own(here: Run, place: Path) -> None:
    """Of two networks and of another framing, with the same number of images: bit for bit."""
    networks = ("--extractor", f"{TINY},{COLOURS}", "--no-cache")
    settings = (*networks, "--crop", "adm:16", "--crop-fake", "adm:16", "--sample", "random")
    fake, few = heldout_of(here, "real", "fake", "few", "--heldout", "val", *settings)
    for compared, count in ((fake, 40), (few, 20)):
        own = here("compute", "real", "val", *settings, "--num-fake", count, "--json").metrics
        assert compared["floors"] == own
    (uncropped,) = heldout_of(
        here, "real", "few", "--heldout", "val", *networks, "--crop", "adm:16"
    )
    assert uncropped["floors"] == few["floors"], "it is framed like REAL"


def test_what_stands_in_for_the_images(here: Run, place: Path) -> None:
    """The cache, a statistics file with features, images in memory, and a FAKE that is the same
    set.
    """
    arguments = ("real", "few", *NETWORK)
    (known,) = heldout_of(here, *arguments, "--heldout", "val")
    again = here("compute", *arguments, "--heldout", "val", "--json")
    assert again.json["run"]["images_computed"] == 0
    assert again.json["run"]["config"]["heldout"] == "val"
    assert again.json["results"][0]["heldout"] == known
    assert here("stats", "val", "-o", "val.npz", "--metrics", "kid", *NETWORK).status == 0
    (of_file,) = heldout_of(here, *arguments, "--heldout", "val.npz")
    assert of_file == known | {"name": "val.npz"}
    with_all = here("compute", *arguments, "--heldout", "val.npz", "--metrics", "all", "--json")
    assert with_all.json["results"][0]["heldout"] == of_file, (
        "it needs no features of other metrics"
    )
    idle = here("compute", *arguments, "--heldout", "val.npz", "--num", 10, "--json")
    assert "val.npz has statistics: --num does not apply to it" in idle.stderr
    _, own = heldout_of(here, "real", "few", "val", "--heldout", "val", *NETWORK)
    assert own["nearest"]["probability"] == 0.5
    assert list(own["floors"].values()) == [here("compute", "real", "val", *NETWORK, "--json").fid]
    images = np.random.RandomState(0).randint(0, 256, (40, 24, 24, 3)).astype(np.uint8)
    sets: list[Any] = [images[:20], fidtool.Images(iter(images[20:30])), images[30:]]
    (given,) = fidtool.compute(sets[0], sets[1], heldout=sets[2], extractor=TINY).results
    assert given.heldout is not None
    assert (given.heldout.name, given.heldout.images) == ("heldout", 10)


def test_a_set_that_is_not_held_out_is_reported(here: Run, place: Path) -> None:
    shutil.copytree(place / "real", place / "leaked")
    done = here(
        "compute", "real", "few", "--heldout", "leaked", *NETWORK, "--num-real", 70, "--json"
    )
    assert (
        "leaked: 70 images are at distance 0 from REAL and thus not held out: no image in FAKE "
        "can be closer" in done.stderr
    )
    assert (
        "real: only 70 of 80 images are compared with FAKE one by one: copies of the other "
        "images are not found" in done.stderr
    )
    clean = here("compute", "real", "few", "--heldout", "val", *NETWORK, "--json").stderr
    assert "held out" not in clean
    assert "one by one" not in clean


def test_files_of_the_held_out_set_can_be_skipped(here: Run, place: Path) -> None:
    (place / "val" / "00007.png").write_bytes(b"no image")
    assert "val/00007.png" in here("compute", "real", "few", "--heldout", "val", *NETWORK).error
    lenient = ("--on-error", "skip", "--max-skip", 0.1)
    done = here("compute", "real", "few", "--heldout", "val", *NETWORK, *lenient, "--json")
    assert [each["set"] for each in done.json["results"][0]["skipped"]] == ["val"]
    assert done.json["results"][0]["heldout"]["count"] == 39


@pytest.mark.parametrize(
    ("heldout", "words"),
    [
        (
            "real",
            "--heldout real is REAL, which is the training set: pass real images that are not in "
            "it",
        ),
        ("./real/", "is REAL, which is the training set"),
        ("nowhere", "no such file or folder: nowhere"),
        ("", "no such file or folder"),
        (
            "plain.npz",
            "has only a mean and a covariance, but this run needs the features of each image",
        ),
    ],
)
def test_refusals(here: Run, place: Path, heldout: str, words: str) -> None:
    assert here("stats", "val", "-o", "plain.npz", *NETWORK, "--quiet").status == 0
    done = here("compute", "real", "few", "--heldout", heldout, *NETWORK)
    assert (done.status, done.stdout) == (2, "")
    assert words in done.error
    assert "images through the network" not in done.stderr


def test_a_statistics_file_of_real_without_features_is_refused(here: Run, place: Path) -> None:
    assert here("stats", "real", "-o", "plain.npz", *NETWORK, "--quiet").status == 0
    done = here("compute", "plain.npz", "few", "--heldout", "val", *NETWORK)
    assert "plain.npz has only a mean and a covariance" in done.error


def test_iterables_and_functions_are_sets_as_well(place: Path) -> None:
    settings: dict[str, Any] = {"extractor": TINY, "num": 4, "sample": "first"}
    real, few = str(place / "real"), str(place / "few")
    images = [Image.open(place / "val" / f"{number:05}.png") for number in range(4)]
    usual = fidtool.compute(real, few, heldout=images, **settings).results[0].heldout
    assert usual is not None
    for given in (fidtool.Images(iter(images)), lambda count, seed: images[:count]):
        found = fidtool.compute(real, few, heldout=given, **settings).results[0].heldout
        assert found is not None
        assert found.floors == usual.floors
