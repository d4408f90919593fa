"""The report and the plot as text and files. test_report_page tests the page in a browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fidtool.diagnose.duplicates import Duplicates
from fidtool.errors import InputError, ResultWarning
from fidtool.names import find_sweep_numbers
from fidtool.reading.lookup import ImageLookup
from fidtool.report.charts import make_sweep, make_title
from fidtool.report.html import MAX_SIDE, Thumbnail, html_report, make_thumbnail
from fidtool.report.outputs import check_report_files, write_report_file
from fidtool.report.tables import class_lines, class_rows
from fidtool.report.text import influence_lines
from fidtool.result.evaluation import Comparison, Evaluation, SetResult
from fidtool.result.explanations import (
    Classes,
    ClassResult,
    Difference,
    Exhibit,
    HarmfulImage,
    Interval,
    Neighbour,
    NotComputed,
    Uncertainty,
)
from fidtool.result.values import FeatureSource
from support.report_samples import (
    COMMAND,
    KNOWN,
    METRICS,
    NASTY,
    bare,
    classes,
    known_of,
    rich,
    write_image,
)

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
    names = [
        NASTY.replace("/", "|") + ".png",
        os.fsdecode(b"no text \xff\xfe.png"),
        "plain.png",
        "\U0001f339猫.png",
    ]
    return [
        *(write_image(folder, name, seed=seed) for seed, name in enumerate(names)),
        str(folder / "gone.png"),
    ]


@pytest.fixture(scope="module")
def full_page(files: list[str]) -> str:
    """The page of one FAKE with everything that a run can compute."""
    return html_report(rich(bare("fake"), files))


@pytest.fixture(scope="module")
def page_of_two(files: list[str]) -> str:
    return html_report(rich(bare("run/step100", "run/step200"), files))


def test_the_page_of_a_bare_result_has_no_empty_sections() -> None:
    html = html_report(bare("some/fake"))
    page = Page(html)
    assert page.text.strip().startswith(
        "FID 12.3: FID of some/fake (100 images) against real (100 images); Inception"
    )
    assert heading(html) == "FID 12.3"
    assert [each["title"] for each in page.all("span") if each.get("class") == "score"] == [
        "12.3456"
    ], "the exact value"
    assert not page.all("section")
    assert not page.all("img")
    assert not page.all("script")
    for setting in ("uncertainty=True", "influence=True", "diagnose=False"):
        assert setting in page.text, "the page explains how to get the rest"
    assert "fidtool compute real fake --report report.html" in page.text


def test_metrics_without_a_value_have_their_reason() -> None:
    lacking = (
        NotComputed("is", "IS", "no <weights> on this machine", True),
        NotComputed("mine", "Mine", "too few images", False),
    )
    page = Page(html_report(replace(bare("fake"), not_computed=lacking)))
    assert [attributes["id"] for attributes in page.all("section")] == ["values"]
    for line in (
        "IS: not computed: no <weights> on this machine",
        "Mine: not computed: too few images",
    ):
        assert line in page.text


def shown(evaluation: Evaluation, exhibit: Exhibit) -> Evaluation:
    """Return the evaluation of one FAKE with another exhibit."""
    return replace(evaluation, results=(replace(evaluation.results[0], exhibit=exhibit),))


def exhibit_of(evaluation: Evaluation) -> Exhibit:
    exhibit = evaluation.results[0].exhibit
    assert exhibit is not None
    return exhibit


def test_the_page_of_a_full_result_has_all_sections(page_of_two: str, full_page: str) -> None:
    page = Page(page_of_two)
    parts = ["findings", "random", "harmful", "copies", "neighbours", "properties"]
    of_each = [f"fake-{place}-{part}" for place in (1, 2) for part in parts]
    assert [each["id"] for each in page.all("section")] == [
        "charts",
        "values",
        "differences",
        "sets",
        *of_each,
    ]
    assert [each["id"] for each in Page(full_page).all("section")] == [
        "values",
        *(f"fake-{part}" for part in parts),
    ]
    for words in (
        "95 %: 10.85 to 11.85",
        "No error bars: too few images",
        "FID by number of images: 18.3 for 25, 15.3 for 50, 13.3 for 75, 12.3 for 100.",
        "0.0123 ± 0.0010",
        "step100 is better than step200",
        "3 images look like noise",
        "90 PNG, 10 JPEG",
        "Pixel-identical to images in REAL: 20 images in FAKE.",
        "100 images for 2048 dimensions",
        "bilinear",
        bare("fake").definitions["features"].fingerprint,  # type: ignore[union-attr]
        "And 50 more",
    ):
        assert words in " ".join(page.text.split()), words
    assert page.text.count("about every set") == 1, "once, not once per FAKE"


def test_the_header_has_the_verdict_the_gate_and_the_worst_warning(
    page_of_two: str, full_page: str
) -> None:
    header = Page(page_of_two.partition("<header>")[2].partition("<details>")[0])
    for words in ("step100", "Gate missed", "run/step100 has FID 12.3456, above 10", "is doubtful"):
        assert words in header.text, words
    many = bare(*map(str, range(9)))
    missed = [
        replace(each, missed=(f"{each.fake.name} has FID 99, above 10",)) for each in many.results
    ]
    text = html_report(replace(many, results=tuple(missed))).partition("</header>")[0]
    assert ("2 has FID 99" in text, "3 has FID 99" in text, "and 6 more" in text) == (
        True,
        False,
        True,
    )
    passed = replace(bare("fake"), run=replace(bare("fake").run, config={"fail_above": 20.0}))
    assert "Gate passed: fail_above=20.0" in Page(html_report(passed)).text
    assert "Gate" not in Page(html_report(bare("fake"))).text
    assert 'title="12.3456">12.35</span>' in full_page, (
        "as many digits as the standard error supports"
    )


def heading(html: str) -> str:
    """Return the text of the page's heading: the verdict, then the values of the best sets, with
    names if several.
    """
    return " ".join(Page(html.partition("<h1>")[2].partition("</h1>")[0]).text.split())


@pytest.mark.parametrize(
    ("values", "better", "verdict"),
    [
        ((3.0, 2.0), None, "b has the lowest FID 2.00"),
        ((2.0, 2.0), None, "FID of 2 sets, which cannot be distinguished"),
        ((3.0, 2.0), True, "b is the best 2.00"),
        ((3.0, 2.0), False, "FID of 2 sets, which cannot be distinguished"),
        (
            (3.0, 2.0, 9.0),
            False,
            "2 of 3 sets are the best and cannot be distinguished 3.00 a 2.00 b",
        ),
        (
            (2.0,) * 5 + (3.0,),
            None,
            "5 of 6 sets are the best and cannot be distinguished 2.00 a 2.00 b 2.00 c 2.00 d",
        ),
    ],
)
def test_the_verdict(values: tuple[float, ...], better: bool | None, verdict: str) -> None:
    """Without error bars the lowest value is named, with them what can be told; ``better`` is
    whether b beats a.
    """
    evaluation = valued(bare(*"abcdef"[: len(values)]), *({"fid": value} for value in values))
    if better is not None:
        bars = [
            Uncertainty(0.0, Interval(value, 0.5, value - 1, value + 1), "", ()) for value in values
        ]
        pairs = zip(evaluation.results, bars, strict=True)
        results = tuple(replace(result, uncertainties={"fid": each}) for result, each in pairs)
        apart = Interval(-1.0, 0.2, -1.4, -0.6)
        first = Interval(1.0, 0.2, 0.6, 1.4) if better else Interval(1.0, 0.9, -0.8, 2.8)
        differences = [
            Difference("a", "b", first),
            *(Difference(each, "c", apart) for each in "ab"),
        ]
        evaluation = replace(
            evaluation,
            results=results,
            differences=tuple(differences[: 1 if len(values) == 2 else 3]),
        )
    assert heading(html_report(evaluation)) == verdict


def test_a_diagnostic_has_no_verdict() -> None:
    assert (
        heading(html_report(valued(bare("a", "b"), {"authpct": 50.0}, {"authpct": 60.0})))
        == "AuthPct diagnostic of 2 sets"
    )


def test_a_set_that_is_real_is_not_told_apart() -> None:
    assert heading(html_report(bare("fake", "real", real="real"))) == "FID of 2 sets"


def test_names_are_escaped(files: list[str]) -> None:
    evaluation = rich(bare(f"sets/{NASTY}", os.fsdecode(b"sets/\xff"), real=NASTY), files)
    command = (*COMMAND, NASTY, os.fsdecode(b"\xff"))
    warning = ResultWarning("", f"{NASTY}\x00\ud800")
    evaluation = replace(
        evaluation, run=replace(evaluation.run, warnings=(warning,), command=command)
    )
    html = html_report(evaluation)
    html.encode("utf-8")
    page = Page(html)
    assert not page.all("script")
    assert not page.all("b")
    assert "<b>&\"quotes'<script>window.hacked=1</script>\\n" in page.text
    assert "\u202e" not in html
    assert "sets/\ufffd" in page.text
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_equal_input_gives_the_same_page(files: list[str], full_page: str, tmp_path: Path) -> None:
    evaluation = rich(bare("fake"), files)
    assert html_report(evaluation) == full_page
    for name in ("one.png", "two.png"):
        write_report_file(evaluation, ImageLookup(), "plot", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


# --- the overview ---------------------------------------------------------------------------------


def valued(evaluation: Evaluation, *metrics: dict[str, float]) -> Evaluation:
    """Return the evaluation with these metrics, one dictionary per FAKE."""
    pairs = zip(evaluation.results, metrics, strict=True)
    return replace(
        evaluation,
        results=tuple(replace(result, metrics=each, diagnosis=None) for result, each in pairs),
    )


def test_the_best_value_of_each_metric_is_marked_with_text() -> None:
    low, high = (
        dict.fromkeys(METRICS, 1.0) | {"fid": 1.0},
        dict.fromkeys(METRICS, 2.0) | {"fid": 2.0},
    )
    evaluation = valued(bare("low", "high"), low, high)
    better = [value.number.better for value in evaluation.values]
    html = html_report(evaluation)
    rows = html.partition("<tbody>")[2].split("</tr>")
    assert [row.count(">best:</span>") for row in rows[:2]] == [
        better.count("lower"),
        better.count("higher"),
    ]
    for direction in ("lower", "higher"):
        assert html.count(f'<span class="unseen">, {direction} is better</span>') == better.count(
            direction
        )


def test_of_many_pairs_only_those_with_the_best_set_are_shown() -> None:
    evaluation = rich(bare(*"abcdef"), ["x.png"])
    results = tuple(replace(result, exhibit=None) for result in evaluation.results)
    html = html_report(replace(evaluation, results=results))
    assert re.findall(r"<p>(\w) is better than \w: -1.50 ", html) == ["a"] * 5


# --- charts ---------------------------------------------------------------------------------------


def marker_positions(
    evaluation: Evaluation, folder: Path, axis: str
) -> tuple[set[float], set[float]]:
    """Return the positions of the distances and of the bias-corrected distances on an axis, without
    the legend.
    """
    write_report_file(evaluation, ImageLookup(), "plot", folder / "plot.svg")
    plot = (folder / "plot.svg").read_text().partition('<g id="legend')[0]
    place = {"x": r' x="([\d.]+)" y="[\d.]+"', "y": r' x="[\d.]+" y="([\d.]+)"'}[axis]
    uses = re.findall(rf'<use xlink:href="#\w+"{place} style="fill: (#\w+); stroke: #', plot)
    bars = plot.partition("#b3530a")[2]
    assert not re.search(r"<g clip-path[^>]*>\s*<use", bars), (
        "points at an end of the axis are whole"
    )
    first, second = (
        {float(at) for at, colour in uses if colour == wanted} for wanted in ("#1f5fbf", "#b3530a")
    )
    return first, second


@pytest.mark.parametrize(
    ("fakes", "beside"), [(("good", "other", "bad"), True), (("step1", "step2", "step4"), False)]
)
def test_error_bars_are_beside_points_that_are_not_joined(
    fakes: tuple[str, ...], beside: bool, files: list[str], tmp_path: Path
) -> None:
    distances, corrected = marker_positions(
        rich(bare(*fakes), files), tmp_path, "y" if beside else "x"
    )
    assert (len(distances), len(corrected)) == (3, 2), "the second FAKE has no interval"
    nearest = [min(abs(at - other) for other in distances) for at in corrected]
    if beside:
        assert all(6 < gap < 30 for gap in nearest), "apart, but nearer than to the next FAKE"
    else:
        assert max(nearest) < 0.1


def svgs(html: str) -> list[str]:
    """Return the charts of a page, the light one last."""
    return [
        base64.b64decode(data).decode()
        for data in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", html)
    ]


@pytest.mark.parametrize(
    ("first", "note"), [(12.3456, r"the axis starts at 12\.\d+, not at 0"), (1.5, ""), (0.25, "")]
)
def test_the_chart_has_values_and_says_where_its_axis_starts(first: float, note: str) -> None:
    html = html_report(valued(bare("good", "bad"), {"fid": 12.6}, {"fid": first}))
    source = '<source media="(prefers-color-scheme: dark)" srcset="data:image/svg+xml;base64,'
    assert (html.count("<picture"), html.count(source)) == (1, 1)
    dark, light = svgs(html)
    for chart, ink in ((dark, "#e6e9ed"), (light, "#1b1f24")):
        for text in filter(None, ("good", "bad", "12.6", f"{first:#.3g}", note)):
            assert re.search(f">{text}</text>", chart), text
        assert ("the axis starts" in chart) == bool(note)
        assert f"fill: {ink}" in chart
        assert not re.search(">[-\u2212][\\d.]+</text>", chart), (
            "the axis of positive values does not start below 0"
        )
    assert not svgs(html_report(bare("alone")))


@pytest.mark.parametrize(("key", "best"), [("fid", "20.3"), ("precision", "26.30")])
def test_the_best_value_of_a_line_and_its_note_are_apart_from_it(key: str, best: str) -> None:
    numbers = (26.3, 22.1, 20.3)
    steps = [f"step{place}" for place in range(len(numbers))]
    for chart in svgs(html_report(valued(bare(*steps), *({key: number} for number in numbers)))):
        line = [float(y) for y in re.findall(r'<use [^>]* y="([\d.]+)" style="fill: #', chart)]
        found = re.findall(r"translate\([\d.]+ ([\d.]+)\)[^<]*>([^<]+)</text>", chart)
        found += re.findall(r' y="([\d.]+)" [^<]*>([^<]+)</text>', chart)
        height = {text: float(y) for y, text in found}
        (note,) = [text for text in height if text.startswith("the vertical axis starts at ")]
        assert height[note] > height["step"] > max(line)
        if key == "fid":
            assert max(line) < height[best] < height["1"], "below the line, above the numbers"
        else:
            assert height[best] < min(line)


@pytest.mark.parametrize(
    ("values", "start"), [((111.7, 111.9), "111.69"), ((1500.2, 1501.1), "1500.15")]
)
def test_the_start_of_an_axis_is_not_rounded_beyond_its_values(
    values: tuple[float, float], start: str
) -> None:
    one, other = values
    for chart in svgs(html_report(valued(bare("a", "b"), {"fid": one}, {"fid": other}))):
        assert f">the axis starts at {start}, not at 0</text>" in chart


def test_the_legend_is_within_the_plot_beside_long_names(files: list[str], tmp_path: Path) -> None:
    evaluation = rich(bare(*(each * 60 for each in "abc")), files)
    write_report_file(evaluation, ImageLookup(), "plot", tmp_path / "plot.svg")
    plot = (tmp_path / "plot.svg").read_text()
    found = re.search(r' x="([\d.]+)" [^<]*>bias-corrected, 95 % interval</text>', plot)
    assert found is not None
    assert float(found[1]) + 190 < 648, "the text is 190 wide, and the plot 648"


def captions(html: str) -> list[str]:
    """Return the text above each chart of a page."""
    found = re.findall("<figcaption>(.*?)</figcaption>", chart_section(html), re.DOTALL)
    return [" ".join(Page(each).text.split()) for each in found]


def chart_section(html: str) -> str:
    return html.partition('id="charts"')[2].partition("</section>")[0]


def test_each_value_of_several_sets_has_a_chart(files: list[str]) -> None:
    """All have the same size and the sets in the same order, and say which values are better."""
    evaluation = rich(bare("good", "middle", "bad"), files)
    html = html_report(evaluation)
    headings = Page(html.partition("<thead>")[2].partition("</thead>")[0]).text
    assert len(captions(html)) == len(evaluation.values)
    for value, caption in zip(evaluation.values, captions(html), strict=True):
        spread = " ± s.d." if value.key in ("kid", "is") else ""
        spread = " ± s.e." if value.key == "fid_infinity" else spread
        better = {"lower": " ↓ lower is better", "higher": " ↑ higher is better", "": ""}
        corrected = " bias-corrected, 95 % interval" if value.key == "fid" else ""
        assert caption == value.title + spread + better[value.number.better] + corrected
        assert value.title in headings
        assert f'alt="{value.title} of 3 sets against real (100 images)"' in html
    drawn = svgs(html)
    assert len(drawn) == 2 * len(evaluation.values)
    sizes = {re.findall('viewBox="([^"]+)"', each)[0] for each in drawn}
    areas = {re.findall('<rect x="[^/]+', each)[0] for each in drawn}
    assert len(sizes) == 1
    assert len(areas) == 1, "the axes are aligned"
    for each in drawn:
        assert re.findall(">(good|middle|bad)</text>", each) == ["good", "middle", "bad"]
    assert "charts" not in [each.get("id") for each in Page(html_report(bare("a"))).all("section")]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("step1", "step2", "step3")])
def test_a_set_without_a_value_has_a_place_in_its_chart(names: tuple[str, ...]) -> None:
    known = [{"fid": 3.0, "recall": 0.5}, {"fid": 2.0}, {"fid": 4.0, "recall": 0.75}]
    evaluation = valued(bare(*names), *known)
    (recall,) = (value for value in evaluation.values if value.key == "recall")
    points = make_sweep(evaluation.results, recall).points
    assert [point.text for point in points] == ["0.50", "-", "0.75"]
    html = html_report(evaluation)
    assert captions(html) == ["FID ↓ lower is better", "Recall ↑ higher is better"]
    best = "0.75" if names[0] == "step1" else "-"
    assert f">{best}</text>" in svgs(html)[-1]


def test_a_chart_shows_what_is_behind_the_plus_minus() -> None:
    """KID has a standard deviation only if there are several subsets."""
    without = valued(bare("a", "b"), {"kid": 0.1}, {"kid": 0.2})
    both = valued(bare("a", "b"), {"kid": 0.1, "kid_std": 0.02}, {"kid": 0.2, "kid_std": 0.03})
    assert captions(html_report(without)) == ["KID ↓ lower is better"]
    assert captions(html_report(both)) == ["KID ± s.d. ↓ lower is better"]
    bars = [svgs(html_report(each))[-1].count("LineCollection") for each in (without, both)]
    assert bars == [0, 1]


def test_equal_values_of_0_are_at_the_start_of_the_axis() -> None:
    _, light = svgs(html_report(valued(bare("a", "b"), {"recall": 0.0}, {"recall": 0.0})))
    assert not re.search(">[-\u2212][\\d.]+</text>", light)


@pytest.mark.parametrize("name", ["step{}", "{}-{}"])
def test_the_chart_of_many_sets_stays_readable(name: str) -> None:
    fakes = [name.format(number, "abcdefghij"[number % 10] * 2) for number in range(60)]
    _, light = svgs(html_report(bare(*fakes)))
    assert light.count("<text") < 30


# --- all sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 5])
def test_one_warning_is_open_and_the_others_are_folded(number: int) -> None:
    evaluation = bare("a", "b")
    alerts = tuple(ResultWarning("", f"warning number {each}") for each in range(number))
    html = html_report(replace(evaluation, run=replace(evaluation.run, warnings=alerts)))
    part = html[html.index('id="warnings"') :].partition("</header>")[0]
    seen, _, folded = part.partition("<details>")
    assert (seen.count("warning number"), folded.count("warning number")) == (1, number - 1)
    assert (
        f"<summary>{number - 1} more warning{'s' if number > 2 else ''}</summary>" in folded
    ) == (number > 1)


def test_the_title_of_the_charts_describes_them(tmp_path: Path) -> None:
    evaluation = bare("runs/step1", "runs/step2", real="data/real")
    text, details = make_title(evaluation, KNOWN[0])
    assert text == "FID of 2 sets against data/real (100 images)"
    assert details == "Inception, 2048 dimensions, protocol pytorch-fid; 100 images per set"
    first, second = evaluation.results
    uneven = replace(
        evaluation, results=(replace(first, fake=SetResult(first.fake.name, 5000)), second)
    )
    assert make_title(uneven, KNOWN[0])[1].endswith("; 100 to 5,000 images per set")
    unknown = replace(
        evaluation,
        results=(
            replace(
                first, real=SetResult("data/real", None), fake=SetResult(first.fake.name, None)
            ),
            second,
        ),
    )
    assert make_title(unknown, KNOWN[0])[0].endswith("data/real (unknown number of images)")
    assert make_title(unknown, KNOWN[0])[1].endswith("; unknown number of images per set")
    assert (
        make_title(bare("runs/fake"), KNOWN[0])[0]
        == "FID of runs/fake (100 images) against real (100 images)"
    )
    write_report_file(evaluation, ImageLookup(), "plot", tmp_path / "plot.svg")
    plot, html = (tmp_path / "plot.svg").read_text(), html_report(evaluation)
    for line in (text, details):
        assert f">{line}</text>" in plot
    header = " ".join(Page(html.partition("<header>")[2].partition("</header>")[0]).text.split())
    assert f"{text}. {details}." in header
    assert f'alt="{text}"' in html


# --- images ---------------------------------------------------------------------------------------


def section(html: str, key: str) -> str:
    """Return the text of a section of the page."""
    return " ".join(Page(html[html.index(f'id="{key}"') :].partition("</section>")[0]).text.split())


def test_images_of_real_are_beside_those_of_each_set(page_of_two: str) -> None:
    for key in ("fake-1-random", "fake-2-random"):
        part = page_of_two[page_of_two.index(f'id="{key}"') :].partition("</section>")[0]
        real, fake = part.split('<ul class="sheet">')[1:]
        assert [len(Page(each).all("li")) for each in (real, fake)] == [24, 24]
        assert part.index("Random images of REAL") < part.index("Random images of FAKE")


def test_an_image_that_is_near_to_many_is_shown_once(files: list[str]) -> None:
    evaluation = rich(bare("fake"), files[2:3])
    exhibit = evaluation.results[0].exhibit
    assert exhibit is not None
    pairs = [(7.0, "a"), (1.0, "b"), (3.0, "a"), (2.0, "b"), (9.0, "c")]
    near = tuple(
        Neighbour(f"{place}.png", f"{real}.png", apart) for place, (apart, real) in enumerate(pairs)
    )
    html = html_report(shown(evaluation, replace(exhibit, neighbours=near)))
    assert re.findall(r"distance ([\d.]+)", section(html, "fake-neighbours")) == [
        "1.00",
        "3.00",
        "9.00",
    ]


def test_images_with_negative_effects_do_not_raise_the_distance() -> None:
    evaluation = rich(bare("fake"), ["x.png"])
    (result,) = evaluation.results
    assert result.influence is not None
    effects = (
        HarmfulImage("up.png", 0.25),
        HarmfulImage("none.png", 0.0),
        HarmfulImage("down.png", -0.5),
    )
    for kept, raising in ((effects, True), (effects[1:], False)):
        influence = replace(result.influence, most_harmful=kept)
        found = replace(evaluation, results=(replace(result, influence=influence),))
        text = section(html_report(found), "fake-harmful")
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
        assert len(found.to_dict()["results"][0]["influence"]["most_harmful"]) == len(kept), (
            "the JSON has all"
        )
    unknown = replace(
        result.influence, most_harmful=(), removals=(), doubt="this set is REAL itself"
    )
    html = html_report(replace(evaluation, results=(replace(result, influence=unknown),)))
    assert "The effects of the images are unknown: this set is REAL itself." in section(
        html, "fake-harmful"
    )


def test_sections_that_lack_features_explain_why(files: list[str]) -> None:
    evaluation = rich(bare("fake"), files[2:3])
    evaluation = replace(evaluation, results=(replace(evaluation.results[0], uncertainties={}),))
    (result,) = evaluation.results
    full = result.exhibit
    assert full is not None

    def text(unknown: tuple[str, ...], cached: tuple[str, ...]) -> str:
        exhibit = replace(
            full, neighbours=() if unknown else full.neighbours, without_features=unknown
        )
        results, run = (replace(result, exhibit=exhibit),), replace(evaluation.run, cached=cached)
        return section(
            html_report(replace(evaluation, results=results, run=run)), "fake-neighbours"
        )

    both = text(("real", "fake"), ("real", "fake"))
    for name in ("real", "fake"):
        assert (
            f"The features of each image of {name} are unknown. Pass cache=False to compute them."
            in both
        )
    file = text(("real",), ("fake",))
    assert (
        "The features of each image of real are unknown. Pass the images instead of statistics "
        "to compute them." in file
    )
    assert "cache=False" not in file
    known = text((), ("real", "fake"))
    assert "distance 5.50" in known
    assert "cache=False" not in known
    itself = replace(
        evaluation, results=(replace(evaluation.results[0], real=SetResult("fake", 100)),)
    )
    assert "fake-neighbours" not in html_report(
        shown(itself, replace(full, neighbours=(), without_features=("fake",)))
    )


# --- sentences and settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Duplicates(340, 336, 4, 0, {1: 334, 2: 1, 4: 1}, None, ()),
            "FAKE: 4 of 340 images (1%) are exact duplicates: 336 different images, 2 of them "
            "repeated.",
        ),
        (
            Duplicates(5, 1, 2, 2, {5: 1}, None, ()),
            "FAKE: 4 of 5 images (80%) are exact or near duplicates: the same image 5 times.",
        ),
    ],
)
def test_duplicates_are_described(found: Duplicates, sentence: str) -> None:
    evaluation = rich(bare("fake"), ["x.png"])
    (result,) = evaluation.results
    assert result.diagnosis is not None
    duplicates = replace(result.diagnosis.duplicates, fake=found)
    diagnosis = replace(result.diagnosis, duplicates=duplicates)
    page = html_report(replace(evaluation, results=(replace(result, diagnosis=diagnosis),)))
    assert sentence in Page(page).text


def test_a_saved_result_of_no_images_has_a_page() -> None:
    """Such a result was changed by hand."""
    document = rich(bare("fake"), ["x.png"]).to_dict()
    (result,) = document["results"]
    counts = [*result["diagnosis"]["duplicates"].values()]
    for role in ("real", "fake"):
        counts += [result["exhibit"][role], result["exhibit"][role]["duplicates"]]
    for each in counts:
        each["images"] = 0
    assert "fake-properties" in html_report(Evaluation.from_dict(document))


def test_findings_name_the_set_that_they_are_about(files: list[str], full_page: str) -> None:
    text = section(full_page, "fake-findings")
    assert "high FAKE: 3 images look like noise" in text
    assert "medium FAKE against REAL: FAKE's images are smaller" in text
    evaluation = rich(bare("fake"), files[2:3])
    full = evaluation.results[0].exhibit
    assert full is not None
    assert "fake-properties" not in html_report(
        shown(evaluation, replace(full, fake=None, real=None))
    )
    text = section(
        html_report(shown(evaluation, replace(full, fake=None, real=None))), "fake-findings"
    )
    assert "medium FAKE against REAL: FAKE's images are smaller" in text, (
        "also of sets whose properties are unknown"
    )


def test_settings_and_notes_are_on_the_page() -> None:
    evaluation = bare("fake")
    notes = ("--metrics all omits 'is': it is not defined", "dims taken from real.npz")
    config = {
        "metrics": ["fid", "kid"],
        "kid_subset_size": 340,
        "cache": False,
        "metric_options": {"a.b": 2},
    }
    evaluation = replace(
        evaluation,
        run=replace(evaluation.run, config=config, notes=notes),
        settings={
            "kid": {"subsets": 100, "subset_size": 340},
            "prdc": {"nearest_k": 5},
            "own": {"fast": True},
        },
    )
    text = Page(html_report(evaluation)).text
    record = json.loads(text[text.index('{\n  "protocol"') : text.rindex("}") + 1])
    document = evaluation.to_dict()
    assert record["metrics"] == {"fake": {"fid": 12.3456}}, "all digits"
    assert {name: record[name] for name in ("protocol", "settings", "run")} == {
        name: document[name] for name in ("protocol", "settings", "run")
    }


# --- thumbnails -----------------------------------------------------------------------------------


def thumbnail(file: str) -> Thumbnail:
    return make_thumbnail(None, ImageLookup().read(file))


def size_of(found: Thumbnail) -> tuple[int, int]:
    with Image.open(io.BytesIO(base64.b64decode(found.uri.partition(",")[2]))) as image:
        return image.size


def test_thumbnails_show_the_pixels_that_were_processed(tmp_path: Path) -> None:
    small = thumbnail(write_image(tmp_path, "small.png", (32, 24)))
    assert size_of(small) == (32, 24)
    assert small.uri.startswith("data:image/png;base64,")
    wide = thumbnail(write_image(tmp_path, "wide.png", (4000, 300)))
    assert size_of(wide) == (MAX_SIDE, 10)
    assert wide.uri.startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(("fakes", "least", "most"), [(1, 80, 150), (4, 300, 600), (60, 600, 1200)])
def test_the_more_sets_the_fewer_images_of_each(
    fakes: int, least: int, most: int, files: list[str]
) -> None:
    html = html_report(rich(bare(*map(str, range(fakes))), files[2:3]))
    assert least < len(Page(html).all("img")) < most


def test_the_page_explains_why_an_image_is_missing(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"no image\0")
    os.mkfifo(tmp_path / "pipe.png")
    wanted = {
        str(tmp_path / "gone.png"): "not found",
        str(tmp_path / "text.png"): "not an image",
        str(tmp_path / "pipe.png"): "not a regular file",
        str(tmp_path): "Is a directory",
        "nul\0.png": "null",
        "\ud800.png": "surrogates",
        "x" * 5000: "too long",
    }
    for file, reason in wanted.items():
        assert thumbnail(file).uri == ""
        assert reason in thumbnail(file).problem
    evaluation = rich(bare("fake"), list(wanted))
    html = html_report(evaluation)
    assert not Page(html).all("img")
    assert section(html, "fake-random").count("None of these images could be read: not found.") == 2
    names = [each.get("aria-label") or "" for each in Page(html).all("span")]
    assert f"{tmp_path / 'gone.png'}: not found" in names
    some = html_report(
        shown(
            evaluation,
            replace(exhibit_of(evaluation), random=(write_image(tmp_path, "a.png"), "b")),
        )
    )
    assert "b: not found" in [each.get("aria-label") for each in Page(some).all("span")]


# --- names and numbers ----------------------------------------------------------------------------


def test_a_sweep_is_ordered_by_the_numbers_in_its_names() -> None:
    assert find_sweep_numbers(["r3/step1000", "r3/step200"]) == ([1000.0, 200.0], "step")
    assert find_sweep_numbers(["1.5.npz", "2.5.npz"]) == ([1.5, 2.5], "number in the name")
    assert find_sweep_numbers(["a1", "b2", "step100"]) is None, "no sweep"
    assert find_sweep_numbers(["a/step10-x1", "b/step20-y2"]) == ([10.0, 20.0], "step")
    assert find_sweep_numbers(["step1", "final"]) is None
    assert find_sweep_numbers(["a1", "b1"]) is None
    assert find_sweep_numbers(["a/ckpt-1000-seed0", "a/ckpt-500-seed0"]) == (
        [1000.0, 500.0],
        "ckpt",
    )
    assert find_sweep_numbers(["run2/step100", "run2/last5/step300"]) == ([100.0, 300.0], "step")
    fid = KNOWN[0]
    sweep = make_sweep(bare("step1000", "step200", "step500").results, fid)
    assert [(point.x, point.name) for point in sweep.points] == [
        (200, "step200"),
        (500, "step500"),
        (1000, "step1000"),
    ]
    assert sweep.label == "step"
    for names in (["s2", "s1"], ["good", "bad"]):
        sweep = make_sweep(bare(*names).results, fid)
        assert [point.name for point in sweep.points] == names
        assert sweep.label == "", "two points are no sweep"


def test_the_classes_of_a_fake() -> None:
    """A table with a bar for each, the worst first, each the same in every page."""
    (result,) = (evaluation := bare("fake")).results
    result = replace(result, classes=classes(120))
    html = html_report(replace(evaluation, results=(result,)))
    assert html == html_report(replace(evaluation, results=(result,)))
    page = Page(html)
    assert "fake-classes" in [each.get("id") for each in page.all("section")]
    assert "And 21 more, listed in the JSON." in page.text
    assert "FID per class: mean 30.5000 over 120 classes, worst 90.0000 (n0000 " in page.text
    bars = re.findall(r'<td class="bar"><span style="width: ([\d.]+)%">', html)
    assert (len(bars), bars[0], bars[45]) == (100, "100.0", "50.0")
    assert [*map(float, bars)] == sorted(map(float, bars), reverse=True)
    assert "Values of each class, the worst FID first" in page.text


def test_the_bars_of_classes_are_of_the_value_that_sorts_them() -> None:
    """This is the first one that classes have: here more is better, so the shortest is first."""
    names = ("a", "b", "c")
    shares = (0.25, 0.5, 1.0)
    of_classes = tuple(
        ClassResult(name, 9, 9, {"recall": share})
        for name, share in zip(names, shares, strict=True)
    )
    found = Classes("folder", of_classes, {"recall": 0.58}, {"recall": ("a", 0.25)})
    evaluation = valued(bare("fake"), {"fid": 2.0, "recall": 0.5})
    result = replace(evaluation.results[0], classes=found)
    html = html_report(replace(evaluation, results=(result,)))
    widths = re.findall(r'<td class="bar"><span style="width: ([\d.]+)%">', html)
    assert widths == ["25.0", "50.0", "100.0"]
    assert "Values of each folder, the worst Recall first" in Page(html).text


def test_each_number_of_a_class_has_its_heading_beside_it() -> None:
    """In a narrow window the headings above the table are not seen."""
    (result,) = (evaluation := bare("fake")).results
    result = replace(result, classes=classes(3))
    html = html_report(replace(evaluation, results=(result,)))
    part = html.partition('id="fake-classes"')[2].partition("</table>")[0]
    first = part.partition("<tbody>")[2].partition("</tr>")[0]
    assert re.findall('data-label="([^"]+)">([^<]+)<', first) == [
        ("REAL", "50"),
        ("FAKE", "40"),
        ("FID", "90.0000"),
    ]


def test_features_of_all_values_of_classes_are_not_in_each_heading() -> None:
    evaluation = valued(bare("fake"), {"fid_64": 2.0, "kid_64": 0.5})
    source = known_of(FeatureSource.from_network("inception", 64))
    found = Classes("folder", (ClassResult("a", 9, 9, {"kid_64": 0.5}),), {"kid_64": 0.5}, {})
    result = replace(evaluation.results[0], known=source, classes=found)
    headings, _ = class_rows(result)
    assert headings == ["folder", "REAL", "FAKE", "FID (64 dimensions)", "KID"]


def test_negative_and_lacking_values_have_no_bars() -> None:
    (result,) = (evaluation := bare("fake")).results
    few = ClassResult("few", 1, 1)
    known = Classes(
        "folder", (ClassResult("a", 9, 9, {"fid": -0.5}), few), {"fid": -0.5}, {"fid": ("a", -0.5)}
    )
    result = replace(result, classes=known)
    html = html_report(replace(evaluation, results=(result,)))
    assert re.findall(r'<td class="bar"><span style="width: ([^"]+)">', html) == ["0.0%", "0.0%"]
    assert class_rows(result)[1:] == [["a", "9", "9", "-0.5000"], ["few", "1", "1", "-"]]


def test_classes_without_values_are_not_on_the_page() -> None:
    counts = Classes("class", (ClassResult("a", 5, 4), ClassResult("b", 3, 4)))
    (result,) = (evaluation := bare("fake")).results
    evaluation = replace(evaluation, results=(replace(result, classes=counts),))
    assert html_report(evaluation) == html_report(bare("fake"))
    assert class_lines(evaluation) == []
    assert Comparison.from_dict(evaluation.to_dict()["results"][0], KNOWN).classes == counts


# --- the plot, and requirements of both -----------------------------------------------------------


@pytest.mark.parametrize(("flag", "name"), [("report", "a.xhtml"), ("plot", "a.html")])
def test_suffixes_of_output_files(tmp_path: Path, flag: str, name: str) -> None:
    """Other suffixes are refused before any work is done."""
    for taken in {"report": ("a.htm", "a.HTML"), "plot": ("A.PNG", "a.htm.png")}[flag]:
        check_report_files({flag: tmp_path / taken})
    with pytest.raises(InputError, match=r"the name must end in \.(html|png)$"):
        check_report_files({flag: tmp_path / name})


def test_the_plot_is_an_image(files: list[str], tmp_path: Path) -> None:
    write_report_file(
        rich(bare("$a_b^c$ 猫", "<b>", "x" * 300), files),
        ImageLookup(),
        "plot",
        tmp_path / "plot.png",
    )
    with Image.open(io.BytesIO((tmp_path / "plot.png").read_bytes())) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (1440, 720)
        assert len(set(image.convert("L").tobytes())) > 20, "the plot is not empty"


def test_a_page_can_be_without_an_fid() -> None:
    evaluation = bare("fake")
    result = replace(evaluation.results[0], metrics={"kid": 0.1, "kid_std": 0.01})
    evaluation = replace(evaluation, results=(result,))
    assert heading(html_report(evaluation)) == "KID 0.100 ± 0.010"


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"report": tmp_path / "page.html", "plot": tmp_path / "plot.png"}
    check_report_files(files)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for setting, file in files.items():
        with pytest.raises(
            InputError, match=rf"^{setting} needs the package matplotlib: pip install"
        ):
            check_report_files({setting: file})
