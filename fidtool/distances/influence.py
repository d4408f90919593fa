"""What each generated image does to the Fréchet distance, to first order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import parts_of
from fidtool.distances.frechet import covariance_factor, linear_algebra_threads
from fidtool.distances.parallel import using_threads
from fidtool.distances.rows import PART
from fidtool.distributed.world import World
from fidtool.statistics.moments import MeanCovariance


@dataclass(frozen=True)
class Target:
    """The Gaussian that the generated images are compared with.

    Attributes:
        mu: float64 array of shape (D,).
        sigma: float64 array of shape (D, D).
        count: number of images behind it, None where unknown.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    count: int | None


def influence(
    real: Target, fitted: MeanCovariance, fake: NDArray[np.float32], world: World, device: torch.device
) -> NDArray[np.float64]:
    """The influence of each generated image on the distance: the derivative by its weight (von Mises 1947).

    The gradients of the distance by the fakes' mean and covariance are 2 (mu_fake - mu_real) and I - T, with T the
    optimal transport map of `transport_root`, and an image moves these by u = x - mu_fake and u uᵀ - sigma_fake:
    h(x) = 2 <mu_fake - mu_real, u> + |u|² - uᵀ T u, less its mean. Without the k images of a set S the distance
    changes by - sum over S of h / (n - k), to first order in k / n.

    Args:
        real: what the fakes are compared with.
        fitted: mean and covariance of the fakes.
        fake: features of shape (n, D); read a block at a time.
        world: the ranks; this is done on one of them, which leaves early when it must stop.
        device: where products are computed; it must have float64.

    Returns:
        h of each image: float64 array of shape (n,), of mean zero up to rounding.
    """
    root = transport_root(real, fitted).to(device)
    mu = torch.from_numpy(fitted.mu).to(device)
    shift = 2.0 * (mu - torch.from_numpy(real.mu).to(device))
    values = np.zeros(len(fake))
    with using_threads(linear_algebra_threads()):
        for part in parts_of(len(fake), PART):
            away = torch.from_numpy(fake[part].astype(np.float64)).to(device) - mu
            quadratic = away.square().sum(1) - (away @ root).square().sum(1)
            values[part] = (away @ shift + quadratic).cpu().numpy()
            if world.must_stop():
                break
    centred: NDArray[np.float64] = values - values.mean()
    return centred


def transport_root(real: Target, fake: MeanCovariance) -> torch.Tensor:
    """M with M Mᵀ = T, the linear map that takes N(0, sigma_fake) to N(0, sigma_real) at least cost.

    With sigma_real = L Lᵀ and A = Lᵀ sigma_fake L, T = L A^(-1/2) Lᵀ: the last trace in the Fréchet distance is that of
    A^(1/2), whose derivative by A is A^(-1/2) / 2. Directions in which A is lost to rounding are left out: their part
    of T is small, as L is there.

    Returns:
        float64 tensor of shape (D, rank).
    """
    factor = covariance_factor(real.sigma, real.count)
    with using_threads(linear_algebra_threads()):
        values, vectors = torch.linalg.eigh(factor.T @ torch.from_numpy(fake.sigma) @ factor)
        kept = values > len(values) * np.finfo(np.float64).eps * values.max()
        root: torch.Tensor = factor @ (vectors[:, kept] * values[kept] ** -0.25)
    return root
