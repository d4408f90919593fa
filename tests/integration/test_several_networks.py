"""Several networks in one pass: each has the values of a run with it alone, in every output and
from every source.
"""

from __future__ import annotations

import csv
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.choice import layer_name, parse_networks
from fidtool.features.passes import ForwardPasses
from fidtool.names import shorten
from fidtool.result.evaluation import read_evaluation
from fidtool.run import measure
from fidtool.settings.settings import Settings
from support.command_line import Run, bars_of
from support.pictures import make_pictures
from support.places import COLOURS, FD, TINY
from support.small_sets import SMALL, make_sets

METRICS = ("--metrics", "fid,kid,prdc,mind,mifid,vendi,authpct", *SMALL, "--nearest-k", 3)
LAYER = layer_name(COLOURS)
BOTH = f"{TINY},{COLOURS}"
KEY, TITLE = f"fd_{LAYER}", f"FD ({COLOURS})"


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def alone(here: Run, *arguments: object) -> dict[str, float]:
    """Return the values of each network in a run of its own, by the keys of a run with both."""
    found: dict[str, float] = {}
    for network in (TINY, COLOURS):
        outcome = here(*arguments, "--extractor", network, "--json")
        assert outcome.status == 0, outcome.stderr
        found |= outcome.metrics
    return found


def test_each_network_has_the_bits_of_its_own_run(here: Run, sets: tuple[Path, Path]) -> None:
    arguments = ("compute", *sets, *METRICS, "--no-cache")
    joint = here(*arguments, "--extractor", TINY, "--extractor", COLOURS, "--json")
    assert joint.metrics == alone(here, *arguments)
    assert [*joint.json["layers"]] == [LAYER]
    single = here(*arguments, "--extractor", TINY, "--json")
    assert joint.json["run"]["images_computed"] == single.json["run"]["images_computed"]
    turned = here(*arguments, "--extractor", f"{COLOURS},{TINY}", "--json")
    assert turned.metrics == joint.metrics


def test_inception_comes_first(here: Run, sets: tuple[Path, Path]) -> None:
    arguments = ("compute", *sets, "--dims", 64, "--metrics", "fid,sfid")
    refused = here(*arguments, "--extractor", TINY)
    assert refused.status == 2
    settings = Settings(extractor=f"{TINY},inception", dims=64)
    assert [each.extractor for each in settings.networks.values()] == ["inception", TINY]
    with_own = Settings(extractor=f"{TINY}@step=12,Inception@dims=64,protocol=edm")
    assert (with_own.network.dims, with_own.network.protocol) == (64, "tensorflow")


def test_the_protocol_is_that_of_each_network_without_its_own(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        "import torch, fidtool\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        "
        "return x.mean((2, 3))\ndef network():\n    return fidtool.Network(Net(), input_size=8, "
        "preparation=fidtool.Preparation('pillow-bilinear'))\n"
    )
    arguments = ("compute", *sets, "--protocol", "stylegan", "--no-cache", "--json", "--extractor")
    joint = here(*arguments, f"{TINY},{COLOURS},own.py:network")
    definitions = [joint.json["protocol"], *joint.json["layers"].values()]
    assert [(each["resize"], each["ddof"]) for each in definitions] == [
        ("bilinear-tf1", 0),
        ("bilinear-tf1", 0),
        ("pillow-bilinear", 1),
    ]
    assert joint.metrics.items() >= here(*arguments, COLOURS).metrics.items()


def test_every_output_has_all_networks(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    outputs = (
        "-o",
        "r.json",
        "-o",
        "r.csv",
        "-o",
        "r.md",
        "--report",
        "r.html",
        "--history",
        "h.jsonl",
    )
    fake = make_pictures(tmp_path / "many", 210, 5)
    outcome = here(
        "compute", sets[0], fake, *METRICS, "--extractor", BOTH, "--uncertainty", *outputs
    )
    assert outcome.status == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    for title in (
        FD,
        f"KID ({TINY})",
        f"Recall ({TINY})",
        TITLE,
        f"KID ({COLOURS})",
        f"Recall ({COLOURS})",
    ):
        assert any(line.startswith(f"{title}: ") for line in lines), title
    for title in (FD, TITLE):
        assert any(line.startswith(f"bias-corrected {title}: ") for line in lines), title
    (row,) = csv.DictReader((tmp_path / "r.csv").open())
    (content,) = read_evaluation(tmp_path / "r.json").to_dict()["results"]
    assert float(row[KEY]) == content["metrics"][KEY]
    interval = content["uncertainties"][KEY]["corrected"]
    assert float(row[f"uncertainties.{KEY}.corrected.low"]) == interval["low"]
    page = (tmp_path / "r.html").read_text()
    assert page.count(f"Bias-corrected FD ({shorten(COLOURS, 35)}): ") == 1
    assert KEY in (tmp_path / "h.jsonl").read_text()
    assert here("diff", "r.json", "r.json").status == 0


def test_error_bars_are_those_of_each_network(here: Run, sets: tuple[Path, Path]) -> None:
    real, fake = sets
    arguments = ("compute", real, fake, real, "--uncertainty", "--json")
    joint = here(*arguments, "--extractor", BOTH).json
    for network, found in zip(
        (TINY, COLOURS), joint["results"][0]["uncertainties"].values(), strict=True
    ):
        single = here(*arguments, "--extractor", network).json
        assert found == bars_of(single["results"][0])


def test_the_cache_is_shared_with_runs_of_one_network(here: Run, sets: tuple[Path, Path]) -> None:
    arguments = ("compute", *sets, *METRICS)
    single = here(*arguments, "--extractor", COLOURS, "--json")
    joint = here(*arguments, "--extractor", BOTH, "--json")
    assert f"read from the cache, except those of {Path(TINY).name}" in joint.stderr
    assert joint.metrics.items() >= single.metrics.items()
    again = here(*arguments, "--extractor", BOTH, "--json")
    assert (again.json["run"]["images_computed"], again.metrics) == (0, joint.metrics)
    assert joint.metrics == here(*arguments, "--extractor", BOTH, "--no-cache", "--json").metrics
    other = here(*arguments, "--extractor", TINY, "--json")
    assert other.json["run"]["images_computed"] == 0


def test_the_cache_is_not_mixed_with_other_images(
    here: Run, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a file cannot be read any more, its network and those in the cache would have different
    images.
    """
    arguments = ("compute", *sets, *METRICS)
    assert here(*arguments, "--extractor", COLOURS, "--json").status == 0
    expected = here(*arguments, "--extractor", BOTH, "--no-cache", "--json")
    find = measure.find_cached

    def with_another_count(*given: Any) -> Any:
        found = find(*given)
        return found and replace(found, count=found.count + 1)

    monkeypatch.setattr(measure, "find_cached", with_another_count)
    assert here(*arguments, "--extractor", BOTH, "--json").metrics == expected.metrics


@pytest.mark.parametrize("wanted", [TINY, COLOURS, BOTH, f"{COLOURS},{TINY}"])
def test_a_statistics_file_serves_any_of_its_networks(
    here: Run, sets: tuple[Path, Path], wanted: str
) -> None:
    real, fake = sets
    assert (
        here(
            "stats", real, "-o", "real.npz", "--extractor", BOTH, *METRICS[:2], "--no-cache"
        ).status
        == 0
    )
    arguments = (*METRICS, "--extractor", wanted, "--no-cache", "--json")
    from_file, from_images = (
        here("compute", each, fake, *arguments) for each in ("real.npz", real)
    )
    assert from_file.status == 0, from_file.stderr
    assert from_file.metrics == from_images.metrics


def test_a_pickle_of_edm2_serves_both_networks(tmp_path: Path) -> None:
    """In Python, with statistics of the two networks as EDM2 stores them."""
    rng = np.random.default_rng(0)
    rows = {"fid": rng.gamma(2.0, 1.0, size=(50, 64)), "fd_dinov2": rng.normal(size=(50, 24))}
    stored = {name: {"mu": each.mean(0), "sigma": np.cov(each.T)} for name, each in rows.items()}
    for name in ("real.pkl", "fake.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps({**stored, "num_images": 50}))
    real, fake = (str(tmp_path / name) for name in ("real.pkl", "fake.pkl"))
    with pytest.warns(fidtool.FidtoolWarning):
        found = fidtool.compute(real, fake, extractor="inception,dinov2", dims=64)
    with pytest.warns(fidtool.FidtoolWarning):
        only = fidtool.compute(real, fake, extractor="dinov2:vitl14")
    assert [*found.results[0].metrics] == ["fid_64", "fd_dinov2"]
    assert [*only.results[0].metrics] == ["fd_24"]  # the file does not say that it is DINOv2


class _Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.mean((2, 3)), 2.0 * x.std((2, 3))], 1)


def test_a_program_passes_its_own_networks(sets: tuple[Path, Path]) -> None:
    own = fidtool.Network(_Doubled(), input_size=16)
    networks: list[Any] = [TINY, own, fidtool.NetworkChoice(COLOURS, feature_step=14)]
    found = fidtool.compute(*map(str, sets), extractor=networks, metrics="fid", cache=False)
    single = fidtool.compute(*map(str, sets), extractor=own, metrics="fid", cache=False)
    assert single.frechet_distance in found.results[0].metrics.values()
    assert [each.feature_step for each in found.definitions.values() if each] == [18, 18, 14]
    statistics = fidtool.compute_statistics(str(sets[0]), extractor=[TINY, own], cache=False)
    assert statistics is not None
    assert len(statistics.layers) == 2
    from_memory = fidtool.compute(statistics, str(sets[1]), extractor=own, cache=False)
    assert from_memory.frechet_distance == single.frechet_distance


def test_a_metric_from_a_file_works_for_each_network(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport fidtool\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(fidtool.Metric):\n"
        "    name = 'mine'\n    numbers = (fidtool.Number('mine', 'Mine', 'lower', 'a norm'),)\n"
        "    real_features = fake_features = True\n"
        "    def compute(self, real, fake, context):\n"
        "        return {'mine': float(abs(real.rows.mean(0) - fake.rows.mean(0)).sum())}\n"
    )
    arguments = ("compute", *sets, "--metrics", "fid,mine.py:Mine", "--no-cache")
    joint = here(*arguments, "--extractor", BOTH, "--json")
    assert joint.metrics == alone(here, *arguments)
    assert len([name for name in joint.metrics if name.startswith("mine")]) == 2


@dataclass(frozen=True, kw_only=True)
class _OfItsOwn(fidtool.Metric):
    name = "own"
    numbers = (
        fidtool.Number("own", "Own", "lower", "whether it is told its network", layer="mine"),
    )

    def network(self) -> fidtool.NetworkChoice:
        return fidtool.NetworkChoice(COLOURS)

    def compute(self, real: Any, fake: Any, context: fidtool.MetricContext) -> dict[str, float]:
        return {"own": float(context.extractor == COLOURS)}


def test_a_metric_is_told_the_network_of_its_features(sets: tuple[Path, Path]) -> None:
    found = fidtool.compute(*map(str, sets), extractor=TINY, metrics=[_OfItsOwn()], cache=False)
    assert found.results[0].value("own") == 1.0


def test_metrics_of_all_are_omitted_for_each_network(here: Run, sets: tuple[Path, Path]) -> None:
    outcome = here("compute", *sets, "--metrics", "all", "--extractor", BOTH, *SMALL, "--json")
    assert outcome.status == 0, outcome.stderr
    left_out = outcome.not_computed
    assert {"fid-infinity", f"fid-infinity ({COLOURS})", "is", "sfid"} <= left_out.keys()
    assert f"FID-infinity ({COLOURS}): not computed: " in outcome.stderr + outcome.stdout
    assert {f"prdc ({COLOURS})", f"is ({COLOURS})"}.isdisjoint(left_out)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "inception,dinov2:vitl14@weights=a.pth,step=12",
            ["inception", "dinov2:vitl14@weights=a.pth,step=12"],
        ),
        ("DINOv2@protocol=Torch", ["dinov2@protocol=torch"]),
        ([{"name": "dinov2", "step": 12}, "inception"], ["dinov2@step=12", "inception"]),
        ("net.pt2@size=32,step=7, /me@here/n.py:f", ["net.pt2@size=32,step=7", "/me@here/n.py:f"]),
    ],
)
def test_values_are_parsed(value: object, expected: list[str]) -> None:
    assert [*map(str, parse_networks(value))] == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("inception,inception", "--extractor has inception twice"),
        (f"{TINY},{TINY}", "twice, or two networks whose values would have this name: name each"),
        ("inception,dinov2@step=x", "--extractor: step=x must be an integer"),
        ("inception@weights=", "--extractor: weights= has no value"),
        ("inception@weights=tuned.pth,dims=64", "inception@weights=tuned.pth has 2048 features"),
        (
            "inception,dinov2@protocol=clean",
            "--extractor dinov2@protocol=clean cannot be combined with dinov2, which prepares",
        ),
        (
            f"inception,{TINY}@weights=w",
            f"--extractor {TINY}@weights=... applies to Inception and published networks only",
        ),
        (
            "inception,dinov2@weights=none.pth",
            "dinov2: no weights file none.pth (from --extractor dinov2@weights=",
        ),
        (f"inception@dims=64,{TINY}@step=30", f"pass --extractor {TINY}@step="),
        ("inception@step=3,dinov2", "--extractor inception@step=... is fixed for Inception"),
        ("inception,nothing", "unknown network 'nothing'"),
        (
            "inception,dinov2@foo=3",
            "--extractor: 'foo' in dinov2@foo=3 is not a setting of a network; choose from weights, size, step",
        ),
        ("", "unknown network ''"),
        (f"inception,{COLOURS}@dims=64", "@dims=... selects a layer of Inception"),
    ],
)
def test_mistakes_name_the_network(
    here: Run, sets: tuple[Path, Path], value: str, words: str
) -> None:
    outcome = here("compute", *sets, "--extractor", value, "--no-cache", "--quiet")
    assert outcome.status in (1, 2)
    assert words in outcome.error
    assert outcome.stdout == ""


def test_a_table_has_the_settings_of_a_network(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(
        f'extractor = ["{TINY}", {{name = "{COLOURS}", step = 14}}]\n'
    )
    outcome = here("compute", *sets, "--config", "run.toml", "--json")
    assert outcome.json["layers"][LAYER]["feature_step"] == 14
    assert outcome.json["protocol"]["feature_step"] == 18
    dumped = here("compute", *sets, "--config", "run.toml", "--dump-config").stdout
    (tmp_path / "again.toml").write_text(dumped)
    assert (
        here("compute", *sets, "--config", "again.toml", "--json").json["layers"]
        == outcome.json["layers"]
    )


def test_statistics_are_completed_without_running_the_first_network_again(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, fake = sets
    arguments = ("--no-cache", "--metrics", "fid,kid")
    both_networks = ("--extractor", f"{TINY},{COLOURS}", *arguments)
    assert here("stats", real, "-o", "one.npz", "--extractor", TINY, *arguments).status == 0
    run, ran = ForwardPasses.run, list[int]()

    def counting(passes: ForwardPasses[Any], batches: Any) -> Any:
        ran.append(len(passes.extractors))
        return run(passes, batches)

    with monkeypatch.context() as patched:
        patched.setattr(ForwardPasses, "run", counting)
        assert (
            here("stats", real, "-o", "two.npz", "--complete", "one.npz", *both_networks).status
            == 0
        )
    # The step of the second network, the probes of both, and the images through the second.
    assert ran == [1, 1, 1, 1]
    assert here("stats", real, "-o", "both.npz", *both_networks).status == 0
    two, both = (fidtool.read_statistics(tmp_path / name) for name in ("two.npz", "both.npz"))
    assert {*two.layers} == {*both.layers}
    for layer, each in both.layers.items():
        np.testing.assert_array_equal(two.layers[layer].sigma, each.sigma)
        np.testing.assert_array_equal(two.layers[layer].features, each.features)
    other = here("stats", fake, "-o", "x.npz", "--complete", "one.npz", *both_networks)
    assert other.error.endswith(f"were not computed from the images that are now in {fake}")
    lacking = here(
        "stats", real, "-o", "x.npz", "--extractor", COLOURS, "--complete", "one.npz", *arguments
    )
    assert lacking.error.endswith(
        "do not have tiny_network.py:colours with the settings and metrics of this run: pass "
        "statistics that were computed with the same settings"
    )
    for changed in (("--precision", "bf16"), ("--crop", "center:16"), ("--no-diagnosis",)):
        refused = here(
            "stats", real, "-o", "x.npz", "--complete", "one.npz", *both_networks, *changed
        )
        assert refused.status == 2, changed
    whole = here("stats", fake, "-o", "x.npz", "--complete", "two.npz", *both_networks)
    assert whole.error.endswith(
        "already have all networks of this run: name a network that they lack"
    )
    known = fidtool.read_statistics(tmp_path / "one.npz")
    in_python = fidtool.compute_statistics(
        str(real), known, extractor=[TINY, COLOURS], metrics="fid", cache=False
    )
    assert in_python is not None
    np.testing.assert_array_equal(in_python.layers[LAYER].mu, both.layers[LAYER].mu)


def test_a_network_is_compared_with_itself_at_another_place(
    here: Run, sets: tuple[Path, Path]
) -> None:
    arguments = ("compute", *sets, "--uncertainty", "--quiet")
    for name, networks in (("one", COLOURS), ("two", BOTH), ("turned", f"{COLOURS},{TINY}")):
        assert here(*arguments, "--extractor", networks, "-o", f"{name}.json").status == 0
    for one, other in (("two", "turned"), ("one", "two"), ("turned", "one")):
        rows = here(
            "table", f"{one}.json", f"{other}.json", "--format", "markdown"
        ).stdout.splitlines()
        cells = [row.split(" | ") for row in rows if row.startswith("|")]
        place = next(place for place, head in enumerate(cells[0]) if "colours" in head)
        assert cells[2][place].strip("*| ") == cells[3][place].strip("*| ") != "-"
    table = here("table", "one.json", "two.json", "--format", "csv")
    assert table.status == 0, table.stderr
    assert len({row[KEY] for row in csv.DictReader(table.stdout.splitlines())}) == 1
    assert (
        here(
            *arguments, "--extractor", f"{TINY},{COLOURS}@protocol=clean", "-o", "clean.json"
        ).status
        == 0
    )
    other = here("table", "two.json", "clean.json", "--format", "csv")
    assert "not comparable" in other.error


def test_a_protocol_in_a_value_is_of_its_network_alone(here: Run, sets: tuple[Path, Path]) -> None:
    arguments = ("compute", *sets, "--json", "--no-cache", "--extractor")
    single = here(*arguments, COLOURS).metrics
    for networks in (f"{TINY}@protocol=clean,{COLOURS}", f"{COLOURS},{TINY}@protocol=clean"):
        assert here(*arguments, networks).metrics.items() >= single.items()


def test_files_of_networks_at_other_places_raise_no_doubt(
    here: Run, sets: tuple[Path, Path]
) -> None:
    real, fake = sets
    for name, networks, folder in (("r", BOTH, real), ("f", f"{COLOURS},{TINY}", fake)):
        assert here("stats", folder, "-o", f"{name}.npz", "--extractor", networks).status == 0
    for arguments in (
        ("r.npz", fake, "--extractor", COLOURS),
        ("r.npz", "f.npz", "--extractor", BOTH),
    ):
        outcome = here("compute", *arguments)
        assert outcome.status == 0, outcome.stderr
        assert "different features for the same image" not in outcome.stderr
        assert "no effect" not in outcome.stderr


def test_names_of_values_are_unique(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(TINY.rpartition(":")[0]).read_text()
    for name in ("tn.py", "tn_py.py"):
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    same = here("compute", *sets, "--extractor", "tn.py:network,tn_py:network")
    assert (
        "has tn_py:network twice, or two networks whose values would have this name" in same.error
    )
    own = [
        fidtool.Network(torch.nn.Sequential(torch.nn.Conv2d(3, width, 5)), input_size=8)
        for width in (4, 6)
    ]
    found = fidtool.compute(*map(str, sets), extractor=own, cache=False)
    assert [each and each.dims for each in found.definitions.values()] == [4, 6]
    assert len(found.results[0].metrics) == 2


@pytest.mark.parametrize("value", [[], 3, torch.nn.Identity])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(
        fidtool.InputError,
        match=r"extractor must be a string, a fidtool\.Network, a torch\.nn\.Module or a list",
    ):
        Settings(extractor=value)


def test_a_file_serves_a_network_with_its_step(here: Run, sets: tuple[Path, Path]) -> None:
    real, fake = sets
    networks = f"{TINY},{COLOURS},{COLOURS}@step=16"
    assert here("stats", real, "-o", "real.npz", "--extractor", networks, "--no-cache").status == 0
    found = here("compute", "real.npz", fake, "--extractor", f"{TINY},{COLOURS}@step=16", "--json")
    assert found.status == 0, found.stderr
    assert found.json["layers"][LAYER]["feature_step"] == 16


def test_the_cache_serves_a_further_network_alone(here: Run, sets: tuple[Path, Path]) -> None:
    assert here("compute", *sets, "--extractor", BOTH).status == 0
    assert (
        here("compute", *sets, "--extractor", COLOURS, "--json").json["run"]["images_computed"] == 0
    )
