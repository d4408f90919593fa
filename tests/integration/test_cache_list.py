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


def test_the_list_shows_sets_and_networks(here: Run, cached: dict[str, Path], tmp_path: Path) -> None:
    _, headings, *rows = here("cache").stdout.splitlines()
    assert headings.split() == ["ID", "images", "network", "(dims)", "protocol", "MiB", "last", "used", "path"]
    assert [row.split()[0] for row in rows] == [path.stem[:12] for path in cached.values()]
    words = [("3", "network", "(16)", "1 h ago", "p"), ("3", "colours", "(6)", "10 d ago", "p")]
    for row, parts in zip(rows, [*words, ("4", "network", "(16)", "40 d ago", "q")], strict=True):
        assert row.endswith(f"  {tmp_path / parts[-1]}")
        assert [part for part in parts if part not in row] == []
        assert "pytorch-fid" in row


def test_the_list_as_json(here: Run, cached: dict[str, Path], tmp_path: Path) -> None:
    document = here("cache", "--json").json
    assert [each["id"] for each in document["entries"]] == [path.stem for path in cached.values()]
    first = document["entries"][0]
    assert (first["path"], first["images"], first["dims"]) == (str(tmp_path / "p"), 3, 16)
    assert first["network"].startswith("tiny_network.py:network@")
    assert first["protocol"] == "pytorch-fid"
    assert first["bytes"] == cached["new"].stat().st_size
    assert document["bytes"] == sum(each["bytes"] for each in document["entries"])


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


@pytest.mark.parametrize(("name", "rest"), [("p", ["oldest"]), ("./q/", ["new", "old"]), ("{tmp}/q", ["new", "old"])])
def test_a_path_is_removed_with_all_its_entries(
    here: Run, cached: dict[str, Path], tmp_path: Path, environment: dict[str, str], name: str, rest: list[str]
) -> None:
    removed = here("cache", "--remove", name.format(tmp=tmp_path))
    words = "1 entry" if len(rest) == 2 else "2 entries"
    assert (removed.status, removed.stdout) == (0, f"deleted {words} from {environment['FIDTOOL_CACHE']}\n")
    assert left(cached) == rest


def test_an_unambiguous_id_is_removed(here: Run, cached: dict[str, Path]) -> None:
    twin = cached["old"].with_name(f"{cached['old'].stem[:20]}{'0' * 44}.npz")
    twin.write_bytes(b"")
    ambiguous = here("cache", "--remove", cached["old"].stem[:12])
    assert ambiguous.status == 2
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


def test_a_path_does_not_remove_entries_of_longer_paths(here: Run, cached: dict[str, Path], tmp_path: Path) -> None:
    longer = make_pictures(tmp_path / "q2", 3)
    time.sleep(0.08)  # see above
    before = set(cached["old"].parent.glob("*.npz"))
    assert here("stats", longer, "-o", "longer.npz", "--extractor", TINY).status == 0
    (cached["longer"],) = set(cached["old"].parent.glob("*.npz")) - before
    assert here("cache", "--remove", tmp_path / "q").status == 0
    assert left(cached) == ["new", "old", "longer"]


@pytest.mark.parametrize(
    ("limit", "rest"),
    [
        ("5d", ["new"]),
        ("20", ["new", "old"]),
        ("%Y-%m-%d", ["new", "old"]),
        ("999d", ["new", "old", "oldest"]),
        ("0d", []),
    ],
)
def test_entries_unused_for_long_are_removed(here: Run, cached: dict[str, Path], limit: str, rest: list[str]) -> None:
    """For days, or since a date, here that of 20 days ago."""
    limit = time.strftime(limit, time.localtime(time.time() - 20 * DAY))
    assert here("cache", "--older-than", limit).status == 0
    assert left(cached) == rest


@pytest.mark.parametrize("limit", ["30 days", "yesterday", "2026-13-01", "-3d", "9999999999d", ""])
def test_invalid_limits_are_refused(here: Run, cached: dict[str, Path], limit: str) -> None:
    refused = here("cache", "--older-than", limit)
    assert refused.status == 2
    assert "2026-11-01" in refused.error
    assert left(cached) == list(cached)


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
    assert any("  3 of 5  " in row for row in here("cache").stdout.splitlines())
