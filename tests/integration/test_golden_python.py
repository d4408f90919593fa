"""Attributes of the objects that the Python API returns, and its error messages, which match the
command line's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
import fidtool.training
from fidtool import FidtoolError
from support.exact_sets import NETWORK, beside_network, pixels
from support.goldens import Golden, near
from support.old_files import FILES, make_sets
from support.printed import DIGITS


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the program runs, with two sets of images and the network."""
    monkeypatch.chdir(beside_network(tmp_path))
    make_sets(tmp_path)
    (tmp_path / "own.npz").write_bytes((FILES / "own.npz").read_bytes())
    return tmp_path


def compute(real: Any, fake: Any, **settings: Any) -> fidtool.Evaluation:
    """Compute with the network whose features are the same on every processor."""
    return fidtool.compute(
        real, fake, **{"extractor": NETWORK, "device": "cpu", "cache": False, **settings}
    )


def test_error_messages_of_the_python_api(golden: Golden, place: Path) -> None:
    """Settings out of range, and images in memory."""
    array = pixels(5, 1)
    calls: dict[str, Callable[[], object]] = {
        "num": lambda: compute("real", "fake", num=0),
        "seed": lambda: compute("real", "fake", seed=1.5),  # type: ignore[arg-type]
        "batch_size": lambda: compute("real", "fake", batch_size=0),
        "precision": lambda: compute("real", "fake", precision="fp8"),
        "on_error": lambda: compute("real", "fake", on_error="ignore"),
        "max_skip": lambda: compute("real", "fake", max_skip=2),
        "max_duplicates": lambda: compute("real", "fake", max_duplicates=5),
        "fail_above": lambda: compute("real", "fake", fail_above=-1),
        "ties": lambda: compute("real", "fake", metrics=[fidtool.PRDC(ties="open")]),  # type: ignore[arg-type]
        "timeout": lambda: compute("real", "fake", timeout=0),
        "peer_timeout": lambda: compute("real", "fake", peer_timeout=1),
        "checkpoint": lambda: compute("real", "fake", checkpoint=""),
        "feature_step": lambda: compute(
            "real", "fake", extractor="network.py:network", feature_step=200
        ),
        "metrics": lambda: compute("real", "fake", metrics=3),  # type: ignore[arg-type]
        "no metrics": lambda: compute("real", "fake", metrics=[]),
        "device": lambda: compute("real", "fake", device=0),  # type: ignore[arg-type]
        "no fake": lambda: compute("real", []),
        "a plot": lambda: compute("real", "fake", metrics="kid", plot="a.png"),
        "a number": lambda: compute("real", 3),  # type: ignore[arg-type]
        "floats": lambda: compute("real", array.astype(np.float32)),
        "a flat array": lambda: compute("real", array[:, :, 0, 0]),
        "an empty array": lambda: compute("real", array[:0]),
        "a generator with a checkpoint": lambda: compute("real", iter(array), checkpoint="kept"),
        "a network of no module": lambda: fidtool.Network(3, 8),  # type: ignore[arg-type]
        "a network of no size": lambda: fidtool.Network(torch.nn.Identity(), 0),
        "a network of a large step": lambda: fidtool.Network(
            torch.nn.Identity(), 8, feature_step=999
        ),
        "a network of infinite means": lambda: fidtool.Network(
            torch.nn.Identity(), 8, (0, float("inf"), 0)
        ),
        "a network of two means": lambda: fidtool.Network(torch.nn.Identity(), 8, (0, 0)),  # type: ignore[arg-type]
        "a preparation": lambda: fidtool.Preparation("nearest"),  # type: ignore[arg-type]
        "a framing": lambda: fidtool.Preparation("pillow-bicubic", "round"),  # type: ignore[arg-type]
        "an edge": lambda: fidtool.Preparation("bilinear", edge=20),
        "a seed": lambda: fidtool.sample_seed(0, -1),
        "no file": lambda: fidtool.read_statistics("nowhere.npz"),
        "check of nothing": lambda: fidtool.check("nowhere"),
        "statistics of statistics": lambda: fidtool.compute_statistics("own.npz"),
    }
    said = {}
    for name, call in calls.items():
        with pytest.raises(FidtoolError) as error:
            call()
        said[name] = f"{type(error.value).__name__}: {error.value}"
    golden("failures/python", said)


PUBLIC = {*fidtool.__all__, *fidtool.training.__all__}

"""Other classes may be renamed, as long as their objects have the same attributes."""


def shape_of(thing: Any) -> Any:
    """Return the names of an object's attributes, recursively for fidtool's own objects.

    Only the first entry of a sequence and the first three of a mapping are described.
    """
    name = type(thing).__name__
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        properties = {
            each
            for each, made in vars(type(thing)).items()
            if isinstance(made, property) and each[0] != "_"
        }
        own = {
            field.name: shape_of(getattr(thing, field.name)) for field in dataclasses.fields(thing)
        }
        return {"class": name if name in PUBLIC else None, **own, "and": sorted(properties)}
    if isinstance(thing, (list, tuple)):
        return [shape_of(thing[0])] if thing else []
    if isinstance(thing, dict):
        return {str(name): shape_of(each) for name, each in list(thing.items())[:3]}
    foreign = not type(thing).__module__.startswith("fidtool")
    return name if foreign or name in PUBLIC else "an object"


def without_the_machine(shape: dict[str, Any]) -> dict[str, Any]:
    """Omit the phases of a run, which are part of the golden JSON."""
    for name in ("seconds", "timeline", "extraction", "versions"):
        shape["run"][name] = "dict"
    return shape


def test_evaluations(golden: Golden, place: Path) -> None:
    """With every optional part of a result."""
    for name, seed, light in (("b", 6, 30), ("c", 7, 40)):
        np.save(place / f"{name}.npy", pixels(210, seed, light))
    evaluation = compute(
        "real", ["b.npy", "c.npy"], uncertainty=True, influence=True, fail_above=1.0
    )
    found = without_the_machine(shape_of(evaluation))
    copies = compute("real", "fake", max_duplicates=0.5)
    found["results"].append({"duplicates": shape_of(copies.results[0].duplicates)})
    values = {
        "fid": copies.fid,
        "frechet_distance": near(copies.frechet_distance, DIGITS),
        "basis": copies.basis(copies.results[0].values[0]),
        "titles": {value.key: value.title for value in copies.results[0].values},
        "exit": [evaluation.exit_code, evaluation.exit_reason],
    }
    golden("python/evaluation", {"shape": found, "values": values})
    with pytest.raises(ValueError, match="there are 2 results"):
        _ = evaluation.fid


def test_checkups(golden: Golden, place: Path) -> None:
    checkup = fidtool.check("fake", "real")
    found = {"shape": shape_of(checkup), "exit": [checkup.exit_code, checkup.exit_reason]}
    golden("python/checkup", found)


def test_statistics(golden: Golden, place: Path) -> None:
    computed = fidtool.compute_statistics(
        "real", extractor=NETWORK, metrics="kid", device="cpu", cache=False
    )
    golden("python/statistics", shape_of(computed))
