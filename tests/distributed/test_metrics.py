"""Metrics other than FID on several ranks: bit-identical at any world size, in memory and on disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fidtool.features.protocol import EMBEDDING
from fidtool.statistics.statistics_file import read_statistics
from support.command_line import Run
from support.places import EXAMPLES, TINY
from support.small_sets import COUNT, METRICS, make_sets
from support.training_programs import Programs

MIND = f"{EXAMPLES / 'mind.py'}:MIND"


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


@pytest.mark.parametrize("ranks", [None, 3])
def test_the_same_bits_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, Path], ranks: int | None) -> None:
    """In memory and on disk, with a skipped file among the images."""
    (sets[1] / "00007.png").write_bytes(b"no image")
    arguments = ["compute", *sets, "--extractor", TINY, *METRICS, "--json", "--no-cache"]
    arguments += ["--on-error", "skip", "--max-skip", "0.1", "--batch-size", "1"]
    reference = here(*arguments).metrics
    on_disk = fidtool(*arguments, ranks=ranks, FIDTOOL_FEATURE_BYTES="0")
    assert on_disk.metrics == reference
    assert on_disk.json["results"][0]["count"] == {"real": COUNT, "fake": COUNT + 2}


def test_all_metrics_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, Path]) -> None:
    """Rank zero decides for all ranks which metrics are left out, and the size of KID's subsets."""
    arguments = ["compute", *sets, "--extractor", TINY, "--metrics", f"all,{MIND}", "--json", "--no-cache"]
    one, several = here(*arguments), fidtool(*arguments, ranks=2)
    assert several.metrics == one.metrics
    assert {"kid", "precision", "mind"} <= {name.partition("_")[0] for name in one.metrics}
    for name in ("notes", "config"):
        assert several.json["run"][name] == one.json["run"][name]
    assert one.json["settings"]["kid"]["subset_size"] == COUNT
    assert several.stderr.count("omits 'sfid'") == 1


def test_features_are_stored_in_statistics_files(
    here: Run, fidtool: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    reference = here("compute", *sets, "--extractor", TINY, *METRICS, "--json", "--no-cache").metrics
    file = tmp_path / "real.npz"
    assert here("stats", sets[0], "-o", file, "--extractor", TINY, *METRICS[:4]).status == 0
    kept = read_statistics(file)
    assert kept.features is not None
    assert kept.features.shape == (COUNT, 16)
    # Unlike in the mean, stored features are not rounded to multiples of 2 ** -18, and NumPy sums them in float32.
    np.testing.assert_allclose(kept.features.mean(0), kept.mu, atol=1e-5)
    assert kept.layers[EMBEDDING].features is not None
    for ranks in (None, 2):
        arguments = ["compute", file, sets[1], "--extractor", TINY, *METRICS, "--json", "--no-cache"]
        assert fidtool(*arguments, ranks=ranks, FIDTOOL_FEATURE_BYTES="0").metrics == reference
    assert here("stats", sets[1], "-o", tmp_path / "fake.npz", "--extractor", TINY, *METRICS[:4]).status == 0
    both = here("compute", file, tmp_path / "fake.npz", *METRICS, "--json")
    assert list(both.metrics.values()) == list(reference.values()), "in the order of the file names"
    assert both.json["run"]["images_computed"] == 0


def test_functions_give_the_same_bits_at_any_world_size(programs: Programs, tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {}
    for ranks in (1, 3):
        run = programs.run(ranks, "metric_functions.py", tmp_path)
        assert run.status == 0, run.stderr
        lines = [re.fullmatch(r"\d ([^:]*): (.*)", line) for line in run.stdout.splitlines()]
        found = [match for match in lines if match]
        assert len(found) == 11 * ranks, run.stdout
        for match in found:
            seen.setdefault(match[1], set()).add(match[2])
    assert {what: len(values) for what, values in seen.items()} == dict.fromkeys(
        ("prdc strict", "prdc inclusive", "kid", "cmmd", "fid infinity", "refused"), 1
    ), seen
