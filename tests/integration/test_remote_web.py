"""Images on a local web server, with and without server faults."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec.asyn
import numpy as np
import pytest

from fidtool.reading.batches import Batch
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.frames import FrameReader
from fidtool.reading.loader import load_pieces
from fidtool.sources import remote
from fidtool.sources.image_set import ImageSet, Names
from fidtool.system import download
from support.command_line import Run
from support.http_store import HttpStore, http_store
from support.places import TINY
from support.processes import PATIENCE
from support.source_forms import make_squares, names_in, pixels_in
from support.stores import ARGUMENTS, COUNT, filled, folders_fid


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return folders_fid(place)


@pytest.fixture
def web(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpStore]:
    """A server of the same sets. Waits between attempts are short."""
    monkeypatch.setattr(download, "FIRST_DELAY", 0.01)
    with http_store(place) as store:
        yield store


@pytest.mark.parametrize(
    "form", ["images/", "images.txt", "images.zip", "images.tar.xz", "images.npz", "statistics.npz"]
)
def test_http_gives_the_folders_value(
    here: Run, place: Path, expected: float, web: HttpStore, form: str
) -> None:
    assert here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS).fid == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("form", ["images/", "images.zip", "packed.npz"])
def test_temporary_failures_are_retried(
    here: Run, place: Path, expected: float, web: HttpStore, form: str
) -> None:
    name = f"images/{names_in(place / 'images')[0]}" if form == "images/" else form
    web.faults[name] = [500, "cut", 429, 503]
    assert here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS).fid == expected
    assert web.faults[name] == []


@pytest.mark.parametrize("form", ["images/", "images.zip"])
def test_a_permanent_server_error_ends_the_run(
    here: Run, place: Path, web: HttpStore, form: str
) -> None:
    """--on-error skip does not apply, because the value must not depend on network failures."""
    name = "images/007.png" if form == "images/" else form
    web.faults[name], web.lasting = [503], True
    run = here(
        "compute",
        place / "real",
        f"{web.url}{form}",
        *ARGUMENTS,
        "--on-error",
        "skip",
        "--max-skip",
        "0.5",
    )
    assert run.status == 1
    assert f"{web.url}{name} could not be read after 5 attempts" in run.error
    assert "503" in run.error
    assert web.asked[name] >= download.MAX_TRIES


def test_missing_objects_are_not_retried(here: Run, place: Path, web: HttpStore) -> None:
    web.faults["images/007.png"], web.lasting = [404], True
    arguments = ("compute", place / "real", f"{web.url}images/", *ARGUMENTS)
    run = here(*arguments)
    assert run.status == 2
    assert f"cannot read {web.url}images/007.png: " in run.error
    assert "does not exist" in run.error.lower()
    assert web.asked["images/007.png"] == 1
    skipping = here(*arguments, "--on-error", "skip", "--max-skip", "0.1")
    assert skipping.json["results"][0]["count"]["fake"] == COUNT - 1


def test_denied_access_is_not_skipped(here: Run, place: Path, web: HttpStore) -> None:
    """If a token expires during the run, all remaining images would be skipped, up to
    --max-skip.
    """
    web.faults["images/007.png"], web.lasting = [403], True
    arguments = ("compute", place / "real", f"{web.url}images/", *ARGUMENTS)
    run = here(*arguments, "--on-error", "skip", "--max-skip", "0.9")
    assert run.status == 2
    assert (
        f"{web.url}images/007.png cannot be read: the store returned HTTP status 403: access denied"
        in run.error
    )
    assert web.asked["images/007.png"] == 1


def test_an_archive_is_downloaded_once(
    here: Run, place: Path, expected: float, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy serves later runs; its size is said before. Servers need not support ranges."""
    monkeypatch.setattr(remote, "MIN_REPORTED_BYTES", 1)
    web.faults["images.zip"], web.lasting = ["whole"], True
    arguments = [argument for argument in ARGUMENTS if argument != "--json"]
    first = here("compute", place / "real", f"{web.url}images.zip", *arguments)
    assert f"downloading {web.url}images.zip (0.0 MB) into" in first.stderr
    again = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert again.fid == expected
    assert web.asked["images.zip"] == 1


def test_copies_are_limited(
    here: Run,
    place: Path,
    expected: float,
    web: HttpStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several shards, only as many are on the disk as the limit allows; then each is fetched
    twice.
    """
    monkeypatch.setenv("FIDTOOL_REMOTE_BYTES", "1")
    monkeypatch.setenv("FIDTOOL_CACHE", str(tmp_path / "own"))
    run = here("compute", place / "real", f"{web.url}shard-{{000..002}}.tar", *ARGUMENTS)
    assert run.fid == expected
    assert [web.asked[f"shard-00{number}.tar"] for number in range(3)] == [2, 2, 2]
    assert len([*(tmp_path / "own" / "remote").iterdir()]) == 1


def test_a_full_disk_is_reported(
    here: Run, place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda folder: SimpleNamespace(free=7))
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.status == 2
    assert "has space for 0.0 MB: set FIDTOOL_CACHE to a folder on a larger disk" in run.error


def test_a_download_that_stalls_ends(
    here: Run, place: Path, web: HttpStore, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(HttpStore, "fault", lambda self, name: silent.wait() and None)
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.status == 1
    assert f"{web.url}images.zip could not be read after 5 attempts" in run.error


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("none.zip", "none.zip cannot be read: it does not exist"),
        ("none/", "there is nothing below"),
        ("shard-{000..005}.tar", "shard-003.tar cannot be read: it does not exist"),
        ("{images,images}.zip", "matches an object twice"),
    ],
)
def test_missing_sources_are_reported(
    here: Run, place: Path, web: HttpStore, form: str, words: str
) -> None:
    run = here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS)
    assert run.status == 2
    assert words in run.error


@pytest.mark.parametrize(
    ("module", "form", "extra"),
    [
        ("fsspec.core", "memory://images", "fidtool[remote]"),
        ("pyarrow.parquet", "images.parquet", "fidtool[parquet]"),
    ],
)
def test_a_missing_extra_is_named(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch, module: str, form: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    run = here("compute", place / "real", form if "://" in form else place / form, *ARGUMENTS)
    assert run.status == 2
    assert extra in run.error


def test_the_cache_depends_on_the_version_of_an_object(
    here: Run, tmp_path: Path, web: HttpStore
) -> None:
    web.folder = tmp_path / "web"
    make_squares(web.folder / "images", COUNT)

    def computed() -> int:
        run = here(
            "compute", f"{web.url}images.npy", f"{web.url}images.npy", "--extractor", TINY, "--json"
        )
        return int(run.json["run"]["images_computed"])

    pixels = pixels_in(web.folder / "images")
    np.save(web.folder / "images.npy", pixels)
    assert [computed(), computed()] == [COUNT, 0]
    np.save(web.folder / "images.npy", 255 - pixels)
    assert [computed(), computed()] == [COUNT, 0]
    web.tagged = False
    assert [computed(), computed()] == [COUNT, COUNT], (
        "without an ETag, a change cannot be detected"
    )
    run = here(
        "compute",
        f"{web.url}images.npy",
        f"{web.url}images.npy",
        "--extractor",
        TINY,
        "--checkpoint",
        "kept",
    )
    assert run.status == 2
    assert "--checkpoint cannot detect whether" in run.error


@pytest.fixture
def silent() -> Iterator[threading.Event]:
    """A server that waits for this event does not answer during the test."""
    event = threading.Event()
    yield event
    event.set()


def test_reading_from_a_store_that_does_not_answer_times_out(
    place: Path, web: HttpStore, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(HttpStore, "fault", lambda self, name: silent.wait() and None)
    names = Names(["images/000.png"])
    files = remote.RemoteFiles(names.with_prefix(web.url), remote.np.zeros((1, 5), dtype=int))
    (answer,) = files.read(np.array([0]))
    assert isinstance(answer, remote.RunError)
    assert "after 5 attempts" in str(answer)


def test_images_are_in_order_and_few_are_requested_at_once(
    place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server answers the first requests last."""
    monkeypatch.setattr(remote, "MAX_REQUESTS", 3)
    lock, together, pending, most = threading.Lock(), threading.Barrier(3), 0, 0

    def fault(self: HttpStore, name: str) -> None:
        nonlocal pending, most
        with lock:
            self.asked[name] += 1
            pending, first = pending + 1, self.asked.total() <= 3
            most = max(most, pending)
            delay = 0.03 / pending
        if first:
            together.wait(PATIENCE)
        time.sleep(delay)
        with lock:
            pending -= 1

    monkeypatch.setattr(HttpStore, "fault", fault)
    names = [f"images/{name}" for name in names_in(place / "images")]
    files = remote.RemoteFiles(Names(names).with_prefix(web.url))
    wanted = [5, 0, 3, 3, 9, 1, 7, 2, 8, 4]
    assert [*files.read(np.array(wanted))] == [
        (place / names[image]).read_bytes() for image in wanted
    ]
    assert most == 3


def test_a_late_image_does_not_keep_others_from_being_requested(
    place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is sent after all others have been requested, one at a time."""
    monkeypatch.setattr(remote, "MAX_REQUESTS", 2)
    names = [f"images/{name}" for name in names_in(place / "images")]
    lock, complete = threading.Lock(), threading.Event()

    def fault(self: HttpStore, name: str) -> None:
        with lock:
            self.asked[name] += 1
            if self.asked.total() == len(names):
                complete.set()
        if name == names[0]:
            complete.wait(60)

    monkeypatch.setattr(HttpStore, "fault", fault)
    contents = remote.RemoteFiles(Names(names).with_prefix(web.url)).read(np.arange(len(names)))
    assert next(contents) == (place / names[0]).read_bytes()
    assert complete.is_set()
    assert [*contents] == [(place / name).read_bytes() for name in names[1:]]


def test_decoding_workers_share_the_number_of_requests(
    place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each frame is an image."""
    monkeypatch.setattr(remote, "MAX_REQUESTS", 4)
    lock, pending, most = threading.Lock(), 0, 0

    def fault(self: HttpStore, name: str) -> None:
        nonlocal pending, most
        with lock:
            pending += 1
            most = max(most, pending)
        time.sleep(0.03)
        with lock:
            pending -= 1

    monkeypatch.setattr(HttpStore, "fault", fault)
    names = Names(f"images/{name}" for name in names_in(place / "images"))
    files = remote.RemoteFiles(names.with_prefix(web.url))
    frames = FrameReader(files, np.array([(item, 0) for item in range(COUNT)]))
    for reader in (files, frames):
        images = ImageSet(web.url, "remote folder", names, web.url, reader, np.arange(COUNT))
        batches = [Batch(number, range(number * 11, number * 11 + 11)) for number in range(2)]
        assert (
            sum(piece.count for piece in load_pieces(images, batches, DecodeOptions(), 2, PATIENCE))
            == COUNT
        )
    assert most <= 4


def test_an_iterator_that_is_given_up_requests_no_more(
    web: HttpStore, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_REQUESTS", 2)
    before, asked = {*threading.enumerate()}, list[str]()

    def fault(self: HttpStore, name: str) -> None:
        asked.append(name)
        if name != "images/000.png":
            silent.wait()

    monkeypatch.setattr(HttpStore, "fault", fault)
    files = remote.RemoteFiles(
        Names(["images/000.png"] * 2 + ["images/002.png"] * 20).with_prefix(web.url)
    )
    contents = files.read(np.arange(22))
    assert isinstance(next(contents), bytes)
    contents.close()  # type: ignore[attr-defined]
    silent.set()
    deadline = time.monotonic() + PATIENCE
    while any(thread.name.startswith("fidtool-") for thread in {*threading.enumerate()} - before):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(asked) < 6


def test_an_iterator_that_is_given_up_waits_for_no_request(
    web: HttpStore, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finalizer may run in fsspec's thread, where all later requests would wait for it."""
    monkeypatch.setattr(remote, "REQUEST_TIMEOUT", 2 * PATIENCE)
    monkeypatch.setattr(
        HttpStore, "fault", lambda self, name: None if "000" in name else silent.wait() and None
    )
    files = remote.RemoteFiles(Names(["images/000.png", "images/001.png"]).with_prefix(web.url))
    contents = files.read(np.arange(2))
    assert isinstance(next(contents), bytes)
    finalized = threading.Event()

    def finalize() -> None:
        contents.close()  # type: ignore[attr-defined]
        finalized.set()

    fsspec.asyn.get_loop().call_soon_threadsafe(finalize)
    assert finalized.wait(PATIENCE)
    assert remote.object_info(f"{web.url}images.zip")["size"] > 0


def test_metadata_requests_time_out(
    here: Run, place: Path, web: HttpStore, silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "INFO_TIMEOUT", 0.2)
    monkeypatch.setattr(HttpStore, "described", lambda self: silent.wait() and None)
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.status == 1
    assert "could not be read after 5 attempts: no response within 0.2 s" in run.error


def test_pending_requests_do_not_block_exit(place: Path, web: HttpStore) -> None:
    """The interpreter must not wait for threads whose requests never finish."""
    program = f"""
import threading
import numpy as np
from fidtool.sources.remote import remote_files
from fidtool.system.background import start_in_background
files = remote_files("{web.url}images.zip", print)
files.read_bytes(0, 0, 10), list(files.read(np.array([0])))
start_in_background(threading.Event().wait)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_store_that_fails_at_the_end_does_not_lose_the_result(
    here: Run, place: Path, expected: float, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: remote.RemoteFiles) -> list[str]:
        raise remote.RunError("it does not answer")

    monkeypatch.setattr(remote.RemoteFiles, "find_changed", gone)
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.fid == expected
    assert "changed while it was read: it does not answer" in str(run.json)


def test_a_query_may_contain_colons(
    here: Run, place: Path, expected: float, web: HttpStore
) -> None:
    run = here("compute", place / "real", f"{web.url}images.npz?signature=a:b", *ARGUMENTS)
    assert run.fid == expected


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["images/000.png", "././images/000.png"], "images/000.png 2 times"),
        (["images/000.png", "file:///etc/hostname"], "in a different kind of store"),
        (["images/000.png", "http://[bad/x.png"], "http://[bad/x.png"),
    ],
)
def test_entries_of_a_remote_list_are_validated(
    here: Run, place: Path, tmp_path: Path, web: HttpStore, lines: list[str], words: str
) -> None:
    web.folder = tmp_path
    (tmp_path / "fake.txt").write_text("\n".join(lines))
    (tmp_path / "images").symlink_to(place / "images")
    run = here("compute", place / "real", f"{web.url}fake.txt", *ARGUMENTS)
    assert run.status == 2
    assert words in run.error


def test_objects_beyond_the_limit_are_refused(
    here: Run, place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_BYTES", 400)
    run = here("compute", place / "real", f"{web.url}images/", *ARGUMENTS)
    assert run.status == 2
    assert "bytes; an image file may have at most" in run.error


def test_versions_of_many_objects_are_compared_up_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = set[str]()

    def object_info(url: str) -> dict[str, object]:
        asked.add(url)
        return {"size": 1, "etag": url}

    monkeypatch.setattr(remote, "object_info", object_info)
    names = Names(f"{number:04}.png" for number in range(1500)).with_prefix("s3://bucket/")
    stamps = np.ones((1500, 5), dtype=np.int64)
    assert len(remote.RemoteFiles(names, stamps).find_changed()) == len(asked) == 1024
    assert {"s3://bucket/0000.png", "s3://bucket/1499.png"} < asked
