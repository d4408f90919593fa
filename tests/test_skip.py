"""Files that cannot be read: named and refused, or named and left out, with the same bits at any world size."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool as package
from fidtool.sources.contents import Read
from fidtool.sources.folder import list_folder
from fidtool.sources.image_set import ImageSet
from support.command_line import Run, changed
from support.pictures import make_pictures
from support.places import TINY

BAD: dict[str, Callable[[Path], object]] = {
    "truncated.png": lambda file: file.write_bytes(encoded()[:-60]),
    "corrupt.png": lambda file: file.write_bytes(encoded()[:30] + b"\0" * 10 + encoded()[40:]),
    "zero.png": lambda file: file.touch(),
    "text.jpg": lambda file: file.write_text("<html>not found</html>"),
    "gone.png": lambda file: file.symlink_to("nowhere"),
    "unreadable.png": lambda file: file.symlink_to("/proc/self/mem"),
}
"""Names of bad files and how to make them."""


def encoded() -> bytes:
    """A valid PNG."""
    import io

    buffer = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 20, 3)).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """37 images in both; in FAKE six more that are bad."""
    real = make_pictures(tmp_path / "real", 37, 1, sides=(31, 40))
    fake = make_pictures(tmp_path / "fake", 37, 2, sides=(31, 40))
    for name, make in BAD.items():
        make(fake / name)
    return real, fake


SKIP = ["--extractor", TINY, "--batch-size", 4, "--no-cache", "--json", "--on-error", "skip", "--max-skip", "0.2"]


def test_the_same_bits_at_any_world_size(fidtool: Run, here: Run, sets: tuple[Path, Path]) -> None:
    runs = [
        here("compute", *sets, *SKIP),
        here("compute", *sets, *SKIP, "--num-workers", 2),
        fidtool("compute", *sets, *SKIP, ranks=2),
        fidtool("compute", *sets, *SKIP, ranks=3),
    ]
    first = runs[0].json["results"][0]
    assert [run.json["results"][0] for run in runs] == [first] * 4
    assert first["count"] == {"real": 37, "fake": 37}
    assert [Path(entry["file"]).name for entry in first["skipped"]] == sorted(BAD)
    assert {entry["set"] for entry in first["skipped"]} == {str(sets[1])}
    assert all(entry["reason"] for entry in first["skipped"])
    for run in runs:
        assert run.json["run"]["images_computed"] == 74
        for name in BAD:
            assert run.stderr.count(f"skipped {sets[1] / name}: ") == 1
        assert "6 files could not be read and were skipped" in run.stderr


def test_the_others_count_as_without_the_bad_ones(here: Run, sets: tuple[Path, Path]) -> None:
    """On the CPU other batches give the same features, so that the numbers can be compared to the bit."""
    skipped = here("compute", *sets, *SKIP).fid
    for name in BAD:
        (sets[1] / name).unlink()
    assert here("compute", *sets, *SKIP).fid == skipped


def test_by_default_the_first_ends_the_run(here: Run, sets: tuple[Path, Path]) -> None:
    for name in BAD:
        alone = sets[1].parent / "alone"
        make_pictures(alone, 5, 3)
        BAD[name](alone / name)
        run = here("compute", sets[0], alone, "--extractor", TINY, "--no-cache")
        assert run.status == 2
        assert name in run.error
        assert "--on-error skip" in run.error
        (alone / name).unlink()


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize(("fraction", "status"), [("0.1", 2), ("0.139", 2), ("0.14", 0)])
def test_too_many_are_refused(
    fidtool: Run, here: Run, sets: tuple[Path, Path], fraction: str, status: int, ranks: int | None
) -> None:
    """6 of 43 are 13.95 %."""
    arguments = ["compute", *sets, *changed(SKIP, "--max-skip", fraction)]
    run = here(*arguments) if ranks is None else fidtool(*arguments, ranks=ranks)
    assert (run.status == 0) == (status == 0)
    if status:
        errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "of the 43 files" in errors[0]
        assert "--max-skip" in errors[0]
        assert sum(name in errors[0] for name in BAD) >= 3, "which files they are"


def test_one_percent_by_default(here: Run, tmp_path: Path) -> None:
    fake = make_pictures(tmp_path / "fake", 99, 1)
    (fake / "bad.png").touch()
    arguments = ["compute", fake, fake, "--extractor", TINY, "--no-cache", "--on-error", "skip"]
    assert here(*arguments).status == 0
    (fake / "worse.png").touch()
    assert here(*arguments).status == 2


def test_a_set_of_bad_files_alone_is_refused(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").touch()
    assert "none of the 1 files" in here("compute", sets[0], tmp_path / "bad", *changed(SKIP, "--max-skip", 1)).error


def test_a_result_without_some_files_is_not_cached(here: Run, tmp_path: Path) -> None:
    """What could not be read today may be mended tomorrow, and `fail` must see it."""
    images = make_pictures(tmp_path / "images", 30)
    (images / "bad.png").touch()
    os.utime(images / "bad.png", (1, 1))
    arguments = ["compute", images, images, "--extractor", TINY, "--json"]
    for _ in range(2):
        assert here(*arguments, "--on-error", "skip", "--max-skip", 0.1).json["run"]["images_computed"] == 30
    assert "bad.png" in here(*arguments).error


def test_statistics_files_remember_what_was_skipped(here: Run, sets: tuple[Path, Path]) -> None:
    stats = here("stats", sets[1], "-o", "fake.npz", *[word for word in SKIP if word != "--json"])
    assert stats.status == 0
    assert stats.stderr.count("skipped ") >= 6
    run = here("compute", sets[0], "fake.npz", "--extractor", TINY, "--no-cache", "--json")
    assert len(run.json["results"][0]["skipped"]) == 6
    assert "6 files could not be read" in json.dumps(run.json["results"][0]["warnings"])


def test_a_file_that_vanishes_during_the_run(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_pictures(tmp_path / "images", 20)
    read = ImageSet.read

    def and_one_is_gone(self: ImageSet, indices: Sequence[int]) -> list[Read]:
        data = read(self, indices)
        (images / "00004.png").unlink(missing_ok=True)
        return data

    order = list(list_folder(str(images)).draw(None, 0).names)
    assert order[0] != "00004.png"
    monkeypatch.setattr(ImageSet, "read", and_one_is_gone)
    evaluation = package.compute(images, images, extractor=TINY, on_error="skip", max_skip=0.1)
    (skipped,) = evaluation.results[0].skipped
    assert skipped.file.endswith("00004.png")
    assert "No such file" in skipped.reason
    assert any("changed while they were being read" in line for line in evaluation.run.warnings)


def test_permission_denied_is_said(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, as which tests may run, is denied nothing: so the system's answer is made up."""
    images = make_pictures(tmp_path / "images", 5)
    read = ImageSet.read

    def denied(self: ImageSet, indices: Sequence[int]) -> list[Read]:
        if any(self.name(index) == "00002.png" for index in indices):
            return [PermissionError(13, "Permission denied") for _ in indices]
        return read(self, indices)

    monkeypatch.setattr(ImageSet, "read", denied)
    run = here("compute", images, images, "--extractor", TINY)
    assert run.status == 2
    assert f"cannot read {images / '00002.png'}: Permission denied" in run.error


def test_the_limit_of_pixels_is_stated_and_can_be_moved(here: Run, tmp_path: Path) -> None:
    images = make_pictures(tmp_path / "images", 5, sides=(50,))
    refused = here("compute", images, images, "--extractor", TINY, "--max-pixels", 2499)
    assert refused.status == 2
    assert "2499" in refused.error
    assert "--max-pixels" in refused.error
    assert here("compute", images, images, "--extractor", TINY, "--max-pixels", 2600).status == 0


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (MemoryError(), r"cannot decode .*\.png: there is not enough memory; give this process more"),
        (OSError(errno.EMFILE, "Too many open files"), r"cannot read .*\.png: Too many open files; give"),
    ],
)
def test_a_machine_that_is_exhausted_is_no_bad_file(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Exception, said: str
) -> None:
    """Skipping would depend on the machine's load; nor is the file to be mended or removed."""
    images = make_pictures(tmp_path / "images", 5)

    def exhausted(data: bytes, max_pixels: int) -> Any:
        raise lack

    monkeypatch.setattr("fidtool.images.unpacked.decode", exhausted)
    for on_error in ("skip", "fail"):
        with pytest.raises(package.RunError, match=said) as failed:
            package.compute(images, images, extractor=TINY, on_error=on_error, max_skip=1)
        assert "skip" not in str(failed.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "ignore"}, "fail or skip"),
        ({"max_skip": 1.5}, "fraction"),
        ({"max_skip": float("nan")}, "fraction"),
        ({"max_pixels": 0}, "max_pixels must be at least 1"),
        ({"checkpoint": 3}, "checkpoint must be a text"),
        ({"checkpoint": ""}, "not empty"),
        ({"timeout": float("inf")}, "from 1 to"),
        ({"peer_timeout": 1}, "from 3 to"),
        ({"timeout": float("nan")}, "from 1 to"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    from fidtool.config import Config

    with pytest.raises(package.InputError, match=message):
        Config(**settings)
