"""Checks that the step to which features are rounded leaves them enough bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, option

INTEGER_BITS = 23
"""Largest number of bits of a feature in units of its step: with more, the sums would not be exact."""
LARGEST_STEP = 100
"""Largest absolute value of a feature step."""
FEWEST_BITS = 11
"""Bits that features must have on average in units of their step."""


def better_step(feature_step: int, largest: float) -> int:
    """Returns a step for features up to ``largest``, in units of the current step, with a margin of a factor of 4."""
    _, room = math.frexp(largest)
    return feature_step + INTEGER_BITS - 2 - room


def step_remedy(setting: str | None, better: int) -> str:
    """Returns what to do about features that a step does not suit; ``setting`` is that of `FeatureSizes`."""
    if abs(better) > LARGEST_STEP:
        return "scale the features in the network"
    if setting is None:
        return "check the weights, because Inception's step is fixed"
    if not setting:
        return f"set feature_step={better} where the network is specified"
    return f"pass {option(setting, better)}"


class FeatureSizes:
    """Largest absolute value and mean bit length of features, in units of their step; features that are 0 are omitted.

    Args:
        setting: setting that determines the step, see `fidtool.errors.option`; None for Inception, whose step is fixed;
            empty for networks that are configured where they are named.
    """

    def __init__(self, setting: str | None = "feature_step") -> None:
        self._setting = setting
        self.largest = 0.0
        self._bits = self._nonzero = 0

    def add(self, rows: torch.Tensor) -> None:
        """Adds features: float64 tensor, in units of the step."""
        if not rows.numel():
            return
        largest = rows.abs().amax().item()  # propagates NaN
        self.largest = largest if math.isnan(largest) else max(self.largest, largest)
        self._bits += int(torch.frexp(rows).exponent.clamp_(0, INTEGER_BITS).sum().item())
        self._nonzero += int(torch.count_nonzero(rows).item())

    def refusal(self, feature_step: int) -> RunError | None:
        """Returns an error if one of the features cannot be added exactly, else None."""
        largest = self.largest
        if largest < 2.0**INTEGER_BITS - 0.5:
            return None
        if not math.isfinite(largest):
            return RunError("the network returned a feature that is NaN or infinite:", "check its weights and input")
        remedy = step_remedy(self._setting, better_step(feature_step, largest))
        return RunError(
            f"a feature of size {largest / 2.0**feature_step:g} is outside the range of the exact sums, which is "
            f"{2.0 ** (INTEGER_BITS - feature_step):g} at feature_step {feature_step}:",
            remedy,
            setting=self._setting,
        )

    def merge(self, world: World) -> None:
        """Combines the ranks' values, in place. A collective."""
        largest, bits, nonzero = zip(*world.gather((self.largest, self._bits, self._nonzero)), strict=True)
        self.largest, self._bits, self._nonzero = max(largest), sum(bits), sum(nonzero)

    def array(self) -> NDArray[np.int64]:
        """Returns the sum of the bit lengths and the number of nonzero features: int64 array of shape (2,)."""
        return np.array([self._bits, self._nonzero], dtype=np.int64)

    def absorb(self, array: NDArray[np.int64], largest: float) -> None:
        """Adds the `array` and ``largest`` of other features."""
        self.largest = max(self.largest, largest)
        self._bits += int(array[0])
        self._nonzero += int(array[1])

    def check_bits(self, feature_step: int, fewest: int = FEWEST_BITS) -> None:
        """Checks that the step does not round the features too coarsely.

        Otherwise they have fewer than ``fewest`` bits on average, and a RunError states a suitable step.
        """
        if not self._nonzero:
            return
        bits = self._bits / self._nonzero
        if bits >= fewest:
            return
        better = better_step(feature_step, self.largest)
        problem = (
            f"the features have {bits:.1f} bits on average at feature_step {feature_step}, fewer than {FEWEST_BITS} "
            f"(the largest is {self.largest / 2.0**feature_step:g}):"
        )
        if bits + better - feature_step < FEWEST_BITS:
            problem += " no step suits both the small and the large ones:"
            raise RunError(problem, "scale them in the network", setting=self._setting)
        raise RunError(problem, step_remedy(self._setting, better), setting=self._setting)
