"""The table of several values: its cells, the marked ones, and how it is fitted to the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fidtool.report.tables import format_lines, rounded_text
from fidtool.report.text import verdict_lines
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Difference, Interval, Uncertainty
from fidtool.result.values import FeatureSource
from support.report_samples import bare, known_of

LEGEND = "* best of its column"
FAKES = {
    "a": {"fid": 12.0, "is": 9.0, "is_std": 0.5, "kid": 0.02, "kid_std": 0.001},
    "b": {"fid": 11.0, "is": 8.0, "is_std": 0.25, "kid": 0.01, "kid_std": 0.002},
}


def table_lines(evaluation: Evaluation) -> list[str]:
    return format_lines("table", {"": evaluation})


def evaluation_of(fakes: Mapping[str, Mapping[str, float]], real: str = "real") -> Evaluation:
    """Return an evaluation with these metric values of these FAKEs."""
    plain = bare(*fakes, real=real)
    return replace(
        plain,
        results=tuple(
            replace(result, metrics=dict(fakes[result.fake.name])) for result in plain.results
        ),
    )


def cells(lines: list[str]) -> list[list[str]]:
    """Return the cells of a table of one block, without the legend."""
    return [re.split(r"\s{2,}", line) for line in lines if line != LEGEND]


def test_one_row_per_fake_and_one_column_per_value() -> None:
    assert table_lines(evaluation_of(FAKES)) == [
        "FAKE   FID        KID ± s.d.     IS ± s.d.",
        "a     12.0   0.0200 ± 0.0010   9.00 ± 0.50*",
        "b     11.0*  0.0100 ± 0.0020*  8.00 ± 0.25",
        LEGEND,
    ]


def test_no_value_of_a_diagnostic_is_the_best() -> None:
    evaluation = evaluation_of(
        {"a": {"fid": 12.0, "authpct": 50.0}, "b": {"fid": 11.0, "authpct": 60.0}}
    )
    assert table_lines(evaluation) == [
        "FAKE   FID   AuthPct diagnostic",
        "a     12.0                   50",
        "b     11.0*                  60",
        LEGEND,
    ]
    assert "& AuthPct diagnostic" in "".join(format_lines("latex", {"": evaluation}))


def test_features_of_all_values_are_named_once() -> None:
    """Titles such as ``KID (64 dimensions)`` would make each column twice as wide."""
    evaluation = evaluation_of(
        {name: {"fid_64": each["fid"], "kid_64": each["kid"]} for name, each in FAKES.items()}
    )
    known = known_of(FeatureSource.from_network("inception", 64))
    evaluation = replace(
        evaluation, results=tuple(replace(each, known=known) for each in evaluation.results)
    )
    assert table_lines(evaluation) == [
        "Features of all values: 64 dimensions",
        "FAKE  FID (64 dimensions)     KID",
        "a                   12.00   0.020",
        "b                   11.00*  0.010*",
        LEGEND,
    ]


@pytest.mark.parametrize(
    ("values", "count", "shown"),
    [
        ({"fid": 359.78943}, 60, "360"),
        ({"fid": 12.34567}, 2048, "12.3"),
        ({"fid": 359.78943}, 2049, "359.79"),
        ({"fid": 0.0123456}, 50_000, "0.0123"),
        ({"fid": 12.34567}, None, "12.35"),
        ({"fid": 0.0}, 60, "0.000"),
        ({"kid": 0.0123456}, 60, "0.012"),
        ({"kid": -0.0003874}, 256, "-0.0004"),
        ({"kid": 0.0123456}, 2000, "0.01235"),
        ({"kid": 0.0123456}, 50_000, "0.012346"),
        ({"kid": 0.0123456, "kid_std": 0.00036}, 60, "0.01235 ± 0.00036"),
        ({"kid": -0.0000004, "kid_std": 1e-9}, 60, "-0.000000 ± 0.000000"),
        ({"is": 123.456, "is_std": 23.4}, 60, "123 ± 23"),
        ({"is": 123.456, "is_std": 0.0}, 60, "123.4560 ± 0.0000"),
        ({"fid_infinity": 3.98765, "fid_infinity_error": 0.0336}, 50_000, "3.988 ± 0.034"),
        ({"precision": 0.63333}, 60, "0.63"),
        ({"recall": 0.63333}, 999, "0.633"),
        ({"density": 0.63333}, 10_000, "0.6333"),
        ({"coverage": 0.63333}, 1_000_000, "0.6333"),
        ({"coverage": 0.63333}, None, "0.6333"),
        ({"cmmd": 1.23456}, 60, "1.2346"),
        ({"mifid": 359.78943}, 60, "360"),
        ({"vendi": 12.34567}, 60, "12.35"),
        ({"authpct": 88.33333}, 60, "88"),
        ({"authpct": 88.33333}, 300, "88.3"),
        ({"f_score": 0.63333}, 60, "0.63"),
        ({"mind": 12.34567}, 60, "12.3"),
        ({"mind": 12.34567}, 5000, "12.35"),
    ],
)
def test_digits_that_can_be_relied_on(
    values: dict[str, float], count: int | None, shown: str
) -> None:
    """To the second digit of the spread; Fréchet distances without one as in papers, with fewer of
    few images.
    """
    (result,) = evaluation_of({"a": values}).results
    counted = replace(
        result, real=replace(result.real, count=count), fake=replace(result.fake, count=count)
    )
    assert rounded_text(counted.values[0], counted) == shown


def test_equal_values_are_not_the_best() -> None:
    assert "*" not in "".join(table_lines(evaluation_of({"a": FAKES["a"], "b": FAKES["a"]})))
    three = evaluation_of({"a": {"fid": 1.0}, "b": {"fid": 1.0}, "c": {"fid": 2.0}})
    assert [row[-1] for row in cells(table_lines(three))] == ["FID", "1.00*", "1.00*", "2.00"]


def test_real_is_never_the_best() -> None:
    lines = table_lines(evaluation_of({**FAKES, "real": {**FAKES["a"], "fid": 0.0}}))
    never = (
        "Sets that contain images of REAL are never marked as best. If there is only one other "
        "set, it is not marked either."
    )
    assert lines[-2:] == [LEGEND, never]
    assert [row[1] for row in cells(lines[:-2])] == ["FID", "12.0", "11.0*", "0.000"]
    only = table_lines(evaluation_of({"a": {"fid": 3.0}, "real": {"fid": 0.0}}))
    assert "*" not in "".join(only)
    assert only[-1] == never
    assert "images of REAL" not in "".join(table_lines(evaluation_of({"real": {"fid": 0.0}})))


def with_bars(difference: Interval) -> Evaluation:
    """Return an evaluation of a, b and c, of which a and b have error bars and this difference."""
    plain = evaluation_of(
        {name: {"fid": values["fid"]} for name, values in FAKES.items()} | {"c": {"fid": 13.0}}
    )
    bars = [Interval(11.5, 0.25, 11.0, 12.0), Interval(11.75, 0.5, 10.75, 12.75), None]
    results = tuple(
        replace(result, uncertainties={"fid": Uncertainty(None, bar, "", ())})
        for result, bar in zip(plain.results, bars, strict=True)
    )
    return replace(plain, results=results, differences=(Difference("a", "b", difference),))


def test_error_bars_are_columns_and_verdicts_follow() -> None:
    evaluation = with_bars(Interval(-0.25, 0.125, -0.5, -0.125))
    lines = table_lines(evaluation)
    assert cells(lines[:4]) == [
        ["FAKE", "FID", "bias-corrected FID ± s.e.", "95 % interval"],
        ["a", "12.00", "11.50 ± 0.25*", "11.00 to 12.00"],
        ["b", "11.00*", "11.75 ± 0.50", "10.75 to 12.75"],
        ["c", "13.0", "-", "-"],
    ]
    assert lines[4:] == [LEGEND, *verdict_lines(evaluation)]
    assert lines[5].endswith("a is better than b")


def test_fakes_that_cannot_be_distinguished_from_the_best_are_marked() -> None:
    lines = table_lines(with_bars(Interval(-0.25, 0.5, -1.25, 0.75)))
    assert cells(lines[:4]) == [
        ["FAKE", "FID", "bias-corrected FID ± s.e.", "95 % interval"],
        ["a", "12.00*", "11.50 ± 0.25", "11.00 to 12.00"],
        ["b", "11.00*", "11.75 ± 0.50", "10.75 to 12.75"],
        ["c", "13.0", "-", "-"],
    ]
    assert " ".join(" ".join(lines[4:]).split()) == (
        f"{LEGEND} In the column FID, sets that cannot be distinguished from the best one are "
        "marked as well. bias-corrected FID of a minus that of b: -0.2500 (95 %: -1.2500 to "
        "+0.7500): a and b cannot be distinguished"
    )


def marked(saved: Mapping[str, Evaluation], column: int) -> list[str]:
    """Return the FAKEs of several files whose values in a column are marked."""
    rows = cells([line for line in format_lines("table", saved) if "is better" not in line])
    return [row[0] for row in rows[1:] if len(row) > column and row[column].endswith("*")]


def with_bar(fake: str, value: float, error: float | None) -> Evaluation:
    """Return an evaluation of one FAKE, with an error bar if ``error`` is not None."""
    (plain,) = evaluation_of({fake: {"fid": value}}).results
    bar = None if error is None else Interval(value, error, value - 2 * error, value + 2 * error)
    return replace(
        bare(fake), results=(replace(plain, uncertainties={"fid": Uncertainty(None, bar, "", ())}),)
    )


def test_error_bars_of_several_files_are_compared() -> None:
    saved = {
        "1.json": with_bar("a", 11.0, 0.5),
        "2.json": with_bar("b", 11.5, 0.5),
        "3.json": with_bar("c", 20.0, 0.5),
    }
    assert marked(saved, 1) == marked(saved, 2) == ["a", "b"]
    assert any(
        "cannot be distinguished from the best" in line for line in format_lines("table", saved)
    )


def test_a_fake_without_error_bars_is_not_tied_by_those_of_another_file() -> None:
    """The same FAKE was computed on two days: only the second has error bars, and its images are
    better.
    """
    saved = {
        "1.json": with_bar("a", 99.0, None),
        "2.json": with_bars(Interval(-0.25, 0.5, -1.25, 0.75)),
    }
    assert marked(saved, 1) == ["a (2.json)", "b (2.json)"]
