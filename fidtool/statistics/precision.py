"""Checks that the step to which features are rounded leaves them enough bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, option
from fidtool.features.readback import Readback, read_back

INTEGER_BITS = 23
"""Largest number of bits of a feature in units of its step: with more, the sums would not be exact."""
LARGEST_STEP = 100
"""Largest absolute value of a feature step."""
FEWEST_BITS = 14
"""Bits that at least half of the features must have in units of their step."""
_UNCHECKED_ADDITIONS = 32
"""Additions on an accelerator between two checks that all features were in range."""
_FLOORS = (torch.finfo(torch.float64).tiny, *(2.0**bits for bits in range(INTEGER_BITS)), math.inf)
"""Smallest absolute value with each bit length; features are float32, so that the first is below all of them."""


def better_step(feature_step: int, largest: float) -> int:
    """Returns a step for features up to ``largest``, in units of the current step, with a margin of a factor of 4."""
    _, room = math.frexp(largest)
    return feature_step + INTEGER_BITS - 2 - room


class FeatureSizes:
    """Histogram of the features' bit lengths, in units of their step; features that are 0 are omitted.

    Args:
        device: device on which features are counted. `add` and `known_refusal` do not wait for an accelerator.
        setting: setting that determines the step, see `fidtool.errors.option`; None for Inception, whose step is fixed;
            empty for networks that are configured where they are named.

    Attributes:
        largest: largest absolute value before rounding, in units of the step, as of the last call of `refusal`.
        on_host: True if there is no accelerator to wait for.
    """

    def __init__(self, device: torch.device | str, setting: str | None = "feature_step") -> None:
        self._setting = setting
        self.largest = 0.0
        self._unchecked = 0
        self._arriving: Readback | None = None
        self.on_host = torch.device(device).type == "cpu"
        self._latest = torch.zeros((), dtype=torch.float64, device=device)
        self._counts = torch.zeros(INTEGER_BITS + 1, dtype=torch.int64, device=device)
        self._floors = torch.tensor(_FLOORS, dtype=torch.float64, device=device)[:, None]

    def add(self, rows: torch.Tensor) -> None:
        """Counts features: float64 tensor, in units of the step."""
        if not rows.numel():
            return
        self._unchecked += 1
        sizes = rows.abs()
        # Both amax and maximum propagate NaN.
        self._latest = torch.maximum(self._latest, sizes.amax())
        if self.on_host:
            lengths = torch.frexp(rows).exponent.clamp_(0, INTEGER_BITS)
            present = (lengths + 1) * (rows != 0)
            self._counts += torch.bincount(present.flatten(), minlength=len(self._counts) + 1)[1:]
        else:  # bincount would wait for the accelerator
            reached = (sizes.flatten() >= self._floors).sum(1)
            self._counts += reached[:-1] - reached[1:]

    def refusal(self, feature_step: int) -> RunError | None:
        """Returns an error if one of the features cannot be added exactly, else None. Waits for an accelerator."""
        self._take_arrived()
        if self._unchecked and self._refusal(feature_step) is None:
            self._unchecked = 0
            self._note(self._latest)
        return self._refusal(feature_step)

    def known_refusal(self, feature_step: int) -> RunError | None:
        """Like `refusal`, but covers only the features up to a certain addition, so that it does not wait.

        The largest value is copied to the host after every 32nd addition, and checked when the copy has arrived.
        """
        due = self._unchecked >= _UNCHECKED_ADDITIONS
        # When the next copy is due, the accelerator has long made the previous one.
        if due or (self._arriving is not None and self._arriving.ready()):
            self._take_arrived()
        if due:
            self._arriving, self._unchecked = read_back(self._latest), 0
        return self._refusal(feature_step)

    def _take_arrived(self) -> None:
        if self._arriving is not None:
            arrived, self._arriving = self._arriving, None
            self._note(arrived.tensor())

    def _note(self, largest: torch.Tensor) -> None:
        value = largest.item()
        self.largest = value if math.isnan(value) else max(self.largest, value)

    def _refusal(self, feature_step: int) -> RunError | None:
        largest = self.largest
        if largest < 2.0**INTEGER_BITS - 0.5:
            return None
        if not math.isfinite(largest):
            return RunError("the network returned a feature that is NaN or infinite:", "check its weights and input")
        better = better_step(feature_step, largest)
        remedy = self._step_remedy(better) if abs(better) <= LARGEST_STEP else "scale it in the network"
        return RunError(
            f"a feature of size {largest / 2.0**feature_step:g} is outside the range of the exact sums, which is "
            f"{2.0 ** (INTEGER_BITS - feature_step):g} at feature_step {feature_step}:",
            remedy,
            setting=self._setting,
        )

    def _step_remedy(self, better: int) -> str:
        if self._setting is None:
            return "check the weights, because Inception's step is fixed"
        if not self._setting:
            return f"set feature_step={better} where the network is specified"
        return f"pass {option(self._setting, better)}"

    def to(self, device: torch.device) -> None:
        """Moves the counts to another device."""
        self.on_host = device.type == "cpu"
        self._counts, self._latest = self._counts.to(device), self._latest.to(device)
        self._floors = self._floors.to(device)

    def merge(self, world: World) -> None:
        """Sums over the ranks, in place. A collective."""
        self.largest = max(world.gather(self.largest))
        world.sum_(self._counts)

    def array(self) -> NDArray[np.int64]:
        """Returns the counts by bit length: int64 array of shape (24,)."""
        counts: NDArray[np.int64] = self._counts.cpu().numpy()
        return counts

    def absorb(self, counts: NDArray[np.int64], largest: float) -> None:
        """Adds the `array` and ``largest`` of other features."""
        self.largest = max(self.largest, largest)
        self._counts += torch.from_numpy(counts).to(self._counts.device)

    def median_bits(self) -> int:
        """Returns the number of bits that at least half of the nonzero features have; `INTEGER_BITS` if all are 0."""
        counts = self.array()
        reached = np.flatnonzero(2 * np.cumsum(counts[::-1]) >= max(counts.sum(), 1))
        return INTEGER_BITS - int(reached[0]) if len(reached) else INTEGER_BITS

    def check_largest(self, feature_step: int) -> None:
        """Checks that at least the largest feature has enough bits.

        Raises:
            RunError: if it does not; the message states a suitable step.
        """
        if 0.0 < self.largest < 2.0**FEWEST_BITS:
            self.check_median(feature_step)

    def check_median(self, feature_step: int, fewest: int = FEWEST_BITS) -> None:
        """Checks that the step does not round the features too coarsely.

        Raises:
            RunError: if half of them have fewer than ``fewest`` bits; the message states a suitable step.
        """
        bits = self.median_bits()
        if bits >= fewest:
            return
        better = better_step(feature_step, self.largest)
        problem = (
            f"half of the features have fewer than {FEWEST_BITS} bits at feature_step {feature_step} (the largest is "
            f"{self.largest / 2.0**feature_step:g}):"
        )
        if bits + better - feature_step < FEWEST_BITS or abs(better) > LARGEST_STEP:
            problem += " no step suits both the small and the large ones:"
            raise RunError(problem, "scale them in the network", setting=self._setting)
        raise RunError(problem, self._step_remedy(better), setting=self._setting)
