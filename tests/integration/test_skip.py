"""Files that cannot be read: the run stops and names one, or skips them and names all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fidtool.sources.contents import Read
from fidtool.sources.image_set import ImageSet
from support.bad_sets import BAD, SKIP, make_sets
from support.command_line import Run, changed
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def test_skipped_files_do_not_affect_the_value(here: Run, sets: tuple[Path, Path]) -> None:
    """On the CPU features do not depend on the batches, so the values are bitwise equal."""
    skipped = here("compute", *sets, *SKIP).fid
    for name in BAD:
        (sets[1] / name).unlink()
    assert here("compute", *sets, *SKIP).fid == skipped


def test_by_default_the_first_bad_file_ends_the_run(here: Run, sets: tuple[Path, Path]) -> None:
    for name in BAD:
        alone = sets[1].parent / "alone"
        make_pictures(alone, 5, 3)
        BAD[name](alone / name)
        run = here("compute", sets[0], alone, "--extractor", TINY, "--no-cache")
        assert run.status == 2
        assert name in run.error
        assert "--on-error skip" in run.error
        (alone / name).unlink()


def test_one_percent_may_be_skipped_by_default(here: Run, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 99, 1)
    (fake / "bad.png").touch()
    arguments = ["compute", fake, fake, "--extractor", TINY, "--no-cache", "--on-error", "skip"]
    assert here(*arguments).status == 0
    (fake / "worse.png").touch()
    assert here(*arguments).status == 2


def test_a_set_with_only_bad_files_is_refused(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").touch()
    bad = tmp_path / "bad"
    assert (
        f"no file in {bad} can be used"
        in here("compute", sets[0], bad, *changed(SKIP, "--max-skip", 1)).error
    )


def test_statistics_with_skipped_files_are_not_cached(here: Run, tmp_path: Path) -> None:
    """The file may be fixed later, and a run with `fail` must report it."""
    images = make_pictures(tmp_path / "images", 30)
    (images / "bad.png").touch()
    os.utime(images / "bad.png", (1, 1))
    arguments = ["compute", images, images, "--extractor", TINY, "--json"]
    for _ in range(2):
        assert (
            here(*arguments, "--on-error", "skip", "--max-skip", 0.1).json["run"]["images_computed"]
            == 30
        )
    assert "bad.png" in here(*arguments).error


def test_permission_denied_is_reported(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is simulated, because the tests may run as root, to whom no file is denied."""
    images = make_pictures(tmp_path / "images", 5)
    read = ImageSet.read

    def denied(self: ImageSet, indices: Sequence[int]) -> Iterator[Read]:
        for index, content in zip(indices, read(self, indices), strict=True):
            yield (
                PermissionError(13, "Permission denied")
                if self.file(index).endswith("00002.png")
                else content
            )

    monkeypatch.setattr(ImageSet, "read", denied)
    run = here("compute", images, images, "--extractor", TINY)
    assert run.status == 2
    assert f"cannot read {images / '00002.png'}: Permission denied" in run.error


def test_the_pixel_limit_is_reported_and_can_be_raised(here: Run, tmp_path: Path) -> None:
    images = make_pictures(tmp_path / "images", 5, sides=(50,))
    refused = here("compute", images, images, "--extractor", TINY, "--max-pixels", 2499)
    assert refused.status == 2
    assert "2499" in refused.error
    assert "--max-pixels" in refused.error
    assert here("compute", images, images, "--extractor", TINY, "--max-pixels", 2600).status == 0
