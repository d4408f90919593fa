"""The network's arithmetic: it equals the reference network in every mode of execution."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.inception import BasicConv2d, Inception3

from fidtool.features.device import deterministic_mode
from fidtool.features.models import inception
from fidtool.features.models.inception import Convolution, Inception, convolutions, load_weights
from support.offline import needs_weights, network_inputs


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return load_weights(None, print).state


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return network_inputs()


def test_the_convolutions_equal_torchvisions() -> None:
    module = Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    theirs = {
        name: child.conv for name, child in module.named_modules() if isinstance(child, BasicConv2d)
    }
    assert len(theirs) == 94
    assert [*convolutions().items()] == [
        (name, [*conv.weight.shape]) for name, conv in theirs.items()
    ]
    for name, conv in theirs.items():
        ours = Convolution(module.state_dict(), name)
        assert (ours.weight.shape, ours.stride, ours.padding) == (
            conv.weight.shape,
            conv.stride,
            conv.padding,
        )


@needs_weights
def test_bits_do_not_depend_on_the_batch(
    state: dict[str, torch.Tensor], images: torch.Tensor
) -> None:
    """Weights that oneDNN has packed for one batch size give the same bits for other sizes."""
    if not inception.has_packed_convolutions(torch.float32):
        pytest.skip(
            "torch's own convolutions, which run on this processor, only guarantee this for "
            "equal batches"
        )
    network = Inception(state)
    with deterministic_mode(), torch.inference_mode():
        whole = network(images)
        for part in (slice(0, 1), slice(1, 3), slice(2, 5)):
            assert torch.equal(network(images[part]), whole[part])


@needs_weights
def test_spatial_features_do_not_change_the_main_features(
    state: dict[str, torch.Tensor], images: torch.Tensor
) -> None:
    with deterministic_mode(), torch.inference_mode():
        features, spatial = Inception(state, 768, spatial=True)(images[:3])
        assert torch.equal(features, Inception(state, 768)(images[:3]))
    assert spatial.shape == (3, 2023)
    assert spatial.min() >= 0


def test_operators_with_different_results_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not part of torch's stable interface. If a version computes something else, torch's
    own are used.
    """
    if not inception.has_packed_convolutions(torch.float32):
        pytest.skip("the operators are not used on this machine")
    original = inception.run_packed_convolution
    try:
        for change in (lambda *a: original(*a[:-1], "none"), lambda *a: original(*a, 1)):
            monkeypatch.setattr(inception, "run_packed_convolution", change)
            inception.has_packed_convolutions.cache_clear()
            assert not inception.has_packed_convolutions(torch.float32)
    finally:
        inception.has_packed_convolutions.cache_clear()
