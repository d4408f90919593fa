"""fidtool's Fréchet distance against pytorch-fid's on the same covariances. Imported by `bench.py distance` alone."""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.distances.frechet import frechet_distance
from fidtool.distances.parallel import linear_algebra_threads

Gaussian = tuple[NDArray[np.float64], NDArray[np.float64]]


class Timed:
    """A function's value, its wall times, and how many cores it kept busy meanwhile."""

    def __init__(self, function: Callable[[], float]) -> None:
        self._function = function
        self.value = 0.0
        self.seconds: list[float] = []
        self._cpu_seconds = 0.0

    def run(self) -> None:
        """Calls the function once more."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.value = self._function()
        self.seconds.append(time.perf_counter() - wall)
        self._cpu_seconds += time.process_time() - cpu

    def to_dict(self) -> dict[str, Any]:
        """The measurements for the JSON; ``busy_cores`` is processor time over wall time."""
        return {
            "seconds": self.seconds,
            "median_seconds": statistics.median(self.seconds),
            "busy_cores": self._cpu_seconds / sum(self.seconds),
            "distance": self.value,
        }


def compare_distances(dims: int, samples: int, repeats: int) -> dict[str, Any]:
    """Runs both in turn, ``repeats`` times, on covariances of full rank.

    Returns:
        What each tool took and gave, and fidtool's number of threads (scipy's BLAS takes what it wants: see
        ``busy_cores``).
    """
    peer = importlib.import_module("pytorch_fid.fid_score").calculate_frechet_distance
    real, fake = _gaussians(dims, samples)
    timed = {
        "fidtool": Timed(lambda: frechet_distance(*real, *fake, count1=samples, count2=samples)),
        "pytorch-fid": Timed(lambda: float(peer(*real, *fake))),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's remarks about sqrtm(disp=...)
        for _ in range(repeats):
            for contender in timed.values():
                contender.run()
    return {
        "tools": [{"tool": name, **contender.to_dict()} for name, contender in timed.items()],
        "fidtool_threads": linear_algebra_threads(),
    }


def _gaussians(dims: int, samples: int) -> tuple[Gaussian, Gaussian]:
    """Two Gaussians fitted to samples whose spectrum decays from 1 to 1e-5, as features' do, along tilted axes."""
    rng = np.random.RandomState(0)
    spread = 10.0 ** np.linspace(0.0, -2.5, dims)
    axes, _ = np.linalg.qr(rng.standard_normal((dims, dims)))
    fitted = []
    for shift in (0.0, 0.02):
        points = (rng.standard_normal((samples, dims)) * spread) @ axes.T + shift
        fitted.append((points.mean(axis=0), np.cov(points, rowvar=False)))
        axes, _ = np.linalg.qr(axes + 0.3 * rng.standard_normal((dims, dims)) / dims**0.5)
    return fitted[0], fitted[1]
