"""A mean and a covariance, and what is left of them without some of the images. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MeanCovariance:
    """A Gaussian fitted to the features of a set of images.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims), symmetric.
        count: number of images.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    count: int


def without(whole: MeanCovariance, part: MeanCovariance, ddof: int) -> MeanCovariance:
    """The Gaussian of the images of ``whole`` that are not in ``part``, up to rounding.

    Args:
        whole: of all images.
        part: of some of them, not all; divided by count - ddof as ``whole`` is.
        ddof: see `ExactMoments.mean_covariance`.
    """
    count = whole.count - part.count
    mu = (whole.count * whole.mu - part.count * part.mu) / count
    between = part.mu - mu
    scatter = max(whole.count - ddof, 1) * whole.sigma - max(part.count - ddof, 1) * part.sigma
    scatter -= part.count * (count / whole.count) * np.outer(between, between)
    return MeanCovariance(mu, scatter / max(count - ddof, 1), count)
