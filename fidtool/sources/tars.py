"""Tar archives and WebDataset's shards: members lie at known places, or behind each other where they are compressed.

Nothing is unpacked to a disk. Imports no torch.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import tarfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.archives import Member, list_members, refuse_several
from fidtool.sources.census import HEAD, Census
from fidtool.sources.contents import (
    MOST_BYTES,
    ContentError,
    Files,
    MemberReader,
    Read,
    SequentialReader,
    readable,
)
from fidtool.sources.image_set import ImageSet, NamedFiles

_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""What compressed files begin with, and what reads them."""
_MOST_PADDING = 1 << 16
"""Bytes of zeros with which archives are filled up; up to 10 KiB are usual."""
_MOST_WORDS = 1 << 20
"""Bytes that describe a member beside its header: long names, times, owners."""
_WORDS = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_WORDS |= {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
_MOST_LINKS = 16


class DamagedError(Exception):
    """A tar archive that does not go on as it should; the message says where."""


class _Header(tarfile.TarInfo):
    """A member's header that claims no more than there can be: tarfile believes everything."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Raises a DamagedError where tarfile would read for hours, or all at once."""
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in _WORDS and info.size > _MOST_WORDS):
            raise DamagedError(f"a header claims {info.size} bytes")
        return info


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a member's bytes are, or why they cannot be had."""

    start: int
    length: int
    problem: str = ""


def list_tars(named: NamedFiles) -> ImageSet:
    """The images in tar archives, compressed or not.

    Args:
        named: the archives. The key is what images' names have after their first dot, where samples consist of several
            (WebDataset's ``input.png`` and ``output.png``); without one all images count.

    Raises:
        InputError: an archive that is damaged or cut off, no images, or several in each sample.
    """
    files, key = named.files, named.key
    packed = any(_is_compressed(files, file) for file in range(len(files.paths)))
    kind = "compressed tar archive" if packed else "tar archive"
    listing = list_members(
        named.path, kind, files, partial(_members, key), stored=lambda place: 0 if packed else place.start
    )
    if not key:
        refuse_several(named.path, listing.names)
    problems = {item: place.problem for item, place in enumerate(listing.places) if place.problem}
    if packed:
        return listing.image_set(named, kind, CompressedTarReader(files, listing.file_index, problems, key))
    extents = np.array([(place.start, place.length) for place in listing.places], dtype=np.int64)
    return listing.image_set(named, kind, MemberReader(files, listing.file_index, extents, problems))


def _is_compressed(files: Files, file: int) -> bool:
    with readable(files.paths[file]), files.open(file) as handle:
        head = handle.read(8)
    return any(head.startswith(magic) for magic in _OPENERS)


def _opened(handle: BinaryIO) -> tuple[IO[bytes], bool]:
    """The archive behind its compression, and whether there is one."""
    head = handle.read(8)
    handle.seek(0)
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            return opener(handle), True  # type: ignore[operator]
    return handle, False


def _members(key: str, path: str, handle: BinaryIO, census: Census) -> Iterator[Member[_Location]]:
    stream, packed = _opened(handle)
    links: dict[str, str] = {}
    linked = []
    for info in _images(stream, census, key, path):
        if not info.islnk() and not info.issym():
            yield Member(info.name.removeprefix("./"), _place(info))
        elif packed:  # here the order counts, by which they are found again
            why = f"it is a link to {_target(info)}, and in compressed archives links are not followed"
            yield Member(info.name.removeprefix("./"), _Location(0, 0, why))
        else:
            links[_key(info.name)] = _target(info)
            linked.append(info.name)
    targets = _places_of(handle, set(links.values())) if links else {}
    for member in linked:
        name, hops = _key(member), 0
        while name in links and hops < _MOST_LINKS:
            name, hops = links[name], hops + 1
        place = targets.get(name, _Location(0, 0, f"it is a link to {name}, which is not in the archive"))
        yield Member(member.removeprefix("./"), place)


def _key(name: str) -> str:
    return posixpath.normpath(name)


def _place(info: tarfile.TarInfo) -> _Location:
    if info.issparse():
        return _Location(0, 0, "it is stored with holes; make the archive anew without --sparse")
    if info.size > MOST_BYTES:
        return _Location(0, 0, f"it has {info.size} bytes, and no image file has more than {MOST_BYTES}")
    return _Location(info.offset_data, info.size)


def _target(info: tarfile.TarInfo) -> str:
    """The name of the member that a link means."""
    return _key(info.linkname if info.islnk() else posixpath.join(posixpath.dirname(info.name), info.linkname))


def _places_of(handle: BinaryIO, names: set[str]) -> dict[str, _Location]:
    """Where the members of these names lie, with or without an image's name."""
    handle.seek(0)
    return {_key(info.name): _place(info) for info in _walk(handle) if info.isreg() and _key(info.name) in names}


def _images(stream: IO[bytes], census: Census, key: str, path: str) -> Iterator[tarfile.TarInfo]:
    """The members with an image's name, in their order; with a ``key``, those that have it after their first dot."""
    for info in _walk(stream):
        name = info.name.removeprefix("./")
        is_file = info.isreg() or info.islnk() or info.issym()
        if is_file and census.takes(name, f"{path}/{name}", partial(_head, stream, info), key):
            yield info


def _head(stream: IO[bytes], info: tarfile.TarInfo) -> bytes:
    """A member's first bytes; none of a link. The stream is no farther than tarfile goes next."""
    stream.seek(info.offset_data)
    return stream.read(min(HEAD, info.size)) if info.isreg() else b""


def _walk(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """All members in their order; then the end mark, whose lack tarfile does not mind.

    Raises:
        DamagedError, tarfile.TarError: the archive is damaged or cut off.
    """
    last = -1
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        # Python 3.10 fails to look for the first member of an empty archive.
        while archive.offset and (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep a million of them
            if info.offset <= last or info.size < 0:
                raise DamagedError(f"what follows byte {last} is said to lie before it")
            last = info.offset
            yield info
        stream.seek(archive.offset)
    mark = stream.read(tarfile.BLOCKSIZE)
    if mark != bytes(tarfile.BLOCKSIZE):
        where = f"at byte {archive.offset}"
        raise DamagedError(
            f"its last member is not followed by an end mark ({where})" if not mark else f"no tar {where}"
        )
    rest = stream.read(_MOST_PADDING + 1)
    if rest.strip(b"\0"):
        raise DamagedError("it goes on behind its end mark, as archives do that cat has joined: keep them apart")
    if len(rest) > _MOST_PADDING:
        raise DamagedError(f"more than {_MOST_PADDING} zeros follow, as in a download that did not come to its end")


class CompressedTarReader(SequentialReader):
    """Reads members of tar archives of which some are compressed, from first to last.

    Args:
        files: the archives.
        file_index: which of them each member is in.
        problems: why some of them cannot be read.
        key: see `list_tars`.
    """

    def __init__(self, files: Files, file_index: NDArray[np.int32], problems: dict[int, str], key: str) -> None:
        super().__init__(files, np.bincount(file_index, minlength=len(files.paths)).tolist())
        self._file_index, self._problems, self._key = file_index, problems, key
        self.variant = key

    def walk(self, handle: BinaryIO, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        first = sum(self._counts[:file])
        stream, _ = _opened(handle)
        left = deque(items.tolist())
        for number, info in enumerate(_images(stream, Census(looks=False), self._key, "")):
            if number == left[0]:
                yield self._content(first + left.popleft(), stream, info)
                if not left:
                    return
        yield from [ContentError("the archive has fewer members than when it was listed")] * len(left)

    def damaged(self, file: int, words: str) -> ContentError:
        return ContentError(f"the archive is damaged: {words}")

    def _content(self, item: int, stream: IO[bytes], info: tarfile.TarInfo) -> Read:
        if item in self._problems:
            return ContentError(self._problems[item])
        stream.seek(info.offset_data)
        return stream.read(info.size)

    def expecting(self, sizes: NDArray[np.int64]) -> CompressedTarReader:
        return CompressedTarReader(self._files.expecting(sizes), self._file_index, self._problems, self._key)
