"""Zip archives, and the listing of members that zip and tar archives share."""

from __future__ import annotations

import posixpath
import struct
import tarfile
import time
import zipfile
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.census import Census, PassedOver
from fidtool.sources.contents import MOST_BYTES, ContentError, Extent, Files, Read, opened, too_large
from fidtool.sources.image_set import ImageSet, ImageSource, NamedFiles, Names, split_common_folder
from fidtool.sources.readers import ExtentReader, Reader
from fidtool.sources.signatures import HEAD, refuse_dataset

Location = TypeVar("Location")

_MOST_KINDS = 8
"""Maximum number of images in a sample. More different endings of names do not denote kinds of images."""
_MANY = 0.5
"""Smallest fraction of the samples that must have each kind of image; some samples may be incomplete."""


@dataclass(frozen=True, slots=True)
class Member(Generic[Location]):
    """An image in an archive: its name and its location."""

    name: str
    location: Location


@dataclass(frozen=True)
class Listing(Generic[Location]):
    """The images in one or more archives, in stored order.

    Attributes:
        names: names of the images, prefixed with the archive's name if there are several archives.
        file_index: index of each image's archive, int32 array of shape (images,).
        began: time at which listing began, in nanoseconds since 1970.
    """

    names: Names
    locations: list[Location]
    file_index: NDArray[np.int32]
    passed_over: PassedOver
    began: int

    def image_set(self, named: NamedFiles, kind: str, reader: Reader) -> ImageSet:
        """Returns the images as a set, sorted by archive and name."""
        names = list(self.names)
        files = self.file_index.tolist()
        by_name = sorted(range(len(names)), key=lambda image: (files[image], names[image]))
        index, began, passed_over = self.file_index, self.began, self.passed_over
        source = ImageSource(named.path, kind, self.names, named.prefix, named.files, reader, index, began, passed_over)
        return ImageSet.of(source, by_name)


def list_members(
    path: str,
    kind: str,
    files: Files,
    members: Callable[[str, BinaryIO, Census], Iterable[Member[Location]]],
    stored: Callable[[Location], int],
) -> Listing[Location]:
    """Lists the images in all ``files``.

    Args:
        members: lists the images in one archive. It is called with the archive's path, the open file and a census, and
            reports to the census every member whose name is not an image's.
        stored: sort key of a location, in the order in which an archive stores its members.
    """
    began = time.time_ns()
    census = Census()
    names: list[str] = []
    locations: list[Location] = []
    file_index: list[NDArray[np.int32]] = []
    labels = split_common_folder(files.paths)[1]
    for file, archive in enumerate(files.paths):
        with opened(files, file) as handle:
            found = list(members(archive, handle, census))
            if any("\0" in member.name for member in found):
                raise ValueError("a member's name contains a null character")
        _refuse_duplicates(archive, found)
        found.sort(key=lambda member: stored(member.location))
        prefix = f"{labels[file]}/" if len(labels) > 1 else ""
        names += [f"{prefix}{member.name}" for member in found]
        locations += [member.location for member in found]
        file_index.append(np.full(len(found), file, dtype=np.int32))
    if not names:
        if census.passed_over:
            with opened(files, 0) as handle:
                refuse_dataset(path, _heads(handle))
        raise InputError(census.nothing_found(path, kind))
    return Listing(Names(names), locations, np.concatenate(file_index), census.found(), began)


def _heads(handle: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yields the names and the first bytes of the files in an archive."""
    if zipfile.is_zipfile(handle):
        with zipfile.ZipFile(handle) as zipped:
            for member in zipped.infolist():
                with zipped.open(member) as file:
                    yield member.filename, file.read(HEAD)
        return
    handle.seek(0)
    with tarfile.open(fileobj=handle) as tarred:
        for info in tarred:
            if info.isreg() and (data := tarred.extractfile(info)):
                yield info.name, data.read(HEAD)


def refuse_several(path: str, names: Sequence[str]) -> None:
    """Refuses samples that consist of several images, such as WebDataset's ``input.png`` and ``output.png``.

    The kind of an image is the part of its name after the first dot. Samples are refused if there are several kinds and
    at least half of the samples have each of them. If all kinds begin with a digit, they are numbers (``cat.0.png``,
    ``cat.1.png``), and nothing is refused.
    """
    kinds: Counter[str] = Counter()
    samples: set[tuple[str, str]] = set()
    for name in names:
        folder, _, last = name.rpartition("/")
        stem, _, kind = last.partition(".")
        samples.add((folder, stem))
        kinds[kind] += 1
        if len(kinds) > _MOST_KINDS:
            return
    named = not all(kind[:1].isdigit() for kind in kinds)
    if len(kinds) > 1 and len(samples) > 1 and named and min(kinds.values()) >= _MANY * len(samples):
        has = ", ".join(sorted(kinds))
        raise InputError(
            f"each sample in {path} has {len(kinds)} images ({has}):", f"pick one as in {path}:{min(kinds)}"
        )


def _refuse_duplicates(archive: str, found: Sequence[Member[Location]]) -> None:
    # Hashes, because a set of a million names would take more memory than the rest of the listing.
    hashes = np.fromiter((hash(posixpath.normpath(member.name)) for member in found), np.int64, len(found))
    if len(np.unique(hashes)) == len(found):
        return
    name, times = Counter(posixpath.normpath(member.name) for member in found).most_common(1)[0]
    if times == 1:
        return
    raise InputError(
        f"{archive} contains {times} members named {name}:", "create the archive again with each name once"
    )


_HEADER = struct.Struct("<4s5H3L2H")
"""A member's local header: signature, version, flags, method, time, date, checksum, sizes, lengths of the name and of
the extra field (PKWARE's APPNOTE, 4.3.7)."""
_SIGNATURE = b"PK\x03\x04"
_LONGEST = _HEADER.size + 2 * 0xFFFF
"""Largest size of a local header with its name and extra field; the central directory does not state the size."""
_MOST = 2**60
_ENCRYPTED = 0x1
_RARE_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 98: "ppmd"}
_METHODS = {zipfile.ZIP_STORED: False, zipfile.ZIP_DEFLATED: True}

_LOCATION = np.dtype(
    [("start", "<i8"), ("length", "<i8"), ("packed", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("deflated", "?")]
)


def list_zips(named: NamedFiles) -> ImageSet:
    """Lists the images in zip archives. For the key see `fidtool.sources.tars.list_tars`."""
    listing = list_members(
        named.path, "zip archive", named.files, partial(_members, named.key), stored=lambda location: location[0]
    )
    if not named.key:
        refuse_several(named.path, listing.names)
    locations = np.array(listing.locations, dtype=_LOCATION)
    reader = ZipReader(named.files, listing.file_index, locations)
    return listing.image_set(named, "zip archive", reader)


def _members(
    key: str, path: str, handle: BinaryIO, census: Census
) -> Iterator[Member[tuple[int, int, int, int, int, bool]]]:
    with zipfile.ZipFile(handle) as archive:
        starts = sorted({info.header_offset for info in archive.infolist()} | {archive.start_dir})
        for info in archive.infolist():
            name = info.filename.replace("\\", "/")
            if not info.is_dir() and census.takes(name, key):
                check_member(path, info)
                start = info.header_offset
                if start < 0:
                    raise zipfile.BadZipFile("its beginning is missing")
                if max(start, info.compress_size, info.file_size) > _MOST:
                    raise zipfile.BadZipFile(f"{name} has an impossible size or position")
                following = starts[bisect_right(starts, start)] if start < archive.start_dir else start
                length = min(following - start, _LONGEST + info.compress_size)
                deflated = _METHODS[info.compress_type]
                yield Member(name, (start, length, info.compress_size, info.file_size, info.CRC, deflated))


def check_member(archive: str, info: zipfile.ZipInfo) -> None:
    """Checks that a member can be read."""
    if info.flag_bits & _ENCRYPTED:
        raise InputError(f"{archive} contains an encrypted member, {info.filename}:", "decrypt the archive first")
    if info.compress_type not in _METHODS:
        method = _RARE_METHODS.get(info.compress_type, f"method {info.compress_type}")
        raise InputError(
            f"{archive} contains a member compressed with {method}, {info.filename}:",
            "use deflate",
            "store the images uncompressed",
        )


class ZipReader(ExtentReader):
    """Reads members of zip archives."""

    def __init__(self, files: Files, file_index: NDArray[np.int32], locations: NDArray[np.void]) -> None:
        super().__init__(files)
        self._file_index, self._locations = file_index, locations

    def extent(self, item: int) -> Extent:
        location = self._locations[item]
        return int(self._file_index[item]), int(location["start"]), int(location["length"])

    def unpack(self, item: int, data: bytes) -> Read:
        location = self._locations[item]
        packed, size = int(location["packed"]), int(location["size"])
        if size > MOST_BYTES:
            return too_large(size)
        start = body_start(data)
        if start is None or start + packed > len(data):
            return ContentError("the archive is damaged: this member is not where the directory says")
        content = data[start : start + packed]
        if location["deflated"]:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                content = inflate.decompress(content, size + 1)
            except zlib.error as error:
                return ContentError(f"the archive is damaged: {error}")
            except MemoryError as error:
                return error
        if len(content) != size or zlib.crc32(content) != int(location["crc"]):
            return ContentError("the archive is damaged: this member's checksum does not match")
        return content


def first_member(head: bytes) -> bytes:
    """Returns the name of the first member of a zip archive with these first bytes; empty if it is none."""
    if len(head) < _HEADER.size:
        return b""
    signature, *_, length, _ = _HEADER.unpack_from(head)
    return head[_HEADER.size : _HEADER.size + length] if signature == _SIGNATURE else b""


def stored_at(info: zipfile.ZipInfo, handle: BinaryIO) -> int:
    """Returns the position in the archive of the first byte of a member that is stored as it is."""
    handle.seek(info.header_offset)
    start = body_start(handle.read(_HEADER.size))
    if start is None or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ValueError(f"its record {info.filename} is not where the archive's directory says")
    return info.header_offset + start


def body_start(data: bytes) -> int | None:
    """Returns the offset of a member's content in ``data``; None if ``data`` does not begin with a local header."""
    if len(data) < _HEADER.size:
        return None
    signature, *_, name, further = _HEADER.unpack_from(data)
    return _HEADER.size + name + further if signature == _SIGNATURE else None
