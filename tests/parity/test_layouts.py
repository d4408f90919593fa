"""Statistics files that other tools' own code writes, against their own distances."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from support.command_line import Run
from support.feature_sets import Features, normal
from support.layouts import of_inception

COUNT = 120


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """clean-fid, which stores custom statistics in its own package; here in a folder of the
    test.
    """
    cleanfid = pytest.importorskip("cleanfid", reason="clean-fid is not installed")
    module = pytest.importorskip("cleanfid.fid", reason="clean-fid is not installed")
    monkeypatch.setattr(cleanfid, "__file__", str(tmp_path / "cleanfid" / "__init__.py"))
    monkeypatch.setattr(module, "build_feature_extractor", lambda *_: None)
    return module


def custom_statistics(
    peer: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, rows: Features
) -> None:
    """Lets clean-fid write the statistics of a folder whose images have these features."""
    monkeypatch.setattr(peer, "get_folder_features", lambda *_, **__: rows)
    peer.make_custom_stats(name, "images", verbose=False)
    assert {each.name for each in (folder / "cleanfid" / "stats").iterdir()} >= {
        f"{name}_clean_custom_na.npz",
        f"{name}_clean_custom_na_kid.npz",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_custom_statistics_of_clean_fid(
    here: Run, peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files for FID and for KID give the same FID, and the KID of whole sets is the same as
    well.
    """
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
    assert next(
        value for name, value in found.metrics.items() if name.startswith("kid")
    ) == pytest.approx(kid, rel=1e-4)
    read = fidtool.read_statistics(kept[0])
    assert (read.count, read.origin) == (COUNT, "clean-fid (it has feats)")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_written_files_are_read_by_their_projects(peer: Any, tmp_path: Path) -> None:
    """clean-fid finds them under its name of custom statistics."""
    statistics = of_inception("clean")
    stats = tmp_path / "cleanfid" / "stats"
    stats.mkdir(parents=True)
    fidtool.write_statistics(stats / "mine_clean_custom_na.npz", statistics, layout="clean-fid")
    mu, sigma = peer.get_reference_statistics("mine", "na", split="custom")
    assert np.array_equal(mu, statistics.mu)
    assert np.array_equal(sigma, statistics.sigma)
    feats = peer.get_reference_statistics("mine", "na", split="custom", metric="KID")
    assert np.array_equal(feats, statistics.features)

    pytorch_fid = pytest.importorskip(
        "pytorch_fid.fid_score", reason="pytorch-fid is not installed"
    )
    statistics = of_inception("pytorch-fid")
    fidtool.write_statistics(tmp_path / "mine.npz", statistics, layout="pytorch-fid")
    mu, sigma = pytorch_fid.compute_statistics_of_path(
        str(tmp_path / "mine.npz"), None, 1, 2048, "cpu"
    )
    assert np.array_equal(mu, statistics.mu)
    assert np.array_equal(sigma, statistics.sigma)


def test_cached_statistics_of_torch_fidelity(here: Run, tmp_path: Path) -> None:
    """It saves them with torch.save. Nothing in the file is run."""
    peer = pytest.importorskip(
        "torch_fidelity.metric_fid", reason="torch-fidelity is not installed"
    )
    extractor = SimpleNamespace(get_name=lambda: "inception")
    files, kept = [], []
    for seed, name in enumerate(("real", "fake")):
        rows = {"2048": torch.from_numpy(normal(COUNT, 16, seed, shift=0.3 * seed))}
        cache = {"cache": True, "cache_root": str(tmp_path), "verbose": False}
        kept.append(
            peer.fid_featuresdict_to_statistics_cached(rows, name, extractor, "2048", **cache)
        )
        files.append(tmp_path / f"{name}-inception-stat-fid-2048.pt")
    theirs = peer.fid_statistics_to_metric(*kept, verbose=False)["frechet_inception_distance"]
    assert here("compute", *files, "--json").fid == pytest.approx(theirs, rel=1e-5)
    assert np.array_equal(fidtool.read_statistics(files[0]).mu, kept[0]["mu"])


def test_hostile_torch_files_are_refused(here: Run, tmp_path: Path) -> None:
    torch.save({"mu": np.zeros(3), "sigma": np.eye(3), "code": print}, tmp_path / "hostile.pt")
    np.savez(tmp_path / "plain.npz", mu=np.zeros(3), sigma=np.eye(3))
    refused = here("compute", "plain.npz", "hostile.pt")
    assert refused.status == 2
    assert "hostile.pt" in refused.error
