"""Which images raise an FID: the derivative, what it predicts, and what is measured without them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fidtool import frechet_distance
from fidtool.labels import Labels
from fidtool.metrics.influence import Target, influence, transport_root
from fidtool.statistics.gaussian import MeanCovariance
from support import degenerate
from support.command_line import Run, frechet
from support.feature_sets import alone
from support.places import CONFORMANCE, FD, TINY
from test_extrapolation import DIMS, MU, REAL, SIGMA, Array, generated

DISTANCE = Labels(TINY).key("fid")


@pytest.mark.parametrize("count", [None, 9])
def test_the_influence_is_the_derivative(count: int | None) -> None:
    """Of the distance, by the weight of one image; also where the reals' covariance is singular."""
    real = REAL
    if count is not None:
        rows = np.random.RandomState(3).randn(count, DIMS)
        real = Target(rows.mean(0), np.cov(rows.T), count)
    x = generated(60, 7).astype(np.float64)

    def distance(weights: Array) -> float:
        mu = weights @ x
        return frechet_distance(real.mu, real.sigma, mu, ((x - mu).T * weights) @ (x - mu), count1=count)

    even = np.full(len(x), 1 / len(x))
    mu = even @ x
    fitted = MeanCovariance(mu, np.cov(x.T, ddof=0), len(x))
    h = influence(real, fitted, x.astype(np.float32), alone(), torch.device("cpu"))
    assert h.mean() == pytest.approx(0, abs=1e-12)
    for number in (0, 17, 59):
        step = 1e-5 * (np.eye(len(x))[number] - even)
        numeric = (distance(even + step) - distance(even - step)) / 2e-5
        assert h[number] == pytest.approx(numeric, rel=1e-5, abs=1e-7)


def test_the_root_is_that_of_the_optimal_transport() -> None:
    """T takes one covariance to the other: T sigma_fake T = sigma_real."""
    root = transport_root(REAL, MeanCovariance(MU, SIGMA, 100)).numpy()
    transport = root @ root.T
    # float64: a few thousand roundings of 1e-16 of entries near 1.
    np.testing.assert_allclose(transport @ SIGMA @ transport, REAL.sigma, rtol=0, atol=1e-12)


def with_harmful(folder: Path, good: int, bad: int) -> Path:
    """Pictures of the toy generator, and some of noise among them."""
    degenerate.distinct(folder, good)
    return degenerate.write(
        folder,
        ((f"bad-{i}.png", np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)) for i in range(bad)),
    )


def influence_of(here: Run, real: Path, fake: Path, *flags: object) -> tuple[float, dict[str, Any]]:
    outcome = here("compute", real, fake, *flags, "--influence", "--json")
    assert outcome.status == 0, outcome.stderr
    (result,) = outcome.json["results"]
    return frechet(result), result["influence"]


def fid_without(here: Run, real: Path, fake: Path, files: list[str], *flags: object) -> float:
    """By a folder that lacks them, beside the other one."""
    rest = fake.with_name(f"{fake.name}-without-{len(files)}")
    shutil.copytree(fake, rest)
    for file in files:
        (rest / Path(file).name).unlink()
    fid = here("compute", real, rest, *flags, "--json").fid
    shutil.rmtree(rest)
    return fid


def check_removals(
    here: Run, real: Path, fake: Path, *flags: object, distance: str = DISTANCE, by_files: int = 3
) -> dict[str, Any]:
    """What the effects predict is right to 20 %; for the largest ``by_files`` removals files are removed for real.

    Removing files at random, whichever they are, does not show it.
    """
    fid, found = influence_of(here, real, fake, *flags)
    everything = sorted(str(file) for file in fake.iterdir())
    assert [part["fraction"] for part in found["removals"]] == [0.005, 0.01, 0.02]
    for part in found["removals"]:
        count = part["images"]
        assert count == max(1, round(part["fraction"] * len(everything)))
        worst = [image["file"] for image in found["most_harmful"][:count]]
        assert part["predicted"] - fid == pytest.approx(part[distance] - fid, rel=0.2)
        if part not in found["removals"][-by_files:]:
            continue
        measured = fid_without(here, real, fake, worst, *flags)
        assert part[distance] == pytest.approx(measured, rel=1e-9)
        draws = [
            np.random.default_rng(seed).choice(everything, count, replace=False).tolist() for seed in range(by_files)
        ]
        changes = [fid_without(here, real, fake, some, *flags) - fid for some in draws]
        assert abs(np.mean(changes)) < 0.2 * abs(measured - fid)
    assert found["doubt"] == ""
    return found


def test_predicted_and_measured_agree(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fake = with_harmful(tmp_path / "fake", 360, 40)
    found = check_removals(here, real, fake, "--extractor", TINY)
    assert [image for image in found["most_harmful"] if "bad-" not in image["file"]] == []
    effects = [image["effect"] for image in found["most_harmful"]]
    assert len(effects) == 20
    assert effects == sorted(effects, reverse=True)
    least = [image["effect"] for image in found["least_harmful"]]
    assert least == sorted(least)
    assert least[0] < 0 < effects[0]


def test_predicted_and_measured_agree_on_photos(here: Run, tmp_path: Path) -> None:
    """CIFAR-10 images with some photos of flowers among them, by Inception's first 64 features."""
    if not CONFORMANCE.is_dir():
        pytest.skip("the conformance data is not there")
    fake = tmp_path / "fake"
    shutil.copytree(CONFORMANCE / "cifar10" / "test", fake)
    for number, file in enumerate(sorted((CONFORMANCE / "flowers" / "daisy").glob("*.jpg"))[:8]):
        Image.open(file).convert("RGB").save(fake / f"flower-{number}.png")
    found = check_removals(here, CONFORMANCE / "cifar10" / "train", fake, "--dims", 64, distance="fid_64", by_files=1)
    worst = [Path(image["file"]).name for image in found["most_harmful"][:5]]
    assert [name for name in worst if not name.startswith("flower-")] == []


def test_where_the_effects_do_not_add_up_that_is_said(here: Run, tmp_path: Path) -> None:
    """Once all that is at fault is gone, more was promised than the FID had to give: its root flattens there."""
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fid, found = influence_of(here, real, with_harmful(tmp_path / "fake", 392, 8), "--extractor", TINY)
    last = found["removals"][-1]
    assert last["images"] == 8
    assert last["predicted"] < last[DISTANCE] < fid
    assert f"the effects predict an {FD} of {last['predicted']:.6g} and it is {last[DISTANCE]:.6g}" in found["doubt"]


def test_the_lines_for_people(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 100, first=5000)
    fake = with_harmful(tmp_path / "fake", 96, 4)
    outcome = here("compute", real, fake, "--extractor", TINY, "--influence", "--quiet")
    assert outcome.stdout.count("\n") == 1
    lines = outcome.stderr.splitlines()
    start = lines.index(f"{fake}: these images raise the {FD} most:")
    assert all("bad-" in line for line in lines[start + 1 : start + 5])
    assert any(f"without the worst 2.0% (2 images) the {FD} is" in line for line in lines)


def test_fewer_images_than_dimensions_are_doubted(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    _, found = influence_of(here, real, degenerate.distinct(tmp_path / "fake", 12), "--extractor", TINY)
    assert "12 images for 16 dimensions" in found["doubt"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_bits_at_any_world_size(fidtool: Run, here: Run, tmp_path: Path, ranks: int) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    arguments = ["compute", real, with_harmful(tmp_path / "fake", 60, 3), "--extractor", TINY]
    arguments += ["--influence", "--uncertainty", "--batch-size", 4, "--no-cache", "--json"]
    expected = here(*arguments).json["results"]
    assert fidtool(*arguments, ranks=ranks, FIDTOOL_FEATURE_BYTES="0").json["results"] == expected


def test_files_need_their_features(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    fake = degenerate.distinct(tmp_path / "fake", 60)
    assert here("stats", fake, "-o", "fake.npz", "--extractor", TINY).status == 0
    outcome = here("compute", real, "fake.npz", "--extractor", TINY, "--influence")
    assert outcome.status == 2
    assert "fake.npz holds a mean and a covariance" in outcome.error
    kept = ("--extractor", TINY, "--metrics", "fid,kid")
    assert here("stats", fake, "-o", "kept.npz", *kept).status == 0
    _, found = influence_of(here, real, Path("kept.npz"), "--extractor", TINY)
    _, direct = influence_of(here, real, fake, "--extractor", TINY)
    assert [image["effect"] for image in found["most_harmful"]] == [image["effect"] for image in direct["most_harmful"]]


def test_it_is_about_the_fid(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    for flag in ("--influence", "--uncertainty"):
        outcome = here("compute", real, real, "--metrics", "kid", flag)
        assert outcome.status == 2
        assert "about the metric fid" in outcome.error
