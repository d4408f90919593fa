"""``--metrics all`` computes every available metric and reports why it leaves the others out."""

from __future__ import annotations

from pathlib import Path

import pytest

import fidtool
from fidtool.metrics.registry import BUILT_IN
from support.command_line import Run
from support.pictures import make_pictures
from support.places import SCRIPTS, TINY
from support.small_sets import make_sets

SLICED = f"{SCRIPTS / 'examples' / 'sliced.py'}:Sliced"
OF_TINY = ["fid", "kid", "prdc", "mind", "mifid", "vendi", "authpct"]
"""The metrics that are available for a network other than Inception, without weights for CMMD."""
BY_NAME = [name for name, kind in BUILT_IN.items() if kind.by_name]
"""Metrics that `all` never selects."""


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


@pytest.fixture(autouse=True)
def no_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide CLIP weights that may be on the machine."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))


def left_out(notes: list[str]) -> list[str]:
    """Return the metrics that the record reports as left out."""
    start = "--metrics all omits '"
    return [note.removeprefix(start).partition("':")[0] for note in notes if note.startswith(start)]


def test_available_metrics_are_computed(here: Run, sets: tuple[Path, Path]) -> None:
    run = ("compute", *sets, "--extractor", TINY, "--metrics", "all", "--json")
    found = here(*run)
    assert found.json["run"]["config"]["metrics"] == OF_TINY
    named = here("compute", *sets, "--extractor", TINY, "--metrics", ",".join(OF_TINY), "--json")
    assert found.metrics == named.metrics
    notes = found.json["run"]["notes"]
    assert left_out(notes) == ["is", "sfid", "fid-infinity", "cmmd"]
    for note, reason in zip(
        notes, ("Inception's 2048", "Inception only", "has 43", "CMMD's network"), strict=True
    ):
        assert reason in note
        assert found.stderr.splitlines().count(note) == 1
    reasons = found.not_computed
    omitted = [f"--metrics all omits '{name}': {reason}" for name, reason in reasons.items()]
    assert omitted[:4] == notes
    assert list(reasons)[4:] == BY_NAME
    titles = ("IS", "sFID", "FID-infinity", "CMMD", "FDr", "PSNR, SSIM, MS-SSIM, LPIPS")
    lines = [f"{title}: not computed: " for title in (*titles, "CLIP score")]
    stated = dict.fromkeys(reasons.values())  # each reason once
    lines = [line + reason for line, reason in zip(lines, stated, strict=True)]
    for form in ("lines", "table"):
        quiet = here(*run[:-1], "--format", form, "--quiet")
        assert [line for line in quiet.stdout.splitlines() if "not computed" in line] == lines
        assert "omits" not in quiet.stderr, "it is in the result"


def test_metrics_that_all_never_selects_are_named_with_the_reason(
    here: Run, sets: tuple[Path, Path]
) -> None:
    """Also for sets whose images have the same names; a metric that is named is computed."""
    run = ("compute", sets[0], sets[0], "--extractor", TINY, "--json", "--metrics")
    found = here(*run, "all,psnr")
    assert "psnr" in found.metrics
    assert [name for name in found.not_computed if name in BY_NAME] == [
        name for name in BY_NAME if name != "psnr"
    ]
    assert found.status == 0
    assert "--captions" in found.not_computed["clip-score"]
    assert not here(*run, "fid,kid").not_computed


def test_all_metrics_with_inception(here: Run, tmp_path: Path) -> None:
    """The test weights have no classifier, and `all` downloads nothing."""
    sets = [make_pictures(tmp_path / name, 7, seed) for seed, name in enumerate(("real", "fake"))]
    found = here("compute", *sets, "--metrics", "ALL", "--json")
    numbers = [
        "fid",
        "kid",
        "kid_subset_size",
        "precision",
        "recall",
        "density",
        "coverage",
        "f_score",
        "sfid",
        "mind",
        "mifid",
        "mifid_distance",
        "vendi",
        "authpct",
    ]
    assert list(found.metrics) == numbers
    assert left_out(found.json["run"]["notes"]) == ["is", "fid-infinity", "cmmd"]
    assert "fidtool weights --download" in found.stderr


def test_a_file_without_features_allows_what_needs_none_of_real(
    here: Run, sets: tuple[Path, Path]
) -> None:
    assert here("stats", sets[0], "-o", "real.npz", "--extractor", TINY).status == 0
    found = here("compute", "real.npz", sets[1], "--extractor", TINY, "--metrics", "all", "--json")
    assert found.json["run"]["config"]["metrics"] == ["fid", "vendi"], "the latter is of FAKE alone"
    assert len(found.metrics) == 2
    assert "all omits 'kid': real.npz" in found.stderr


def test_statistics_files_for_all_metrics(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        run = here(
            "stats",
            folder,
            "-o",
            f"{folder.name}.npz",
            "--extractor",
            TINY,
            "--metrics",
            "all",
            "--quiet",
        )
        assert run.status == 0
        assert left_out(run.stderr.splitlines()) == ["is", "sfid", "cmmd"], (
            "no other result has them"
        )
    with pytest.warns(fidtool.FidtoolWarning, match="omits 'sfid'"):
        fidtool.compute_statistics(sets[0], extractor=TINY, metrics="all")
    found = here("compute", "real.npz", "fake.npz", "--metrics", "all", "--json")
    images = here("compute", *sets, "--extractor", TINY, "--metrics", "all", "--json")
    values = [list(each.metrics.values()) for each in (found, images)]
    assert len(values[0]) == 14
    assert values[0] == values[1]


def test_a_metric_with_a_setting_counts_as_requested(here: Run, sets: tuple[Path, Path]) -> None:
    run = ("compute", *sets, "--extractor", TINY)
    for name, words, flags in (
        ("prdc", "has 40: pass a smaller --nearest-k", ("--metrics", "all", "--nearest-k", 41)),
        (
            "fid-infinity",
            "FID-infinity needs at least 5014 images in a set, but",
            ("--metrics", "all,fid-infinity"),
        ),
    ):
        found = here(*run, *flags, "--json")
        assert (found.status, found.json["exit"]["lacking"]) == (1, [name])
        assert words in found.stderr
        assert found.stderr.splitlines()[-1] == f"not computed: {name}"
    found = here(
        *run, "--metrics", f"all,{SLICED}", "--kid-subset-size", 9, "--fail-above", 0, "--json"
    )
    assert found.status == 3
    assert found.json["settings"]["kid"]["subset_size"] == 9
    assert found.json["run"]["config"]["metrics"] == [*OF_TINY, SLICED]


def test_an_iterable_is_counted_first(sets: tuple[Path, Path], environment: dict[str, str]) -> None:
    from PIL import Image

    def opened() -> list[Image.Image]:
        return [Image.open(file) for file in sorted(sets[1].iterdir())[:4]]

    found = fidtool.compute(sets[0], iter(opened()), extractor=TINY, metrics="all", cache=False)
    assert [value.number.name for value in found.results[0].values] == [
        "fid",
        "kid",
        "mind",
        "mifid",
        "vendi",
        "authpct",
    ]
    assert {lacking.metric for lacking in found.not_computed} == {
        "is",
        "prdc",
        "sfid",
        "fid-infinity",
        "cmmd",
        *BY_NAME,
    }
    assert found.results[0].value("kid_subset_size") == 4
    assert any("omits 'prdc': " in note and note.endswith("fake has 4") for note in found.run.notes)
    said = [*map(str, found.results[0].warnings)]
    assert any(
        "(only 4 images): KID draws subsets of 4 images instead of 1000" in line for line in said
    )
