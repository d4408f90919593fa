"""Downloads end at their deadlines, and passwords are sent to one server only."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from fidtool.system import download
from fidtool.system.download import DownloadError, RemoteFile, request
from support.http_store import http_store, server


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_DELAY", 0.001)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.05)
    ended = threading.Event()
    with server(bytes(100_000), halfway=ended.wait) as (url, requests):
        with pytest.raises(
            DownloadError, match=r"no data for 0\.05 s at byte 50000 of 100000, and the server"
        ):
            RemoteFile(url).read()
        ended.set()
    assert len(requests) == 1


def test_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that keeps arriving does not extend the deadline."""
    monkeypatch.setattr(download, "DOWNLOAD_SECONDS", 0.0)
    monkeypatch.setattr(download, "MIN_BYTES_PER_SECOND", 1e12)
    with (
        server(bytes(100_000)) as (url, _),
        pytest.raises(DownloadError, match="it was not complete at the deadline"),
    ):
        RemoteFile(url).read()


def test_a_download_that_breaks_often(tmp_path: Path) -> None:
    """It goes on as long as data arrive in between. Each response ends in its middle."""
    content = random.Random(0).randbytes(3_000_000)
    (tmp_path / "file").write_bytes(content)
    with http_store(tmp_path) as store:
        store.faults["file"] = ["cut"] * 9
        assert RemoteFile(f"{store.url}file").read() == content


def test_attempts_draw_no_random_numbers_of_the_program() -> None:
    before = random.getstate()
    assert [*download.attempts()] == [1, 2, 3, 4, 5]
    assert random.getstate() == before


def test_a_file_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000))
    monkeypatch.setattr(
        "fidtool.system.download.time.sleep", lambda seconds: file.write_bytes(bytes(200_000))
    )
    with http_store(tmp_path) as store:
        store.faults["file"] = ["cut"]
        with pytest.raises(
            DownloadError, match="the file changes while it is downloaded at byte 32768 of 100000"
        ):
            RemoteFile(f"{store.url}file").read()


def test_an_unexpected_part_is_refused() -> None:
    raw = b"HTTP/1.0 206 Partial Content\r\nContent-Range: bytes 5-7/8\r\nContent-Length: 3\r\n\r\nabc"
    with (
        server(raw=raw) as (url, _),
        pytest.raises(DownloadError, match="bytes 5-7/8' for the bytes from 0 on"),
    ):
        RemoteFile(url).read()


def test_a_password_is_not_sent_to_the_target_of_a_redirection() -> None:
    asked = request("http://bob:hunter%40@host/path", {"Range": "bytes=0-1"})
    assert asked.full_url == "http://host/path"
    assert asked.unredirected_hdrs == {"Authorization": "Basic Ym9iOmh1bnRlckA="}
    assert asked.headers == {"Range": "bytes=0-1"}
