"""``--extractor dinov2`` against the published architecture, implemented here as a plain forward
pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fidtool
from fidtool.features.models import dinov2
from support.command_line import Run
from support.http_store import http_store
from support.plain_dinov2 import DEPTH, DIMS, HEADS, Published, Tensors, published_file
from support.published_networks import (
    batches,
    built,
    distance,
    features,
    make_sets,
    refused_extractor,
)

pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")


def transform(picture: Image.Image) -> torch.Tensor:
    """dgm-eval's preparation: Pillow's bicubic to 224 x 224 in 8 bits, then ImageNet's mean and
    standard deviation.
    """
    small = np.array(picture.resize((224, 224), Image.Resampling.BICUBIC))
    pixels = torch.from_numpy(small).permute(2, 0, 1) / 255
    return (pixels - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
        [0.229, 0.224, 0.225]
    )[:, None, None]


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
def test_features_match_the_published_network(
    here: Run, place: Path, vits14: tuple[Path, Tensors]
) -> None:
    file, tensors = vits14
    network = Published(tensors, HEADS, DEPTH)
    expected = [features(place / name, transform, network) for name in ("real", "fake")]
    extractor = built("dinov2:vits14", file)
    (images,) = batches(place / "real")
    relative = (extractor.extract(images).double() - expected[0]).norm(dim=1) / expected[0].norm(
        dim=1
    )
    assert relative.max() < 2e-5
    outcome = here(
        "compute",
        "real",
        "fake",
        "--extractor",
        "dinov2:vits14",
        "--weights",
        file,
        "--json",
        "--quiet",
    )
    assert outcome.status == 0, outcome.stderr
    assert outcome.fid == pytest.approx(distance(*expected), rel=1e-5)
    protocol = outcome.json["protocol"]
    assert [
        protocol[key]
        for key in ("extractor", "resize", "input_size", "dims", "ddof", "feature_step")
    ] == [
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

    from fidtool.features.choice import NetworkChoice
    from fidtool.features.weights import State

    made = timm.create_model

    def small(name: str, **settings: object) -> nn.Module:
        assert name == "vit_giant_patch14_dinov2"
        # The published hidden width: two thirds of 4 * 48, rounded to a multiple of 8. Gate and
        # value are side by side.
        model: nn.Module = made(
            name, embed_dim=48, depth=2, num_heads=3, mlp_ratio=256 / 48, **settings
        )
        return model

    monkeypatch.setattr(timm, "create_model", small)
    tensors = published_file(48, 2, swiglu=True)
    network = dinov2.build(NetworkChoice("dinov2:vitg14"), State(tensors, "made up"))
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = Published(tensors, 3, 2)(x)
        # Two float32 implementations, whose attention and norms round in a different order.
        torch.testing.assert_close(network.module.eval()(x), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def server(
    vits14: tuple[Path, Tensors],
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    with http_store(vits14[0].parent) as store:
        yield f"{store.url}{vits14[0].name}"


@pytest.mark.slow
def test_download(
    here: Run,
    place: Path,
    server: str,
    vits14: tuple[Path, Tensors],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mirror has the published file, and nothing else is used."""
    monkeypatch.setenv("FIDTOOL_DINOV2_URL", server)
    arguments = ("stats", "real", "--extractor", "dinov2:vits14", "-o")
    refused = here(*arguments, "refused.npz")
    assert refused.status == 1
    assert f"{server} has the SHA-256 " in refused.error
    assert f"the published file has {dinov2.HASHES['vits14'][:12]}…" in refused.error
    assert not [*(place / "torch-home").rglob("*.pth")]
    monkeypatch.setitem(dinov2.HASHES, "vits14", hashlib.sha256(vits14[0].read_bytes()).hexdigest())
    downloaded = here(*arguments, "downloaded.npz")
    assert downloaded.status == 0, downloaded.stderr
    assert f"getting the weights of dinov2:vits14: {server}" in downloaded.stderr
    assert downloaded.stdout == ""
    assert [file.name for file in (place / "torch-home").rglob("*.pth")] == [vits14[0].name]
    assert here(*arguments, "local.npz", "--weights", vits14[0]).status == 0
    first, second = (
        fidtool.read_statistics(place / f"{name}.npz") for name in ("downloaded", "local")
    )
    assert first.definition == second.definition
    assert np.array_equal(first.mu, second.mu)


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        (
            "dinov2:vits16",
            None,
            ["unknown dinov2 model 'vits16'", "vits14, vitb14, vitl14, vitg14"],
        ),
        ("dinov2:vitb14", "small.pth", ["small.pth does not contain the weights of dinov2:vitb14"]),
    ],
)
def test_mistakes_are_reported(
    here: Run, place: Path, spec: str, weights: str | None, texts: list[str]
) -> None:
    torch.save(published_file(32, 1), place / "small.pth")
    refused_extractor(here, spec, weights, texts)
