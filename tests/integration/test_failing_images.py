"""A network that fails on an image: the message names it, or the first image of its batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import fidtool
from fidtool.errors import FidtoolError
from support.command_line import Run

NETWORKS = """
import torch
import fidtool

class Pixels(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        features = x[:, :, :2, :2].flatten(1)
        white = features.amin(1) == 1
        if white.any() and self.value is None:
            raise ValueError("a white image")
        features[white, 3] = 0 if self.value is None else self.value
        return features

def of(value):
    preparation = fidtool.Preparation("bilinear")
    return fidtool.Network(Pixels(value), input_size=8, preparation=preparation)

def nan(): return of(float("nan"))
def infinite(): return of(-float("inf"))
def large(): return of(-1e4)
def failing(): return of(None)
"""
MESSAGES = {
    "nan": "the network returned a feature that is NaN or infinite",
    "infinite": "the network returned a feature that is NaN or infinite",
    "large": "a feature of size 10000 is outside the range",
}
WHITE = 13


@pytest.fixture
def pixels() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 200, (8, 8, 3), dtype=np.uint8) for _ in range(20)]
    images[WHITE] = np.full((8, 8, 3), 255, np.uint8)
    return images


@pytest.fixture
def place(tmp_path: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str]) -> Path:
    (tmp_path / "networks.py").write_text(NETWORKS)
    for name in ("plain", "white"):
        (tmp_path / name).mkdir()
        for number, image in enumerate(pixels):
            usual = pixels[0] if name == "plain" and number == WHITE else image
            Image.fromarray(usual).save(tmp_path / name / f"{number:02}.png")
    return tmp_path


def failure(place: Path, network: str, real: Any, fake: Any, **settings: Any) -> str:
    extractor = f"{place / 'networks.py'}:{network}"
    with pytest.raises(FidtoolError) as caught:
        fidtool.compute(real, fake, extractor=extractor, batch_size=4, cache=False, **settings)
    return str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("network", MESSAGES)
def test_a_feature_that_cannot_be_summed_is_named(network: str, workers: int, place: Path) -> None:
    message = failure(place, network, place / "plain", place / "white", num_workers=workers)
    assert message.startswith(f"{place}/white/{WHITE}.png: {MESSAGES[network]}")


def test_an_image_of_an_iterable(place: Path, pixels: list[NDArray[np.uint8]]) -> None:
    def images() -> Iterator[NDArray[np.uint8]]:
        yield from pixels

    generated = fidtool.Images(images(), name="generated")
    assert failure(place, "nan", place / "plain", generated).startswith(
        f"generated[{WHITE}]: {MESSAGES['nan']}"
    )


@pytest.mark.parametrize("of_real", [False, True])
def test_an_image_of_a_pair(of_real: bool, place: Path) -> None:
    """Both sets are measured in one pass."""
    real, fake = ("white", "plain") if of_real else ("plain", "white")
    message = failure(place, "nan", place / real, place / fake, metrics="fid,psnr")
    assert message.startswith(f"{place}/white/{WHITE}.png: {MESSAGES['nan']}")


def test_images_that_are_skipped_do_not_count(place: Path) -> None:
    for number in (3, 8, 14):
        (place / "white" / f"{number:02}.png").write_bytes(b"damaged")
    message = failure(place, "nan", place / "plain", place / "white", on_error="skip", max_skip=0.5)
    assert message.startswith(f"{place}/white/{WHITE}.png: {MESSAGES['nan']}")


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_batch_on_which_a_network_fails(batch_size: int, place: Path, here: Run) -> None:
    extractor = f"{place / 'networks.py'}:failing"
    sets = place / "plain", place / "white"
    failed = here(
        "compute", *sets, "--extractor", extractor, "--batch-size", batch_size, "--no-cache"
    )
    batch = (
        rf"{place}/white/{WHITE}.png"
        if batch_size == 1
        else rf"{place}/white/\d\d.png and 3 more images"
    )
    images = "1 image" if batch_size == 1 else "4 images"
    assert re.search(
        rf"{batch}: \S+ failed on a batch of {images}: ValueError: a white image", failed.error
    )
