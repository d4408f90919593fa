"""The metrics other than FID on the command line: one pass over the images, reproducible bits, clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool as package
from fidtool.features.protocol import EMBEDDING
from fidtool.labels import Labels
from fidtool.statistics import named_arrays
from fidtool.statistics.statistics_file import read_statistics
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY
from support.small_sets import COUNT, METRICS, SMALL, make_sets

LABELS = Labels(TINY, 16, {EMBEDDING: COLOURS})

NAMES = ["fid", "kid", "kid_std", "precision", "recall", "density", "coverage", "cmmd"]

KEYS = [LABELS.key(name) for name in NAMES]


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
        "kid": {"subsets": 7, "subset_size": 20, "seed": 0},
        "prdc": {"nearest_k": 3, "ties": "strict"},
        "cmmd": {key: outcome.json["layers"][EMBEDDING][key] for key in ("extractor", "weights_sha256")},
    }
    assert outcome.json["layers"][EMBEDDING]["extractor"].startswith("tiny_network.py:colours")
    alone = here("compute", *sets, "--extractor", TINY, "--json", "--no-cache")
    assert alone.metrics == {KEYS[0]: outcome.metrics[KEYS[0]]}


def test_text_has_one_line_per_metric(here: Run, sets: tuple[Path, Path]) -> None:
    lines = here("compute", *sets, "--extractor", TINY, *METRICS).stdout.splitlines()
    titles = [LABELS.title(name) for name in NAMES if name != "kid_std"]
    assert [line.rpartition(": ")[0] for line in lines] == titles
    assert " ± " in lines[1]
    two = here("compute", sets[0], sets[1], sets[0], "--extractor", TINY, *METRICS).stdout.splitlines()
    assert [line.rpartition("  ")[2] for line in two] == [str(sets[1])] * 7 + [str(sets[0])] * 7


def test_a_file_without_features_is_refused_before_any_work(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "real.npz"
    assert here("stats", sets[0], "-o", file, "--extractor", TINY).status == 0
    for settings, words in (
        (["--metrics", "fid,kid", *SMALL], ["features of each image", "--metrics kid"]),
        (["--metrics", "cmmd", *METRICS[2:4]], ["CMMD", "no statistics"]),
    ):
        refused = here("compute", file, sets[1], "--extractor", TINY, *settings)
        assert refused.status == 2
        for word in (*words, "real.npz", "fidtool stats"):
            assert word in refused.error


def test_inception_score_needs_inception_features(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        assert here("stats", folder, "-o", f"{folder.name}.npz", "--extractor", TINY, "--metrics", "kid").status == 0
    refused = here("compute", "real.npz", "fake.npz", "--metrics", "is")
    assert refused.status == 2
    assert "the Inception Score needs Inception's 2048 features, not the 16 of tiny_network.py" in refused.error


def test_a_forgotten_extractor_is_named(here: Run, sets: tuple[Path, Path]) -> None:
    assert here("stats", sets[0], "-o", "real.npz", "--extractor", TINY).status == 0
    refused = here("compute", "real.npz", sets[1], "--extractor", COLOURS)
    assert refused.status == 2
    assert "real.npz has features of 16 dimensions (of tiny_network.py:network" in refused.error


def test_the_protocol_does_not_apply_to_cmmds_network(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        settings = ["--extractor", TINY, "--protocol", "tensorflow", *METRICS[:4]]
        assert here("stats", folder, "-o", f"{folder.name}.npz", *settings).status == 0
    found = here("compute", "real.npz", "fake.npz", "--protocol", "tensorflow", *METRICS, "--json")
    assert len(found.metrics) == len(NAMES)


def test_statistics_files_contain_what_was_requested(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """The cache may have more."""
    assert here("compute", *sets, "--extractor", TINY, "--metrics", "kid", *SMALL).status == 0
    assert here("stats", sets[0], "-o", "real.npz", "--extractor", TINY).status == 0
    assert read_statistics(tmp_path / "real.npz").features is None


def test_reference_batches_of_adm_are_read(here: Run, tmp_path: Path) -> None:
    """They store spatial statistics under different names, and do not state their protocol."""
    rng = np.random.RandomState(0)
    for name in ("real", "fake"):
        pooled, spatial = rng.standard_normal((50, 6)), rng.standard_normal((50, 9))
        arrays = {"mu": pooled.mean(0), "sigma": np.cov(pooled, rowvar=False)}
        arrays |= {"mu_s": spatial.mean(0), "sigma_s": np.cov(spatial, rowvar=False)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    both = [np.load(tmp_path / f"{name}.npz") for name in ("real", "fake")]
    found = here("compute", tmp_path / "real.npz", tmp_path / "fake.npz", "--metrics", "fid,sfid", "--json")
    for metric, suffix in (("fd_6", ""), ("sfid", "_s")):
        parts = [each[f"{key}{suffix}"] for each in both for key in ("mu", "sigma")]
        assert found.metrics[metric] == pytest.approx(package.frechet_distance(*parts), rel=1e-12)
    assert "does not state its protocol" in found.stderr


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
        (["--metrics", ""], ["metric"]),
        (
            ["--metrics", "kid", "--kid-subset-size", "1000"],
            ["subsets of 1000", "has 40", "--kid-subset-size 40 or less"],
        ),
        (["--metrics", "kid", "--kid-subset-size", "42"], ["has 40", "--kid-subset-size 40 or less"]),
        (
            ["--metrics", "kid", "--kid-subset-size", "40", "--on-error", "skip", "--max-skip", "0.1"],
            [
                "has 40, of which --on-error skip may skip 4",
                "--kid-subset-size 36 or less, or a smaller --max-skip",
            ],
        ),
        (["--metrics", "prdc", "--nearest-k", "40"], ["40 neighbours", "--nearest-k"]),
        (["--metrics", "fid-infinity"], ["5000", "fake has 43", "5014"]),
        (["--metrics", "is"], ["Inception Score", "--extractor"]),
        (["--metrics", "sfid"], ["sFID", "--extractor"]),
        (
            ["--metrics", "kid", "--kid-subset-size", "9", "--fail-above", "3"],
            ["limits a Fréchet distance", "fid or sfid"],
        ),
        (["--nearest-k", "3"], ["--nearest-k", "prdc", "--metrics"]),
        (["--metrics", "fid,prdc", "--kid-subset-size", "9"], ["--kid-subset-size", "kid"]),
        (["--cmmd-weights", "clip.pt"], ["--cmmd-weights", "cmmd"]),
        (["--metrics", "cmmd", "--cmmd-extractor", "clip:none"], ["none", "open_clip"]),
        (["--metrics", "cmmd", "--cmmd-weights", "none.pt", "--cmmd-extractor", "timm:test_vit"], ["--cmmd-weights"]),
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


def test_from_python(sets: tuple[Path, Path], environment: dict[str, str]) -> None:
    evaluation = package.compute(
        *sets, metrics=["kid", "prdc"], extractor=TINY, kid_subset_size=20, ties="inclusive", cache=False
    )
    assert list(evaluation.results[0].metrics) == KEYS[1:-1]
    assert (evaluation.fid, evaluation.frechet_distance) == (None, None)
    with pytest.raises(package.InputError, match="strict or inclusive"):
        package.compute(*sets, metrics="prdc", ties="loose")
    with pytest.raises(package.InputError, match="names of metrics, not None"):
        package.compute(*sets, metrics=None)  # type: ignore[arg-type]


def test_each_fake_is_compared_before_the_next_is_processed(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the features of REAL and one FAKE are in memory at a time. A FAKE passed twice is processed once."""
    from fidtool.pipeline.compare import Comparer
    from fidtool.pipeline.measure import Measurer

    third, order = make_pictures(tmp_path / "third", COUNT, 2), []
    measure, compare = Measurer.measure, Comparer.compare

    def measured(self: Measurer, path: str) -> Any:
        order.append(Path(path).name)
        return measure(self, path)

    def compared(self: Comparer, real: Any, fake: Any, *more: Any) -> Any:
        order.append(f"{Path(real.path).name}-{Path(fake.path).name}")
        return compare(self, real, fake, *more)

    monkeypatch.setattr(Measurer, "measure", measured)
    monkeypatch.setattr(Comparer, "compare", compared)
    arguments = ["compute", sets[0], sets[1], third, sets[1], "--extractor", TINY, "--metrics", "kid", *SMALL]
    assert here(*arguments).status == 0
    assert order == ["real", "fake", "real-fake", "third", "real-third", "real-fake"]


def test_features_in_a_file_are_read_only_if_needed(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in sets:
        assert here("stats", folder, "-o", f"{folder.name}.npz", "--extractor", TINY, *METRICS[:4]).status == 0
    read: list[str] = []
    whole = named_arrays.read_features
    monkeypatch.setattr(
        named_arrays, "read_features", lambda archive, name: (read.append(name), whole(archive, name))[1]
    )
    (name,) = here("compute", "real.npz", "fake.npz", "--json").metrics
    assert name == "fd_tiny_network_py_network", (
        "the key must not contain the digest, which changes with each edit of the file"
    )
    assert read == []
    assert len(here("compute", "real.npz", "fake.npz", "--json", "--metrics", "kid", *SMALL).metrics) == 2
    assert read == ["features", "features"]
    assert read_statistics(tmp_path / "real.npz").layers[EMBEDDING].features is not None


def test_fid_infinity_refuses_too_many_dimensions() -> None:
    metric = package.FIDInfinity()
    metric.check_features(None, 4999, "")
    with pytest.raises(package.InputError, match=r"subsets of 5000 images.* 5000 dimensions: use a smaller network"):
        metric.check_features(None, 5000, "")


def test_fid_infinity_from_the_command_line(here: Run, tmp_path: Path) -> None:
    """5,100 copies of a few images are enough for the extrapolation, and fast."""
    real = make_pictures(tmp_path / "real", 60, 0)
    fake = make_pictures(tmp_path / "fake", 60, 1)
    for number in range(60, 5100):
        (fake / f"{number:05}.png").symlink_to(fake / f"{number % 60:05}.png")
    found = here("compute", real, fake, "--extractor", TINY, "--metrics", "fid,fid-infinity", "--json").metrics
    assert list(found) == [Labels(TINY).key(name) for name in ("fid", "fid_infinity", "fid_infinity_error")]
    fid, infinity, error = found.values()
    assert abs(fid - infinity) < 3 * error
    assert error > 0
