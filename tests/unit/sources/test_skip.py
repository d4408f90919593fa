"""Files that disappear during a run, machines that run out of resources, and settings out of range."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fidtool as package
from fidtool.sources.contents import Read
from fidtool.sources.folder import list_folder
from fidtool.sources.image_set import ImageSet
from support.pictures import make_pictures
from support.places import TINY


def test_a_file_that_disappears_during_the_run(
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
    assert any("changed while they were read" in line for line in evaluation.run.warnings)


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (MemoryError(), r"cannot decode .*\.png: out of memory; raise the limits of this process"),
        (OSError(errno.EMFILE, "Too many open files"), r"cannot read .*\.png: Too many open files; raise the limits"),
    ],
)
def test_lack_of_resources_is_not_blamed_on_a_file(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Exception, said: str
) -> None:
    """Such files are not skipped, which would depend on the load. The error does not advise fixing or removing them."""
    images = make_pictures(tmp_path / "images", 5)

    def exhausted(data: bytes, max_pixels: int) -> Any:
        raise lack

    monkeypatch.setattr("fidtool.images.decode._from_file", exhausted)
    for on_error in ("skip", "fail"):
        with pytest.raises(package.RunError, match=said) as failed:
            package.compute(images, images, extractor=TINY, on_error=on_error, max_skip=1)
        assert "skip" not in str(failed.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "ignore"}, "fail or skip"),
        ({"max_skip": 1.5}, "max_skip must be from 0 to 1"),
        ({"max_skip": float("nan")}, "max_skip must be from 0 to 1"),
        ({"max_pixels": 0}, "max_pixels must be at least 1"),
        ({"checkpoint": 3}, "checkpoint must be a string"),
        ({"checkpoint": ""}, "not empty"),
        ({"timeout": float("inf")}, "from 1 to"),
        ({"peer_timeout": 1}, "from 3 to"),
        ({"timeout": float("nan")}, "from 1 to"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    from fidtool.settings import Settings

    with pytest.raises(package.InputError, match=message):
        Settings(**settings)
