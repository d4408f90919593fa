"""How far ADM's float16 distances move precision and recall: ``python scripts/parity/float16.py
REAL.npz FAKE.npz``.

The files are written by ``fidtool stats IMAGES -o FILE.npz --protocol tensorflow --metrics
fid,prdc``.
"""

from __future__ import annotations

import click
import numpy as np
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.neighbors import prdc
from fidtool.features.protocol import INCEPTION_FEATURE_STEP

_BLOCK = 10_000
"""Rows and columns of a block of distances. A block with an infinite distance is computed in
float32.
"""


def float16_distances(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return squared distances, shape (n, m), with each step rounded to float16, and products
    summed in float32.

    This is the arithmetic of TensorFlow on a GPU: |u|² - 2 <u, v> + |v|², at least 0.
    """
    found = torch.empty(len(some), len(others))
    for top in range(0, len(some), _BLOCK):
        for left in range(0, len(others), _BLOCK):
            u, v = some[top : top + _BLOCK], others[left : left + _BLOCK]
            block = _block(u.half(), v.half())
            found[top : top + _BLOCK, left : left + _BLOCK] = (
                block if block.isfinite().all() else _block(u, v)
            )
    return found


def _block(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    kind = u.dtype
    norms = [rows.square().float().sum(1).to(kind) for rows in (u, v)]
    twice = (u.float() @ v.float().T).to(kind) * 2
    return (norms[0][:, None] - twice + norms[1]).clamp_min(0).float()


def float16_precision_recall(
    real: torch.Tensor, fake: torch.Tensor, k: int = 3
) -> tuple[float, float]:
    """Return precision and recall as ADM's evaluator computes them."""

    def inside(centres: torch.Tensor, points: torch.Tensor) -> float:
        # The nearest is the centre itself.
        radii = float16_distances(centres, centres).sort(1).values[:, k]
        return float((float16_distances(points, centres) <= radii).any(1).double().mean())

    return inside(real, fake), inside(fake, real)


def features_of(file: str) -> NDArray[np.float32]:
    """Return the per-image features in a statistics file."""
    features = fidtool.read_statistics(file).features
    if features is None:
        raise click.BadParameter(f"{file} has no features of each image")
    return np.asarray(features)


@click.command()
@click.argument("real")
@click.argument("fake")
def main(real: str, fake: str) -> None:
    """Print precision and recall with exact and with float16 distances."""
    reals, fakes = features_of(real), features_of(fake)
    exact, _ = prdc(reals, fakes, FeatureSettings(INCEPTION_FEATURE_STEP), k=3, ties="inclusive")
    rounded = float16_precision_recall(
        torch.from_numpy(reals.copy()), torch.from_numpy(fakes.copy())
    )
    click.echo(f"{len(reals)} real and {len(fakes)} generated images, k = 3")
    for name, ours, theirs in zip(
        ("precision", "recall"), (exact["precision"], exact["recall"]), rounded, strict=True
    ):
        click.echo(
            f"{name}: {ours:.4f} exact, {theirs:.4f} in float16, difference {theirs - ours:+.4f}"
        )


if __name__ == "__main__":
    main()
