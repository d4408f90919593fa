"""Names of metrics in the output: `FID` means 2048 Inception features and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fidtool.features.protocol import INCEPTION, Definition
from support.command_line import Run
from support.pictures import make_pictures
from support.places import FD, TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", 20, 0), make_pictures(tmp_path / "fake", 20, 1)


def defined(extractor: str, dims: int) -> Definition:
    return Definition(extractor, "0" * 64, dims, 18, 299, "x/255", "bilinear", "pillow", 1)


def test_names_for_statistics_files(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """The name is the network in the files, with or without --extractor."""
    assert here("stats", sets[0], "-o", "own.npz", "--extractor", TINY).status == 0
    assert here("compute", "own.npz", "own.npz").stdout == "FD (tiny_network.py:network): 0.0000\n"
    asked = here("compute", "own.npz", "own.npz", "--extractor", TINY)
    assert asked.stdout == f"{FD}: 0.0000\n"
    assert (
        "--extractor has no effect on the values, because only statistics are compared"
        in asked.stderr
    )
    assert here("compute", "own.npz", sets[0], "--extractor", TINY).stdout == f"{FD}: 0.0000\n"
    names = {64: "FID (64 dimensions)", 30: "FD (30 dimensions)"}
    for dims, name in names.items():
        np.savez(tmp_path / "foreign.npz", mu=np.zeros(dims), sigma=np.eye(dims))
        assert here("compute", "foreign.npz", "foreign.npz").stdout == f"{name}: 0.0000\n"


def test_files_of_another_network_are_not_named_inception(here: Run, tmp_path: Path) -> None:
    """Both networks have the same number of dimensions."""
    for name, network in (("one", INCEPTION), ("other", "torchvision:resnet50")):
        definition = defined(network, 64).to_json()
        np.savez(
            tmp_path / name, mu=np.zeros(64), sigma=np.eye(64), count=100, fingerprint=definition
        )
    asked = ("compute", "other.npz", "other.npz", "--extractor", "inception")
    refused = here(*asked)
    assert refused.status == 2
    for words in (
        "other.npz has features of torchvision:resnet50, not of Inception",
        "omit --extractor",
    ):
        assert words in refused.error
    assert here(*asked, "--allow-mismatch").stdout == "FD (torchvision:resnet50): 0.0000\n"
    assert (
        here("compute", "one.npz", "one.npz", *asked[3:]).stdout == "FID (64 dimensions): 0.0000\n"
    )
    both = here("compute", "one.npz", "other.npz", "--allow-mismatch")
    assert both.stdout == "FD (inception against torchvision:resnet50): 0.0000\n"


def test_no_output_calls_another_distance_fid(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Text, warnings, error bars, influence, duplicates, gates and JSON, for FAKEs that cause all
    of them.
    """
    few = make_pictures(tmp_path / "few", 20, 2)
    for number in range(15):
        Image.open(sets[1] / "00003.png").save(sets[1] / f"copy{number}.png")
    flags = (
        "--extractor",
        TINY,
        "--influence",
        "--uncertainty",
        "--fail-above",
        0,
        "--max-duplicates",
        0.1,
    )
    outcome = here("compute", sets[0], sets[1], few, *flags)
    assert outcome.status == 3
    assert f"{sets[1]} has {FD} " in outcome.stderr
    for words in (f"raise the {FD} most", "distance by number of images: "):
        assert words in outcome.stderr, words
    document = here("compute", sets[0], sets[1], *flags, "--json")
    values = document.json["values"]
    assert [value["number"]["title"] for value in values.values()] == ["FD"]
    # Metrics have own names.
    titled = document.stdout.replace(json.dumps(values, indent=2).replace("\n", "\n  "), "")
    for text in (outcome.stdout, outcome.stderr, titled, document.stderr):
        assert "FID" not in text
        assert not re.search(r'"fid(?!tool")', text)
    (result,) = document.json["results"]
    assert "distance" in result["influence"]["removals"][0]
