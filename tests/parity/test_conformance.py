"""FID of photos and CIFAR-10 images against values of other tools and of the original TensorFlow graph."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

import fidtool
from fidtool.sources.folder import list_folder
from fidtool.sources.image_set import canonical_order
from support.places import CONFORMANCE

pytestmark = pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images")

PAIRS = {"flowers": ("daisy", "roses"), "cifar10": ("train", "test")}
EACH = ["flowers", pytest.param("cifar10", marks=pytest.mark.slow)]
"""512 images of CIFAR-10 take one minute per protocol on one core. The 240 photos are compared in every run."""


def goldens(pair: str) -> dict[str, float]:
    """Return the value of each tool, computed with its own code."""
    measured = json.loads((CONFORMANCE / "goldens.json").read_text())[pair]
    return {name: entry["fid"] for name, entry in measured.items()}


def folders(pair: str) -> tuple[str, str]:
    first, second = PAIRS[pair]
    return str(CONFORMANCE / pair / first), str(CONFORMANCE / pair / second)


@pytest.mark.parametrize("pair", EACH)
def test_pytorch_fid_protocol(pair: str, environment: dict[str, str]) -> None:
    ours = fidtool.compute(*folders(pair), cache=False).fid
    assert ours == pytest.approx(goldens(pair)["pytorch_fid"], rel=1e-5)
    assert ours == pytest.approx(goldens(pair)["clean_fid_legacy_pytorch"], rel=1e-5)


@pytest.mark.slow
def test_tensorflow_protocol(environment: dict[str, str]) -> None:
    ours = fidtool.compute(*folders("cifar10"), protocol="tensorflow", cache=False).fid
    assert ours == pytest.approx(goldens("cifar10")["torch_fidelity"], rel=1e-5)
    assert ours == pytest.approx(goldens("cifar10")["torchmetrics_antialias_false"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "golden"), [("clean", "clean_fid_clean"), ("torchmetrics", "torchmetrics_default")]
)
def test_antialiased_protocols(protocol: str, golden: str, environment: dict[str, str]) -> None:
    """Compares FID of photos, which are reduced; the rows of scripts/parity also cover images that are enlarged.

    The largest relative differences are 5.8e-7 for clean and 5.8e-7 for torchmetrics, whose value is a float32.
    """
    ours = fidtool.compute(*folders("flowers"), protocol=protocol, cache=False).fid
    assert ours == pytest.approx(goldens("flowers")[golden], rel=1e-5)


@pytest.fixture(scope="module")
def graph() -> dict[str, dict[str, NDArray[np.float32]]]:
    """The feature vectors of the original TensorFlow graph, by set and file name."""
    found = {}
    for kind in PAIRS["flowers"]:
        with np.load(CONFORMANCE / "flowers" / f"{kind}_tensorflow_pool3.npz") as archive:
            found[kind] = dict(zip(archive["names"].tolist(), archive["pool3"], strict=True))
    return found


def chosen(kind: str, vectors: dict[str, NDArray[np.float32]], num: int | None = None) -> NDArray[np.float64]:
    """Return the vectors of the set's first ``num`` images in canonical order."""
    names = list(list_folder(str(CONFORMANCE / "flowers" / kind)).names)
    return np.stack([vectors[names[index]] for index in canonical_order(len(names))[:num]]).astype(np.float64)


def test_tensorflow_protocol_on_photos(
    graph: dict[str, dict[str, NDArray[np.float32]]], environment: dict[str, str]
) -> None:
    """Compares FID with other tools and the original graph, and each feature vector with the graph's."""
    pair = [fidtool.compute_statistics(path, protocol="tensorflow", metrics="kid") for path in folders("flowers")]
    ours = fidtool.compute(*folders("flowers"), protocol="tensorflow").fid  # from the cache
    for name in ("torch_fidelity", "torchmetrics_antialias_false"):
        assert ours == pytest.approx(goldens("flowers")[name], rel=1e-5)
    assert ours == pytest.approx(359.262045, rel=2e-6), "the value from the vectors of the original graph"
    for kind, statistics in zip(PAIRS["flowers"], pair, strict=True):
        assert statistics is not None
        assert statistics.features is not None
        theirs = chosen(kind, graph[kind])
        assert theirs.shape == statistics.features.shape == (120, 2048)
        relative = np.linalg.norm(statistics.features - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        assert relative.max() < 1e-5


def test_stylegan_protocol(graph: dict[str, dict[str, NDArray[np.float32]]], environment: dict[str, str]) -> None:
    """The vectors of the original graph, with covariances divided by n; few photos make the divisor matter more."""
    moments = []
    for kind in PAIRS["flowers"]:
        vectors = chosen(kind, graph[kind], num=16)
        moments += [vectors.mean(0), np.cov(vectors, rowvar=False, ddof=0)]
    ours = fidtool.compute(*folders("flowers"), protocol="stylegan", num=16, cache=False).fid
    assert ours == pytest.approx(fidtool.frechet_distance(*moments), rel=2e-6)
