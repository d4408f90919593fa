"""Custom metrics: they are computed, listed and shown in every output like fidtool's own."""

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
from fidtool.result.values import FeatureSource
from support.command_line import Run
from support.places import COLOURS, EXAMPLES, TINY
from support.small_sets import make_sets

SLICED = f"{EXAMPLES / 'sliced.py'}:Sliced"
FEW = "few = Sliced(directions=70, seed=3)\n"
FAULTS = """
from dataclasses import dataclass
from fidtool import InputError, Metric, NetworkChoice, Number

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

class Huge(Faulty):
    def compute(self, real, fake, context):
        return {"faulty": 10**400}

class Whole(Faulty):
    summary = (Number("whole", "Whole", "lower", "nothing"),)
    def compute(self, real, fake, context):
        return {"faulty": 1.0}
    def summarize(self, values):
        return {"whole": float("nan")}

class Picky(Faulty):
    def check(self, facts):
        if facts.images is not None:
            raise InputError(f"too few: {facts.has}")
    fake_features = True

class Taken(Faulty):
    name = "kid"

class TakenToo(Faulty):
    name = "mind"
    numbers = (Number("my_mind", "MIND", "lower", "nothing"),)

class TakenElsewhere(Faulty):
    name = "fd"

class Titled(Faulty):
    name = "FD"
    numbers = (Number("titled", "Titled", "lower", "nothing"),)

class Same(Faulty):
    pass

class Twin(Faulty):
    name = "twin"

class Bare(Metric):
    name = "bare"
    numbers = (Number("bare", "Bare", "lower", "nothing"),)
    def compute(self, real, fake, context):
        return {"bare": 1.0}

class Nameless(Faulty):
    name = ""

class Numberless(Faulty):
    name = "numberless"
    numbers = ()

class Nowhere(Faulty):
    name = "nowhere"
    numbers = (Number("nowhere", "Nowhere", "lower", "nothing", layer="mine"),)

class Unnamed(Faulty):
    name = "unnamed"
    numbers = (Number("unnamed", "Unnamed", "lower", "nothing"),)
    def network(self):
        return NetworkChoice("timm:resnet18")

class Greedy(Faulty):
    def compute(self, real, fake, context):
        return {"faulty": float(real.rows.mean())}

class Plain(Faulty):
    def compute(self, real, fake, context):
        return 1.0

class Lost(Faulty):
    name = "lost"
    numbers = (Number("lost", "Lost", "lower", "nothing", layer="mine"),)
    def network(self):
        return 1 / 0

class Text(Lost):
    def network(self):
        return "dinov2"

NUMBER = 3
"""

LIMITED = """
from dataclasses import dataclass
from fidtool import InputError, Metric, Number, Setting
from fidtool.errors import option

@dataclass(frozen=True, kw_only=True)
class Limited(Metric):
    directions: int = Setting(2).help("An even number.")
    name = "limited"
    numbers = (Number("limited", "Limited", "lower", "nothing"),)
    def check(self, facts):
        if self.directions % 2:
            raise InputError(f"{option(self.named('directions'), self.directions)} is odd")
    def compute(self, real, fake, context):
        return {"limited": 1.0}

three = Limited(directions=3)
"""


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


@pytest.fixture
def sliced() -> Any:
    """The metric class of the example."""
    spec = importlib.util.spec_from_file_location("sliced_example", EXAMPLES / "sliced.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sliced_example"] = module
    spec.loader.exec_module(module)
    return module.Sliced


def independent_sliced(sets: tuple[Path, Path], directions: int, seed: int) -> float:
    """Compute the sliced distance with NumPy from fidtool's stored features, one direction at a
    time.
    """
    found = [fidtool.compute_statistics(folder, extractor=TINY, metrics="kid") for folder in sets]
    one, other = (np.asarray(each.features, dtype=np.float64) for each in found if each is not None)
    count = min(len(one), len(other))
    generator = torch.Generator().manual_seed(seed)
    values = []
    for row in torch.randn(
        directions, one.shape[1], generator=generator, dtype=torch.float64
    ).numpy():
        row = row / np.sqrt((row**2).sum())
        apart = np.sort((one[:count] * row).sum(1)) - np.sort((other[:count] * row).sum(1))
        values.append(np.abs(apart).mean())
    return float(np.mean(values))


def test_a_metric_from_a_file_is_in_every_output(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """The metric is an object in the file, which has its settings."""
    (tmp_path / "sliced.py").write_text((EXAMPLES / "sliced.py").read_text() + FEW)
    arguments = ("compute", *sets, "--extractor", TINY, "--metrics", "fid,sliced.py:few")
    outcome = here(*arguments, "--json", "--report", "page.html")
    features = FeatureSource.from_network(TINY, 16)
    key = features.key("sliced")
    assert list(outcome.metrics) == [features.key("fd"), key]
    assert outcome.metrics[key] == pytest.approx(independent_sliced(sets, 70, 3), rel=1e-12)
    settings = outcome.json["settings"]["sliced"]
    assert (settings["directions"], settings["seed"]) == (70, 3)
    assert re.fullmatch(r"sliced\.py:few@[0-9a-f]{12}", settings["source"])
    assert outcome.json["run"]["config"]["metrics"] == ["fid", "sliced.py:few"]
    assert outcome.json["run"]["config"]["metric_options"] == {
        "sliced.directions": 70,
        "sliced.seed": 3,
    }
    assert "sliced" in outcome.json["run"]["seconds"]
    page = (tmp_path / "page.html").read_text()
    assert "mean difference of the sorted projections" in page
    assert f"{outcome.metrics[key]:.4f}" in page
    lines = here(*arguments).stdout.splitlines()
    assert lines[1] == f"Sliced distance ({TINY}): {outcome.metrics[key]:.4f}"


def test_in_python_a_metric_is_an_object(sets: tuple[Path, Path], sliced: Any) -> None:
    real, fake = sets
    found = fidtool.compute(
        real, fake, extractor=TINY, metrics=["fid", sliced(directions=70, seed=3)]
    )
    value = found.results[0].value("sliced")
    assert value == pytest.approx(independent_sliced(sets, 70, 3), rel=1e-12)
    assert found.run.config["metrics"] == ["fid", "sliced_example:Sliced"]


def test_built_in_metrics_are_objects_as_well(sets: tuple[Path, Path]) -> None:
    kid = fidtool.KID(subset_size=9, subsets=4)
    found = fidtool.compute(*sets, extractor=TINY, metrics=["fid", kid])
    assert found.run.config["metrics"] == ["fid", "kid"]
    assert (found.run.config["kid_subset_size"], found.run.config["kid_subsets"]) == (9, 4)
    assert found.settings["kid"]["subset_size"] == 9
    with pytest.raises(fidtool.InputError, match="kid is requested twice, with different settings"):
        fidtool.compute(*sets, extractor=TINY, metrics=["kid", kid])


def test_a_keyword_for_a_metrics_setting_says_what_to_write() -> None:
    compute: Any = fidtool.compute
    for keywords, words in (
        (
            {"metrics": "fid,kid", "kid_subset_size": 9},
            "write metrics=[fidtool.KID(subset_size=...)]",
        ),
        ({"nearest_k": 3, "ties": "inclusive"}, "write metrics=[fidtool.PRDC(nearest_k=...)]"),
        ({"metric": "fid"}, "did you mean metrics?"),
    ):
        with pytest.raises(TypeError, match=re.escape(words)):
            compute("real", "fake", **keywords)
    check: Any = fidtool.check
    with pytest.raises(TypeError, match=r"'kid_subset_size'$"):
        check("real", kid_subset_size=9)


def test_different_spellings_of_a_path_are_one_metric(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "faults.py").write_text(FAULTS.replace("1.0 / 0.0", "1.0"))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "faults.py").write_text(
        FAULTS.replace("1.0 / 0.0", "2.0").replace('"faulty"', '"other"')
    )
    both = "faults.py:Faulty,./faults.py:Faulty,below/faults.py:Faulty"
    assert [
        *here("compute", *sets, "--extractor", TINY, "--metrics", both, "--json").metrics.values()
    ] == [1.0, 2.0]


NETWORKS = """
from dataclasses import dataclass
from fidtool import Metric, NetworkChoice, Number
SPEC = "{spec}"

@dataclass(frozen=True, kw_only=True)
class Apart(Metric):
    name = "apart"
    numbers = (Number("apart", "Apart", "lower", "difference of the means", layer="{layer}"),)
    real_features = fake_features = True
    def network(self):
        return NetworkChoice(SPEC)
    def compute(self, real, fake, context):
        return {{"apart": float(abs(real.rows.mean(0) - fake.rows.mean(0)).max())}}
"""


def test_a_metric_may_use_its_own_network(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "apart.py").write_text(NETWORKS.format(spec=COLOURS, layer="mine"))
    run = ("compute", "--extractor", TINY, "--metrics", "fid,apart.py:Apart", "--json")
    outcome = here(*run, *sets)
    found = [
        fidtool.compute_statistics(folder, extractor=COLOURS, metrics="kid") for folder in sets
    ]
    one, other = (each.features for each in found if each is not None)
    assert one is not None
    assert other is not None
    value = outcome.json["results"][0]["metrics"]
    assert list(value.values())[1] == float(abs(one.mean(0) - other.mean(0)).max())
    assert outcome.json["layers"]["mine"]["dims"] == 6

    made = (
        "stats",
        sets[0],
        "--extractor",
        TINY,
        "--metrics",
        "fid,apart.py:Apart",
        "-o",
        "real.npz",
    )
    assert here(*made).status == 0
    assert here(*run, "real.npz", sets[1]).json["results"][0]["metrics"] == value
    assert here("stats", sets[0], "--extractor", TINY, "-o", "plain.npz").status == 0
    assert (
        "plain.npz has no statistics of the features of Apart: "
        in here(*run, "plain.npz", sets[1]).error
    )

    (tmp_path / "clash.py").write_text(NETWORKS.format(spec=TINY, layer="embedding"))
    refused = here(
        "compute", "--metrics", "cmmd,clash.py:Apart", "--cmmd-extractor", COLOURS, *sets
    )
    words = (
        "apart uses another network for the layer 'embedding' than another metric or --extractor "
        "does: choose another"
    )
    assert refused.status == 2
    assert words in refused.error


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--metrics", "nofile.py:Sliced"],
            2,
            "no file nofile.py (from --metrics nofile.py:Sliced)",
        ),
        (
            ["--metrics", "faults.py:Nothing"],
            2,
            "Nothing failed: AttributeError: faults.py has no Nothing",
        ),
        (
            ["--metrics", "faults.py:NUMBER"],
            2,
            "faults.py:NUMBER is a int; it must be a fidtool.Metric",
        ),
        (["--metrics", "broken.py:Any"], 2, "--metrics broken.py:Any failed: ZeroDivisionError: "),
        (
            ["--metrics", "faults.py:Taken"],
            2,
            "the metrics KID and Taken both have the name kid: rename one",
        ),
        (
            ["--metrics", "faults.py:TakenToo"],
            2,
            "the metrics MIND and TakenToo both have the name mind: rename one",
        ),
        (
            ["--metrics", "faults.py:TakenElsewhere"],
            2,
            "the metrics FID and TakenElsewhere both have the name fd: ",
        ),
        (["--metrics", "faults.py:Titled"], 1, "the metric FD failed: ZeroDivisionError: "),
        (["--metrics", "faults.py:Picky"], 2, "too few: "),
        (["--metrics", "faults.py:Faulty"], 1, "the metric faulty failed: ZeroDivisionError: "),
        (
            ["--metrics", "faults.py:Other"],
            1,
            "the metric faulty returned {'another': 1.0}, but declares faulty",
        ),
        (["--metrics", "faults.py:Endless"], 1, "the metric faulty returned inf for faulty"),
        (["--metrics", "faults.py:Whole"], 1, "the metric faulty returned nan for whole"),
        (
            ["--metrics", "faults.py:Huge"],
            1,
            f"the metric faulty returned 1{'0' * 199}… for faulty",
        ),
        (
            ["--metrics", "none.py:few"],
            2,
            "--metrics none.py:few failed: InputError: directions must be at least 1, not",
        ),
        (["--metrics", "limited.py:three"], 2, "Limited(directions=3) is odd"),
        (
            ["--metric-option", "sliced.seed=3"],
            2,
            "use an object in the metric's file (see `fidtool guide custom-metrics`)",
        ),
        (
            ["--metrics", "faults.py:Faulty,faults.py:Same"],
            2,
            "requested twice, with different settings or classes",
        ),
        (
            ["--metrics", "faults.py:Faulty,faults.py:Twin"],
            2,
            "the metrics Faulty and Twin both have the name faulty: rename one",
        ),
        (
            ["--metrics", "faults.py:Bare"],
            2,
            "Bare must be a dataclass with a name and with numbers: ",
        ),
        (
            ["--metrics", "faults.py:Nameless"],
            2,
            "Nameless must be a dataclass with a name and with numbers: ",
        ),
        (
            ["--metrics", "faults.py:Numberless"],
            2,
            "Numberless must be a dataclass with a name and with numbers: ",
        ),
        (
            ["--metrics", "faults.py:Nowhere"],
            2,
            "the layer 'mine' of nowhere does not fit its class: ",
        ),
        (
            ["--metrics", "faults.py:Unnamed"],
            2,
            "the layer 'features' of unnamed does not fit its class: ",
        ),
        (["--metrics", "faults.py:Text"], 2, "the layer 'mine' of lost does not fit its class: "),
        (
            ["--metrics", "faults.py:Lost"],
            2,
            "--metrics faults.py:Lost failed: ZeroDivisionError: division by zero",
        ),
        (
            ["--metrics", "faults.py:Greedy"],
            2,
            "but does not request them: set real_features and fake_features",
        ),
        (
            ["--metrics", "faults.py:Plain"],
            1,
            "the metric faulty returned 1.0, but declares faulty",
        ),
    ],
)
def test_refusals(
    here: Run,
    sets: tuple[Path, Path],
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "none.py").write_text((EXAMPLES / "sliced.py").read_text() + FEW.replace("70", "0"))
    (tmp_path / "limited.py").write_text(LIMITED)
    outcome = here("compute", *sets, "--extractor", TINY, *arguments)
    assert outcome.status == status
    assert message in outcome.error
    assert "Traceback" not in outcome.stderr


def test_metrics_are_listed(here: Run) -> None:
    names = [line.partition(":")[0] for line in here("metrics").stdout.splitlines()]
    assert names == [
        "fid",
        "kid",
        "is",
        "prdc",
        "sfid",
        "fid-infinity",
        "cmmd",
        "mind",
        "mifid",
        "vendi",
        "authpct",
        "fdr",
        "psnr",
        "ssim",
        "ms-ssim",
        "lpips",
        "clip-score",
    ]
    (listed,) = here("metrics", SLICED, "--json").json["metrics"]
    assert listed["name"] == "sliced"
    assert [setting["name"] for setting in listed["settings"]] == ["directions", "seed"]
    assert (
        "  Sliced(directions=1000): Number of random directions."
        in here("metrics", SLICED, "kid").stdout
    )
