"""``fidtool cache`` lists cached statistics and removes some of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from fidtool.statistics.cache import _listed_path
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY

DAY = 86400


@pytest.fixture
def cached(here: Run, tmp_path: Path, environment: dict[str, str]) -> dict[str, Path]:
    """Entries by name: two networks for ``p``, one for ``q``; last used 0, 10 and 40 days ago.

    No digit of an entry's ID is the name of a folder, so that part of an ID never matches a folder.
    """
    folders = [make_pictures(tmp_path / name, count) for name, count in (("p", 3), ("q", 4))]
    time.sleep(0.08)  # younger files are not cached: see test_cache
    statistics = Path(environment["FIDTOOL_CACHE"]) / "statistics"
    found: dict[str, Path] = {}
    for name, folder, network in (("new", 0, TINY), ("old", 0, COLOURS), ("oldest", 1, TINY)):
        assert here("stats", folders[folder], "-o", f"{name}.npz", "--extractor", network).status == 0
        (found[name],) = set(statistics.glob("*.npz")) - set(found.values())
    for name, days in (("new", 0), ("old", 10), ("oldest", 40)):
        used = time.time() - days * DAY - 3600
        os.utime(found[name], (used, used))
    return found


def left(cached: dict[str, Path]) -> list[str]:
    return [name for name, path in cached.items() if path.exists()]


def test_entries_of_earlier_versions_and_damaged_ones_are_listed(
    here: Run, cached: dict[str, Path], tmp_path: Path
) -> None:
    """Entries of earlier versions, which do not name their set, are still found and used."""
    with np.load(cached["oldest"]) as archive:
        kept = {name: archive[name] for name in archive.files if name != "source"}
    np.savez(cached["oldest"], **kept)
    cached["old"].write_bytes(b"damaged")
    rows = {row.split()[0]: row for row in here("cache").stdout.splitlines()[2:]}
    assert rows[cached["oldest"].stem[:12]].endswith("  ?")
    assert "(16)" in rows[cached["oldest"].stem[:12]]
    assert rows[cached["old"].stem[:12]].split()[1:4] == ["?", "?", "?"]
    again = here("compute", tmp_path / "q", tmp_path / "q", "--extractor", TINY, "--json")
    assert again.json["run"]["images_computed"] == 0
    assert here("cache", "--remove", "?").status == 2
    assert here("cache", "--remove", "").status == 2


def test_a_path_is_removed_with_all_its_entries(here: Run, cached: dict[str, Path], tmp_path: Path) -> None:
    assert here("cache", "--remove", "./p/").status == 0
    assert left(cached) == ["oldest"]
    assert here("cache", "--remove", tmp_path / "q").status == 0
    assert left(cached) == []


def test_an_unambiguous_id_is_removed(here: Run, cached: dict[str, Path]) -> None:
    twin = cached["old"].with_name(f"{cached['old'].stem[:20]}{'0' * 44}.npz")
    twin.write_bytes(b"")
    ambiguous = here("cache", "--remove", cached["old"].stem[:12])
    assert "2 entries of the cache have IDs that begin with" in ambiguous.error
    twin.unlink()
    assert here("cache", "--remove", cached["old"].stem[:12]).status == 0
    assert left(cached) == ["new", "oldest"]


def test_fewer_digits_than_the_list_shows_remove_nothing(here: Run, cached: dict[str, Path]) -> None:
    """A single letter may be the name of a folder."""
    for digits in (1, 11):
        refused = here("cache", "--remove", cached["old"].stem[:digits])
        assert (refused.status, "the cache has no entry" in refused.error) == (2, True)
    assert left(cached) == list(cached)


@pytest.mark.parametrize(
    ("limit", "rest"),
    [
        ("5d", ["new"]),
        ("%Y-%m-%d", ["new", "old"]),
    ],
)
def test_entries_unused_for_long_are_removed(here: Run, cached: dict[str, Path], limit: str, rest: list[str]) -> None:
    """For days, or since a date, here that of 20 days ago."""
    limit = time.strftime(limit, time.localtime(time.time() - 20 * DAY))
    assert here("cache", "--older-than", limit).status == 0
    assert left(cached) == rest


def test_addresses_are_listed_without_their_secrets() -> None:
    assert _listed_path("https://me:pass@host:8080/set.zip?token=secret#x") == "https://host:8080/set.zip"
    assert _listed_path("s3://bucket/set.zip") == "s3://bucket/set.zip"


def test_a_sample_is_distinguished_from_the_whole_set(here: Run, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = make_pictures(tmp_path / "p", 5)
    time.sleep(0.08)  # younger files are not cached: see test_cache
    for name, more in (("all", ()), ("some", ("--num", 3))):
        assert here("stats", folder, "-o", f"{name}.npz", "--extractor", TINY, *more).status == 0
    assert sorted((each["images"], each["found"]) for each in here("cache", "--json").json["entries"]) == [
        (3, 5),
        (5, 5),
    ]
