"""The preset adm with a reference like ADM's: statistics of a whole training set, and some of its
images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.features.protocol import FEATURES, SPATIAL
from support.command_line import Run, bars_of
from support.offline import needs_weights
from support.pictures import make_pictures
from support.shared_statistics import share_statistics

pytestmark = needs_weights

COUNT = 6
FIVE = ["fid", "precision", "recall", "sfid"]


def stacked(folder: Path) -> Any:
    """Return the images of a folder as ADM stores samples: uint8, NHWC."""
    return np.stack(
        [np.asarray(Image.open(file).resize((32, 32))) for file in sorted(folder.iterdir())]
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, weights_cache: Path) -> Path:
    """A folder with ``VIRTUAL.npz``, ``samples.npz``, and ``training.npz``, the statistics of the
    training set.
    """
    folder = tmp_path_factory.mktemp("adm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIDTOOL_CACHE", str(folder / "cache"))
        (folder / "cache").mkdir()
        (folder / "cache" / "weights").symlink_to(weights_cache / "weights")
        training = make_pictures(folder / "training", 8, 0)
        found = fidtool.compute_statistics(
            training, protocol="tensorflow", metrics="fid,sfid", cache=False
        )
    assert found is not None
    fidtool.write_statistics(folder / "training.npz", found)
    features, spatial = found.layers[FEATURES], found.layers[SPATIAL]
    statistics = {
        "mu": features.mu,
        "sigma": features.sigma,
        "mu_s": spatial.mu,
        "sigma_s": spatial.sigma,
    }
    np.savez(
        folder / "VIRTUAL.npz",
        arr_0=stacked(make_pictures(folder / "real", COUNT, 1)),
        **statistics,
    )
    np.savez(folder / "samples.npz", stacked(make_pictures(folder / "fake", COUNT, 2)))
    return folder


@pytest.fixture(autouse=True)
def cached(environment: dict[str, str], files: Path) -> None:
    """Let these tests share their cache."""
    share_statistics(environment, files / "statistics")


@pytest.mark.slow
def test_one_command(here: Run, files: Path) -> None:
    """Without the classifier, four of ADM's five values. The whole command."""
    reference, samples = files / "VIRTUAL.npz", files / "samples.npz"
    found = here("compute", reference, samples, "--preset", "adm", "--json")
    assert [
        name for name in found.metrics if name not in ("density", "coverage", "f_score")
    ] == FIVE
    assert "--preset adm omits 'is': no weights with Inception's classifier" in found.stderr
    assert (
        "VIRTUAL.npz: Fréchet distances use its mean and covariance, other metrics its images"
        in found.stderr
    )
    (result,) = found.json["results"]
    assert result["count"] == {"real": None, "fake": COUNT}
    assert (result["sets"]["real"]["with_features"], result["sets"]["fake"]["with_features"]) == (
        COUNT,
        COUNT,
    )

    plain = ["--protocol", "tensorflow", "--json"]
    distances = here("compute", files / "training.npz", samples, "--metrics", "fid,sfid", *plain)
    assert {name: found.metrics[name] for name in ("fid", "sfid")} == pytest.approx(
        distances.metrics, rel=1e-12
    )
    rule = ["--metrics", "prdc", "--nearest-k", 3, "--ties", "inclusive"]
    neighbours = here("compute", f"{reference}:arr_0", samples, *rule, *plain)
    assert {name: found.metrics[name] for name in neighbours.metrics} == neighbours.metrics
    assert neighbours.json["run"]["images_computed"] == 0, "they are in the cache"


def test_statistics_alone_read_no_image_of_the_reference(here: Run, files: Path) -> None:
    found = here(
        "compute", files / "VIRTUAL.npz", files / "real", "--metrics", "fid", "--json", "--num", 4
    )
    assert found.json["run"]["images_computed"] == 4


@pytest.mark.slow
def test_statistics_in_the_samples_are_used(here: Run, files: Path, tmp_path: Path) -> None:
    """As in ADM's evaluator. The images beside them cannot explain the distance."""
    with np.load(files / "VIRTUAL.npz") as stored, np.load(files / "samples.npz") as samples:
        both = {name: stored[name] for name in ("mu", "sigma", "mu_s", "sigma_s")}
        np.savez(tmp_path / "both.npz", arr_0=samples["arr_0"], **both)
    explained = ["--preset", "adm", "--uncertainty", "--influence", "--json"]
    found = here("compute", files / "VIRTUAL.npz", "both.npz", *explained)
    assert found.metrics["fid"] == pytest.approx(0, abs=1e-6)
    assert found.metrics["sfid"] == pytest.approx(0, abs=1e-6)
    (result,) = found.json["results"]
    assert result["sets"]["fake"]["with_features"] == COUNT
    reason = (
        "its distance is computed from the mean and covariance in its file, not from its images"
    )
    assert (bars_of(result)["withheld"], bars_of(result)["curve"]) == (reason, [])
    assert result["influence"]["doubt"] == reason


@pytest.mark.slow
def test_images_of_a_reference_are_neither_sampled_nor_cropped(here: Run, files: Path) -> None:
    """They belong to the statistics. An array that is named is a set of images like any other."""
    reference, samples = files / "VIRTUAL.npz", files / "samples.npz"
    arguments = [
        "--protocol",
        "tensorflow",
        "--nearest-k",
        3,
        "--crop",
        "adm:16",
        "--num",
        5,
        "--json",
    ]
    found = here(
        "compute", reference, samples, *arguments, "--metrics", "fid,prdc", "--crop-fake", "edm:32"
    )
    (result,) = found.json["results"]
    assert (result["sets"]["real"]["with_features"], result["sets"]["real"]["sizes"]) == (
        COUNT,
        {"32x32": COUNT},
    )
    assert result["sets"]["fake"]["with_features"] == 5
    assert [each["framing"] for each in result["sets"].values()] == [None, "edm:32"]
    assert "--num does not apply to it" in found.stderr
    assert "--crop does not apply to it" in found.stderr
    named = here("compute", f"{reference}:arr_0", samples, *arguments, "--metrics", "prdc")
    (result,) = named.json["results"]
    assert (result["sets"]["real"]["with_features"], result["sets"]["real"]["framing"]) == (
        5,
        "adm:16",
    )


def test_the_images_can_be_checked_and_listed(here: Run, files: Path) -> None:
    assert here("check", files / "VIRTUAL.npz").status == 0
    listed = here("check", files / "VIRTUAL.npz", "--list")
    assert len(listed.stdout.splitlines()) == COUNT
    refused = here("stats", files / "VIRTUAL.npz", "-o", "again.npz", "--metrics", "kid")
    assert "statistics already" in refused.error
