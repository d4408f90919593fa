"""Whether the step to which features are rounded leaves them enough bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, option

INTEGER_BITS = 23
"""A feature of more bits, in steps, is refused: the sums would no longer be exact."""
LARGEST_STEP = 100
"""Largest absolute value of a feature step."""
FEWEST_BITS = 14
"""Bits that half of the features must keep."""


def better_step(feature_step: int, largest: float) -> int:
    """The step that suits features up to ``largest``, in present steps; four times as large ones still fit."""
    _, room = math.frexp(largest)
    return feature_step + INTEGER_BITS - 2 - room


class FeatureSizes:
    """A histogram of the features' sizes: their bit lengths, in steps, without zeros.

    Args:
        device: where they are counted. An accelerator is waited for only by `refusal` and the methods after it.
        setting: what gives the features' step, see `fidtool.errors.option`; None of Inception, whose step is fixed.

    Attributes:
        largest: the largest absolute value, in steps, before rounding, as of the latest call of `refusal`.
        unchecked: number of additions since then.
        on_host: there is no accelerator to wait for.
    """

    def __init__(self, device: torch.device | str, setting: str | None = "feature_step") -> None:
        self._setting = setting
        self.largest = 0.0
        self.unchecked = 0
        self.on_host = torch.device(device).type == "cpu"
        self._latest = torch.zeros((), dtype=torch.float64, device=device)
        self._counts = torch.zeros(INTEGER_BITS + 1, dtype=torch.int64, device=device)

    def add(self, rows: torch.Tensor) -> None:
        """Counts features: float64 tensor, in steps."""
        if not rows.numel():
            return
        self.unchecked += 1
        # Both amax and maximum propagate NaN.
        self._latest = torch.maximum(self._latest, rows.abs().amax())
        lengths = torch.frexp(rows).exponent.clamp_(0, INTEGER_BITS)
        if self.on_host:
            present = (lengths + 1) * (rows != 0)
            self._counts += torch.bincount(present.flatten(), minlength=len(self._counts) + 1)[1:]
        else:  # bincount would wait for the device
            lengths = torch.where(rows == 0, -1, lengths).flatten()
            self._counts += torch.stack([(lengths == bits).sum() for bits in range(len(self._counts))])

    def refusal(self, feature_step: int) -> RunError | None:
        """The error if one of the features so far cannot be added, else None. Waits for an accelerator."""
        if self.unchecked:
            latest = self._latest.item()
            self.largest = latest if math.isnan(latest) else max(self.largest, latest)
            self.unchecked = 0
        largest = self.largest
        if largest < 2.0**INTEGER_BITS - 0.5:
            return None
        if not math.isfinite(largest):
            return RunError("the network gave a feature that is NaN or infinite:", "check its weights and its input")
        better = better_step(feature_step, largest)
        remedy = self._step_remedy(better) if abs(better) <= LARGEST_STEP else "scale it in the network"
        return RunError(
            f"a feature of size {largest / 2.0**feature_step:g} is outside the range of the exact sums, "
            f"{2.0 ** (INTEGER_BITS - feature_step):g} at feature_step {feature_step}:",
            remedy,
            setting=self._setting,
        )

    def _step_remedy(self, better: int) -> str:
        if self._setting is None:
            return "Inception's step is fixed, so check the weights"
        if not self._setting:
            return f"set feature_step={better} where the network is named"
        return f"pass {option(self._setting, better)}"

    def to(self, device: torch.device) -> None:
        """Moves the counts to another device."""
        self.on_host = device.type == "cpu"
        self._counts, self._latest = self._counts.to(device), self._latest.to(device)

    def merge(self, world: World) -> None:
        """Adds up over the ranks, in place. A collective."""
        self.largest = max(world.gather(self.largest))
        world.sum_(self._counts)

    def array(self) -> NDArray[np.int64]:
        """The counts by bit length: int64 array of shape (24,)."""
        counts: NDArray[np.int64] = self._counts.cpu().numpy()
        return counts

    def absorb(self, counts: NDArray[np.int64], largest: float) -> None:
        """Adds what `array` and ``largest`` gave elsewhere."""
        self.largest = max(self.largest, largest)
        self._counts += torch.from_numpy(counts).to(self._counts.device)

    def median_bits(self) -> int:
        """Bits that half of the features other than 0 have at least; `INTEGER_BITS` where all are 0."""
        counts = self.array()
        reached = np.flatnonzero(2 * np.cumsum(counts[::-1]) >= max(counts.sum(), 1))
        return INTEGER_BITS - int(reached[0]) if len(reached) else INTEGER_BITS

    def check_largest(self, feature_step: int) -> None:
        """Refuses features of which not even the largest has enough bits.

        Raises:
            RunError: the message names a step that suits them.
        """
        if 0.0 < self.largest < 2.0**FEWEST_BITS:
            self.check_median(feature_step)

    def check_median(self, feature_step: int, fewest: int = FEWEST_BITS) -> None:
        """Refuses features that the step rounds too coarsely.

        Raises:
            RunError: half of them have fewer than ``fewest`` bits; the message names a step that suits them.
        """
        bits = self.median_bits()
        if bits >= fewest:
            return
        better = better_step(feature_step, self.largest)
        problem = (
            f"half of the features keep fewer than {FEWEST_BITS} bits at feature_step {feature_step} (the largest is "
            f"{self.largest / 2.0**feature_step:g}):"
        )
        if bits + better - feature_step < FEWEST_BITS or abs(better) > LARGEST_STEP:
            problem += " no step holds both the small and the large ones:"
            raise RunError(problem, "scale them in the network", setting=self._setting)
        raise RunError(problem, self._step_remedy(better), setting=self._setting)
