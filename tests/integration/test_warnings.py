"""Warnings about a result: each is given when it should be, and there are none for valid sets."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fidtool
from support.pictures import make_pictures
from support.places import COLOURS, TINY


def warnings_of(real: Path, fake: Path, **settings: object) -> list[str]:
    """Return the warnings of a comparison with the small network of 16 dimensions."""
    evaluation = fidtool.compute(real, fake, extractor=TINY, cache=False, **settings)  # type: ignore[arg-type]
    return list(evaluation.results[0].warnings)


@pytest.fixture
def real(tmp_path: Path, environment: dict[str, str]) -> Path:
    return make_pictures(tmp_path / "real", 40, 1)


def test_clean_sets_have_no_warnings(real: Path, tmp_path: Path) -> None:
    assert warnings_of(real, make_pictures(tmp_path / "fake", 40, 2)) == []


def test_different_counts(real: Path, tmp_path: Path) -> None:
    (found,) = warnings_of(real, make_pictures(tmp_path / "many", 81, 2))
    assert "differ in size" in found
    assert "40 against 81" in found
    kid = fidtool.compute(real, tmp_path / "many", extractor=TINY, metrics="kid", kid_subset_size=9)
    assert "differ in size" not in "".join(kid.results[0].warnings), "a bias of Fréchet distances"


def test_statistics_files_record_lossy_compression(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(make_pictures(tmp_path / "j", 40, 2, ".jpg"), extractor=TINY)
    assert statistics is not None
    fidtool.write_statistics(tmp_path / "j.npz", statistics)
    assert any("lossy" in line for line in warnings_of(real, tmp_path / "j.npz"))


def test_alpha_and_sixteen_bits(real: Path, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 40, 2)
    transparent = Image.linear_gradient("L").convert("RGBA")
    transparent.putalpha(0)
    transparent.save(fake / "00000.png")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 100).save(fake / "00001.png")
    found = warnings_of(real, fake)
    assert len(found) == 2
    assert any("1 image with transparent pixels" in line for line in found)
    assert any("1 image with more than 8 bits" in line for line in found)


def test_opaque_images_with_an_alpha_channel_give_no_warning(real: Path, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 40, 2)
    Image.linear_gradient("L").convert("RGBA").save(fake / "00000.png")
    assert warnings_of(real, fake) == []


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
        evaluation = fidtool.compute(real, make_pictures(tmp_path / f"f{scale}", 40, 2), extractor=extractor)
        fids.append(evaluation.frechet_distance)
        if scale == 1:
            statistics = fidtool.compute_statistics(real, extractor=extractor)
            assert statistics is not None
            fidtool.write_statistics(tmp_path / "before.npz", statistics)
    assert fids[1] == pytest.approx(9 * fids[0], rel=1e-3), "the cache must not return the old network's statistics"
    (warning,) = fidtool.compute(tmp_path / "before.npz", real, extractor=extractor).results[0].warnings[:1]
    assert "different features for the same image, although the file and the tensors of the extractor" in warning


def test_a_cmmd_network_whose_imported_code_has_changed(real: Path, tmp_path: Path) -> None:
    found = fidtool.compute_statistics(real, extractor=TINY, metrics="cmmd", cmmd_extractor=COLOURS)
    assert found is not None
    assert found.arithmetic is not None
    before = dataclasses.replace(found, arithmetic={**found.arithmetic, "embedding_probe": "of the code that was"})
    fidtool.write_statistics(tmp_path / "before.npz", before)
    fidtool.write_statistics(tmp_path / "now.npz", found)
    for name, changed in (("before.npz", True), ("now.npz", False)):
        evaluation = fidtool.compute(
            tmp_path / name, real, extractor=TINY, metrics="cmmd", cmmd_extractor=COLOURS, cache=False
        )
        said = [line for line in evaluation.results[0].warnings if "the tensors of CMMD's network are the same" in line]
        assert bool(said) == changed


def test_constant_features(real: Path, tmp_path: Path) -> None:
    """A network that ignores its input, or one image many times: the FID of 0 is meaningless."""
    dead = TINY.replace(":network", ":large")
    evaluation = fidtool.compute(real, make_pictures(tmp_path / "fake", 40, 2), extractor=dead, feature_step=14)
    assert evaluation.frechet_distance == 0
    said = [line for line in evaluation.results[0].warnings if "all 40 images have the same features" in line]
    assert len(said) == 2


def test_statistics_from_another_machine(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(real, extractor=TINY)
    assert statistics is not None
    assert statistics.arithmetic is not None
    elsewhere = dataclasses.replace(statistics, arithmetic={**statistics.arithmetic, "device": "Some GPU"})
    fidtool.write_statistics(tmp_path / "elsewhere.npz", elsewhere)
    found = warnings_of(tmp_path / "elsewhere.npz", make_pictures(tmp_path / "fake", 40, 2))
    assert len(found) == 1
    assert "Some GPU" in found[0]


def test_statistics_of_unknown_protocol(real: Path, tmp_path: Path) -> None:
    statistics = fidtool.compute_statistics(real, extractor=TINY)
    assert statistics is not None
    np.savez(tmp_path / "foreign.npz", mu=statistics.mu, sigma=statistics.sigma)
    evaluation = fidtool.compute(tmp_path / "foreign.npz", real, extractor=TINY)
    assert len(evaluation.results[0].warnings) == 1
    assert "does not state its protocol" in evaluation.results[0].warnings[0]
    assert evaluation.results[0].real.count is None
    both = fidtool.compute(tmp_path / "foreign.npz", tmp_path / "foreign.npz")
    assert both.to_dict()["protocol"] == {"name": None, "fingerprint": None}
    assert both.frechet_distance < 1e-9
