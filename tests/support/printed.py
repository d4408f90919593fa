"""Output of a command for goldens. Values that depend on the machine or the time are masked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.command_line import Outcome
from support.exact_sets import NETWORK
from support.goldens import masked, near, placed

CPU = ("--device", "cpu", "--extractor", NETWORK, "--quiet")
"""Options with which a run prints the same on any machine."""
DIGITS = 1e-12
"""Relative tolerance of distances between features that have the same bits on every machine."""
_OF_THE_MACHINE = (
    *(
        "run.device",
        "run.kernels",
        "run.probe",
        "run.host",
        "run.date",
        "run.num_workers",
        "run.versions.*",
    ),
    *("run.linear_algebra_threads", "run.seconds.*", "run.timeline.*", "run.extraction.*"),
    "run.images_per_second",
)
_MOMENTS = {
    r"\d+(\.\d)? images/s": "N images/s",
    r"\d+\.\d s\b": "N s",
    # The old files have no properties of a machine.
    r"\(device  against .*, torch  against .*, kernels  against [^)]*\)": "(device, torch, "
    "kernels)",
    r"\(device  against .*, torch  against [^)]*\)": "(device, torch)",
}


def record(outcome: Outcome) -> dict[str, Any]:
    """Return the JSON without values that depend on the machine or the time."""
    found: dict[str, Any] = masked(outcome.json, *_OF_THE_MACHINE)
    if "extraction" in found.get("run", {}):  # the order of the threads is random
        found["run"]["extraction"] = dict(sorted(found["run"]["extraction"].items()))
    return found


def shown(outcome: Outcome, place: Path) -> dict[str, Any]:
    """Return the exit status, stdout as JSON or as lines, and the lines of stderr.

    Args:
        outcome: outcome of a command.
        place: folder in which it ran. Its path is masked.
    """
    whole: Any = outcome.stdout.splitlines()
    if outcome.stdout.startswith("{"):
        whole = near(record(outcome), DIGITS, 1e-12)
    found = {"status": outcome.status, "stdout": whole, "stderr": outcome.stderr.splitlines()}
    masks: dict[str, Any] = placed(found, {re.escape(str(place)): "PLACE", **_MOMENTS})
    return masks
