"""``--extractor fdr:NAME`` against FD-Loss' preparation and networks, implemented here as plain
forward passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from fidtool.features.choice import NetworkChoice
from fidtool.features.models.fdr import MODELS, build
from fidtool.features.resize import Preparation, resize
from fidtool.features.weights import State
from support.command_line import Run
from support.published_networks import (
    batches,
    built,
    distance,
    features,
    make_sets,
    randomised,
    refused_extractor,
)

timm = pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")

Tensors = dict[str, torch.Tensor]
HEADS = 3
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIDES = {"convnext": 224, "dinov2": 256, "mae": 224, "siglip": 224, "clip": 256}
COLOURS = {"convnext": IMAGENET, "dinov2": IMAGENET, "mae": IMAGENET, "siglip": HALF, "clip": CLIP}


def linear(x: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
    return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def norm(x: torch.Tensor, tensors: Tensors, name: str, epsilon: float) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + epsilon)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the weighted values of all heads, (n, queries, D), of tensors of shape (n, tokens,
    D).
    """
    q, k, v = (part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def transformer(
    tensors: Tensors, patch: int, tanh: bool, epsilon: float
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a ViT of two blocks, whose features are the class token or, if there is none, pooled
    by attention.
    """

    def feed_forward(x: torch.Tensor, name: str) -> torch.Tensor:
        hidden = linear(x, tensors, f"{name}.fc1")
        if tanh:
            inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
            return linear(0.5 * hidden * (1 + torch.tanh(inner)), tensors, f"{name}.fc2")
        return linear(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))), tensors, f"{name}.fc2")

    def positions(grid: int) -> torch.Tensor:
        table = tensors["pos_embed"]
        prefix = int("cls_token" in tensors)
        side = math.isqrt(table.shape[1] - prefix)
        square = table[:, prefix:].view(1, side, side, -1).permute(0, 3, 1, 2)
        if side != grid:
            square = F.interpolate(square, size=(grid, grid), mode="bicubic", antialias=True)
        return torch.cat([table[:, :prefix], square.permute(0, 2, 3, 1).flatten(1, 2)], 1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, -x.shape[-1] % patch, 0, -x.shape[-2] % patch))
        grid, weight = x.shape[-1] // patch, tensors["patch_embed.proj.weight"]
        tokens = F.unfold(x, patch, stride=patch).transpose(1, 2) @ weight.flatten(1).T
        tokens = tokens + tensors.get("patch_embed.proj.bias", torch.zeros(()))
        if "cls_token" in tensors:
            tokens = torch.cat([tensors["cls_token"].expand(len(x), -1, -1), tokens], 1)
        tokens, one = tokens + positions(grid), torch.ones(())
        if "norm_pre.weight" in tensors:
            tokens = norm(tokens, tensors, "norm_pre", epsilon)
        for block in ("blocks.0", "blocks.1"):
            qkv = linear(
                norm(tokens, tensors, f"{block}.norm1", epsilon), tensors, f"{block}.attn.qkv"
            )
            mixed = linear(attention(*qkv.chunk(3, -1)), tensors, f"{block}.attn.proj")
            tokens = tokens + tensors.get(f"{block}.ls1.gamma", one) * mixed
            changed = feed_forward(norm(tokens, tensors, f"{block}.norm2", epsilon), f"{block}.mlp")
            tokens = tokens + tensors.get(f"{block}.ls2.gamma", one) * changed
        tokens = norm(tokens, tensors, "norm", epsilon)
        if "attn_pool.latent" not in tensors:
            return tokens[:, 0]
        query = linear(tensors["attn_pool.latent"].expand(len(x), -1, -1), tensors, "attn_pool.q")
        pooled = attention(query, *linear(tokens, tensors, "attn_pool.kv").chunk(2, -1))
        pooled = linear(pooled, tensors, "attn_pool.proj")
        pooled = pooled + feed_forward(
            norm(pooled, tensors, "attn_pool.norm", epsilon), "attn_pool.mlp"
        )
        return pooled[:, 0]

    return forward


def convnext(tensors: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a ConvNeXt V2 with one block per stage, whose features are the mean of the map,
    without a norm.
    """

    def patches(x: torch.Tensor, name: str, side: int) -> torch.Tensor:
        """Convolve without overlap: (n, h, w, D) to (n, h / side, w / side, E)."""
        weight, grid = tensors[f"{name}.weight"], x.shape[1] // side
        columns = F.unfold(x.permute(0, 3, 1, 2), side, stride=side).transpose(1, 2)
        made = columns @ weight.flatten(1).T + tensors[f"{name}.bias"]
        return made.view(len(x), grid, grid, -1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = norm(patches(x.permute(0, 2, 3, 1), "stem.0", 4), tensors, "stem.1", 1e-6)
        for stage in range(4):
            if stage:
                name = f"stages.{stage}.downsample"
                x = patches(norm(x, tensors, f"{name}.0", 1e-6), f"{name}.1", 2)
            name = f"stages.{stage}.blocks.0"
            kernel = tensors[f"{name}.conv_dw.weight"]
            mixed = F.conv2d(x.permute(0, 3, 1, 2), kernel, padding=3, groups=len(kernel)).permute(
                0, 2, 3, 1
            )
            mixed = norm(mixed + tensors[f"{name}.conv_dw.bias"], tensors, f"{name}.norm", 1e-6)
            hidden = linear(mixed, tensors, f"{name}.mlp.fc1")
            hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
            size = hidden.square().sum((1, 2), keepdim=True).sqrt()
            response = hidden * (size / (size.mean(-1, keepdim=True) + 1e-6))
            hidden = (
                hidden
                + tensors[f"{name}.mlp.grn.bias"]
                + tensors[f"{name}.mlp.grn.weight"] * response
            )
            x = x + linear(hidden, tensors, f"{name}.mlp.fc2")
        return x.mean((1, 2))

    return forward


def network(name: str, tensors: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    if name == "convnext":
        return convnext(tensors)
    patch, epsilon = 14 if name in ("dinov2", "clip") else 16, 1e-5 if name == "clip" else 1e-6
    return transformer(tensors, patch, name == "siglip", epsilon)


def transform(name: str) -> Callable[[Any], torch.Tensor]:
    side = SIDES[name]
    mean, std = (torch.tensor(values)[:, None, None] for values in COLOURS[name])

    def prepared(picture: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255
        if pixels.shape[1:] != (side, side):
            pixels = F.interpolate(
                pixels[None], size=(side, side), mode="bicubic", align_corners=False, antialias=True
            )[0]
        return (pixels - mean) / std

    return prepared


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's models of the published kind, with few and narrow layers."""
    made = timm.create_model

    def small(name: str, **settings: Any) -> Any:
        stages = {"depths": (1, 1, 1, 1), "dims": (12, 16, 24, 32)}
        layers = {"embed_dim": 48, "depth": 2, "num_heads": HEADS}
        return made(name, **settings, **(stages if name.startswith("convnext") else layers))

    monkeypatch.setattr(timm, "create_model", small)


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path, 5)
    for number in range(2):  # of the side of one of the networks, and larger
        for folder in ("real", "fake"):
            noise = np.random.default_rng(number).integers(
                0, 256, (256 + 44 * number,) * 2 + (3,), np.uint8
            )
            Image.fromarray(noise).save(tmp_path / folder / f"noise{number}.png")
    return tmp_path


@pytest.mark.parametrize("name", MODELS)
def test_features_match_fd_loss(here: Run, place: Path, narrow: None, name: str) -> None:
    torch.manual_seed(0)
    any_size = {} if name == "convnext" else {"dynamic_img_size": True}
    model = randomised(timm.create_model(MODELS[name].name, pretrained=False, **any_size), gain=4.0)
    tensors, file = model.state_dict(), place / "weights.pth"
    torch.save(tensors, file)
    reference = network(name, tensors)
    expected = [features(place / folder, transform(name), reference) for folder in ("real", "fake")]
    extractor = built(f"fdr:{name}", file)
    assert [definition.feature_step for definition in extractor.definitions.values()] == [
        14 if name == "convnext" else 16
    ]
    (images,) = batches(place / "real")
    relative = (extractor.extract(images).double() - expected[0]).norm(dim=1) / expected[0].norm(
        dim=1
    )
    assert relative.max() < 2e-5
    # Random networks have smaller features than trained ones, for which the default step is.
    outcome = here(
        "compute", "real", "fake", "--extractor", f"fdr:{name}@weights={file},step=20", "--json"
    )
    assert outcome.status == 0, outcome.stderr
    assert outcome.fid == pytest.approx(distance(*expected), rel=1e-5)
    protocol = outcome.json["protocol"]
    assert [protocol[key] for key in ("extractor", "resize", "input_size", "ddof")] == [
        f"fdr:{name}",
        "bicubic-antialias-unclamped",
        SIDES[name],
        1,
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_published_networks_have_these_sizes(name: str) -> None:
    """Without values, which would take gigabytes."""
    with torch.device("meta"):
        model = timm.create_model(MODELS[name].name, pretrained=False, num_classes=0)
    assert model.num_features == (1152 if name == "siglip" else 1024)
    assert model.pretrained_cfg["hf_hub_id"] == f"timm/{MODELS[name].name}"


@pytest.mark.parametrize("side", [224, 256])
def test_an_image_of_the_right_side_stays_as_it_is(side: int) -> None:
    pixels = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8)
    resized = resize(pixels, side, Preparation("bicubic-antialias-unclamped"))
    assert torch.equal(resized, pixels.permute(0, 3, 1, 2).float())


def test_the_map_is_not_normalised(narrow: None) -> None:
    choice = NetworkChoice("fdr:convnext")
    model = timm.create_model(MODELS["convnext"].name, pretrained=False, num_classes=0)
    made = build(choice, State(model.state_dict(), "made up"))
    assert made.module.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 32, 7, 7)


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        ("fdr:", None, ["needs the name of a model, such as fdr:convnext"]),
        ("fdr", None, ["needs the name of a model, such as fdr:convnext"]),
        (
            "fdr:dinov3",
            None,
            ["unknown fdr model 'dinov3'; did you mean dinov2? Choose from convnext, dinov2,"],
        ),
        ("fdr:mae", "text.pth", ["text.pth is plain text"]),
        ("fdr:mae", "none.pth", ["no weights file none.pth"]),
        (
            "fdr:mae@protocol=torch",
            None,
            ["fdr:mae@protocol=torch cannot be combined", "its own transform"],
        ),
    ],
)
def test_mistakes_are_reported(
    here: Run, place: Path, narrow: None, spec: str, weights: str | None, texts: list[str]
) -> None:
    (place / "text.pth").write_text("no weights")
    refused_extractor(here, spec, weights, texts)
