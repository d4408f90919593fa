"""Inception Score, from features and the network's classifier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import (
    MAX_STEP,
    Features,
    FeatureSettings,
    mean_and_deviation,
    quantize_features,
    row_blocks,
)
from fidtool.distances.parallel import set_threads
from fidtool.distributed.launch import available_threads

# Random parts, or more if there are more in stored order, that the latter are compared with.
_RANDOM_PARTS = 20
# Most images in all random parts.
_MAX_RANDOM_ROWS = 5000
# Fewest random parts that show how much scores vary by chance.
_MIN_RANDOM = 5


def inception_score(
    features: Features,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None = None,
    *,
    splits: int = 10,
    split_size: int | None = None,
    order: NDArray[np.int64] | None = None,
) -> tuple[float, float, float | None, float]:
    """Compute the Inception Score (Salimans et al. 2016): exp(mean over x of KL(p(y|x) || p(y))),
    for each split.

    p(y|x) is the softmax of the logits <feature, weight> + bias, in float64, and p(y) is its mean
    over the split. Split i of s contains the rows i n // s to (i + 1) n // s. Rows must be in
    random order, because sorted file names may also sort the classes. Not a collective.

    For the bias and the parts of other tools see the guide's page on metrics. torchmetrics computes
    the standard deviation with ddof 1, the others with ddof 0, as here.

    Args:
        features: array of shape (n, D), in memory or on disk; one block at a time is read.
        weight: weight of the classifier, shape (classes, D).
        bias: bias of the classifier, shape (classes,); None for none.
        splits: number of splits, from 1 to n.
        split_size: number of images per split, of which the last may have fewer; replaces
            ``splits``.
        order: int64 array of shape (n,), by which the rows are sorted before they are divided; None
            keeps their order.

    Returns:
        The mean over the splits, from 1 to the number of classes; their population standard
        deviation (ddof 0), 0 for one split; the ratio of the mean over whole parts in stored order
        to the score of random parts of that size, about 1 if that order is random and far below 1
        if it sorts the classes, None if it is not known; and the standard error of the ratio if
        that order is random, 0 if there are too few random parts to tell. They have the
        same bits for any number of threads: the inner products are exact, and all other operations
            use one thread.
    """
    count = len(features)
    finest = FeatureSettings(MAX_STEP)
    (rows,) = quantize_features([features], finest)
    (classes,) = quantize_features([weight], finest)
    classifier = classes.block(slice(None))
    unit = 2.0 ** -(rows.step + classes.step)
    if split_size:
        ends = np.arange(split_size, count, split_size)
    else:
        ends = np.arange(1, splits) * count // splits
    places = np.arange(count) if order is None else np.argsort(order, kind="stable")

    def score(split: NDArray[np.int64]) -> float:
        sums = []
        entropies = []
        for part in row_blocks(len(split)):
            with set_threads(available_threads()):
                logits = rows.block(split[part]).integers @ classifier.integers.T
            logits.mul_(unit)
            if bias is not None:
                logits += torch.from_numpy(bias.astype(np.float64))
            log_p = logits.log_softmax(1)
            p = log_p.exp()
            sums.append(p.sum(0))
            entropies.append(math.fsum((p * log_p).sum(1).tolist()))
        mean = torch.stack(sums).sum(0) / len(split)
        # The mean KL divergence is the mean over x of sum p(y|x) log p(y|x), minus sum p(y) log
        # p(y).
        of_mean = math.fsum(torch.xlogy(mean, mean).tolist())
        return math.exp(math.fsum(entropies) / len(split) - of_mean)

    ratio = None
    error = 0.0
    with set_threads(1):
        scores = [score(split) for split in np.split(places, ends)]
        if order is not None and split_size is not None and split_size < count:
            whole = count // split_size
            ratio, error = _compare_with_random(scores[:whole], score, count, split_size)
    return *mean_and_deviation(scores), ratio, error


def _compare_with_random(
    scores: list[float], score: Callable[[NDArray[np.int64]], float], count: int, size: int
) -> tuple[float, float]:
    """Return the ratio of the mean of whole parts' ``scores`` to that of random parts, and its
    standard error.
    """
    number = max(1, min(max(len(scores), _RANDOM_PARTS), _MAX_RANDOM_ROWS // size))
    parts = itertools.islice(_random_parts(count, size), number)
    by_chance = [score(part) for part in parts]
    usual = math.fsum(by_chance) / number
    ratio = math.fsum(scores) / len(scores) / usual
    if number < _MIN_RANDOM:
        return ratio, 0.0
    spread = float(np.std(by_chance, ddof=1)) / usual
    return ratio, spread * math.sqrt(1 / len(scores) + 1 / number)


def _random_parts(count: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield random whole parts of rows that are in random order already, without end."""
    order = np.arange(count)
    for seed in itertools.count(1):
        yield from order[: count // size * size].reshape(-1, size)
        order = np.random.RandomState(seed).permutation(count)
