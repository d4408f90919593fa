"""Photos and CIFAR-10 images: no false alarms, Pillow's resizing, influence, error bars, duplicates."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import fidtool as package
from fidtool.diagnose.copies import find_copies
from fidtool.features.preparation import Preparation
from fidtool.images.decode import decode
from fidtool.images.records import RecordArray
from fidtool.statistics.moments import Gaussian
from support.command_line import Run
from support.degenerate import Pixels, compared, encoded, records_of
from support.influences import check_removals
from support.places import CONFORMANCE
from support.preparations import ours, widths_first
from support.shared_statistics import share_statistics
from support.simulations import AT_ONCE, check_coverage

Array = NDArray[np.float64]
pytestmark = pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images")


@pytest.mark.parametrize("name", ["cifar10/train", "cifar10/test", "flowers/daisy", "flowers/roses"])
def test_photos_have_no_findings(here: Run, name: str) -> None:
    other = CONFORMANCE / {"train": "cifar10/test", "test": "cifar10/train", "daisy": "flowers/roses"}.get(
        name.split("/")[1], "flowers/daisy"
    )
    outcome = here("check", CONFORMANCE / name, "--against", other)
    lines = outcome.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith(": no findings") for line in lines)


@pytest.mark.parametrize("pair", [("cifar10/train", "cifar10/test"), ("flowers/daisy", "flowers/roses")])
def test_photos_have_no_warnings(here: Run, pair: tuple[str, str]) -> None:
    real, fake = (CONFORMANCE / name for name in pair)
    result, _, outcome = compared(here, real, fake)
    assert result["warnings"] == []
    assert "warning" not in outcome.stderr
    diagnosis = result["diagnosis"]
    assert diagnosis["findings"] == []
    assert diagnosis["shared"] == {"count": 0, "examples": []}
    assert [diagnosis["duplicates"][name]["copies"] for name in ("real", "fake")] == [0, 0]


@pytest.fixture
def kept(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share the statistics of a folder between tests."""
    share_statistics(environment, tmp_path_factory.getbasetemp() / "photos-statistics")


@pytest.mark.slow
def test_predicted_and_computed_fid_agree_on_photos(here: Run, kept: None, tmp_path: Path) -> None:
    """CIFAR-10 images with some photos of flowers among them, with Inception's first 64 features."""
    fake = tmp_path / "fake"
    shutil.copytree(CONFORMANCE / "cifar10" / "test", fake)
    for number, file in enumerate(sorted((CONFORMANCE / "flowers" / "daisy").glob("*.jpg"))[:8]):
        Image.open(file).convert("RGB").save(fake / f"flower-{number}.png")
    found = check_removals(here, CONFORMANCE / "cifar10" / "train", fake, "--dims", 64, distance="fid_64", by_files=1)
    worst = [Path(image["file"]).name for image in found["most_harmful"][:5]]
    assert [name for name in worst if not name.startswith("flower-")] == []


def test_resized_photos_are_bitwise_equal_to_pillows() -> None:
    files = sorted((CONFORMANCE / "flowers" / "daisy").iterdir())[:20]
    assert len(files) == 20
    for file in files:
        picture = Image.open(file).convert("RGB")
        expected = np.array(widths_first(picture, 224, 224, "pillow-bicubic"))
        found = ours(picture, 224, Preparation("pillow-bicubic")).permute(1, 2, 0).numpy()
        assert np.abs(found - expected).max() == 0


@pytest.mark.slow
def test_coverage_of_intervals_on_photos(kept: None) -> None:
    """Inception's first 64 features of CIFAR-10. Fakes are drawn with replacement from other photos and from REAL."""
    computed = (
        package.compute_statistics(CONFORMANCE / "cifar10" / name, dims=64, metrics="fid,kid")
        for name in ("train", "test")
    )
    populations = [each.features.astype(np.float64) for each in computed if each is not None]
    real, other = (Gaussian(rows.mean(0), np.cov(rows.T, ddof=0), None) for rows in populations)
    rng = np.random.RandomState(3)

    def draw() -> tuple[Array, Array]:
        which = rng.randint(0, 256, (2, AT_ONCE, 640))
        return populations[1][which[0]], populations[0][which[1]]

    check_coverage(real, draw, [other, real])


@cache
def lossless(folder: str) -> tuple[list[Pixels], RecordArray]:
    """Return the first hundred photos and their records as PNG files."""
    files = sorted((CONFORMANCE / folder).glob("*.*g"))[:100]
    pixels = [decode(file.read_bytes()).pixels for file in files]
    return pixels, records_of([encoded(each, compress_level=1) for each in pixels])


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"quality": 95}), ("JPEG", {"quality": 75}), ("WEBP", {"quality": 80})],
)
@pytest.mark.parametrize("folder", ["cifar10/test", "flowers/roses"])
def test_re_encoded_photos_are_found(folder: str, kind: str, options: dict[str, int]) -> None:
    pixels, first = lossless(folder)
    second = records_of([encoded(each, kind, **options) for each in pixels])
    exact, near = find_copies(np.concatenate([first, second]))
    assert len(np.unique(exact)) == len(exact)
    assert near is not None
    found = near[len(first) :] == np.arange(len(first))
    assert found.mean() >= 0.97
    assert not (near[: len(first)] != np.arange(len(first))).any()


@pytest.mark.parametrize("folder", ["cifar10/train", "cifar10/test", "flowers/daisy", "flowers/roses"])
def test_photos_are_not_duplicates(folder: str) -> None:
    files = sorted((CONFORMANCE / folder).glob("*.*g"))
    records = records_of([file.read_bytes() for file in files])
    _, near = find_copies(records)
    assert len(np.unique(near)) == len(records)
