"""What can be computed of few images is computed; the rest is a row with its reason, and the exit
status says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.metrics.metric import MetricFacts
from fidtool.result.evaluation import read_evaluation
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY

FLAGS = ("--extractor", COLOURS, "--no-cache", "--json")
REASON = "precision and recall use 5 neighbours of each image, but few has 3"


@pytest.fixture
def sets(tmp_path: Path) -> tuple[str, str, str]:
    """Return folders of 12, 10 and 3 images."""
    for seed, (name, count) in enumerate((("real", 12), ("many", 10), ("few", 3))):
        make_pictures(tmp_path / name, count, seed)
    return "real", "many", "few"


def test_one_fake_lacks_a_metric(here: Run, sets: tuple[str, str, str]) -> None:
    alone = here("compute", *sets[:2], "--metrics", "fid,prdc", *FLAGS)
    found = here("compute", *sets, "--metrics", "fid,prdc", *FLAGS, "-o", "r.json", "-o", "r.md")
    assert (alone.status, found.status) == (0, 1)
    whole, part = found.json["results"]
    assert whole["metrics"] == alone.metrics
    assert [*part["metrics"]] == [key for key in whole["metrics"] if key.startswith("fd_")]
    assert found.not_computed == {"prdc": REASON}
    assert found.json["exit"] == {"code": 1, "reason": "not computed: prdc", "lacking": ["prdc"]}
    assert found.stderr.count(f"'prdc' is not computed: {REASON}: pass a smaller --nearest-k") == 1
    assert f"Precision, Recall, Density, Coverage, F-score: not computed: {REASON}" in found.stderr
    assert "| - | - | - | - | - |" in Path("r.md").read_text()
    again = here("table", "r.json")
    assert again.status == 0, again.stderr
    assert read_evaluation("r.json").exit_code == 1
    few = here("compute", *sets[1:], "--metrics", "prdc,fid", *FLAGS)
    assert (few.status, len(few.json["results"][0]["metrics"])) == (1, 1)


def test_all_leaves_it_out_with_status_0(here: Run, sets: tuple[str, str, str]) -> None:
    found = here("compute", *sets, "--metrics", "all", *FLAGS)
    assert (found.status, found.not_computed["prdc"]) == (0, REASON)
    assert "precision" in "".join(found.json["results"][0]["metrics"])
    assert "lacking" not in found.json["exit"]


def test_a_set_without_any_value_is_refused_before_an_image_is_read(
    here: Run, sets: tuple[str, str, str]
) -> None:
    Path("real/00000.png").write_bytes(b"damaged")
    for fakes in (("few",), ("many", "few")):
        refused = here("compute", "real", *fakes, "--metrics", "prdc", *FLAGS)
        assert (refused.status, refused.error) == (
            2,
            f"error: {REASON}: pass a smaller --nearest-k",
        )


def test_skipped_files_are_counted(here: Run, sets: tuple[str, str, str]) -> None:
    for number in range(5):
        Path(f"many/{number:05}.png").write_bytes(b"damaged")
    flags = ("--metrics", "fid,prdc", "--on-error", "skip", "--max-skip", 0.5)
    found = here("compute", "real", "many", *flags, *FLAGS)
    assert (found.status, found.not_computed) == (
        1,
        {"prdc": REASON.replace("few has 3", "many has 5")},
    )
    assert here("compute", "real", "many", *flags, "--nearest-k", 4, *FLAGS).status == 0


def test_each_network_is_judged_by_its_own_facts(here: Run, sets: tuple[str, str, str]) -> None:
    """A metric may need more images than its network has dimensions, or know one network alone."""

    @dataclass(frozen=True, kw_only=True)
    class Demanding(fidtool.Metric):
        name = "demanding"
        numbers = (fidtool.Number("demanding", "Demanding", "lower", "number of rows"),)
        fake_features = True

        def check(self, facts: MetricFacts) -> None:
            if facts.images is not None and facts.extractor == COLOURS and facts.images < 11:
                raise fidtool.InputError(
                    f"11 images are needed of {facts.extractor}, and {facts.has}:", "add some"
                )

        def compute(self, real: Any, fake: Any, context: Any) -> dict[str, float]:
            return {"demanding": float(np.shape(fake.rows)[0])}

    for networks, lacking in (
        ([TINY, COLOURS], f"demanding ({COLOURS})"),
        ([COLOURS, TINY], "demanding"),
    ):
        with pytest.warns(fidtool.FidtoolWarning, match="'demanding.*' is not computed"):
            found = fidtool.compute(
                *sets[:2], extractor=networks, metrics=["fid", Demanding()], cache=False
            )
        (left_out,) = found.not_computed
        assert left_out.metric == lacking
        assert left_out.reason == f"11 images are needed of {COLOURS}, and many has 10"
        assert found.lacking == (lacking,)
