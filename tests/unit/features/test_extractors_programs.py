"""Exported networks: reproducible passes, and gradients for training."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool
from fidtool.distributed.launch import Launch
from fidtool.features.building import build_extractor
from fidtool.features.choice import parse_networks
from fidtool.features.device import make_device
from support.own_networks import SETTINGS, save_script
from support.published_networks import built, make_sets


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path)
    return tmp_path


def test_every_pass_has_the_same_bits_on_any_thread(place: Path) -> None:
    """By default TorchScript compiles after two passes, and rounds differently from then on."""
    save_script(place / "small.pt", json.dumps(SETTINGS))
    extractor = built(str(place / "small.pt"))
    images = [
        torch.from_numpy(np.array(Image.open(file))) for file in sorted((place / "real").iterdir())
    ]
    first = extractor.extract(images)
    found: list[torch.Tensor] = []

    def work() -> None:
        torch.set_num_threads(1)
        found.extend(extractor.extract(images) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all(torch.equal(each, first) for each in found)


def test_training_accepts_named_networks_and_passes_gradients(place: Path) -> None:
    """Also through the rounding to 8 bits of a custom preparation."""
    timm = pytest.importorskip("timm", reason="needs timm, from the extra 'test'")
    from fidtool.training import FeatureExtractor

    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), place / "weights.pth")
    extractor = FeatureExtractor("timm:test_resnet", weights=place / "weights.pth")
    picture = torch.from_numpy(np.array(Image.open(place / "real" / "00000.png")))
    images = (picture.permute(2, 0, 1)[None].float() / 255).requires_grad_()
    output = extractor(images)
    measured = built("timm:test_resnet", place / "weights.pth").extract([picture])
    # The other pass uses channels-last memory and this one does not, so float32 convolutions round
    # differently.
    torch.testing.assert_close(output.detach(), measured, rtol=1e-4, atol=1e-5)
    output.sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert (images.grad != 0).float().mean() > 0.5
    with pytest.raises(
        fidtool.InputError, match="protocol='clean' cannot be combined with feature="
    ):
        FeatureExtractor("dinov2", protocol="clean")  # nothing is downloaded


class Reusing(torch.nn.Module):
    """Writes all results into the same memory, as a network that replays a CUDA graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.result = torch.zeros(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.result[: len(x)].copy_(x.mean((2, 3)))


def test_features_do_not_change_with_the_next_batch() -> None:
    cpu = make_device(torch.device("cpu"), Launch())
    network = fidtool.Network(Reusing(), input_size=4)
    extractor = build_extractor(parse_networks(network)[0], None, cpu)
    first = extractor.extract([torch.full((4, 4, 3), 200, dtype=torch.uint8)])
    extractor.extract([torch.zeros(4, 4, 3, dtype=torch.uint8)])
    assert first.min() > 0


def test_a_gpu_without_memory_for_resizing_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    cpu = make_device(torch.device("cpu"), Launch())
    network = fidtool.Network(torch.nn.AvgPool2d(4), input_size=4)
    extractor = build_extractor(parse_networks(network)[0], None, cpu)
    monkeypatch.setattr("fidtool.features.extractor.prepare_images", refuse)
    with pytest.raises(
        fidtool.RunError, match=r"a batch of 1 image: .*out of memory; try a smaller batch"
    ):
        extractor.extract([torch.zeros(4, 4, 3, dtype=torch.uint8)])
