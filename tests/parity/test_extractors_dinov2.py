"""``--extractor dinov2`` against the published architecture, implemented here as a plain forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import fidtool
from support.command_line import Run
from support.http_store import http_store
from support.published_networks import batches, built, distance, features, make_sets, refused_extractor

pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")

DIMS, DEPTH, HEADS, GRID = 384, 12, 6, 37
Tensors = dict[str, torch.Tensor]


def published_file(dims: int, depth: int, swiglu: bool = False) -> Tensors:
    """Return random weights with the names and shapes of the published checkpoints."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int, size: float = 0.05) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * size

    tensors = {
        "cls_token": values(1, 1, dims),
        "pos_embed": values(1, GRID * GRID + 1, dims, size=0.3),
        "mask_token": values(1, dims),
        "patch_embed.proj.weight": values(dims, 3, 14, 14),
        "patch_embed.proj.bias": values(dims),
        "norm.weight": 1 + values(dims),
        "norm.bias": values(dims),
    }
    hidden = 4 * dims if not swiglu else (int(4 * dims * 2 / 3) + 7) // 8 * 8
    into, back, widened = ("w12", "w3", 2 * hidden) if swiglu else ("fc1", "fc2", hidden)
    layers = {
        "attn.qkv": (3 * dims, dims),
        "attn.proj": (dims, dims),
        f"mlp.{into}": (widened, dims),
        f"mlp.{back}": (dims, hidden),
    }
    for block in range(depth):
        for name, shape in layers.items():
            tensors[f"blocks.{block}.{name}.weight"] = values(*shape)
            tensors[f"blocks.{block}.{name}.bias"] = values(shape[0])
        for each in ("1", "2"):
            tensors[f"blocks.{block}.norm{each}.weight"] = 1 + values(dims)
            tensors[f"blocks.{block}.norm{each}.bias"] = values(dims)
            tensors[f"blocks.{block}.ls{each}.gamma"] = 1 + values(dims)
    return tensors


class Published(nn.Module):
    """The published ViT, as in its paper and code, without any library's blocks."""

    def __init__(self, tensors: Tensors, heads: int, depth: int) -> None:
        super().__init__()
        self.tensors, self.heads, self.depth = tensors, heads, depth

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-6)
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        count, tokens, dims = x.shape
        q, k, v = self.linear(x, f"{name}.qkv").view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(dims // self.heads)).softmax(-1)
        return self.linear((weights @ v).transpose(1, 2).reshape(count, tokens, dims), f"{name}.proj")

    def feed_forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if f"{name}.w12.weight" in self.tensors:
            gate, value = self.linear(x, f"{name}.w12").chunk(2, -1)
            return self.linear(gate * torch.sigmoid(gate) * value, f"{name}.w3")
        hidden = self.linear(x, f"{name}.fc1")
        return self.linear(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))), f"{name}.fc2")

    def positions(self) -> torch.Tensor:
        table = self.tensors["pos_embed"]
        grid = table[:, 1:].view(1, GRID, GRID, -1).permute(0, 3, 1, 2)
        scale = ((16 + 0.1) / GRID, (16 + 0.1) / GRID)
        small = F.interpolate(grid, scale_factor=scale, mode="bicubic", antialias=False)
        assert small.shape[-2:] == (16, 16)
        return torch.cat([table[:, :1], small.permute(0, 2, 3, 1).flatten(1, 2)], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.tensors["patch_embed.proj.weight"], self.tensors["patch_embed.proj.bias"]
        patches = F.unfold(x, 14, stride=14).transpose(1, 2) @ weight.flatten(1).T + bias
        x = torch.cat([self.tensors["cls_token"].expand(len(x), -1, -1), patches], 1) + self.positions()
        for block in range(self.depth):
            name = f"blocks.{block}"
            x = x + self.tensors[f"{name}.ls1.gamma"] * self.attention(self.norm(x, f"{name}.norm1"), f"{name}.attn")
            x = x + self.tensors[f"{name}.ls2.gamma"] * self.feed_forward(self.norm(x, f"{name}.norm2"), f"{name}.mlp")
        return self.norm(x, "norm")[:, 0]


def transform(picture: Image.Image) -> torch.Tensor:
    """dgm-eval's preparation: Pillow's bicubic to 224 x 224 in 8 bits, then ImageNet's mean and standard deviation."""
    small = np.array(picture.resize((224, 224), Image.Resampling.BICUBIC))
    pixels = torch.from_numpy(small).permute(2, 0, 1) / 255
    return (pixels - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]


@pytest.fixture(scope="module")
def vits14(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    tensors = published_file(DIMS, DEPTH)
    file = tmp_path_factory.mktemp("dinov2") / "dinov2_vits14_pretrain.pth"
    torch.save(tensors, file)
    return file, tensors


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path, 3)
    return tmp_path


@pytest.mark.slow
def test_features_match_the_published_network(here: Run, place: Path, vits14: tuple[Path, Tensors]) -> None:
    file, tensors = vits14
    network = Published(tensors, HEADS, DEPTH)
    expected = [features(place / name, transform, network) for name in ("real", "fake")]
    extractor = built("dinov2:vits14", file)
    (images,) = batches(place / "real")
    relative = (extractor.features(images).double() - expected[0]).norm(dim=1) / expected[0].norm(dim=1)
    assert relative.max() < 2e-5
    outcome = here("compute", "real", "fake", "--extractor", "dinov2:vits14", "--weights", file, "--json", "--quiet")
    assert outcome.status == 0, outcome.stderr
    assert outcome.fid == pytest.approx(distance(*expected), rel=1e-5)
    protocol = outcome.json["protocol"]
    assert [protocol[key] for key in ("extractor", "resize", "input_size", "dims", "ddof", "feature_step")] == [
        "dinov2:vits14",
        "pillow-bicubic",
        224,
        384,
        1,
        18,
    ]


def test_gated_layers_of_the_giant_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Uses a small model with two of the giant's blocks, 48 wide."""
    import timm

    from fidtool.features.models import dinov2
    from fidtool.features.models.families import NetworkChoice
    from fidtool.features.network import State

    made = timm.create_model

    def small(name: str, **settings: object) -> nn.Module:
        assert name == "vit_giant_patch14_dinov2"
        # The published hidden width: two thirds of 4 * 48, rounded to a multiple of 8. Gate and value are side by side.
        model: nn.Module = made(name, embed_dim=48, depth=2, num_heads=3, mlp_ratio=256 / 48, **settings)
        return model

    monkeypatch.setattr(timm, "create_model", small)
    tensors = published_file(48, 2, swiglu=True)
    network, name = dinov2.build(NetworkChoice("dinov2:vitg14"), State(tensors, "made up"))
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = Published(tensors, 3, 2)(x)
        # Two float32 implementations, whose attention and norms round in a different order.
        torch.testing.assert_close(network.module.eval()(x), expected, rtol=1e-4, atol=1e-5)
    assert name == "dinov2:vitg14"


@pytest.fixture
def server(
    vits14: tuple[Path, Tensors], tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    with http_store(vits14[0].parent) as store:
        yield f"{store.url}{vits14[0].name}"


@pytest.mark.slow
def test_download(
    here: Run, place: Path, server: str, vits14: tuple[Path, Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIDTOOL_DINOV2_URL", server)
    arguments = ("stats", "real", "--extractor", "dinov2:vits14", "-o")
    downloaded = here(*arguments, "downloaded.npz")
    assert downloaded.status == 0, downloaded.stderr
    assert f"getting the weights of dinov2:vits14: {server}" in downloaded.stderr
    assert downloaded.stdout == ""
    assert [file.name for file in (place / "torch-home").rglob("*.pth")] == [vits14[0].name]
    assert here(*arguments, "local.npz", "--weights", vits14[0]).status == 0
    first, second = (fidtool.read_statistics(place / f"{name}.npz") for name in ("downloaded", "local"))
    assert first.definition == second.definition
    assert np.array_equal(first.mu, second.mu)


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        ("dinov2:vits16", None, ["no dinov2:vits16", "vits14, vitb14, vitl14, vitg14"]),
        ("dinov2:vitb14", "small.pth", ["small.pth does not contain the weights of dinov2:vitb14"]),
    ],
)
def test_mistakes_are_reported(here: Run, place: Path, spec: str, weights: str | None, texts: list[str]) -> None:
    torch.save(published_file(32, 1), place / "small.pth")
    refused_extractor(here, spec, weights, texts)
