"""FID of photos and CIFAR-10 images against values of other tools and of the original TensorFlow
graph.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

import fidtool
from fidtool.sources.image_set import canonical_order
from fidtool.sources.listing import list_folder
from support.places import CONFORMANCE

pytestmark = pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images")

PAIRS = {"flowers": ("daisy", "roses"), "cifar10": ("train", "test")}


def goldens(pair: str) -> dict[str, float]:
    """Return the value of each tool, computed with its own code."""
    measured = json.loads((CONFORMANCE / "goldens.json").read_text())[pair]
    return {name: entry["fid"] for name, entry in measured.items()}


def folders(pair: str) -> tuple[str, str]:
    first, second = PAIRS[pair]
    return str(CONFORMANCE / pair / first), str(CONFORMANCE / pair / second)


@pytest.mark.slow
def test_pytorch_fid_protocol(environment: dict[str, str]) -> None:
    ours = fidtool.compute(*folders("cifar10"), cache=False).fid
    assert ours == pytest.approx(goldens("cifar10")["pytorch_fid"], rel=1e-5)
    assert ours == pytest.approx(goldens("cifar10")["clean_fid_legacy_pytorch"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "golden"),
    [
        ("tensorflow", "torch_fidelity"),
        ("clean", "clean_fid_clean"),
        ("torchmetrics", "torchmetrics_default"),
    ],
)
def test_protocols_on_photos(protocol: str, golden: str, environment: dict[str, str]) -> None:
    """Photos are reduced; the rows of scripts/parity also cover images that are enlarged."""
    ours = fidtool.compute(*folders("flowers"), protocol=protocol, cache=False).fid
    assert ours == pytest.approx(goldens("flowers")[golden], rel=1e-5)
    if protocol == "tensorflow":
        assert ours == pytest.approx(359.262045, rel=2e-6), (
            "the value from the vectors of the original graph"
        )


@pytest.fixture(scope="module")
def graph() -> dict[str, dict[str, NDArray[np.float32]]]:
    """The feature vectors of the original TensorFlow graph, by set and file name."""
    found = {}
    for kind in PAIRS["flowers"]:
        with np.load(CONFORMANCE / "flowers" / f"{kind}_tensorflow_pool3.npz") as archive:
            found[kind] = dict(zip(archive["names"].tolist(), archive["pool3"], strict=True))
    return found


@pytest.mark.slow
def test_tensorflow_features_of_photos(
    graph: dict[str, dict[str, NDArray[np.float32]]], environment: dict[str, str]
) -> None:
    """Compares each feature vector with that of the original graph."""
    for kind, path in zip(PAIRS["flowers"], folders("flowers"), strict=True):
        statistics = fidtool.compute_statistics(path, protocol="tensorflow", metrics="kid", num=12)
        assert statistics is not None
        assert statistics.features is not None
        names = list(list_folder(path).stored)
        theirs = np.stack([graph[kind][names[index]] for index in canonical_order(len(names))[:12]])
        assert theirs.shape == statistics.features.shape == (12, 2048)
        relative = np.linalg.norm(statistics.features - theirs, axis=1) / np.linalg.norm(
            theirs, axis=1
        )
        assert relative.max() < 1e-5
