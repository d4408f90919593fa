"""Tar archives and WebDataset shards.

Members of uncompressed archives are read by position, those of compressed archives sequentially. Nothing is unpacked to
disk.
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
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.archives import Member, list_members, refuse_several
from fidtool.sources.census import Census
from fidtool.sources.contents import MOST_BYTES, ContentError, Files, Read, head_of, too_large
from fidtool.sources.image_set import ImageSet, NamedFiles
from fidtool.sources.readers import MemberReader, SequentialReader

_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""Functions that open compressed files, by the first bytes of such a file."""
_MOST_PADDING = 1 << 16
"""Maximum number of padding bytes at the end of an archive; up to 10 KiB are usual."""
_MOST_METADATA = 1 << 20
"""Maximum number of bytes in an extended header, which holds a member's long name, times and owner."""
_METADATA_TYPES = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_METADATA_TYPES |= {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
_MOST_LINKS = 16
_key = posixpath.normpath


class _Header(tarfile.TarInfo):
    """A member's header with a plausible size, which tarfile does not check."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Parses a header."""
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in _METADATA_TYPES and info.size > _MOST_METADATA):
            raise ValueError(f"a header states a size of {info.size} bytes")
        return info


@dataclass(frozen=True, slots=True)
class _Location:
    """First byte and length of a member, or why it cannot be read."""

    start: int
    length: int
    problem: str = ""


def list_tars(named: NamedFiles) -> ImageSet:
    """Lists the images in tar archives, compressed or not.

    If samples consist of several images (WebDataset's ``input.png`` and ``output.png``), the key selects those whose
    names end in it after the first dot; without a key all images count.
    """
    files, key = named.files, named.key
    packed = head_of(files).startswith(tuple(_OPENERS))

    def members(path: str, handle: BinaryIO, census: Census) -> Iterator[Member[_Location]]:
        nonlocal packed
        packed = _opened(handle)[1] or packed
        handle.seek(0)
        return _members(key, path, handle, census)

    kind = "compressed tar archive" if packed else "tar archive"
    listing = list_members(named.path, kind, files, members, stored=lambda location: 0 if packed else location.start)
    kind = "compressed tar archive" if packed else "tar archive"
    if not key:
        refuse_several(named.path, listing.names)
    problems = {item: location.problem for item, location in enumerate(listing.locations) if location.problem}
    if packed:
        return listing.image_set(named, kind, CompressedTarReader(files, listing.file_index, problems, key))
    extents = np.array([(location.start, location.length) for location in listing.locations], dtype=np.int64)
    return listing.image_set(named, kind, MemberReader(files, listing.file_index, extents, problems))


def _opened(handle: BinaryIO) -> tuple[IO[bytes], bool]:
    """Returns the decompressed archive, and whether it was compressed."""
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
    for info in _images(stream, census, key):
        if not info.islnk() and not info.issym():
            yield Member(info.name.removeprefix("./"), _location(info))
        elif packed:  # members are found again by their order, so a link must keep its position
            why = f"it is a link to {_target(info)}; links in compressed archives are not followed"
            yield Member(info.name.removeprefix("./"), _Location(0, 0, why))
        else:
            links[_key(info.name)] = _target(info)
            linked.append(info.name)
    targets = {}
    if links:  # the names of targets need not be those of images
        handle.seek(0)
        wanted = set(links.values())
        targets = {
            _key(each.name): _location(each) for each in _walk(handle) if each.isreg() and _key(each.name) in wanted
        }
    for member in linked:
        name, hops = _key(member), 0
        while name in links and hops < _MOST_LINKS:
            name, hops = links[name], hops + 1
        location = targets.get(name, _Location(0, 0, f"it is a link to {name}, which is not in the archive"))
        yield Member(member.removeprefix("./"), location)


def _location(info: tarfile.TarInfo) -> _Location:
    if info.issparse():
        return _Location(0, 0, "it is a sparse file: create the archive again without --sparse")
    if info.size > MOST_BYTES:
        return _Location(0, 0, str(too_large(info.size)))
    return _Location(info.offset_data, info.size)


def _target(info: tarfile.TarInfo) -> str:
    """Returns the name of the member to which a link points."""
    return _key(info.linkname if info.islnk() else posixpath.join(posixpath.dirname(info.name), info.linkname))


def _images(stream: IO[bytes], census: Census, key: str) -> Iterator[tarfile.TarInfo]:
    """Yields the members with an image's name, in stored order; with a ``key``, only those that match it."""
    for info in _walk(stream):
        name = info.name.removeprefix("./")
        is_file = info.isreg() or info.islnk() or info.issym()
        if is_file and census.takes(name, key):
            yield info


def _walk(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yields all members in stored order, then checks the end mark, which tarfile does not require."""
    last = -1
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        # Python 3.10 fails to look for the first member of an empty archive.
        while archive.offset and (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # saves memory: there may be a million
            if info.offset <= last or info.size < 0:
                raise ValueError(f"the header at byte {last} points backwards")
            last = info.offset
            yield info
        stream.seek(archive.offset)
    mark = stream.read(tarfile.BLOCKSIZE)
    if mark != bytes(tarfile.BLOCKSIZE):
        where = f"at byte {archive.offset}"
        raise ValueError(
            f"it has no end mark after its last member ({where})" if not mark else f"invalid header {where}"
        )
    rest = stream.read(_MOST_PADDING + 1)
    if rest.strip(b"\0"):
        raise ValueError("it has data after its end mark, as if joined with cat: pass separate archives")
    if len(rest) > _MOST_PADDING:
        raise ValueError(f"more than {_MOST_PADDING} zero bytes follow its end mark, as in an incomplete download")


class CompressedTarReader(SequentialReader):
    """Reads members of tar archives sequentially; used if any of the archives is compressed.

    ``file_index`` is the index of each member's archive, int32 array of shape (members,); ``problems`` says why a
    member cannot be read, by its number.
    """

    def __init__(self, files: Files, file_index: NDArray[np.int32], problems: dict[int, str], key: str) -> None:
        super().__init__(files, np.bincount(file_index, minlength=len(files.paths)).tolist())
        self._file_index, self._problems, self._key = file_index, problems, key
        self.variant = key

    def walk(self, handle: BinaryIO, file: int, items: NDArray[np.int64]) -> Iterator[Read]:
        first = sum(self._counts[:file])
        stream, _ = _opened(handle)
        left = deque(items.tolist())
        for number, info in enumerate(_images(stream, Census(), self._key)):
            if number == left[0]:
                item = first + left.popleft()
                if item in self._problems:
                    yield ContentError(self._problems[item])
                else:
                    stream.seek(info.offset_data)
                    yield stream.read(info.size)
                if not left:
                    return
        yield from [ContentError("the archive has fewer members than when it was listed")] * len(left)
