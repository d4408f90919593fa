"""Files of archives and arrays, which stay open while their images are read in any order."""

from __future__ import annotations

import os
import pickle
import threading
import zipfile
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from fidtool.errors import InputError
from fidtool.reading.batches import plan_batches
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.loader import load_pieces
from fidtool.sources import contents
from fidtool.sources.contents import ContentError, Files
from fidtool.sources.image_set import ImageSet
from fidtool.sources.listing import open_images

COUNT = 5
"""Number of archives, and of the images in each."""


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """A folder of archives, each of whose images has contents of its own."""
    for number in range(COUNT):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            for image in range(COUNT):
                archive.writestr(f"{image}.png", content_of(number * COUNT + image))
    return tmp_path


@pytest.fixture
def images(archives: Path) -> ImageSet:
    return open_images(f"{archives}/?.zip").for_processes(1)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[BinaryIO]:
    """The files that were opened after the set was."""
    opened, open_file = list[BinaryIO](), Files.open

    def noted(self: Files, file: int) -> BinaryIO:
        opened.append(open_file(self, file))
        return opened[-1]

    monkeypatch.setattr(Files, "open", noted)
    return opened


def content_of(image: int) -> bytes:
    return bytes([image]) * (20_000 + 1000 * image)


def shuffled() -> list[int]:
    return np.random.RandomState(0).permutation(COUNT**2).tolist()  # type: ignore[no-any-return]


def read_one_by_one(images: ImageSet) -> bool:
    """Whether all images have their contents, each read by itself in a random order."""
    return all([*images.read([image])] == [content_of(image)] for image in shuffled())


def test_an_archive_is_opened_once(images: ImageSet, handles: list[BinaryIO]) -> None:
    assert read_one_by_one(images)
    assert read_one_by_one(images)
    assert len(handles) == COUNT


def test_few_files_stay_open_and_none_after_the_set(
    archives: Path, handles: list[BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_OPEN_FILES", 2)
    images = open_images(f"{archives}/?.zip").for_processes(1)
    assert read_one_by_one(images)
    assert sum(not handle.closed for handle in handles) == 2
    del images
    assert all(handle.closed for handle in handles)


def test_no_file_stays_open_of_sets_that_are_not_being_loaded(
    archives: Path, handles: list[BinaryIO]
) -> None:
    """A run may have many sets, each of many archives."""
    images = open_images(f"{archives}/?.zip")
    assert read_one_by_one(images)
    assert images.hash_sample()
    options = DecodeOptions(skip=True)
    assert (
        sum(len(piece.skipped) for piece in load_pieces(images, plan_batches(images, 4), options))
        == COUNT**2
    )
    assert all(handle.closed for handle in handles)


def test_a_file_that_is_replaced_while_it_is_read_stays_open(
    archives: Path, handles: list[BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_OPEN_FILES", 1)
    images = open_images(f"{archives}/?.zip").for_processes(1)
    handles.clear()
    begun = images.read([0, 1])
    assert next(begun) == content_of(0)
    assert [*images.read([COUNT])] == [content_of(COUNT)]
    assert not handles[0].closed
    assert [*begun] == [content_of(1)]
    assert handles[0].closed


def test_threads_and_forked_processes_share_open_files(
    images: ImageSet, handles: list[BinaryIO]
) -> None:
    assert read_one_by_one(images)
    results = list[bool]()

    def read_often() -> None:
        results.append(all(read_one_by_one(images) for _ in range(20)))

    context = get_context("fork")
    processes = [
        context.Process(target=lambda: os._exit(not read_one_by_one(images))) for _ in range(3)
    ]
    threads = [threading.Thread(target=read_often) for _ in range(4)]
    for each in (*processes, *threads):
        each.start()
    for each in (*processes, *threads):
        each.join()
    assert results == [True] * 4
    assert [process.exitcode for process in processes] == [0] * 3
    assert len(handles) == COUNT


def test_other_ranks_open_their_own(
    images: ImageSet, handles: list[BinaryIO], archives: Path
) -> None:
    """Which must have the size that rank zero has seen."""
    assert read_one_by_one(images)
    received = pickle.loads(pickle.dumps(images))
    assert read_one_by_one(received)
    assert len(handles) == 2 * COUNT
    with (archives / "0.zip").open("ab") as archive:
        archive.write(b"more")
    received = pickle.loads(pickle.dumps(images))
    (error,) = received.read([0])
    assert isinstance(error, InputError)
    assert "bytes on this rank" in str(error)


def test_a_system_that_returns_less_than_it_was_asked_for(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda number, size, start: pread(number, min(size, 999), start)
    )
    assert read_one_by_one(images)


def test_an_archive_that_was_cut_off_while_it_was_read(images: ImageSet, archives: Path) -> None:
    assert [*images.read([0])] == [content_of(0)]
    os.truncate(archives / "0.zip", 30_000)
    first, second = images.read([0, 1])
    assert first == content_of(0)
    assert isinstance(second, ContentError)
    assert str(second).startswith("the file ends after 30000 of ")
