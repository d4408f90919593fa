"""The Fréchet distance as a loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from fidtool.distances.frechet import covariance_factor
from fidtool.errors import InputError, warn_program
from fidtool.statistics.statistics_file import Statistics, read_statistics
from fidtool.training.checks import in_ddp
from fidtool.training.feature_extractor import PathLike
from fidtool.training.gather import Grad, abandon_gathering, gather_with_grad
from fidtool.training.group import DEFAULT_TIMEOUT, Group, ranks_of


class FrechetLoss(nn.Module):
    """Squared Fréchet distance between generated features and fixed real statistics: FID, to be trained on.

    d² = |m - mu|² + tr S + tr sigma - 2 ‖Xc L‖* / √(n - 1) for features X of mean m and covariance S, centred Xc, and
    sigma = L Lᵀ: the trace of the matrix root is a nuclear norm (see `fidtool.frechet_distance`). The gradient of
    that is the polar factor U Vᵀ of Xc L, of norm 1, however close, equal or zero the singular values are: there is
    nothing that can blow up. Computed in float64, also under autocast; where a feature is not finite the loss and its
    gradient are NaN, so that a gradient scaler skips the step.

    With several ranks the batch is that of all ranks (`gather_with_grad`), and forward and backward are collectives.

    Args:
        real: the real images' statistics, or a statistics file (.npz), made by the extractor that makes the features.
        queue: so many features of earlier batches, detached, count along; none in evaluation mode. With 0 the
            distance is that of the batch alone, which few images bias upwards.
        projection: a linear map, learnable or not, through which features and real statistics go first. With
            parameters that learn, wrap the loss with `wrap_trainable`; forward warns where several ranks run without.
        group: process group; None is all ranks.
        grad: see `gather_with_grad`; ``sum`` suits a model wrapped in DDP.
        timeout: seconds that the other ranks may take to come.

    Raises:
        fidtool.InputError: no such file, no statistics, or a projection that does not fit.
    """

    queue: torch.Tensor
    queued: torch.Tensor

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
        statistics = real if isinstance(real, Statistics) else read_statistics(os.fspath(real), features_of=())
        if projection is not None and not isinstance(projection, nn.Linear):
            raise InputError(
                f"projection must be a torch.nn.Linear, not {type(projection).__name__}: real statistics can only be "
                "mapped by one",
                "put any other head into the extractor and measure the real images through it",
            )
        if projection is not None and projection.in_features != statistics.dims:
            raise InputError(
                f"projection takes {projection.in_features} features and the statistics have {statistics.dims}"
            )
        if queue < 0:
            raise InputError(f"queue must be at least 0, not {queue}")
        self.projection, self.group, self.grad, self.timeout = projection, group, grad, timeout
        self._ddof = 1 if statistics.definition is None else statistics.definition.ddof
        # No buffers: `half()` must not touch them.
        self._mu = torch.from_numpy(statistics.mu).clone()
        self._factor = covariance_factor(statistics.sigma, statistics.count)
        self.register_buffer("queue", torch.zeros(queue, statistics.dims, dtype=torch.float32))
        self.register_buffer("queued", torch.zeros((), dtype=torch.int64))
        self._warned = False
        self._move(self.queue.device)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The distance of all ranks' features, and those in the queue, from the real ones.

        Args:
            features: floating-point tensor of shape (n, dims) on this module's device; n may be 0 on some ranks.

        Returns:
            float32 tensor without dimensions (float64 for float64 features), the same on every rank.

        Raises:
            fidtool.InputError: another shape, or fewer than two features in all.
            See also `gather_with_grad`.
        """
        if features.ndim != 2 or features.shape[1] != len(self._mu) or not features.is_floating_point():
            wrong = f"features must be floats of shape (n, {len(self._mu)}), not {tuple(features.shape)}"
            abandon_gathering(self.group, wrong, self.timeout)
            raise InputError(wrong)
        self._warn_without_ddp()
        kind = torch.promote_types(features.dtype, torch.float32)
        joined = gather_with_grad(features.to(kind), self.group, self.grad, timeout=self.timeout)
        with torch.amp.autocast(features.device.type, enabled=False):
            past = self.queue[: int(self.queued)] if self.training else self.queue[:0]
            every = torch.cat([joined.to(self._mu.dtype), past.to(self._mu.dtype)])
            if len(every) < 2:
                raise InputError(f"FrechetLoss needs two features at least and got {len(every)}")
            distance = self._distance(every)
        if self.training and len(self.queue):
            self._enqueue(joined.detach())
        value: torch.Tensor = distance.to(kind)
        return value

    def _distance(self, x: torch.Tensor) -> torch.Tensor:
        mu, factor = self._mu, self._factor
        if self.projection is not None:
            weight = self.projection.weight.to(mu.dtype)
            bias = None if self.projection.bias is None else self.projection.bias.to(mu.dtype)
            x, mu, factor = F.linear(x, weight, bias), F.linear(mu, weight, bias), weight @ factor
        mean = x.mean(0)
        centred = (x - mean) / max(len(x) - self._ddof, 1) ** 0.5
        overlap = nuclear_norm(centred @ factor)
        rest: torch.Tensor = (mean - mu).square().sum() + centred.square().sum() + factor.square().sum()
        return rest - 2.0 * overlap

    @torch.no_grad()
    def _enqueue(self, joined: torch.Tensor) -> None:
        """Puts the latest features first in the queue and drops the oldest; a batch that is not finite stays out."""
        if not torch.isfinite(joined).all():
            return
        kept = torch.cat([joined.to(self.queue.dtype), self.queue[: int(self.queued)]])[: len(self.queue)]
        self.queue[: len(kept)] = kept
        self.queued.fill_(len(kept))

    def _warn_without_ddp(self) -> None:
        if self._warned or not any(parameter.requires_grad for parameter in self.parameters()):
            return
        if ranks_of(self.group).size > 1 and torch.is_grad_enabled() and not in_ddp(self):
            self._warned = True
            warn_program(
                "FrechetLoss has parameters but is not wrapped in DistributedDataParallel: each rank trains a "
                "projection of its own, and they drift apart. Wrap it: loss = fidtool.training.wrap_trainable(loss)"
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> FrechetLoss:
        queue = self.queue
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.queue.dtype != queue.dtype:  # half() is for models; in the queue large features would overflow
            self.queue = queue.to(self.queue.device)
        self._move(fn(torch.zeros(0, dtype=torch.uint8, device=self._mu.device)).device)
        return self

    def _move(self, device: torch.device) -> None:
        """Moves the real statistics, but not to the meta device, where they would be lost."""
        if device.type != "meta":
            kind = torch.float32 if device.type == "mps" else torch.float64
            self._mu, self._factor = self._mu.to(device, kind), self._factor.to(device, kind)


def nuclear_norm(matrix: torch.Tensor) -> torch.Tensor:
    """Sum of the singular values, with the polar factor as its gradient.

    Where singular values are zero the norm has no gradient; the subgradient of least norm, which leaves their
    directions alone, stands for it. (Watson 1992, Characterization of the subdifferential of some matrix norms.)

    Args:
        matrix: floating-point tensor of shape (m, n).
    """
    norm: torch.Tensor = _NuclearNorm.apply(matrix)
    return norm


class _NuclearNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(matrix).all():  # LAPACK would refuse
            ctx.save_for_backward(torch.full_like(matrix, float("nan")))
            return matrix.new_tensor(float("nan"))
        u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
        # Singular values that are zero but for rounding have arbitrary directions.
        least = max(matrix.shape) * torch.finfo(matrix.dtype).eps * values.max() if len(values) else 0.0
        kept = values > least
        ctx.save_for_backward((u * kept) @ vh)
        total: torch.Tensor = values.sum()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        polar: torch.Tensor = ctx.saved_tensors[0]
        return grad * polar
