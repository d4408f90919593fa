"""Sets of images, a network and settings of torch, for tests of which settings a run uses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from support.pictures import make_pictures

COUNT = 20
SETTINGS: dict[str, Any] = {
    "cache": False,
    "batch_size": 2,
    "metrics": ["fid", fidtool.KID(subset_size=9)],
}

NETWORK = """
import torch
import fidtool

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 32, 8, 8)
        self.encoder = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = torch.nn.Linear(32, 16)

    def forward(self, x):
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_num_threads() == 1
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        patches = 8 * self.patches(x.contiguous()).flatten(2).transpose(1, 2).contiguous()
        parts = patches.view(len(x), -1, 4, 8).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(parts, parts, parts).transpose(1, 2).flatten(2)
        mixed = self.encoder(mixed)
        return self.head(mixed[:, 9] + torch.zeros(1)) + torch.full((16,), 1 / 3)

def network():
    torch.manual_seed(0)
    built = fidtool.Network(Attention(), input_size=64, feature_step=20)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_num_threads(3)
    return built
"""
"""A network whose operations depend on the settings in `torch_state`. Its factory changes some of
them.
"""


def make_place(folder: Path) -> Path:
    """Make two folders of images, and the network ``attention.py:network``."""
    for seed, name in enumerate(("real", "fake")):
        make_pictures(folder / name, COUNT, seed, sides=(24,))
    (folder / "attention.py").write_text(NETWORK)
    return folder


def pixels_of(place: Path) -> list[NDArray[np.uint8]]:
    """Return the images of ``fake``."""
    return [np.asarray(Image.open(file)) for file in sorted((place / "fake").iterdir())]


def metrics(place: Path, fake: object, extractor: str) -> tuple[dict[str, float], str | None]:
    """Return the metrics, and the SHA-256 of the network's output in the main thread."""
    evaluation = fidtool.compute(place / "real", fake, extractor=extractor, **SETTINGS)  # type: ignore[arg-type]
    return dict(evaluation.results[0].metrics), evaluation.run.probe


def default_device() -> torch.device:
    """Return ``torch.get_default_device()``, which fails in torch 2.4 after a default device has
    been unset.
    """
    return torch.empty(0).device


@contextlib.contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    """Change a setting of torch, and check at the end that it is still changed."""
    before = read()
    write(value)
    try:
        yield
        assert read() == value
    finally:
        write(before)
