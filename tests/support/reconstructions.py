"""Sets of images with reconstructions of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZES = ((11, 11), (37, 12), (64, 48), (33, 65), (96, 70), (45, 45))
"""Width and height of images, odd ones among them."""


def make_reconstructions(
    folder: Path,
    sizes: Sequence[tuple[int, int]] = SIZES,
    seed: int = 0,
    mode: Callable[[int], str] = lambda _: "RGB",
) -> tuple[Path, Path]:
    """Write smooth noise as PNG files of ``real``, and as noisier ones of ``recon``; return both
    folders.
    """
    rng = np.random.RandomState(seed)
    places = folder / "real", folder / "recon"
    for place in places:
        place.mkdir(parents=True)
    for number, (width, height) in enumerate(sizes):
        coarse = Image.fromarray(rng.randint(0, 256, (6, 6, 3)).astype(np.uint8))
        pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(
            np.int64
        )
        noise = rng.randint(-12 - 3 * number, 13 + 3 * number, pixels.shape)
        for place, values in zip(places, (pixels, pixels + noise), strict=True):
            image = Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode(number))
            image.save(place / f"{number:03}.png")
    return places


def write_backbone(file: Path, net: str = "alex") -> Path:
    """Write a file of random weights of torchvision's alexnet or vgg16, and return it."""
    import torchvision

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = torchvision.models.get_model("alexnet" if net == "alex" else "vgg16", weights=None)
    for name, tensor in model.state_dict().items():
        if name.startswith("classifier"):
            tensor.zero_()  # not used, and most of the file
    torch.save(
        {name: each for name, each in model.state_dict().items() if name.startswith("features")},
        file,
    )
    return file


def lpips_of(net: str, weights: Path) -> Any:
    """Return the package's network with the same weights."""
    import lpips

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    tensors = torch.load(weights)
    for name, parameter in model.net.named_parameters():
        parameter.data.copy_(tensors[f"features.{name.split('.', 1)[1]}"])
    return model


def rgb(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
