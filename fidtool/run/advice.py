"""Advice at the end of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fidtool.errors import option
from fidtool.features.protocol import INCEPTION, SPATIAL_EXTRACTOR

# Share of Inception's time in float32 that it takes in TF32: 3.2 of 11 s for 20,000 images, on an
# H100.
_TF32_SHARE = 0.3
# Compute capability of the first NVIDIA GPUs that have TF32, those of the Ampere generation.
_FIRST_WITH_TF32 = (8, 0)
# Seconds of the network from which on the advice is worth a line: TF32 saves most of a minute
# then. Who waits for less hardly gains by a precision that is not the reference's.
_MIN_SECONDS = 60.0


def suggest_precision(
    capability: tuple[int, int] | None,
    precision: str,
    networks: Collection[str],
    seconds: Mapping[str, float],
    extraction: Mapping[str, float],
) -> str:
    """Return how long a run would have taken in TF32, in one line; empty if that is not known or
    saves little.

    Args:
        capability: compute capability of the GPU; None if the device is not one of NVIDIA's.
        precision: precision of the network.
        networks: the extractors whose features were computed.
        seconds, extraction: those of `fidtool.settings.record.RunRecord`.
    """
    if precision != "fp32" or capability is None or capability < _FIRST_WITH_TF32:
        return ""
    if not networks or not {*networks} <= {INCEPTION, SPATIAL_EXTRACTOR} or "pairs" in extraction:
        return ""
    # What overlapped with waiting for pixels cannot be saved.
    waited = seconds.get("extract", 0.0) - extraction.get("decode", 0.0)
    network = min(extraction.get("network", 0.0), waited)
    total = seconds["total"]
    if network < _MIN_SECONDS or network < total / 2:
        return ""
    less = total - (1 - _TF32_SHARE) * network
    saving = (
        f"{option('precision', 'tf32')} would have taken about {less:.0f} s instead of "
        f"{total:.0f} s"
    )
    effect = "estimated from an H100 with 16 cores, where it changed an FID from 5.933 to 5.930"
    return (
        f"{saving}, {effect}; only compare values with the same precision (see `fidtool guide "
        "speed`)"
    )
