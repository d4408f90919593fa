"""Simulate how often the error bars contain the true distance: ``python scripts/coverage.py REAL
FAKE [FAKE …]``.

REAL and FAKE are files of features: ``.npy`` of shape (n, D), or ``.npz`` as ``fidtool stats
--metrics fid,kid -o`` writes them. REAL is fixed. A generator has the mean and covariance of the
features in FAKE, so that its distance is known. An image of it is a weighted sum of two random
images of FAKE, so that no image appears twice. Generators with equal numbers of features draw the
same images, as from the same latents, and their differences are tested, too.

A draw takes about a minute at 2048 dimensions; ``--leading 256`` takes REAL's leading principal
directions.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidtool import frechet_distance
from fidtool.distances.error_bars import Estimate, difference, error_bars, interval
from fidtool.distances.exact import FeatureSettings
from fidtool.statistics.set_statistics import Gaussian

Array = NDArray[np.float64]
_ANGLE = 0.5


def features(path: Path) -> Array:
    loaded = np.load(path)
    return np.asarray(loaded if path.suffix == ".npy" else loaded["features"], np.float64)


def drawn(rows: Array, images: int, seed: int) -> NDArray[np.float32]:
    first, second = np.random.default_rng(seed).integers(0, len(rows), (2, images))
    mu = rows.mean(0)
    mixed: Array = (
        mu + math.cos(_ANGLE) * (rows[first] - mu) + math.sin(_ANGLE) * (rows[second] - mu)
    )
    return mixed.astype(np.float32)


def show(name: str, images: int, found: list[Estimate], true: float, raw: float) -> None:
    value, error, low, high = np.array(found).T
    hit = 100 * np.mean((low <= true) & (true <= high))
    print(
        f"{name:24} n {images:6} draws {len(found):4} true {true:9.4f} uncorrected {raw:9.4f} "
        f"covered {hit:5.1f} %  bias {value.mean() - true:+.4f} spread {value.std():.4f} error "
        f"{np.sqrt(np.mean(error**2)):.4f} half-width {np.median(high - low) / 2:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("real", type=Path)
    parser.add_argument("fakes", type=Path, nargs="+")
    parser.add_argument("--images", type=int, nargs="+", default=[2500, 5000, 10000])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument(
        "--leading",
        type=int,
        help="number of principal directions of REAL; default: all dimensions",
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rows = {path: features(path) for path in (chosen.real, *chosen.fakes)}
    if chosen.leading:
        _, directions = np.linalg.eigh(np.cov(rows[chosen.real].T))
        rows = {path: each @ directions[:, -chosen.leading :] for path, each in rows.items()}
    usual = rows.pop(chosen.real)
    real = Gaussian(usual.mean(0), np.cov(usual.T), len(usual))
    true = {
        path: frechet_distance(
            real.mu, real.sigma, each.mean(0), np.cov(each.T, ddof=0), count1=real.count
        )
        for path, each in rows.items()
    }
    for images in chosen.images:
        parts: dict[Path, list[Array]] = {path: [] for path in rows}
        for draw, (path, each) in itertools.product(range(chosen.draws), rows.items()):
            fake = drawn(each, images, chosen.seed + draw)
            parts[path].append(error_bars(real, fake, FeatureSettings(18))[0])
        raw = {path: float(np.mean([each[0] for each in found])) for path, found in parts.items()}
        for path, found in parts.items():
            show(path.stem, images, [interval(each) for each in found], true[path], raw[path])
        for one, other in itertools.combinations(rows, 2):
            both = [difference(*pair) for pair in zip(parts[one], parts[other], strict=True)]
            show(
                f"{one.stem} - {other.stem}",
                images,
                both,
                true[one] - true[other],
                raw[one] - raw[other],
            )


if __name__ == "__main__":
    main()
