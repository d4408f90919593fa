"""Storage that stops responding, in a run without decoding workers: it ends, or loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidtool.reading.lookup import ImageLookup
from fidtool.sources.contents import ExtentReader, Files
from fidtool.sources.listing import list_folder, open_images
from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY

OF_EACH = ("--extractor", TINY, "--batch-size", 2, "--no-cache", "--num-workers", 0, "--timeout", 1)


@pytest.fixture
def silent() -> Iterator[Any]:
    """A method that does not return during the test."""
    event = threading.Event()
    yield lambda *_: event.wait(60) and []
    event.set()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "images", 6)


def test_the_samples_by_which_parts_are_compared(
    here: Run, images: Path, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "read_bytes", silent)
    run = here("stats", images, "-o", "part.npz", "--part", "1/2", *OF_EACH)
    assert run.status == 1
    assert (
        "images could not be read within 1 s (--timeout): no response from the storage" in run.error
    )


def test_images_that_may_have_changed(
    here: Run, images: Path, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("stats", images, "-o", "known.npz", *OF_EACH).status == 0
    monkeypatch.setattr(Files, "read_bytes", silent)
    run = here("stats", images, "-o", "new.npz", "--since", "known.npz", *OF_EACH)
    assert run.status == 1
    assert (
        "images could not be read within 1 s (--timeout): no response from the storage" in run.error
    )


def test_the_check_for_changes_at_the_end(
    here: Run, images: Path, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_pictures(images.parent / "other", 6, 1)
    expected = here("compute", images, other, "--json", *OF_EACH)
    monkeypatch.setattr(Files, "find_changed", silent)
    run = here("compute", images, other, "--json", *OF_EACH)
    assert run.fid == expected.fid
    assert "changed while it was read: images of" in str(run.json)


@pytest.mark.parametrize("form", ["folder", "array"])
def test_images_of_a_report(
    form: str, images: Path, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report shows those that cannot be read as such."""
    source = list_folder(str(images))
    if form == "array":
        np.save(images.parent / "array.npy", np.zeros((3, 8, 8, 3), np.uint8))
        source = open_images(str(images.parent / "array.npy"))
        monkeypatch.setattr(ExtentReader, "walk", silent)
    else:
        monkeypatch.setattr(Files, "read_bytes", silent)
    lookup = ImageLookup([source], seconds=0.2)
    file = source.file(1)
    lookup.prefetch({file})
    assert "could not be read within 0.2 s" in str(lookup.read(file))
