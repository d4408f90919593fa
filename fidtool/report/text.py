"""What stdout carries: an evaluation or a checkup in lines, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fidtool.diagnose.diagnosis import Checkup
from fidtool.errors import FidtoolError
from fidtool.record import Origin, changed_settings
from fidtool.redaction import without_secrets
from fidtool.report.names import legible
from fidtool.results import SCHEMA, Comparison, Difference, Evaluation, protocol_to_dict
from fidtool.settings import Settings

_MOST_PAIRS = 3
"""Of more pairs of FAKEs only those with the best one are compared in the lines."""
_MOST_HARMFUL = 10
"""Harmful images that are named; the JSON has more."""


def result_lines(evaluation: Evaluation) -> list[str]:
    """``FID: 12.3456``, a line per metric; with several FAKEs the path follows the number."""
    lines = []
    for result in evaluation.results:
        path = "" if len(evaluation.results) == 1 else f"  {legible(result.fake)}"
        lines += [f"{legible(title)}: {number(name, result)}{path}" for name, title in result.titles.items()]
        lines += [f"{line}{path}" for line in _error_bars(result)]
    title = evaluation.labels.title("fid")
    return lines + [legible(line) for line in _verdicts(differences_shown(evaluation, _MOST_PAIRS), title)]


def _error_bars(result: Comparison) -> list[str]:
    corrected = None if result.uncertainty is None else result.uncertainty.corrected
    if corrected is None:
        return []
    interval = f"95 %: {corrected.low:.4f} to {corrected.high:.4f}, REAL taken as it is"
    title = legible(result.labels.title("fid"))
    return [f"{title} without its bias: {corrected.value:.4f} ± {corrected.error:.4f} ({interval})"]


def influence_lines(evaluation: Evaluation) -> list[str]:
    """The images that raise each distance most, and the effect of leaving them out; for stderr."""
    lines = []
    for result in evaluation.results:
        influence, title = result.influence, legible(result.labels.title("fid"))
        if influence is None:
            continue
        if influence.most_harmful:
            lines.append(f"{legible(result.fake)}: these images raise the {title} most:")
        else:
            lines.append(f"{legible(result.fake)}: no image can be told to raise the {title}: {influence.doubt}")
            continue
        lines += [f"  {image.effect:+.6f}  {legible(image.file)}" for image in influence.most_harmful[:_MOST_HARMFUL]]
        for part in influence.removals:
            worst = f"without the worst {part.fraction:.1%} ({part.images} image{'s' * (part.images > 1)})"
            lines.append(f"  {worst} the {title} is {part.distance:.6g} (their effects predict {part.predicted:.6g})")
        lines += [f"  the effects are rough: {influence.doubt}"] if influence.doubt else []
    return lines


def checkup_lines(checkup: Checkup) -> list[str]:
    """A line per set, then a line per finding; a set without findings is said to have none."""
    sets = [checkup.images, *([] if checkup.against is None else [checkup.against])]
    if not checkup.findings:
        return [legible(f"{each.summary()}: nothing conspicuous") for each in sets]
    lines = [each.summary() for each in sets]
    for where, finding in checkup.findings:
        example = f" (for instance {finding.example})" if finding.example else ""
        lines.append(f"{finding.severity}: {where}: {finding.message}{example}")
    return [legible(line) for line in lines]


def differences_shown(evaluation: Evaluation, most: int) -> Sequence[Difference]:
    """All differences if there are at most so many, else those to the best FAKE: the JSON has the others."""
    return evaluation.differences if len(evaluation.differences) <= most else evaluation.differences_to_best


def number(name: str, result: Comparison) -> str:
    """The value of a metric of the result, by its plain name, with its spread if it has one."""
    shown, metrics, key = result.labels.numbers[name], result.metrics, result.labels.key
    value = f"{metrics[key(name)]:.{shown.digits}f}"
    spread = metrics.get(key(shown.spread)) if shown.spread else None
    return value if spread is None else f"{value} ± {spread:.{shown.digits}f}"


def timing_line(evaluation: Evaluation) -> str:
    """Where the time went, for stderr."""
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    return f"{run.images_computed} images through the network{speed} ({phases})"


# --- JSON ------------------------------------------------------------------------------------------------------------


def failure_to_dict(error: FidtoolError, origin: Origin, config: Settings | None) -> dict[str, Any]:
    """The result JSON of a run that ended in an error: without results, and with the reason.

    Args:
        error: the reason.
        origin: who started the run, where and when.
        config: its settings; None if they are what is wrong.
    """
    found = {
        "schema": SCHEMA,
        "protocol": protocol_to_dict(None),
        "results": [],
        "run": {**origin._asdict(), "config": None if config is None else changed_settings(config)},
        "exit": {"code": error.exit_code, "reason": str(error)},
    }
    return without_secrets(found)


def dumps(result: dict[str, Any]) -> str:
    """JSON in ASCII, so that any file name can be printed.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    return json.dumps(result, indent=2, allow_nan=False)


def _verdicts(differences: Sequence[Difference], title: str) -> list[str]:
    """A line per pair of FAKEs: the difference of their distances, its interval, and what can be said."""
    return [
        f"{title} of {each.first} less that of {each.second}: {each.interval.value:+.4f} "
        f"(95 %: {each.interval.low:+.4f} to {each.interval.high:+.4f}): {each.verdict}"
        for each in differences
    ]
