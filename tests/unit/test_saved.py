"""Saved results: what `Evaluation.to_dict` wrote becomes the same evaluation again."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.errors import InputError
from fidtool.metrics.metric import Number
from fidtool.report.html import html_report
from fidtool.report.tables import format_lines
from fidtool.report.text import dumps
from fidtool.result.changes import (
    append_history,
    compare_results,
    difference_lines,
    read_history,
    split_by_fake,
)
from fidtool.result.evaluation import Evaluation, read_evaluation
from fidtool.result.explanations import (
    Heldout,
    Interval,
    Nearest,
    NotComputed,
    Uncertainty,
    WorstPair,
)
from fidtool.result.values import FeatureSource, Value
from fidtool.result.verify import verify
from fidtool.run.gates import check_gates
from fidtool.settings.settings import Settings
from fidtool.sources.kinds import IgnoredFiles
from support.report_samples import DINO, FURTHER, KNOWN, bare, classes, known_of, rich
from support.small_sets import make_sets


def again(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation after its JSON was written and read."""
    content = json.loads(dumps(evaluation.to_dict()))
    found = Evaluation.from_dict(content)
    assert json.loads(dumps(found.to_dict())) == content
    return found


def test_a_full_result_is_restored() -> None:
    evaluation = rich(bare("step1", "step2"), ["a.png", "b.png", "c.png"])
    found = again(evaluation)
    assert found.results == tuple(
        replace(each, known=tuple(each.values)) for each in evaluation.results
    )
    assert found.differences == evaluation.differences
    assert found.definitions == evaluation.definitions
    assert found.run == evaluation.run
    assert found.values == evaluation.values


def test_gates_and_titles_are_restored() -> None:
    evaluation = bare("fake")
    mine = Number("mine", "Mine", "higher", "of mine", layer="own")
    known = (*known_of(DINO), Value("mine", mine, FeatureSource("own", "net", 9, "net")))
    real = replace(evaluation.results[0].real, passed_over=IgnoredFiles())
    real.passed_over.kinds.update({".txt": 3, "hidden": 1})
    metrics = {"fd_dinov2": 12.0, "mine_net": 0.5}
    missed = ("fake has FD (dinov2) 12, above 10",)
    result = replace(evaluation.results[0], known=known, metrics=metrics, real=real, missed=missed)
    run = replace(evaluation.run, command="a program")
    lacking = (NotComputed("is", "IS", "why", False),)
    layers = {**evaluation.definitions, "own": None}
    found = again(
        replace(evaluation, definitions=layers, results=(result,), run=run, not_computed=lacking)
    )
    assert found.exit_code == 3
    assert [value.title for value in found.values] == ["FD (dinov2)", "Mine (net)"]
    assert found.results[0].real.passed_over == real.passed_over
    assert found.run.command == "a program"


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """PowerShell writes one."""
    (file := tmp_path / "fid.json").write_text(
        json.dumps(bare("fake").to_dict()), encoding="utf-8-sig"
    )
    assert read_evaluation(file) == Evaluation.from_dict(bare("fake").to_dict())


def test_a_run_is_restored(tmp_path: Path) -> None:
    real, fake = make_sets(tmp_path)
    evaluation = fidtool.compute(
        real, fake, dims=64, metrics="fid,prdc", report=tmp_path / "r.html"
    )
    found = again(evaluation)
    assert found.results[0].exhibit == evaluation.results[0].exhibit
    assert found.results[0].metrics == evaluation.results[0].metrics
    assert found.exit_reason == "done"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read: it is not JSON"),
        (b"{", "cannot be read: it is not JSON"),
        (b"[]", "is not the JSON of `fidtool compute`"),
        (
            b'{"results": [], "run": {}, "exit": {"reason": "stopped"}}',
            "has no values: the run failed (stopped)",
        ),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "fid.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_evaluation(file)
    assert str(file) in str(caught.value)
    assert problem in str(caught.value)


def everything() -> dict[str, Any]:
    """Return the JSON of a result that has whatever a result can have."""
    evaluation = rich(bare("fake", "other"), ["x.png", "y.png"])
    mine = Value("mine", Number("mine", "Mine", "lower", "of mine", "mine_sd"))
    known = (*KNOWN, mine, *known_of(FURTHER, "fid"))
    bar = Interval(9.0, 0.1, 8.8, 9.2)
    uncertainty = Uncertainty(1.0, bar, "", ((50, 3.0), (100, 2.0)))
    nearest = Nearest(1.0, 2.0, 0, 0, 0.1, 0.05, 0.2, 0.5, 0.1)
    results = []
    for each in evaluation.results:
        assert each.influence is not None
        assert each.exhibit is not None
        short = replace(
            each.exhibit,
            random=("x.png",),
            random_real=("y.png",),
            neighbours=each.exhibit.neighbours[:1],
        )
        short = replace(short, worst_pairs=(WorstPair("x.png", "y.png", "mine", 1.0),))
        full = replace(
            each,
            known=known,
            metrics={**each.metrics, "fd_dinov2": 3.0, "mine": 1.0, "mine_sd": 0.1},
            skipped=each.skipped[:1],
            influence=replace(each.influence, most_harmful=each.influence.most_harmful[:1]),
            exhibit=short,
            classes=classes(1),
            heldout=Heldout("held", 100, 100, {"fid": 3.0}, nearest),
            uncertainties=dict.fromkeys(("fid", "fd_dinov2"), uncertainty),
        )
        results.append(full)
    definitions = {**evaluation.definitions, "dinov2": evaluation.definition}
    lacking = (NotComputed("kid (dinov2)", "KID (dinov2)", "why", True),)
    whole = replace(
        evaluation, results=tuple(results), definitions=definitions, not_computed=lacking
    )
    content: dict[str, Any] = json.loads(dumps(whole.to_dict()))
    return content


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value, of lists to the first."""
    if place:
        yield place
    keys = [*value] if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for key in keys:
        yield from places_in(value[key], (*place, key))


EDITS = (
    None,
    True,
    -1,
    -1.5,
    10**400,
    10**20,
    1e308,
    0,
    "",
    "text",
    [],
    {},
    [None],
    {"a": None},
    ...,
)
"""What is in place of a value; ``...`` if it is missing."""


def use(content: dict[str, Any], good: Evaluation, history: Path) -> Iterator[object]:
    """Do what the commands do with a saved result."""
    found = Evaluation.from_dict(content)
    for form in ("table", "csv", "latex", "lines", "json"):
        yield format_lines(form, {"b.json": found})
    for pair in ((good, found), (found, good)):
        yield format_lines("table", dict(zip(("1.json", "2.json"), pair, strict=True)))
        yield [(each.verdict, difference_lines(each.besides)) for each in compare_results(*pair)]
    history.unlink(missing_ok=True)
    append_history(found, history)
    yield read_history(history)
    yield [
        *check_gates(
            split_by_fake(good)[0],
            Settings(uncertainty=True, fail_worse_than="b.json"),
            split_by_fake(found)[0],
        )
    ]


def test_whatever_was_edited_is_read_or_refused(tmp_path: Path) -> None:
    """Each value in turn, some of `EDITS` each: no command fails otherwise, and a page can be made
    of some.
    """
    content = everything()
    good = Evaluation.from_dict(content)
    accepted = 0
    places = [place for place in places_in(content) for _ in range(2)]
    for place, edit in zip(places, itertools.cycle(EDITS), strict=False):
        edited = json.loads(json.dumps(content)) if len(place) > 1 else dict(content)
        *above, last = place
        parent = functools.reduce(operator.getitem, above, edited)
        if edit is ...:
            del parent[last]
        else:
            parent[last] = edit
        with contextlib.suppress(InputError):
            assert [each.line for each in verify(edited, "adm")]
        with contextlib.suppress(InputError):
            assert [*use(edited, good, tmp_path / "h.jsonl")]
            accepted += 1
            if accepted % 50 == 0:
                assert html_report(Evaluation.from_dict(edited))
    assert accepted > 50


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["values"]["mine"]["number"].update(digits=True),
        lambda found: found["values"]["mine"]["number"].update(digits=10**9),
        lambda found: found["values"]["fd_dinov2"]["number"].update(name="kid"),
        lambda found: found["results"][0]["sets"]["fake"].update(count=-1),
        lambda found: found["results"][0]["metrics"].update(fid=True),
        lambda found: found["results"][0]["heldout"]["nearest"].update(closer=1e308),
        lambda found: found["differences"][0].update(first="another"),
        lambda found: found["differences"][0].update(key="another"),
        lambda found: found["results"][0]["uncertainties"]["fid"]["corrected"].update(high=-9.0),
        lambda found: found["differences"][0]["interval"].update(error=-1.0),
        lambda found: found["results"][0]["exhibit"]["worst_pairs"][0].update(key="another"),
        lambda found: found["layers"].pop("dinov2"),
        lambda found: found["protocol"].update(ddof=True),
        lambda found: found["results"][0]["metrics"].update(fid=-1.0),
        lambda found: found["results"][0]["sets"]["real"].update(framing="adm"),
        lambda found: found["results"][0]["sets"]["fake"].update(sizes={"x": 3}),
    ],
)
def test_what_no_run_writes_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    content = everything()
    damage(content)
    with pytest.raises(InputError, match="incomplete or was changed"):
        Evaluation.from_dict(content)


def test_a_crop_that_this_version_lacks_is_named() -> None:
    content = everything()
    content["results"][0]["sets"]["real"]["framing"] = "another:32"
    with pytest.raises(
        InputError, match=r"ValueError: 'another:32' is not a crop\): compute it again"
    ):
        Evaluation.from_dict(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.pop("values"),
        lambda found: found["results"][0]["sets"]["real"].pop("count"),
        lambda found: found["results"][0].update(metrics=None, count=5),
        lambda found: found["results"][0].update(metrics={}),
        lambda found: found["run"].pop("device"),
        lambda found: found["values"].update({"x": {}}),
        lambda found: found["protocol"].pop("dims"),
        lambda found: found["results"][0]["metrics"].update(fid=math.nan),
        lambda found: found["results"][0]["metrics"].update(fid=10**400),
        lambda found: found["results"][0]["warnings"].append("without a severity"),
        lambda found: found["values"]["fid"]["features"].update(dims="64"),
        lambda found: found.update(settings=[]),
        lambda found: found.update(not_computed=None),
        lambda found: found["results"][0].update(missed=[[]]),
        lambda found: found["results"][0]["sets"]["real"].update(
            passed_over={"kinds": {".txt": {}}}
        ),
    ],
)
def test_an_edited_result_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    content = bare("fake").to_dict()
    damage(content)
    with pytest.raises(InputError, match="incomplete or was changed"):
        Evaluation.from_dict(content)


@pytest.mark.parametrize(
    ("edited", "problem"),
    [
        ({"run": []}, "is not the JSON of"),
        ({"results": 7}, "is not the JSON of"),
        ({"results": [], "exit": ["failed"]}, "has no values: the run failed"),
        ({"schema": 2, "run": {"command": ["fidtool", 5]}}, "compute it again$"),
        (
            {"schema": 2, "run": {"command": ["fidtool", "compute"]}},
            "compute it again, `fidtool compute`$",
        ),
    ],
)
def test_what_is_no_result_is_refused(edited: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Also in a history, whose other lines are read."""
    content = bare("fake").to_dict() | edited
    with pytest.raises(InputError, match=problem):
        Evaluation.from_dict(content)
    history = tmp_path / "history.jsonl"
    append_history(bare("fake"), history)
    with open(history, "a") as handle:
        handle.write(f"{json.dumps(content)}\n")
    found, problems = read_history(history)
    assert len(found) == 1
    assert "line 2 is left out" in str(problems[0])


def test_a_word_that_is_none_of_the_known_ones_is_named() -> None:
    content = bare("fake").to_dict()
    content["values"]["fid"]["number"]["better"] = "less"
    with pytest.raises(
        InputError, match=r"'less' is not one of 'lower', 'higher', ''.*: compute it again"
    ):
        Evaluation.from_dict(content)


def test_a_result_without_one_of_its_keys_is_refused() -> None:
    """Except for what follows from other keys."""
    whole = bare("fake").to_dict()
    follow = {"real", "fake", "count", "path"}
    places: list[tuple[str | int, ...]] = [(), ("results", 0), ("results", 0, "sets", "real")]
    for place in places:
        for key in functools.reduce(operator.getitem, place, whole).keys() - follow:
            content = copy.deepcopy(whole)
            del functools.reduce(operator.getitem, place, content)[key]
            with pytest.raises(InputError):
                Evaluation.from_dict(content)


@pytest.mark.parametrize("schema", [None, 2, 99])
def test_a_result_of_another_schema_is_refused_with_its_command(schema: int | None) -> None:
    content = bare("fake").to_dict() | {"schema": schema}
    with pytest.raises(
        InputError, match=f"has schema {schema}, .* compute it again, `fidtool compute real fake"
    ):
        Evaluation.from_dict(content)


def test_keys_of_a_newer_version_are_ignored() -> None:
    content = bare("fake").to_dict()
    content["values"]["fid"]["newer"] = content["run"]["newer"] = content["results"][0]["newer"] = 1
    assert Evaluation.from_dict(content) == Evaluation.from_dict(bare("fake").to_dict())
