"""Influence of images on FID: the derivative, its prediction, and the FID without the images."""

from __future__ import annotations

from pathlib import Path

from support import degenerate
from support.command_line import Run
from support.influences import DISTANCE, check_removals, influence_of, with_harmful
from support.places import FD, TINY


def test_predicted_and_computed_fid_agree(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fake = with_harmful(tmp_path / "fake", 360, 40)
    found = check_removals(here, real, fake, "--extractor", TINY)
    assert [image for image in found["most_harmful"] if "bad-" not in image["file"]] == []
    effects = [image["effect"] for image in found["most_harmful"]]
    assert len(effects) == 20
    assert effects == sorted(effects, reverse=True)
    least = [image["effect"] for image in found["least_harmful"]]
    assert least == sorted(least)
    assert least[0] < 0 < effects[0]


def test_effects_that_do_not_add_up_are_reported(here: Run, tmp_path: Path) -> None:
    """After all faulty images are removed, the sum of the predicted effects exceeds the drop in FID."""
    real = degenerate.distinct(tmp_path / "real", 300, first=5000)
    fid, found = influence_of(here, real, with_harmful(tmp_path / "fake", 392, 8), "--extractor", TINY)
    last = found["removals"][-1]
    assert last["images"] == 8
    assert last["predicted"] < last[DISTANCE] < fid
    assert f"the effects predict an {FD} of {last['predicted']:.6g}, but it is {last[DISTANCE]:.6g}" in found["doubt"]


def test_text_output(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 100, first=5000)
    fake = with_harmful(tmp_path / "fake", 96, 4)
    outcome = here("compute", real, fake, "--extractor", TINY, "--influence", "--quiet")
    assert outcome.stdout.count("\n") == 1
    lines = outcome.stderr.splitlines()
    start = lines.index(f"{fake}: these images raise the {FD} most:")
    assert all("bad-" in line for line in lines[start + 1 : start + 5])
    assert any(f"without the worst 2.0% (2 images) the {FD} is" in line for line in lines)


def test_fewer_images_than_dimensions_give_a_warning(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    _, found = influence_of(here, real, degenerate.distinct(tmp_path / "fake", 12), "--extractor", TINY)
    assert "12 images for 16 dimensions" in found["doubt"]


def test_files_need_their_features(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    fake = degenerate.distinct(tmp_path / "fake", 60)
    assert here("stats", fake, "-o", "fake.npz", "--extractor", TINY).status == 0
    outcome = here("compute", real, "fake.npz", "--extractor", TINY, "--influence")
    assert outcome.status == 2
    assert "fake.npz has only a mean and a covariance" in outcome.error
    kept = ("--extractor", TINY, "--metrics", "fid,kid")
    assert here("stats", fake, "-o", "kept.npz", *kept).status == 0
    _, found = influence_of(here, real, Path("kept.npz"), "--extractor", TINY)
    _, direct = influence_of(here, real, fake, "--extractor", TINY)
    assert [image["effect"] for image in found["most_harmful"]] == [image["effect"] for image in direct["most_harmful"]]


def test_influence_and_uncertainty_need_fid(here: Run, tmp_path: Path) -> None:
    real = degenerate.distinct(tmp_path / "real", 60, first=5000)
    for flag in ("--influence", "--uncertainty"):
        outcome = here("compute", real, real, "--metrics", "kid", flag)
        assert outcome.status == 2
        assert "about the metric fid" in outcome.error
