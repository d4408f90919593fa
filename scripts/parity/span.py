"""Peers' distances between sets of few images, asked for in the few dimensions that these span."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
from parity_peers import Features

_DIRECTIONS = 32
"""Random ones that find what a covariance of fewer images extends in."""


def _spanned(moments: Sequence[Features]) -> list[Features]:
    """Two Gaussians (mu, sigma, mu, sigma) in coordinates of the few dimensions in which they extend and differ.

    A rotation leaves their distance as it is, and so does leaving out dimensions in which nothing is.
    """
    mu1, sigma1, mu2, sigma2 = moments
    some = np.random.RandomState(0).standard_normal((len(mu1), _DIRECTIONS))
    basis, _ = np.linalg.qr(np.column_stack([mu1 - mu2, sigma1 @ some, sigma2 @ some]))
    found = [basis.T @ mu1, basis.T @ sigma1 @ basis, basis.T @ mu2, basis.T @ sigma2 @ basis]
    for small, sigma in ((found[1], sigma1), (found[3], sigma2)):
        assert np.isclose(np.trace(small), np.trace(sigma), rtol=1e-12), "too many images for a few dimensions"
    return found


@contextlib.contextmanager
def in_their_span() -> Iterator[None]:
    """Peers' distances between sets of few images are asked for in the dimensions that these span.

    Of 2048 dimensions the peers' matrix roots and eigenvalues, of whole matrices, are nearly all that a run takes.
    """

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *moments: function(*_spanned(moments))

    def tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *moments: function(*map(torch.from_numpy, _spanned([each.numpy() for each in moments])))

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def spanned(first: dict[str, Any], second: dict[str, Any], verbose: bool) -> Any:
            mu1, sigma1, mu2, sigma2 = _spanned([*first.values(), *second.values()])
            return function({"mu": mu1, "sigma": sigma1}, {"mu": mu2, "sigma": sigma2}, verbose)

        return spanned

    places = {
        "pytorch_fid.fid_score.calculate_frechet_distance": plain,
        "cleanfid.fid.frechet_distance": plain,
        "torch_fidelity.metrics.fid_statistics_to_metric": named,
        "torchmetrics.image.fid._compute_fid": tensors,
    }
    with contextlib.ExitStack() as stack:
        for place, through in places.items():
            module, _, name = place.rpartition(".")
            with contextlib.suppress(ImportError):
                own = getattr(import_module(module), name)
                stack.enter_context(mock.patch(place, through(own)))
        yield
