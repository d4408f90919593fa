"""Evaluations and checkups as lines of text, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import exp, lgamma
from typing import Any

from fidtool.diagnose.diagnosis import Checkup
from fidtool.names import counted, images_of
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Difference, Heldout
from fidtool.result.values import Value
from fidtool.sources.crops import Crop

_MOST_PAIRS = 3
"""If there are more pairs of FAKEs, only those with the best FAKE are compared."""
_CHANCE, _FAR = 0.01, 2.326
"""Of the one-sided tests of memorisation: the level, and the standard errors of a normal
distribution at it.
"""
_MOST_HARMFUL = 10
"""Maximum number of harmful images that are printed; the JSON has more."""


def result_lines(evaluation: Evaluation) -> list[str]:
    """Return one line per value, such as ``FID: 12.3456``. If there are several FAKEs, the path
    follows the value.
    """
    lines = []
    for result in evaluation.results:
        path = "" if len(evaluation.results) == 1 else f"  {result.fake.name}"
        lines += [f"{value.title}: {number(value, result)}{path}" for value in result.values]
        for value in result.values:
            if (bar := result.corrected_of(value)) is not None:
                corrected, error, interval = bar.texts(decimals=4)
                bars = f"{corrected} ± {error} (95 %: {interval}, REAL taken as fixed)"
                lines.append(f"bias-corrected {value.title}: {bars}{path}")
        lines += [f"{line}{path}" for line in (*class_summaries(result), *heldout_lines(result))]
    return [*lines, *evaluation.not_computed_lines, *verdict_lines(evaluation)]


def class_summaries(result: Comparison) -> list[str]:
    """Return a line per value of classes or folders: ``FID per class: mean 45.2 of 10, worst 81.3
    (cat)``.
    """
    found, lines = result.classes, list[str]()
    for value in result.values:
        key, digits = value.key, value.number.digits
        if found and key in found.mean:
            mean = (
                f"mean {found.mean[key]:.{digits}f} of "
                f"{sum(key in each.metrics for each in found.classes)}"
            )
            worst = (
                f", worst {found.worst[key][1]:.{digits}f} ({found.worst[key][0]})"
                if key in found.worst
                else ""
            )
            lines.append(f"{value.title} per {found.kind}: {mean}{worst}")
    return lines


def verdict_lines(evaluation: Evaluation, names: Mapping[str, str] | None = None) -> list[str]:
    """Return one line per compared pair of FAKEs: the difference, its interval, and which FAKE is
    better.

    Args:
        names: see `differences_shown`.
    """
    titles = {value.key: value.title for value in evaluation.values}
    lines = []
    for each in differences_shown(evaluation, _MOST_PAIRS, names):
        pair = f"{each.first} minus that of {each.second}"
        lines.append(
            f"bias-corrected {titles[each.key]} of {pair}: {each.interval.signed}: {each.verdict}"
        )
    return lines


def heldout_lines(result: Comparison) -> list[str]:
    """Return a line per floor of a distance, and the verdict on memorisation; none without a
    held-out set.
    """
    if (found := result.heldout) is None:
        return []
    near, name, lines = found.nearest, found.name, list[str]()
    about = f"floor: {images_of([found.images])} not in REAL"
    if found.images < (result.fake.count or 0):
        about += f"; too high, because FAKE has {images_of([result.fake.count])}"
    for value in result.values:
        if (floor := found.floors.get(value.key)) is not None:
            lines.append(f"{value.title} of {name}: {floor:.{value.number.digits}f} ({about})")
    share = (
        f"{near.closer:.2%} of FAKE (95 %: {near.low:.2%} to {near.high:.2%}) are closer to REAL "
        f"than all of {name}"
    )
    chance = (
        f"the chance that FAKE is closer than {name} is {near.probability:.3f} (0.5 ± "
        f"{near.error:.3f} without)"
    )
    medians = f"median distances {near.median:.4g} and {near.heldout_median:.4g}"
    copies = f"{near.copies} and {near.heldout_copies} images at distance 0"
    verdict = _memorisation(found, result.fake)
    figures = "; ".join((share, chance, medians, copies))
    return [*lines, f"memorisation (diagnostic, no quality score): {verdict} ({figures})"]


def _memorisation(found: Heldout, fake: SetResult) -> str:
    """Return whether FAKE has copies of the training set, as far as chance is excluded with a
    probability of 99 %.

    Without memorisation, the images of FAKE and the held-out ones are in random order by their
    distance from REAL.
    """
    near, images = found.nearest, fake.with_features or fake.count or 0
    closer = round(near.closer * images)
    by_chance = exp(_log_falling(images, closer) - _log_falling(images + found.count, closer))
    if near.copies:
        return f"FAKE has {counted(near.copies, 'copy', 'copies')} of images of REAL"
    if near.heldout_copies:
        return (
            f"it cannot be told, as {counted(near.heldout_copies, 'image')} of {found.name} are "
            "in REAL"
        )
    if by_chance < _CHANCE:
        return (
            f"{counted(closer, 'image')} of FAKE {'is' if closer == 1 else 'are'} probably near "
            "copies of REAL"
        )
    if near.probability > 0.5 + _FAR * near.error:
        return "FAKE is closer to REAL than other real images are"
    return "no sign of it"


def _log_falling(number: int, factors: int) -> float:
    """Return the logarithm of ``number`` times ``number - 1`` and so on, of so many factors."""
    return lgamma(number + 1) - lgamma(number - factors + 1)


def crop_lines(evaluation: Evaluation) -> list[str]:
    """Return how the sets were cropped and resized: ``real/: framed by edm:64 (Lanczos filter)``,
    if they were.
    """
    crops: dict[Crop, dict[str, None]] = {}
    for result in evaluation.results:
        for each in (result.real, result.fake):
            if each.framing is not None:
                crops.setdefault(each.framing, {})[each.name] = None
    return [f"{', '.join(paths)}: framed by {crop.described}" for crop, paths in crops.items()]


def influence_lines(evaluation: Evaluation) -> list[str]:
    """Return the images that raise each distance most, and the effect of removing them; for
    stderr.
    """
    lines = []
    for result in evaluation.results:
        influence = result.influence
        if influence is None or result.distance is None:
            continue
        title = result.distance.title
        if influence.raising:
            found = f"these images raise the {title} most:"
        elif influence.most_harmful:
            found = f"no image raises the {title}: all effects are negative"
        else:
            found = f"it is unknown which images raise the {title}: {influence.doubt}"
        lines.append(f"{result.fake.name}: {found}")
        lines += [
            f"  {image.effect:+.6f}  {image.file}" for image in influence.raising[:_MOST_HARMFUL]
        ]
        for part in influence.removals:
            worst = f"without the worst {part.fraction:.1%} ({counted(part.images, 'image')})"
            lines.append(
                f"  {worst} the {title} is {part.distance:.6g} (their effects predict "
                f"{part.predicted:.6g})"
            )
        if influence.doubt and influence.most_harmful:
            lines.append(f"  the effects are rough estimates: {influence.doubt}")
    return lines


def checkup_lines(checkup: Checkup) -> list[str]:
    """Return one line per set, then one line per finding."""
    sets = [checkup.images, *([] if checkup.against is None else [checkup.against])]
    none = "" if checkup.findings else ": no findings"
    lines = [each.summary() + none for each in sets]
    for where, finding in checkup.findings:
        quoted = not finding.example or finding.example in finding.message
        example = "" if quoted else f" (for example {finding.example})"
        lines.append(f"{finding.severity}: {where}: {finding.message}{example}")
    return lines


def differences_shown(
    evaluation: Evaluation, most: int, names: Mapping[str, str] | None = None
) -> list[Difference]:
    """Return all differences of a network if there are at most ``most``, else those that involve
    the best FAKE.

    Args:
        names: names of the FAKEs, by their paths, which they replace; None keeps the paths.
    """
    shown = list[Difference]()
    for value in evaluation.values:
        pairs = [each for each in evaluation.differences if each.key == value.key]
        if len(pairs) > most:
            bars = {each.fake.name: each.corrected_of(value) for each in evaluation.results}
            estimates = {fake: bar.value for fake, bar in bars.items() if bar is not None}
            best = min(estimates, key=estimates.__getitem__, default=None)
            pairs = [each for each in pairs if best in (each.first, each.second)]
        shown += pairs
    if names is None:
        return shown
    return [replace(each, first=names[each.first], second=names[each.second]) for each in shown]


def number(value: Value, result: Comparison, decimals: int | None = None) -> str:
    """Return the text of a value with its spread if known, by default in all digits shown."""
    digits = value.number.digits if decimals is None else decimals
    numbers = [result.metrics[key] for key in (value.key, value.spread) if key in result.metrics]
    return " ± ".join(f"{each:.{digits}f}" for each in numbers)


def timing_line(evaluation: Evaluation) -> str:
    """Return the number of images, the precision of the network and the seconds of each phase; for
    stderr.
    """
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    precision = f" in {run.precision}" if run.precision else ""
    return (
        f"{counted(run.images_computed, 'image')} through the network{precision}{speed} ({phases})"
    )


def dumps(result: dict[str, Any]) -> str:
    """Return ``result`` as JSON in ASCII, so that any file name can be printed."""
    return json.dumps(result, indent=2, allow_nan=False)
