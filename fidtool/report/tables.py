"""Evaluations as a table, with one row per FAKE and one column per value: for a terminal, papers,
and programs.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any, NamedTuple

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.errors import InputError, redacted
from fidtool.features.protocol import PIXELS
from fidtool.names import closest, folded, legible, short_names, shortened, unknown
from fidtool.report.text import (
    class_summaries,
    crop_lines,
    dumps,
    heldout_lines,
    number,
    result_lines,
    verdict_lines,
)
from fidtool.result.changes import lines_of, obstacles, per_fake
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.result.explanations import Difference, Interval, decimals_of
from fidtool.result.values import Value
from fidtool.system.json_fields import plain

Kind = tuple[str, str, str]
"""What identifies a column, see `Value.column`."""
Saved = Mapping[str, Evaluation]
"""Evaluations by the names of their files; that of a run which is not saved is empty."""
_MOST_CLASSES = 20
"""Maximum number of classes that are printed; the JSON has all."""
_ARROWS = {"lower": " ↓", "higher": " ↑", "": ""}
_IN_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&$])")
_FORMULA = ("=", "+", "-", "@")
_NOT_IN_LATEX = re.compile("--|[^ -~À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ–—…±∞×↓↑]")
"""A ligature, and the characters for which LaTeX with its default encoding and fonts has no
glyph.
"""
_LATEX = str.maketrans(
    {each: f"\\{each}" for each in "_%&#${}"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "|": r"\textbar{}",
    }
    | {
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "∞": r"$\infty$",
        "×": r"$\times$",
    }
    | {
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
        "[": "{[}",
        "*": "{*}",
    }  # at the start of a row, options of the last
)


class Column(NamedTuple):
    """A column, with one value per FAKE.

    Attributes:
        title: what the values are.
        better: ``lower`` or ``higher``; empty if neither is better.
        best: places of the values that are marked.
        tied: whether some are marked because they cannot be distinguished from the best.
        is_corrected: whether they are bias-corrected distances.
        spread: what is behind the ±, such as ``s.d.``; empty if nothing is, or it is unknown.
    """

    title: str
    values: Sequence[str]
    better: str = ""
    best: frozenset[int] = frozenset()
    tied: bool = False
    is_corrected: bool = False
    spread: str = ""

    @property
    def heading(self) -> str:
        """The title, and what is behind the ±."""
        return f"{self.title} ± {self.spread}" if self.spread else self.title


def rounded(value: Value, result: Comparison) -> str:
    """Return the text of a value in the digits that can be relied on, with its spread if known.

    These are the digits to the second one of the spread or of the standard error. A distance
    without one has three digits if there are at most as many images as dimensions: it is far too
    high then. For others, see `Number`, whose digits are the most for all.
    """
    declared, bar = value.number, result.corrected_of(value)
    error = bar.error if bar else result.metrics.get(value.spread)
    images = min(each.count or maxsize for each in (result.real, result.fake))
    decimals = declared.digits
    if (
        error and declared.layer != PIXELS
    ):  # of pairs, the spread is that of the images, not an error of the mean
        decimals = min(decimals, decimals_of(error, 2))
    elif declared.one_image:
        decimals = min(decimals, decimals_of(declared.one_image / images, 1))
    elif declared.is_distance:
        few = images <= value.features.dims
        decimals = min(decimals, max(decimals_of(result.metrics[value.key], 3), 0 if few else 2))
    return number(value, result, decimals)


def columns_of(evaluation: Evaluation, doubted: Collection[Kind] = ()) -> list[Column]:
    """Return the columns of all values, and those of bias-corrected distances if any FAKE has them.

    Args:
        doubted: those of which none is the best: the values are not comparable between all FAKEs.
    """
    kinds = _by_column(evaluation)
    features = common_features(evaluation)
    distances = [value for value in kinds.values() if value.number.error_bars]
    columns, corrected = list[Column](), list[Column]()
    for kind, shown in kinds.items():
        better = shown.number.better
        cells = [_Cell(result, _value_in(result, kind)) for result in evaluation.results]
        texts = [cell.text for cell in cells]
        names_features = shown.number.error_bars or shown.qualifier != features
        title = shown.short_title if names_features else shown.base
        has_spread = any(cell.value and cell.value.spread in cell.result.metrics for cell in cells)
        column = Column(title, texts, better, spread=shown.number.spread_kind if has_spread else "")
        rated = [cell.number for cell in cells]
        columns.append(column if kind in doubted else _marked(column, rated, cells, evaluation))
        bars = [cell.bar for cell in cells]
        if any(bars):
            # Of one network, the column of the distance says of which features.
            base = shown.base if len(distances) == 1 else shown.short_title
            estimates = [" ± ".join(bar.texts()[:2]) if bar else "-" for bar in bars]
            column = Column(
                f"bias-corrected {base}", estimates, better, is_corrected=True, spread="s.e."
            )
            rated = [
                cell.bar.value if cell.bar and cell.number is not None else None for cell in cells
            ]
            corrected.append(
                column if kind in doubted else _marked(column, rated, cells, evaluation)
            )
            corrected.append(
                Column("95 % interval", [bar.texts()[2] if bar else "-" for bar in bars])
            )
    return [*columns, *corrected]


@dataclass(frozen=True)
class _Cell:
    """A result in the column of a value, which is None if the result lacks it."""

    result: Comparison
    value: Value | None

    @property
    def text(self) -> str:
        return rounded(self.value, self.result) if self.value else "-"

    @property
    def bar(self) -> Interval | None:
        """The bias-corrected estimate, if there is one."""
        return self.result.corrected_of(self.value) if self.value else None

    @property
    def number(self) -> float | None:
        """The value, if it can be the best of its column."""
        return (
            self.result.metrics[self.value.key] if self.value and not is_real(self.result) else None
        )

    def is_tied(self, other: _Cell, differences: Sequence[Difference]) -> bool:
        """Whether the distances cannot be distinguished. Those of several files count as
        independent.
        """
        if self.value is None or not self.bar or not other.bar:
            return False
        names = {self.result.fake.name, other.result.fake.name}
        of_both = (each for each in differences if {each.first, each.second} == names)
        known = next((each.interval for each in of_both if each.key == self.value.key), None)
        return (known or self.bar - other.bar).sign == 0


def _marked(
    column: Column, numbers: Sequence[float | None], cells: Sequence[_Cell], evaluation: Evaluation
) -> Column:
    """Return a column whose best values are marked, those with the same text, and those not
    distinguished from them.

    None is the best if that is all of them, or if neither lower nor higher is better. A number None
    is excluded.
    """
    known = {place: number for place, number in enumerate(numbers) if number is not None}
    best = (min if column.better == "lower" else max)(known.values(), default=None)
    leading = [place for place, number in known.items() if number == best]
    texts = {column.values[place] for place in leading}
    alike = {place for place in known if column.values[place] in texts}
    tied = {
        place
        for place in known
        for lead in leading
        if place != lead and cells[place].is_tied(cells[lead], evaluation.differences)
    }
    marked = alike | tied
    if not column.better or len(marked) == len(known):
        return column
    return column._replace(best=frozenset(marked), tied=marked != alike)


def class_rows(result: Comparison) -> list[list[str]]:
    """Return the values of each class, or folder, as rows of text below their headings; none if
    there are no values.
    """
    if result.classes is None or not result.classes.mean:
        return []
    rows = [[result.classes.kind, "REAL", "FAKE", *(value.short_title for value in result.values)]]
    barred = any(each.corrected for each in result.classes.classes)
    rows[0] += ["bias-corrected, 95 %"] * barred
    for each in result.classes.classes:
        values = [
            f"{each.metrics[value.key]:.{value.number.digits}f}"
            if value.key in each.metrics
            else "-"
            for value in result.values
        ]
        values += [each.corrected.texts()[2] if each.corrected else "-"] * barred
        rows.append([shortened(each.name, 60), f"{each.real}", f"{each.fake}", *values])
    return rows


def class_lines(evaluation: Evaluation) -> list[str]:
    """Return a table of the values of each class for each FAKE, the worst first, for stderr."""
    return [line for table in _class_tables({"": evaluation}) for line in _text_lines(table)]


def _class_tables(saved: Saved) -> list[Table]:
    """Return a table of the values of each class for each FAKE that has any, the worst first."""
    tables = list[Table]()
    for result, file in _with_files(saved):
        rows = class_rows(result)
        if not rows:
            continue
        columns = [
            Column(head, texts) for head, *texts in zip(*rows[: _MOST_CLASSES + 1], strict=True)
        ]
        more = [f"and {len(rows) - 1 - _MOST_CLASSES} more, see the JSON"] * (
            len(rows) > 1 + _MOST_CLASSES
        )
        name = result.fake.name + file
        tables.append(Table(columns, [f"{name}: values of each {rows[0][0]}."], [name], more, ()))
    return tables


def _by_column(evaluation: Evaluation) -> dict[Kind, Value]:
    """Return the values by their columns: those of saved results in one column may be of different
    features.
    """
    return {value.column: value for value in evaluation.values}


def _value_in(result: Comparison, kind: Kind) -> Value | None:
    """Return the value in a column; None if the result has none."""
    return next((value for value in result.values if value.column == kind), None)


def about_marks(
    evaluation: Evaluation, columns: Sequence[Column], doubted: Collection[Kind] = ()
) -> Iterator[str]:
    """Yield sentences about which FAKEs are marked besides the best, and which are never; for
    ``doubted``, none is.
    """
    results = evaluation.results
    tied = [column.title for column in columns if column.tied]
    if tied:
        where = f"column{'s' if tied[1:] else ''} {' and '.join(tied)}"
        yield (
            f"In the {where}, sets that cannot be distinguished from the best one are marked as "
            "well."
        )
    rated = any(value.number.better and value.column not in doubted for value in evaluation.values)
    if rated and len(results) > 1 and any(map(is_real, results)):
        yield (
            "Sets that contain images of REAL are never marked as best, nor is a set that is the "
            "only other one."
        )


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    contains = shared is not None and shared.count >= NOTABLE_SHARE * (result.fake.count or 1)
    return contains or result.fake.name == result.real.name


def common_features(evaluation: Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty
    if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing
    else is an FID.
    """
    values = _by_column(evaluation).values()
    qualifiers = {value.qualifier for value in values}
    return qualifiers.pop() if len(values) > 1 and len(qualifiers) == 1 else ""


# --- formats --------------------------------------------------------------------------------------


class Table(NamedTuple):
    """A table: its columns, its caption in a paper and the lines above it on a terminal, remarks,
    and warnings.
    """

    columns: Sequence[Column]
    caption: Sequence[str]
    above: Sequence[str]
    notes: Sequence[str]
    alerts: Sequence[str]


def lines_in(form: str, saved: Saved) -> list[str]:
    """Return evaluations as ``table``, ``csv``, ``markdown`` or ``latex``, or one as ``lines`` or
    ``json``, in lines.

    Those of several files, the keys of ``saved``, are one table, or refused by `doubts_about`.
    """
    if form in ("json", "lines"):
        (evaluation,) = saved.values()
        return (
            [dumps(evaluation.to_dict())]
            if form == "json"
            else [*map(legible, result_lines(evaluation))]
        )
    doubts = doubts_about(saved)
    if form == "csv":
        return _csv_lines(saved)
    written = {"table": _text_lines, "markdown": _markdown_lines, "latex": _latex_lines}[form]
    lines = written(_table_of(saved, *doubts))
    for table in _class_tables(saved):
        lines += ["", *written(table)]
    return lines


def _with_files(saved: Saved) -> list[tuple[Comparison, str]]:
    """Return all results, each with what follows the name of its FAKE: its file, if the same FAKE
    is in several.
    """
    files = zip(short_names([*saved]), saved.values(), strict=True)
    rows = [(result, f" ({file})") for file, evaluation in files for result in evaluation.results]
    fakes = {result.fake.name for result, _ in rows}
    if len(saved) > 1 and len(fakes) < len(rows):
        return rows
    return [(result, "") for result, _ in rows]


def _table_of(saved: Saved, doubted: Collection[Kind], said: Sequence[str]) -> Table:
    evaluation = joined(saved)
    results = evaluation.results
    paths = [*dict.fromkeys(result.fake.name for result in results)]
    short = dict(zip(paths, short_names(paths), strict=True))
    rows = [short[result.fake.name] + file for result, file in _with_files(saved)]
    columns, bases = [Column("FAKE", [*map(shortened, rows)])], dict[str, dict[str, None]]()
    for each in saved.values():
        for value in each.values:
            bases.setdefault(each.basis(value), {})[value.short_title] = None
    caption = [
        f"{', '.join(titles) if len(bases) > 1 else 'Features'}: {basis}."
        for basis, titles in bases.items()
    ]
    reals, counts = list[str](), list[str]()
    for result in results:
        name = shortened(result.real.name.rstrip("/") or result.real.name)
        reals.append(f"{name}, {result.real.count:,} images" if result.real.count else name)
        counts.append(f"{result.fake.count:,}" if result.fake.count else "-")
    for heading, about, texts in (("REAL", "REAL", reals), ("images", "Images of FAKE", counts)):
        if len({*texts}) > 1:
            columns.append(Column(heading, texts))
        elif texts[0] != "-":
            caption.append(f"{about}: {texts[0]}.")
    values = columns_of(evaluation, doubted)
    columns += values
    features = common_features(evaluation)
    above = [*([f"Features of all values: {features}"] if features else []), *said]
    missing = dict.fromkeys(line for each in saved.values() for line in each.not_computed_lines)
    notes = [*missing, *about_marks(evaluation, values, doubted), *crop_lines(evaluation)]
    for each in saved.values():  # a plain name may be that of other features in another file
        kept = tuple(pair for pair in each.differences if pair in evaluation.differences)
        notes += verdict_lines(replace(each, differences=kept), short)
    for row, result in zip(rows, results, strict=True):
        besides = (*class_summaries(result), *heldout_lines(result))
        notes += [line + f"  {row}" * (len(rows) > 1) for line in besides]
    alerts = [f"warning: {alert}" for alert in evaluation.alerts if alert.severity == "high"]
    return Table(columns, [*caption, *said], above, notes, alerts)


def joined(saved: Saved) -> Evaluation:
    """Return all results as one evaluation. Which values of FAKEs in several files a difference is
    of is unknown.
    """
    results = tuple(result for each in saved.values() for result in each.results)
    barred = Counter(
        (key, each.fake.name)
        for each in results
        for key, bar in each.uncertainties.items()
        if bar.corrected
    )
    differences = tuple(
        pair
        for each in saved.values()
        for pair in each.differences
        if barred[pair.key, pair.first] == barred[pair.key, pair.second] == 1
    )
    return replace(next(iter(saved.values())), results=results, differences=differences)


def narrowed(saved: Saved, columns: Sequence[str]) -> dict[str, Evaluation]:
    """Return results with these values alone, in this order, by their titles, their names or those
    of their metrics.

    Raises:
        InputError: if no result has one of them.
    """
    kinds = _by_column(joined(saved))
    known, chosen = dict[str, dict[Kind, None]](), dict[Kind, None]()
    for kind, value in kinds.items():
        for name in (value.title, value.number.name, value.key, value.metric):
            known.setdefault(folded(name), {})[kind] = None
    for column in columns:
        if folded(column) not in known:
            titles = ", ".join(value.title for value in kinds.values())
            raise InputError(unknown("column", column, closest(column, known), titles))
        chosen |= known[folded(column)]

    def only(result: Comparison) -> Comparison:
        values = tuple(value for kind in chosen if (value := _value_in(result, kind)))
        keys = {key for value in values for key in (value.key, value.spread)}
        metrics = {key: number for key, number in result.metrics.items() if key in keys}
        bars = {key: bar for key, bar in result.uncertainties.items() if key in keys}
        return replace(result, metrics=metrics, known=values, uncertainties=bars)

    return {
        file: replace(each, results=tuple(map(only, each.results))) for file, each in saved.items()
    }


def doubts_about(saved: Saved) -> tuple[dict[Kind, Value], list[str]]:
    """Return the values that are not comparable between files, by their columns, and a sentence on
    why, if any are.

    Raises:
        InputError: if values in one column are of different protocols.
    """
    known, doubted, reasons = (
        dict[Kind, tuple[str, Evaluation]](),
        dict[Kind, Value](),
        dict[str, str](),
    )
    for file, row in ((file, row) for file, each in saved.items() for row in per_fake(each)):
        for value in row.values:
            one, first = known.setdefault(value.column, (file, row))
            found = {} if file == one else obstacles(first, row, value)
            protocols = {
                place: pair
                for place, pair in found.items()
                if place[0] == "protocol" and None not in pair
            }
            if protocols:
                problem = f"the values of {value.title} in {one} and {file} are not comparable"
                raise InputError(
                    f"{problem} ({'; '.join(lines_of(protocols))}):", "make a table of each"
                )
            for line in lines_of(found):
                reasons.setdefault(line, f"{line} ({one} -> {file})")
                doubted[value.column] = value
    where = (
        ""
        if len(doubted) == len(known)
        else f" in the columns of {', '.join(value.short_title for value in doubted.values())}"
    )
    said = (
        f"Not comparable between all rows, so that none is marked{where}: "
        f"{'; '.join(reasons.values())}."
    )
    return doubted, [said] if doubted else []


def _text_lines(table: Table) -> list[str]:
    """Return the table for a terminal, with a mark behind the best values."""
    aligned = list[list[str]]()
    for column in table.columns:
        marks = [
            "*" if row in column.best else " " * bool(column.best)
            for row in range(-1, len(column.values))
        ]
        cells = [
            legible(text) + mark
            for text, mark in zip([column.heading, *column.values], marks, strict=True)
        ]
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if aligned else cell.ljust(width) for cell in cells])
    rows = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    legend = ["* best of its column"] if any(column.best for column in table.columns) else []
    return [*map(legible, table.above), *rows, *legend, *map(legible, table.notes)]


def _rows(table: Table, escaped: Callable[[str], str], bold: str) -> list[tuple[str, ...]]:
    """Return heading and rows of a table for papers, whose best values are in ``bold``."""
    columns = []
    for column in table.columns:
        texts = [escaped(text) for text in column.values]
        for row in column.best:
            texts[row] = bold.format(texts[row])
        columns.append([escaped(column.heading + _ARROWS[column.better]), *texts])
    return [*zip(*columns, strict=True)]


def _markdown_lines(table: Table) -> list[str]:
    """Return the table for GitHub and others."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _rows(table, _markdown, "**{}**")]
    rule = f"| --- |{' ---: |' * (len(table.columns) - 1)}"
    caption, notes = (
        " ".join(table.caption),
        [f"- {_markdown(note)}" for note in (*table.notes, *table.alerts)],
    )
    return [
        "<!-- fidtool -->",
        _markdown(caption),
        "",
        heading,
        rule,
        *rows,
        *["", *notes] * bool(notes),
    ]


def _markdown(text: str) -> str:
    return _IN_MARKDOWN.sub(r"\\\1", legible(text))


def _latex_lines(table: Table) -> list[str]:
    """Return the table for a paper, in the style of booktabs."""
    heading, *rows = [
        f"    {' & '.join(row)} \\\\" for row in _rows(table, _latex, r"\textbf{{{}}}")
    ]
    return [
        r"% fidtool: needs \usepackage{booktabs}",
        *(f"% {legible(note)}" for note in (*table.notes, *table.alerts)),
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_latex(' '.join(table.caption))}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        *(r"    \toprule", heading, r"    \midrule", *rows, r"    \bottomrule"),
        r"  \end{tabular}",
        r"\end{table}",
    ]


def _latex(text: str) -> str:
    """Return text for LaTeX. A character without a glyph is replaced by its code, such as
    [U+1F600].
    """
    found = _NOT_IN_LATEX.sub(
        lambda each: "-\x00-" if each[0] == "--" else f"[U+{ord(each[0]):04X}]", legible(text)
    )
    escaped = re.sub(r"(?<![\w.)-])-(?=\d)", "$-$", found.translate(_LATEX))
    return "--" if text == "-" else escaped.replace("\x00", "{}")


def _csv_lines(saved: Saved) -> list[str]:
    """Return all numbers at full precision; headings are the keys of the JSON."""
    rows = list[dict[str, Any]]()
    for file, result in ((file, result) for file, each in saved.items() for result in each.results):
        row: dict[str, Any] = {"real": legible(result.real.name), "fake": legible(result.fake.name)}
        if file:
            row["file"] = legible(file)
        row |= {"count.real": result.real.count, "count.fake": result.fake.count, **result.metrics}
        for key, bar in result.uncertainties.items():
            row |= _leaves(f"uncertainties.{key}.corrected", plain(bar.corrected))
        if result.heldout is not None:
            row |= _leaves(
                "heldout", plain(result.heldout) | {"name": legible(result.heldout.name)}
            )
        if result.classes is not None:
            row |= _leaves("classes.mean", result.classes.mean)
            for each in result.classes.classes:  # one can be called mean
                row |= _leaves(
                    f"class.{legible(each.name)}",
                    {**each.metrics, "corrected": plain(each.corrected)},
                )
        rows.append(row)
    return _as_csv(rows)


def _leaves(place: str, value: Any) -> dict[str, Any]:
    """Return the numbers and texts in a value of the JSON by the keys that lead there, joined by
    points, but null.
    """
    if isinstance(value, Mapping):
        return {
            key: leaf
            for name, part in value.items()
            for key, leaf in _leaves(f"{place}.{name}", part).items()
        }
    return {} if value is None else {place: value}


def image_lines(evaluation: Evaluation) -> list[str]:
    """Return the values of single images as the lines of a CSV table, by the path of the image of
    FAKE.
    """
    rows = list[dict[str, Any]]()
    for result in evaluation.results:
        if (single := result.of_images) is None:
            continue
        values = {key: each.tolist() for key, each in single.values.items()}
        for image in sorted(range(len(single.files)), key=single.files.__getitem__):
            row: dict[str, Any] = (
                {"real": redacted(single.partners[image])} if single.partners else {}
            )
            row |= {"fake": redacted(single.files[image])}
            rows.append(row | {key: each[image] for key, each in values.items()})
    return _as_csv(rows)


def _no_formula(cell: object) -> object:
    """Return a cell that spreadsheets do not compute: a path that begins like a formula with its
    folder before it.
    """
    return f"./{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with the keys of all rows as its header, in lines."""
    buffer = io.StringIO()
    writer = csv.DictWriter(
        buffer, dict.fromkeys(key for row in rows for key in row), lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _no_formula(cell) for key, cell in row.items()})
    return buffer.getvalue().split("\n")[:-1]
