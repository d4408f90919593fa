"""DINOv2's published architecture as a plain forward pass, with random weights of the published
names and shapes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

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
        q, k, v = (
            self.linear(x, f"{name}.qkv")
            .view(count, tokens, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        weights = (q @ k.transpose(-1, -2) / math.sqrt(dims // self.heads)).softmax(-1)
        return self.linear(
            (weights @ v).transpose(1, 2).reshape(count, tokens, dims), f"{name}.proj"
        )

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
        weight, bias = (
            self.tensors["patch_embed.proj.weight"],
            self.tensors["patch_embed.proj.bias"],
        )
        patches = F.unfold(x, 14, stride=14).transpose(1, 2) @ weight.flatten(1).T + bias
        x = (
            torch.cat([self.tensors["cls_token"].expand(len(x), -1, -1), patches], 1)
            + self.positions()
        )
        for block in range(self.depth):
            name = f"blocks.{block}"
            x = x + self.tensors[f"{name}.ls1.gamma"] * self.attention(
                self.norm(x, f"{name}.norm1"), f"{name}.attn"
            )
            x = x + self.tensors[f"{name}.ls2.gamma"] * self.feed_forward(
                self.norm(x, f"{name}.norm2"), f"{name}.mlp"
            )
        return self.norm(x, "norm")[:, 0]
