"""The location of the cache, and limits in bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fidtool.system.cache_dir as cache_dir_module
from fidtool.errors import InputError
from fidtool.system.cache_dir import atomic_write, cache_dir, check_target
from fidtool.system.variables import Variable


def test_location_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most specific variable is used. An empty one is ignored."""
    for name, value in {
        "FIDTOOL_CACHE": "/own",
        "XDG_CACHE_HOME": "/xdg",
        "HOME": "/home/me",
    }.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path("/own")
    monkeypatch.setenv("FIDTOOL_CACHE", "")
    assert cache_dir() == Path("/xdg/fidtool")
    monkeypatch.delenv("FIDTOOL_CACHE")
    assert cache_dir() == Path("/xdg/fidtool")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path("/home/me/.cache/fidtool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/me/.cache/fidtool")


def test_limits_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = Variable("FIDTOOL_TEST_BYTES", "", 7)
    assert variable.byte_limit() == 7
    for value, expected in {"": 7, "0": 0, "12": 12}.items():
        monkeypatch.setenv("FIDTOOL_TEST_BYTES", value)
        assert variable.byte_limit() == expected
    for value in ("abc", "-1", "1.5", " 3", "²"):
        monkeypatch.setenv("FIDTOOL_TEST_BYTES", value)
        with pytest.raises(
            InputError, match="FIDTOOL_TEST_BYTES must be a number of bytes such as 7, not"
        ):
            variable.byte_limit()


def test_a_pipe_that_nobody_reads_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_dir_module, "UNREAD_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(OSError, match="a pipe that nothing has read"),
        atomic_write(tmp_path / "pipe"),
    ):
        pass


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name, problem in {
        "a\0b": "its name contains a null byte",
        "a" * 256: "File name too long",
    }.items():
        with pytest.raises(InputError, match=f"-o FILE cannot be written: {problem}"):
            check_target("-o FILE", tmp_path / name)


def test_a_name_of_the_greatest_length_is_written(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("a" * 255)) as handle:
        handle.write(b"all")
    assert (tmp_path / ("a" * 255)).read_bytes() == b"all"


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """If neither may overwrite a file, and both found none."""
    if not links:
        monkeypatch.setattr(os, "link", _unsupported)
    file = tmp_path / "real.npz"
    with atomic_write(file, overwrite=False) as first:
        first.write(b"first")
        with atomic_write(tmp_path / "other.npz", overwrite=False) as other:
            other.write(b"other")
        with (
            pytest.raises(FileExistsError),
            atomic_write(tmp_path / "other.npz", overwrite=False) as second,
        ):
            second.write(b"second")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "real.npz": b"first",
        "other.npz": b"other",
    }


def _unsupported(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")
