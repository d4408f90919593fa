"""Tables for programs and papers, read back: CSV, Markdown, LaTeX; and several results in one
table.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from fidtool.errors import InputError, ResultWarning
from fidtool.metrics.metric import Number
from fidtool.names import escape_text
from fidtool.report.tables import find_incomparable, format_lines, select_columns
from fidtool.result.evaluation import Evaluation, SetResult
from fidtool.result.explanations import Classes, ClassResult, Difference, Interval, Uncertainty
from fidtool.result.values import FeatureSource, Value
from support.report_samples import DINO, KNOWN, bare, known_of

NAMES = [
    "plain",
    "a|b",
    "x_y%z",
    "new\nline",
    "bad\udcff",
    "smile😀",
    "back\\slash^~",
    "#{$}&<b>",
    "*star*`code`",
    "[link](x)",
    "真实",
    "a--b---c",
    '<script>"x"',
    "$x$ $y$",
    "é-ü",
    "https://me:secret@host/x.zip",
    "~tilde~~",
    "_under_",
    "&amp;",
    "\\\\|\\|",
]


def evaluation_of(names: Sequence[str]) -> Evaluation:
    """Return an evaluation with several metrics, and error bars of every second FAKE. The first is
    the best.
    """
    plain, results = bare(*names), []
    for place, result in enumerate(plain.results):
        metrics = {
            "fid": 10.123456789 + place,
            "kid": -0.0001 + place / 1000,
            "kid_std": 0.00123,
            "precision": 0.5,
        }
        bar = Interval(9.5 + place, 0.0123, 9.4 + place, 9.6 + place) if place % 2 == 0 else None
        uncertainty = Uncertainty(None, bar, "", ())
        results.append(replace(result, metrics=metrics, uncertainties={"fid": uncertainty}))
    verdict = (
        Difference(names[0], names[2], Interval(-2.0, 0.1, -2.2, -1.8)) if len(names) > 2 else None
    )
    return replace(plain, results=tuple(results), differences=(verdict,) if verdict else ())


@pytest.fixture(params=[1, 3, 20], ids=["one set", "three sets", "twenty sets"])
def evaluation(request: pytest.FixtureRequest) -> Evaluation:
    return evaluation_of(NAMES[: request.param])


def visible(evaluation: Evaluation) -> list[str]:
    """Return the names of FAKEs as text: legible, without the address of a server if all share
    it.
    """
    return [escape_text(result.fake.name) for result in evaluation.results]


def test_csv_has_all_digits(evaluation: Evaluation) -> None:
    rows = list(csv.DictReader(format_lines("csv", {"": evaluation})))
    assert [row["fake"] for row in rows] == visible(evaluation)
    for row, result in zip(rows, evaluation.results, strict=True):
        assert {key: float(row[key]) for key in result.metrics} == result.metrics
        assert (row["real"], row["count.real"], row["count.fake"]) == ("real", "100", "100")
        ends = [
            row[f"uncertainties.fid.corrected.{part}"] for part in ("value", "error", "low", "high")
        ]
        bar = result.corrected
        assert ends == (
            [""] * 4
            if bar is None
            else [repr(end) for end in (bar.value, bar.error, bar.low, bar.high)]
        )
    assert "secret" not in str(rows)


def test_no_cell_is_a_formula() -> None:
    """A spreadsheet would compute it. The path is that of the same folder."""
    names = ["=cmd()", "@a", "-b", "+c", "d=1"]
    rows = csv.DictReader(
        format_lines("csv", {"=x.json": replace(evaluation_of(names), differences=())})
    )
    assert [(row["fake"], row["file"]) for row in rows] == [
        (name, "./=x.json") for name in ("./=cmd()", "./@a", "./-b", "./+c", "d=1")
    ]


@pytest.mark.parametrize("setting", ["per_class", "per_folder"])
def test_csv_of_classes_has_a_row_for_each_number(setting: str) -> None:
    plain = evaluation_of(["=a", "b"])
    bar = Interval(2.5, 0.5, 1.5, 3.5)
    parts = (ClassResult("1", 9, 8, {"fid": 3.0, "kid": 0.1}, bar), ClassResult("02", 9, 0))
    classes = Classes("class", parts, {"fid": 3.0}, {})
    results = tuple(replace(result, classes=classes) for result in plain.results)
    named = replace(plain, results=results, run=replace(plain.run, config={setting: True}))
    rows = [*csv.DictReader(format_lines("csv", {"x.json": named}))]
    assert [*rows[0]] == ["set", "class", "metric", "value", "file"]
    assert {row["set"] for row in rows} == {"./=a", "b"}
    assert {row["file"] for row in rows} == {"x.json"}
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["set"] == "./=a":
            found.setdefault(row["class"], {})[row["metric"]] = row["value"]
    bars = {f"uncertainties.fid.corrected.{end}": number for end, number in asdict(bar).items()}
    assert {
        name: {key: float(text) for key, text in row.items()} for name, row in found.items()
    } == {
        "(all)": {
            "count.real": 100,
            "count.fake": 100,
            **results[0].metrics,
            **{
                f"uncertainties.fid.corrected.{end}": number
                for end, number in asdict(results[0].corrected).items()
            },
        },
        "1": {"count.real": 9, "count.fake": 8, "fid": 3.0, "kid": 0.1, **bars},
        "02": {"count.real": 9, "count.fake": 0},
    }
    narrowed = csv.DictReader(format_lines("csv", select_columns({"": named}, ["fid"])))
    kept = {row["metric"] for row in narrowed} - {*bars, "count.real", "count.fake"}
    assert kept == {"fid"}


def cells_of(markdown: str) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """Return the texts of a Markdown table as a renderer shows them, and which cells are bold."""
    cells: list[list[str]] = []
    bold = set()
    for before, token in itertools.pairwise(
        MarkdownIt("commonmark").enable("table").parse(markdown)
    ):
        if before.type == "tr_open":
            cells.append([])
        if before.type in ("th_open", "td_open"):
            children = token.children or []
            assert {each.type for each in children} <= {
                "text",
                "text_special",
                "strong_open",
                "strong_close",
            }, token
            if any(each.type == "strong_open" for each in children):
                bold.add((len(cells) - 1, len(cells[-1])))
            cells[-1].append("".join(each.content for each in children))
    return cells, bold


def test_markdown_is_rendered(evaluation: Evaluation) -> None:
    text = "\n".join(format_lines("markdown", {"": evaluation}))
    cells, bold = cells_of(text)
    heading, *rows = cells
    assert heading == [
        *("FAKE", "FID ↓", "KID ± s.d. ↓", "Precision ↑"),
        *("bias-corrected FID ± s.e. ↓", "95 % interval"),
    ]
    assert [row[0] for row in rows] == visible(evaluation)
    assert {len(row) for row in rows} == {6}
    assert rows[0][1:] == ["10.123", "-0.0001 ± 0.0012", "0.50", "9.500 ± 0.012", "9.400 to 9.600"]
    assert bold == ({(1, 1), (1, 2), (1, 4)} if len(rows) > 1 else set())
    if len(rows) > 1:
        assert rows[1][4:] == ["-", "-"]
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    assert (
        "Features: Inception, 2048 dimensions, protocol pytorch-fid. REAL: real, 100 images."
        in html
    )
    assert ("plain is better than x_y%z" in html) == (len(rows) > 2)


SPECIAL = {
    r"\textbackslash{}": "\\",
    r"\textasciicircum{}": "^",
    r"\textasciitilde{}": "~",
    r"\textbar{}": "|",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    "{[}": "[",
    "{*}": "*",
    r"$\pm$": "±",
    r"$\downarrow$": "↓",
    r"$\uparrow$": "↑",
    "$-$": "-",
    "-{}": "-",
    **{f"\\{each}": each for each in "_%&#${}"},
}


def read_latex(cell: str) -> str:
    """Return the text of a cell. What TeX would interpret fails."""
    parts = re.split(
        "(" + "|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))) + ")", cell
    )
    assert not re.search(r"[\\{}$&#^_~%]", "".join(parts[::2])), cell
    assert "--" not in cell, "TeX makes a dash of hyphens"
    return "".join(SPECIAL.get(part, part) for part in parts)


def test_latex_is_escaped(evaluation: Evaluation) -> None:
    lines = format_lines("latex", {"": evaluation})
    rows = [line.strip().removesuffix(r" \\") for line in lines if line.endswith(r" \\")]
    cells = [re.split(r"(?<!\\) & ", row) for row in rows]
    assert {len(row) for row in cells} == {6}
    assert cells[0][1] == r"FID $\downarrow$"
    names = [
        re.sub("[^ -~é-ü]", lambda found: f"[U+{ord(found[0]):04X}]", name)
        for name in visible(evaluation)
    ]
    assert [read_latex(row[0]) for row in cells[1:]] == names
    best = r"\textbf{10.123}" if len(cells) > 2 else "10.123"
    assert cells[1][1:3] == [
        best,
        (r"\textbf{%s}" if len(cells) > 2 else "%s") % r"$-$0.0001 $\pm$ 0.0012",
    ]
    if len(cells) > 2:
        assert cells[2][4:] == ["--", "--"]
    (caption,) = (line for line in lines if r"\caption" in line)
    assert "Inception, 2048 dimensions, protocol pytorch-fid. REAL: real, 100 images." in caption


def test_latex_compiles(tmp_path: Path) -> None:
    """Also with the default encoding of fonts, in which few characters have a glyph."""
    if not (program := shutil.which("pdflatex")):
        pytest.skip("needs pdflatex")
    parts = []
    for number in (1, 3, 20):
        parts += format_lines("latex", {"": evaluation_of(NAMES[:number])})
    letters = "".join(map(chr, [*range(0x20, 0x7F), *range(0xA0, 0x180), 0x2026, 0x221E, 0xD7]))
    named = [letters[start : start + 20] for start in range(0, len(letters), 20)]
    parts += format_lines("latex", {"": evaluation_of(named)})
    head = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}"]
    (tmp_path / "paper.tex").write_text("\n".join([*head, *parts, r"\end{document}", ""]), "utf-8")
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000
    assert "Missing character" not in (tmp_path / "paper.log").read_text("utf-8", "replace")


def test_lines_and_json_are_those_of_the_run() -> None:
    evaluation = evaluation_of(NAMES[:1])
    assert format_lines("lines", {"": evaluation})[0] == "FID: 10.1235"
    (text,) = format_lines("json", {"": evaluation})
    assert json.loads(text) == evaluation.to_dict()


def test_alerts_of_high_severity_are_in_tables_for_papers() -> None:
    evaluation = evaluation_of(NAMES[:1])
    alerts = (ResultWarning("plain", "it is_noise", "high"), ResultWarning("plain", "small"))
    evaluation = replace(evaluation, results=(replace(evaluation.results[0], warnings=alerts),))
    assert format_lines("markdown", {"": evaluation})[-1] == r"- warning: plain: it is\_noise"
    assert "% warning: plain: it is_noise" in format_lines("latex", {"": evaluation})
    assert "small" not in "".join(format_lines("markdown", {"": evaluation}))


# --- several results ------------------------------------------------------------------------------


def text_of(saved: dict[str, Evaluation]) -> list[str]:
    return format_lines("table", saved)


def doubted_in(saved: dict[str, Evaluation]) -> list[str]:
    return [value.title for value in find_incomparable(saved)[0].values()]


def test_what_cannot_be_marked_has_no_note_about_marks() -> None:
    """A value of which neither more nor less is better."""
    plain = bare("fake", "real")
    (fid,) = known_of(FeatureSource(), "fid")
    known = (replace(fid, number=replace(fid.number, better="")),)
    shown = replace(plain, results=tuple(replace(each, known=known) for each in plain.results))
    assert "never marked" in "".join(text_of({"": plain}))
    assert "never marked" not in "".join(text_of({"": shown}))


def test_results_of_several_files_are_one_table() -> None:
    saved = {
        f"runs/{name}.json": replace(evaluation_of([name]), differences=())
        for name in ("a", "b", "c")
    }
    assert find_incomparable(saved) == ({}, [])
    heading, *rows = text_of(saved)
    assert heading.split()[:2] == ["FAKE", "FID"]
    assert [row.split()[0] for row in rows] == ["a", "b", "c"]
    found = csv.DictReader(format_lines("csv", saved))
    assert [(row["file"], row["fake"]) for row in found] == [(file, file[5]) for file in saved]


def test_the_same_fake_in_several_files_is_named_with_its_file() -> None:
    saved = {
        f"runs/{name}.json": evaluation_of(["out/fake", "out/other"])
        for name in ("monday", "tuesday")
    }
    names = [line.split("  ")[0] for line in text_of(saved)[1:5]]
    assert names == [
        f"{fake} ({day}.json)" for day in ("monday", "tuesday") for fake in ("fake", "other")
    ]


def test_rows_that_are_not_comparable_are_said_to_be() -> None:
    first, second = evaluation_of(["a"]), evaluation_of(["b"])
    (result,) = second.results
    other = replace(second, results=(replace(result, real=SetResult("photos/", 50)),))
    saved = {"1.json": first, "2.json": other}
    doubts = (
        "REAL.name: real -> photos (1.json -> 2.json); REAL.count: 100 -> 50 (1.json -> 2.json)"
    )
    said = f"The rows are not all comparable, so none is marked as best: {doubts}."
    assert (doubted_in(saved), find_incomparable(saved)[1]) == (["FID", "KID", "Precision"], [said])
    lines = text_of(saved)
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["FAKE", "REAL"],
        ["a", "real,"],
        ["b", "photos,"],
    ]
    assert "*" not in "".join(lines)
    assert lines[0] == said
    for form in ("markdown", "latex"):
        assert said.partition(" ->")[0] in "".join(format_lines(form, saved))
    unlike = {
        "2.json": replace(
            second, results=(replace(result, fake=replace(result.fake, precision="bf16")),)
        ),
        "3.json": replace(evaluation_of(["c"]), definitions={"features": None}),
    }
    _, (said,) = find_incomparable({"1.json": first, **unlike})
    assert ": FAKE.precision: - -> bf16 (1.json -> 2.json); protocol.features: extractor" in said
    assert said.count(".json)") == 2


def test_other_settings_of_a_metric_leave_only_its_columns_unmarked() -> None:
    first, second = evaluation_of(["a"]), evaluation_of(["b", "c"])
    saved = {
        "1.json": replace(first, settings={"kid": {"subset_size": 100}, "prdc": {"nearest_k": 3}}),
        "2.json": replace(second, settings={"kid": {"subset_size": 50}, "prdc": {"nearest_k": 3}}),
    }
    said, *rows = text_of(saved)[:4]
    assert (doubted_in(saved), find_incomparable(saved)[1]) == (["KID"], [said])
    assert said == (
        "The rows are not all comparable, so none is marked as best for KID: "
        "settings.kid.subset_size: 100 -> 50 (1.json -> 2.json)."
    )
    assert [row.split()[1] for row in rows] == ["FID", "10.123*", "10.123*"]
    assert [row.split()[4] for row in rows[1:]] == ["0.0012", "0.0012"]
    changed = {
        **saved,
        "2.json": replace(saved["2.json"], settings={"kid": {"subset_size": 100}, "prdc": {}}),
    }
    assert doubted_in(changed) == ["Precision"]


def test_settings_of_a_custom_metric_are_about_custom_values() -> None:
    known = (*KNOWN, Value("custom", Number("mine", "Mine", "lower", "")))
    saved = {}
    for seed, name in enumerate("ab"):
        (result,) = evaluation_of([name]).results
        own = replace(result, known=known, metrics={**result.metrics, "mine": 1.0 + seed})
        settings = {"custom": {"seed": seed}, "kid": {"seed": 0}}
        saved[f"{name}.json"] = replace(evaluation_of([name]), results=(own,), settings=settings)
    assert doubted_in(saved) == ["Mine"]


def test_values_of_two_metrics_with_one_title_have_a_column_each() -> None:
    (result,) = evaluation_of(["a"]).results
    values = [
        Value(name, Number(name, "Mine", "lower", "", f"{name}_of", spread_kind="s.e."))
        for name in "xy"
    ]
    own = replace(result, known=tuple(values), metrics={"x": 1.0, "x_of": 0.25, "y": 2.0})
    saved = {"": replace(evaluation_of(["a"]), results=(own,))}
    heading, row = text_of(saved)[:2]
    assert re.split(" {2,}", heading)[1:3] == ["Mine ± s.e.", "Mine"]
    assert re.split(" {2,}", row)[1:3] == ["1.00 ± 0.25", "2.0000"]
    assert text_of(select_columns(saved, ["y"]))[1].split() == ["a", "2.0000"]


def test_values_of_different_protocols_are_refused_and_those_of_other_networks_are_columns() -> (
    None
):
    first, second = evaluation_of(["a"]), evaluation_of(["b"])
    definition = first.definitions["features"]
    assert definition is not None
    clean = replace(second, definitions={"features": replace(definition, resize="bicubic")})
    with pytest.raises(
        InputError,
        match=r"of FID in 1.json and 2.json are not comparable \(protocol.features.resize: bi",
    ):
        text_of({"1.json": first, "2.json": clean})
    with pytest.raises(InputError, match="make a table of each"):
        format_lines("csv", {"1.json": first, "2.json": clean})
    (result,) = second.results
    other = replace(
        clean,
        results=(
            replace(result, known=known_of(DINO), metrics={"fd_dinov2": 3.5}, uncertainties={}),
        ),
    )
    heading, one, two = text_of({"1.json": first, "2.json": other})[:3]
    assert re.split(" {2,}", heading)[-1] == "95 % interval"
    assert "FD (dinov2)" in heading
    assert (one.split()[1], two.split()[1:]) == ("10.123", ["-", "-", "-", "3.50", "-", "-"])
    caption = format_lines("markdown", {"1.json": first, "2.json": other})[1]
    assert r"FID, KID, Precision: Inception, 2048 dimensions, protocol pytorch-fid." in caption
    assert "FD (dinov2): dinov2" in caption


def test_error_bars_of_two_networks_name_them() -> None:
    first, second = evaluation_of(["a"]), evaluation_of(["b"])
    (result,) = second.results
    other = replace(
        second,
        results=(
            replace(
                result,
                known=known_of(DINO),
                metrics={"fd_dinov2": 3.5},
                uncertainties={"fd_dinov2": result.uncertainties["fid"]},
            ),
        ),
    )
    heading, *_ = text_of({"1.json": first, "2.json": other})
    assert "bias-corrected FID ± s.e." in heading
    assert "bias-corrected FD (dinov2) ± s.e." in heading


def test_columns_are_chosen_by_title_or_metric_in_order() -> None:
    saved = {"": evaluation_of(["a", "b", "c"])}
    bars = ["bias-corrected FID ± s.e.", "95 % interval"]
    for columns, found in (
        (["prdc", "KID"], ["Precision", "KID ± s.d."]),
        (["kid", "fid"], ["KID ± s.d.", "FID", *bars]),
    ):
        shown = select_columns(saved, columns)
        heading, *lines = text_of(shown)
        assert re.split(" {2,}", heading) == ["FAKE", *found]
        assert any("is better than" in line for line in lines) == ("fid" in columns)
        keys = format_lines("csv", shown)[0].split(",")
        assert "kid_std" in keys
        assert ("fid" in keys) == ("uncertainties.fid.corrected.low" in keys) == ("fid" in columns)
    for name, problem in (
        ("kidd", "unknown column 'kidd'; did you mean kid"),
        ("sfid", "unknown column 'sfid'; did you mean fid? Choose from FID, KID, Precision"),
    ):
        with pytest.raises(InputError, match=problem.replace("?", r"\?")):
            select_columns(saved, [name])


def test_columns_of_two_networks() -> None:
    """A metric stands for its values of all networks, a title for one."""
    first, second = evaluation_of(["a"]), evaluation_of(["b"])
    (result,) = second.results
    other = replace(
        second,
        results=(
            replace(result, known=known_of(DINO), metrics={"fd_dinov2": 3.5}, uncertainties={}),
        ),
    )
    saved = {"1.json": first, "2.json": other}
    assert "FD (dinov2)" in text_of(select_columns(saved, ["fid"]))[0]
    heading, *rows = text_of(select_columns(saved, ["fd (dinov2)"]))
    assert "FID" not in heading
    assert [row.split() for row in rows[:2]] == [["a", "-"], ["b", "3.50"]]


def test_chosen_columns_are_once_in_the_table_of_classes() -> None:
    """Title, name and metric of a value can be the same but for their case."""
    evaluation = evaluation_of(["a"])
    classes = Classes("class", (ClassResult("cat", 9, 9, {"fid": 3.0}),), {"fid": 3.0}, {})
    evaluation = replace(evaluation, results=(replace(evaluation.results[0], classes=classes),))
    lines = text_of(select_columns({"": evaluation}, ["fid", "FID"]))
    assert [line.split() for line in lines if "REAL" in line.split()] == [
        ["class", "REAL", "FAKE", "FID"]
    ]
    assert sum(line.startswith("FID per class") for line in lines) == 1


def test_numbers_of_images_are_a_column_if_they_differ() -> None:
    evaluation = evaluation_of(["a", "b"])
    one, other = evaluation.results
    evaluation = replace(evaluation, results=(one, replace(other, fake=SetResult("b", 12345))))
    lines = text_of({"": evaluation})
    assert [line.split()[1] for line in lines[:3]] == ["images", "100", "12,345"]
