"""References for the tests of ``--extractor``: a library's own transform and network, one image at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import fidtool
from fidtool.distributed.launch import Launch
from fidtool.features.building import build_extractor, fetch_state
from fidtool.features.choice import NetworkChoice
from fidtool.features.device import deterministic_mode, make_device
from fidtool.features.extractor import Extractor
from support.command_line import Run
from support.pictures import make_pictures

SIDES = (48, 60, 75)


def make_sets(folder: Path, count: int = 6) -> tuple[str, str]:
    """Write two small sets of wide images: all versions of Pillow resample their widths first."""
    for seed, name in enumerate(("real", "fake")):
        make_pictures(folder / name, count, seed, sides=SIDES)
        for file in (folder / name).iterdir():
            picture = Image.open(file)
            picture.resize((picture.width + 13, picture.height)).save(file)
    return "real", "fake"


def randomised(module: nn.Module, gain: float = 1.0) -> nn.Module:
    """Randomise biases and batch norms, and multiply weights by ``gain``, so that the features vary
    more.
    """
    generator = torch.Generator().manual_seed(0)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        elif tensor.is_floating_point() and tensor.ndim == 1:
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
        elif tensor.ndim > 1:
            tensor.mul_(gain)
    return module.eval()


def features(
    folder: Path, transform: Callable[[Any], torch.Tensor], module: Callable[..., Any]
) -> torch.Tensor:
    """Return the library's own features of the images: a float64 tensor of shape (n, D)."""
    with deterministic_mode(), torch.inference_mode():
        rows = [
            module(transform(Image.open(file).convert("RGB"))[None])
            for file in sorted(folder.iterdir())
        ]
    return torch.cat(rows).double()


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    moments = [(x.numpy().mean(0), np.cov(x.numpy(), rowvar=False)) for x in (first, second)]
    return fidtool.frechet_distance(*moments[0], *moments[1])


def built(spec: str, weights: object = None) -> Extractor:
    """Build the network as every rank does."""
    choice = NetworkChoice(spec, None if weights is None else str(weights))
    with deterministic_mode():
        return build_extractor(
            choice, fetch_state(choice, print), make_device(torch.device("cpu"), Launch())
        )


def batches(folder: Path) -> Iterator[list[torch.Tensor]]:
    """Return all images of a folder in one batch for the extractor."""
    yield [
        torch.from_numpy(np.array(Image.open(file).convert("RGB")))
        for file in sorted(folder.iterdir())
    ]


def refused_extractor(
    here: Run, spec: str, weights: str | None, texts: list[str], *flags: object
) -> None:
    """Check that ``compute`` refuses an extractor with one error that has all of ``texts``."""
    extra = () if weights is None else ("--weights", weights)
    outcome = here("compute", "real", "fake", "--extractor", spec, *extra, *flags, "--quiet")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert [text for text in texts if text not in outcome.error] == [], outcome.error
