"""FID and FD-DINOv2 against the arithmetic of EDM2's calculate_metrics.py, written here step by
step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from support.places import CONFORMANCE
from support.plain_dinov2 import DEPTH, DIMS, HEADS, Published, published_file

pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images"),
]

KINDS, PHOTOS = ("daisy", "roses"), 8
"""The two sets, and the number of photos of each."""
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


def moments_of(batches: list[torch.Tensor]) -> Moments:
    """Return mean and covariance of batches of features, from float64 sums."""
    dims, count = batches[0].shape[1], 0
    total, products = (
        torch.zeros(dims, dtype=torch.float64),
        torch.zeros(dims, dims, dtype=torch.float64),
    )
    for batch in batches:
        features = batch.to(torch.float64)
        total += features.sum(0)
        products += features.T @ features
        count += len(features)
    mu = total / count
    return mu.numpy(), ((products - torch.outer(mu, mu) * count) / (count - 1)).numpy()


def value_of(fake: Moments, real: Moments) -> float:
    """Return the distance by the matrix square root of the product.

    It is computed in the span of both covariances: that of few images in 2048 dimensions takes half
    a minute otherwise.
    """
    difference = np.square(fake[0] - real[0]).sum()
    directions = np.random.RandomState(0).standard_normal((len(fake[0]), 2 * PHOTOS))
    basis, _ = np.linalg.qr(np.hstack([fake[1] @ directions, real[1] @ directions]))
    sigmas = [basis.T @ sigma @ basis for sigma in (fake[1], real[1])]
    root = scipy.linalg.sqrtm(np.dot(*sigmas))
    return float(np.real(difference + np.trace(fake[1] + real[1]) - 2 * np.trace(root)))


def prepared(picture: Any, mode: str) -> torch.Tensor:
    """Return a network's input, shape (3, 224, 224), as DINOv2Detector does for a
    ``resize_mode``.
    """
    if mode == "pil":
        x = torch.from_numpy(
            np.array(picture.resize((224, 224), Image.Resampling.BICUBIC))
        ).permute(2, 0, 1)
    else:
        x = torch.from_numpy(np.array(picture)).permute(2, 0, 1).to(torch.float32)
        x = torch.nn.functional.interpolate(
            x[None], size=(224, 224), mode="bicubic", antialias=True
        )[0]
    x = x.to(torch.float32) / 255
    mean, std = (
        torch.tensor(each).reshape(-1, 1, 1)
        for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return (x - mean) / std


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The first photos of each kind, as links in folders of their own."""
    place, found = tmp_path_factory.mktemp("edm2"), dict[str, list[Path]]()
    for kind in KINDS:
        (place / kind).mkdir()
        # Without tall photos, of which Pillow 13 resamples the heights first.
        wide = [
            each
            for each in sorted((CONFORMANCE / "flowers" / kind).glob("*.jpg"))
            if _is_wide(each)
        ]
        found[kind] = [place / kind / each.name for each in wide[:PHOTOS]]
        for link, target in zip(found[kind], wide, strict=False):
            link.symlink_to(target)
    return found


def _is_wide(file: Path) -> bool:
    with Image.open(file) as picture:
        return picture.width >= picture.height


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("dinov2") / "vits14.pth"
    torch.save(published_file(DIMS, DEPTH), file)
    return file


@pytest.fixture(scope="module")
def fd_dinov2(sets: dict[str, list[Path]], weights: Path) -> Callable[[str], float]:
    network = Published(torch.load(weights, weights_only=True), HEADS, DEPTH)

    def computed(mode: str) -> float:
        moments = []
        for files in sets.values():
            inputs = torch.stack(
                [prepared(Image.open(file).convert("RGB"), mode) for file in files]
            )
            with torch.inference_mode():
                moments.append(moments_of([network(batch) for batch in inputs.split(8)]))
        return value_of(moments[1], moments[0])

    return computed


def folders(sets: dict[str, list[Path]]) -> list[str]:
    return [str(files[0].parent) for files in sets.values()]


@pytest.mark.parametrize("mode", ["torch", "pil"])
def test_both_resize_modes(
    sets: dict[str, list[Path]],
    weights: Path,
    fd_dinov2: Callable[[str], float],
    environment: dict[str, str],
    mode: str,
) -> None:
    found = fidtool.compute(
        *folders(sets), extractor=f"dinov2:vits14@weights={weights},protocol={mode}", cache=False
    )
    assert found.to_dict()["results"][0]["count"] == {"real": PHOTOS, "fake": PHOTOS}
    assert found.frechet_distance == pytest.approx(fd_dinov2(mode), rel=1e-5)


def test_both_networks_in_one_run(
    sets: dict[str, list[Path]],
    weights: Path,
    fd_dinov2: Callable[[str], float],
    environment: dict[str, str],
) -> None:
    """EDM2's Inception is a translation of the graph of 2015, whose feature vectors are stored
    beside the photos.
    """
    extractor = f"inception,dinov2:vits14@weights={weights},protocol=torch"
    found = fidtool.compute(*folders(sets), extractor=extractor, protocol="tensorflow", cache=False)
    moments = []
    for kind, files in sets.items():
        with np.load(CONFORMANCE / "flowers" / f"{kind}_tensorflow_pool3.npz") as archive:
            rows = dict(zip(archive["names"].tolist(), archive["pool3"], strict=True))
        moments.append(
            moments_of([torch.from_numpy(np.stack([rows[file.name] for file in files]))])
        )
    expected = {"fid": value_of(moments[1], moments[0]), "fd_dinov2_vits14": fd_dinov2("torch")}
    assert found.results[0].metrics == pytest.approx(expected, rel=1e-5)
