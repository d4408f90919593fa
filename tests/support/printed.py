"""What a command has left behind, as goldens have it: masked is what tells one machine or moment from another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.command_line import Outcome
from support.exact_sets import NETWORK
from support.goldens import masked, near, placed

CPU = ("--device", "cpu", "--extractor", NETWORK, "--quiet")
"""Options with which a run on any machine prints the same."""
DIGITS = 1e-12
"""Of features that are the same bits everywhere the distances are this near to each other, relatively."""
_OF_THE_MACHINE = (
    *("run.device", "run.kernels", "run.probe", "run.host", "run.date", "run.num_workers", "run.versions.*"),
    *("run.linear_algebra_threads", "run.seconds.*", "run.extraction.*", "run.images_per_second"),
)
_MOMENTS = {
    r"\d+(\.\d)? images/s": "N images/s",
    r"\d+\.\d s\b": "N s",
    # Of the old files, which do not say with what they were computed.
    r"\(device  against .*, torch  against .*, kernels  against [^)]*\)": "(device, torch, kernels)",
}


def record(outcome: Outcome) -> dict[str, Any]:
    """The JSON without what is the machine's or the moment's."""
    found: dict[str, Any] = masked(outcome.json, *_OF_THE_MACHINE)
    if "extraction" in found.get("run", {}):  # which of the threads comes first is chance
        found["run"]["extraction"] = dict(sorted(found["run"]["extraction"].items()))
    return found


def shown(outcome: Outcome, place: Path) -> dict[str, Any]:
    """Status, stdout as JSON or as lines, stderr's lines.

    Args:
        outcome: of a command.
        place: the folder in which it ran, of which no golden knows.
    """
    whole: Any = outcome.stdout.splitlines()
    if outcome.stdout.startswith("{"):
        whole = near(record(outcome), DIGITS, 1e-12)
    found = {"status": outcome.status, "stdout": whole, "stderr": outcome.stderr.splitlines()}
    masks: dict[str, Any] = placed(found, {re.escape(str(place)): "PLACE", **_MOMENTS})
    return masks
