"""Evaluations and checkups as lines of text, as a table, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fidtool.diagnose.diagnosis import Checkup
from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.errors import without_secrets
from fidtool.names import counted, legible, short_names, short_title, shortened, split_title
from fidtool.results import SCHEMA, Comparison, Difference, Evaluation, protocol_to_dict
from fidtool.settings import Origin, Settings, changed_settings

_MOST_PAIRS = 3
"""If there are more pairs of FAKEs, only those with the best FAKE are compared."""
_MOST_HARMFUL = 10
"""Maximum number of harmful images that are printed; the JSON has more."""


def result_lines(evaluation: Evaluation) -> list[str]:
    """Return one line per value, such as ``FID: 12.3456``. If there are several FAKEs, the path follows the value."""
    lines = []
    for result in evaluation.results:
        path = "" if len(evaluation.results) == 1 else f"  {legible(result.fake.name)}"
        lines += [f"{legible(title)}: {number(name, result)}{path}" for name, title in result.titles.items()]
        if (corrected := result.corrected) is not None:
            bar = f"{corrected.value:.4f} ± {corrected.error:.4f}"
            interval = f"95 %: {corrected.low:.4f} to {corrected.high:.4f}, REAL taken as fixed"
            lines.append(f"bias-corrected {legible(result.labels.title('fid'))}: {bar} ({interval}){path}")
    return [*lines, *map(legible, evaluation.not_computed_lines), *verdict_lines(evaluation)]


def verdict_lines(evaluation: Evaluation, names: Sequence[str] | None = None) -> list[str]:
    """Return one line per compared pair of FAKEs: the difference, its interval, and which FAKE is better."""
    title = evaluation.labels.title("fid")
    return [
        legible(
            f"bias-corrected {title} of {each.first} minus that of {each.second}: {each.interval.value:+.4f} "
            f"(95 %: {each.interval.low:+.4f} to {each.interval.high:+.4f}): {each.verdict}"
        )
        for each in differences_shown(evaluation, _MOST_PAIRS, names)
    ]


def framing_lines(evaluation: Evaluation) -> list[str]:
    """Return how the sets were cropped and resized: ``real/: framed by adm:256``. Sets that were not are omitted."""
    framings: dict[str, dict[str, None]] = {}
    for result in evaluation.results:
        for each in (result.real, result.fake):
            if each.framing is not None:
                framings.setdefault(each.framing, {})[each.name] = None
    return [legible(f"{', '.join(paths)}: framed by {framing}") for framing, paths in framings.items()]


def influence_lines(evaluation: Evaluation) -> list[str]:
    """Return the images that raise each distance most, and the effect of removing them; for stderr."""
    lines = []
    for result in evaluation.results:
        influence, title = result.influence, legible(result.labels.title("fid"))
        if influence is None:
            continue
        if influence.raising:
            found = f"these images raise the {title} most:"
        elif influence.most_harmful:
            found = f"no image raises the {title}: all effects are negative"
        else:
            found = f"it is unknown which images raise the {title}: {influence.doubt}"
        lines.append(f"{legible(result.fake.name)}: {found}")
        lines += [f"  {image.effect:+.6f}  {legible(image.file)}" for image in influence.raising[:_MOST_HARMFUL]]
        for part in influence.removals:
            worst = f"without the worst {part.fraction:.1%} ({counted(part.images, 'image')})"
            lines.append(f"  {worst} the {title} is {part.distance:.6g} (their effects predict {part.predicted:.6g})")
        if influence.doubt and influence.most_harmful:
            lines.append(f"  the effects are rough estimates: {influence.doubt}")
    return lines


def checkup_lines(checkup: Checkup) -> list[str]:
    """Return one line per set, then one line per finding."""
    sets = [checkup.images, *([] if checkup.against is None else [checkup.against])]
    if not checkup.findings:
        return [legible(f"{each.summary()}: no findings") for each in sets]
    lines = [each.summary() for each in sets]
    for where, finding in checkup.findings:
        quoted = not finding.example or finding.example in finding.message
        example = "" if quoted else f" (for example {finding.example})"
        lines.append(f"{finding.severity}: {where}: {finding.message}{example}")
    return [legible(line) for line in lines]


def differences_shown(evaluation: Evaluation, most: int, names: Sequence[str] | None = None) -> list[Difference]:
    """Return all differences if there are at most ``most``, else those that involve the best FAKE.

    Args:
        names: names of the FAKEs, which replace their paths; None keeps the paths.
    """
    paths = [result.fake.name for result in evaluation.results]
    named = dict(zip(paths, paths if names is None else names, strict=True))
    values = {each.fake.name: each.corrected.value for each in evaluation.results if each.corrected is not None}
    best, shown = min(values, key=lambda fake: values[fake], default=None), evaluation.differences
    shown = shown if len(shown) <= most else tuple(each for each in shown if best in (each.first, each.second))
    return [replace(each, first=named[each.first], second=named[each.second]) for each in shown]


def number(name: str, result: Comparison) -> str:
    """Return the text of a value of the result, by its plain name, with its spread if it has one."""
    shown, metrics, key = result.labels.numbers[name], result.metrics, result.labels.key
    value = f"{metrics[key(name)]:.{shown.digits}f}"
    spread = metrics.get(key(shown.spread)) if shown.spread else None
    return value if spread is None else f"{value} ± {spread:.{shown.digits}f}"


def timing_line(evaluation: Evaluation) -> str:
    """Return the number of images and the seconds of each phase; for stderr."""
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    return f"{counted(run.images_computed, 'image')} through the network{speed} ({phases})"


# --- JSON ------------------------------------------------------------------------------------------------------------


def failure_to_dict(code: int, reason: str, origin: Origin, config: Settings | None) -> dict[str, Any]:
    """Return the result JSON of a run that failed, without results."""
    run = {**origin._asdict(), "config": None if config is None else changed_settings(config)}
    found = {"schema": SCHEMA, "protocol": protocol_to_dict(None), "results": [], "run": run}
    return without_secrets({**found, "exit": {"code": code, "reason": reason}})


def dumps(result: dict[str, Any]) -> str:
    """Return ``result`` as JSON in ASCII, so that any file name can be printed."""
    return json.dumps(result, indent=2, allow_nan=False)


# --- a table of several FAKEs or metrics, with one row per FAKE and one column per value -----------------------------


class Column(NamedTuple):
    """A column, with one value per FAKE.

    Attributes:
        better: ``lower`` or ``higher``; empty if neither is better.
    """

    heading: str
    values: Sequence[str]
    better: str = ""
    best: frozenset[int] = frozenset()


def columns_of(evaluation: Evaluation) -> list[Column]:
    """Return the columns of all values, and those of the bias-corrected distance if any FAKE has it."""
    results, features = evaluation.results, common_features(evaluation)
    numbers, columns = evaluation.labels.numbers, []
    for name, title in results[0].titles.items():
        values = [result.value(name) for result in results]
        best = best_of(results, values, numbers[name].better, evaluation.differences if name == "fid" else ())
        heading = short_title(title if name == "fid" else title.removesuffix(f" ({features})"))
        columns.append(Column(heading, [number(name, result) for result in results], numbers[name].better, best))
    if not any(bars := [result.corrected for result in results]):
        return columns
    best = best_of(results, [None if bar is None else bar.value for bar in bars], "lower", evaluation.differences)
    corrected = ["-" if bar is None else f"{bar.value:.4f} ± {bar.error:.4f}" for bar in bars]
    intervals = ["-" if bar is None else f"{bar.low:.4f} to {bar.high:.4f}" for bar in bars]
    title, _ = split_title(evaluation.labels.title("fid"))  # the column of the distance says of which features
    return [*columns, Column(f"bias-corrected {title}", corrected, "lower", best), Column("95 % interval", intervals)]


def table_lines(evaluation: Evaluation) -> list[str]:
    """Return the table, followed by its legend, the framings of the sets and the comparisons of FAKEs.

    The best values of each column are marked if there are at least two FAKEs that are not REAL itself.
    """
    columns, features = columns_of(evaluation), common_features(evaluation)
    names = short_names([result.fake.name for result in evaluation.results])
    cells = [["FAKE", *(legible(shortened(name)) for name in names)]]
    for column in columns:  # with a mark behind the best ones
        marks = ["*" if row in column.best else " " * bool(column.best) for row in range(-1, len(names))]
        cells.append([text + mark for text, mark in zip([column.heading, *column.values], marks, strict=True)])
    widths = [max(map(len, column)) for column in cells]
    lines = [f"Features of all values: {legible(features)}"] if features else []
    for first, *others in zip(*cells, strict=True):
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    legend = ["* best of its column"] if any(column.best for column in columns) else []
    lines += [*map(legible, evaluation.not_computed_lines), *legend, *about_marks(evaluation)]
    lines += framing_lines(evaluation)
    return lines + verdict_lines(evaluation, names)


def about_marks(evaluation: Evaluation) -> Iterator[str]:
    """Yield sentences about which FAKEs are marked besides the best, and which are never marked."""
    results, differences = evaluation.results, evaluation.differences
    bars = [result.corrected for result in results]
    distances = [result.value("fid") for result in results], [None if bar is None else bar.value for bar in bars]
    if any(best_of(results, each, "lower", differences) > best_of(results, each, "lower") for each in distances):
        base, _ = split_title(evaluation.labels.title("fid"))
        columns = f"{base} and bias-corrected {base}"
        yield f"In the columns {columns}, sets that cannot be distinguished from the best one are marked as well."
    if len(results) > 1 and any(map(is_real, results)):
        yield "Sets that contain images of REAL are never marked as best, nor is a set that is the only other one."


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    return result.fake.name == result.real.name or (
        shared is not None and shared.count >= NOTABLE_SHARE * (result.fake.count or 1)
    )


def best_of(
    results: Sequence[Comparison], values: Sequence[float | None], better: str, differences: Sequence[Difference] = ()
) -> frozenset[int]:
    """Return the indices of the best of ``values``, one per FAKE; several in a tie.

    None is the best if fewer than two FAKEs can be compared, or if all are equal. A FAKE that is REAL is excluded.

    Args:
        values: one per FAKE; None if unknown.
        differences: differences of the values. A FAKE that they do not distinguish from the best is as good.
    """
    known = {
        place: value
        for place, (result, value) in enumerate(zip(results, values, strict=True))
        if value is not None and not is_real(result)
    }
    if len({*known.values()}) < 2:
        return frozenset()
    best = min(known.values()) if better == "lower" else max(known.values())
    leading = {results[place].fake.name for place, value in known.items() if value == best}
    ties = [{each.first, each.second} for each in differences if not each.distinguished]
    leading |= {fake for pair in ties if pair & leading for fake in pair}
    found = frozenset(place for place in known if results[place].fake.name in leading)
    return frozenset() if len(found) == len(known) else found


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing else is an FID.
    """
    titles = evaluation.results[0].titles
    if len(titles) == 1:
        return ""
    found = {split_title(title)[1] for title in titles.values()}
    return found.pop() if len(found) == 1 else ""
