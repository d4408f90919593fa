"""An estimate and how sure it is. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate and how sure it is.

    Attributes:
        value: the estimate. Free of bias, so that of a distance near 0 is as often negative as positive.
        error: its standard error.
        low, high: ends of the 95 % confidence interval.
    """

    value: float
    error: float
    low: float
    high: float
