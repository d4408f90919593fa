"""Distances from inner products: kernels for KID, CMMD and the Vendi score, random directions for
MIND.

Sums of kernel values depend on their order, so the order is fixed: on one thread within the rows of
blocks of a fixed size, and over rows with `math.fsum`, which rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain, islice
from operator import mul

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import (
    FeatureBlock,
    Features,
    FeatureSettings,
    QuantizedFeatures,
    Rows,
    iterate_blocks,
    mean_and_deviation,
    quantize_features,
    row_blocks,
    squared_distances,
)
from fidtool.distances.frechet import eigenvalues
from fidtool.distances.parallel import (
    fair_threads,
    linear_algebra_threads,
    set_threads,
    share_out,
)
from fidtool.distributed.seeds import sample_seed
from fidtool.errors import RunError
from fidtool.sources.image_set import canonical_order

Polynomial = tuple[int, float | None, float]
"""Degree, gamma and coef of the kernel (gamma <x, y> + coef) ** degree; a gamma of None is 1 /
D.
"""
Kernel = Polynomial | float
"""A polynomial, or sigma of the Gaussian kernel exp(-|x - y|² / (2 sigma²))."""

COLUMNS = 256
"""Columns of Vendi's matrix per job."""
DIRECTIONS = 100
"""Directions of MIND per job, whose projections of 50,000 images take 40 MB."""
# Bandwidth of CMMD's kernel.
_SIGMA = 10.0
# Factor of CMMD's value.
_SCALE = 1000.0


def kid(
    real: Features,
    fake: Features,
    settings: FeatureSettings,
    *,
    subset_size: int = 1000,
    subsets: int = 100,
    seed: int = 0,
    draws: Sequence[Sequence[NDArray[np.int64]]] | None = None,
    kernel: Kernel = (3, None, 1.0),
) -> tuple[float, float]:
    """Return the Kernel Inception Distance (Bińkowski et al. 2018). A collective.

    It is the squared maximum mean discrepancy with the kernel k(x, y) = (<x, y> / D + 1)³. The
    unbiased estimate [sum over i != j of k(x_i, x_j) + k(y_i, y_j)] / (m (m - 1)) - 2 [sum of
    k(x_i, y_j)] / m² is computed on subsets of m images of each set, drawn without replacement.

    Other tools use the same kernel and estimate but draw different subsets, see the guide's page on
    KID.

    Args:
        real, fake: features of shapes (n, D) and (m, D), the same on every rank; one block at a
            time is read.
        settings: how they are rounded, the device on which products are computed, and the ranks,
            over which the subsets are distributed. The result has the same bits at any number of
            ranks.
        subset_size: number of images of each set in a subset, at least 2.
        subsets: number of subsets, at least 1.
        seed: seed of the subsets, which are the same in all versions.
        draws: the subsets, as another tool drew them: each has row numbers of the real and of the
            generated images.
        kernel: another kernel.

    Returns:
        The mean over the subsets, which may be negative if it is close to 0, because the estimate
        is unbiased; and their population standard deviation (ddof 0), 0 for one subset, which is
        not the standard error of the mean.
    """
    sets = quantize_features([real, fake], settings)

    def draw(number: int) -> list[NDArray[np.int64]]:
        """Return the first rows of a permutation of each set."""
        drawn = []
        for place, features in enumerate(sets, 2 * number):
            place_seed = sample_seed(seed, place)
            drawn.append(canonical_order(len(features), place_seed, subset_size))
        return drawn

    def estimate(number: int) -> float:
        drawn = draws[number] if draws else draw(number)
        rows = [[order[part] for part in row_blocks(len(order))] for order in drawn]
        sums = [[job() for job in jobs] for jobs in _mmd_jobs(kernel, sets, rows)]
        within = math.fsum(sums[0] + sums[1])
        between = math.fsum(sums[2])
        count = len(drawn[0])
        return within / (count * (count - 1)) - 2.0 * between / count**2

    jobs = [partial(estimate, number) for number in range(len(draws) if draws else subsets)]
    return mean_and_deviation(share_out(jobs, settings.world))


def _kernel(
    kernel: Kernel, step: int, threads: int, a: FeatureBlock, b: FeatureBlock
) -> torch.Tensor:
    """Return k(a, b) for each a in the first block and each b in the second, float64.

    Of a Gaussian it is k - 1, by which no MMD changes, and no digits are lost where all k are close
    to 1. Only exact products use several ``threads``.
    """
    if not isinstance(kernel, tuple):
        with set_threads(threads):
            distances = squared_distances(a, b)
        return distances.mul_(-(4.0**-step) / (2.0 * kernel**2)).expm1_()
    degree, gamma, coef = kernel
    with set_threads(threads):
        products = a.integers @ b.integers.T
    divisor = 4.0**step * a.integers.shape[1] if gamma is None else 4.0**step / gamma
    return reduce(mul, [products.div_(divisor).add_(coef)] * degree)


def _mmd_jobs(
    kernel: Kernel, sets: Sequence[QuantizedFeatures], rows: Sequence[Sequence[Rows]]
) -> list[list[Callable[[], float]]]:
    """Return jobs, one for each part of the rows, that return sums of the kernel over pairs of
    these rows.

    They are over the pairs a != b of the first set, over those of the second, and over the pairs of
    one from each.
    """

    values = partial(_kernel, kernel, sets[0].step, fair_threads(sets[0].world))

    def within(features: QuantizedFeatures, parts: Sequence[Rows]) -> float:
        first = features.block(parts[0])
        sums = [values(first, first).fill_diagonal_(0.0).sum(1)]
        for part in parts[1:]:
            sums.append(2.0 * values(first, features.block(part)).sum(1))
        return _fsum(sums)

    def between(part: Rows) -> float:
        first = sets[0].block(part)
        return _fsum([values(first, sets[1].block(other)).sum(1) for other in rows[1]])

    jobs: list[list[Callable[[], float]]] = []
    for features, parts in zip(sets, rows, strict=True):
        jobs.append([partial(within, features, parts[number:]) for number in range(len(parts))])
    jobs.append([partial(between, part) for part in rows[0]])
    return jobs


def _fsum(sums: list[torch.Tensor]) -> float:
    """Return the sum of all entries, rounded once. Waits for an accelerator once, not for each
    tensor.
    """
    values = torch.cat(sums).tolist()
    if not all(map(math.isfinite, values)):
        raise RunError("KID's kernel is too large:", "scale the features in the network")
    return math.fsum(values)


def vendi(features: Features, settings: FeatureSettings) -> float:
    """Return the Vendi score (Friedman & Dieng 2023): exp of the entropy of the eigenvalues of K /
    n. A collective.

    K is the cosine similarity. Except for zeros, K has the eigenvalues of the sum of u uᵀ over the
    unit vectors u. Vectors that are 0 are equal to each other and similar to no others. The result
    is from 1, if all vectors have one direction, to min(n, D), with the same bits at any number of
    ranks. For the arguments see `kid`.
    """

    dims = features.shape[1]
    parts = row_blocks(dims, COLUMNS)

    def products(columns: slice) -> NDArray[np.float64]:
        total = torch.zeros((), dtype=torch.float64, device=settings.device)
        for block in iterate_blocks(features, settings.device):
            units = torch.nn.functional.normalize(block)
            total = total + units[:, columns].T @ units[:, : columns.stop]
        return total.cpu().numpy()

    of_parts = share_out([partial(products, columns) for columns in parts], settings.world)

    def score() -> float:
        lower = torch.zeros(dims, dims, dtype=torch.float64, device="cpu")
        for columns, rows in zip(parts, of_parts, strict=True):
            lower[columns, : columns.stop] = torch.from_numpy(rows)
        with set_threads(linear_algebra_threads()):
            values = eigenvalues(lower) / len(features)
        # Vectors that are 0 have the rest of the sum.
        values = torch.cat([values, 1.0 - values.sum(0, keepdim=True)]).clamp(min=0.0)
        return math.exp(math.fsum(torch.special.entr(values).tolist()))

    return settings.world.on_rank_zero(score)


def cmmd(real: Features, fake: Features, settings: FeatureSettings) -> float:
    """Return CMMD (Jayasumana et al. 2024), the squared MMD with a Gaussian kernel. A collective.

    The value is mean k(x, x') + mean k(y, y') - 2 mean k(x, y), times 1000, with k = exp(-|x - y|²
    / (2 sigma²)). The means include the pairs of an image with itself (the biased estimate, as in
    the authors' code). For embeddings of norm 1 and sigma 10, each k is within 0.02 of 1.

    The arguments are those of `kid`. In the paper the embeddings come from CLIP ViT-L/14 at 336
    pixels and have norm 1.

    Returns:
        At least 0; a negative rounding error is set to 0.
    """
    sets = quantize_features([real, fake], settings)
    jobs = _mmd_jobs(_SIGMA, sets, [row_blocks(len(features)) for features in sets])
    sums = iter(share_out([*chain(*jobs)], settings.world))
    within_real, within_fake, between = (math.fsum(islice(sums, len(own))) for own in jobs)
    means = (
        within_real / len(real) ** 2,
        within_fake / len(fake) ** 2,
        -2.0 * between / (len(real) * len(fake)),
    )
    return max(_SCALE * math.fsum(means), 0.0)


def mind(
    real: Features,
    fake: Features,
    settings: FeatureSettings,
    *,
    directions: int = 1000,
    seed: int = 0,
) -> float:
    """Return MIND (Berthet et al. 2026), 3 D times the squared sliced 2-Wasserstein distance. A
    collective.

    It is 3 D times the mean, over random unit directions and the images of a set, of the squared
    difference of the sorted projections, in float64. If the sets have the same number of images,
    torch-fidelity draws the same directions for the same seed, and computes in float32.

    Args:
        real, fake, settings: see `kid`. Of the larger set only the first min(n, m) images, which
            should be in random order, are used.
        directions: number of random directions, at least 1.
        seed: seed of the directions.
    """
    count = min(len(real), len(fake))
    dims = real.shape[1]
    drawn = torch.randn(
        directions, dims, generator=torch.Generator("cpu").manual_seed(seed), device="cpu"
    )
    units = torch.nn.functional.normalize(drawn.double()).to(settings.device)

    def project(features: Features, some: slice) -> torch.Tensor:
        blocks = iterate_blocks(features[:count], settings.device)
        return torch.cat([units[some] @ block.T for block in blocks], 1).sort(1).values

    def distance(some: slice) -> float:
        return float((project(real, some) - project(fake, some)).square_().sum())

    jobs = [partial(distance, some) for some in row_blocks(directions, DIRECTIONS)]
    sums = share_out(jobs, settings.world)
    return float(3 * dims * math.fsum(sums) / (directions * count))
