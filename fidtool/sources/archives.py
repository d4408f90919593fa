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
from operator import attrgetter
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.contents import (
    MAX_BYTES,
    ContentError,
    ExtentReader,
    open_with_errors,
    read_extent,
    too_large_error,
)
from fidtool.sources.image_set import ImageSet, Names, SourceFiles, split_common_folder
from fidtool.sources.kinds import IgnoredFiles, file_suffix


class Member(NamedTuple):
    """A member of an archive.

    Attributes:
        start, length: its extent in the archive, in a zip archive from its local header on.
        size: number of its bytes when it is not compressed; -1 in tar archives, of which nothing
            is checked.
        crc: checksum of these bytes.
        problem: why it cannot be read; empty if it can.
    """

    name: str
    start: int
    length: int
    size: int = -1
    crc: int = 0
    deflated: bool = False
    problem: str = ""


def list_images(named: SourceFiles) -> ImageSet:
    """List the images in zip archives, or in tar archives, compressed or not.

    If samples consist of several images (WebDataset's ``input.png`` and ``output.png``), the key
    selects those whose names end in it after the first dot; without a key, such archives are
    refused.
    """
    paths = named.files.paths
    is_zip = file_suffix(paths[0]) == ".zip"
    is_compressed = False
    passed_over = IgnoredFiles()
    members: list[Member] = []
    names: list[str] = []
    counts: list[int] = []
    _, labels = split_common_folder(paths)
    for file, archive in enumerate(paths):
        with open_with_errors(named.files, file) as handle:
            if is_zip:
                images = _list_zip(archive, named.key, handle, passed_over)
            else:
                is_compressed |= _decompress(handle) is not handle
                images = _list_tar(named.key, handle, passed_over)
            # In the order in which they are stored.
            stored = sorted(images, key=attrgetter("start"))
            if any("\0" in member.name for member in stored):
                raise ValueError("a member's name contains a null character")
        _refuse_duplicates(archive, stored)
        prefix = f"{labels[file]}/" if len(paths) > 1 else ""
        names += [prefix + member.name for member in stored]
        members += stored
        counts.append(len(stored))
    kind = "zip archive" if is_zip else "tar archive"
    if is_compressed:
        kind = f"compressed {kind}"
    if not names:
        raise passed_over.no_images_error(named.path, kind)
    if not named.key:
        _refuse_several(named.path, names)
    file_index = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    reader = MemberReader(named, is_compressed, file_index, members)
    by_name = sorted(range(len(names)), key=lambda item: (file_index[item], names[item]))
    order = np.array(by_name, dtype=np.uint32)
    prefix = f"{named.prefix}/" if len(paths) == 1 else named.prefix
    return ImageSet(named.path, kind, Names(names), prefix, reader, order, passed_over)


def _refuse_several(path: str, names: Sequence[str]) -> None:
    """Refuse samples that consist of several images, such as WebDataset's ``input.png`` and
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
    times = Counter(posixpath.normpath(member.name) for member in members)
    for name in times:
        if times[name] > 1:
            raise InputError(
                f"{archive} contains {times[name]} members named {name}:",
                "create the archive again with each name once",
            )


# Bytes of a member's local header, without its name and extra field (PKWARE's APPNOTE, 4.3.7).
_HEADER = 30
_MAX_SIZE = 2**60
_ENCRYPTED = 0x1


def _list_zip(path: str, key: str, handle: BinaryIO, passed_over: IgnoredFiles) -> Iterator[Member]:
    with zipfile.ZipFile(handle) as archive:
        for info in archive.infolist():
            name = info.filename.replace("\\", "/")
            if info.is_dir() or not passed_over.accept(name, key):
                continue
            check_member(path, info)
            numbers = (info.header_offset, info.compress_size, info.file_size)
            if info.header_offset < 0 or max(numbers) > _MAX_SIZE:
                raise zipfile.BadZipFile(f"{name} has an impossible size or position")
            yield Member(
                name,
                info.header_offset,
                info.compress_size,
                info.file_size,
                info.CRC,
                info.compress_type == zipfile.ZIP_DEFLATED,
                f"{too_large_error(info.file_size)}" if info.file_size > MAX_BYTES else "",
            )


def check_member(archive: str, info: zipfile.ZipInfo) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise InputError(
            f"{archive} contains an encrypted member, {info.filename}:", "decrypt the archive first"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
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
        named: SourceFiles,
        packed: bool,
        file_index: NDArray[np.int32],
        members: Sequence[Member],
    ) -> None:
        variant = named.key if packed else ""
        super().__init__(named.files, file_index, packed or named.files.remote, variant)
        # Of shape (images, 5): the numbers of `Member` from ``start`` to ``deflated``.
        self._numbers = np.array([member[1:6] for member in members], dtype=np.int64)
        self._problems = {
            item: member.problem for item, member in enumerate(members) if member.problem
        }

    def content(self, item: int, stream: IO[bytes]) -> bytes:
        if item in self._problems:
            raise ContentError(self._problems[item])
        start, length, size, crc, deflated = self._numbers[item].tolist()
        if size < 0:
            return read_extent(stream, start, length)
        content = read_extent(stream, content_offset(start, stream), length)
        if deflated:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            except zlib.error as error:
                raise ContentError(f"the archive is damaged: {error}") from None
        if len(content) != size or zlib.crc32(content) != crc:
            raise ContentError("the archive is damaged: this member's checksum does not match")
        return content

    def open_stream(self, handle: BinaryIO, file: int) -> IO[bytes]:
        return _decompress(handle) if self.in_order else handle


def member_offset(info: zipfile.ZipInfo, handle: IO[bytes]) -> int:
    """Return the position in the archive of the first byte of a member that is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ValueError(f"its record {info.filename} is not where the archive's directory says")
    return content_offset(info.header_offset, handle)


def content_offset(position: int, handle: IO[bytes]) -> int:
    """Return the position of the content of the member whose local header is at a position."""
    handle.seek(position)
    header = handle.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(b"PK\x03\x04"):
        raise ContentError("the archive is damaged: this member is not where the directory says")
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    return position + _HEADER + int(name_length + extra_length)


# --- tar ------------------------------------------------------------------------------------------

# Functions that open compressed files, by the first bytes of such a file.
_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
# Maximum number of padding bytes at the end of an archive; up to 10 KiB are usual.
_MAX_PADDING = 1 << 16
_METADATA_TYPES = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)


class _Header(tarfile.TarInfo):
    """A member's header with a plausible size, which tarfile does not check."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        info = super().frombuf(buf, encoding, errors)
        # An extended header holds a member's long name, times and owner.
        if info.size < 0 or (info.type in _METADATA_TYPES and info.size > 1 << 20):
            raise ValueError(f"a header states a size of {info.size} bytes")
        return info


def _decompress(handle: BinaryIO) -> IO[bytes]:
    """Return the contents of a compressed archive; the same object if it is not compressed."""
    handle.seek(0)
    head = handle.read(8)
    handle.seek(0)
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            stream: IO[bytes] = opener(handle)
            return stream
    return handle


def _list_tar(key: str, handle: BinaryIO, passed_over: IgnoredFiles) -> Iterator[Member]:
    for info in _walk(_decompress(handle)):
        name = info.name.removeprefix("./")
        is_link = info.islnk() or info.issym()
        if not (info.isreg() or is_link) or not passed_over.accept(name, key):
            continue
        problem = ""
        if is_link:
            problem = (
                f"it is a link to {info.linkname}: create the archive again with --dereference and "
                "--hard-dereference"
            )
        elif info.issparse():
            problem = "it is a sparse file: create the archive again without --sparse"
        yield Member(name, info.offset_data, info.size, problem=problem)


def _walk(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield all members in stored order, then check the end mark, which tarfile does not
    require.
    """
    last = -1
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        # Python 3.10 fails to look for the first member of an empty archive.
        while archive.offset and (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # there may be a million
            if info.offset <= last or info.size < 0:
                raise ValueError(f"the header at byte {last} points backwards")
            last = info.offset
            yield info
        stream.seek(archive.offset)
    rest = stream.read(_MAX_PADDING + 1)
    if not tarfile.BLOCKSIZE <= len(rest) <= _MAX_PADDING or rest.strip(b"\0"):
        raise ValueError(
            f"its last member, up to byte {archive.offset}, must be followed by "
            f"{tarfile.BLOCKSIZE} to {_MAX_PADDING} zero bytes and nothing else: the archive was "
            "not downloaded completely, or was joined from archives that must be passed as "
            "separate files"
        )
