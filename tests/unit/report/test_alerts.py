"""Warnings about several sets are said once, the worst first."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from fidtool.errors import Alert, merged
from fidtool.result.evaluation import Comparison
from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.report_samples import bare

FEW = "too few for 2048 dimensions"


@pytest.mark.parametrize(
    ("warnings", "expected"),
    [
        (["a/: odd", "b/: odd"], ["a/, b/: odd"]),
        (["a/: odd", "a/: odd", "a/: other"], ["a/: odd", "a/: other"]),
        ([f"a/ (only 60 images): {FEW}", f"b/ (only 60 images): {FEW}"], [f"a/, b/ (only 60 images): {FEW}"]),
        ([f"a/ (9 images): {FEW}", f"b/ (8 images): {FEW}"], [f"a/ (9 images): {FEW}", f"b/ (8 images): {FEW}"]),
        (["a/ is odd", "a/ is odd", "b/ is odd"], ["a/ is odd", "b/ is odd"]),
        (["--num has no effect: it is 1", "a/: odd"], ["--num has no effect: it is 1", "a/: odd"]),
        (["a/b: odd", "a/: odd"], ["a/b, a/: odd"]),
        (["a: b (1): odd", "b/: odd"], ["a: b (1), b/: odd"]),
        (["a/:\nb/: odd", "b/: odd"], ["a/:\nb/: odd", "b/: odd"]),
    ],
)
def test_what_holds_for_several_sets_is_said_once(warnings: list[str], expected: list[str]) -> None:
    assert merged(warnings, ["a/", "b/", "a/b", "a: b (1)", ""]) == expected


def test_more_than_six_sets_are_counted() -> None:
    names = [f"s{number}" for number in range(20)]
    (line,) = merged([Alert(f"{name} (only 60 images): {FEW}", "high") for name in names], names)
    assert line == f"s0, s1, s2, s3, s4, s5 and 14 more (only 60 images): {FEW}"
    (line,) = merged([f"{name}: odd" for name in names[:7]], names)
    assert line == "s0, s1, s2, s3, s4, s5 and 1 more: odd"


def test_the_worst_comes_first_and_severities_are_kept() -> None:
    found = merged(
        [Alert("a: x"), Alert("b: y", "medium"), "plain", Alert("b: x", "high"), Alert("c: y", "medium")], "abc"
    )
    assert [(alert, alert.severity) for alert in found] == [
        ("b: x", "high"),
        ("b, c: y", "medium"),
        ("a: x", "low"),
        ("plain", "low"),
    ]
    assert pickle.loads(pickle.dumps(found[0])).severity == "high", "ranks exchange them"


def test_a_saved_result_keeps_severities() -> None:
    (result,) = bare("fake").results
    result = replace(result, warnings=(Alert("fake: x", "high"), Alert("real: y")))
    content = result.to_dict()
    assert (content["warnings"], content["severities"]) == (["fake: x", "real: y"], ["high", "low"])
    again = Comparison.from_dict(content, result.known)
    assert [each.severity for each in again.warnings] == ["high", "low"]  # type: ignore[attr-defined]


def test_warnings_of_all_fakes() -> None:
    """Also of sets behind URLs with secrets, as which warnings name them without."""
    secret, plain = "https://me:word@host/b.zip", "https://host/b.zip"
    evaluation = bare("a", secret)
    results = [
        replace(result, warnings=(f"{name} (only 60 images): {FEW}", f"real (only 60 images): {FEW}", "--num: odd"))
        for result, name in zip(evaluation.results, ("a", plain), strict=True)
    ]
    evaluation = replace(evaluation, results=tuple(results), run=replace(evaluation.run, warnings=("slow",)))
    assert evaluation.alerts == [f"a, real, {plain} (only 60 images): {FEW}", "--num: odd", "slow"]


def test_a_run_of_three_fakes(here: Run, tmp_path: Path) -> None:
    sets = [make_pictures(tmp_path / name, 10, seed) for seed, name in enumerate(("real", "a", "b", "c"))]
    run = here("compute", *sets, "--extractor", TINY, "--metrics", "fid,kid", "--quiet")
    first, second = run.stderr.splitlines()
    names = ", ".join(map(str, sets))
    assert first.startswith(f"warning: {names} (only 10 images): too few for 16 dimensions: ")
    assert second == f"warning: {sets[0]} (only 10 images): KID draws subsets of that size instead of 1000"
