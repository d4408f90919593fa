"""The report and the plot as text and files. test_report_page tests the page in a browser."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fidtool.diagnose.duplicates import Duplicates
from fidtool.distances.jackknife import Interval
from fidtool.errors import InputError
from fidtool.images.lookup import ImageLookup
from fidtool.labels import Labels
from fidtool.report.charts import Chart, curve_chart, sweep_chart
from fidtool.report.files import check_shown, require_report_extra, write_plot
from fidtool.report.html import html_report
from fidtool.report.names import command_line, legible, numbers_of, short_names, shortened
from fidtool.report.overview import overview_of
from fidtool.report.sections import metric_value
from fidtool.report.sheets import (
    LONGEST_SIDE,
    MOST_COLUMNS,
    MOST_IMAGES,
    PAGE_BYTES,
    SHORTEST_SIDE,
    Thumbnail,
    ThumbnailSize,
    quota_for,
    sheets_of,
    thumbnail_of,
)
from fidtool.report.sweep import Sweep, SweepPoint, sweep_of, title_of
from fidtool.report.text import influence_lines
from fidtool.results import Comparison, Difference, Evaluation, Exhibit, HarmfulImage, SetResult, Uncertainty
from support.report_samples import COMMAND, METRICS, NASTY, bare, rich, write_image

pytest.importorskip("jinja2", reason="needs fidtool[report]")
pytest.importorskip("matplotlib", reason="needs fidtool[report]")


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element with this tag."""
        return [attributes for kind, attributes in self.elements if kind == tag]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Images of noise with hostile names, one of them not valid UTF-8, and a missing file."""
    folder = tmp_path_factory.mktemp("images")
    names = [NASTY.replace("/", "|") + ".png", os.fsdecode(b"no text \xff\xfe.png"), "plain.png", "\U0001f339猫.png"]
    return [*(write_image(folder, name, seed=seed) for seed, name in enumerate(names)), str(folder / "gone.png")]


def test_the_page_of_a_bare_result_has_no_empty_sections() -> None:
    page = Page(html_report(bare("some/fake"), [None]))
    assert page.text.count("12.3456") >= 2
    headings = [attributes["id"] for attributes in page.all("section")]
    assert headings == ["fake-metrics", "measured"]
    assert not page.all("img")
    assert not page.all("script")
    for setting in ("uncertainty=True", "influence=True", "diagnose=False"):
        assert setting in page.text, "the page explains how to get the rest"
    assert "fidtool compute real fake --report report.html" in page.text


def test_the_page_of_a_full_result_has_all_sections(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("run/step100", "run/step200"), files)
    page = Page(html_report(evaluation, exhibits))
    sections = {attributes["id"] for attributes in page.all("section")}
    parts = ["metrics", "curve", "sets", "findings", "copies", "shared", "harmful", "neighbours", "random", "skipped"]
    whole = {"chart", "warnings", "overview", "same-names", "real", "measured"}
    assert sections == whole | {"fake-1", "fake-2"} | {f"fake-{place}-{part}" for place in (1, 2) for part in parts}
    for words in (
        "Gate missed",
        "95 %: 10.85 to 11.85",
        "withheld: too few images",
        "0.0123 ±\u00a00.0010",
        "step100 is better than step200",
        "14.3456",
        "3 images look like noise",
        "20 images of this set are pixel-identical to images of REAL",
        "100 images for 2048 dimensions",
        "subsets" if evaluation.settings else "bilinear",
        evaluation.definitions["features"].fingerprint,  # type: ignore[union-attr]
        "And 50 more",
    ):
        assert words in page.text, words
    assert page.text.count("about every set") == 1, "once, not once per FAKE"


def test_names_are_escaped(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(f"sets/{NASTY}", os.fsdecode(b"sets/\xff"), real=NASTY), files)
    command = (*COMMAND, NASTY, os.fsdecode(b"\xff"))
    evaluation = replace(evaluation, run=replace(evaluation.run, warnings=(f"{NASTY}\x00\ud800",), command=command))
    html = html_report(evaluation, exhibits)
    html.encode("utf-8")
    page = Page(html)
    assert not page.all("script")
    assert not page.all("b")
    assert "<b>&\"quotes'<script>window.hacked=1</script>\\n" in page.text
    assert "\u202e" not in html
    assert "sets/\ufffd" in page.text
    assert r"$'\xff'" in page.text, "the command can be copied"
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_equal_input_gives_the_same_page(files: list[str], tmp_path: Path) -> None:
    evaluation, exhibits = rich(bare("a", "b"), files)
    assert html_report(evaluation, exhibits) == html_report(evaluation, exhibits)
    for name in ("one.png", "two.png"):
        write_plot(evaluation, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.slow  # draws 40 charts
def test_a_page_of_twenty_sets_of_noise_is_below_ten_megabytes(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(*(f"/a/long/path/to/the/run/step{number:06}" for number in range(20))), files[:4])
    html = html_report(evaluation, exhibits)
    shown = len(Page(html).all("img"))
    assert MOST_IMAGES / 2 < shown <= MOST_IMAGES
    assert len(html.encode()) < 10e6
    assert PAGE_BYTES * 4 / 3 < 7e6, "the limit of the images' size in the page, regardless of their contents"


# --- the overview ----------------------------------------------------------------------------------------------------


def valued(evaluation: Evaluation, *metrics: dict[str, float]) -> Evaluation:
    """Return the evaluation with these metrics, one dictionary per FAKE."""
    pairs = zip(evaluation.results, metrics, strict=True)
    return replace(evaluation, results=tuple(replace(result, metrics=each, diagnosis=None) for result, each in pairs))


def with_kid(value: float, spread: float) -> Comparison:
    return valued(bare("fake"), {"kid": value, "kid_std": spread}).results[0]


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (0.319512, 0.001234, "0.3195 ±\u00a00.0012"),
        (0.000812345, 0.0000731, "0.000812 ±\u00a00.000073"),
        (0.5, 0.0000004, "0.500000 ±\u00a00.000000"),  # no more digits than usual for KID
        (238.912, 9.61, "238.9 ±\u00a09.6"),
        (708.7, 17.3, "709 ±\u00a017"),
        (0.319512, 0.0, "0.319512 ±\u00a00.000000"),
    ],
)
def test_a_value_has_the_digits_that_its_spread_supports(value: float, spread: float, text: str) -> None:
    found = metric_value("kid", with_kid(value, spread))
    assert found.text == text
    assert found.exact == f"{value!r} ± {spread!r}"


def test_a_value_without_a_spread_has_its_usual_digits() -> None:
    assert metric_value("fid", bare("fake", fid=12.345678).results[0]).text == "12.3457"


@pytest.mark.parametrize("fakes", [("one",), ("one", "two")])
def test_all_digits_are_available(fakes: tuple[str, ...]) -> None:
    """On hover, and in a block that can be opened with the keyboard."""
    found = {"fid": 12.345678901, "kid": 0.3195123456, "kid_std": 0.0012345678}
    html = html_report(valued(bare(*fakes), *[found] * len(fakes)), [None] * len(fakes))
    for exact in ("12.345678901", "0.3195123456 ± 0.0012345678"):
        assert f'title="{exact}"' in html
        block = html[html.index("<summary>All digits</summary>") :].partition("</details>")[0]
        assert f"<td>{exact}</td>" in block
    assert "0.319512 " not in Page(html).text


def best(evaluation: Evaluation, name: str) -> set[int]:
    """Return the rows whose value of the metric is marked as the best."""
    place = list(evaluation.results[0].titles).index(name)
    return {row for row, cells in enumerate(overview_of(evaluation).rows) if cells[place].best}


def test_the_best_value_is_marked_in_each_metrics_direction() -> None:
    low, high = dict.fromkeys(METRICS, 1.0) | {"fid": 1.0}, dict.fromkeys(METRICS, 2.0) | {"fid": 2.0}
    evaluation = valued(bare("low", "high"), low, high)
    labels = evaluation.labels.numbers
    for name in evaluation.results[0].titles:
        assert best(evaluation, name) == {0 if labels[name].better == "lower" else 1}, name
    html = html_report(evaluation, [None, None])
    rows = re.findall(r"<tr>\s*<td>\d</td>.*?</tr>", html, re.DOTALL)
    count = {"lower": 0, "higher": 0}
    for name in evaluation.results[0].titles:
        count[labels[name].better] += 1
    marks = '<span class="star"><span aria-hidden="true">★ </span>best</span>'
    assert [row.count(marks) for row in rows] == [count["lower"], count["higher"]], (
        "the mark includes text, not only colour"
    )
    for better, times in count.items():
        assert html.count(f'<span class="unseen">, {better} is better</span>') == times


def test_equal_values_are_both_the_best() -> None:
    evaluation = valued(bare("a", "b", "c"), {"fid": 2.0}, {"fid": 1.0}, {"fid": 1.0})
    assert best(evaluation, "fid") == {1, 2}
    assert best(valued(bare("a", "b"), {"fid": 1.0}, {"fid": 1.0}), "fid") == set(), "all values are equal"


def test_real_itself_is_never_the_best(files: list[str]) -> None:
    """Nor is a set that contains many of REAL's images, because its values are meaningless."""
    evaluation = valued(bare("real", "b", "c"), {"fid": 0.0}, {"fid": 2.0}, {"fid": 1.0})
    assert best(evaluation, "fid") == {2}
    assert [[cell.best for cell in row] for row in overview_of(evaluation).rows] == [[False], [False], [True]]
    assert best(valued(bare("real", "b"), {"fid": 0.0}, {"fid": 1.0}), "fid") == set(), "only one FAKE remains"
    copied, exhibits = rich(bare("a", "b", "c"), files)
    assert 'class="best"' not in html_report(copied, exhibits)
    own = tuple(replace(result, diagnosis=None) for result in copied.results[1:])
    page = html_report(replace(copied, results=(copied.results[0], *own)), exhibits)
    rows = re.findall(r"<tr>\s*<td>\d</td>.*?</tr>", page, re.DOTALL)
    assert ['class="best"' in row for row in rows] == [False, True, False]


def test_the_best_bias_corrected_distance_is_marked(files: list[str]) -> None:
    evaluation, _ = rich(bare("a", "b", "c"), files)
    own = tuple(replace(result, diagnosis=None) for result in evaluation.results)
    found = overview_of(replace(evaluation, results=own))
    (place,) = (place for place, column in enumerate(found.columns) if column.title == "Bias-corrected FID")
    assert [row[place].best for row in found.rows] == [True, False, False]
    assert found.rows[1][place].value.value == "–", "withheld"


def lead(evaluation: Evaluation) -> str:
    """Return the text above the table of the overview."""
    html = html_report(evaluation, [None] * len(evaluation.results))
    return section(html, "overview").partition("All metrics of each set")[0]


def test_the_overview_says_which_sets_are_never_marked_as_best() -> None:
    three = bare("real", "b", "c")
    assert "Sets that contain images of REAL are never marked as best." in lead(three)
    one = "No set is marked as best: sets that contain images of REAL are excluded, and only one other set remains."
    assert one in lead(bare("real", "b"))
    assert "excluded, and no other set remains." in lead(bare("real", "real"))
    assert "images of REAL" not in lead(bare("a", "b"))


def test_the_overview_mentions_ties_only_if_sets_are_marked_for_them(files: list[str]) -> None:
    evaluation, _ = rich(bare("a", "b", "c"), files)
    own = tuple(replace(result, diagnosis=None) for result in evaluation.results)
    evaluation = replace(evaluation, results=own)
    text = "In the columns FID and bias-corrected FID, sets that cannot be distinguished from the best one are marked"
    assert "cannot be distinguished" not in lead(evaluation), "all differences are significant"
    unclear = Difference("a", "b", Interval(-0.5, 1.0, -2.5, 1.5))
    tied = replace(evaluation, differences=(unclear, *evaluation.differences[1:]))
    assert text in lead(tied)
    excluded = replace(tied, results=(replace(own[0], real=SetResult("a", 100)), *own[1:]))
    assert text not in lead(excluded), "the tied set is not marked"


def test_features_that_all_metrics_share_are_named_once() -> None:
    values = {"fid_64": 1.0, "kid_64": 0.5, "kid_std_64": 0.1, "precision_64": 0.5}
    evaluation = valued(bare("a", "b"), values, values)
    results = tuple(replace(result, labels=Labels(dims=64)) for result in evaluation.results)
    found = overview_of(replace(evaluation, results=results))
    assert [column.qualifier for column in found.columns] == ["64 dimensions", "", ""]
    assert found.remarks == ("Features of all values: 64 dimensions.",)
    mixed = tuple(replace(result, metrics={**values, "cmmd": 1.0}) for result in results)
    found = overview_of(replace(evaluation, results=mixed))
    assert [column.qualifier for column in found.columns] == ["64 dimensions"] * 3 + [""]
    assert found.remarks == ()


# --- charts ----------------------------------------------------------------------------------------------------------

NAMED = "FD (my_other_network.py:network)"


def drawn(scale: float, title: str, corrected: Interval | None) -> list[Chart]:
    """Return a curve, and the distances of three FAKEs for a narrow and for a wide window."""
    curve = ((12_500, 4.1 * scale), (25_000, 2 * scale), (37_500, 1.5 * scale), (50_000, 1.2 * scale))
    charts = [curve_chart(Uncertainty(None, corrected, "", curve), title, "name", "key")]
    sweep = Sweep(tuple(SweepPoint(x, f"set{x}", scale * x, corrected) for x in (1, 2, 3)), "", title)
    charts += [sweep_chart(sweep, "title", "key", wide=wide) for wide in (False, True)]
    return [chart for chart in charts if chart is not None]


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 1e5])
@pytest.mark.parametrize("title", ["FID (64 dimensions)", NAMED])
def test_the_legend_leaves_the_plot_its_width(scale: float, title: str) -> None:
    for chart in drawn(scale, title, Interval(-scale, scale / 2, -2 * scale, scale / 2)):
        lines = re.findall(r'd="M ([\d.]+) [\d.]+ L ([\d.]+) [\d.]+" [^>]*stroke: var\(--line\)', chart.svg)
        assert max(float(end) - float(start) for start, end in lines) > 0.7 * chart.width
        assert re.findall(r">(F[^<]*|bias[^<]*)</text>", chart.svg) == [
            title.partition(" ")[0],
            "bias-corrected, 95 % interval",
        ]


def test_a_single_series_has_no_legend() -> None:
    for chart in drawn(1.0, NAMED, None):
        assert not re.search(">FD[^<]*</text>", chart.svg)


def marker_positions(evaluation: Evaluation, folder: Path) -> tuple[set[float], set[float]]:
    """Return the horizontal positions of the distances and of the bias-corrected distances, without the legend."""
    write_plot(evaluation, folder / "plot.svg")
    plot = (folder / "plot.svg").read_text().partition('<g id="legend')[0]
    uses = re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+" style="fill: (#\w+); stroke: #', plot)
    first, second = ({float(x) for x, colour in uses if colour == wanted} for wanted in ("#1f5fbf", "#b3530a"))
    return first, second


@pytest.mark.parametrize(("fakes", "beside"), [(("good", "other", "bad"), True), (("step1", "step2", "step4"), False)])
def test_error_bars_are_beside_points_that_are_not_joined(
    fakes: tuple[str, ...], beside: bool, files: list[str], tmp_path: Path
) -> None:
    distances, corrected = marker_positions(rich(bare(*fakes), files)[0], tmp_path)
    assert (len(distances), len(corrected)) == (3, 2), "the second FAKE has no interval"
    nearest = [min(abs(x - other) for other in distances) for x in corrected]
    if beside:
        assert all(6 < gap < 30 for gap in nearest), "apart, but nearer than to the next FAKE"
    else:
        assert max(nearest) < 0.1


# --- all sets --------------------------------------------------------------------------------------------------------


def warned(number: int, fakes: tuple[str, ...] = ("a", "b")) -> str:
    evaluation = bare(*fakes)
    texts = tuple(f"warning number {each}" for each in range(number))
    return html_report(replace(evaluation, run=replace(evaluation.run, warnings=texts)), [None] * len(fakes))


def test_the_chart_precedes_the_warnings_and_these_the_overview() -> None:
    html = warned(2)
    assert html.index('id="chart"') < html.index('id="warnings"') < html.index('id="overview"')
    contents = html[html.index("<nav") :]
    assert contents.index("#chart") < contents.index("#warnings") < contents.index("#overview")


def test_the_curve_of_a_single_set_precedes_the_warnings(files: list[str]) -> None:
    html = html_report(*rich(bare("a"), files))
    for text, kind in ((html.partition("</nav>")[2], 'id="{}"'), (html.partition("</nav>")[0], 'href="#{}"')):
        order = [text.index(kind.format(part)) for part in ("fake-curve", "warnings", "fake-metrics", "fake-sets")]
        assert order == sorted(order)
        assert text.count(kind.format("fake-curve")) == 1


@pytest.mark.parametrize("fakes", [("a",), ("a", "b")])
@pytest.mark.parametrize(("number", "folded"), [(1, False), (3, False), (4, True), (30, True)])
def test_more_than_three_warnings_are_collapsed(number: int, folded: bool, fakes: tuple[str, ...]) -> None:
    html = warned(number, fakes)
    section = html[html.index('id="warnings"') :].partition("</section>")[0]
    assert section.count("<li>warning number") == number
    assert ("<details" in section) == folded
    assert "<details open" not in section
    assert f">{number} warning{'s' * (number > 1)}</h2>" in section
    if folded:
        assert "<li>" not in section.partition("</summary>")[0]


def test_a_missed_gate_is_in_the_header(files: list[str]) -> None:
    html = html_report(*rich(bare("a", "b"), files))
    assert "Gate missed:" in html.partition("</header>")[0]


def test_the_title_of_the_charts_describes_them(tmp_path: Path) -> None:
    evaluation = bare("runs/step1", "runs/step2", real="data/real")
    found = title_of(evaluation)
    assert found.text == "FID of 2 sets against data/real (100 images)"
    assert found.details == "Inception, 2048 dimensions, protocol pytorch-fid; 100 images per set"
    first, second = evaluation.results
    uneven = replace(evaluation, results=(replace(first, fake=SetResult(first.fake.name, 5000)), second))
    assert title_of(uneven).details.endswith("; 100 to 5,000 images per set")
    unknown = replace(
        evaluation,
        results=(replace(first, real=SetResult("data/real", None), fake=SetResult(first.fake.name, None)), second),
    )
    assert title_of(unknown).text.endswith("data/real (unknown number of images)")
    assert title_of(unknown).details.endswith("; unknown number of images per set")
    assert title_of(bare("runs/fake")).text == "FID of runs/fake (100 images) against real (100 images)"
    write_plot(evaluation, tmp_path / "plot.svg")
    plot, html = (tmp_path / "plot.svg").read_text(), html_report(evaluation, [None, None])
    for line in (found.text, found.details):
        assert f">{line}</text>" in plot
        assert re.search(rf"<(h2|p class=\"lead\")>{re.escape(line)}</", html)
    assert html.count(f">{found.text}</title>") == 2, "in the wide and in the narrow chart"


# --- images ----------------------------------------------------------------------------------------------------------


def section(html: str, key: str) -> str:
    """Return the text of a section of the page."""
    return " ".join(Page(html[html.index(f'id="{key}"') :].partition("</section>")[0]).text.split())


@pytest.mark.parametrize("fakes", [("a",), ("a", "b")])
def test_real_has_its_own_sheet(fakes: tuple[str, ...], files: list[str]) -> None:
    html = html_report(*rich(bare(*fakes), files))
    assert html.count('id="real"') == 1
    part = html[html.index('id="real"') :].partition("</section>")[0]
    images = Page(part).all("img")
    assert 30 < len(images) <= 48
    assert all((image["alt"] or "").startswith("Real image ") for image in images)
    assert 'href="#real"' in html.partition("</nav>")[0]


def named(*names: str, folder: str) -> Exhibit:
    return Exhibit(None, None, (), (), named={name: f"{folder}/{name}" for name in names})


def test_images_of_the_same_name_are_side_by_side(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        for name in ("0.png", "1.png", "only.png"):
            write_image(tmp_path / folder, name, (8, 8))
    fakes = [str(tmp_path / folder) for folder in ("a", "b", "c", "d")]
    exhibits = [
        named("1.png", "0.png", folder=fakes[0]),
        named("0.png", "1.png", "only.png", folder=fakes[1]),
        named("0.png", folder=fakes[2]),
        named("other.png", folder=fakes[3]),
    ]
    html = html_report(bare(*fakes), exhibits)
    part = html[html.index('id="same-names"') :].partition("</section>")[0]
    heads = re.findall(r'<th scope="(col|row)">(?:<span class="path">)?([^<]+)<', part)
    assert heads == [("col", "Name"), ("col", "a"), ("col", "b"), ("col", "c"), ("row", "0.png"), ("row", "1.png")]
    assert [each["alt"] for each in Page(part).all("img")] == [
        f"{folder}: {tmp_path / folder / name}" for name, sets in (("0.png", "abc"), ("1.png", "ab")) for folder in sets
    ]
    assert part.count("<td>–</td>") == 1
    assert 'href="#same-names"' in html.partition("</nav>")[0]


@pytest.mark.parametrize(
    ("fakes", "exhibits"),
    [
        (("a",), [named("0.png", folder="a")]),
        (("a", "b"), [named("0.png", folder="a"), named("1.png", folder="b")]),
        (("a", "b"), [named("0.png", folder="a"), None]),
        (("a", "a"), [named("0.png", folder="a")] * 2),
    ],
)
def test_without_equal_names_nothing_is_side_by_side(fakes: tuple[str, ...], exhibits: list[Exhibit | None]) -> None:
    assert "same-names" not in html_report(bare(*fakes), exhibits)


def test_only_some_of_many_sets_are_side_by_side() -> None:
    fakes = [f"set{number}" for number in range(MOST_COLUMNS + 2)]
    exhibits = [named(*(f"{number}.png" for number in range(100)), folder=fake) for fake in fakes]
    found = sheets_of(bare(*fakes).results, exhibits, fakes, Thumbnail).same_names
    assert found is not None
    (table,) = found.tables
    assert (table.columns, found.left_out) == (tuple(fakes[:MOST_COLUMNS]), 2)
    assert 5 < len(table.rows) < 15
    assert "2 more sets contain images with the same names" in html_report(bare(*fakes), exhibits)


def test_sets_that_share_different_names_have_tables_of_their_own() -> None:
    """Two sets also belong together if a third one shares names with both."""
    fakes = ["a", "p", "b", "q", "c", "alone"]
    own = {"a": "01", "b": "12", "c": "2", "p": "89", "q": "9", "alone": "5"}
    exhibits = [named(*own[fake], folder=fake) for fake in fakes]
    found = sheets_of(bare(*fakes).results, exhibits, fakes, Thumbnail).same_names
    assert found is not None
    assert [table.columns for table in found.tables] == [("a", "b", "c"), ("p", "q")]
    assert [[name for name, _ in table.rows] for table in found.tables] == [["1", "2"], ["9"]]
    assert found.left_out == 0


def test_a_table_has_the_sets_with_the_most_shared_names() -> None:
    """The last set alone joins the others."""
    fakes = [f"set{number}" for number in range(MOST_COLUMNS + 2)]
    every = [f"{number}.png" for number in range(len(fakes) - 1)]
    exhibits = [
        *(named(name, folder=fake) for name, fake in zip(every, fakes, strict=False)),
        named(*every, folder="all"),
    ]
    found = sheets_of(bare(*fakes).results, exhibits, fakes, Thumbnail).same_names
    assert found is not None
    (table,) = found.tables
    assert table.columns == (*fakes[: MOST_COLUMNS - 1], fakes[-1])
    assert [name for name, _ in table.rows] == every[: MOST_COLUMNS - 1]
    assert found.left_out == 2


def test_groups_that_share_names_are_limited() -> None:
    fakes = [f"{group}{member}" for group in "abcde" for member in (1, 2)]
    exhibits = [named(*(f"{fake[0]}{number}" for number in range(20)), folder=fake) for fake in fakes]
    found = sheets_of(bare(*fakes).results, exhibits, fakes, Thumbnail).same_names
    assert found is not None
    assert ([len(table.rows) for table in found.tables], found.left_out) == ([12] * 3, 4)


def test_every_image_can_be_enlarged(files: list[str]) -> None:
    html = html_report(*rich(bare("a", "b"), files))
    images = len(Page(html).all("img"))
    assert images > 200
    assert html.count('<details class="zoom" name="zoom"><summary><img src="data:') == images
    assert not Page(html).all("script")


def test_images_with_negative_effects_do_not_raise_the_distance(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("fake"), files)
    (result,) = evaluation.results
    assert result.influence is not None
    effects = (HarmfulImage("up.png", 0.25), HarmfulImage("none.png", 0.0), HarmfulImage("down.png", -0.5))
    for kept, raising in ((effects, True), (effects[1:], False)):
        influence = replace(result.influence, most_harmful=kept)
        found = replace(evaluation, results=(replace(result, influence=influence),))
        html = html_report(found, exhibits)
        text = section(html, "fake-harmful")
        assert ("up.png" in text) == raising
        assert "none.png" not in text
        assert "down.png" not in text
        none = "No image raises the FID: to first order, removing any single image would raise it."
        assert (none in text) != raising
        lines = "\n".join(influence_lines(found))
        assert ("up.png" in lines) == raising
        assert "none.png" not in lines
        assert "down.png" not in lines
        assert ("no image raises the FID" in lines) != raising
        assert len(found.to_dict()["results"][0]["influence"]["most_harmful"]) == len(kept), "the JSON has all"
    unknown = replace(result.influence, most_harmful=(), removals=(), doubt="this set is REAL itself")
    html = html_report(replace(evaluation, results=(replace(result, influence=unknown),)), exhibits)
    assert "The effects of the images are unknown: this set is REAL itself." in section(html, "fake-harmful")


def test_sections_that_lack_features_explain_why(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("fake"), files)
    evaluation = replace(evaluation, results=(replace(evaluation.results[0], uncertainty=None),))
    (full,) = exhibits
    assert full is not None

    def texts(unknown: tuple[str, ...], cached: tuple[str, ...]) -> tuple[str, str]:
        exhibit = replace(full, neighbours=() if unknown else full.neighbours, without_features=unknown)
        exhibit = replace(exhibit, curve=() if "fake" in unknown else ((50, 14.0), (100, 12.0)))
        found = replace(evaluation, run=replace(evaluation.run, cached=cached))
        html = html_report(found, [exhibit])
        return section(html, "fake-neighbours"), section(html, "fake-curve")

    both, curve = texts(("real", "fake"), ("real", "fake"))
    assert "The cache has no per-image features of real and fake. Pass cache=False to compute them." in both
    assert "The cache has no per-image features of fake. Pass cache=False to compute them." in curve
    file, curve = texts(("real",), ("fake",))
    assert "There are no per-image features in real. Pass the images instead of statistics." in file
    assert "cache=False" not in file + curve
    known, _ = texts((), ("real", "fake"))
    assert "distance 5.5" in known
    assert "cache=False" not in known
    itself = replace(evaluation, results=(replace(evaluation.results[0], real=SetResult("fake", 100)),))
    assert "fake-neighbours" not in html_report(itself, [replace(full, neighbours=(), without_features=("fake",))])


@pytest.mark.slow  # draws 120 charts
def test_of_many_pairs_only_those_with_the_best_set_are_shown(files: list[str]) -> None:
    evaluation, exhibits = rich(bare(*(f"step{number:03}" for number in range(60))), files[:4])
    html = html_report(evaluation, exhibits)
    assert len(html.encode()) < 10e6
    assert html.count('<tr><th scope="row"><span class="path">step000</span></th><td class="words">') == 59
    assert html.count('<tr><th scope="row"><span class="path">step001</span></th><td class="words">') == 0
    assert "Only the differences to the best set are listed" in html


def test_ids_are_unique(files: list[str]) -> None:
    html = html_report(*rich(bare("a", "b", "c"), files))
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = re.findall(r'(?:href|aria-\w+)="#?([\w-]+)"|url\(#([\w-]+)\)', html)
    links = {one or other for one, other in wanted} - {"true"}
    assert links <= set(ids)


@pytest.mark.parametrize("fakes", [1, 4, 20, 1000])
def test_the_limit_of_images_is_kept(fakes: int) -> None:
    assert quota_for(fakes).images * fakes <= MOST_IMAGES
    names = [str(number) for number in range(fakes)]
    evaluation, exhibits = rich(bare(*names), [f"{number}.png" for number in range(300)])
    assert len(sheets_of(evaluation.results, exhibits, names, Thumbnail).files) <= MOST_IMAGES


# --- sentences and settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Duplicates(340, 336, 4, 0, {1: 334, 2: 1, 4: 1}, None, ()),
            "FAKE: 4 of 340 images (1.2\u00a0%) are duplicates (4 pixel-identical); 336 different images; "
            "1 occurs 2 times, 1 occurs 4 times.",
        ),
        (
            Duplicates(2000, 1999, 0, 1, {1: 1998, 2: 1}, None, ()),
            "FAKE: 1 of 2,000 images (0.1\u00a0%) is a duplicate (1 near duplicate); 1,999 different images; "
            "1 occurs 2 times.",
        ),
        (
            Duplicates(5, 1, 2, 2, {5: 1}, None, ()),
            "FAKE: 4 of 5 images (80.0\u00a0%) are duplicates (2 pixel-identical, 2 near duplicates); "
            "1 different image; 1 occurs 5 times.",
        ),
        (
            Duplicates(100, 96, 4, 0, {1: 92, 2: 4}, None, ()),
            "FAKE: 4 of 100 images (4.0\u00a0%) are duplicates (4 pixel-identical); 96 different images; "
            "4 occur 2 times.",
        ),
    ],
)
def test_duplicates_are_described(found: Duplicates, sentence: str, files: list[str]) -> None:
    evaluation, exhibits = rich(bare("fake"), files)
    (result,) = evaluation.results
    assert result.diagnosis is not None
    diagnosis = replace(result.diagnosis, fake=found)
    page = html_report(replace(evaluation, results=(replace(result, diagnosis=diagnosis),)), exhibits)
    assert sentence in Page(page).text


def test_findings_name_the_set_that_they_are_about(files: list[str]) -> None:
    evaluation, exhibits = rich(bare("fake"), files)
    text = section(html_report(evaluation, exhibits), "fake-findings")
    assert "high FAKE: 3 images look like noise" in text
    assert "medium FAKE against REAL: FAKE's images are smaller" in text
    (full,) = exhibits
    assert full is not None
    text = section(html_report(evaluation, [replace(full, fake=None)]), "fake-findings")
    assert "medium FAKE's images are smaller" in text, "it is unknown which findings are about FAKE alone"


@pytest.mark.parametrize(
    ("fakes", "images", "sentence"),
    [
        (1, 340, "The generated images are a random sample of 24 of the 340 images; the others may contain nearer"),
        (9, 340, "These are the 9 nearest pairs of a random sample of 24 of the 340 images; the others may contain"),
        (9, 24, "Only the 9 nearest pairs are shown."),
        (1, None, "The generated images are a random sample of 24; the others may contain nearer pairs."),
        (1, 24, ""),
    ],
)
def test_the_sample_of_the_nearest_pairs_is_described(
    fakes: int, images: int | None, sentence: str, files: list[str]
) -> None:
    names = [f"set-{place}" for place in "abcdefghi"[:fakes]]
    evaluation, exhibits = rich(bare(*names), files[:1])
    results = tuple(replace(result, fake=SetResult(result.fake.name, images)) for result in evaluation.results)
    some = [each and replace(each, neighbours=each.neighbours[:24]) for each in exhibits]
    html = html_report(replace(evaluation, results=results), some)
    text = section(html, f"fake{'-1' * (fakes > 1)}-neighbours")
    assert sentence in text
    if not sentence:
        assert "sample" not in text


def test_settings_and_notes_are_plain_text() -> None:
    evaluation = bare("fake")
    notes = ("--metrics all omits 'is': it is not defined", "dims taken from real.npz")
    config = {"metrics": ["fid", "kid"], "kid_subset_size": 340, "cache": False, "metric_options": {"a.b": 2}}
    evaluation = replace(
        evaluation,
        run=replace(evaluation.run, config=config, notes=notes),
        settings={"kid": {"subsets": 100, "subset_size": 340}, "prdc": {"nearest_k": 5}, "own": {"fast": True}},
    )
    html = html_report(evaluation, [None])

    def row(label: str) -> list[str]:
        cell = html.partition(f'<th scope="row">{label}</th><td>')[2].partition("</td>")[0]
        return [text.replace("&#39;", "'") for text in re.split("<[^>]+>", cell) if text]

    assert row("Settings") == ["metrics: fid, kid; kid subset size: 340; cache: no; metric options: a.b 2"]
    assert row("Notes") == list(notes)
    assert row("Settings of KID") == ["subsets: 100; subset size: 340"]
    assert row("Settings of Precision, Recall, Density, Coverage") == ["nearest k: 5"]
    assert row("Settings of own") == ["fast: yes"]
    assert "Notes" not in html_report(bare("fake"), [None])


# --- thumbnails ------------------------------------------------------------------------------------------------------


def thumbnail(file: str, images: int = 10) -> Thumbnail:
    return thumbnail_of(file, ImageLookup().read(file), ThumbnailSize.for_page(images))


def test_thumbnails_show_the_pixels_that_were_processed(tmp_path: Path) -> None:
    small = thumbnail(write_image(tmp_path, "small.png", (32, 24)))
    assert (small.width, small.height, small.small) == (32, 24, True)
    assert small.uri.startswith("data:image/png;base64,")
    wide = thumbnail(write_image(tmp_path, "wide.png", (4000, 3)))
    assert (wide.width, wide.height) == (LONGEST_SIDE, 1)


@pytest.mark.parametrize("images", [1, 100, 200, 400, 600, MOST_IMAGES])
def test_thumbnails_are_as_large_as_the_page_allows(images: int, tmp_path: Path) -> None:
    """Noise is the content that compresses least."""
    noise = thumbnail(write_image(tmp_path, "noise.png", (500, 500)), images)
    assert SHORTEST_SIDE <= noise.width <= LONGEST_SIDE
    assert (noise.width == LONGEST_SIDE) == (images <= 100)
    assert images * len(noise.uri) < PAGE_BYTES * 4 / 3 + images * 100


def test_the_page_explains_why_an_image_is_missing(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    os.mkfifo(tmp_path / "pipe.png")
    wanted = {
        str(tmp_path / "gone.png"): "not found",
        str(tmp_path / "text.png"): "not an image",
        str(tmp_path / "pipe.png"): "not found",
        str(tmp_path): "not found",
        "nul\0.png": "null",
        "x" * 5000: "too long",
    }
    for file, reason in wanted.items():
        assert thumbnail(file).uri == ""
        assert reason in thumbnail(file).problem
    evaluation, exhibits = rich(bare("fake"), list(wanted))
    page = Page(html_report(evaluation, exhibits))
    assert not page.all("img")
    assert "None of these images could be read" in page.text


# --- names and numbers -----------------------------------------------------------------------------------------------


def test_names_are_legible_and_short() -> None:
    assert legible("a\nb\x7f\udcff\u2028é猫") == r"a\nb\x7f" + "\ufffd\ufffdé猫"
    assert shortened("x" * 500, 10) == "xxx…xxxxxx"
    assert short_names(["runs/a/step1/", "runs/a/step2"]) == ["step1", "step2"]
    assert short_names(["runs/1/out", "runs/2/out"]) == ["1/out", "2/out"]
    assert short_names(["some/fake"]) == ["fake"]
    assert short_names(["a/b", "a/b"]) == ["a/b", "a/b"]
    assert short_names(["/"]) == ["/"]
    assert command_line(["a b", "it's\n", os.fsdecode(b"\xe9x")]) == r"'a b' $'it\'s\x0a' $'\xe9x'"


def test_a_sweep_is_ordered_by_the_numbers_in_its_names() -> None:
    assert numbers_of(["r3/step1000", "r3/step200"]) == ([1000.0, 200.0], "step")
    assert numbers_of(["a1.5.npz", "b2.5.npz"]) == ([1.5, 2.5], "number in the name")
    assert numbers_of(["a1", "b1"]) is None
    assert numbers_of(["out/step100/fid50k", "out/step200/fid50k"]) == ([100.0, 200.0], "step")
    assert numbers_of(["a/ckpt-1000-seed0", "a/ckpt-500-seed0"]) == ([1000.0, 500.0], "ckpt")
    assert numbers_of(["ema0.99_model-0100", "ema0.99_model-0200"]) == ([100.0, 200.0], "model")
    assert numbers_of(["run2/step100", "run2/last5/step300"]) == ([100.0, 300.0], "step")
    assert numbers_of(["a1", "b"]) is None
    sweep = sweep_of(bare("step1000", "step200").results)
    assert sweep is not None
    assert [(point.x, point.name) for point in sweep.points] == [(200, "step200"), (1000, "step1000")]
    named = sweep_of(bare("good", "bad").results)
    assert named is not None
    assert ([point.name for point in named.points], named.axis) == (["good", "bad"], "")


# --- the plot, and requirements of both ------------------------------------------------------------------------------


@pytest.mark.parametrize("fakes", [("fake",), ("step1", "step2", "step4"), ("$a_b^c$ 猫", "<b>", "x" * 300)])
def test_the_plot_is_an_image(fakes: tuple[str, ...], files: list[str], tmp_path: Path) -> None:
    write_plot(rich(bare(*fakes), files)[0], tmp_path / "plot.png")
    with Image.open(io.BytesIO((tmp_path / "plot.png").read_bytes())) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (1440, 720)
        assert len(set(image.convert("L").tobytes())) > 20, "the plot is not empty"


def test_plot_needs_an_fid(tmp_path: Path) -> None:
    evaluation = bare("fake")
    result = replace(evaluation.results[0], metrics={"kid": 0.1, "kid_std": 0.01})
    evaluation = replace(evaluation, results=(result,))
    with pytest.raises(InputError, match="not among metrics"):
        write_plot(evaluation, tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []
    page = Page(html_report(evaluation, [None]))
    assert "KID 0.100 ± 0.010" in " ".join(page.text.split())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_report_extra("report")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"^report needs the package jinja2: pip install 'fidtool\[report\]'$"):
        require_report_extra("report")
    require_report_extra("plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"^report needs the packages jinja2 and matplotlib: "):
        require_report_extra("report")
    with pytest.raises(InputError, match=r"^plot needs the package matplotlib: "):
        require_report_extra("plot")


NAMES = (
    "a.html",
    "a.htm",
    "a.HTML",
    "a.Htm",
    "a.png",
    "A.PNG",
    "a.htm.png",
    "a.xhtml",
    "a.pdf",
    "a.html.gz",
    "html",
    "a",
)


@pytest.mark.parametrize(
    ("flag", "taken"),
    [
        ("report", ["a.html", "a.htm", "a.HTML", "a.Htm"]),
        ("plot", ["a.png", "A.PNG", "a.htm.png"]),
    ],
)
def test_suffixes_of_output_files(tmp_path: Path, flag: str, taken: list[str]) -> None:
    """Other suffixes are refused before any work is done."""
    for name in taken:
        check_shown(flag, tmp_path / name)
    for name in set(NAMES) - set(taken):
        with pytest.raises(InputError, match=r"the name must end in \.(html|png)$"):
            check_shown(flag, tmp_path / name)
