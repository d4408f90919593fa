"""--float-to-byte: truncated floats of every kind of source, on record, and never without effect unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from support.command_line import Run
from support.places import TINY
from support.source_forms import make_squares

COUNT = 20
SMALL = ("--extractor", TINY, "--no-cache")
FLOOR = ("--value-range", "-1,1", "--float-to-byte", "floor")
SETTINGS: dict[str, Any] = {"extractor": TINY, "cache": False, "value_range": (-1, 1)}

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def floats() -> Floats:
    """Images whose values are no multiples of a byte."""
    return np.random.RandomState(0).uniform(-1, 1, (COUNT, 12, 12, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, floats: Floats) -> Path:
    place = tmp_path_factory.mktemp("floats")
    make_squares(place / "real", COUNT, 1)
    np.save(place / "floats.npy", floats)
    np.savez_compressed(place / "packed.npz", floats)
    torch.save(torch.from_numpy(floats), place / "floats.pt")
    scaled = (torch.from_numpy(floats) + 1) / 2 * 255
    np.save(place / "truncated.npy", scaled.to(torch.uint8).numpy())
    np.save(place / "rounded.npy", scaled.add(0.5).to(torch.uint8).numpy())
    time.sleep(0.08)  # younger files are not cached
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, float]:
    """The distances of the images that torch has truncated and rounded."""
    settings = {"extractor": TINY, "cache": False}
    found = fidtool.compute(place / "real", [place / "truncated.npy", place / "rounded.npy"], **settings)
    truncated, rounded = (result.frechet_distance for result in found.results)
    assert truncated is not None
    assert rounded is not None
    assert truncated != rounded
    return {"floor": truncated, "round": rounded}


GIVEN: dict[str, Callable[[Path, Floats], Any]] = {
    "an array file": lambda place, _: place / "floats.npy",
    "a compressed archive": lambda place, _: place / "packed.npz",
    "a file of torch": lambda place, _: place / "floats.pt",
    "an array": lambda _, floats: floats,
    "a list of tensors": lambda _, floats: [torch.from_numpy(each).permute(2, 0, 1) for each in floats],
    "an iterable": lambda _, floats: iter(floats),
}


@pytest.mark.parametrize("form", GIVEN)
def test_every_source(
    place: Path, floats: Floats, expected: dict[str, float], environment: dict[str, str], form: str
) -> None:
    evaluation = fidtool.compute(place / "real", GIVEN[form](place, floats), float_to_byte="floor", **SETTINGS)
    assert evaluation.frechet_distance == expected["floor"]
    assert evaluation.run.config.get("float_to_byte") == "floor"


def test_cache_distinguishes(here: Run, place: Path, expected: dict[str, float]) -> None:
    line = ("compute", place / "real", place / "floats.npy", "--extractor", TINY, "--value-range", "-1,1", "--json")
    assert here(*line).fid == expected["round"]
    truncated = here(*line, "--float-to-byte", "floor")
    assert (truncated.fid, truncated.json["run"]["images_computed"]) == (expected["floor"], COUNT)
    again = here(*line, "--float-to-byte", "floor")
    assert (again.fid, again.json["run"]["images_computed"]) == (expected["floor"], 0)


def test_check_reads_them_as_well(here: Run, place: Path) -> None:
    found = here("check", place / "floats.npy", *FLOOR, "--against", place / "truncated.npy").stdout
    assert f"all {COUNT} images in {place}/floats.npy are pixel-identical" in found


def test_no_effect_without_floats(here: Run, place: Path) -> None:
    run = here("compute", place / "real", place / "rounded.npy", *SMALL, *FLOOR)
    assert run.status == 0
    assert "--float-to-byte has no effect: it only affects arrays of floats" in run.stderr
    assert "no effect" not in here("compute", place / "real", place / "floats.npy", *SMALL, *FLOOR).stderr
