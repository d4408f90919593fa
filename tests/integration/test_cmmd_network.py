"""CMMD's network beside the extractor: its flags, its error messages, and when both are the same
network.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fidtool.features.protocol import EMBEDDING
from fidtool.result.values import FeatureSource
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY

LARGE = TINY.replace(":network", ":large")
KEY = FeatureSource.from_network(COLOURS, 16).key("cmmd")
CMMD = ("--metrics", "cmmd", "--cmmd-extractor")


@pytest.fixture
def arguments(tmp_path: Path) -> list[object]:
    sets = make_pictures(tmp_path / "real", 6, 0), make_pictures(tmp_path / "fake", 6, 1)
    return ["compute", *sets, "--no-cache", "--json"]


def test_errors_suggest_the_flag_of_the_right_network(here: Run, arguments: list[object]) -> None:
    """If CMMD's network is also the extractor, the error suggests the extractor's flag."""
    own = here(*arguments, "--extractor", TINY, *CMMD, LARGE)
    assert own.status == 1
    assert re.match(
        r"error: CMMD's network: \S+png: a feature of size 100 is outside the range", own.error
    )
    assert own.error.endswith(f"pass --cmmd-extractor {LARGE}@step=14")
    main = here(*arguments, "--extractor", LARGE, *CMMD, COLOURS)
    assert re.match(r"error: \S+png: a feature of size 100 is outside the range", main.error)
    assert main.error.endswith("pass --feature-step 14")
    coarser = here(*arguments, "--extractor", TINY, *CMMD, f"{LARGE}@step=14")
    assert coarser.status == 0, coarser.stderr
    assert coarser.json["layers"][EMBEDDING]["feature_step"] == 14
    assert coarser.json["protocol"]["feature_step"] == 18


def test_inception_for_cmmd_needs_inception_as_extractor(
    here: Run, arguments: list[object]
) -> None:
    refused = here(*arguments, "--extractor", TINY, *CMMD, "inception")
    assert refused.status == 2
    assert "--cmmd-extractor inception uses the features of --extractor inception" in refused.error


def test_a_shared_network_is_run_once(here: Run, arguments: list[object]) -> None:
    """A different feature step makes it a separate network."""
    alone = here(*arguments, "--extractor", TINY, *CMMD, COLOURS)
    shared = here(*arguments, "--extractor", COLOURS, *CMMD, COLOURS)
    apart = here(*arguments, "--extractor", COLOURS, *CMMD, f"{COLOURS}@step=20")
    assert [set(each.json["layers"]) for each in (alone, shared, apart)] == [
        {EMBEDDING},
        set(),
        {EMBEDDING},
    ]
    name = shared.json["settings"]["cmmd"]["extractor"]
    assert name.startswith("tiny_network.py:colours")
    assert f"CMMD uses features of {name} instead of clip:ViT-L-14-336-quickgelu" in shared.stderr
    first, second, third = (each.metrics[KEY] for each in (alone, shared, apart))
    assert first == second > 0
    assert third == pytest.approx(first, rel=1e-4)


def test_flags_without_effect_on_statistics_files_are_named(
    here: Run, arguments: list[object]
) -> None:
    _, real, fake, *_ = arguments
    for folder in (real, fake):
        name = f"{Path(str(folder)).name}.npz"
        assert here("stats", folder, "-o", name, "--extractor", COLOURS, *CMMD, COLOURS).status == 0
    files = ("compute", "real.npz", "fake.npz", "--json")
    published = "--extractor", "timm:resnet18", "--weights", "w.pt"
    idle = here(*files, *published, "--feature-step", 9, "--checkpoint", "kept")
    assert (
        "--extractor and --weights and --feature-step and --checkpoint have no effect on the values"
        in idle.stderr
    )
    assert "no effect" not in here(*files).stderr
    # Here both flags are needed: together they identify the extractor's features as CMMD's.
    both = here(*files, "--extractor", COLOURS, *CMMD, COLOURS)
    assert both.metrics[KEY] > 0
    assert "no effect" not in both.stderr
