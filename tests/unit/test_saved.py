"""Saved results: what `Evaluation.to_dict` wrote becomes the same evaluation again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.errors import InputError
from fidtool.metrics.metric import Number
from fidtool.report.text import dumps
from fidtool.results import Evaluation, read_evaluation
from fidtool.saved import saved_result
from fidtool.sources.kinds import PassedOver
from support.report_samples import bare, rich
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
    assert found.results == evaluation.results
    assert found.differences == evaluation.differences
    assert found.definitions == evaluation.definitions
    assert found.run == evaluation.run
    assert found.labels == evaluation.labels


def test_gates_and_titles_are_restored() -> None:
    evaluation = bare("fake")
    mine = Number("mine", "Mine", "higher", "of mine", layer="own")
    labels = replace(evaluation.labels, network="dinov2", own_networks={"own": "net"})
    labels = replace(labels, numbers={**labels.numbers, "mine": mine})
    real = replace(evaluation.results[0].real, passed_over=PassedOver())
    real.passed_over.kinds.update({".txt": 3, "hidden": 1})
    metrics = {"fd_dinov2": 12.0, "mine_net": 0.5}
    missed = ("fake has FD (dinov2) 12, above 10",)
    result = replace(evaluation.results[0], labels=labels, metrics=metrics, real=real, missed=missed)
    run = replace(evaluation.run, command="a program")
    found = again(replace(evaluation, results=(result,), run=run, not_computed={"is": "why"}))
    assert found.exit_code == 3
    assert found.results[0].titles == {"fid": "FD (dinov2)", "mine": "Mine (net)"}
    assert found.results[0].real.passed_over == real.passed_over
    assert found.run.command == "a program"


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """PowerShell writes one."""
    (file := tmp_path / "fid.json").write_text(json.dumps(bare("fake").to_dict()), encoding="utf-8-sig")
    assert read_evaluation(file) == Evaluation.from_dict(bare("fake").to_dict())


def test_a_run_is_restored(tmp_path: Path) -> None:
    real, fake = make_sets(tmp_path)
    evaluation = fidtool.compute(real, fake, dims=64, metrics="fid,prdc", report=tmp_path / "r.html")
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
        (b'{"results": [], "run": {}, "exit": {"reason": "stopped"}}', "has no values: the run failed (stopped)"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "fid.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        saved_result(file)
    assert str(file) in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.pop("labels"),
        lambda found: found.pop("schema"),
        lambda found: found.update(schema=99),
        lambda found: found["results"][0].pop("count"),
        lambda found: found["results"][0].update(metrics=None, count=5),
        lambda found: found["results"][0].update(metrics={}),
        lambda found: found["run"].pop("device"),
        lambda found: found["labels"].update(numbers={"x": {}}),
        lambda found: found["protocol"].pop("dims"),
        lambda found: found["results"][0]["metrics"].update(fid=math.nan),
        lambda found: found["results"][0]["metrics"].update(fid=10**400),
        lambda found: found["results"][0]["warnings"].append("without a severity"),
        lambda found: found["labels"].update(dims="64"),
        lambda found: found.update(settings=[]),
        lambda found: found.update(not_computed=None),
        lambda found: found["results"][0].update(missed=[[]]),
        lambda found: found["results"][0]["passed_over"].update(real={"kinds": {".txt": {}}}),
    ],
)
def test_an_edited_result_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    content = bare("fake").to_dict()
    damage(content)
    with pytest.raises(InputError, match="incomplete or was changed"):
        Evaluation.from_dict(content)


def test_keys_of_a_newer_version_are_ignored() -> None:
    content = bare("fake").to_dict()
    content["labels"]["newer"] = content["run"]["newer"] = content["results"][0]["newer"] = 1
    assert Evaluation.from_dict(content) == Evaluation.from_dict(bare("fake").to_dict())
