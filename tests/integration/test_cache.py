"""Cache of statistics: it avoids repeated work, never returns the statistics of a different set,
never stops a run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidtool.sources.listing import list_folder
from fidtool.statistics.cache import put_in_cache
from fidtool.statistics.set_statistics import Statistics
from support.command_line import Outcome, Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY

COUNT = 20  # more than the dimensions of the small network, to avoid warnings
BASE = ("--extractor", TINY, "--json")


def settle() -> None:
    """Wait for a tick of the file system's clock, because younger files are not cached."""
    time.sleep(0.08)


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of `COUNT` images, old enough for the cache. As bitmaps, all files have the same
    size.
    """
    folders = (
        make_pictures(tmp_path / "real", COUNT, 0, ".bmp"),
        make_pictures(tmp_path / "fake", COUNT, 1, ".bmp"),
    )
    settle()
    return folders


def entries(environment: dict[str, str]) -> list[Path]:
    """Return the files in the cache of statistics, including temporary ones."""
    return sorted(
        path
        for path in (Path(environment["FIDTOOL_CACHE"]) / "statistics").glob("**/*")
        if path.is_file()
    )


def computed(outcome: Outcome) -> int:
    """Return the number of images that the network processed."""
    assert outcome.status == 0, outcome.stderr
    return int(outcome.json["run"]["images_computed"])


def test_a_second_run_finds_the_same_bits(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also by another path of the same folder."""
    first = here("compute", *sets, *BASE)
    assert (computed(first), first.json["run"]["cached"]) == (2 * COUNT, [])
    second = here("compute", *sets, *BASE)
    assert (computed(second), second.json["run"]["forward_passes"]) == (0, 0)
    assert second.json["run"]["cached"] == [str(folder) for folder in sets]
    assert second.json["results"] == first.json["results"]  # JSON preserves every bit of a float
    assert second.json["protocol"] == first.json["protocol"]
    (tmp_path / "link").symlink_to(sets[0])
    assert computed(here("compute", "link", "./fake/", *BASE)) == 0


def test_stats_and_compute_share_the_cache(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    assert here("stats", sets[0], "-o", "first.npz", "--extractor", TINY).status == 0
    assert computed(here("compute", *sets, *BASE)) == COUNT
    assert here("stats", sets[0], "-o", "second.npz", "--extractor", TINY, "--no-cache").status == 0
    with np.load(tmp_path / "first.npz") as first, np.load(tmp_path / "second.npz") as second:
        assert first.files == second.files
        assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def test_a_changed_file_misses_even_with_its_old_size_and_mtime(
    here: Run, sets: tuple[Path, Path]
) -> None:
    before = here("compute", *sets, *BASE)
    victim, other = sets[1] / "00000.bmp", sets[0] / "00000.bmp"
    status = victim.stat()
    victim.write_bytes(other.read_bytes())
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (victim.stat().st_size, victim.stat().st_mtime_ns) == (
        status.st_size,
        status.st_mtime_ns,
    )
    settle()
    after = here("compute", *sets, *BASE)
    assert after.json["run"]["cached"] == [str(sets[0])]
    assert computed(after) == COUNT
    assert after.fid != before.fid
    assert after.fid == here("compute", *sets, *BASE, "--no-cache").fid


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--protocol", "tensorflow"), 2 * COUNT),
        (("--num", 5), 10),
        (("--batch-size", 3), 2 * COUNT),
        (
            ("--num", COUNT, "--num-workers", 0, "--device", "cpu", "--quiet"),
            0,
        ),  # no effect on the bits
    ],
)
def test_settings_that_may_change_the_bits_miss(
    here: Run, sets: tuple[Path, Path], arguments: tuple[object, ...], expected: int
) -> None:
    assert computed(here("compute", *sets, *BASE)) == 2 * COUNT
    assert computed(here("compute", *sets, *BASE, *arguments)) == expected
    assert computed(here("compute", *sets, *BASE, *arguments)) == 0


def test_statistics_with_more_than_is_needed_are_found(
    here: Run, sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    """An entry with a further layer, per-image features or records also serves a run that needs
    less.
    """
    more = ("--metrics", "fid,kid,cmmd", "--cmmd-extractor", COLOURS)
    assert computed(here("compute", *sets, *BASE, "--no-diagnosis")) == 2 * COUNT
    assert computed(here("compute", *sets, *BASE, *more)) == 2 * COUNT
    assert len(entries(environment)) == 4, "one per set and layer"
    assert (
        computed(here("compute", *sets, *BASE, *more[2:], "--metrics", "cmmd", "--no-diagnosis"))
        == 0
    )
    for arguments in ((), ("--metrics", "kid"), ("--metrics", "cmmd", "--cmmd-extractor", COLOURS)):
        cached, fresh = (
            here("compute", *sets, *BASE, *arguments, *flag) for flag in ((), ("--no-cache",))
        )
        assert (computed(cached), computed(fresh)) == (0, 2 * COUNT)
        assert cached.json["results"] == fresh.json["results"]


def test_no_cache_neither_writes_nor_reads(
    here: Run, sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    assert computed(here("compute", *sets, *BASE, "--no-cache")) == 2 * COUNT
    assert entries(environment) == []
    assert computed(here("compute", *sets, *BASE)) == 2 * COUNT
    kept = [(path, path.stat().st_mtime_ns) for path in entries(environment)]
    assert len(kept) == 2
    again = here("compute", *sets, *BASE, "--no-cache")
    assert (computed(again), again.json["run"]["cached"]) == (2 * COUNT, [])
    assert [(path, path.stat().st_mtime_ns) for path in entries(environment)] == kept


def test_a_damaged_entry_is_reported_and_recomputed(
    here: Run, sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    """One bit of a value in the middle of sigma is flipped."""
    first = here("compute", *sets, *BASE)
    victim, _ = entries(environment)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    second = here("compute", *sets, *BASE, "--quiet")
    assert computed(second) == COUNT
    assert [
        str(victim) in line for line in second.stderr.splitlines() if line.startswith("warning: ")
    ] == [True]
    assert second.json["results"] == first.json["results"]
    third = here("compute", *sets, *BASE, "--quiet")
    assert (computed(third), third.stderr) == (0, "")


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("features"),
        lambda arrays: arrays.update(
            run=np.array(json.dumps({**json.loads(str(arrays["run"])), "arithmetic": None}))
        ),
    ],
)
def test_an_incomplete_entry_is_not_used(
    here: Run,
    sets: tuple[Path, Path],
    environment: dict[str, str],
    change: Callable[[dict[str, Any]], Any],
) -> None:
    run = ("compute", *sets, *BASE, "--metrics", "fid,kid")
    first = here(*run)
    for victim in entries(environment):
        with np.load(victim) as archive:
            arrays = {name: archive[name] for name in archive.files}
        change(arrays)
        np.savez(victim, **arrays)
    second = here(*run)
    assert computed(second) == 2 * COUNT
    assert second.json["results"] == first.json["results"]


def test_the_least_recently_used_entry_is_evicted_first(
    here: Run, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate("abc")]
    settle()

    def use(folder: Path) -> int:
        settle()
        return computed(here("compute", folder, folder, *BASE))

    assert use(folders[0]) == 4
    size = entries(environment)[0].stat().st_size
    monkeypatch.setenv("FIDTOOL_CACHE_BYTES", str(int(2.5 * size)))
    # Now b is the least recently used.
    assert [use(folders[1]), use(folders[0]), use(folders[2])] == [
        4,
        0,
        4,
    ]
    assert len(entries(environment)) == 2
    assert [use(folders[0]), use(folders[2])] == [0, 0]
    assert use(folders[1]) == 4
    monkeypatch.setenv("FIDTOOL_CACHE_BYTES", "0")
    assert use(make_pictures(tmp_path / "d", 4, 9)) == 4
    assert len(entries(environment)) == 1  # the newest entry stays regardless of the limit


def test_clearing_keeps_the_weights(
    here: Run, sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    folder = Path(environment["FIDTOOL_CACHE"])
    weights = folder / "weights" / "kept"
    weights.write_bytes(b"")
    assert computed(here("compute", *sets, *BASE)) == 2 * COUNT
    abandoned = folder / "statistics" / ".0123.npz.k1ll.tmp"
    abandoned.write_bytes(b"half an archive")
    os.utime(abandoned, (0, 0))
    assert here("cache", "--clear").stdout == f"deleted 2 entries from {folder}\n"
    assert entries(environment) == []
    assert weights.exists()
    weights.unlink()


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(
    here: Run, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = here("compute", *sets, *BASE, "--no-cache").fid
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("FIDTOOL_CACHE", str(blocked))
    outcome = here("compute", *sets, *BASE, "--quiet")
    assert (computed(outcome), outcome.fid) == (2 * COUNT, expected)
    lines = outcome.stderr.splitlines()
    assert lines
    assert all(line.startswith("warning: ") and str(blocked) in line for line in lines)


# --- what must not be cached ----------------------------------------------------------------------


def test_coarse_clocks_need_a_longer_wait(
    sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    """If all time stamps are whole seconds, two changes within two seconds cannot be
    distinguished.
    """
    listed, second = list_folder(str(sets[0])), 10**9
    listed.files.stamps = np.array([(10, 5 * second, 6 * second, 1, 1) for _ in listed.stored])
    for now, is_cached in ((8 * second - 1, False), (8 * second + second // 5, True)):
        images = replace(listed, listed=now)
        assert put_in_cache(images, Statistics({}), print) == is_cached


def test_files_that_may_still_change_undetected_are_not_cached(
    here: Run, sets: tuple[Path, Path]
) -> None:
    """A time stamp in the future, which a file server may set, counts as too new."""
    ahead = time.time_ns() + 3600 * 10**9
    os.utime(sets[0] / "00003.bmp", ns=(ahead, ahead))
    settle()
    assert computed(here("compute", *sets, *BASE)) == 2 * COUNT
    assert here("compute", *sets, *BASE).json["run"]["cached"] == [str(sets[1])]
