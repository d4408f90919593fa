"""Metrics from code of the user's: computed as fidtool's own, listed as them, and shown wherever they are."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.labels import Labels
from support.command_line import Run
from support.places import SCRIPTS, TINY
from support.small_sets import make_sets

MIND = f"{SCRIPTS / 'examples' / 'mind.py'}:MIND"
FEW = ("--metric-option", "mind.directions=70", "--metric-option", "mind.seed=3")
FAULTS = """
from dataclasses import dataclass
from fidtool import InputError, Metric, Number

@dataclass(frozen=True, kw_only=True)
class Faulty(Metric):
    name = "faulty"
    numbers = (Number("faulty", "Faulty", "lower", "nothing"),)
    def compute(self, real, fake, context):
        return {"faulty": 1.0 / 0.0}

class Other(Faulty):
    def compute(self, real, fake, context):
        return {"another": 1.0}

class Endless(Faulty):
    def compute(self, real, fake, context):
        return {"faulty": float("inf")}

class Picky(Faulty):
    def check_count(self, images, has):
        raise InputError(f"too few: {has}")
    fake_features = True

class Taken(Faulty):
    name = "kid"

NUMBER = 3
"""


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


@pytest.fixture
def mind() -> Any:
    """The example's class."""
    spec = importlib.util.spec_from_file_location("mind_example", SCRIPTS / "examples" / "mind.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mind_example"] = module
    spec.loader.exec_module(module)
    return module.MIND


def independent_mind(sets: tuple[Path, Path], directions: int, seed: int) -> float:
    """From the features that fidtool keeps, by NumPy, one direction after the other."""
    found = [fidtool.compute_statistics(folder, extractor=TINY, metrics="kid") for folder in sets]
    one, other = (np.asarray(each.features, dtype=np.float64) for each in found if each is not None)
    count, dims = min(len(one), len(other)), one.shape[1]
    generator = torch.Generator().manual_seed(seed)
    values = []
    for row in torch.randn(directions, dims, generator=generator, dtype=torch.float64).numpy():
        row = row / np.sqrt((row**2).sum())
        apart = np.sort((one[:count] * row).sum(1)) - np.sort((other[:count] * row).sum(1))
        values.append((apart**2).mean())
    return 3 * dims * float(np.mean(values))


def test_a_metric_of_a_file_stands_in_every_output(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = ("compute", *sets, "--extractor", TINY, "--metrics", f"fid,{MIND}", *FEW)
    outcome = here(*arguments, "--json", "--report", "page.html")
    labels = Labels(TINY, 16)
    key = f"mind_{labels.key('fid').removeprefix('fd_')}"
    assert list(outcome.metrics) == [labels.key("fid"), key]
    assert outcome.metrics[key] == pytest.approx(independent_mind(sets, 70, 3), rel=1e-12)
    settings = outcome.json["settings"]["mind"]
    assert (settings["directions"], settings["seed"]) == (70, 3)
    assert re.fullmatch(r"mind\.py:MIND@[0-9a-f]{12}", settings["source"])
    assert outcome.json["run"]["config"]["metrics"] == ["fid", MIND]
    assert outcome.json["run"]["config"]["metric_options"] == {"mind.directions": 70, "mind.seed": 3}
    assert "mind" in outcome.json["run"]["seconds"]
    page = (tmp_path / "page.html").read_text()
    assert "3 D × the mean squared difference of the sorted projections" in page
    assert f"{outcome.metrics[key]:.4f}" in page
    lines = here(*arguments).stdout.splitlines()
    assert lines[1] == f"MIND ({TINY}): {outcome.metrics[key]:.4f}"


def test_in_python_a_metric_is_an_object(sets: tuple[Path, Path], mind: Any) -> None:
    real, fake = sets
    found = fidtool.compute(real, fake, extractor=TINY, metrics=["fid", mind(directions=70, seed=3)])
    value = found.results[0].value("mind")
    assert value == pytest.approx(independent_mind(sets, 70, 3), rel=1e-12)
    options = {"mind.directions": 70, "mind.seed": 3}
    again = fidtool.compute(real, fake, extractor=TINY, metrics=["fid", MIND], metric_options=options)
    assert dict(again.results[0].metrics) == dict(found.results[0].metrics)
    assert found.run.config["metrics"] == ["fid", "mind_example:MIND"]


def test_fidtools_own_metrics_are_objects_too(sets: tuple[Path, Path]) -> None:
    kid = fidtool.KID(subset_size=9, subsets=4)
    found = fidtool.compute(*sets, extractor=TINY, metrics=["fid", kid])
    flat = fidtool.compute(*sets, extractor=TINY, metrics="fid,kid", kid_subset_size=9, kid_subsets=4)
    assert dict(found.results[0].metrics) == dict(flat.results[0].metrics)
    assert found.to_dict()["run"]["config"] == flat.to_dict()["run"]["config"]
    assert found.settings == flat.settings
    for keywords in ({"kid_subset_size": 8}, {"kid_subset_size": 1000}):
        with pytest.raises(fidtool.InputError, match=r"kid_subset_size is given beside KID\(\.\.\.\)"):
            fidtool.compute(*sets, extractor=TINY, metrics=["fid", kid], **keywords)  # type: ignore[arg-type]
    with pytest.raises(fidtool.InputError, match="subset_size must be at least 2, not 1"):
        fidtool.KID(subset_size=1)
    with pytest.raises(fidtool.InputError, match="kid is asked for twice, with different settings"):
        fidtool.compute(*sets, extractor=TINY, metrics=["kid", kid])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--metrics", "nofile.py:MIND"], 2, "no file nofile.py (from --metrics nofile.py:MIND)"),
        (["--metrics", "faults.py:Nothing"], 2, "faults.py:Nothing failed: AttributeError"),
        (["--metrics", "faults.py:NUMBER"], 2, "faults.py:NUMBER is a int; it must be a fidtool.Metric"),
        (["--metrics", "faults.py:Taken"], 2, "kid has the name of one of fidtool's metrics or numbers"),
        (["--metrics", "faults.py:Picky"], 2, "too few: "),
        (["--metrics", "faults.py:Faulty"], 1, "the metric faulty failed: ZeroDivisionError: "),
        (["--metrics", "faults.py:Other"], 1, "the metric faulty gave another; it declares faulty"),
        (["--metrics", "faults.py:Endless"], 1, "the metric faulty gave inf for faulty"),
        (["--metrics", MIND, "--metric-option", "mind.directions=0"], 2, "directions must be at least 1, not 0"),
        (["--metrics", MIND, "--metric-option", "mind.directions=x"], 2, "directions must be an integer, not 'x'"),
        (["--metrics", MIND, "--metric-option", "mind.way=3"], 2, "has no setting 'way'; there are directions, seed"),
        (["--metric-option", "mind.seed=3"], 2, "a setting of mind, which is not computed: add it to --metrics"),
        (["--metric-option", "mind"], 2, "'mind' is not NAME.SETTING=VALUE"),
        (["--metrics", "kid", "--metric-option", "kid.seed=3", "--metric-option", "kid.seed=4"], 2, "given twice"),
        (["--metrics", "kid", "--metric-option", "kid.seed=3", "--kid-seed", "4"], 2, "kid.seed is given twice"),
        (["--metrics", "Kid"], 2, "unknown metric 'Kid'; there are fid, kid, is"),
    ],
)
def test_refusals(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    outcome = here("compute", *sets, "--extractor", TINY, *arguments)
    assert outcome.status == status
    assert message in outcome.error
    assert "Traceback" not in outcome.stderr


def test_metrics_are_listed(here: Run) -> None:
    names = [line.partition(":")[0] for line in here("metrics").stdout.splitlines()]
    assert names == ["fid", "kid", "is", "prdc", "sfid", "fid-infinity", "cmmd"]
    (listed,) = here("metrics", MIND, "--json").json["metrics"]
    assert listed["name"] == "mind"
    assert [setting["name"] for setting in listed["settings"]] == ["directions", "seed"]
    shown = here("metrics", MIND, "kid").stdout
    assert "--metric-option mind.directions=1000: Number of random directions." in shown
    assert "KID (lower is better): squared MMD" in shown
    assert here("metrics", "nothing").error.startswith("error: unknown metric 'nothing'")
