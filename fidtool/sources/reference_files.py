"""The files of references, which are downloaded into the cache once."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fidtool.cache_dir import atomic_write, cache_dir
from fidtool.download import DownloadError, RemoteFile, megabytes
from fidtool.errors import InputError, RunError
from fidtool.sources.references import FEATURES, Reference

MIRROR = "FIDTOOL_REFERENCES_URL"
"""Environment variable with the address of a mirror, to which host and path of a reference's address are appended."""
_WHOLE_BYTES = 64 << 20
"""Size up to which a file is downloaded as a whole, even if only some of its arrays are needed."""
_BLOCK_BYTES = 1 << 20
_REPORT_SECONDS = 10.0
"""Seconds between two lines about the progress of a download."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError)
"""What ``zipfile`` raises for a file that is no archive, is damaged, or is packed in an unknown way."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class PublishedFile:
    """One of a reference's published files, an ``.npz`` or a pickle, and its copy in the cache.

    Attributes:
        name: name of the reference.
        url: address that the project publishes.
        path: place in the cache.
        pickle: a pickle's published name, which also stands for its only array; empty for an ``.npz``.
        arrays: arrays that are in the cache; empty if the file is missing or not readable.
        size: size of the copy in bytes.
    """

    name: str
    url: str
    path: Path
    pickle: str = ""
    arrays: tuple[str, ...] = ()
    size: int = 0

    def __str__(self) -> str:
        """Return what is in the cache: ``mu, sigma (33.6 MB)``."""
        return f"{', '.join(self.arrays)} ({megabytes(self.size)})"


def _array(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def folder() -> Path:
    """Return the folder of the downloaded files. It may not exist yet."""
    return cache_dir() / "references"


def published_files(reference: Reference) -> list[PublishedFile]:
    """Return the file of a reference, and the one with its features if there is one."""
    found = []
    endings = {reference.url: Path(reference.url).suffix, reference.features_url: "-kid.npz"}
    for url, ending in endings.items():
        if not url:
            continue
        path = folder() / f"{reference.name.replace(':', '-')}{ending}"
        pickle = Path(url).name if ending == ".pkl" else ""
        arrays: tuple[str, ...] = (pickle,)
        size = 0
        try:
            size = path.stat().st_size
            if not pickle:
                with zipfile.ZipFile(path) as archive:
                    arrays = tuple(map(_array, archive.infolist()))
        except (OSError, *_UNREADABLE):
            arrays = ()
        found.append(PublishedFile(reference.name, url, path, pickle, arrays, size))
    return found


def fetch(reference: Reference, arrays: Collection[str], say: Say) -> tuple[Path, dict[str, str]]:
    """Return a file with these arrays of a reference, which is downloaded if the cache has none, and their SHA-256s.

    Of a large file, only the arrays are downloaded if the server returns parts of files. Empty ``arrays``
    mean all statistics. Features are in a file of their own. An SHA-256 is of the array's
    ``.npy`` data; for a pickle, it is of the whole file, by the file's name.
    """
    wanted = frozenset(arrays or reference.statistics)
    with_features = FEATURES in wanted
    if with_features and (len(wanted) > 1 or not reference.features_url):
        raise InputError(f"{reference.name} has no file with {', '.join(sorted(wanted))}")
    file = published_files(reference)[with_features]
    if file.pickle:
        wanted = frozenset({file.pickle})
    held = {*file.arrays} & {*reference.arrays, *wanted}
    if not wanted <= held:
        sha256 = _download(file, wanted | held, say)
    else:
        try:
            with open(file.path, "rb") as handle:
                sha256 = _hashes(file, handle, wanted)
        except (OSError, *_UNREADABLE) as error:
            raise InputError(f"{file.path} cannot be read ({error}):", "delete it to download it again") from None
    return file.path, {array: sha256[array] for array in sorted(wanted)}


def _hashes(file: PublishedFile, handle: IO[bytes], wanted: Collection[str]) -> dict[str, str]:
    """Return the SHA-256 of each wanted array in an open file."""
    handle.seek(0)
    if file.pickle:
        if handle.read(1) != b"\x80":
            raise ValueError("it is not a pickle")
        handle.seek(0)
        return {file.pickle: _sha256(handle)}
    with zipfile.ZipFile(handle) as archive:
        found = {}
        for info in _members(file, archive, wanted):
            with archive.open(info) as member:
                found[_array(info)] = _sha256(member)
    return found


def _sha256(handle: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := handle.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _members(file: PublishedFile, archive: zipfile.ZipFile, wanted: Collection[str]) -> list[zipfile.ZipInfo]:
    """Return the members of an ``.npz`` that are the wanted arrays, in the order in which they are stored."""
    members = {_array(info): info for info in archive.infolist()}
    if missing := sorted(set(wanted) - members.keys()):
        named = f"the file of {file.name} has no array {', '.join(missing)}"
        raise InputError(f"{named}; it has {', '.join(members)} ({mirrored(file.url)})")
    return sorted((members[array] for array in wanted), key=lambda info: info.header_offset)


# --- downloads -------------------------------------------------------------------------------------------------------


def mirrored(url: str) -> str:
    """Return the address from which a file is downloaded: at the mirror, if there is one."""
    mirror = os.environ.get(MIRROR)
    if mirror and "://" not in mirror:
        raise InputError(f"{MIRROR} must be a URL such as https://mirror or file:///folder, not {mirror!r}")
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url


def _download(file: PublishedFile, wanted: Collection[str], say: Say) -> dict[str, str]:
    """Put the wanted arrays into the cache and return their SHA-256s."""
    url = mirrored(file.url)
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file.path) as target:
            _copy(file, url, target, wanted, say)
            return _hashes(file, target, wanted)
    except InputError:  # a ValueError
        raise
    except DownloadError as error:
        raise RunError(
            f"{file.name} could not be downloaded from {url} ({error}):",
            f"download {file.url} by hand and pass that file instead of {file.name}",
            f"put it at {file.path}",
            f"set https_proxy, or {MIRROR} to a mirror",
        ) from None
    except _UNREADABLE as error:
        kind = "pickle" if file.pickle else ".npz file"
        raise RunError(
            f"{file.name}: the download from {url} is not a readable {kind} ({error}):",
            "check what the network or the mirror returns for this address",
        ) from None
    except OSError as error:
        problem = f"{file.name} cannot be stored in {file.path.parent}: {error.strerror or error}"
        raise RunError(problem, "set FIDTOOL_CACHE") from None


def _copy(file: PublishedFile, url: str, target: IO[bytes], wanted: Collection[str], say: Say) -> None:
    """Write the file, or an ``.npz`` with its wanted arrays."""
    remote = RemoteFile(url)
    size, large = remote.size, remote.size is not None and remote.size > _WHOLE_BYTES and not file.pickle
    if not large or not remote.ranges:
        shown = "unknown size" if size is None else megabytes(size)
        partless = ", all of it because the server returns no parts of files" if large else ""
        say(f"downloading {file.name} from {url} ({shown}{partless})")
        _copy_blocks(remote, target, file.name, size, say)
        return
    with zipfile.ZipFile(remote) as archive, zipfile.ZipFile(target, "w") as kept:
        members = _members(file, archive, wanted)
        starts = sorted(info.header_offset for info in archive.infolist())
        names = ", ".join(_array(info) for info in members)
        shown = f"{megabytes(sum(info.compress_size for info in members))} of {megabytes(size or 0)}"
        say(f"downloading {names} of {file.name} from {url} ({shown})")
        for info in members:
            named = f"{_array(info)} of {file.name}"
            remote.stop = next((start for start in starts if start > info.header_offset), archive.start_dir)
            with archive.open(info) as member, kept.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as out:
                _copy_blocks(member, out, named, info.file_size, say)


def _copy_blocks(source: Any, target: IO[bytes], name: str, size: int | None, say: Say) -> None:
    """Copy all that is left of ``source``, and say every ten seconds how much has arrived."""
    total = "" if size is None else f" of {megabytes(size)}"
    done, reported = 0, time.monotonic()
    while block := source.read(_BLOCK_BYTES):
        target.write(block)
        done += len(block)
        if time.monotonic() - reported >= _REPORT_SECONDS:
            reported = time.monotonic()
            say(f"{name}: {megabytes(done)}{total}")
