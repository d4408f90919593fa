"""Precision, recall, density and coverage, from exact distances: counts of images, the same ones everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import (
    BLOCK_ROWS,
    FeatureBlock,
    QuantizedFeatures,
    parts_of,
    quantize_features,
    squared_distances,
)
from fidtool.distances.parallel import fair_threads, using_threads
from fidtool.distributed.world import World
from fidtool.errors import InputError, option
from fidtool.images.batches import deal

_LARGEST_PART, _SMALLEST_PART = 2048, 256
"""Rows of a block. Distances and counts are exact, so this shows in the time and the memory alone."""

Ties = Literal["strict", "inclusive"]


@dataclass(frozen=True)
class PRDC:
    """How much of the fakes is realistic, and how much of the reals they cover.

    Attributes:
        precision: share of the fakes that lie in the ball of at least one real, 0 to 1.
        recall: share of the reals that lie in the ball of at least one fake, 0 to 1.
        density: number of real balls that a fake lies in, over k; the mean over the fakes, at least 0. It is expected
            to be 1 for fakes distributed as the reals, and may exceed 1.
        coverage: share of the reals whose ball holds at least one fake, 0 to 1.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def prdc(
    real: NDArray[np.float32],
    fake: NDArray[np.float32],
    world: World,
    *,
    k: int = 5,
    ties: Ties = "strict",
    feature_step: int,
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
) -> PRDC:
    """Precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020). A collective.

    The ball of an image reaches to its k-th nearest other image of the same set: the image itself is left out by its
    place in the set, and copies of it count as neighbours at distance 0. Distances are compared exactly.

    Peers differ in whether the ball's surface belongs to it, and in k. ``strict`` (d < r) is the code of Naeem et al.
    and the package prdc 0.2, for which they recommend k = 5. ``inclusive`` (d <= r) is the code of Kynkäänniemi et al.,
    StyleGAN, torch-fidelity and ADM's evaluator, with k = 3. Without duplicates few numbers change.

    Args:
        real, fake: features of shapes (n, D) and (m, D), the same on every rank; each is read a block at a time.
        world: the ranks; the results have the same bits at any number of them.
        k: number of the neighbour, from 1 to min(n, m) - 1.
        ties: whether an image exactly as far as the k-th neighbour is outside (``strict``) or inside (``inclusive``).
        feature_step: features are rounded to multiples of 2 ** -feature_step.
        device: where distances are computed; it must have float64.

    Raises:
        InputError: a set with too few images, or dimensions that differ.
        RunError: features that are not finite or too small for the step.
    """
    for name, features in (("real", real), ("fake", fake)):
        if not 1 <= k < len(features):
            raise InputError(
                f"{option('nearest_k', k)} needs a set of at least {max(k, 1) + 1} images, but the {name} set has "
                f"{len(features)}:",
                f"give {option('nearest_k')} a number from 1 to {max(1, len(features) - 1)}, or more images",
                setting="nearest_k",
            )
    reals, fakes = quantize_features([real, fake], feature_step, world, device)
    with using_threads(fair_threads(world)):
        balls = _Balls(ties, _squared_radii(reals, k, world), _squared_radii(fakes, k, world))
        numbers, flags = (world.sum_(counts) for counts in _count(reals, fakes, balls, world))
    precise, hits = numbers.tolist()
    covered, recalled = flags.count_nonzero(1).tolist()
    return PRDC(precise / len(fake), recalled / len(real), hits / (k * len(fake)), covered / len(real))


def _parts(count: int, world: World) -> list[slice]:
    """Parts small enough that each rank gets about four of them, and no smaller than is efficient."""
    return parts_of(count, max(_SMALLEST_PART, min(_LARGEST_PART, -(-count // (4 * world.size)))))


def _squared_radii(features: QuantizedFeatures, k: int, world: World) -> torch.Tensor:
    """Squared distance of each row to its k-th nearest other one: float64, shape (n,), on every rank.

    Each pair of parts is looked at once, for the rows of both.
    """
    nearest = torch.full((len(features), k), float("inf"), dtype=torch.float64, device=features.device)
    with world.together():
        parts = _parts(len(features), world)
        for number in deal(range(len(parts)), world.rank, world.size):
            first = features.block(parts[number])
            own = squared_distances(first, first)
            _keep_nearest(nearest, first, own.fill_diagonal_(float("inf")))
            for second in features.blocks(parts[number + 1 :], world):
                distances = squared_distances(first, second)
                _keep_nearest(nearest, first, distances)
                _keep_nearest(nearest, second, distances.T)
    found = [torch.from_numpy(theirs) for theirs in world.gather(nearest.cpu().numpy())]
    return _smallest(torch.cat(found, 1), k)[:, -1].to(features.device)


def _keep_nearest(nearest: torch.Tensor, block: FeatureBlock, distances: torch.Tensor) -> None:
    """Takes into ``nearest``, (n, k) and ascending, the distances of shape (len(block), m) of a block's rows."""
    k = nearest.shape[1]
    closest = _smallest(distances, min(k, distances.shape[1]))
    nearest[block.rows] = _smallest(torch.cat([nearest[block.rows], closest], 1), k)


def _smallest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` smallest of each row, ascending."""
    return values.topk(count, dim=1, largest=False, sorted=True).values


@dataclass(frozen=True)
class _Balls:
    """Squared radii of the balls, shapes (n,) and (m,), and whether their surface belongs to them."""

    ties: Ties
    real: torch.Tensor
    fake: torch.Tensor

    def hold(self, distances: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
        return distances <= radii if self.ties == "inclusive" else distances < radii


def _count(
    reals: QuantizedFeatures, fakes: QuantizedFeatures, balls: _Balls, world: World
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compares this rank's fakes with all reals; each distance is computed once for all four numbers.

    Returns:
        int64 tensors: numbers of these fakes in a real ball and of pairs of one and a real ball around it, shape (2,);
        which reals are covered and which are recalled by these fakes, 0 or 1, shape (2, n).
    """
    numbers = torch.zeros(2, dtype=torch.int64, device=reals.device)
    covered, recalled = flags = torch.zeros(2, len(reals), dtype=torch.bool, device=reals.device)
    with world.together():
        for rows in deal(_parts(len(fakes), world), world.rank, world.size):
            some = fakes.block(rows)
            precise = torch.zeros_like(some.squares, dtype=torch.bool)
            for others in reals.blocks(_parts(len(reals), world), world):
                distances = squared_distances(some, others)
                in_real = balls.hold(distances, balls.real[others.rows])
                precise |= in_real.any(1)
                numbers[1] += in_real.count_nonzero()
                covered[others.rows] |= in_real.any(0)
                recalled[others.rows] |= balls.hold(distances, balls.fake[rows, None]).any(0)
            numbers[0] += precise.count_nonzero()
    return numbers, flags.long()


def nearest_rows(
    some: NDArray[np.float32], others: NDArray[np.float32], device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each of a few vectors the nearest of many, by Euclidean distance; the first of several.

    Args:
        some: shape (k, D).
        others: shape (n, D), n at least 1; read a block at a time.
        device: where distances are computed; it must have float64.

    Returns:
        Rows of ``others`` and the distances to them, both of shape (k,).
    """
    points = torch.from_numpy(some.astype(np.float64)).to(device)
    nearest = torch.full((len(some),), float("inf"), dtype=torch.float64, device=device)
    rows = torch.zeros(len(some), dtype=torch.int64, device=device)
    for part in parts_of(len(others), BLOCK_ROWS):
        block = torch.from_numpy(others[part].astype(np.float64)).to(device)
        # Not by products: the nearest of copies is at distance 0 exactly.
        distances, places = torch.cdist(points, block, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        closer = distances < nearest
        nearest[closer], rows[closer] = distances[closer], places[closer] + part.start
    return rows.cpu().numpy(), nearest.cpu().numpy()
