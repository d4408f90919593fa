"""The metrics other than FID on the command line: one pass over the images, reproducible bits,
clear errors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fidtool as package
from fidtool.features.protocol import EMBEDDING
from fidtool.metrics.metric import MetricFacts
from fidtool.result.values import FeatureSource
from fidtool.statistics.file import read_statistics
from support.command_line import Run, messages
from support.pictures import make_pictures
from support.places import COLOURS, TINY
from support.small_sets import COUNT, METRICS, SMALL, make_sets

KEY, OWN_KEY = FeatureSource.from_network(TINY, 16).key, FeatureSource.from_network(COLOURS, 16).key

NAMES = ["fid", "kid", "kid_std", "precision", "recall", "density", "coverage", "f_score", "cmmd"]

PARAMETERS = {"degree": 3, "gamma": None, "coef": 1.0, "sigma": 10.0}
"""Of KID's kernels."""

KEYS = [OWN_KEY(name) if name == "cmmd" else KEY("fd" if name == "fid" else name) for name in NAMES]


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def test_all_metrics_are_computed_in_one_pass(here: Run, sets: tuple[Path, Path]) -> None:
    outcome = here("compute", *sets, "--extractor", TINY, *METRICS, "--json")
    assert list(outcome.metrics) == KEYS
    run = outcome.json["run"]
    assert (run["images_computed"], run["forward_passes"]) == (2 * COUNT + 3, 11)
    assert {"distance", "kid", "prdc", "cmmd"} <= set(run["seconds"])
    assert outcome.json["settings"] == {
        "kid": {
            "subsets": 7,
            "subset_size": 20,
            "seed": 0,
            "kernel": "poly",
            "degree": 3,
            "gamma": None,
            "coef": 1.0,
            "sigma": 10.0,
        },
        "prdc": {"nearest_k": 3, "ties": "strict"},
        "cmmd": {
            key: outcome.json["layers"][EMBEDDING][key] for key in ("extractor", "weights_sha256")
        },
    }
    assert outcome.json["layers"][EMBEDDING]["extractor"].startswith("tiny_network.py:colours")
    alone = here("compute", *sets, "--extractor", TINY, "--json", "--no-cache")
    assert alone.metrics == {KEYS[0]: outcome.metrics[KEYS[0]]}


def test_duplicates_that_leave_no_room_for_precision_are_reported(
    here: Run, sets: tuple[Path, Path]
) -> None:
    real, fake = sets
    for name in ("00003", "00007"):
        (real / f"{name}-again.png").write_bytes((real / f"{name}.png").read_bytes())
    command = (
        "compute",
        real,
        fake,
        "--extractor",
        TINY,
        "--metrics",
        "prdc",
        "--no-diagnosis",
        "--json",
    )
    (line,) = messages(here(*command, "--nearest-k", 1).json["results"][0])
    assert line.startswith(
        f"Precision, density and coverage: 4 of {COUNT + 2} images of {real} have a radius of 0"
    )
    assert line.endswith(
        "no image can be within that radius; remove the duplicates, or pass a larger --nearest-k"
    )
    (line,) = messages(here(*command, "--nearest-k", 1, "--ties", "inclusive").json["results"][0])
    assert "only images with the same features can be within that radius" in line
    assert messages(here(*command, "--nearest-k", 2).json["results"][0]) == []


def test_new_metrics_are_recorded_and_refused(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Copies of REAL have a MIFID far above the FID, and are not authentic. A gate on MIFID is one
    on a distance.
    """
    run = ("compute", *sets, "--extractor", TINY, "--metrics", "mind,mifid,vendi,authpct,fid")
    found = here(
        *run,
        "--mind-directions",
        40,
        "--mind-seed",
        2,
        "--mifid-eps",
        1,
        "--fail-above",
        0,
        "--json",
    )
    assert found.status == 3
    assert found.json["exit"]["gated"] == KEY("mifid")
    assert found.json["settings"] == {
        "mind": {"directions": 40, "seed": 2},
        "mifid": {"cosine_distance_eps": 1.0},
    }
    values = found.json["results"][0]["metrics"]
    names = ("fd", "mifid", "mifid_distance", "authpct")
    fid, mifid, distance, authentic = (values[KEY(name)] for name in names)
    assert mifid == pytest.approx(fid / distance, rel=1e-9)
    assert 0 <= authentic <= 100
    copies = here("compute", sets[0], sets[0], *run[3:], "--json").metrics
    assert copies[KEY("authpct")] == 0
    one = make_pictures(tmp_path / "one", 1, 3)
    for name, title in (("vendi", "Vendi"), ("authpct", "AuthPct diagnostic")):
        refused = here("compute", sets[0], one, "--extractor", TINY, "--metrics", name)
        assert refused.status == 2
        words = f"{title} needs at least 2 images in a set, but {one} has 1: omit '{name}' from --metrics"
        assert words in refused.error


def test_inception_score_needs_inception_features(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        assert (
            here(
                "stats", folder, "-o", f"{folder.name}.npz", "--extractor", TINY, "--metrics", "kid"
            ).status
            == 0
        )
    refused = here("compute", "real.npz", "fake.npz", "--metrics", "is")
    assert refused.status == 2
    assert (
        "the Inception Score needs Inception's 2048 features, not 16 features of tiny_network.py"
        in refused.error
    )


def test_the_protocol_does_not_apply_to_cmmds_network(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        settings = ["--extractor", TINY, "--protocol", "tensorflow", *METRICS[:4]]
        assert here("stats", folder, "-o", f"{folder.name}.npz", *settings).status == 0
    found = here("compute", "real.npz", "fake.npz", "--protocol", "tensorflow", *METRICS, "--json")
    assert len(found.metrics) == len(NAMES)


def test_statistics_files_contain_what_was_requested(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """The cache may have more."""
    assert here("compute", *sets, "--extractor", TINY, "--metrics", "kid", *SMALL).status == 0
    assert here("stats", sets[0], "-o", "real.npz", "--extractor", TINY).status == 0
    assert read_statistics(tmp_path / "real.npz").features is None


def test_cached_features_serve_runs_that_need_less(here: Run, sets: tuple[Path, Path]) -> None:
    arguments = ["compute", *sets, "--extractor", TINY, "--json"]
    first = here(*arguments, "--metrics", "fid,kid", *SMALL).metrics
    for settings in (["--metrics", "fid,kid", *SMALL], ["--metrics", "fid"], ["--metrics", "prdc"]):
        again = here(*arguments, *settings)
        assert again.json["run"]["images_computed"] == 0
        assert all(first.get(name, value) == value for name, value in again.metrics.items())
    cmmd = here(*arguments, *METRICS)
    assert cmmd.json["run"]["images_computed"] == 2 * COUNT + 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metrics", "fid,kit"], ["kit", "kid"]),
        (["--metrics", "prdc", "--nearest-k", "40"], ["has 40: pass a smaller --nearest-k"]),
        (["--cmmd-extractor", "dinov2"], ["--cmmd-extractor", "cmmd"]),
        (["--metrics", "cmmd", "--cmmd-extractor", "clip:none"], ["none", "open_clip"]),
        (
            ["--metrics", "cmmd", "--cmmd-extractor", "timm:test_vit@weights=no.pt"],
            ["--cmmd-extractor", "no.pt"],
        ),
        (["--metrics", "cmmd", "--cmmd-extractor", "clipp"], ["clipp", "did you mean clip"]),
    ],
)
def test_invalid_metrics_are_refused_before_any_work(
    here: Run, sets: tuple[Path, Path], arguments: list[str], words: list[str]
) -> None:
    refused = here("compute", *sets, "--extractor", TINY, *arguments)
    assert refused.status == 2
    for word in words:
        assert word in refused.error
    assert "images/s" not in refused.stderr


def test_prdc_does_not_warn_about_singular_covariances(here: Run, tmp_path: Path) -> None:
    sets = make_pictures(tmp_path / "real", 9, 0), make_pictures(tmp_path / "fake", 9, 1)
    arguments = ["compute", *sets, "--extractor", TINY, "--nearest-k", 2]
    assert "are far too high" not in here(*arguments, "--metrics", "prdc").stderr
    assert "are far too high" in here(*arguments, "--metrics", "prdc,fid").stderr


def test_fid_infinity_refuses_too_many_dimensions() -> None:
    metric = package.FIDInfinity()
    metric.check(MetricFacts("mine.py:network", dims=4999))
    with pytest.raises(
        package.InputError,
        match=r"subsets of 5000 images.* 5000 dimensions: use a network with fewer dimensions",
    ):
        metric.check(MetricFacts("mine.py:network", dims=5000))
