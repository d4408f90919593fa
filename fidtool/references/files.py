"""The files of published references: downloaded, whole or in parts, and kept in the cache."""

from __future__ import annotations

import time
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fidtool.errors import InputError, RunError, Say
from fidtool.references.catalogue import FEATURES, Reference
from fidtool.system.cache_dir import atomic_write, cache_dir, storage_error
from fidtool.system.download import DownloadError, RemoteFile, megabytes
from fidtool.system.local_files import sha256_of
from fidtool.system.variables import REFERENCES_URL

WHOLE_BYTES = 64 << 20
"""Size up to which a file is downloaded as a whole, even if only some of its arrays are needed."""
_BLOCK_BYTES = 1 << 20
_REPORT_SECONDS = 10.0
# What ``zipfile`` raises for a file that is no archive, is damaged, or is packed in an unknown way.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    NotImplementedError,
    EOFError,
    ValueError,
)


@dataclass(frozen=True)
class PublishedFile:
    """A file of the reference of this ``name``, an ``.npz`` or a pickle, and its copy in the cache.

    ``pickle`` is a pickle's published name, which also stands for its only array; empty for an
    ``.npz``. ``arrays`` are those in the cache; none if the file is missing or not readable.
    """

    name: str
    url: str
    path: Path

    @property
    def pickle(self) -> str:
        return Path(self.url).name if self.url.endswith(".pkl") else ""

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        try:
            if self.pickle:
                return (self.pickle,) if self.path.exists() else ()
            with zipfile.ZipFile(self.path) as archive:
                return tuple(map(_array_name, archive.infolist()))
        except (OSError, *_UNREADABLE):
            return ()

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def __str__(self) -> str:
        """Return what is in the cache: ``mu, sigma (33.6 MB)``."""
        return f"{', '.join(self.arrays)} ({megabytes(self.size)})"


def _array_name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def folder() -> Path:
    """Return the folder of the downloaded files. It may not exist yet."""
    return cache_dir() / "references"


def published_files(reference: Reference) -> list[PublishedFile]:
    """Return the file of a reference, and the one with its features if there is one."""
    stem = reference.name.replace(":", "-")
    addresses = {f"{stem}{Path(reference.url).suffix}": reference.url}
    if reference.features_url:
        addresses[f"{stem}-kid.npz"] = reference.features_url
    return [PublishedFile(reference.name, url, folder() / name) for name, url in addresses.items()]


def fetch(reference: Reference, arrays: Collection[str], say: Say) -> tuple[Path, dict[str, str]]:
    """Return a file with these arrays of a reference, which is downloaded if the cache has none,
    and their SHA-256s.

    Empty ``arrays`` mean all statistics. An SHA-256 is of the array's ``.npy`` data; for a pickle,
    it is of the whole file, by the file's name.
    """
    wanted = frozenset(arrays or reference.statistics)
    with_features = FEATURES in wanted
    if with_features and (len(wanted) > 1 or not reference.features_url):
        raise InputError(f"{reference.name} has no file with {', '.join(sorted(wanted))}")
    file = published_files(reference)[with_features]
    if file.pickle:
        wanted = frozenset({file.pickle})
    held = wanted.union(reference.arrays).intersection(file.arrays)
    if wanted <= held:
        try:
            with open(file.path, "rb") as handle:
                sha256 = _hash_arrays(file, handle, wanted)
        except (OSError, *_UNREADABLE) as error:
            raise InputError(
                f"{file.path} cannot be read ({error}):", "delete it to download it again"
            ) from None
    else:
        sha256 = _download(file, wanted | held, say)
    return file.path, {array: sha256[array] for array in sorted(wanted)}


def _hash_arrays(file: PublishedFile, handle: IO[bytes], wanted: Collection[str]) -> dict[str, str]:
    handle.seek(0)
    if file.pickle:
        if handle.read(1) != b"\x80":
            raise ValueError("it is not a pickle")
        handle.seek(0)
        return {file.pickle: sha256_of(handle)}
    with zipfile.ZipFile(handle) as archive:
        hashes = {}
        for info in _find_members(file, archive, wanted):
            with archive.open(info) as member:
                hashes[_array_name(info)] = sha256_of(member)
        return hashes


def _find_members(
    file: PublishedFile, archive: zipfile.ZipFile, wanted: Collection[str]
) -> list[zipfile.ZipInfo]:
    """Return the members of an ``.npz`` that are the wanted arrays, in the order in which they are
    stored.
    """
    members = {_array_name(info): info for info in archive.infolist()}
    missing = sorted(set(wanted) - members.keys())
    if missing:
        raise InputError(
            f"the file of {file.name} has no array {', '.join(missing)}; it has "
            f"{', '.join(members)} ({mirror_url(file.url)})"
        )
    return sorted((members[array] for array in wanted), key=lambda info: info.header_offset)


# --- downloads ------------------------------------------------------------------------------------


def mirror_url(url: str) -> str:
    """Return the address from which a file is downloaded: at the mirror, if there is one."""
    mirror = REFERENCES_URL.value
    if not mirror:
        return url
    if "://" not in mirror:
        raise InputError(
            f"{REFERENCES_URL.name} must be a URL such as https://mirror or file:///folder, not "
            f"{mirror!r}"
        )
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}"


def _download(file: PublishedFile, wanted: Collection[str], say: Say) -> dict[str, str]:
    url = mirror_url(file.url)
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file.path) as target:
            _copy(file, url, target, wanted, say)
            return _hash_arrays(file, target, wanted)
    except InputError:  # a ValueError
        raise
    except DownloadError as error:
        raise RunError(
            f"{file.name} could not be downloaded from {url} ({error}):",
            f"download {file.url} by hand and pass that file instead of {file.name}, or put it at "
            f"{file.path}",
            f"set https_proxy, or {REFERENCES_URL.name} to a mirror",
        ) from None
    except _UNREADABLE as error:
        kind = "pickle" if file.pickle else ".npz file"
        raise RunError(
            f"{file.name}: the download from {url} is not a readable {kind} ({error}):",
            "check what the network or the mirror returns for this address",
        ) from None
    except OSError as error:
        raise storage_error(file.name, error) from None


def _copy(
    file: PublishedFile, url: str, target: IO[bytes], wanted: Collection[str], say: Say
) -> None:
    """Write the file, or an ``.npz`` with its wanted arrays."""
    remote = RemoteFile(url)
    size = remote.size or 0
    is_large = size > WHOLE_BYTES and not file.pickle
    if not is_large or not remote.seekable():
        shown = megabytes(size) if size else "unknown size"
        partless = (
            ", the whole file because the server cannot send only a part of it" if is_large else ""
        )
        say(f"downloading {file.name} from {url} ({shown}{partless})")
        _copy_blocks(remote, target, file.name, remote.size, say)
        return
    with zipfile.ZipFile(remote) as archive, zipfile.ZipFile(target, "w") as kept:
        members = _find_members(file, archive, wanted)
        starts = sorted([*(info.header_offset for info in archive.infolist()), archive.start_dir])
        names = ", ".join(map(_array_name, members))
        shown = f"{megabytes(sum(info.compress_size for info in members))} of {megabytes(size)}"
        say(f"downloading {names} of {file.name} from {url} ({shown})")
        for info in members:
            remote.stop = starts[bisect_right(starts, info.header_offset)]
            with (
                archive.open(info) as member,
                kept.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as out,
            ):
                _copy_blocks(
                    member, out, f"{_array_name(info)} of {file.name}", info.file_size, say
                )


def _copy_blocks(source: Any, target: IO[bytes], name: str, size: int | None, say: Say) -> None:
    """Copy all that is left of ``source``, and say every ten seconds how much has arrived."""
    total = "" if size is None else f" of {megabytes(size)}"
    done = 0
    reported = time.monotonic()
    while block := source.read(_BLOCK_BYTES):
        target.write(block)
        done += len(block)
        if time.monotonic() - reported >= _REPORT_SECONDS:
            reported = time.monotonic()
            say(f"{name}: {megabytes(done)}{total}")
