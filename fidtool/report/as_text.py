"""The lines that stdout carries."""

from __future__ import annotations

from collections.abc import Mapping

from fidtool.diagnose.health import Checkup
from fidtool.results import Evaluation

_TITLES = {
    "fid": "FID",
    "sfid": "sFID",
    "kid": "KID",
    "is": "IS",
    "precision": "Precision",
    "recall": "Recall",
    "density": "Density",
    "coverage": "Coverage",
    "fid_infinity": "FID-infinity",
    "cmmd": "CMMD",
}
_SPREADS = {"kid": "kid_std", "is": "is_std", "fid_infinity": "fid_infinity_error"}
_SMALL = frozenset({"kid"})
"""Metrics whose values lie far below 1."""


def result_lines(evaluation: Evaluation) -> list[str]:
    """``FID: 12.3456``, a line a metric; with several FAKEs the path after the number."""
    alone = len(evaluation.results) == 1
    return [
        f"{_TITLES[name]}: {_number(name, result.metrics)}{'' if alone else f'  {result.fake}'}"
        for result in evaluation.results
        for name in _TITLES
        if name in result.metrics
    ]


def checkup_lines(checkup: Checkup) -> list[str]:
    """A line a set, then a line a finding; one line where there is none."""
    sets = [checkup.images, *([] if checkup.against is None else [checkup.against])]
    if not checkup.findings:
        return [f"{each.summary()}: nothing conspicuous" for each in sets]
    lines = [each.summary() for each in sets]
    for where, finding in checkup.findings:
        example = f" (for instance {finding.example})" if finding.example else ""
        lines.append(f"{finding.severity}: {where}: {finding.message}{example}")
    return lines


def _number(name: str, metrics: Mapping[str, float]) -> str:
    digits = 6 if name in _SMALL else 4
    value = f"{metrics[name]:.{digits}f}"
    return f"{value} ± {metrics[_SPREADS[name]]:.{digits}f}" if name in _SPREADS else value


def timing_line(evaluation: Evaluation) -> str:
    """Where the time went, for stderr."""
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    return f"{run.images_computed} images through the network{speed} ({phases})"
