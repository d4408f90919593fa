"""Comparisons that are not in the parity table: earlier layers, statistics files, the metric for
training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool
from fidtool import training
from support.offline import write_official_file
from support.pictures import make_pictures

RELATIVE = 1e-5


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Limit the peer's distance to one thread: spinning BLAS threads would slow down parallel
    tests.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # installed with prdc's scikit-learn
            from threadpoolctl import threadpool_limits

            stack.enter_context(threadpool_limits(1, "blas"))
        yield


@pytest.fixture(scope="module")
def torch_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TORCH_HOME with the offline weights in the format of the official file, which the peers use
    as a download.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIDTOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        home = tmp_path_factory.mktemp("torch-home")
        write_official_file(home)
    return home


@pytest.fixture
def weights_file(
    torch_home: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> str:
    """Let the peers use the weights."""
    monkeypatch.setenv("TORCH_HOME", str(torch_home))
    return str(next(torch_home.rglob("*.pth")))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two sets of colour, grayscale and palette images, smaller than the network's input."""
    root = tmp_path_factory.mktemp("pair")
    for name, seed in (("real", 1), ("fake", 2)):
        make_pictures(root / name, 8, seed, sides=(48,))
        for number, file in enumerate(sorted((root / name).iterdir())):
            picture = Image.open(file).convert("RGB").resize((48, 40))
            if number == 3:
                picture = picture.convert("L")
            if number == 7:
                picture = picture.quantize(16)
            picture.save(file)
    return str(root / "real"), str(root / "fake")


@pytest.fixture(scope="module")
def large_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two sets of mixed sizes, most of them above 299 pixels, which are downsampled."""
    root = tmp_path_factory.mktemp("large")
    for name, seed in (("real", 3), ("fake", 4)):
        make_pictures(root / name, 4, seed, ".jpg", sides=(301, 420, 150, 640))
    return str(root / "real"), str(root / "fake")


def test_the_training_metric_matches_torchmetrics(
    large_pair: tuple[str, str], weights_file: str
) -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    peer = FrechetInceptionDistance(
        feature=64, antialias=True, feature_extractor_weights_path=weights_file
    )
    metric = training.FrechetInceptionDistance(64, protocol="torchmetrics")
    for folder, real in zip(large_pair, (True, False), strict=True):
        for file in sorted(Path(folder).iterdir()):
            pixels = np.array(Image.open(file).convert("RGB"))
            for each in (peer, metric):
                each.update(torch.from_numpy(pixels).permute(2, 0, 1)[None], real=real)
    # torchmetrics returns a float32, and its eigenvalues of a singular product have errors of about
    # 1e-6.
    ours = fidtool.compute(
        *large_pair, dims=64, protocol="torchmetrics", cache=False
    ).frechet_distance
    wanted = float(peer.compute())
    assert ours == pytest.approx(wanted, rel=RELATIVE)
    assert float(metric.compute()) == pytest.approx(wanted, rel=RELATIVE)


def test_statistics_files_are_exchangeable_with_pytorch_fid(
    pair: tuple[str, str], weights_file: str, tmp_path: Path
) -> None:
    from pytorch_fid.fid_score import calculate_fid_given_paths, save_fid_stats

    theirs, ours = str(tmp_path / "theirs.npz"), str(tmp_path / "ours.npz")
    save_fid_stats([pair[0], theirs], 5, "cpu", 64, num_workers=0)
    evaluation = fidtool.compute(theirs, pair[1], dims=64, cache=False)
    assert any(
        "does not state its protocol" in line for line in map(str, evaluation.results[0].warnings)
    )
    statistics = fidtool.compute_statistics(pair[0], dims=64, cache=False)
    assert statistics is not None
    fidtool.write_statistics(ours, statistics)
    reference = calculate_fid_given_paths([ours, pair[1]], 5, "cpu", 64, num_workers=0)
    assert evaluation.frechet_distance == pytest.approx(reference, rel=RELATIVE)
    assert fidtool.compute(ours, pair[1], dims=64, cache=False).frechet_distance == pytest.approx(
        reference, rel=RELATIVE
    )
