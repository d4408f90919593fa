"""Features and gradients of the Inception network against pytorch-fid's network."""

from __future__ import annotations

import pytest
import torch

from fidtool.features.device import deterministic_mode
from fidtool.features.models import inception
from fidtool.features.models.inception import Inception, convolutions, load_weights
from support.offline import needs_weights, network_inputs

CLOSE = 1e-6
"""Largest difference relative to the length of a feature vector, for float32 roundings in a
different order.
"""


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return load_weights(None, print).state


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return network_inputs()


@pytest.fixture(scope="module")
def reference(
    state: dict[str, torch.Tensor], images: torch.Tensor
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Features of each layer of pytorch-fid's network, computed in float32 and in float64."""
    peer = pytest.importorskip(
        "pytorch_fid.inception", reason="needs pytorch-fid, of the extra 'test'"
    )
    filled = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008), **state}
    filled |= {f"{name}.bn.num_batches_tracked": torch.tensor(0) for name in convolutions()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "load_state_dict_from_url", lambda *_, **__: filled)
        network = peer.InceptionV3([0, 1, 2, 3], resize_input=False, normalize_input=False).eval()
    with torch.no_grad():
        rounded = [maps.mean((2, 3)) for maps in network(images)]
        exact = [maps.mean((2, 3)) for maps in network.double()(images.double())]
    return {part.shape[1]: (part, whole) for part, whole in zip(rounded, exact, strict=True)}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative difference of a feature vector."""
    return float(((found.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


@needs_weights
@pytest.mark.parametrize("dims", [64, 192, 768, 2048])
def test_features_match_the_reference(
    state: dict[str, torch.Tensor],
    images: torch.Tensor,
    reference: dict[int, tuple[torch.Tensor, torch.Tensor]],
    dims: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With both implementations of the convolutions, features are as close to float64 as the
    reference itself.
    """
    rounded, exact = reference[dims]
    with deterministic_mode(), torch.inference_mode():
        network = Inception(state, dims)
        fused = network(images)
        monkeypatch.setattr(inception, "has_packed_convolutions", lambda _: False)
        plain = network(images)
    assert distance(fused, plain) < CLOSE
    for features in (fused, plain):
        assert distance(features, exact) < max(CLOSE, 2 * distance(rounded, exact))


@needs_weights
def test_gradients(
    state: dict[str, torch.Tensor],
    images: torch.Tensor,
    reference: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    network = Inception(state, 192)
    wanted = images[:2].clone().requires_grad_()
    features = network(wanted)
    features.sum().backward()
    assert distance(features.detach(), reference[192][1][:2]) < CLOSE
    assert wanted.grad is not None
    assert wanted.grad.abs().sum() > 0
