"""The network's arithmetic: however it runs, it is the reference's network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models.inception import BasicConv2d, Inception3

from fidtool.features import convolution
from fidtool.features.inception import Inception, SpatialInception
from fidtool.features.inception_shapes import CONVOLUTIONS
from fidtool.features.torch_state import repeatable
from fidtool.features.weights import load_weights
from support.offline import needs_weights

CLOSE = 1e-6
"""Of a feature vector's length: what another order of float32's roundings may make of it."""


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return load_weights(None, print).state


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Smooth pictures under some noise, as a network takes them: float32 of shape (5, 3, 299, 299)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(5, 3, 9, 9, generator=generator)
    noise = torch.rand(5, 3, 299, 299, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=299, mode="bicubic").clamp(0, 1)
    return (0.9 * smooth + 0.1 * noise).mul(2).sub(1).contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def reference(state: dict[str, torch.Tensor], images: torch.Tensor) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Of each layer the features of pytorch-fid's own network, in float32 as it runs and in float64."""
    peer = pytest.importorskip("pytorch_fid.inception")
    filled = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008), **state}
    for name in CONVOLUTIONS:
        filled[f"{name}.bn.num_batches_tracked"] = torch.tensor(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "load_state_dict_from_url", lambda *_, **__: filled)
        network = peer.InceptionV3([0, 1, 2, 3], resize_input=False, normalize_input=False).eval()
    with torch.no_grad():
        rounded = [maps.mean((2, 3)) for maps in network(images)]
        exact = [maps.mean((2, 3)) for maps in network.double()(images.double())]
    return {part.shape[1]: (part, whole) for part, whole in zip(rounded, exact, strict=True)}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the worst vector, relative to its length."""
    return float(((found.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


def test_the_shapes_are_torchvisions() -> None:
    module = Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    theirs = {name: child.conv for name, child in module.named_modules() if isinstance(child, BasicConv2d)}
    assert list(CONVOLUTIONS) == list(theirs), "in this order"
    for name, shape in CONVOLUTIONS.items():
        conv = theirs[name]
        assert (conv.weight.shape, conv.stride, conv.padding) == (shape.weight, (shape.stride,) * 2, shape.padding)


@needs_weights
@pytest.mark.parametrize("dims", [64, 192, 768, 2048])
def test_features_are_the_references(
    state: dict[str, torch.Tensor],
    images: torch.Tensor,
    reference: dict[int, tuple[torch.Tensor, torch.Tensor]],
    dims: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As near to the exact ones as the reference itself, whichever way the convolutions run."""
    rounded, exact = reference[dims]
    with repeatable(), torch.inference_mode():
        network = Inception(state, dims)
        fused = network(images)
        monkeypatch.setattr(convolution, "packs", lambda _: False)
        plain = network(images)
    assert distance(fused, plain) < CLOSE
    for features in (fused, plain):
        assert distance(features, exact) < max(CLOSE, 2 * distance(rounded, exact))


@needs_weights
def test_gradients_go_through_the_same_network(
    state: dict[str, torch.Tensor], images: torch.Tensor, reference: dict[int, tuple[torch.Tensor, torch.Tensor]]
) -> None:
    network = Inception(state, 192)
    wanted = images[:2].clone().requires_grad_()
    features = network(wanted)
    features.sum().backward()
    assert distance(features.detach(), reference[192][1][:2]) < CLOSE
    assert wanted.grad is not None
    assert wanted.grad.abs().sum() > 0


@needs_weights
def test_bits_do_not_depend_on_the_batch(state: dict[str, torch.Tensor], images: torch.Tensor) -> None:
    """What oneDNN packs for one size of batch serves the others, to the same bits."""
    if not convolution.packs(torch.float32):
        pytest.skip("this processor runs torch's own convolutions, which promise that for equal batches only")
    network = Inception(state)
    with repeatable(), torch.inference_mode():
        whole = network(images)
        for part in (slice(0, 1), slice(1, 3), slice(2, 5)):
            assert torch.equal(network(images[part]), whole[part])


@needs_weights
def test_spatial_features_come_beside_the_same_features(state: dict[str, torch.Tensor], images: torch.Tensor) -> None:
    with repeatable(), torch.inference_mode():
        features, spatial = SpatialInception(state, 768)(images[:3])
        assert torch.equal(features, Inception(state, 768)(images[:3]))
    assert spatial.shape == (3, 2023)
    assert spatial.min() >= 0


def test_operators_that_compute_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of torch's stable interface: a version in which they mean something else gets torch's own."""
    if not convolution.packs(torch.float32):
        pytest.skip("they are not used here anyway")
    original = convolution._convolve
    try:
        for change in (lambda *a: original(*a[:-1], "none"), lambda *a: original(*a, 1)):
            monkeypatch.setattr(convolution, "_convolve", change)
            convolution.packs.cache_clear()
            assert not convolution.packs(torch.float32)
    finally:
        convolution.packs.cache_clear()
