"""Tables, pages and histories of results with several networks, or whose error bars were
withheld.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fidtool.features.protocol import Definition
from fidtool.report.html import html_report
from fidtool.report.tables import format_lines, rounded_text
from fidtool.result.changes import compare_results
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Difference, Interval, NotComputed, Uncertainty
from fidtool.result.values import FeatureSource, Value
from support.report_samples import DINO, KNOWN, bare, known_of

WITHHELD = Uncertainty(None, None, "too few images", ())
FAR = Interval(-5.0, 0.1, -5.2, -4.8)


def bar(value: float) -> Uncertainty:
    return Uncertainty(0.0, Interval(value, 0.1, value - 0.2, value + 0.2), "", ())


def further(network: str, dims: int = 1024) -> tuple[Value, ...]:
    """Return the distance of a further network of a run."""
    return known_of(FeatureSource(network, network, dims, network), "fid")


def evaluation_of(
    values: Mapping[str, Mapping[str, float]],
    known: tuple[Value, ...],
    bars: Mapping[str, Mapping[str, Uncertainty]],
) -> Evaluation:
    """Return an evaluation of FAKEs with metrics and error bars, by key, and the differences of the
    first two.

    The definitions are those of a network of the same name each.
    """
    plain, results = bare(*values), []
    for result in plain.results:
        metrics = dict(values[result.fake.name])
        results.append(
            replace(
                result,
                metrics=metrics,
                known=known,
                uncertainties=dict(bars.get(result.fake.name, {})),
            )
        )
    definition = plain.definition
    assert definition is not None
    layers = {value.features.layer for value in known}
    definitions: dict[str, Definition | None] = dict.fromkeys(layers, definition)
    names = [*values]
    pairs = (
        [Difference(*names[:2], FAR, key) for key in {**bars.get(names[0], {})}]
        if names[1:]
        else []
    )
    return replace(
        plain,
        results=tuple(results),
        definitions={**plain.definitions, **definitions},
        differences=tuple(pairs),
    )


def test_error_bars_of_a_network_that_another_file_lacks() -> None:
    one = evaluation_of({"a": {"fid": 3.0}}, KNOWN, {})
    both = {"fid": bar(2.0), "fd_dinov2": bar(90.0)}
    values = {name: {"fid": 2.0, "fd_dinov2": 90.0} for name in ("b", "c")}
    other = replace(
        evaluation_of(values, (*KNOWN, *further("dinov2")), dict.fromkeys("bc", both)),
        not_computed=(NotComputed("kid (dinov2)", "KID (dinov2)", "too few images", True),),
    )
    for saved in ({"1.json": one, "2.json": other}, {"2.json": other, "1.json": one}):
        lines = format_lines("table", saved)
        for title in ("FID", "FD (dinov2)"):
            assert (
                f"bias-corrected {title} of b minus that of c: -5.0000 (95 %: -5.2000 to -4.8000)"
                in "\n".join(lines)
            )
        assert "KID (dinov2): not computed: too few images" in lines


def test_a_difference_has_the_title_of_its_own_network() -> None:
    """Whatever the first file has: an FD is no FID."""
    first = evaluation_of({"a": {"fid": 3.0}}, KNOWN, {})
    values = {name: {"fd_dinov2": 90.0} for name in ("b", "c")}
    other = evaluation_of(values, known_of(DINO), {name: {"fd_dinov2": bar(90.0)} for name in "bc"})
    assert other.definition is not None
    own = {"features": replace(other.definition, extractor="dinov2")}
    lines = format_lines("markdown", {"1.json": first, "2.json": replace(other, definitions=own)})
    assert [line for line in lines if "minus" in line] == [
        "- bias-corrected FD (dinov2) of b minus that of c: -5.0000 (95 %: -5.2000 to -4.8000): "
        "b is better than c"
    ]


@pytest.mark.parametrize("with_bars", [(), ("b",), ("a", "b")])
def test_withheld_error_bars_have_no_column_in_the_header(with_bars: tuple[str, ...]) -> None:
    """The best by the bias-corrected FID, not by another column, whichever FAKE lacks error bars of
    another network.
    """
    values = {
        "a": {"fid": 5.0, "kid": 0.1, "kid_std": 0.001, "fd_dinov2": 1.0},
        "b": {"fid": 9.0, "kid": 0.5, "kid_std": 0.001, "fd_dinov2": 2.0},
    }
    bars = {
        name: {"fid": bar(value), "fd_dinov2": bar(7.0) if name in with_bars else WITHHELD}
        for name, value in (("a", 8.0), ("b", 4.0))
    }
    evaluation = evaluation_of(values, (*KNOWN, *further("dinov2")), bars)
    apart = Difference("a", "b", Interval(4.0, 0.1, 3.8, 4.2))
    page = html_report(replace(evaluation, differences=(apart,)))
    heading = re.sub("<[^>]*>", " ", page.partition("<h1>")[2].partition("</h1>")[0])
    assert " ".join(heading.split()).startswith("b is the best 9.0")


@pytest.mark.parametrize(("dims", "shown"), [(1024, "345.68"), (4096, "346")])
def test_digits_are_those_of_the_further_network(dims: int, shown: str) -> None:
    """As many as 2,000 images support: more than 1024 dimensions, and less than the 2048 of
    Inception or 4096.
    """
    (result,) = evaluation_of({"a": {"fd_dinov2": 345.678}}, further("dinov2", dims), {}).results
    counted = replace(
        result, real=replace(result.real, count=2000), fake=replace(result.fake, count=2000)
    )
    assert rounded_text(counted.values[0], counted) == shown


def test_a_network_whose_name_begins_like_another() -> None:
    """Another preparation for dinov2_vits14 says nothing about the values of dinov2."""
    known = further("dinov2") + further("dinov2_vits14")
    before = evaluation_of({"a": {"fd_dinov2": 5.0}}, known, {})
    assert before.definition is not None
    changed = {**before.definitions, "dinov2_vits14": replace(before.definition, resize="bicubic")}
    after = replace(before, definitions=changed)
    saved = {"1.json": before, "2.json": after}
    assert [line for line in format_lines("table", saved) if "comparable" in line] == []
    assert ("protocol", "dinov2_vits14", "resize") in compare_results(before, after)[0].besides


def test_what_is_said_of_marks_is_of_columns_that_have_them() -> None:
    """Not of a column in which all were equal, so that none is marked."""
    tied = Interval(-0.25, 0.5, -1.25, 0.75)
    values = {"a": {"fid": 12.0}, "b": {"fid": 11.0}, "c": {"fid": 13.0}}
    evaluation = evaluation_of(values, KNOWN, {name: {"fid": bar(11.0)} for name in "ab"})
    evaluation = replace(evaluation, differences=(Difference("a", "b", tied),))
    (note,) = [
        line for line in format_lines("table", {"": evaluation}) if line.startswith("In the")
    ]
    assert (
        note == "In the column FID, sets that cannot be distinguished from the best one are marked "
        "as well."
    )
    apart = replace(evaluation, differences=(Difference("a", "b", FAR),))
    assert not [line for line in format_lines("table", {"": apart}) if line.startswith("In the")]
    last = evaluation_of(values, KNOWN, {name: {"fid": bar(20.0)} for name in "ac"})
    last = replace(last, differences=(Difference("a", "c", tied),))
    assert not [line for line in format_lines("table", {"": last}) if line.startswith("In the")], (
        "b is the best"
    )
