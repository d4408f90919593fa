"""The Fréchet distance as a loss."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidtool.distances.frechet import covariance_factor
from fidtool.errors import InputError, TooFewImagesError
from fidtool.statistics.file import read_statistics
from fidtool.statistics.set_statistics import Gaussian, Statistics
from fidtool.training.feature_extractor import PathLike
from fidtool.training.group import (
    DEFAULT_TIMEOUT,
    GATHERING,
    Grad,
    Group,
    gather_with_grad,
    no_autograd,
    ranks_of,
)
from fidtool.training.inputs import Convert, not_floats_error, warn_of_conversion

# Eigenvalues of a Gram matrix below this fraction of the largest have too few correct digits.
_SMALL_SQUARE = 1e-8


class FrechetLoss(nn.Module):
    """Squared Fréchet distance between generated features and fixed real statistics: the FID as a
    training loss.

    d² = |m - mu|² + tr S + tr sigma - 2 ‖Xc L‖* / √(n - 1) for n features X with mean m and
    covariance S, the centred features Xc, and sigma = L Lᵀ. The trace of the matrix square root is
    a nuclear norm (see `fidtool.frechet_distance`). Its gradient is the polar factor U Vᵀ of Xc L,
    which has spectral norm 1 even for close, equal or zero singular values, so the gradient cannot
    blow up. The loss is computed in float64, also under autocast. If a feature is not finite, the
    loss and its gradient are NaN, so that a gradient scaler skips the step.

    With several ranks, the batch consists of the batches of all ranks (`gather_with_grad`), and
    forward and backward are collectives.

    Args:
        real: statistics of the real images, or a statistics file (.npz), from the extractor that
            computes the features.
        queue: number of feature vectors from earlier batches, detached, to include in training
            mode. With 0, the distance is computed from the batch only, and is biased upwards for
            small batches.
        projection: a linear map, trainable or not, that is applied to the features and the real
            statistics. If it is trainable, wrap the loss with `wrap_trainable`.
        group, grad, timeout: see `gather_with_grad`; ``sum`` is right for a model wrapped in DDP.

    Raises:
        fidtool.InputError: if the file does not exist or has no statistics, or if the projection
            does not match the statistics.
    """

    queue: Tensor
    queued: Tensor

    def __init__(
        self,
        real: PathLike | Statistics,
        *,
        queue: int = 0,
        projection: nn.Linear | None = None,
        group: Group = None,
        grad: Grad = "sum",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        super().__init__()
        if not isinstance(real, Statistics):
            real = read_statistics(os.fspath(real), features_of=())
        dims = real.whole("real").dims
        linear = isinstance(projection, nn.Linear) and projection.in_features == dims
        if projection is not None and not linear:
            raise InputError(
                f"projection must be a torch.nn.Linear with {dims} input features, as many as the "
                f"statistics have, not {projection}:",
                "put any other head into the extractor, and compute the statistics with it",
            )
        self.projection = projection
        self.group = group
        self.grad = grad
        self.timeout = timeout
        self._ddof = 1 if real.definition is None else real.definition.ddof
        # Not buffers, because `half()` must not convert them. They follow the features to their
        # device.
        self._mu = torch.from_numpy(real.mu).clone()
        self._factor = covariance_factor(Gaussian(real.mu, real.sigma, real.count))
        self.register_buffer("queue", torch.zeros(queue, dims, dtype=torch.float32))
        self.register_buffer("queued", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Return the distance of all ranks' features, including those in the queue, from the real
        statistics.

        Args:
            features: floating-point tensor of shape (n, dims) on this module's device; n may be 0
                on some ranks.

        Returns:
            float32 scalar tensor (float64 for float64 features), the same on every rank.

        Raises:
            fidtool.InputError: if the shape or dtype is wrong, or if there are fewer than two
                feature vectors in total.
            See also `gather_with_grad`.
        """
        if features.shape[1:] != self._mu.shape or not features.is_floating_point():
            with ranks_of(self.group).before_exchange(GATHERING, self.timeout):
                raise not_floats_error("features", f"(n, {len(self._mu)})", features)
        if features.device.type != "meta":  # where their values would be lost
            with no_autograd():
                self._mu = self._mu.to(features.device)
                self._factor = self._factor.to(features.device)
        kind = torch.promote_types(features.dtype, torch.float32)
        joined = gather_with_grad(features.to(kind), self.group, self.grad, timeout=self.timeout)
        with torch.amp.autocast(features.device.type, enabled=False):
            queued = 0
            queueing = self.training and len(self.queue) > 0
            if queueing:
                queued = int(self.queued)  # waits for the device
            x = torch.cat([joined.to(self._mu.dtype), self.queue[:queued].to(self._mu.dtype)])
            if len(x) < 2:
                raise TooFewImagesError(
                    f"FrechetLoss needs at least two feature vectors, not {len(x)}"
                )
            distance = self._distance(x)
        if queueing:
            self._enqueue(joined, queued)
        return distance.to(kind)

    @torch.no_grad()
    def _enqueue(self, features: Tensor, queued: int) -> None:
        """Put the latest features before the ``queued`` ones. A batch that is not finite is
        ignored.
        """
        # Used on the device only: the host does not wait for it.
        finite = torch.isfinite(features).all()
        kept = torch.cat([features.to(self.queue.dtype), self.queue[:queued]])[: len(self.queue)]
        self.queue[: len(kept)] = torch.where(finite, kept, self.queue[: len(kept)])
        self.queued.copy_(torch.where(finite, len(kept), queued))

    def _distance(self, x: Tensor) -> Tensor:
        mu = self._mu
        factor = self._factor
        if self.projection is not None:
            weight = self.projection.weight.to(mu.dtype)
            bias: Tensor | None = self.projection.bias
            if bias is not None:
                bias = bias.to(mu.dtype)
            x = F.linear(x, weight, bias)
            mu = F.linear(mu, weight, bias)
            factor = weight @ factor
        mean = x.mean(0)
        centred = (x - mean) / max(len(x) - self._ddof, 1) ** 0.5
        overlap: Tensor = NuclearNorm.apply(centred @ factor)
        rest: Tensor = (mean - mu).square().sum() + centred.square().sum() + factor.square().sum()
        return rest - 2.0 * overlap

    def _apply(self, fn: Convert, recurse: bool = True) -> FrechetLoss:
        if self.projection is None:  # which is converted
            warn_of_conversion(self, fn)
        queue = self.queue
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.queue.dtype != queue.dtype:
            # Undo half(): large features would overflow in the queue.
            self.queue = queue.to(self.queue.device)
        return self


class NuclearNorm(torch.autograd.Function):
    """Sum of a matrix's singular values, with the polar factor as its gradient.

    The norm is not differentiable where singular values are zero. There the subgradient of least
    norm is used, which is zero in their directions (Watson 1992, Characterization of the
    subdifferential of some matrix norms).
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        finite = torch.isfinite(matrix).all()
        norm, polar = _by_eigenvalues(torch.where(finite, matrix, 0.0))  # LAPACK would raise
        nan = torch.where(finite, 0.0, float("nan"))
        ctx.save_for_backward(polar + nan)
        return norm + nan

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        polar: Tensor = ctx.saved_tensors[0]
        return grad * polar


def _by_eigenvalues(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nuclear norm and the polar factor of a float64 matrix, from the smaller Gram
    matrix if possible.

    Eigenvectors are several times as fast as a singular value decomposition, on a GPU even more,
    but a Gram matrix loses the digits of small singular values. Therefore only those above 1e-4 of
    the largest are taken from it, with an error of the polar factor below 1e-8, and the rest,
    projected to the complement, is decomposed itself.
    """
    if len(matrix) > matrix.shape[1]:
        norm, polar = _by_eigenvalues(matrix.mT)
        return norm, polar.mT
    if len(matrix) == 0:
        return matrix.new_zeros(()), matrix
    squares, u = torch.linalg.eigh(matrix @ matrix.mT)  # ascending
    rest = int((squares <= _SMALL_SQUARE * squares[-1]).sum())
    rows = u.mT @ matrix
    values = rows[rest:].norm(dim=1)
    v = rows[rest:] / values[:, None]
    norm = values.sum()
    polar = u[:, rest:] @ v
    # Below it, singular values are zero up to rounding, so that their directions are arbitrary.
    least = max(matrix.shape) * torch.finfo(matrix.dtype).eps * squares[-1].clamp(min=0.0).sqrt()
    small = rows[:rest] - (rows[:rest] @ v.mT) @ v
    # Centred features have a singular value that is zero up to rounding.
    if rest and small.norm() > least:
        q, r = torch.linalg.qr(small.mT)  # a tall matrix would be slow to decompose
        left, values, right = torch.linalg.svd(r, full_matrices=False)
        norm = norm + values.sum()
        inner = (left * (values > least)) @ right
        polar = polar + u[:, :rest] @ (q @ inner).mT
    return norm, polar
