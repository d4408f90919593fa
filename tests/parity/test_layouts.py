"""Statistics files that clean-fid's own code writes, against its own distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from support.command_line import Run
from support.feature_sets import Features, normal

COUNT = 120


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """clean-fid, which stores custom statistics in its own package; here in a folder of the test."""
    cleanfid = pytest.importorskip("cleanfid", reason="clean-fid is not installed")
    module = pytest.importorskip("cleanfid.fid", reason="clean-fid is not installed")
    monkeypatch.setattr(cleanfid, "__file__", str(tmp_path / "cleanfid" / "__init__.py"))
    monkeypatch.setattr(module, "build_feature_extractor", lambda *_: None)
    return module


def custom_statistics(peer: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, rows: Features) -> None:
    """Lets clean-fid write the statistics of a folder whose images have these features."""
    monkeypatch.setattr(peer, "get_folder_features", lambda *_, **__: rows)
    peer.make_custom_stats(name, "images", verbose=False)
    assert {each.name for each in (folder / "cleanfid" / "stats").iterdir()} >= {
        f"{name}_clean_custom_na.npz",
        f"{name}_clean_custom_na_kid.npz",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_custom_statistics_of_clean_fid(here: Run, peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files for FID and for KID give the same FID, and the KID of whole sets is the same as well."""
    sets = {"real": normal(COUNT, 16, 1), "fake": normal(COUNT, 16, 2, shift=0.3)}
    for name, rows in sets.items():
        custom_statistics(peer, monkeypatch, tmp_path, name, rows)
    stats = tmp_path / "cleanfid" / "stats"
    plain = [stats / f"{name}_clean_custom_na.npz" for name in sets]
    kept = [stats / f"{name}_clean_custom_na_kid.npz" for name in sets]
    arrays = [np.load(file) for file in plain]
    theirs = peer.frechet_distance(*(each[name] for each in arrays for name in ("mu", "sigma")))
    assert here("compute", *plain, "--json").fid == pytest.approx(theirs, rel=1e-5)
    # Without replacement, a subset of all images is the set itself, in any order.
    settings = ("--metrics", "fid,kid", "--kid-subset-size", COUNT, "--kid-subsets", 1)
    found = here("compute", *kept, *settings, "--json")
    assert found.fid == pytest.approx(theirs, rel=1e-5)
    kid = peer.kernel_distance(sets["real"], sets["fake"], num_subsets=1, max_subset_size=COUNT)
    assert next(value for name, value in found.metrics.items() if name.startswith("kid")) == pytest.approx(
        kid, rel=1e-4
    )
    read = fidtool.read_statistics(kept[0])
    assert (read.count, read.origin) == (COUNT, "clean-fid (it has feats)")
