"""Published networks as their own libraries run them: the library's transform of a Pillow image,
one at a time.

Trained weights need a download. Both sides therefore load the same random weights from a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from parity.peers import Features, sorted_files

CLIP = "ViT-S-32-alt"
"""The smallest network of open_clip with 224 pixels input."""


@dataclass(frozen=True)
class Library:
    """A network of a library.

    Attributes:
        spec: value of ``--extractor``.
        weights: path of the weights file.
        transform: maps a Pillow image to a tensor of shape (3, size, size).
        network: maps a batch to feature vectors.
    """

    spec: str
    weights: str
    transform: Callable[[Image.Image], torch.Tensor]
    network: Callable[[torch.Tensor], torch.Tensor]

    def features(self, folder: str) -> Features:
        """Return a float64 array of shape (images, dims)."""
        found = []
        with torch.inference_mode():
            for file in sorted_files(folder):
                found.append(self.network(self.transform(Image.open(file).convert("RGB"))[None])[0])
        return torch.stack(found).double().numpy()


def _saved(module: nn.Module, folder: Path, name: str) -> str:
    file = folder / f"{name}.pth"
    torch.save(module.state_dict(), file)
    return str(file)


def timm_vit(folder: Path) -> Library:
    """Return timm's smallest vision transformer with its data config."""
    import timm

    torch.manual_seed(0)
    model: Any = timm.create_model("test_vit").eval()
    file = _saved(model, folder, "test_vit")
    model.reset_classifier(0)
    transform: Any = timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )
    return Library("timm:test_vit", file, transform, model)


def open_clip_vit(folder: Path) -> Library:
    """Return CLIP as CMMD's authors use it: largest central square, Pillow's bicubic resize,
    unit-length embeddings.
    """
    import open_clip

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = open_clip.create_model(CLIP).eval()
    file = _saved(model, folder, "clip")
    size = model.visual.image_size
    side = size[0] if isinstance(size, tuple) else size
    mean, std = (
        torch.tensor(each).view(3, 1, 1)
        for each in (model.visual.image_mean, model.visual.image_std)
    )

    def transform(image: Image.Image) -> torch.Tensor:
        width, height = image.size
        edge = min(width, height)
        left, top = (width - edge) // 2, (height - edge) // 2
        square = image.crop((left, top, left + edge, top + edge)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        pixels = (
            torch.tensor(list(square.tobytes()), dtype=torch.float32)
            .view(side, side, 3)
            .permute(2, 0, 1)
        )
        return (pixels / 255.0 - mean) / std

    def network(batch: torch.Tensor) -> torch.Tensor:
        embedding = model.encode_image(batch)
        unit: torch.Tensor = embedding / torch.linalg.norm(embedding, dim=-1, keepdim=True)
        return unit

    return Library(f"clip:{CLIP}", file, transform, network)


def clip_mmd(real: Features, fake: Features) -> float:
    """Return clip-mmd 0.0.2's ``mmd``, which is the authors' formula, for embeddings in float64."""
    from clip_mmd.calculation import mmd

    return float(mmd(real, fake))
