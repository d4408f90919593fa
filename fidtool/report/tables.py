"""Evaluations as a table, with one row per FAKE and one column per value: for a terminal, papers,
and programs.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any

from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.errors import InputError, redact
from fidtool.features.protocol import PIXELS
from fidtool.names import escape_text, fold, short_names, shorten, unknown_name_error
from fidtool.report.text import (
    class_summaries,
    crop_lines,
    dumps,
    format_number,
    format_value,
    heldout_lines,
    result_lines,
    verdict_lines,
)
from fidtool.result.changes import difference_lines, find_obstacles, split_by_fake
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.result.explanations import Interval, count_decimals
from fidtool.result.values import Value
from fidtool.system.json_fields import to_json_value

Kind = tuple[str, str, str]
"""What identifies a column, see `Value.column`."""
SavedResults = Mapping[str, Evaluation]
"""Evaluations by the names of their files; that of a run which is not saved is empty."""
Differences = Mapping[frozenset[str], Interval]
"""Differences of one distance, by the paths of two FAKEs."""
# Maximum number of classes that are printed; the JSON has all.
_MAX_CLASSES = 20
_ARROWS = {"lower": " ↓", "higher": " ↑", "": ""}
_IN_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&$])")
_FORMULA = ("=", "+", "-", "@")
# For these characters, LaTeX with its default encoding and fonts has no glyph.
_NOT_IN_LATEX = re.compile("[^ -~À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ–—…±∞×↓↑]")
_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "∞": r"$\infty$",
        "×": r"$\times$",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
        # At the start of a row, these are options of the row before it.
        "[": "{[}",
        "*": "{*}",
    }
)


@dataclass
class Column:
    """A column, with one value per FAKE.

    Attributes:
        title: what the values are.
        values: the values as text.
        better: ``lower`` or ``higher``; empty if neither is better.
        spread: what is behind the ±, such as ``s.d.``; empty if nothing is, or it is unknown.
        is_corrected: whether they are bias-corrected distances.
        best: places of the values that are marked.
        is_tied: whether some are marked because they cannot be distinguished from the best.
    """

    title: str
    values: Sequence[str]
    better: str = ""
    spread: str = ""
    is_corrected: bool = False
    best: Collection[int] = ()
    is_tied: bool = False

    @property
    def heading(self) -> str:
        """The title, and what is behind the ±."""
        return f"{self.title} ± {self.spread}" if self.spread else self.title


@dataclass
class Table:
    """A table, and what belongs to it.

    Attributes:
        columns: the columns, the first of which names the rows.
        caption: sentences of the caption in a paper.
        above: lines above it on a terminal.
        notes: remarks.
        alerts: warnings.
    """

    columns: Sequence[Column]
    caption: Sequence[str]
    above: Sequence[str]
    notes: Sequence[str]
    alerts: Sequence[str] = ()


def rounded_text(value: Value, result: Comparison) -> str:
    """Return the text of a value in the digits that can be relied on, with its spread if known."""
    return format_value(value, result, shown_decimals(value, result))


def shown_decimals(value: Value, result: Comparison) -> int:
    """Return the number of decimals of a value that can be relied on.

    These are the digits to the second one of the spread or of the standard error. A distance
    without one has three digits if there are at most as many images as dimensions: it is far too
    high then. For others, see `Number`, whose digits are the most for all.
    """
    declared = value.number
    bar = result.corrected_of(value)
    error = bar.error if bar else result.metrics.get(value.spread)
    images = min(images.count or maxsize for images in (result.real, result.fake))
    decimals = declared.digits
    # Of pairs, the spread is that of the images, not an error of the mean.
    if error and declared.layer != PIXELS:
        decimals = count_decimals(error, 2)
    elif declared.one_image:
        decimals = count_decimals(declared.one_image / images, 1)
    elif declared.is_distance:
        fewest = 0 if images <= value.features.dims else 2
        decimals = max(count_decimals(result.metrics[value.key], 3), fewest)
    return min(decimals, declared.digits)


# --- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """What a FAKE has in a column.

    Attributes:
        text: the value as text.
        number: what it is compared by; None if it cannot be the best of its column.
        fake: the path of the FAKE.
        bar: the bias-corrected estimate of the value, if there is one.
    """

    text: str = "-"
    number: float | None = None
    fake: str = ""
    bar: Interval | None = None


def make_columns(evaluation: Evaluation, doubted: Collection[Kind] = ()) -> list[Column]:
    """Return the columns of all values, and those of bias-corrected distances if any FAKE has them.

    Args:
        doubted: those of which none is the best: the values are not comparable between all FAKEs.
    """
    values = _values_by_column(evaluation)
    features = common_features(evaluation)
    networks = sum(value.number.error_bars for value in values.values())
    columns = []
    corrected = []
    for kind, value in values.items():
        better = value.number.better
        cells = [_make_cell(result, kind, kind in doubted) for result in evaluation.results]
        differences = {
            frozenset((pair.first, pair.second)): pair.interval
            for pair in evaluation.differences
            if pair.key == value.key
        }
        column = _make_column(cells, make_heading(value, features), better, differences)
        if any(value.spread in result.metrics for result in evaluation.results):
            column.spread = value.number.spread_kind
        columns.append(column)
        if any(cell.bar for cell in cells):
            # Of one network, the column of the distance says of which features.
            base = value.base if networks == 1 else value.short_title
            estimates = [_make_corrected_cell(cell) for cell in cells]
            column = _make_column(estimates, f"bias-corrected {base}", better, differences)
            column.spread = "s.e."
            column.is_corrected = True
            intervals = [cell.bar.texts()[2] if cell.bar else "-" for cell in cells]
            corrected += [column, Column("95 % interval", intervals)]
    return [*columns, *corrected]


def make_heading(value: Value, features: str) -> str:
    """Return the title of a value beside others; ``features`` are the `common_features`."""
    if value.number.error_bars or value.qualifier != features:
        return value.short_title
    return value.base


def _make_cell(result: Comparison, kind: Kind, doubted: bool) -> _Cell:
    value = _values_by_column(result).get(kind)
    if value is None:
        return _Cell()
    number = None if doubted or is_real(result) else result.metrics[value.key]
    bar = result.corrected_of(value)
    return _Cell(rounded_text(value, result), number=number, fake=result.fake.name, bar=bar)


def _make_corrected_cell(cell: _Cell) -> _Cell:
    """Return the cell of the bias-corrected estimate."""
    if cell.bar is None:
        return _Cell()
    estimate, error, _ = cell.bar.texts()
    number = None if cell.number is None else cell.bar.value
    return replace(cell, text=f"{estimate} ± {error}", number=number)


def _make_column(
    cells: Sequence[_Cell], title: str, better: str, differences: Differences
) -> Column:
    """Return a column whose best values are marked, those with the same text, and those not
    distinguished from them; none if that is all of them, or if neither lower nor higher is better.
    """
    column = Column(title, [cell.text for cell in cells], better)
    numbers = {place: cell.number for place, cell in enumerate(cells) if cell.number is not None}
    best = (min if better == "lower" else max)(numbers.values(), default=None)
    leading = [cells[place] for place, number in numbers.items() if number == best]
    texts = {cell.text for cell in leading}
    alike = {place for place in numbers if cells[place].text in texts}
    tied = set()
    for place in numbers:
        if any(_is_tied(cells[place], leader, differences) for leader in leading):
            tied.add(place)
    if better and len(alike | tied) < len(numbers):
        column.best = alike | tied
        column.is_tied = not tied <= alike
    return column


def _is_tied(cell: _Cell, leader: _Cell, differences: Differences) -> bool:
    """Whether two distances cannot be distinguished; those of several files are independent."""
    if cell.bar is None or leader.bar is None:
        return False
    difference = differences.get(frozenset((cell.fake, leader.fake)), cell.bar - leader.bar)
    return difference.sign == 0


def class_rows(result: Comparison) -> list[list[str]]:
    """Return the values of each class, or folder, as rows of text below their headings; none if
    there are no values.
    """
    if result.classes is None or not result.classes.mean:
        return []
    has_bars = any(part.corrected for part in result.classes.classes)
    features = common_features(result)
    titles = [make_heading(value, features) for value in result.values]
    rows = [[result.classes.kind, "REAL", "FAKE", *titles]]
    if has_bars:
        rows[0].append("bias-corrected, 95 %")
    for part in result.classes.classes:
        row = [shorten(part.name, 60), str(part.real), str(part.fake)]
        for value in result.values:
            known = part.metrics.get(value.key)
            row.append("-" if known is None else format_number(value, known))
        if has_bars:
            row.append(part.corrected.texts()[2] if part.corrected else "-")
        rows.append(row)
    return rows


def class_lines(evaluation: Evaluation) -> list[str]:
    """Return a table of the values of each class for each FAKE, the worst first, for stderr."""
    return [line for table in _class_tables({"": evaluation}) for line in _text_lines(table)]


def _class_tables(saved: SavedResults) -> list[Table]:
    """Return a table of the values of each class for each FAKE that has any, the worst first."""
    tables = []
    for result, file in _rows_with_files(saved):
        rows = class_rows(result)
        if not rows:
            continue
        shown = zip(*rows[: _MAX_CLASSES + 1], strict=True)
        columns = [Column(heading, texts) for heading, *texts in shown]
        more = len(rows) - 1 - _MAX_CLASSES
        notes = [f"and {more} more, listed in the JSON"] if more > 0 else []
        name = result.fake.name + file
        tables.append(Table(columns, [f"{name}: values of each {rows[0][0]}."], [name], notes))
    return tables


def _values_by_column(result: Comparison | Evaluation) -> dict[Kind, Value]:
    """Return the values by their columns: those of saved results in one column may be of different
    features.
    """
    return {value.column: value for value in result.values}


def describe_marks(
    evaluation: Evaluation, columns: Sequence[Column], doubted: Collection[Kind] = ()
) -> list[str]:
    """Return sentences about which FAKEs are marked besides the best, and which are never; for
    ``doubted``, none is.
    """
    sentences = []
    tied = [column.title for column in columns if column.is_tied]
    if tied:
        noun = "column" if len(tied) == 1 else "columns"
        sentences.append(
            f"In the {noun} {' and '.join(tied)}, sets that cannot be distinguished from the best "
            "one are marked as well."
        )
    results = evaluation.results
    rated = any(value.number.better and value.column not in doubted for value in evaluation.values)
    if rated and len(results) > 1 and any(map(is_real, results)):
        sentences.append(
            "Sets that contain images of REAL are never marked as best. If there is only one "
            "other set, it is not marked either."
        )
    return sentences


def is_real(result: Comparison) -> bool:
    """Whether FAKE is REAL, or contains so many of its images that the distance is meaningless."""
    if result.fake.name == result.real.name:
        return True
    if result.diagnosis is None or result.diagnosis.shared is None:
        return False
    return result.diagnosis.shared.count >= NOTABLE_SHARE * (result.fake.count or 1)


def common_features(result: Comparison | Evaluation) -> str:
    """Return the features that the titles of several values name, such as ``64 dimensions``; empty
    if they differ.

    They are named once above the table. Only a Fréchet distance keeps them in its heading: nothing
    else is an FID.
    """
    values = _values_by_column(result).values()
    qualifiers = {value.qualifier for value in values}
    return qualifiers.pop() if len(values) > 1 and len(qualifiers) == 1 else ""


# --- several files --------------------------------------------------------------------------------


def _rows_with_files(saved: SavedResults) -> list[tuple[Comparison, str]]:
    """Return all results, each with what follows the name of its FAKE: its file, if the same FAKE
    is in several.
    """
    rows = []
    for file, evaluation in zip(short_names([*saved]), saved.values(), strict=True):
        rows += [(result, f" ({file})") for result in evaluation.results]
    fakes = {result.fake.name for result, _ in rows}
    if len(saved) > 1 and len(fakes) < len(rows):
        return rows
    return [(result, "") for result, _ in rows]


def _make_table(saved: SavedResults, doubted: Collection[Kind], doubts: Sequence[str]) -> Table:
    evaluation = join_files(saved)
    results = evaluation.results
    paths = [*dict.fromkeys(result.fake.name for result in results)]
    names = dict(zip(paths, short_names(paths), strict=True))
    rows = [names[result.fake.name] + file for result, file in _rows_with_files(saved)]
    columns = [Column("FAKE", [*map(shorten, rows)])]
    caption = _describe_features(saved)
    reals = []
    counts = []
    for result in results:
        name = shorten(result.real.name.rstrip("/") or result.real.name)
        reals.append(f"{name}, {result.real.count:,} images" if result.real.count else name)
        counts.append(f"{result.fake.count:,}" if result.fake.count else "-")
    for heading, about, texts in (("REAL", "REAL", reals), ("images", "Images of FAKE", counts)):
        if len({*texts}) > 1:
            columns.append(Column(heading, texts))
        elif texts[0] != "-":
            caption.append(f"{about}: {texts[0]}.")
    values = make_columns(evaluation, doubted)
    features = common_features(evaluation)
    above = [f"Features of all values: {features}"] if features else []
    missing: list[str] = []
    for of_file in saved.values():
        missing += of_file.not_computed_lines
    notes = [*dict.fromkeys(missing), *describe_marks(evaluation, values, doubted)]
    notes += crop_lines(evaluation)
    for of_file in saved.values():  # a plain name may be that of other features in another file
        kept = tuple(pair for pair in of_file.differences if pair in evaluation.differences)
        notes += verdict_lines(replace(of_file, differences=kept), names)
    for row, result in zip(rows, results, strict=True):
        path = f"  {row}" if len(rows) > 1 else ""
        notes += [f"{line}{path}" for line in (*class_summaries(result), *heldout_lines(result))]
    return Table(
        columns=[*columns, *values],
        caption=[*caption, *doubts],
        above=[*above, *doubts],
        notes=notes,
        alerts=[f"warning: {alert}" for alert in evaluation.alerts if alert.severity == "high"],
    )


def _describe_features(saved: SavedResults) -> list[str]:
    """Return a sentence per kind of features: which values are of them, if there are several."""
    bases = dict[str, dict[str, None]]()
    for evaluation in saved.values():
        for value in evaluation.values:
            bases.setdefault(evaluation.basis(value), {})[value.short_title] = None
    return [
        f"{', '.join(titles) if len(bases) > 1 else 'Features'}: {basis}."
        for basis, titles in bases.items()
    ]


def join_files(saved: SavedResults) -> Evaluation:
    """Return all results as one evaluation. Which values of FAKEs in several files a difference is
    of is unknown.
    """
    results: list[Comparison] = []
    for evaluation in saved.values():
        results += evaluation.results
    bars: Counter[tuple[str, str]] = Counter()
    for result in results:
        for key, bar in result.uncertainties.items():
            if bar.corrected is not None:
                bars[key, result.fake.name] += 1
    differences = []
    for evaluation in saved.values():
        for pair in evaluation.differences:
            if bars[pair.key, pair.first] == bars[pair.key, pair.second] == 1:
                differences.append(pair)
    first = next(iter(saved.values()))
    return replace(first, results=tuple(results), differences=tuple(differences))


def select_columns(saved: SavedResults, columns: Sequence[str]) -> dict[str, Evaluation]:
    """Return results with these values alone, in this order, by their titles, their names or those
    of their metrics.

    Raises:
        InputError: if no result has one of them.
    """
    values = _values_by_column(join_files(saved))
    known = dict[str, list[Kind]]()
    for kind, value in values.items():
        for name in (value.title, value.number.name, value.key, value.metric):
            known.setdefault(fold(name), []).append(kind)
    chosen = dict[Kind, None]()
    for column in columns:
        if fold(column) not in known:
            titles = ", ".join(value.title for value in values.values())
            raise unknown_name_error("column", column, known, titles)
        chosen |= dict.fromkeys(known[fold(column)])
    narrowed = {}
    for file, evaluation in saved.items():
        results = tuple(_select_values(result, chosen) for result in evaluation.results)
        narrowed[file] = replace(evaluation, results=results)
    return narrowed


def _select_values(result: Comparison, kinds: Iterable[Kind]) -> Comparison:
    """Return a result with those of its values that are in these columns, in their order."""
    known = _values_by_column(result)
    values = tuple(known[kind] for kind in kinds if kind in known)
    keys = {key for value in values for key in (value.key, value.spread)}
    metrics = {key: number for key, number in result.metrics.items() if key in keys}
    bars = {key: bar for key, bar in result.uncertainties.items() if key in keys}
    classes = result.classes
    if classes is not None:
        parts = []
        for part in classes.classes:
            numbers = {key: number for key, number in part.metrics.items() if key in keys}
            parts.append(replace(part, metrics=numbers))
        classes = replace(classes, classes=tuple(parts))
    return replace(result, metrics=metrics, known=values, uncertainties=bars, classes=classes)


def find_incomparable(saved: SavedResults) -> tuple[dict[Kind, Value], list[str]]:
    """Return the values that are not comparable between files, by their columns, and a sentence on
    why, if any are.

    Raises:
        InputError: if values in one column are of different protocols.
    """
    known = dict[Kind, tuple[str, Evaluation]]()
    doubted = dict[Kind, Value]()
    reasons = dict[str, str]()
    rows = [(file, row) for file, evaluation in saved.items() for row in split_by_fake(evaluation)]
    for file, row in rows:
        for value in row.values:
            first_file, first = known.setdefault(value.column, (file, row))
            if file == first_file:
                continue
            differing = find_obstacles(first, row, value)
            protocols = {
                place: pair
                for place, pair in differing.items()
                if place[0] == "protocol" and None not in pair
            }
            if protocols:
                raise InputError(
                    f"the values of {value.title} in {first_file} and {file} are not comparable "
                    f"({'; '.join(difference_lines(protocols))}):",
                    "make a table of each",
                )
            for line in difference_lines(differing):
                reasons.setdefault(line, f"{line} ({first_file} -> {file})")
                doubted[value.column] = value
    if not doubted:
        return {}, []
    where = ""
    if len(doubted) < len(known):
        titles = ", ".join(value.short_title for value in doubted.values())
        where = f" for {titles}"
    sentence = (
        f"The rows are not all comparable, so none is marked as best{where}: "
        f"{'; '.join(reasons.values())}."
    )
    return doubted, [sentence]


# --- formats --------------------------------------------------------------------------------------


def format_lines(form: str, saved: SavedResults) -> list[str]:
    """Return evaluations as ``table``, ``csv``, ``markdown`` or ``latex``, or one as ``lines`` or
    ``json``, in lines.

    Those of several files, the keys of ``saved``, are one table, or refused by `find_incomparable`.
    """
    if form in ("json", "lines"):
        (evaluation,) = saved.values()
        if form == "json":
            return [dumps(evaluation.to_dict())]
        return [*map(escape_text, result_lines(evaluation))]
    doubts = find_incomparable(saved)
    if form == "csv":
        return _csv_lines(saved)
    written = {"table": _text_lines, "markdown": _markdown_lines, "latex": _latex_lines}[form]
    lines = written(_make_table(saved, *doubts))
    for table in _class_tables(saved):
        lines += ["", *written(table)]
    return lines


def _text_lines(table: Table) -> list[str]:
    """Return the table for a terminal, with a mark behind the best values."""
    aligned = list[list[str]]()
    legend = []
    for column in table.columns:
        cells = [escape_text(text) for text in (column.heading, *column.values)]
        if column.best:
            legend = ["* best of its column"]
            for row, cell in enumerate(cells):
                cells[row] = f"{cell}*" if row - 1 in column.best else f"{cell} "
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if aligned else cell.ljust(width) for cell in cells])
    rows = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    return [*map(escape_text, table.above), *rows, *legend, *map(escape_text, table.notes)]


def _paper_rows(table: Table, escape: Callable[[str], str], bold: str) -> list[tuple[str, ...]]:
    """Return heading and rows of a table for papers, whose best values are in ``bold``."""
    columns = []
    for column in table.columns:
        cells = [escape(column.heading + _ARROWS[column.better])]
        for row, text in enumerate(column.values):
            cell = escape(text)
            cells.append(bold.format(cell) if row in column.best else cell)
        columns.append(cells)
    return [*zip(*columns, strict=True)]


def _markdown_lines(table: Table) -> list[str]:
    """Return the table for GitHub and others."""
    heading, *rows = [f"| {' | '.join(row)} |" for row in _paper_rows(table, _markdown, "**{}**")]
    rule = f"| --- |{' ---: |' * (len(table.columns) - 1)}"
    lines = ["<!-- fidtool -->", _markdown(" ".join(table.caption)), "", heading, rule, *rows]
    notes = [f"- {_markdown(note)}" for note in (*table.notes, *table.alerts)]
    if notes:
        lines += ["", *notes]
    return lines


def _markdown(text: str) -> str:
    return _IN_MARKDOWN.sub(r"\\\1", escape_text(text))


def _latex_lines(table: Table) -> list[str]:
    """Return the table for a paper, in the style of booktabs."""
    rows = [f"    {' & '.join(row)} \\\\" for row in _paper_rows(table, _latex, r"\textbf{{{}}}")]
    return [
        r"% fidtool: needs \usepackage{booktabs}",
        *(f"% {escape_text(note)}" for note in (*table.notes, *table.alerts)),
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_latex(' '.join(table.caption))}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"    \toprule",
        rows[0],
        r"    \midrule",
        *rows[1:],
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def _latex(text: str) -> str:
    """Return text for LaTeX. A character without a glyph is replaced by its code, such as
    [U+1F600].
    """
    if text == "-":
        return "--"
    known = _NOT_IN_LATEX.sub(lambda match: f"[U+{ord(match[0]):04X}]", escape_text(text))
    escaped = re.sub(r"(?<![\w.)-])-(?=\d)", "$-$", known.translate(_LATEX))
    return re.sub("-(?=-)", "-{}", escaped)  # several hyphens would be a dash


def _csv_lines(saved: SavedResults) -> list[str]:
    """Return all numbers at full precision; headings are the keys of the JSON.

    If values of classes, or folders, were requested, each number has a row, see `Comparison.rows`.
    """
    grouped = {"per_class", "per_folder"}
    if any(grouped & evaluation.run.config.keys() for evaluation in saved.values()):
        return _csv_text([*_tidy_rows(saved)])
    rows = []
    for file, evaluation in saved.items():
        for result in evaluation.results:
            row = {"real": escape_text(result.real.name), "fake": escape_text(result.fake.name)}
            if file:
                row["file"] = escape_text(file)
            rows.append(row | _flat_result(result))
    return _csv_text(rows)


def _tidy_rows(saved: SavedResults) -> Iterator[dict[str, Any]]:
    for file, evaluation in saved.items():
        for row in evaluation.rows:
            names = {"set": escape_text(row["set"]), "class": escape_text(row["class"])}
            place = {"file": escape_text(file)} if file else {}
            yield row | names | place


def _flat_result(result: Comparison) -> dict[str, Any]:
    """Return what a result has, by the keys that lead there in the JSON, joined by points."""
    content: dict[str, Any] = {
        "uncertainties": {
            key: {"corrected": to_json_value(bar.corrected)}
            for key, bar in result.uncertainties.items()
        }
    }
    if result.heldout is not None:
        content["heldout"] = to_json_value(result.heldout) | {
            "name": escape_text(result.heldout.name)
        }
    counts = {"count.real": result.real.count, "count.fake": result.fake.count}
    return {**counts, **result.metrics, **_flatten(content)}


def _flatten(content: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the numbers and texts in a JSON object by the keys that lead there, but null."""
    leaves = dict[str, Any]()
    for key, value in content.items():
        if isinstance(value, Mapping):
            leaves |= _flatten(value, f"{place}{key}.")
        elif value is not None:
            leaves[f"{place}{key}"] = value
    return leaves


def image_lines(evaluation: Evaluation) -> list[str]:
    """Return the values of single images as the lines of a CSV table, by the path of the image of
    FAKE.
    """
    rows = []
    for result in evaluation.results:
        images = result.of_images
        if images is None:
            continue
        for place in sorted(range(len(images.files)), key=images.files.__getitem__):
            row = {"real": redact(images.partners[place])} if images.partners else {}
            row["fake"] = redact(images.files[place])
            numbers = {key: float(values[place]) for key, values in images.values.items()}
            rows.append(row | numbers)
    return _csv_text(rows)


def _csv_text(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with the keys of all rows as its header, in lines.

    Spreadsheets compute a cell that begins like a formula: such a path has its folder before it.
    """
    buffer = io.StringIO()
    keys = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(buffer, keys, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {
            key: f"./{cell}"
            for key, cell in row.items()
            if isinstance(cell, str) and cell.startswith(_FORMULA)
        }
        writer.writerow({**row, **texts})
    return buffer.getvalue().split("\n")[:-1]
