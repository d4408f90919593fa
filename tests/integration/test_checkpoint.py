"""Checkpoint folder: which run it belongs to, which parts are used, and how damaged and stale parts
are handled.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.statistics.checkpoint import MANIFEST
from support.command_line import Run, changed
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def kept(here: Run, tmp_path: Path) -> list[Any]:
    """Arguments of a run with the small network that has written the checkpoint folder ``kept``."""
    real, fake = make_pictures(tmp_path / "real", 12, 1), make_pictures(tmp_path / "fake", 12, 2)
    arguments = [
        "compute",
        real,
        fake,
        "--extractor",
        TINY,
        "--no-cache",
        "--batch-size",
        2,
        "--checkpoint",
        "kept",
    ]
    assert here(*arguments).status == 0
    return arguments


OTHERS = {
    "protocol": (["--protocol", "tensorflow"], "resize was bilinear and is now bilinear-tf1"),
    "number": (["--num", 10], "num was not set and is now 10"),
    "pace": (["--num-workers", 1, "--max-skip", 0.5, "--on-error", "skip"], ""),
    "metrics": (["--metrics", "fid,kid", "--kid-subset-size", 9], "it had different --metrics"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_names_the_difference(
    here: Run, kept: list[Any], other: str
) -> None:
    more, difference = OTHERS[other]
    run = here(*changed(kept, *more), "--json")
    if not difference:
        assert run.json["run"]["images_resumed"] == 24
        return
    assert run.status == 2
    assert difference in run.error
    assert "belongs to a different run" in run.error


def test_a_checkpoint_of_another_set_names_the_difference(
    here: Run, kept: list[Any], tmp_path: Path
) -> None:
    third = make_pictures(tmp_path / "third", 12, 3)
    assert (
        f"and this one computes {tmp_path / 'real'}, {third}"
        in here(*kept[:2], third, *kept[3:]).error
    )
    (tmp_path / "fake" / "00003.png").rename(tmp_path / "fake" / "other.png")
    assert f"the names of the images of {tmp_path / 'fake'} differ" in here(*kept).error
    (tmp_path / "fake" / "other.png").unlink()
    assert f"count of {tmp_path / 'fake'} was 12 and is now 11" in here(*kept).error


def test_parts_are_statistics_files_whose_merger_is_the_set(
    kept: list[Any], tmp_path: Path
) -> None:
    """Each states the files of its own images as the whole, so that a changed file costs only its
    part.
    """
    parts = [
        fidtool.read_statistics(file) for file in sorted((tmp_path / "kept").glob("*-000-*.npz"))
    ]
    assert len(parts) == len({part.part.whole for part in parts if part.part}) == 6
    merged = fidtool.merge_statistics(
        [replace(part, part=replace(part.part, whole="real")) for part in parts]
    )
    once = fidtool.compute_statistics(tmp_path / "real", extractor=TINY, cache=False, batch_size=2)
    assert once is not None
    assert (merged.mu == once.mu).all()
    assert (merged.sigma == once.sigma).all()
    assert (merged.count, merged.traits, merged.found) == (once.count, once.traits, once.found)


def test_a_damaged_manifest_is_refused(here: Run, kept: list[Any], tmp_path: Path) -> None:
    for content, message in (
        ("{", "is damaged"),
        ('{"format": 2}', "not a checkpoint of this version"),
    ):
        (tmp_path / "kept" / MANIFEST).write_text(content)
        assert message in here(*kept).error


def test_a_damaged_part_is_reported_and_computed_again(
    here: Run, kept: list[Any], tmp_path: Path
) -> None:
    before = here(*kept, "--json")
    part = next((tmp_path / "kept").glob("*-000-00.npz"))
    whole = part.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:700] + bytes([whole[700] ^ 1]) + whole[701:]):
        part.write_bytes(damage)
        run = here(*kept, "--json")
        assert f"{part.relative_to(tmp_path)} is damaged" in run.stderr
        assert run.json["results"][0]["metrics"] == before.json["results"][0]["metrics"]
        assert run.json["run"]["images_computed"] == 2
        assert run.json["run"]["images_resumed"] == 22


def test_a_folder_that_cannot_be_written_is_reported(here: Run, kept: list[Any]) -> None:
    """Not even root can create files in /sys."""
    run = here(*changed(kept, "--checkpoint", "/sys/fidtool"), "--quiet")
    assert run.status == 0
    assert run.stderr.startswith("warning: --checkpoint /sys/fidtool cannot be written (")
    assert run.stderr.count("/sys/fidtool") == 1


def test_skipped_files_are_recorded(here: Run, kept: list[Any], tmp_path: Path) -> None:
    (tmp_path / "fake" / "00005.png").write_bytes(b"no image")
    skip = [
        *changed(kept, "--checkpoint", "skipping", "--on-error", "skip", "--max-skip", "0.1"),
        "--json",
    ]
    first, second = here(*skip), here(*skip)
    assert second.json["run"]["images_resumed"] == 24
    assert first.json["results"] == second.json["results"]
    assert second.json["results"][0]["skipped"][0]["file"].endswith("00005.png")
    assert "--on-error skip" in here(*changed(kept, "--checkpoint", "skipping")).error
    assert "--max-skip 0.01 allows 0" in here(*changed(skip, "--max-skip", "0.01")).error


def test_a_fixed_file_is_read(here: Run, kept: list[Any], tmp_path: Path) -> None:
    """The first run stops at the file. Work on the other set is used."""
    bad = tmp_path / "fake" / "00005.png"
    whole = bad.read_bytes()
    before = here(*kept, "--json")
    bad.write_bytes(b"no image")
    arguments = [*changed(kept, "--checkpoint", "again"), "--json"]
    first = here(*arguments)
    assert first.status == 2
    assert "fix the file" in first.stderr
    assert "run the same command again to resume" in first.stderr
    bad.write_bytes(whole)
    second = here(*arguments)
    assert second.json["results"] == before.json["results"]
    assert 12 <= second.json["run"]["images_resumed"] < 24


def test_changed_pixels_are_read_even_with_the_old_size_and_mtime(
    here: Run, kept: list[Any], tmp_path: Path
) -> None:
    """`cp -p`, tar and rsync preserve size and mtime; only ctime shows the change."""
    victim, other = tmp_path / "fake" / "00003.png", tmp_path / "fake" / "00004.png"
    data = victim.read_bytes()
    size = max(len(data), len(other.read_bytes()))
    for file in (victim, other):  # PNG readers ignore data after the end chunk
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
    arguments = [*changed(kept, "--checkpoint", "changing"), "--json"]
    stale = here(*arguments).fid
    stamp = os.stat(victim)
    victim.write_bytes(other.read_bytes())
    os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    resumed = here(*arguments)
    assert "have changed since" in resumed.stderr
    assert resumed.fid == here(*changed(arguments, "--checkpoint", "fresh")).fid != stale


def test_max_pixels_applies_to_resumed_work(here: Run, kept: list[Any], tmp_path: Path) -> None:
    """Raising the limit includes the image that was skipped; lowering it skips the image that was
    included.
    """
    make_pictures(tmp_path / "large", 1, 5, sides=(100,)).joinpath("00000.png").rename(
        tmp_path / "fake" / "large.png"
    )
    skip = [
        *changed(kept, "--checkpoint", "a"),
        "--json",
        "--on-error",
        "skip",
        "--max-skip",
        "0.1",
    ]
    without = here(*skip, "--max-pixels", 5000)
    assert len(without.json["results"][0]["skipped"]) == 1
    raised = here(*skip)
    assert raised.json["results"][0]["skipped"] == []
    lowered = here(*skip, "--max-pixels", 5000)
    assert lowered.json["results"] == without.json["results"]


def test_all_parts_of_changed_files_are_one_warning(
    here: Run, kept: list[Any], tmp_path: Path
) -> None:
    for file in (tmp_path / "fake").iterdir():
        file.touch()
    run = here(*kept, "--json")
    assert run.json["run"]["images_resumed"] == 12
    (line,) = [line for line in run.stderr.splitlines() if "warning" in line and "kept" in line]
    assert (
        "is not used (files of the set have changed since); computing 6 chunks of a set again"
        in line
    )


def test_parts_of_another_run_are_never_read(here: Run, kept: list[Any], tmp_path: Path) -> None:
    """The manifest may be lost, or was never written because the disk was full."""
    third = make_pictures(tmp_path / "third", 12, 3)
    (tmp_path / "kept" / MANIFEST).unlink()
    run = here(*kept[:2], third, *kept[3:], "--json")
    assert run.json["run"]["images_resumed"] == 0
