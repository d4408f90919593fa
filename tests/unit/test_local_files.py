"""Files that a command reads: none is waited for forever, and a pipe that somebody writes to
works.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fidtool.errors import InputError, RunError
from fidtool.reading.batches import Batch
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.loader import load_pieces
from fidtool.result.changes import read_history
from fidtool.result.evaluation import read_evaluation
from fidtool.sources.contents import Files
from fidtool.sources.listing import open_images
from fidtool.sources.texts import read_texts
from fidtool.statistics.file import read_statistics
from fidtool.system import local_files
from fidtool.system.local_files import open_regular, read_file, read_with_timeout
from support.pictures import make_pictures


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "UNUSED_SECONDS", 0.1)


@pytest.fixture
def released() -> object:
    """An event for which a thread waits instead of for storage. It is set at the end."""
    event = threading.Event()
    yield event
    event.set()


READERS = {
    "list.txt": lambda path: open_images(path),
    "list": lambda path: open_images(path),
    "archive.zip": lambda path: open_images(path),
    "table.csv": lambda path: open_images(path),
    "table.parquet": lambda path: open_images(path),
    "array.npy": lambda path: open_images(path),
    "statistics.npz": lambda path: read_statistics(path),
    "labels.csv": lambda path: read_texts(path, "labels", "class", ["label"]),
    "labels.txt": lambda path: read_texts(path, "labels", "class", ["label"]),
    "result.json": lambda path: read_evaluation(path),
    "history.jsonl": lambda path: read_history(path),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_to_which_nobody_writes_is_refused(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    os.mkfifo(path)
    with pytest.raises(
        InputError, match=f"{name} cannot be read: it is|no statistics file .*{name}"
    ):
        READERS[name](path)


def test_a_pipe_has_the_content_of_its_writer(tmp_path: Path) -> None:
    """Named, or the descriptor of a shell's <(command), whose writer may have ended."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(b"a" * 100_000))
    writer.start()
    assert read_file(path, 60.0) == b"a" * 100_000
    writer.join()
    ours, theirs = os.pipe()
    os.write(theirs, b"abc")
    os.close(theirs)
    assert read_file(f"/dev/fd/{ours}") == b"abc"
    os.close(ours)
    assert read_file(os.devnull) == b""


def test_a_pipe_whose_writer_waits(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    with pytest.raises(
        OSError, match=r"nothing was written for 0\.1 s|did not respond within 0\.1 s"
    ):
        read_file(f"/dev/fd/{ours}", 0.1)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("name", "reason"), [("/dev/zero", "regular file"), ("a\0b", "null byte"), ("/", "directory")]
)
def test_what_is_no_file(name: str, reason: str) -> None:
    for read in (read_file, open_regular):
        with pytest.raises(OSError, match=reason):
            read(name)


def zipped(folder: Path) -> str:
    return shutil.make_archive(str(folder), "zip", folder)


def as_array(folder: Path) -> str:
    np.savez(f"{folder}.npz", np.zeros((3, 8, 8, 3), np.uint8))
    return f"{folder}.npz"


@pytest.mark.parametrize("form", [str, zipped, as_array])
def test_storage_that_does_not_respond_ends_a_run_without_workers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    released: threading.Event,
    form: Callable[[Path], str],
) -> None:
    images = open_images(form(make_pictures(tmp_path / "images", 3)))

    def silent(*_: object) -> None:
        released.wait()
        raise OSError

    monkeypatch.setattr(Files, "open", silent)
    problem = (
        r"images of .*images.* could not be read within 0\.1 s \(timeout\): "
        "no response from the storage"
    )
    with pytest.raises(RunError, match=problem):
        list(load_pieces(images, [Batch(0, [0, 1, 2])], DecodeOptions(), patience=0.1))


def test_the_message_names_the_file_that_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(RunError, match=r"labels.csv could not be read within 0.05 s"):
        read_with_timeout("the sets", lambda: read_file(tmp_path / "labels.csv"), 0.05)
