"""The Fréchet loss: value, gradient for degenerate covariances, queue, projection."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fidtool
from fidtool.training import FrechetLoss
from fidtool.training.loss import NuclearNorm


def gaussian(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def statistics(samples: torch.Tensor) -> fidtool.Statistics:
    return fidtool.Statistics.of(
        samples.mean(0).numpy(), np.cov(samples.numpy(), rowvar=False), len(samples)
    )


def orthogonal(rows: int, columns: int) -> torch.Tensor:
    """Samples with zero mean and identity covariance: all eigenvalues are equal."""
    basis = torch.linalg.qr(gaussian(3, rows, columns) - gaussian(3, rows, columns).mean(0)).Q
    return basis * (rows - 1) ** 0.5


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(2, 30),
    real=st.integers(2, 30),
    dims=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_value_is_the_fid(count: int, real: int, dims: int, seed: int) -> None:
    """With full-rank and rank-deficient covariances on both sides."""
    theirs = statistics(gaussian(seed, real, dims) @ gaussian(seed + 1, dims, dims) + 1)
    x = gaussian(seed + 2, count, dims)
    ours = statistics(x)
    wanted = fidtool.frechet_distance(
        theirs.mu,
        np.atleast_2d(theirs.sigma),
        ours.mu,
        np.atleast_2d(ours.sigma),
        count1=real,
        count2=count,
    )
    found = FrechetLoss(fidtool.Statistics.of(theirs.mu, np.atleast_2d(theirs.sigma), real))(x)
    assert float(found) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("count", "real", "dims"),
    [(30, 40, 5), (4, 40, 6), (30, 3, 6), (3, 3, 8)],
)
def test_gradient(count: int, real: int, dims: int) -> None:
    """Compared with finite differences, also for a rank-deficient covariance."""
    loss = FrechetLoss(statistics(gaussian(1, real, dims) @ gaussian(2, dims, dims)))
    assert torch.autograd.gradcheck(loss, (gaussian(3, count, dims).requires_grad_(),))


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("flat", [0, 2], ids=["full", "rank 2"])
def test_gradient_where_all_eigenvalues_are_equal(scale: float, flat: int) -> None:
    """In cases where autograd through eigenvectors divides by zero."""
    sigma = np.eye(4)
    sigma[:flat] = 0.0
    loss = FrechetLoss(fidtool.Statistics.of(np.zeros(4), sigma, 100))
    x = (scale * orthogonal(9, 4)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (x,))


@pytest.mark.parametrize("kind", ["collapsed", "one direction", "tiny"])
def test_gradient_stays_finite(kind: str) -> None:
    """Zero and almost zero singular values: the gradient stays within its bound."""
    x = gaussian(1, 20, 6)
    x = {
        "collapsed": x[:1].repeat(20, 1),
        "one direction": x[:, :1] @ gaussian(2, 1, 6),
        "tiny": 1e-12 * x,
    }[kind]
    x.requires_grad_()
    loss = FrechetLoss(statistics(gaussian(4, 50, 6)))(x)
    loss.backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert float(x.grad.norm()) < 10


def test_features_that_are_not_finite_give_nan() -> None:
    """A gradient scaler then skips the step; an exception would end the training."""
    x = gaussian(1, 5, 3)
    x[2, 1] = float("inf")
    x.requires_grad_()
    loss = FrechetLoss(statistics(gaussian(2, 9, 3)))(x)
    loss.backward()
    assert torch.isnan(loss)
    assert x.grad is not None
    assert not torch.isfinite(x.grad).all()


def falling(rows: int, columns: int, decades: float) -> torch.Tensor:
    """A matrix whose singular values fall from 1 by this many powers of ten."""
    size = min(rows, columns)
    left, right = (
        torch.linalg.qr(gaussian(seed, side, size)).Q for seed, side in ((1, rows), (2, columns))
    )
    return left * torch.logspace(0, -decades, size, dtype=torch.float64) @ right.mT


DEGENERATE = {
    "centred duplicates": (gaussian(1, 20, 100) - gaussian(1, 20, 100).mean(0)).repeat(3, 1),
    "nine decades": falling(100, 60, 9),
    "large": 1e100 * gaussian(1, 40, 100),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_nuclear_norm_is_as_accurate_as_the_singular_values(kind: str) -> None:
    """Also where the squares of the singular values have no digits left."""
    norm = NuclearNorm.apply(DEGENERATE[kind])
    assert norm.item() == pytest.approx(
        float(torch.linalg.svdvals(DEGENERATE[kind]).sum()), rel=1e-10
    )


def test_autocast_and_half_precision() -> None:
    """The distance is computed in float64 from features of any precision."""
    loss = FrechetLoss(statistics(gaussian(1, 60, 8)))
    x = gaussian(2, 30, 8).bfloat16()
    wanted = loss(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(x.requires_grad_())
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    found.backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert float(loss.half()(x.detach().double())) == pytest.approx(float(wanted), rel=1e-12)


def test_queue() -> None:
    """The queue holds past features without gradients and drops the oldest; evaluation mode ignores
    it.
    """
    batches = [gaussian(seed, 6, 3) for seed in range(4)]
    loss = FrechetLoss(statistics(gaussian(9, 50, 3)), queue=10)
    plain = FrechetLoss(statistics(gaussian(9, 50, 3)))
    for number, batch in enumerate(batches):
        past = torch.cat(batches[:number][::-1])[:10].float().double() if number else batch[:0]
        x = batch.clone().requires_grad_()
        value = loss(x)
        assert float(value) == pytest.approx(float(plain(torch.cat([batch, past]))), rel=1e-12)
        value.backward()
        reference = batch.clone().requires_grad_()
        plain(torch.cat([reference, past])).backward()
        torch.testing.assert_close(x.grad, reference.grad)
    loss.eval()
    assert float(loss(batches[0])) == pytest.approx(float(plain(batches[0])), rel=1e-12)
    other = FrechetLoss(statistics(gaussian(9, 50, 3)), queue=10)
    other.load_state_dict(loss.train().state_dict())
    assert float(other(batches[1])) == float(loss(batches[1]))


def test_projection_maps_both_sides() -> None:
    """The distance of the projected Gaussians, and the gradient of the projection."""
    real, x = gaussian(1, 80, 6) @ gaussian(2, 6, 6), gaussian(3, 40, 6)
    head = nn.Linear(6, 2).double()
    loss = FrechetLoss(statistics(real), projection=head)
    with torch.no_grad():
        ours, theirs = statistics(head(x)), statistics(head(real))
    wanted = fidtool.frechet_distance(ours.mu, ours.sigma, theirs.mu, theirs.sigma)
    assert float(loss(x)) == pytest.approx(wanted, rel=1e-9)

    def of_weights(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            loss, {"projection.weight": weight, "projection.bias": bias}, (x,)
        )

    weights = tuple(
        parameter.detach().clone().requires_grad_() for parameter in (head.weight, head.bias)
    )
    assert torch.autograd.gradcheck(of_weights, weights)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"projection": nn.ReLU()}, "must be a torch.nn.Linear"),
        (
            {"projection": nn.Linear(5, 2)},
            "with 3 input features, as many as the statistics have, not Linear.in_features=5",
        ),
    ],
)
def test_invalid_settings(settings: dict[str, object], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        FrechetLoss(statistics(gaussian(1, 9, 3)), **settings)  # type: ignore[arg-type]


def test_wrong_features_and_files(tmp_path: Path) -> None:
    loss = FrechetLoss(statistics(gaussian(1, 9, 3)))
    for features in (gaussian(1, 9, 4), gaussian(1, 9), torch.ones(4, 3, dtype=torch.int64)):
        with pytest.raises(fidtool.InputError, match=r"shape \(n, 3\)"):
            loss(features)
    with pytest.raises(fidtool.InputError, match="at least two feature vectors, not 1"):
        loss(gaussian(1, 1, 3))
    with pytest.raises(fidtool.InputError, match="no statistics file"):
        FrechetLoss(tmp_path / "none.npz")
    fidtool.write_statistics(tmp_path / "real.npz", statistics(gaussian(1, 9, 3)))
    assert float(FrechetLoss(tmp_path / "real.npz")(gaussian(2, 5, 3))) == float(
        loss(gaussian(2, 5, 3))
    )


def test_a_pass_on_the_meta_device_keeps_the_statistics() -> None:
    """Such a pass counts operations or finds shapes, and its tensors have no values."""
    loss, samples = FrechetLoss(statistics(gaussian(1, 9, 3))), gaussian(2, 5, 3)
    before = float(loss(samples))
    with contextlib.suppress(RuntimeError):
        loss(samples.to("meta"))
    assert float(loss(samples)) == before
