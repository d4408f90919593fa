"""``fidtool cache`` lists cached statistics."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fidtool
from fidtool.sources.listing import list_folder
from fidtool.statistics.cache import put_in_cache
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS, TINY


@pytest.fixture
def cached(here: Run, tmp_path: Path, environment: dict[str, str]) -> dict[str, Path]:
    """Entries by name: two networks for ``p``, one for ``q``."""
    folders = [make_pictures(tmp_path / name, count) for name, count in (("p", 3), ("q", 4))]
    time.sleep(0.08)  # younger files are not cached: see test_cache
    statistics = Path(environment["FIDTOOL_CACHE"]) / "statistics"
    entries: dict[str, Path] = {}
    for name, folder, network in (("new", 0, TINY), ("old", 0, COLOURS), ("oldest", 1, TINY)):
        assert (
            here("stats", folders[folder], "-o", f"{name}.npz", "--extractor", network).status == 0
        )
        (entries[name],) = set(statistics.glob("*.npz")) - set(entries.values())
    return entries


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


def test_the_list_names_the_files(here: Run, cached: dict[str, Path]) -> None:
    """One can be deleted, because its name begins with the ID."""
    listed = here("cache", "--json").json
    folder = f"{listed['folder']}/statistics"
    assert {f"{folder}/{entry['id']}.npz" for entry in listed["entries"]} == {
        *map(str, cached.values())
    }
    shown = [row.split()[0] for row in here("cache").stdout.splitlines()[2:]]
    (first,) = (path for path in cached.values() if path.name.startswith(shown[0]))
    first.unlink()
    assert [row.split()[0] for row in here("cache").stdout.splitlines()[2:]] == shown[1:]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:pass@host:8080/set.zip?token=secret#x", "https://host:8080/set.zip"),
        ("s3://bucket/set.zip", "s3://bucket/set.zip"),
    ],
)
def test_addresses_are_listed_without_their_secrets(
    here: Run, cached: dict[str, Path], tmp_path: Path, address: str, shown: str
) -> None:
    statistics = fidtool.read_statistics(tmp_path / "new.npz")
    images = list_folder(str(tmp_path / "p"))
    assert put_in_cache(replace(images, path=address, listed=time.time_ns()), statistics, print)
    paths = {entry["path"] for entry in here("cache", "--json").json["entries"]}
    assert paths >= {shown}
    assert address == shown or address not in paths


def test_a_sample_is_distinguished_from_the_whole_set(
    here: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = make_pictures(tmp_path / "p", 5)
    time.sleep(0.08)  # younger files are not cached: see test_cache
    for name, more in (("all", ()), ("some", ("--num", 3))):
        assert here("stats", folder, "-o", f"{name}.npz", "--extractor", TINY, *more).status == 0
    assert sorted(
        (entry["images"], entry["found"]) for entry in here("cache", "--json").json["entries"]
    ) == [
        (3, 5),
        (5, 5),
    ]
