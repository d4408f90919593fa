"""Statistics files of other tools on the command line: names, protocols, metrics of their features,
remote files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.features.protocol import SPATIAL_DIMS
from support.command_line import Run
from support.http_store import http_store
from support.layouts import WITH_FEATURES, features, gaussian, pickled, write_layout
from support.pictures import make_pictures

ROWS, OTHERS = features(), features(50, seed=1, shift=0.3)
SMALL = ("--metrics", "fid,kid,prdc", "--kid-subset-size", 20, "--kid-subsets", 5, "--nearest-k", 3)


def expected(ddof: int = 1) -> float:
    one, other = gaussian(ROWS, ddof), gaussian(OTHERS)
    return fidtool.frechet_distance(one["mu"], one["sigma"], other["mu"], other["sigma"])


@pytest.fixture(autouse=True)
def fake(environment: dict[str, str], tmp_path: Path) -> None:
    np.savez(tmp_path / "fake.npz", **gaussian(OTHERS))


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("EDM2", "ref.npz"),
        ("StyleGAN", "ref.pkl"),
        ("score_sde", "ref"),
        ("mu and sigma", "ref.zip"),
    ],
)
def test_a_file_is_recognised_by_its_content(
    here: Run, tmp_path: Path, layout: str, name: str
) -> None:
    write_layout(layout, tmp_path / name, ROWS)
    for arguments in ((name, "fake.npz"), ("fake.npz", name)):
        done = here("compute", *arguments, "--json")
        assert done.fid == pytest.approx(expected(ddof=0 if layout == "StyleGAN" else 1), rel=1e-12)
        assert f"{', '.join(arguments)}: the file does not state its protocol" in done.stderr


def test_one_of_several_statistics_is_named(here: Run, tmp_path: Path) -> None:
    bundle = {
        "jit_in256_stats.npz": gaussian(ROWS),
        "clip_in256_stats.npz": gaussian(features(30, 5)),
    }
    pickled(bundle)(tmp_path / "paper.pkl")
    done = here("compute", "paper.pkl:jit_in256_stats.npz", "fake.npz", "--json")
    assert done.fid == pytest.approx(expected(), rel=1e-12)
    assert done.json["results"][0]["real"] == "paper.pkl:jit_in256_stats.npz"
    refused = here("compute", "fake.npz:mu", "fake.npz")
    assert refused.status == 2
    assert "mu in fake.npz has the shape 8" in refused.error


@pytest.mark.parametrize("layout", WITH_FEATURES)
def test_features_serve_every_metric(here: Run, tmp_path: Path, layout: str) -> None:
    """The values are those of fidtool's own file with the same features."""
    write_layout(layout, tmp_path / "real.npz", ROWS)
    write_layout("clean-fid for KID", tmp_path / "other.npz", OTHERS)
    for name in ("real", "other"):
        found = fidtool.read_statistics(tmp_path / f"{name}.npz")
        fidtool.write_statistics(tmp_path / f"own-{name}.npz", found)
    found, own = (
        here("compute", *paths, *SMALL, "--json")
        for paths in (("real.npz", "other.npz"), ("own-real.npz", "own-other.npz"))
    )
    assert len(found.metrics) == 8
    assert found.metrics == own.metrics
    assert found.metrics["fd_8"] == pytest.approx(
        expected(ddof=0 if "StyleGAN" in layout else 1), rel=1e-9
    )
    assert found.json["results"][0]["count"] == {"real": len(ROWS), "fake": len(OTHERS)}


# --- the protocol of the origin -------------------------------------------------------------------


def wide(dims: int = 2048, shift: float = 0.0) -> dict[str, Any]:
    return {"mu": np.linspace(0, 1, dims) + shift, "sigma": np.diag(np.linspace(0.5, 1, dims))}


def adm(shift: float = 0.0) -> dict[str, Any]:
    return {
        **wide(shift=shift),
        **{f"{name}_s": each for name, each in wide(SPATIAL_DIMS, shift).items()},
    }


ADM = "settings taken from adm.npz, a file of ADM's evaluator (it has mu_s): protocol tensorflow"


def test_images_are_measured_with_the_protocol_of_the_file(here: Run, tmp_path: Path) -> None:
    """Its definition is that of the run."""
    np.savez(tmp_path / "adm.npz", **adm())
    make_pictures(tmp_path / "images", 3)
    done = here("compute", "adm.npz", "images", "--json")
    assert done.status == 0, done.stderr
    assert done.json["run"]["notes"] == [ADM]
    assert done.json["protocol"]["name"] == "tensorflow"
    assert "does not state its protocol" not in done.stderr
    refused = here("compute", "adm.npz", "images", "--protocol", "clean")
    assert "this run and adm.npz use different protocols" in refused.error


# --- other places ---------------------------------------------------------------------------------


def test_remote_files_are_recognised_by_their_content(here: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    write_layout("EDM2", store / "img512.pkl", ROWS)
    write_layout("clean-fid for KID", store / "kid", ROWS)
    pickled({"a.npz": gaussian(ROWS), "b.npz": gaussian(OTHERS)})(store / "paper.pkl")
    with http_store(store) as web:
        for name in ("img512.pkl", "kid", "paper.pkl:a.npz"):
            done = here("compute", f"{web.url}{name}", "fake.npz", "--json")
            assert done.fid == pytest.approx(expected(), rel=1e-12)
        missing = here("compute", f"{web.url}none.pkl", "fake.npz")
        assert missing.status == 2
        assert "none.pkl cannot be read: it does not exist" in missing.error
