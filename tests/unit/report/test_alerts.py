"""Warnings about several sets are said once, the worst first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fidtool.errors import ResultWarning, merge_warnings
from fidtool.result.evaluation import Comparison
from support.command_line import Run
from support.feature_sets import context_alone
from support.pictures import make_pictures
from support.places import TINY
from support.report_samples import bare

FEW = "too few for 2048 dimensions"


def odd(name: str, text: str = "odd", detail: str = "") -> ResultWarning:
    return ResultWarning(name, text, detail=detail)


@pytest.mark.parametrize(
    ("warnings", "expected"),
    [
        ([odd("a/"), odd("b/")], ["a/, b/: odd"]),
        ([odd("a/"), odd("a/"), odd("a/", "other")], ["a/: odd", "a/: other"]),
        (
            [odd("a/", FEW, "only 60 images"), odd("b/", FEW, "only 60 images")],
            [f"a/, b/ (only 60 images): {FEW}"],
        ),
        (
            [odd("a/", FEW, "9 images"), odd("b/", FEW, "8 images")],
            [f"a/ (9 images): {FEW}", f"b/ (8 images): {FEW}"],
        ),
        (
            [odd("", "a/ is odd"), odd("", "a/ is odd"), odd("", "b/ is odd")],
            ["a/ is odd", "b/ is odd"],
        ),
        (
            [odd("", "--num has no effect: it is 1"), odd("a/")],
            ["--num has no effect: it is 1", "a/: odd"],
        ),
        ([odd("a: b (1)"), odd("b/")], ["a: b (1), b/: odd"]),
        ([odd("a/:\nb/"), odd("b/")], ["a/:\nb/, b/: odd"]),
    ],
)
def test_what_holds_for_several_sets_is_said_once(
    warnings: list[ResultWarning], expected: list[str]
) -> None:
    assert [*map(str, merge_warnings(warnings))] == expected


def test_a_metric_may_add_a_sentence() -> None:
    context = context_alone()
    context.warnings.extend(["odd", odd("fake")])
    assert context.said == [ResultWarning("", "odd"), odd("fake")]


def test_more_than_six_sets_are_counted() -> None:
    names = [f"s{number}" for number in range(20)]
    (warning,) = merge_warnings(
        ResultWarning(name, FEW, "high", "only 60 images") for name in names
    )
    assert str(warning) == f"s0, s1, s2, s3, s4, s5 and 14 more (only 60 images): {FEW}"
    (warning,) = merge_warnings(map(odd, names[:7]))
    assert str(warning) == "s0, s1, s2, s3, s4, s5 and 1 more: odd"


def test_the_worst_comes_first_and_severities_are_kept() -> None:
    found = merge_warnings(
        [
            ResultWarning("a", "x"),
            ResultWarning("b", "y", "medium"),
            ResultWarning("", "plain"),
            ResultWarning("b", "x", "high"),
            ResultWarning("c", "y", "medium"),
        ]
    )
    assert [(str(warning), warning.severity) for warning in found] == [
        ("b: x", "high"),
        ("b, c: y", "medium"),
        ("a: x", "low"),
        ("plain", "low"),
    ]


def test_a_saved_result_keeps_warnings() -> None:
    (result,) = bare("fake").results
    result = replace(
        result,
        warnings=(ResultWarning("fake", "x", "high"), ResultWarning("real", "y", detail="z")),
    )
    content = result.to_dict()
    assert content["warnings"] == [
        {"set": "fake", "text": "x", "severity": "high", "detail": "", "message": "fake: x"},
        {"set": "real", "text": "y", "severity": "low", "detail": "z", "message": "real (z): y"},
    ]
    assert Comparison.from_dict(content, result.known) == result


def test_warnings_of_all_fakes() -> None:
    """Also of sets behind URLs with secrets, as which warnings name them without."""
    secret, plain = "https://me:word@host/b.zip", "https://host/b.zip"
    evaluation = bare("a", secret)
    results = [
        replace(
            result,
            warnings=(
                odd(name, FEW, "only 60 images"),
                odd("real", FEW, "only 60 images"),
                ResultWarning("", "--num: odd"),
            ),
        )
        for result, name in zip(evaluation.results, ("a", plain), strict=True)
    ]
    evaluation = replace(
        evaluation,
        results=tuple(results),
        run=replace(evaluation.run, warnings=(ResultWarning("", "slow"),)),
    )
    assert [*map(str, evaluation.alerts)] == [
        f"a, real, {plain} (only 60 images): {FEW}",
        "--num: odd",
        "slow",
    ]


def test_a_run_of_three_fakes(here: Run, tmp_path: Path) -> None:
    sets = [
        make_pictures(tmp_path / name, 10, seed)
        for seed, name in enumerate(("real", "a", "b", "c"))
    ]
    run = here("compute", *sets, "--extractor", TINY, "--metrics", "fid,kid", "--quiet")
    first, second = run.stderr.splitlines()
    names = ", ".join(map(str, sets))
    assert first.startswith(f"warning: {names} (only 10 images): too few for 16 dimensions: ")
    assert (
        second
        == f"warning: {sets[0]} (only 10 images): KID draws subsets of 10 images instead of 1000"
    )
