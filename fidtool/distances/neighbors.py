"""Precision, recall, density, coverage, AuthPct: counts of images by exact distances, the same on
all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import (
    MAX_STEP,
    FeatureBlock,
    Features,
    FeatureSettings,
    QuantizedFeatures,
    quantize_features,
    row_blocks,
    squared_distances,
)
from fidtool.distances.parallel import fair_threads, set_threads
from fidtool.distributed.world import World

MAX_BLOCK = 2048
"""Largest number of rows of a block. As distances and counts are exact, only time and memory depend
on it.
"""
MIN_BLOCK = 256
"""Smallest number of rows of a block, if there are as many."""


def prdc(
    real: Features,
    fake: Features,
    settings: FeatureSettings,
    *,
    k: int = 5,
    ties: str = "strict",
) -> tuple[dict[str, float], tuple[int, int]]:
    """Compute precision, recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al.
    2020). A collective.

    The radius of an image's ball is the distance to its k-th nearest neighbour in the same set. The
    image itself is excluded by its index, and duplicates of it count as neighbours at distance 0.
    Distances are compared exactly.

    Implementations differ in k and in whether the surface belongs to the ball, see the guide's page
    on PRDC. Without duplicates, the two rules rarely give different values.

    Args:
        real, fake, settings: see `kid`.
        k: number of the neighbour, from 1 to min(n, m) - 1.
        ties: whether an image exactly as far away as the k-th neighbour is outside the ball
            (``strict``: d < r, Naeem et al.) or inside (``inclusive``: d <= r, Kynkäänniemi et
            al.).

    Returns:
        ``precision``, the share of the fakes that are in the ball of at least one real; ``recall``,
        the share of the reals that are in the ball of at least one fake; ``density``, the number of
        real balls that a fake is in, divided by k, as a mean over the fakes, whose expectation is 1
        for fakes distributed like the reals; and ``coverage``, the share of the reals whose ball
        contains at least one fake; and ``f_score``, the harmonic mean of precision and recall, as
        in torch-fidelity. And the number of reals and of fakes whose ball has the radius 0, because
        of k duplicates.
    """
    reals, fakes = quantize_features([real, fake], settings)
    real_radii = _squared_radii(reals, k)
    fake_radii = _squared_radii(fakes, k)
    world = settings.world
    in_ball = torch.le if ties == "inclusive" else torch.lt
    precise = fakes.full(False, torch.bool)
    covered = reals.full(False, torch.bool)
    recalled = reals.full(False, torch.bool)
    pairs = torch.zeros(1, dtype=torch.int64, device=settings.device)
    with set_threads(fair_threads(world)), world.together():
        for fake_block, real_block in _block_pairs(fakes, reals):
            of_fakes = fake_block.rows
            of_reals = real_block.rows
            distances = squared_distances(fake_block, real_block)  # once for all four metrics
            in_real = in_ball(distances, real_radii[of_reals])
            pairs += in_real.count_nonzero()
            precise[of_fakes] |= in_real.any(1)
            covered[of_reals] |= in_real.any(0)
            recalled[of_reals] |= in_ball(distances, fake_radii[of_fakes, None]).any(0)
    precision = _flagged_share(precise, world)
    recall = _flagged_share(recalled, world)
    values = {
        "precision": precision,
        "recall": recall,
        "density": int(world.all_reduce_sum(pairs)) / (k * len(fakes)),
        "coverage": _flagged_share(covered, world),
        "f_score": 2 * precision * recall / max(1e-5, precision + recall),
    }
    return values, (int((real_radii == 0).sum()), int((fake_radii == 0).sum()))


def _flagged_share(flags: torch.Tensor, world: World) -> float:
    """Return the share of the rows whose flag is set on any rank. A collective."""
    return int(world.all_reduce_sum(flags.long()).count_nonzero()) / len(flags)


def _row_blocks(features: QuantizedFeatures) -> list[slice]:
    """Return parts small enough for each rank to get about four, but not smaller than is
    efficient.
    """
    share = -(-len(features) // (4 * features.world.size))
    return row_blocks(len(features), max(MIN_BLOCK, min(MAX_BLOCK, share)))


def _block_pairs(
    first: QuantizedFeatures, second: QuantizedFeatures
) -> Iterator[tuple[FeatureBlock, FeatureBlock]]:
    """Yield each of this rank's blocks of the ``first`` set with each block of the ``second``."""
    for part in _row_blocks(first)[first.world.rank :: first.world.size]:
        own = first.block(part)
        for other in _row_blocks(second):
            yield own, second.block(other)


def _squared_radii(features: QuantizedFeatures, k: int) -> torch.Tensor:
    """Return each row's squared distance to its k-th nearest neighbour: float64, shape (n,), on
    all ranks.

    The distances between each pair of parts are computed once and used for the rows of both. A
    collective.
    """
    nearest = torch.full((len(features), k), math.inf, dtype=torch.float64, device=features.device)
    parts = _row_blocks(features)
    world = features.world
    with set_threads(fair_threads(world)), world.together():
        for number in range(world.rank, len(parts), world.size):
            first = features.block(parts[number])
            own = squared_distances(first, first)
            _keep_nearest(nearest, first, own.fill_diagonal_(math.inf))
            for second in map(features.block, parts[number + 1 :]):
                distances = squared_distances(first, second)
                _keep_nearest(nearest, first, distances)
                _keep_nearest(nearest, second, distances.T)
    of_ranks = np.concatenate(world.gather(nearest.cpu().numpy()), axis=1)
    return _topk_smallest(torch.from_numpy(of_ranks), k)[:, -1].to(features.device)


def _keep_nearest(nearest: torch.Tensor, block: FeatureBlock, distances: torch.Tensor) -> None:
    """Merge a block's distances, shape (len(block), m), into ``nearest``, shape (n, k),
    ascending.
    """
    k = nearest.shape[1]
    closest = _topk_smallest(distances, min(k, distances.shape[1]))
    nearest[block.rows] = _topk_smallest(torch.cat([nearest[block.rows], closest], 1), k)


def _topk_smallest(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.topk(count, dim=1, largest=False, sorted=True).values


def authpct(real: Features, fake: Features, settings: FeatureSettings) -> float:
    """Return the percentage of authentic fakes (Alaa et al. 2022), as in dgm-eval. A collective.

    A fake is authentic if it is farther from its nearest real, the first of several, than that is
    from its own nearest real. The arguments are those of `prdc`, with at least two reals. Distances
    are compared exactly.
    """
    reals, fakes = quantize_features([real, fake], settings)
    radii = _squared_radii(reals, 1)
    squares, nearest = _nearest(reals, fakes)
    return 100 * int((squares > radii[nearest]).count_nonzero()) / len(fakes)


def nearest_reals(
    real: Features, some: Features, settings: FeatureSettings
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the nearest real of each of ``some`` features, the first of several. A collective.

    The arguments are those of `prdc`.

    Returns:
        The rows of the reals, and the Euclidean distances to them, both of shape (m,). The
        distances are exact but for the square root: 0 for equal rounded features only.
    """
    reals, rows = quantize_features([real, some], settings)
    squares, nearest = _nearest(reals, rows)
    return nearest.cpu().numpy(), squares.sqrt().mul_(2.0**-rows.step).cpu().numpy()


def _nearest(
    reals: QuantizedFeatures, some: QuantizedFeatures
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return of each row of ``some`` the nearest real, the first of several, on all ranks. A
    collective.

    Returns:
        The squared distances to them, float64, and their rows, int64, both of shape (m,).
    """
    distances = some.full(math.inf, torch.float64)
    nearest = some.full(0, torch.int64)
    numbers = torch.arange(len(reals), device=some.device)
    world = some.world
    with set_threads(fair_threads(world)), world.together():
        for own, others in _block_pairs(some, reals):
            rows = own.rows
            closest, places = squared_distances(own, others).min(1)
            closer = closest < distances[rows]
            distances[rows] = torch.where(closer, closest, distances[rows])
            nearest[rows] = torch.where(closer, numbers[others.rows][places], nearest[rows])
    # Those of a row are from one rank.
    return world.all_reduce_sum(distances.nan_to_num(posinf=0.0)), world.all_reduce_sum(nearest)


def nearest_cosine_distance(real: Features, fake: Features, settings: FeatureSettings) -> float:
    """Return the mean of the reals' cosine distances 1 - |cos| to the nearest fake (Bai et al.
    2021). A collective.

    The arguments are those of `prdc`. Features that add up to 0 are left out, as in torchmetrics;
    the value is 1 if none is left in a set.
    """
    # The scale does not matter, so the finest step that suits the longest vector is used.
    reals, fakes = quantize_features([real, fake], replace(settings, feature_step=MAX_STEP))
    # The square of each real's largest |cos|, on one rank.
    largest = reals.full(0.0, torch.float64)
    world = settings.world
    with set_threads(fair_threads(world)), world.together():
        for real_block, fake_block in _block_pairs(reals, fakes):
            products = real_block.integers @ fake_block.integers.T
            squares = products.square_().div_(fake_block.squares)
            squares[:, fake_block.integers.sum(1) == 0] = 0.0
            nearest = squares.amax(1).div_(real_block.squares)
            nearest[real_block.integers.sum(1) == 0] = math.nan
            rows = real_block.rows
            largest[rows] = torch.maximum(largest[rows], nearest)
    world.all_reduce_sum(largest)
    distances = 1.0 - largest[~largest.isnan()].sqrt().clamp(max=1.0)
    return math.fsum(distances.tolist()) / len(distances) if len(distances) else 1.0
