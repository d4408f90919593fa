"""Zip archives, tar archives and WebDataset shards. Nothing is unpacked to disk.

Members of zip archives and of uncompressed tar archives are read by position, those of compressed
tar archives sequentially.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.contents import (
    MOST_BYTES,
    ContentError,
    ExtentReader,
    opened,
    read_extent,
    too_large,
)
from fidtool.sources.image_set import ImageSet, NamedFiles, Names, split_common_folder
from fidtool.sources.kinds import PassedOver, suffix_of


class Member(NamedTuple):
    """A member of an archive: its name, and its extent in the archive.

    ``problem`` is why it cannot be read, empty if it can; ``checks`` is a row of `_CHECKS`, empty
    for tar archives.
    """

    name: str
    start: int
    length: int
    problem: str = ""
    checks: tuple[int, ...] = ()


def list_images(named: NamedFiles) -> ImageSet:
    """Lists the images in zip archives, or in tar archives, compressed or not.

    If samples consist of several images (WebDataset's ``input.png`` and ``output.png``), the key
    selects those whose names end in it after the first dot; without a key, such archives are
    refused.
    """
    paths = named.files.paths
    is_zip = suffix_of(paths[0]) == ".zip"
    passed_over = PassedOver()
    members: list[Member] = []
    names: list[str] = []
    counts: list[int] = []
    packed = False
    for archive, label in zip(paths, split_common_folder(paths)[1], strict=True):
        with opened(named.files, len(counts)) as handle:
            packed |= not is_zip and _opened(handle) is not handle
            members_of = partial(_zipped, archive) if is_zip else _tarred
            found = sorted(
                members_of(named.key, handle, passed_over), key=attrgetter("start")
            )  # as stored
            if any("\0" in member.name for member in found):
                raise ValueError("a member's name contains a null character")
        _refuse_duplicates(archive, found)
        names += [f"{label}/{member.name}" if len(paths) > 1 else member.name for member in found]
        members += found
        counts.append(len(found))
    kind = "zip archive" if is_zip else f"{'compressed ' * packed}tar archive"
    if not names:
        raise passed_over.nothing_found(named.path, kind)
    if not named.key:
        _refuse_several(named.path, names)
    reader = MemberReader(
        named, packed, np.repeat(np.arange(len(counts), dtype=np.int32), counts), members
    )
    by_name = sorted(range(len(names)), key=lambda item: (reader.file_index[item], names[item]))
    prefix = f"{named.prefix}/" if len(paths) == 1 else named.prefix
    return ImageSet(
        named.path,
        kind,
        Names(names),
        prefix,
        reader,
        np.array(by_name, dtype=np.uint32),
        passed_over,
    )


def _refuse_several(path: str, names: Sequence[str]) -> None:
    """Refuses samples that consist of several images, such as WebDataset's ``input.png`` and
    ``output.png``.

    These have 2 to 8 kinds, the part of a name after the first dot, each of them in at least half
    of the samples. Kinds that all begin with a digit are numbers (``cat.0.png``, ``cat.1.png``).
    """
    kinds = [name.rpartition("/")[2].partition(".")[2] for name in names]
    counts = Counter(kinds)
    if not 2 <= len(counts) <= 8 or all(kind[:1].isdigit() for kind in counts):
        return
    samples = {name.removesuffix(kind) for name, kind in zip(names, kinds, strict=True)}
    if len(samples) > 1 and 2 * min(counts.values()) >= len(samples):
        raise InputError(
            f"each sample in {path} has {len(counts)} images ({', '.join(sorted(counts))}):",
            f"pick one as in {path}:{min(counts)}",
        )


def _refuse_duplicates(archive: str, members: Sequence[Member]) -> None:
    # Hashes, because a set of a million names would take more memory than the rest of the listing.
    hashes = [hash(posixpath.normpath(member.name)) for member in members]
    if len(np.unique(hashes)) == len(members):
        return
    name, times = Counter(posixpath.normpath(member.name) for member in members).most_common(1)[0]
    if times > 1:
        raise InputError(
            f"{archive} contains {times} members named {name}:",
            "create the archive again with each name once",
        )


_HEADER = 30
"""Bytes of a member's local header, without its name and extra field (PKWARE's APPNOTE, 4.3.7)."""
_MOST = 2**60
_ENCRYPTED = 0x1
_METHODS = {zipfile.ZIP_STORED: False, zipfile.ZIP_DEFLATED: True}

_CHECKS = np.dtype([("size", "<i8"), ("crc", "<u4"), ("deflated", "?")])
"""Number of a member's bytes and their checksum, and whether they are compressed."""


def _zipped(path: str, key: str, handle: BinaryIO, passed_over: PassedOver) -> Iterator[Member]:
    with zipfile.ZipFile(handle) as archive:
        for info in archive.infolist():
            name = info.filename.replace("\\", "/")
            if not info.is_dir() and passed_over.takes(name, key):
                check_member(path, info)
                if (
                    info.header_offset < 0
                    or max(info.header_offset, info.compress_size, info.file_size) > _MOST
                ):
                    raise zipfile.BadZipFile(f"{name} has an impossible size or position")
                problem = f"{too_large(info.file_size)}" if info.file_size > MOST_BYTES else ""
                checks = (info.file_size, info.CRC, _METHODS[info.compress_type])
                yield Member(name, info.header_offset, info.compress_size, problem, checks)


def check_member(archive: str, info: zipfile.ZipInfo) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise InputError(
            f"{archive} contains an encrypted member, {info.filename}:", "decrypt the archive first"
        )
    if info.compress_type not in _METHODS:
        raise InputError(
            f"{archive} contains a member compressed with method {info.compress_type}, "
            f"{info.filename}:",
            "use deflate",
            "store the images uncompressed",
        )


class MemberReader(ExtentReader):
    """Reads members of archives. Remote archives are read sequentially, so that each rank downloads
    only its own.
    """

    def __init__(
        self,
        named: NamedFiles,
        packed: bool,
        file_index: NDArray[np.int32],
        members: Sequence[Member],
    ) -> None:
        super().__init__(
            named.files, file_index, packed or named.files.remote, named.key if packed else ""
        )
        self._extents = np.array(
            [(member.start, member.length) for member in members], dtype=np.int64
        )
        self._problems = {
            item: member.problem for item, member in enumerate(members) if member.problem
        }
        self._checks = np.array(
            [member.checks for member in members if member.checks], dtype=_CHECKS
        )

    def content(self, item: int, stream: IO[bytes]) -> bytes:
        if item in self._problems:
            raise ContentError(self._problems[item])
        start, length = self._extents[item].tolist()
        if not len(self._checks):
            return read_extent(stream, start, length)
        size, crc, deflated = self._checks[item].tolist()
        content = read_extent(stream, body_at(start, stream), length)
        if deflated:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            except zlib.error as error:
                raise ContentError(f"the archive is damaged: {error}") from None
        if len(content) != size or zlib.crc32(content) != crc:
            raise ContentError("the archive is damaged: this member's checksum does not match")
        return content

    def decompressed(self, handle: BinaryIO, file: int) -> IO[bytes]:
        return _opened(handle) if self.in_order else handle


def stored_at(info: zipfile.ZipInfo, handle: IO[bytes]) -> int:
    """Returns the position in the archive of the first byte of a member that is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ValueError(f"its record {info.filename} is not where the archive's directory says")
    return body_at(info.header_offset, handle)


def body_at(position: int, handle: IO[bytes]) -> int:
    """Returns the position of the content of the member whose local header is at a position."""
    handle.seek(position)
    header = handle.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(b"PK\x03\x04"):
        raise ContentError("the archive is damaged: this member is not where the directory says")
    lengths: tuple[int, int] = struct.unpack_from("<HH", header, 26)  # of its name and extra field
    return position + _HEADER + sum(lengths)


# --- tar ------------------------------------------------------------------------------------------

_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
"""Functions that open compressed files, by the first bytes of such a file."""
_MOST_PADDING = 1 << 16
"""Maximum number of padding bytes at the end of an archive; up to 10 KiB are usual."""
_METADATA_TYPES = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_METADATA_TYPES |= {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}


class _Header(tarfile.TarInfo):
    """A member's header with a plausible size, which tarfile does not check."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        info = super().frombuf(buf, encoding, errors)
        # An extended header holds a member's long name, times and owner.
        if info.size < 0 or (info.type in _METADATA_TYPES and info.size > 1 << 20):
            raise ValueError(f"a header states a size of {info.size} bytes")
        return info


def _opened(handle: BinaryIO) -> IO[bytes]:
    """Returns the contents of a compressed archive; the same object if it is not compressed."""
    handle.seek(0)
    head = handle.read(8)
    handle.seek(0)
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            stream: IO[bytes] = opener(handle)
            return stream
    return handle


def _tarred(key: str, handle: BinaryIO, passed_over: PassedOver) -> Iterator[Member]:
    for info in _walk(_opened(handle)):
        name, is_link = info.name.removeprefix("./"), info.islnk() or info.issym()
        if (info.isreg() or is_link) and passed_over.takes(name, key):
            why = ""
            if is_link:
                again = "create the archive again with --dereference and --hard-dereference"
                why = f"it is a link to {info.linkname}: {again}"
            elif info.issparse():
                why = "it is a sparse file: create the archive again without --sparse"
            yield Member(name, info.offset_data, 0 if why else info.size, why)


def _walk(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yields all members in stored order, then checks the end mark, which tarfile does not
    require.
    """
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
    rest = stream.read(_MOST_PADDING + 1)
    if not tarfile.BLOCKSIZE <= len(rest) <= _MOST_PADDING or rest.strip(b"\0"):
        mark = f"{tarfile.BLOCKSIZE} to {_MOST_PADDING} zero bytes and nothing else"
        raise ValueError(
            f"its last member, up to byte {archive.offset}, must be followed by {mark}: it was "
            "not downloaded completely, or joined from archives that must be passed as separate "
            "files"
        )
