"""JSON of metrics that need more than the main features of the network, from statistics files that
contain them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import fidtool
from support.command_line import Run
from support.exact_sets import bells, mixed
from support.goldens import Golden, near
from support.inside import add_classifier, inception, package_without_weights
from support.old_files import FILES
from support.printed import DIGITS, record, shown


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    """The folder in which the commands run."""
    for name in ("layers.npz", "own.npz"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path


def many(file: Path, seed: int) -> None:
    """Write statistics of 5,020 images, with features, of the network of the golden files."""
    features = mixed(5020, 12, seed)
    wholes = features.astype(np.float64)
    definition = fidtool.read_statistics(FILES / "own.npz").definition
    statistics = fidtool.Statistics.of(
        wholes.mean(0), np.cov(wholes.T), len(features), definition, features=features
    )
    fidtool.write_statistics(file, statistics)


def test_metrics_of_several_layers(golden: Golden, here: Run, place: Path) -> None:
    """sFID and CMMD, whose networks are in the JSON, as JSON and as text."""
    arguments = ("compute", "layers.npz", "layers.npz", "--metrics", "fid,sfid,cmmd")
    found = {
        "json": shown(here(*arguments, "--json"), place),
        "text": shown(here(*arguments), place),
    }
    golden("results/layers", found)


def test_extrapolation(golden: Golden, here: Run, place: Path) -> None:
    """fid-infinity with its error, as JSON and as text."""
    for name, seed in (("a", 1), ("b", 2)):
        many(place / f"{name}.npz", seed)
    arguments = ("compute", "a.npz", "b.npz", "--metrics", "fid,fid-infinity")
    found = record(here(*arguments, "--json"))
    (result,) = found["results"]
    # The extrapolation is a sum of many distances, most of which cancel: see the golden files of
    # error bars.
    result["metrics"] = {
        name: near(value, 1e-9 if "infinity" in name else DIGITS)
        for name, value in result["metrics"].items()
    }
    golden(
        "results/extrapolation",
        {"json": near(found, DIGITS, 1e-12), "text": shown(here(*arguments), place)},
    )


def test_inception_score(
    golden: Golden, here: Run, place: Path, converted_weights: tuple[bytes, str]
) -> None:
    """With a synthetic classifier whose outputs are exact."""
    folder = place / "fidtool-cache" / "weights"
    folder.unlink()  # a link to the folder that the whole session shares
    folder.mkdir()
    kept = folder / "inception-2015-12-05.pt"
    kept.write_bytes(converted_weights[0])
    add_classifier(kept, bells(1008, 2048, 3, spread=2.0**-5), bells(1, 1008, 4)[0])
    for name, seed in (("a", 1), ("b", 2)):
        features = bells(12, 2048, seed, 0.25)
        wholes = features.astype(np.float64)
        statistics = fidtool.Statistics.of(
            wholes.mean(0), np.cov(wholes.T), 12, inception("tensorflow"), features=features
        )
        fidtool.write_statistics(place / f"{name}.npz", statistics)
    arguments = ("compute", "a.npz", "b.npz", "--metrics", "is", "--is-splits", 3)
    found = {
        "json": shown(here(*arguments, "--json"), place),
        "text": shown(here(*arguments), place),
    }
    golden("results/score", found)


def test_weights_are_verified(
    golden: Golden, here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing and damaged weights."""
    monkeypatch.syspath_prepend(package_without_weights(place / "packages"))
    monkeypatch.setenv("FIDTOOL_CACHE", str(place / "nothing"))
    (place / "wrong.pth").write_bytes(b"something else\0")
    found = {
        "none": shown(here("weights", "--verify"), place),
        "damaged": shown(here("weights", "--verify", "--weights", "wrong.pth"), place),
    }
    golden("results/verified", found)
