"""Other tools' Fréchet distances between small sets, computed in the subspace that the sets
span.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch

from parity.peers import Features

_DIRECTIONS = 32
"""Number of random directions. They span the range of any covariance of fewer images."""


def _spanned(moments: Sequence[Features]) -> list[Features]:
    """Project two Gaussians (mu, sigma, mu, sigma) onto the subspace in which they extend and
    differ.

    Neither a rotation nor the removal of empty dimensions changes their distance.
    """
    mu1, sigma1, mu2, sigma2 = moments
    some = np.random.RandomState(0).standard_normal((len(mu1), _DIRECTIONS))
    basis, _ = np.linalg.qr(np.column_stack([mu1 - mu2, sigma1 @ some, sigma2 @ some]))
    found = [basis.T @ mu1, basis.T @ sigma1 @ basis, basis.T @ mu2, basis.T @ sigma2 @ basis]
    for small, sigma in ((found[1], sigma1), (found[3], sigma2)):
        assert np.isclose(np.trace(small), np.trace(sigma), rtol=1e-12), (
            "too many images for the subspace"
        )
    return found


@contextlib.contextmanager
def in_their_span() -> Iterator[None]:
    """Make the other tools compute their distances in the subspace that the sets span.

    In 2048 dimensions, their matrix square roots and eigenvalues take nearly all of the time.
    """

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *moments: function(*_spanned(moments))

    def tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *moments: function(
            *map(torch.from_numpy, _spanned([each.numpy() for each in moments]))
        )

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def spanned(first: dict[str, Any], second: dict[str, Any], verbose: bool) -> Any:
            mu1, sigma1, mu2, sigma2 = _spanned([*first.values(), *second.values()])
            return function({"mu": mu1, "sigma": sigma1}, {"mu": mu2, "sigma": sigma2}, verbose)

        return spanned

    functions = {
        "pytorch_fid.fid_score.calculate_frechet_distance": plain,
        "cleanfid.fid.frechet_distance": plain,
        "torch_fidelity.metrics.fid_statistics_to_metric": named,
        "torchmetrics.image.fid._compute_fid": tensors,
    }
    with contextlib.ExitStack() as stack:
        for path, through in functions.items():
            module, _, name = path.rpartition(".")
            with contextlib.suppress(ImportError):
                own = getattr(import_module(module), name)
                stack.enter_context(mock.patch(path, through(own)))
        yield
