"""Exported networks: reproducible passes, settings, and use in the training metric."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool
from fidtool.settings import Settings
from support.own_networks import SETTINGS, make_place, save_script
from support.places import TINY
from support.published_networks import built


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(environment, tmp_path)


def test_every_pass_has_the_same_bits_on_any_thread(place: Path) -> None:
    """By default TorchScript compiles after two passes, and rounds differently from then on."""
    save_script(place / "small.pt", json.dumps(SETTINGS))
    extractor = built(str(place / "small.pt"))
    images = [torch.from_numpy(np.array(Image.open(file))) for file in sorted((place / "real").iterdir())]
    first = extractor.features(images)
    found: list[torch.Tensor] = []

    def work() -> None:
        torch.set_num_threads(1)
        found.extend(extractor.features(images) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all(torch.equal(each, first) for each in found)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"feature_step": 18}, "feature_step is fixed for Inception"),
        ({"input_size": 299}, "input_size is fixed for Inception"),
        ({"extractor": TINY, "feature_step": 101}, r"must be from -100 to 100"),
        ({"extractor": TINY, "feature_step": 1.5}, "must be an integer"),
        ({"extractor": TINY, "input_size": 0}, "at least 1"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        Settings(**settings)


def test_training_accepts_named_networks_and_passes_gradients(place: Path) -> None:
    """Also through the rounding to 8 bits of a custom preparation."""
    import torchvision

    from fidtool.training import FeatureExtractor

    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), place / "resnet18.pth")
    extractor = FeatureExtractor("torchvision:resnet18", weights=place / "resnet18.pth")
    picture = torch.from_numpy(np.array(Image.open(place / "real" / "00000.png")))
    images = (picture.permute(2, 0, 1)[None].float() / 255).requires_grad_()
    output = extractor(images)
    measured = built("torchvision:resnet18", place / "resnet18.pth").features([picture])
    # The other pass uses channels-last memory and this one does not, so float32 convolutions round differently.
    torch.testing.assert_close(output.detach(), measured, rtol=1e-4, atol=1e-5)
    output.sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert (images.grad != 0).float().mean() > 0.5
    with pytest.raises(fidtool.InputError, match="protocol='clean' cannot be combined with feature="):
        FeatureExtractor("torchvision:resnet18", protocol="clean", weights=place / "resnet18.pth")


@pytest.mark.parametrize("protocol", ["clean", "torchmetrics", "stylegan", "adm"])
def test_training_accepts_every_protocol(place: Path, protocol: str) -> None:
    from fidtool.training import FeatureExtractor

    extractor = FeatureExtractor(TINY, protocol=protocol)
    images = torch.rand(2, 3, 40, 70, generator=torch.Generator().manual_seed(0)).requires_grad_()
    extractor(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0
    assert extractor.definition.protocol_name == ("tensorflow" if protocol == "adm" else protocol)
