"""Statistics of image sets that were computed before, found again by what defines them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidtool.cache_dir import byte_limit, cache_dir
from fidtool.errors import InputError, RunError
from fidtool.features.protocol import FEATURES
from fidtool.redaction import redacted
from fidtool.sources.folder import STDIN
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.statistics.statistics_file import Statistics, Summary, read_statistics, read_summary, write_unredacted

if TYPE_CHECKING:
    from fidtool.statistics.partial import Layer  # to list entries needs no torch
DEFAULT_LIMIT_BYTES = 2 * 1024**3
SHOWN_DIGITS = 12
"""Hexadecimal digits of an entry's name that lists show, enough to be unique, and by which it is found."""
_ABANDONED_SECONDS = 3600.0
"""A temporary file that was last written so long ago belongs to a process that was killed."""
_FINE_CLOCK_NS = 50_000_000
"""Local file systems stamp files with the kernel's tick, a few milliseconds."""
_COARSE_CLOCK_NS = 2_100_000_000
"""FAT stamps even seconds; some network file systems, whole ones."""


@dataclass(frozen=True)
class Entry:
    """One cached statistics file: path, size in bytes, and time of last use in seconds since 1970."""

    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """Its hexadecimal name."""
        return self.path.stem

    def summary(self) -> Summary:
        """What it says about itself."""
        return read_summary(self.path)


class StatisticsCache:
    """A folder of statistics files named by a hash of everything that went into them.

    Args:
        say: takes a warning when something is wrong with the cache; the run goes on without it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._folder = cache_dir() / "statistics"
        self._say = say

    def key(self, images: ImageSet, layers: Mapping[str, Layer], arithmetic: dict[str, Any], inspected: bool) -> str:
        """Name of a set's statistics.

        It depends on what defines the features, which of them and whether the images' records are there, the source's
        real path, its images' names in canonical order, and each file's size, mtime, ctime and inode: another file, a
        changed one, or another ``--num`` or ``--seed`` gives another key.

        Args:
            images: the set.
            layers: what is gathered of each image, by name.
            arithmetic: what decides the bits of the features.
            inspected: the images' records are there, too.
        """
        sha = hashlib.sha256()
        main = layers[FEATURES].definition
        header = [main.to_json(), json.dumps(arithmetic, sort_keys=True)]
        for name in sorted(layers):
            if name != FEATURES:
                header.append(f"{name} {layers[name].definition.to_json()}")
            if layers[name].with_features:
                header.append(f"{name} kept")
        if inspected:
            header.append("records")
        for part in header:
            sha.update(os.fsencode(part) + b"\0")
        sha.update(images.identity().encode())
        sha.update(images.state().encode())
        return sha.hexdigest()

    def find(
        self, images: ImageSet, layers: Mapping[str, Layer], arithmetic: dict[str, Any], inspected: bool
    ) -> Statistics | None:
        """The set's statistics with all these ``layers``, or None. An entry with more features or records will do.

        Args:
            images, layers, arithmetic: see `key`.
            inspected: the images' records are needed, too.
        """
        wanted = [name for name, layer in layers.items() if layer.with_features]
        for richer in _richer(layers):
            for recorded in {inspected, True}:
                if (found := self.get(self.key(images, richer, arithmetic, recorded), wanted)) is not None:
                    return found if inspected else replace(found, pictures=None)
        return None

    def get(self, key: str, features_of: Collection[str] | None = None) -> Statistics | None:
        """The statistics under ``key``, or None. A damaged file is reported, deleted and counts as missing.

        Args:
            key: see `key`.
            features_of: see `read_statistics`.
        """
        path = self._path(key)
        try:
            if not path.is_file():
                return None
            statistics = read_statistics(path, features_of)
            with contextlib.suppress(OSError):  # another user's cache may be read-only
                os.utime(path)  # the least recently used go first
            return statistics
        except OSError:
            return None
        except RunError as error:  # there is no room for its features; the file is sound
            self._say(f"the cache is not used: {error}")
            return None
        except Exception as error:
            self._say(f"a damaged cache file is computed anew: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def put(self, key: str, images: ImageSet, statistics: Statistics) -> bool:
        """Writes an entry, unless files may have changed during the run without a change of their time stamps.

        Args:
            key: see `key`.
            images: the set.
            statistics: its statistics.

        Returns:
            Whether there is an entry now.
        """
        if not images.source.files.versioned or (images.source.files.timed and _too_fresh(images)):
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_unredacted(self._path(key), statistics, _listed_path(images.path))
            self._trim()
            return True
        except OSError as error:
            self._say(f"the statistics are not cached, {self._folder} cannot be written ({error.strerror or error})")
            return False

    def entries(self) -> list[Entry]:
        """What is in the cache, the most recently used first."""
        entries = []
        for path in self._folder.glob("*.npz"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append(Entry(path, status.st_size, status.st_mtime))
        return sorted(entries, key=lambda entry: entry.used, reverse=True)

    def clear(self) -> int:
        """Deletes every entry and returns how many there were.

        Raises:
            OSError: a file cannot be deleted.
        """
        entries = self.entries()
        self.remove(entries)
        self._sweep(time.time())
        return len(entries)

    def matching(self, name: str) -> list[Entry]:
        """The entries of a set of images, or the entry whose hexadecimal name begins with ``name``.

        Args:
            name: path of the set, as `Summary.source` has it or relative to the current folder; or the first digits
                of an entry's name, as many as lists show or more: fewer may be meant as a path.

        Raises:
            InputError: there is none, or several names begin so.
        """
        entries = self.entries()
        of_path = [entry for entry in entries if name and entry.summary().source in (name, _listed_path(name))]
        is_id = len(name) >= SHOWN_DIGITS
        found = of_path or [entry for entry in entries if is_id and entry.key.startswith(name)]
        if not found:
            raise InputError(f"the cache has no entry {name!r}: `fidtool cache` lists paths and IDs")
        if len(found) > 1 and not of_path:
            raise InputError(f"{len(found)} names of entries in the cache begin with {name}:", "give more of the name")
        return found

    def remove(self, entries: Sequence[Entry]) -> None:
        """Deletes these entries.

        Raises:
            OSError: a file cannot be deleted.
        """
        for entry in entries:
            entry.path.unlink(missing_ok=True)

    def _sweep(self, before: float) -> None:
        """Deletes temporary files that were last written before that time (seconds since 1970)."""
        for path in self._folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.npz"

    def _trim(self) -> None:
        """Deletes the least recently used entries beyond the size limit, but never the newest."""
        self._sweep(time.time() - _ABANDONED_SECONDS)
        total = 0
        for position, entry in enumerate(self.entries()):
            total += entry.size
            if position and total > limit_bytes():
                entry.path.unlink(missing_ok=True)


def _richer(layers: Mapping[str, Layer]) -> Iterator[dict[str, Layer]]:
    """``layers`` themselves, then with the features of more of them."""
    optional = [name for name, layer in layers.items() if not layer.with_features]
    for number in range(2 ** len(optional)):
        chosen = {name for place, name in enumerate(optional) if number >> place & 1}
        yield {name: replace(layer, with_features=True) if name in chosen else layer for name, layer in layers.items()}


def _listed_path(path: str) -> str:
    """A set's path as lists of entries show it: absolute, or an address without user, password and query."""
    if path == STDIN:
        return path
    return redacted(path) if "://" in path else real_path(path)


def limit_bytes() -> int:
    """Returns the size limit of the cache: ``FIDTOOL_CACHE_BYTES``, else 2 GiB (about 60 sets at 2048 dims).

    Raises:
        InputError: see `fidtool.cache_dir.byte_limit`.
    """
    return byte_limit("FIDTOOL_CACHE_BYTES", DEFAULT_LIMIT_BYTES)


def _too_fresh(images: ImageSet) -> bool:
    """Whether a file was so new when it was listed that a change since could have left its time stamps as they are.

    File systems stamp with a clock that ticks; two changes within a tick look alike. Whole-second stamps throughout
    give a coarse clock away.
    """
    times = images.stamps[:, 1:3]
    coarse = not (times % 1_000_000_000).any()
    return bool(images.source.listed - times.max() < (_COARSE_CLOCK_NS if coarse else _FINE_CLOCK_NS))
