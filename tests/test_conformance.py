"""Photos and CIFAR-10 pixels on which every peer, and the original TensorFlow graph, were measured."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from conftest import CONFORMANCE

import fidtool
from fidtool.distributed.launch import Launch
from fidtool.features.device import choose_device, strict_fp32
from fidtool.features.extractor import inception_definition, inception_extractor
from fidtool.features.protocol import protocol_named
from fidtool.features.weights import load_weights
from fidtool.images.loader import DecodedBatch, PlannedBatch, Tolerance, WorkerWatch, load
from fidtool.images.plan import cut_batches
from fidtool.images.source import list_folder

pytestmark = pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="the conformance images are not beside the checkout")

PAIRS = {"flowers": ("daisy", "roses"), "cifar10": ("train", "test")}


def goldens(pair: str) -> dict[str, float]:
    """What each peer's own code gave."""
    measured = json.loads((CONFORMANCE / "goldens.json").read_text())[pair]
    return {name: entry["fid"] for name, entry in measured.items()}


def folders(pair: str) -> tuple[str, str]:
    first, second = PAIRS[pair]
    return str(CONFORMANCE / pair / first), str(CONFORMANCE / pair / second)


@pytest.mark.parametrize("pair", PAIRS)
def test_pytorch_fid_protocol(pair: str, environment: dict[str, str]) -> None:
    ours = fidtool.compute(*folders(pair), cache=False).fid
    assert ours == pytest.approx(goldens(pair)["pytorch_fid"], rel=1e-5)
    assert ours == pytest.approx(goldens(pair)["clean_fid_legacy_pytorch"], rel=1e-5)


@pytest.mark.parametrize("pair", PAIRS)
def test_tensorflow_protocol(pair: str, environment: dict[str, str]) -> None:
    ours = fidtool.compute(*folders(pair), protocol="tensorflow", cache=False).fid
    assert ours == pytest.approx(goldens(pair)["torch_fidelity"], rel=1e-5)
    assert ours == pytest.approx(goldens(pair)["torchmetrics_antialias_false"], rel=1e-5)
    if pair == "flowers":
        assert ours == pytest.approx(359.262045, rel=2e-6), "the original graph's own vectors give this"


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("protocol", "golden"), [("clean", "clean_fid_clean"), ("torchmetrics", "torchmetrics_default")]
)
def test_antialiased_protocols(pair: str, protocol: str, golden: str, environment: dict[str, str]) -> None:
    """Measured: relative 5.8e-7 at most for clean, 5.8e-7 for torchmetrics, whose number is a float32."""
    ours = fidtool.compute(*folders(pair), protocol=protocol, cache=False).fid
    assert ours == pytest.approx(goldens(pair)[golden], rel=1e-5)


def test_stylegan_protocol(environment: dict[str, str]) -> None:
    """The original graph's own vectors, with covariances divided by n."""
    moments = []
    for kind in PAIRS["flowers"]:
        with np.load(CONFORMANCE / "flowers" / f"{kind}_tensorflow_pool3.npz") as archive:
            vectors = archive["pool3"].astype(np.float64)
        moments += [vectors.mean(0), np.cov(vectors, rowvar=False, ddof=0)]
    ours = fidtool.compute(*folders("flowers"), protocol="stylegan", cache=False).fid
    assert ours == pytest.approx(fidtool.frechet_distance(*moments), rel=2e-6)


def _on(device: torch.device, batch: DecodedBatch) -> list[torch.Tensor]:
    return batch.images(device)


@pytest.mark.parametrize("kind", PAIRS["flowers"])
def test_every_photo_has_the_tensorflow_graphs_own_vector(kind: str, environment: dict[str, str]) -> None:
    protocol, device = protocol_named("tensorflow"), choose_device("cpu", Launch())
    weights = load_weights(None, print)
    extractor = inception_extractor(protocol, inception_definition(protocol, 2048, weights.sha256), weights, device)
    folder = list_folder(str(CONFORMANCE / "flowers" / kind))
    batches = [PlannedBatch(number, images) for number, images in enumerate(cut_batches(len(folder), 16))]
    stream = load(folder, batches, Tolerance(), 0, False, ranks_here=1, watch=WorkerWatch(9.0), complain=print)
    with strict_fp32():
        vectors = [x for _, x in extractor.run(stream, partial(_on, device.torch_device), lambda: False)]
    ours = torch.cat([x for x in vectors if x is not None]).numpy()
    with np.load(CONFORMANCE / "flowers" / f"{kind}_tensorflow_pool3.npz") as archive:
        by_name = dict(zip(archive["names"].tolist(), archive["pool3"], strict=True))
    theirs = np.stack([by_name[name] for name in folder.names])
    assert len(theirs) == 120
    relative = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    assert relative.max() < 1e-5
