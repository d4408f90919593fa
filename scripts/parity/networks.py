"""Published networks as their own libraries run them: their transform of Pillow's image, one image at a time.

Their trained weights cannot be had everywhere, so both sides get the same random ones, from a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity_peers import Features, sorted_files
from PIL import Image
from torch import nn

CLIP = "ViT-S-32-alt"
"""The smallest of open_clip's networks that takes 224 pixels."""


@dataclass(frozen=True)
class Library:
    """A network in its own library.

    Attributes:
        spec: what ``--extractor`` calls it.
        weights: file of its weights.
        transform: from Pillow's image to a tensor of shape (3, size, size).
        network: from a batch to feature vectors.
    """

    spec: str
    weights: str
    transform: Callable[[Image.Image], torch.Tensor]
    network: Callable[[torch.Tensor], torch.Tensor]

    def features(self, folder: str) -> Features:
        """float64 array of shape (images, dims)."""
        found = []
        with torch.inference_mode():
            for file in sorted_files(folder):
                found.append(self.network(self.transform(Image.open(file).convert("RGB"))[None])[0])
        return torch.stack(found).double().numpy()


def _saved(module: nn.Module, folder: Path, name: str) -> str:
    file = folder / f"{name}.pth"
    torch.save(module.state_dict(), file)
    return str(file)


def torchvision_resnet18(folder: Path) -> Library:
    """ResNet-18 with the transform that its published weights bring."""
    from torchvision.models import ResNet18_Weights, resnet18

    torch.manual_seed(0)
    model = resnet18(weights=None).eval()
    file = _saved(model, folder, "resnet18")
    model.fc = nn.Identity()
    return Library("torchvision:resnet18", file, ResNet18_Weights.DEFAULT.transforms(), model)


def timm_vit(folder: Path) -> Library:
    """timm's smallest vision transformer with its data config."""
    import timm

    torch.manual_seed(0)
    model: Any = timm.create_model("test_vit").eval()
    file = _saved(model, folder, "test_vit")
    model.reset_classifier(0)
    transform: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    return Library("timm:test_vit", file, transform, model)


def open_clip_vit(folder: Path) -> Library:
    """CLIP as CMMD's authors use it: the largest square from the middle, Pillow's bicubic, embeddings of length 1."""
    import open_clip

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = open_clip.create_model(CLIP).eval()
    file = _saved(model, folder, "clip")
    size = model.visual.image_size
    side = size[0] if isinstance(size, tuple) else size
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (model.visual.image_mean, model.visual.image_std))

    def transform(picture: Image.Image) -> torch.Tensor:
        width, height = picture.size
        edge = min(width, height)
        left, top = (width - edge) // 2, (height - edge) // 2
        square = picture.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.BICUBIC)
        pixels = torch.tensor(list(square.tobytes()), dtype=torch.float32).view(side, side, 3).permute(2, 0, 1)
        return (pixels / 255.0 - mean) / std

    def network(batch: torch.Tensor) -> torch.Tensor:
        embedding = model.encode_image(batch)
        unit: torch.Tensor = embedding / torch.linalg.norm(embedding, dim=-1, keepdim=True)
        return unit

    return Library(f"clip:{CLIP}", file, transform, network)


def clip_mmd(real: Features, fake: Features) -> float:
    """clip-mmd 0.0.2's ``mmd``, which is the authors' formula, on these embeddings in float64."""
    from clip_mmd.calculation import mmd

    return float(mmd(real, fake))
