"""``fidtool check`` reports the composition of a set and findings about it, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fidtool as package
from support import degenerate
from support.command_line import Outcome, Run
from support.encoded import encoded
from support.places import TINY


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return degenerate.distinct(tmp_path / "clean", 80)


def codes(outcome: Outcome) -> dict[str, str]:
    """Return the severities, by code, of the findings about the set and its differences from the
    other set.
    """
    found = outcome.json["images"]["findings"] + outcome.json["between"]
    return {each["code"]: each["severity"] for each in found}


FAULTS = {
    "copies": "high",
    "noise": "high",
    "constant": "high",
    "unreadable": "high",
    "odd size": "low",
    "strong compression": "medium",
}
"""Faults and their severities."""


def broken(folder: Path, fault: str) -> tuple[Path, int]:
    """Write a set of 60 images with one fault. Return the folder and the number of images with the
    fault.
    """
    if fault == "strong compression":
        return degenerate.write(
            folder, ((f"{i}.jpg", degenerate.sample(i)) for i in range(60)), quality=40
        ), 60
    faulty = 1 if fault == "odd size" else 10
    degenerate.distinct(folder, 60 - faulty)
    rng = np.random.default_rng(0)
    make: dict[str, Callable[[int], bytes]] = {
        "copies": lambda i: (folder / f"{i:05}.png").read_bytes(),
        "noise": lambda i: encoded(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)),
        "constant": lambda i: encoded(np.full((32, 32, 3), 20 * i + 9, dtype=np.uint8)),
        "unreadable": lambda i: b"no image",
        "odd size": lambda i: encoded(degenerate.sample(500, 40)),
    }
    for i in range(faulty):
        (folder / f"x{i}.png").write_bytes(make[fault](i))
    return folder, faulty


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_the_only_finding(here: Run, tmp_path: Path, fault: str) -> None:
    """The finding has the number of images and an example."""
    folder, count = broken(tmp_path / "set", fault)
    outcome = here("check", folder, "--json")
    assert outcome.status == 0
    assert codes(outcome) == {fault: FAULTS[fault]}
    (finding,) = outcome.json["images"]["findings"]
    assert finding["count"] == count
    assert Path(finding["example"]).parent == folder
    assert str(count) in finding["message"]


def test_findings_that_only_real_has_do_not_fail_the_gate(
    here: Run, clean: Path, tmp_path: Path
) -> None:
    degenerate.write(
        tmp_path / "real", ((f"{i}.png", degenerate.sample(2000 + i)) for i in range(60))
    )
    degenerate.write(
        tmp_path / "real", ((f"{i}-large.png", degenerate.sample(i, 40)) for i in range(3000, 3005))
    )
    outcome = here("check", clean, "--against", tmp_path / "real", "--strict")
    assert "low: " in outcome.stdout
    assert outcome.status == 0
    assert here("check", tmp_path / "real", "--against", clean, "--strict").status == 3


def test_too_few_images_are_said_and_are_no_failure(here: Run, tmp_path: Path) -> None:
    real, fake = (
        degenerate.distinct(tmp_path / name, 6, first=first)
        for name, first in (("real", 0), ("fake", 99))
    )
    outcome = here("check", fake, "--against", real, "--strict")
    assert outcome.status == 0
    assert (
        f"low: {fake} against {real}: too few images (6 in FAKE, 6 in REAL) to compare"
        in outcome.stdout
    )


def test_a_set_cannot_be_checked_against_itself(here: Run, clean: Path) -> None:
    outcome = here("check", clean, "--against", f"{clean}/")
    assert outcome.status == 2
    assert "are the same" in outcome.error


def test_against_a_statistics_file(here: Run, clean: Path, tmp_path: Path) -> None:
    assert here("stats", clean, "-o", "clean.npz", "--extractor", TINY).status == 0
    fake = degenerate.write(
        tmp_path / "fake", ((f"{i}.png", degenerate.sample(i, 64)) for i in range(60))
    )
    assert codes(here("check", fake, "--against", "clean.npz", "--json")) == {
        "other size": "medium"
    }


def test_from_python(here: Run, clean: Path, tmp_path: Path) -> None:
    fake = degenerate.distinct(tmp_path / "fake", 60, first=1000)
    shutil.copy(clean / "00003.png", fake / "x.png")
    checkup = package.check(fake, clean)
    assert [finding.code for _, finding in checkup.findings] == ["leak"]
    assert (
        json.loads(json.dumps(checkup.to_dict()))
        == here("check", fake, "--against", clean, "--json").json
    )


def test_it_needs_no_weights(clean: Path, empty_cache: Path, here: Run) -> None:
    """A sample of the images is checked."""
    assert here("check", clean, "--num", 30, "--json").json["images"]["images"] == 30
    assert not (empty_cache / "weights").exists()
