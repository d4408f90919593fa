"""Example: a custom metric, the sliced 1-Wasserstein distance, which uses the per-image features
and all ranks.

    fidtool compute real/ fake/ --metrics fid,scripts/examples/sliced.py:Sliced

An object has other settings: with ``rough = Sliced(directions=200)`` at the end, write ``--metrics
FILE.py:rough``.

fidtool prints its value below FID's, and includes it in JSON and reports:

    FID: 12.3456
    Sliced distance: 0.0225
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from fidtool import FeatureSet, Metric, MetricContext, Number, Setting

BLOCK = 50
"""Number of directions per job."""


@dataclass(frozen=True, kw_only=True)
class Sliced(Metric):
    """Sliced 1-Wasserstein distance: the mean distance between the features of two sets along
    random directions.
    """

    directions: int = Setting(1000, least=1).help("Number of random directions.")
    seed: int = Setting(0).help("Which random directions.")

    name = "sliced"
    numbers = (
        Number("sliced", "Sliced distance", "lower", "mean difference of the sorted projections"),
    )
    real_features = fake_features = True

    def compute(
        self, real: FeatureSet, fake: FeatureSet, context: MetricContext
    ) -> Mapping[str, float]:
        """Return ``{"sliced": value}``.

        The larger set is cut to the size of the smaller one; the features are in a pseudo-random
        order.
        """
        count, dims = min(len(real.rows), len(fake.rows)), real.rows.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        directions = torch.randn(self.directions, dims, generator=generator, dtype=torch.float64)
        one, other = (torch.from_numpy(each.rows[:count]).double() for each in (real, fake))
        blocks = torch.split(torch.nn.functional.normalize(directions), BLOCK)
        jobs = [partial(_apart, one, other, block) for block in blocks]
        return {"sliced": math.fsum(context.share_out(jobs)) / (self.directions * count)}


def _apart(one: torch.Tensor, other: torch.Tensor, directions: torch.Tensor) -> float:
    """Return the sum of the differences between the sorted projections on some directions."""
    sorted_one, sorted_other = (
        (features @ directions.T).sort(0).values for features in (one, other)
    )
    return (sorted_one - sorted_other).abs().sum().item()
