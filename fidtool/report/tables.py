"""Evaluations as a table, with one row per FAKE and one column per value: for a terminal, papers, and programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from sys import maxsize
from typing import Any, NamedTuple

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.errors import InputError, redacted
from fidtool.features.protocol import PIXELS
from fidtool.names import closest, folded, legible, short_names, short_title, shortened, split_title, unknown
from fidtool.report.text import (
    class_summaries,
    dumps,
    framing_lines,
    heldout_lines,
    number,
    result_lines,
    verdict_lines,
)
from fidtool.result.changes import lines_of, obstacles, per_fake
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.result.explanations import Classes, decimals_of
from fidtool.result.values import Value

_MOST_CLASSES = 20
"""Maximum number of classes that are printed; the JSON has all."""
_SPREADS = {"std": " ± s.d.", "sd": " ± s.d.", "error": " ± s.e.", "se": " ± s.e."}
"""What is behind the ± (standard deviation, standard error), by the last word of the value's name."""
_ARROWS = {"lower": " ↓", "higher": " ↑", "": ""}
_markdown = partial(re.compile(r"([\\`*_\[\]<>|~&$])").sub, r"\\\1")
_FORMULA = ("=", "+", "-", "@")
_NOT_IN_LATEX = re.compile("--|[^ -~À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ–—…±∞×↓↑]")
"""A ligature, and the characters for which LaTeX with its default encoding and fonts has no glyph."""
_LATEX = str.maketrans(
    {each: f"\\{each}" for each in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "∞": r"$\infty$", "×": r"$\times$"}
    | {"↓": r"$\downarrow$", "↑": r"$\uparrow$", "[": "{[}", "*": "{*}"}  # at the start of a row, options of the last
)


class Column(NamedTuple):
    """A column, with one value per FAKE.

    Attributes:
        better: ``lower`` or ``higher``; empty if neither is better.
        best: places of the values that are marked.
        tied: whether some are marked because they cannot be distinguished from the best.
    """

    heading: str
    values: Sequence[str]
    better: str = ""
    best: frozenset[int] = frozenset()
    tied: bool = False


def rounded(value: Value, result: Comparison) -> str:
    """Return the text of a value in the digits that can be relied on, with its spread if known.

    These are the digits to the second one of the spread or of the standard error. A distance without one has three
    digits if there are at most as many images as dimensions: it is far too high then. For others, see `Number`, whose
    digits are the most for all.
    """
    declared, bar = value.number, result.corrected_of(value)
    error = bar.error if bar else result.metrics.get(value.spread)
    images = min(each.count or maxsize for each in (result.real, result.fake))
    decimals = declared.digits
    if error and declared.layer != PIXELS:  # of pairs, the spread is that of the images, not an error of the mean
        decimals = min(decimals, decimals_of(error, 2))
    elif declared.one_image:
        decimals = min(decimals, decimals_of(declared.one_image / images, 1))
    elif declared.is_distance:
        few = images <= value.features.dims
        decimals = min(decimals, max(decimals_of(result.metrics[value.key], 3), 0 if few else 2))
    return number(value, result, decimals)


def columns_of(evaluation: Evaluation, doubted: Collection[str] = ()) -> list[Column]:
    """Return the columns of all values, and those of bias-corrected distances if any FAKE has them.

    Args:
        doubted: titles of values of which none is the best: they are not comparable between all FAKEs.
    """
    results, features, titles = evaluation.results, common_features(evaluation), _by_title(evaluation)
    columns, corrected = [], []
    distances = [value for value in titles.values() if value.number.error_bars]
    for title, shown in titles.items():
        own = [_value_with(result, title) for result in results]
        better, is_distance = shown.number.better, shown in distances
        doubt = title in doubted or not better
        rated = [
            value if value and not doubt and not is_real(result) else None
            for value, result in zip(own, results, strict=True)
        ]
        texts = [rounded(value, result) if value else "-" for value, result in zip(own, results, strict=True)]
        ties = _ties(evaluation, title) if is_distance and not doubt else []
        heading = short_title(title if is_distance else title.removesuffix(f" ({features})"))
        spread = shown.number.spread.rpartition("_")[2]
        heading += _SPREADS.get(spread, "") * any("±" in text for text in texts)
        values = [result.metrics[value.key] if value else None for value, result in zip(rated, results, strict=True)]
        columns.append(_marked(heading, texts, values, better, ties))
        bars = [result.corrected_of(value) if value else None for value, result in zip(own, results, strict=True)]
        if any(bars):
            cells = [None if bar is None else bar.texts() for bar in bars]
            texts = [f"{each[0]} ± {each[1]}" if each else "-" for each in cells]
            values = [bar.value if bar and value else None for bar, value in zip(bars, rated, strict=True)]
            # Of one network, the column of the distance says of which features.
            base = split_title(title)[0] if len(distances) == 1 else short_title(title)
            corrected.append(_marked(f"bias-corrected {base} ± s.e.", texts, values, "lower", ties))
            corrected.append(Column("95 % interval", [each[2] if each else "-" for each in cells]))
    return [*columns, *corrected]


def class_rows(result: Comparison) -> list[list[str]]:
    """Return the values of each class, or folder, as rows of text below their headings; none if there are no values."""
    if result.classes is None or not result.classes.mean:
        return []
    rows = [[result.classes.kind, "REAL", "FAKE", *(short_title(value.title) for value in result.values)]]
    barred = any(each.corrected for each in result.classes.classes)
    rows[0] += ["bias-corrected, 95 %"] * barred
    for each in result.classes.classes:
        values = [
            f"{each.metrics[value.key]:.{value.number.digits}f}" if value.key in each.metrics else "-"
            for value in result.values
        ]
        values += [each.corrected.texts()[2] if each.corrected else "-"] * barred
        rows.append([legible(shortened(each.name, 60)), f"{each.real}", f"{each.fake}", *values])
    return rows


def class_lines(evaluation: Evaluation) -> list[str]:
    """Return a table of the values of each class for each FAKE, the worst first, for stderr."""
    return [line for table in _class_tables({"": evaluation}) for line in _text_lines(table)]


def _class_tables(saved: Mapping[str, Evaluation]) -> list[Table]:
    """Return a table of the values of each class for each FAKE that has any, the worst first."""
    results, tables = joined(saved).results, list[Table]()
    for name, result in zip(_row_names(saved, [each.fake.name for each in results]), results, strict=True):
        rows = class_rows(result)
        if not rows:
            continue
        columns = [Column(head, texts) for head, *texts in zip(*rows[: _MOST_CLASSES + 1], strict=True)]
        more = [f"and {len(rows) - 1 - _MOST_CLASSES} more, see the JSON"] * (len(rows) > 1 + _MOST_CLASSES)
        about = f"{legible(name)}: values of each {rows[0][0]}."
        tables.append(Table(columns, [about], [legible(name)], more, ()))
    return tables


def _by_title(evaluation: Evaluation) -> dict[str, Value]:
    """Return the values by their titles: those of saved results with one title may be of different features."""
    return {value.title: value for value in evaluation.values}


def _value_with(result: Comparison, title: str) -> Value | None:
    """Return the value with a title; None if the result has none."""
    return next((value for value in result.values if value.title == title), None)


def about_marks(evaluation: Evaluation, columns: Sequence[Column], doubted: Collection[str] = ()) -> Iterator[str]:
    """Yield sentences about which FAKEs are marked besides the best, and which are never; for ``doubted``, none is."""
    results = evaluation.results
    tied = [column.heading.removesuffix(" ± s.e.") for column in columns if column.tied]
    if tied:
        where = f"column{'s' if tied[1:] else ''} {' and '.join(tied)}"
        yield f"In the {where}, sets that cannot be distinguished from the best one are marked as well."
    rated = any(value.number.better and value.title not in doubted for value in evaluation.values)
    if rated and len(results) > 1 and any(map(is_real, results)):
        yield "Sets that contain images of REAL are never marked as best, nor is a set that is the only other one."


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    contains = shared is not None and shared.count >= NOTABLE_SHARE * (result.fake.count or 1)
    return contains or result.fake.name == result.real.name


def _ties(evaluation: Evaluation, title: str) -> list[set[int]]:
    """Return the places of the pairs whose distances of this title cannot be distinguished.

    Those of several files count as independent.
    """
    known = {(each.key, frozenset((each.first, each.second))): each.interval for each in evaluation.differences}
    found = list[set[int]]()
    for (place, one), (other, two) in combinations(enumerate(evaluation.results), 2):
        first, second = _value_with(one, title), _value_with(two, title)
        mine, its = first and one.corrected_of(first), second and two.corrected_of(second)
        if first and mine and its:
            interval = known.get((first.key, frozenset((one.fake.name, two.fake.name)))) or mine - its
            found += [{place, other}] if interval.sign == 0 else []
    return found


def _marked(
    heading: str, texts: Sequence[str], values: Sequence[float | None], better: str, ties: list[set[int]]
) -> Column:
    """Return a column whose best values are marked, see `_best_of`."""
    best = _best_of(texts, values, better, ties)
    return Column(heading, texts, better, best, bool(best) and best != _best_of(texts, values, better, []))


def _best_of(texts: Sequence[str], values: Sequence[float | None], better: str, ties: list[set[int]]) -> frozenset[int]:
    """Return the places of the best values, of those with the same text, and of those not distinguished from them.

    None is the best if that is all of them. A value None is excluded; that of a FAKE that is REAL is None.
    """
    known = {place: each for place, each in enumerate(values) if each is not None}
    best = (min if better == "lower" else max)(known.values(), default=None)
    leading = {place for place, value in known.items() if value == best}
    alike, tied = {texts[place] for place in leading}, {place for pair in ties if pair & leading for place in pair}
    found = {place for place in known if place in tied or texts[place] in alike}
    return frozenset() if len(found) == len(known) else frozenset(found)


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing else is an FID.
    """
    titles = _by_title(evaluation)
    found = {split_title(title)[1] for title in titles}
    return found.pop() if len(titles) > 1 and len(found) == 1 else ""


# --- formats ---------------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table: its columns, its caption in a paper and the lines above it on a terminal, remarks, and warnings."""

    columns: Sequence[Column]
    caption: Sequence[str]
    above: Sequence[str]
    notes: Sequence[str]
    alerts: Sequence[str]


def lines_in(form: str, saved: Mapping[str, Evaluation]) -> list[str]:
    """Return evaluations as ``table``, ``csv``, ``markdown`` or ``latex``, or one as ``lines`` or ``json``, in lines.

    Those of several files, the keys of ``saved``, are one table, or refused by `doubts_about`.
    """
    if form in ("json", "lines"):
        (evaluation,) = saved.values()
        return [dumps(evaluation.to_dict())] if form == "json" else result_lines(evaluation)
    doubts = doubts_about(saved)
    if form == "csv":
        return _csv_lines(saved)
    written = {"table": _text_lines, "markdown": _markdown_lines, "latex": _latex_lines}[form]
    lines = written(_table_of(saved, *doubts))
    for table in _class_tables(saved):
        lines += ["", *written(table)]
    return lines


def _row_names(saved: Mapping[str, Evaluation], names: Sequence[str]) -> Sequence[str]:
    """Return the names of the FAKEs, with their files if the same one is in several."""
    paths = [result.fake.name for each in saved.values() for result in each.results]
    if len(saved) == 1 or len({*paths}) == len(paths):
        return names
    files = [file for file, each in zip(short_names([*saved]), saved.values(), strict=True) for _ in each.results]
    return [f"{name} ({file})" for name, file in zip(names, files, strict=True)]


def _table_of(saved: Mapping[str, Evaluation], doubted: Collection[str], said: Sequence[str]) -> Table:
    evaluation = joined(saved)
    results, paths = evaluation.results, dict.fromkeys(result.fake.name for result in evaluation.results)
    short = dict(zip(paths, short_names([*paths]), strict=True))
    names = [short[result.fake.name] for result in results]
    rows = _row_names(saved, names)
    columns, bases = [Column("FAKE", [legible(shortened(row)) for row in rows])], dict[str, dict[str, None]]()
    for each in saved.values():
        for value in each.values:
            bases.setdefault(legible(each.basis(value)), {})[short_title(value.title)] = None
    caption = [f"{', '.join(titles) if len(bases) > 1 else 'Features'}: {basis}." for basis, titles in bases.items()]
    sized = [(legible(shortened(each.real.name.rstrip("/") or each.real.name)), each.real.count) for each in results]
    reals = [f"{name}, {count:,} images" if count else name for name, count in sized]
    counts = [f"{each.fake.count:,}" if each.fake.count else "-" for each in results]
    for heading, about, texts in (("REAL", "REAL", reals), ("images", "Images of FAKE", counts)):
        if len({*texts}) > 1:
            columns.append(Column(heading, texts))
        elif texts[0] != "-":
            caption.append(f"{about}: {texts[0]}.")
    values = columns_of(evaluation, doubted)
    columns += values
    features = legible(common_features(evaluation))
    above = [*([f"Features of all values: {features}"] if features else []), *said]
    missing = dict.fromkeys(line for each in saved.values() for line in each.not_computed_lines)
    notes = [*map(legible, missing), *about_marks(evaluation, values, doubted), *framing_lines(evaluation)]
    left, kept = iter(names), frozenset(evaluation.differences)
    for each in saved.values():  # a plain name may be that of other features in another file
        own = [next(left) for _ in each.results]
        notes += verdict_lines(replace(each, differences=tuple(filter(kept.__contains__, each.differences))), own)
    for row, result in zip(rows, results, strict=True):
        besides = (*class_summaries(result), *heldout_lines(result))
        notes += [line + f"  {legible(row)}" * (len(rows) > 1) for line in besides]
    alerts = [f"warning: {legible(str(alert))}" for alert in evaluation.alerts if alert.severity == "high"]
    return Table(columns, [*caption, *said], above, notes, alerts)


def joined(saved: Mapping[str, Evaluation]) -> Evaluation:
    """Return all results as one evaluation. Which values of FAKEs in several files a difference is of is unknown."""
    results = tuple(result for each in saved.values() for result in each.results)
    barred = [(key, each.fake.name) for each in results for key, bar in each.uncertainties.items() if bar.corrected]
    pairs = (pair for each in saved.values() for pair in each.differences)
    return replace(
        next(iter(saved.values())),
        results=results,
        differences=tuple(
            each for each in pairs if {barred.count((each.key, fake)) for fake in (each.first, each.second)} == {1}
        ),
    )


def narrowed(saved: Mapping[str, Evaluation], columns: Sequence[str]) -> dict[str, Evaluation]:
    """Return results with these values alone, in this order, by their titles, their names or those of their metrics.

    Raises:
        InputError: if no result has one of them.
    """
    titles, known, chosen = _by_title(joined(saved)), dict[str, list[str]](), list[str]()
    for title, value in titles.items():
        for each in {title: None, value.number.name: None, value.key: None, value.metric: None}:
            known.setdefault(folded(each), []).append(title)
    for each in columns:
        if folded(each) not in known:
            raise InputError(unknown("column", each, closest(each, known), ", ".join(titles)))
        chosen += known[folded(each)]

    def only(result: Comparison) -> Comparison:
        values = tuple(value for title in chosen if (value := _value_with(result, title)))
        keys = {key for value in values for key in (value.key, value.spread)}
        metrics = {key: number for key, number in result.metrics.items() if key in keys}
        bars = {key: bar for key, bar in result.uncertainties.items() if key in keys}
        return replace(result, metrics=metrics, known=values, uncertainties=bars)

    return {file: replace(each, results=tuple(map(only, each.results))) for file, each in saved.items()}


def doubts_about(saved: Mapping[str, Evaluation]) -> tuple[list[str], list[str]]:
    """Return the titles of the values that are not comparable between files, and a sentence on why, if any are.

    Raises:
        InputError: if values of the same title are of different protocols.
    """
    known, doubted, reasons = dict[str, tuple[str, Evaluation]](), dict[str, None](), dict[str, str]()
    for file, row in ((file, row) for file, each in saved.items() for row in per_fake(each)):
        for value in row.values:
            title = value.title
            one, first = known.setdefault(title, (file, row))
            found = {} if file == one else obstacles(first, row, value)
            if protocols := {
                place: pair for place, pair in found.items() if place[0] == "protocol" and None not in pair
            }:
                problem = f"the values of {title} in {one} and {file} are not comparable"
                raise InputError(f"{problem} ({'; '.join(lines_of(protocols))}):", "make a table of each")
            for line in lines_of(found):
                reasons.setdefault(line, f"{line} ({one} -> {file})")
                doubted[title] = None
    where = "" if len(doubted) == len(known) else f" in the columns of {', '.join(map(short_title, doubted))}"
    said = f"Not comparable between all rows, so that none is marked{where}: {'; '.join(reasons.values())}."
    return [*doubted], [legible(said)] if doubted else []


def _text_lines(table: Table) -> list[str]:
    """Return the table for a terminal, with a mark behind the best values."""
    aligned = list[list[str]]()
    for column in table.columns:
        marks = ["*" if row in column.best else " " * bool(column.best) for row in range(-1, len(column.values))]
        cells = [text + mark for text, mark in zip([column.heading, *column.values], marks, strict=True)]
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if aligned else cell.ljust(width) for cell in cells])
    rows = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    legend = ["* best of its column"] if any(column.best for column in table.columns) else []
    return [*table.above, *rows, *legend, *table.notes]


def _rows(table: Table, escaped: Callable[[str], str], bold: str) -> list[tuple[str, ...]]:
    """Return heading and rows of a table for papers, whose best values are in ``bold``."""
    cells = []
    for column in table.columns:
        texts = [(escaped(text), row in column.best) for row, text in enumerate(column.values)]
        heading = escaped(column.heading + _ARROWS[column.better])
        cells.append([heading, *(bold.format(text) if best else text for text, best in texts)])
    return [*zip(*cells, strict=True)]


def _markdown_lines(table: Table) -> list[str]:
    """Return the table for GitHub and others."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _rows(table, _markdown, "**{}**")]
    rule = f"| --- |{' ---: |' * (len(table.columns) - 1)}"
    caption, notes = " ".join(table.caption), [f"- {_markdown(note)}" for note in (*table.notes, *table.alerts)]
    return ["<!-- fidtool -->", _markdown(caption), "", heading, rule, *rows, *["", *notes] * bool(notes)]


def _latex_lines(table: Table) -> list[str]:
    """Return the table for a paper, in the style of booktabs."""
    heading, *rows = [f"    {' & '.join(row)} \\\\" for row in _rows(table, _latex, r"\textbf{{{}}}")]
    return [
        r"% fidtool: needs \usepackage{booktabs}",
        *(f"% {note}" for note in (*table.notes, *table.alerts)),
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_latex(' '.join(table.caption))}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        *(r"    \toprule", heading, r"    \midrule", *rows, r"    \bottomrule"),
        r"  \end{tabular}",
        r"\end{table}",
    ]


def _latex(text: str) -> str:
    """Return text for LaTeX. A character without a glyph is replaced by its code, such as [U+1F600]."""
    found = _NOT_IN_LATEX.sub(lambda each: "-\x00-" if each[0] == "--" else f"[U+{ord(each[0]):04X}]", text)
    escaped = re.sub(r"(?<![\w.)-])-(?=\d)", "$-$", found.translate(_LATEX))
    return "--" if text == "-" else escaped.replace("\x00", "{}")


def _csv_lines(saved: Mapping[str, Evaluation]) -> list[str]:
    """Return all numbers at full precision; headings are the keys of the JSON."""
    rows = list[dict[str, Any]]()
    for file, result in ((file, result) for file, each in saved.items() for result in each.results):
        row: dict[str, Any] = {"real": legible(result.real.name), "fake": legible(result.fake.name)}
        row |= {"file": legible(file)} if file else {}
        row |= {"count.real": result.real.count, "count.fake": result.fake.count, **result.metrics}
        for key, bar in result.uncertainties.items():
            ends = asdict(bar.corrected) if bar.corrected else {}
            row |= {f"uncertainties.{key}.corrected.{end}": value for end, value in ends.items()}
        if result.heldout is not None:
            third = asdict(result.heldout) | {"name": legible(result.heldout.name)}
            parts = {f"{part}.{key}": value for part in ("floors", "nearest") for key, value in third.pop(part).items()}
            row |= {f"heldout.{key}": value for key, value in (third | parts).items()}
        rows.append(row | ({} if result.classes is None else _class_values(result.classes)))
    return _as_csv(rows)


def _class_values(classes: Classes) -> dict[str, float]:
    """Return the mean of all classes, or folders, and the values of each, by the headings of their columns."""
    found = {f"classes.mean.{key}": value for key, value in classes.mean.items()}
    for each in classes.classes:
        place = f"class.{legible(each.name)}"  # a class can be called mean
        ends = asdict(each.corrected) if each.corrected else {}
        found |= {f"{place}.{key}": value for key, value in each.metrics.items()}
        found |= {f"{place}.corrected.{end}": value for end, value in ends.items()}
    return found


def image_lines(evaluation: Evaluation) -> list[str]:
    """Return the values of single images as the lines of a CSV table, by the path of the image of FAKE."""
    rows = list[dict[str, Any]]()
    for result in evaluation.results:
        if (single := result.of_images) is None:
            continue
        values = {key: each.tolist() for key, each in single.values.items()}
        for image in sorted(range(len(single.files)), key=single.files.__getitem__):
            row: dict[str, Any] = {"real": redacted(single.partners[image])} if single.partners else {}
            row |= {"fake": redacted(single.files[image])}
            rows.append(row | {key: each[image] for key, each in values.items()})
    return _as_csv(rows)


def _no_formula(cell: object) -> object:
    """Return a cell that spreadsheets do not compute: a path that begins like a formula with its folder before it."""
    return f"./{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with the keys of all rows as its header, in lines."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, dict.fromkeys(key for row in rows for key in row), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _no_formula(cell) for key, cell in row.items()})
    return buffer.getvalue().split("\n")[:-1]
