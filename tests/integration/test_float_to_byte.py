"""--float-to-byte: truncated floats of every kind of source, on record, and never without effect
unnoticed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.training import FIDCallback, FrechetInceptionDistance
from support.command_line import Run
from support.light_training import Model, Trainer
from support.pictures import fill
from support.places import TINY
from support.source_forms import make_squares
from support.tiny_network import network

COUNT = 20
HOW = ("round", "floor")
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
    evaluation = fidtool.compute(
        place / "real", [place / "truncated.npy", place / "rounded.npy"], **settings
    )
    truncated, rounded = (result.frechet_distance for result in evaluation.results)
    assert truncated is not None
    assert rounded is not None
    assert truncated != rounded
    return {"floor": truncated, "round": rounded}


GIVEN: dict[str, Callable[[Path, Floats], Any]] = {
    "an array file": lambda place, _: place / "floats.npy",
    "a compressed archive": lambda place, _: place / "packed.npz",
    "a file of torch": lambda place, _: place / "floats.pt",
    "an array": lambda _, floats: floats,
    "a list of tensors": lambda _, floats: [
        torch.from_numpy(image).permute(2, 0, 1) for image in floats
    ],
    "an iterable": lambda _, floats: iter(floats),
}


@pytest.mark.parametrize("form", GIVEN)
def test_every_source(
    place: Path, floats: Floats, expected: dict[str, float], environment: dict[str, str], form: str
) -> None:
    evaluation = fidtool.compute(
        place / "real", GIVEN[form](place, floats), float_to_byte="floor", **SETTINGS
    )
    assert evaluation.frechet_distance == expected["floor"]
    assert evaluation.run.config.get("float_to_byte") == "floor"


@pytest.mark.parametrize("asked", [None, "round", "floor"])
@pytest.mark.parametrize("protocol", [None, "tensorflow", "torchmetrics"])
def test_one_rule_in_training(
    environment: dict[str, str], protocol: str | None, asked: str | None
) -> None:
    """Floats give the same number by `compute`, by the metric and by the callback."""
    real, fake = (
        torch.rand(COUNT, 3, 20, 20, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    settings: dict[str, Any] = {"protocol": protocol, "float_to_byte": asked}
    metric = FrechetInceptionDistance(network(), normalize=True, **settings)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    value = metric.compute()
    for images in (fake, [*fake.numpy()]):
        found = fidtool.compute(real, images, extractor=TINY, value_range=(0, 1), **settings)
        assert found.frechet_distance == pytest.approx(float(value), rel=1e-12)
        rounding = found.run.config["float_to_byte"]
    assert rounding == (asked or ("floor" if protocol == "torchmetrics" else "round"))
    found = fidtool.compute_statistics(real, extractor=TINY, value_range=(0, 1), **settings)
    assert found is not None
    found = replace(found, config=None)  # which would decide in place of the keyword
    callback = FIDCallback(
        lambda count, seed: fake[:count],
        found,
        num_samples=COUNT,
        feature=TINY,
        batch_size=COUNT,
        **settings,
    )
    model = Model()
    callback.on_test_epoch_end(Trainer(), model)
    assert callback.frechet_distance == pytest.approx(float(value), rel=1e-12)


def test_the_protocol_of_a_statistics_file_decides(
    here: Run, place: Path, environment: dict[str, str]
) -> None:
    """The array is opened before the file's protocol is known."""
    line = ("--dims", 64, "--no-cache")
    stats = here("stats", place / "real", "-o", "real64.npz", *line, "--protocol", "torchmetrics")
    assert stats.status == 0, stats.stderr
    ranged = ("--value-range", "-1,1", "--json", *line)
    said = here("compute", "real64.npz", place / "floats.npy", *ranged, "--float-to-byte", "floor")
    unsaid = here("compute", "real64.npz", place / "floats.npy", *ranged)
    assert (unsaid.fid, unsaid.json["run"]["config"]["float_to_byte"]) == (said.fid, "floor")
    assert (
        here("compute", "real64.npz", place / "floats.npy", *ranged, "--float-to-byte", "round").fid
        != said.fid
    )


def test_statistics_of_floats_decide(
    place: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Whatever holds them; otherwise a warning says that the sets differ."""
    floats = np.load(place / "floats.npy")
    images = torch.from_numpy((floats + 1) / 2).permute(0, 3, 1, 2)
    for how, protocol in (("floor", None), ("round", "torchmetrics"), ("round", None)):
        made = fidtool.compute_statistics(
            place / "floats.npy", float_to_byte=how, protocol=protocol, **SETTINGS
        )
        assert made is not None
        assert made.config is not None
        assert made.config["float_to_byte"] == how
        fidtool.write_statistics(tmp_path / f"{how}.npz", made)
        for real in (made, tmp_path / f"{how}.npz"):
            evaluation = fidtool.compute(real, floats, protocol=protocol, **SETTINGS)
            assert (evaluation.frechet_distance, evaluation.run.config["float_to_byte"]) == (
                pytest.approx(0, abs=1e-9),
                how,
            )
            metric = FrechetInceptionDistance(
                TINY, normalize=True, real_statistics=real, protocol=protocol
            )
            metric.update(images, real=False)
            assert float(metric.compute()) == pytest.approx(0, abs=1e-6)
    ways = (
        "floats were converted to bytes in different ways .float_to_byte.: round in .*round.npz, "
        "floor in"
    )
    evaluation = fidtool.compute(tmp_path / "round.npz", floats, float_to_byte="floor", **SETTINGS)
    assert re.search(
        ways,
        " ".join([*map(str, evaluation.results[0].warnings), *map(str, evaluation.run.warnings)]),
    )
    evaluation = fidtool.compute(tmp_path / "round.npz", tmp_path / "floor.npz", extractor=TINY)
    assert re.search(
        ways,
        " ".join([*map(str, evaluation.results[0].warnings), *map(str, evaluation.run.warnings)]),
    )
    with pytest.warns(
        fidtool.FidtoolWarning, match="round.npz was computed with float_to_byte='round'"
    ):
        metric = FrechetInceptionDistance(
            TINY, real_statistics=tmp_path / "round.npz", float_to_byte="floor"
        )
    metric.update(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), real=False)
    metric.compute()
    assert any(
        "round.npz was computed with float_to_byte='round'" in str(line)
        for line in metric.result.warnings
    )


def test_checkpoints_of_the_metric_have_the_rounding() -> None:
    """If it is not that of the protocol's tool, which the protocol implies."""
    usual, rounding, truncating = (
        FrechetInceptionDistance(network(), float_to_byte=how) for how in (None, *HOW)
    )
    fill(usual)
    fill(truncating)
    for metric in (usual, truncating):
        metric.persistent(True)
    rounding.load_state_dict(usual.state_dict())
    for one, other, differ in (
        (truncating, usual, "floor against the default"),
        (usual, truncating, "the default against floor"),
    ):
        with pytest.raises(
            fidtool.InputError,
            match=f"the checkpoint and this metric differ .float_to_byte: {differ}",
        ):
            other.load_state_dict(one.state_dict())
        with pytest.raises(fidtool.InputError, match="floor"):
            one.merge_state(other)
    assert usual.reference_digest == rounding.reference_digest != truncating.reference_digest
    with pytest.raises(
        fidtool.InputError, match="float_to_byte must be round or floor, not 'ceil'"
    ):
        FrechetInceptionDistance(network(), float_to_byte="ceil")
    with pytest.raises(
        fidtool.InputError, match="float_to_byte must be round or floor, not 'ceil'"
    ):
        FIDCallback("generate", "real.npz", float_to_byte="ceil")
    with pytest.raises(fidtool.InputError, match="unknown protocol 'none'"):
        FIDCallback("generate", "real.npz", protocol="none")  # type: ignore[arg-type]


def test_cache_distinguishes(here: Run, place: Path, expected: dict[str, float]) -> None:
    line = (
        "compute",
        place / "real",
        place / "floats.npy",
        "--extractor",
        TINY,
        "--value-range",
        "-1,1",
        "--json",
    )
    assert here(*line).fid == expected["round"]
    truncated = here(*line, "--float-to-byte", "floor")
    assert (truncated.fid, truncated.json["run"]["images_computed"]) == (expected["floor"], COUNT)
    again = here(*line, "--float-to-byte", "floor")
    assert (again.fid, again.json["run"]["images_computed"]) == (expected["floor"], 0)


def test_check_reads_them_as_well(here: Run, place: Path) -> None:
    printed = here(
        "check", place / "floats.npy", *FLOOR, "--against", place / "truncated.npy"
    ).stdout
    assert (
        f"{place}/floats.npy against {place}/truncated.npy: {COUNT} of {COUNT} images are "
        "pixel-identical" in printed
    )


def test_no_effect_without_floats(here: Run, place: Path) -> None:
    run = here("compute", place / "real", place / "rounded.npy", *SMALL, *FLOOR)
    assert run.status == 0
    assert "--float-to-byte has no effect: it only affects images of floats" in run.stderr
    assert (
        "no effect"
        not in here("compute", place / "real", place / "floats.npy", *SMALL, *FLOOR).stderr
    )
