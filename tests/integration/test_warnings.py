"""Warnings about a result: each is given when it should be, and there are none for valid sets."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import fidtool
from support.pictures import make_pictures
from support.places import TINY


def warnings_of(real: Path, fake: Path, **settings: object) -> list[str]:
    """Return the warnings of a comparison with the small network of 16 dimensions."""
    evaluation = fidtool.compute(real, fake, extractor=TINY, cache=False, **settings)  # type: ignore[arg-type]
    return [*map(str, evaluation.results[0].warnings)]


@pytest.fixture
def real(tmp_path: Path, environment: dict[str, str]) -> Path:
    return make_pictures(tmp_path / "real", 40, 1)


def test_clean_sets_have_no_warnings(real: Path, tmp_path: Path) -> None:
    assert warnings_of(real, make_pictures(tmp_path / "fake", 40, 2)) == []


def test_different_counts(real: Path, tmp_path: Path) -> None:
    (found,) = warnings_of(real, make_pictures(tmp_path / "many", 81, 2))
    assert "differs from REAL's by more than a factor of 2" in found
    assert "(81 images against 40)" in found
    kid = fidtool.compute(
        real, tmp_path / "many", extractor=TINY, metrics=[fidtool.KID(subset_size=9)]
    )
    said = "".join(map(str, kid.results[0].warnings))
    assert "differs from REAL's by more than a factor of 2" not in said, (
        "a bias of Fréchet distances"
    )


def test_statistics_have_no_sample_of_their_images(real: Path, tmp_path: Path) -> None:
    """The remedy for different counts is not a smaller number if the larger set is a statistics
    file.
    """
    many, file = make_pictures(tmp_path / "many", 81, 2), tmp_path / "many.npz"
    fidtool.write_statistics(file, fidtool.compute_statistics(many, extractor=TINY))
    remedies = (
        "use equal numbers, or those of the paper to compare with, for example with num",
        "add images to the smaller set, or pass images in place of the statistics",
    )
    for one, other, remedy in ((real, many, 0), (file, real, 1), (real, file, 1), (many, real, 0)):
        (found,) = (each for each in warnings_of(one, other) if "factor of 2" in each)
        assert [each in found for each in remedies] == [remedy == 0, remedy == 1]


def test_a_network_whose_imported_code_has_changed(real: Path, tmp_path: Path) -> None:
    """The file that --extractor names is the same, but a module that it imports is not."""
    (tmp_path / "net.py").write_text(
        "import torch, fidtool, scale_of_this_test\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.mean((2, 3)) * scale_of_this_test.SCALE\n"
        "def network():\n"
        "    return fidtool.Network(Net(), input_size=8)\n"
    )
    extractor = f"{tmp_path / 'net.py'}:network"
    fids = []
    for scale in (1, 3):
        (tmp_path / "scale_of_this_test.py").write_text(f"SCALE = {scale}\n")
        sys.modules.pop("scale_of_this_test", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        evaluation = fidtool.compute(
            real, make_pictures(tmp_path / f"f{scale}", 40, 2), extractor=extractor
        )
        fids.append(evaluation.frechet_distance)
        if scale == 1:
            statistics = fidtool.compute_statistics(real, extractor=extractor)
            assert statistics is not None
            fidtool.write_statistics(tmp_path / "before.npz", statistics)
    assert fids[1] == pytest.approx(9 * fids[0], rel=1e-3), (
        "the cache must not return the old network's statistics"
    )
    (warning,) = (
        fidtool.compute(tmp_path / "before.npz", real, extractor=extractor).results[0].warnings[:1]
    )
    assert (
        "different features for the same image, although their files and tensors are the same"
        in warning.text
    )


def test_constant_features(real: Path, tmp_path: Path) -> None:
    """A network that ignores its input, or one image many times: the FID of 0 is meaningless."""
    dead = TINY.replace(":network", ":large")
    evaluation = fidtool.compute(
        real, make_pictures(tmp_path / "fake", 40, 2), extractor=dead, feature_step=14
    )
    assert evaluation.frechet_distance == 0
    said = [
        line
        for line in map(str, evaluation.results[0].warnings)
        if "all 40 images have the same features" in line
    ]
    assert len(said) == 2


def test_statistics_from_another_machine(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(real, extractor=TINY)
    assert statistics is not None
    assert statistics.arithmetic is not None
    elsewhere = dataclasses.replace(
        statistics, arithmetic={**statistics.arithmetic, "device": "Some GPU"}
    )
    fidtool.write_statistics(tmp_path / "elsewhere.npz", elsewhere)
    found = warnings_of(tmp_path / "elsewhere.npz", make_pictures(tmp_path / "fake", 40, 2))
    assert len(found) == 1
    assert "Some GPU" in found[0]


def test_statistics_in_the_place_of_generated_images(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(real, extractor=TINY)
    assert statistics is not None
    fidtool.write_statistics(tmp_path / "real.npz", statistics)
    fake = make_pictures(tmp_path / "fake", 40, 2)
    (found,) = warnings_of(fake, tmp_path / "real.npz")
    assert found == (
        f"{tmp_path / 'real.npz'}: statistics are compared as fake with the images in {fake}: if "
        "the statistics are those of the real images, pass them as real, which comes first"
    )
    assert warnings_of(tmp_path / "real.npz", fake) == []
    fidtool.write_statistics(tmp_path / "fake.npz", statistics)
    assert "which comes first" not in "".join(
        warnings_of(tmp_path / "real.npz", tmp_path / "fake.npz")
    )


def test_statistics_of_unknown_protocol(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(real, extractor=TINY)
    assert statistics is not None
    np.savez(tmp_path / "foreign.npz", mu=statistics.mu, sigma=statistics.sigma)
    evaluation = fidtool.compute(tmp_path / "foreign.npz", real, extractor=TINY)
    assert len(evaluation.results[0].warnings) == 1
    assert "does not state its protocol" in str(evaluation.results[0].warnings[0])
    assert evaluation.results[0].real.count is None
    both = fidtool.compute(tmp_path / "foreign.npz", tmp_path / "foreign.npz")
    assert both.to_dict()["protocol"] == {"name": None, "fingerprint": None}
    assert both.frechet_distance < 1e-9
