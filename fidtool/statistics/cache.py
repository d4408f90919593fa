"""Cache of the statistics of image sets, keyed by everything that determines them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidtool.cache_dir import byte_limit, cache_dir
from fidtool.errors import InputError, RunError
from fidtool.features.protocol import FEATURES
from fidtool.redaction import redacted
from fidtool.sources.folder import STDIN
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.statistics.set_statistics import Statistics
from fidtool.statistics.statistics_file import Summary, read_statistics, read_summary, write_unredacted

if TYPE_CHECKING:
    from fidtool.statistics.accumulator import Layer  # importing it needs torch, and listing the cache does not
DEFAULT_LIMIT_BYTES = 2 * 1024**3
SHOWN_DIGITS = 12
"""Hexadecimal digits of an entry's name that lists show; enough to identify the entry."""
_CONTENT_DIGITS = 16
"""First digits of an entry's name, which depend on what it contains. The others only depend on the images."""
_OTHER_PROBE = "_probe"
"""Suffix of the probes of networks other than the extractor in the arithmetic, see `Measurer`."""
_ABANDONED_SECONDS = 3600.0
"""Age from which a temporary file is assumed to belong to a process that was killed."""
_FINE_CLOCK_NS = 50_000_000
"""Resolution of time stamps on local file systems, with a margin: they use the kernel's tick of a few milliseconds."""
_COARSE_CLOCK_NS = 2_100_000_000
"""Resolution on coarse file systems, with a margin: FAT uses even seconds, and some network file systems whole ones."""


@dataclass(frozen=True)
class Entry:
    """A cached statistics file."""

    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """Hexadecimal name of the entry."""
        return self.path.stem

    def summary(self) -> Summary:
        """Reads the summary of the statistics, see `Summary`."""
        return read_summary(self.path)


class StatisticsCache:
    """A folder of statistics files, each named by a hash of everything that determines its content."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._folder = cache_dir() / "statistics"
        self._warn = warn

    def key(self, images: ImageSet, layers: Mapping[str, Layer], arithmetic: dict[str, Any], inspected: bool) -> str:
        """Returns the key of a set's statistics, a hexadecimal string.

        It depends on the definition of the extractor's features, the settings that determine their bits
        (``arithmetic``), the source's real path, the names of its images in canonical order, and each file's size,
        mtime, ctime and inode. Different or changed files, ``--num`` or ``--seed`` therefore change it. Its first
        digits depend on what is stored as well: the other layers, the layers whose per-image features are stored, and
        whether the images' records are (``inspected``).
        """
        shared = {name: value for name, value in arithmetic.items() if not name.endswith(_OTHER_PROBE)}
        source = [layers[FEATURES].definition.to_json(), json.dumps(shared, sort_keys=True)]
        content = [f"{name} {layer.definition.to_json()} {layer.with_features}" for name, layer in layers.items()]
        content = [*sorted(content), json.dumps(arithmetic, sort_keys=True), str(inspected)]
        of_source = _digest([*source, images.identity(), images.state()])
        return _digest([*content, of_source])[:_CONTENT_DIGITS] + of_source[_CONTENT_DIGITS:]

    def find(
        self, images: ImageSet, layers: Mapping[str, Layer], arithmetic: dict[str, Any], inspected: bool
    ) -> Statistics | None:
        """Returns the set's statistics with all these ``layers``, or None. Entries that store more are used as well."""
        exact = self.key(images, layers, arithmetic, inspected)
        features_of = frozenset(name for name, layer in layers.items() if layer.with_features)
        needed = Summary(
            definitions={name: layer.definition for name, layer in layers.items()},
            with_features=features_of,
            has_records=inspected,
            arithmetic=arithmetic,
        )
        for path in [self._path(exact), *self._same_images(exact)]:
            if path.stem != exact and not read_summary(path).contains(needed):
                continue
            found = self.get(path.stem, features_of)
            if found is None or found.arithmetic is None:
                continue
            found = replace(found, arithmetic=arithmetic)  # equal as far as the key depends on it
            if Summary.of(found).contains(needed):
                requested = {name: found.layers[name] for name in layers}
                return replace(found, layers=requested, pictures=found.pictures if inspected else None)
        return None

    def _same_images(self, key: str) -> list[Path]:
        """The other entries of the images of ``key``, regardless of their content."""
        pattern = f"{'?' * _CONTENT_DIGITS}{key[_CONTENT_DIGITS:]}.npz"
        return [path for path in sorted(self._folder.glob(pattern)) if path.stem != key]

    def get(self, key: str, features_of: Collection[str] | None = None) -> Statistics | None:
        """Returns the statistics stored under ``key``, or None. A damaged file is reported and deleted."""
        path = self._path(key)
        try:
            if not path.is_file():
                return None
            statistics = read_statistics(path, features_of)
            with contextlib.suppress(OSError):  # another user's cache may be read-only
                os.utime(path)  # marks it as recently used
            return statistics
        except OSError:
            return None
        except RunError as error:  # there is no room for the features, but the file is intact
            self._warn(f"the cache is not used: {error}")
            return None
        except Exception as error:
            if not path.exists():  # another process deleted it
                return None
            self._warn(f"a cache file is damaged, and its statistics are computed again: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def put(self, key: str, images: ImageSet, statistics: Statistics) -> bool:
        """Writes an entry, unless files may have changed during the run without a change of their time stamps.

        Entries of the same images that contain less are deleted.
        """
        if not images.source.files.versioned or (images.source.files.timed and _too_fresh(images)):
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_unredacted(self._path(key), statistics, _listed_path(images.path))
            added = Summary.of(statistics)
            for superseded in [path for path in self._same_images(key) if added.contains(read_summary(path))]:
                superseded.unlink(missing_ok=True)
            self._trim()
            return True
        except OSError as error:
            self._warn(f"the statistics are not cached: {self._folder} cannot be written ({error.strerror or error})")
            return False

    def entries(self) -> list[Entry]:
        """Returns all entries, the most recently used first."""
        entries = []
        for path in self._folder.glob("*.npz"):
            with contextlib.suppress(OSError):  # another process deleted it
                status = path.stat()
                entries += [Entry(path, status.st_size, status.st_mtime)] if path.is_file() else []
        return sorted(entries, key=lambda entry: entry.used, reverse=True)

    def matching(self, name: str) -> list[Entry]:
        """Returns the entries of a set of images, or the entry whose hexadecimal name begins with ``name``.

        This is the path of the set, as in `Summary.source` or relative to the current folder; or at least the first
        `SHOWN_DIGITS` digits of an entry's name, because fewer may be meant as a path.
        """
        entries = self.entries()
        of_path = [entry for entry in entries if name and entry.summary().source in (name, _listed_path(name))]
        is_id = len(name) >= SHOWN_DIGITS
        found = of_path or [entry for entry in entries if is_id and entry.key.startswith(name)]
        if not found:
            raise InputError(f"the cache has no entry {name!r}: `fidtool cache` lists paths and IDs")
        if len(found) > 1 and not of_path:
            raise InputError(f"{len(found)} entries of the cache have IDs that begin with {name}:", "pass more digits")
        return found

    def sweep(self, age: float = 0.0) -> None:
        """Deletes temporary files last written this many seconds ago or earlier."""
        for path in self._folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime <= time.time() - age:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.npz"

    def _trim(self) -> None:
        """Deletes the least recently used entries until the size limit holds, but never the newest entry."""
        self.sweep(_ABANDONED_SECONDS)
        total = 0
        for position, entry in enumerate(self.entries()):
            total += entry.size
            if position and total > limit_bytes():
                entry.path.unlink(missing_ok=True)


def _digest(parts: Sequence[str]) -> str:
    """Returns the SHA-256 of some strings, 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(os.fsencode(part) + b"\0")
    return sha.hexdigest()


def _listed_path(path: str) -> str:
    """Returns a set's path as lists show it: absolute, or a URL without user, password and query."""
    if path == STDIN:
        return path
    return redacted(path) if "://" in path else real_path(path)


def limit_bytes() -> int:
    """Returns the size limit of the cache: ``FIDTOOL_CACHE_BYTES``, else 2 GiB (about 60 sets at 2048 dims)."""
    return byte_limit("FIDTOOL_CACHE_BYTES", DEFAULT_LIMIT_BYTES)


def _too_fresh(images: ImageSet) -> bool:
    """Returns whether a file was so new when listed that a later change could have left its time stamps the same.

    Two changes within the resolution of a file system's time stamps cannot be distinguished. The resolution is taken to
    be coarse if all stamps are whole seconds.
    """
    times = images.stamps[:, 1:3]
    coarse = not (times % 1_000_000_000).any()
    return bool(images.source.listed - times.max() < (_COARSE_CLOCK_NS if coarse else _FINE_CLOCK_NS))
