"""Evaluations and checkups as lines of text, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import exp, lgamma
from typing import Any

from fidtool.diagnose.diagnosis import Checkup
from fidtool.names import format_count, format_image_counts, shorten
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import Difference, Heldout
from fidtool.result.values import Value
from fidtool.sources.crops import Crop

# If there are more pairs of FAKEs, only those with the best FAKE are compared.
_MAX_PAIRS = 3
# Of the one-sided tests of memorisation: the level, and the standard errors of a normal
# distribution at it.
_TEST_LEVEL = 0.01
_Z_SCORE = 2.326
# Maximum number of harmful images that are printed; the JSON has more.
_MAX_HARMFUL = 10


def result_lines(evaluation: Evaluation) -> list[str]:
    """Return one line per value, such as ``FID: 12.3456``. If there are several FAKEs, the path
    follows the value.
    """
    lines = []
    for result in evaluation.results:
        path = "" if len(evaluation.results) == 1 else f"  {result.fake.name}"
        of_result = [f"{value.title}: {format_value(value, result)}" for value in result.values]
        for value in result.values:
            bar = result.corrected_of(value)
            if bar is not None:
                corrected, error, interval = bar.texts(decimals=4)
                of_result.append(
                    f"bias-corrected {value.title}: {corrected} ± {error} (95 %: {interval}, REAL "
                    "taken as fixed)"
                )
        of_result += class_summaries(result)
        of_result += heldout_lines(result)
        lines += [f"{line}{path}" for line in of_result]
    return [*lines, *evaluation.not_computed_lines, *verdict_lines(evaluation)]


def class_summaries(result: Comparison) -> list[str]:
    """Return a line per value of classes or folders: ``FID per class: mean 45.2 over 10 classes,
    worst 81.3 (cat)``.
    """
    classes = result.classes
    if classes is None:
        return []
    lines = []
    for value in result.values:
        if value.key not in classes.mean:
            continue
        rated = sum(value.key in part.metrics for part in classes.classes)
        known = format_count(rated, classes.kind)
        mean = f"mean {format_number(value, classes.mean[value.key])} over {known}"
        if value.key in classes.worst:
            name, worst = classes.worst[value.key]
            mean += f", worst {format_number(value, worst)} ({name})"
        lines.append(f"{value.title} per {classes.kind}: {mean}")
    if classes.left_out:
        small = [part.counted for part in classes.classes if part.name in classes.left_out]
        groups = "classes" if classes.kind == "class" else "folders"
        lines.append(
            f"{groups} with fewer than {classes.min_class} images in REAL or FAKE are left out: "
            f"{shorten(', '.join(small))}"
        )
    return lines


def verdict_lines(evaluation: Evaluation, names: Mapping[str, str] | None = None) -> list[str]:
    """Return one line per compared pair of FAKEs: the difference, its interval, and which FAKE is
    better.

    Args:
        names: see `select_differences`.
    """
    titles = {value.key: value.title for value in evaluation.values}
    lines = []
    for pair in select_differences(evaluation, _MAX_PAIRS, names):
        lines.append(
            f"bias-corrected {titles[pair.key]} of {pair.first} minus that of {pair.second}: "
            f"{pair.interval.signed}: {pair.verdict}"
        )
    return lines


def heldout_lines(result: Comparison) -> list[str]:
    """Return a line per floor of a distance, and the verdict on memorisation; none without a
    held-out set.
    """
    heldout = result.heldout
    if heldout is None:
        return []
    name = heldout.name
    about = f"floor: {format_image_counts([heldout.images])} not in REAL"
    if heldout.images < (result.fake.count or 0):
        about += f"; too high, because FAKE has {format_image_counts([result.fake.count])}"
    lines = []
    for value in result.values:
        floor = heldout.floors.get(value.key)
        if floor is not None:
            lines.append(f"{value.title} of {name}: {format_number(value, floor)} ({about})")
    near = heldout.nearest
    figures = (
        f"{near.closer:.2%} of the images in FAKE (95 %: {near.low:.2%} to {near.high:.2%}) are "
        f"closer to REAL than all images in {name}; the chance that an image in FAKE is closer "
        f"than one in {name} is {near.probability:.3f} (0.5 ± {near.error:.3f} without "
        f"memorisation); median distances {near.median:.4g} and {near.heldout_median:.4g}; "
        f"{near.copies} and {near.heldout_copies} images at distance 0"
    )
    verdict = _describe_memorisation(heldout, result.fake)
    return [*lines, f"memorisation (diagnostic, no quality score): {verdict} ({figures})"]


def _describe_memorisation(heldout: Heldout, fake: SetResult) -> str:
    """Return whether FAKE has copies of the training set, as far as chance is excluded with a
    probability of 99 %.

    Without memorisation, the images of FAKE and the held-out ones are in random order by their
    distance from REAL.
    """
    near = heldout.nearest
    if near.copies:
        return f"FAKE has {format_count(near.copies, 'copy')} of images in REAL"
    if near.heldout_copies:
        copies = format_count(near.heldout_copies, "image")
        verb = "is" if near.heldout_copies == 1 else "are"
        return f"it cannot be judged, because {copies} in {heldout.name} {verb} also in REAL"
    images = fake.with_features or fake.count or 0
    closer = round(near.closer * images)
    chance = exp(
        _log_falling_factorial(images, closer)
        - _log_falling_factorial(images + heldout.count, closer)
    )
    if chance < _TEST_LEVEL:
        verb = "is" if closer == 1 else "are"
        return (
            f"{format_count(closer, 'image')} in FAKE {verb} probably near copies of images in REAL"
        )
    if near.probability > 0.5 + _Z_SCORE * near.error:
        return "FAKE is closer to REAL than other real images are"
    return "no sign of it"


def _log_falling_factorial(number: int, factors: int) -> float:
    """Return the logarithm of ``number`` times ``number - 1`` and so on, of so many factors."""
    return lgamma(number + 1) - lgamma(number - factors + 1)


def crop_lines(evaluation: Evaluation) -> list[str]:
    """Return how the sets were cropped and resized: ``real/: cropped by edm:64 (Lanczos filter)``,
    if they were.
    """
    crops: dict[Crop, dict[str, None]] = {}
    for result in evaluation.results:
        for images in (result.real, result.fake):
            if images.framing is not None:
                crops.setdefault(images.framing, {})[images.name] = None
    return [f"{', '.join(paths)}: cropped by {crop.described}" for crop, paths in crops.items()]


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
            summary = f"these images raise the {title} most:"
        elif influence.most_harmful:
            summary = f"no image raises the {title}: all effects are negative"
        else:
            summary = f"it is unknown which images raise the {title}: {influence.doubt}"
        lines.append(f"{result.fake.name}: {summary}")
        for image in influence.raising[:_MAX_HARMFUL]:
            lines.append(f"  {image.effect:+.6f}  {image.file}")
        for part in influence.removals:
            lines.append(
                f"  without the worst {part.fraction:.1%} ({format_count(part.images, 'image')}) "
                f"the {title} is {part.distance:.6g} (the effects predict {part.predicted:.6g})"
            )
        if influence.doubt and influence.most_harmful:
            lines.append(f"  the effects are rough estimates: {influence.doubt}")
    return lines


def checkup_lines(checkup: Checkup) -> list[str]:
    """Return one line per set, then one line per finding."""
    none = "" if checkup.findings else ": no findings"
    lines = [checkup.images.summary() + none]
    if checkup.against is not None:
        lines.append(checkup.against.summary() + none)
    for where, finding in checkup.findings:
        line = f"{finding.severity}: {where}: {finding.message}"
        if finding.example not in finding.message:
            line += f" (for example {finding.example})"
        lines.append(line)
    return lines


def select_differences(
    evaluation: Evaluation, most: int, names: Mapping[str, str] | None = None
) -> list[Difference]:
    """Return all differences of a network if there are at most ``most``, else those that involve
    the best FAKE.

    Args:
        names: names of the FAKEs, by their paths, which they replace; None keeps the paths.
    """
    shown = list[Difference]()
    for value in evaluation.values:
        pairs = [pair for pair in evaluation.differences if pair.key == value.key]
        if len(pairs) > most:
            bars = {result.fake.name: result.corrected_of(value) for result in evaluation.results}
            estimates = {fake: bar.value for fake, bar in bars.items() if bar is not None}
            best = min(estimates, key=estimates.__getitem__, default=None)
            pairs = [pair for pair in pairs if best in (pair.first, pair.second)]
        shown += pairs
    if names is None:
        return shown
    return [replace(pair, first=names[pair.first], second=names[pair.second]) for pair in shown]


def format_value(value: Value, result: Comparison, decimals: int | None = None) -> str:
    """Return the text of a value with its spread if known, by default in all digits shown."""
    text = format_number(value, result.metrics[value.key], decimals)
    if value.spread in result.metrics:
        digits = value.number.digits if decimals is None else decimals
        text += f" ± {result.metrics[value.spread]:.{digits}f}"
    return text


def format_number(value: Value, number: float, decimals: int | None = None) -> str:
    """Return the text of a number that is a value, or one of its classes, by default in all digits
    shown. A small distance has three significant digits.
    """
    digits = value.number.digits if decimals is None else decimals
    text = f"{number:.{digits}f}"
    # Features of a custom network can be small; those of Inception are not.
    is_custom = value.number.error_bars and value.features.network != "inception"
    if is_custom and number and not float(text):
        return f"{number:.3g}"
    return text


def timing_line(evaluation: Evaluation) -> str:
    """Return the number of images, the precision of the network and the seconds of each phase; for
    stderr.
    """
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    precision = f" in {run.precision}" if run.precision else ""
    return (
        f"{format_count(run.images_computed, 'image')} through the network{precision}{speed} "
        f"({phases})"
    )


def dumps(result: dict[str, Any]) -> str:
    """Return ``result`` as JSON in ASCII, so that any file name can be printed."""
    return json.dumps(result, indent=2, allow_nan=False)
