"""Zip archives, and what they have in common with others: a listing of members. Imports no torch."""

from __future__ import annotations

import posixpath
import struct
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
from fidtool.sources.census import HEAD, Census, PassedOver
from fidtool.sources.contents import MOST_BYTES, ContentError, Extent, ExtentReader, Files, Read, Reader, readable
from fidtool.sources.image_set import ImageSet, ImageSource, NamedFiles, Names, split_common_folder

Place = TypeVar("Place")

_MOST_KINDS = 8
"""Largest number of images in a sample; where names have more endings, an ending does not mean a kind of image."""
_MANY = 0.5
"""What share of the samples must have each kind of image; a few may be incomplete."""


@dataclass(frozen=True, slots=True)
class Member(Generic[Place]):
    """An image in an archive: its name, and where it lies."""

    name: str
    place: Place


@dataclass(frozen=True)
class Listing(Generic[Place]):
    """The images in some archives.

    Attributes:
        names: names of the images, as stored; the archive's name is in front where there are several.
        places: where each lies.
        file_index: which of the archives each is in: int32 array of shape (images,).
        passed_over: what else there is.
        began: when, in nanoseconds since 1970.
    """

    names: Names
    places: list[Place]
    file_index: NDArray[np.int32]
    passed_over: PassedOver
    began: int

    def image_set(self, named: NamedFiles, kind: str, reader: Reader) -> ImageSet:
        """The images sorted by name, archive by archive."""
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
    members: Callable[[str, BinaryIO, Census], Iterable[Member[Place]]],
    stored: Callable[[Place], int],
) -> Listing[Place]:
    """Lists the images in all ``files``.

    Args:
        path: the source as the user typed it.
        kind: what an archive is, for people.
        files: the archives.
        members: lists those of one: called with its path, itself and a census. What is no image, by its name, is told
            to the census; of a format that holds images alone there is nothing to tell.
        stored: sort key of a place, in the order in which an archive stores its members.

    Raises:
        InputError: an archive that cannot be read, names that occur twice in one, or no images.
    """
    began = time.time_ns()
    census = Census(looks=not files.remote)  # each look would be a request
    names: list[str] = []
    places: list[Place] = []
    file_index: list[NDArray[np.int32]] = []
    labels = split_common_folder(files.paths)[1]
    for file, archive in enumerate(files.paths):
        with readable(archive), files.open(file) as handle:
            found = list(members(archive, handle, census))
            if any("\0" in member.name for member in found):
                raise ValueError("a member's name holds a zero")
        _refuse_duplicates(archive, found)
        found.sort(key=lambda member: stored(member.place))
        prefix = f"{labels[file]}/" if len(labels) > 1 else ""
        names += [f"{prefix}{member.name}" for member in found]
        places += [member.place for member in found]
        file_index.append(np.full(len(found), file, dtype=np.int32))
    if not names:
        raise InputError(census.nothing_found(path, kind))
    return Listing(Names(names), places, np.concatenate(file_index), census.found(), began)


def refuse_several(path: str, names: Sequence[str]) -> None:
    """Raises an InputError where there are several kinds of images, and half of the samples or more have each of them.

    Kinds that begin with a digit are taken for numbers: ``cat.0.png``, ``cat.1.png``.
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


def _refuse_duplicates(archive: str, found: Sequence[Member[Place]]) -> None:
    # Of a million names a set would take more room than all that is kept of them.
    hashes = np.fromiter((hash(posixpath.normpath(member.name)) for member in found), np.int64, len(found))
    if len(np.unique(hashes)) == len(found):
        return
    name, times = Counter(posixpath.normpath(member.name) for member in found).most_common(1)[0]
    if times == 1:
        return
    raise InputError(
        f"{archive} holds {times} members named {name}: which one counts is anybody's guess",
        "make the archive anew, each name once",
    )


_HEADER = struct.Struct("<4s5H3L2H")
"""What stands before a member: signature, version, flags, method, time, date, checksum, sizes, lengths of the name and
of further fields (PKWARE's APPNOTE, 4.3.7)."""
_SIGNATURE = b"PK\x03\x04"
_LONGEST = _HEADER.size + 2 * 0xFFFF
"""Bytes that a header may take with its name and further fields; the directory does not know how many."""
_MOST = 2**60
_ENCRYPTED = 0x1
_RARE_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 98: "ppmd"}
_METHODS = {zipfile.ZIP_STORED: False, zipfile.ZIP_DEFLATED: True}

_PLACE = np.dtype(
    [("start", "<i8"), ("length", "<i8"), ("packed", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("deflated", "?")]
)


def list_zips(named: NamedFiles) -> ImageSet:
    """The images in zip archives.

    Args:
        named: the archives; for the key see `fidtool.sources.tars.list_tars`.

    Raises:
        InputError: an archive that is damaged, encrypted or compressed in a rare way, no images, or several in each
            sample.
    """
    listing = list_members(
        named.path, "zip archive", named.files, partial(_members, named.key), stored=lambda place: place[0]
    )
    if not named.key:
        refuse_several(named.path, listing.names)
    places = np.array(listing.places, dtype=_PLACE)
    reader = ZipReader(named.files, listing.file_index, places)
    return listing.image_set(named, "zip archive", reader)


def _members(
    key: str, path: str, handle: BinaryIO, census: Census
) -> Iterator[Member[tuple[int, int, int, int, int, bool]]]:
    with open_zip(handle) as archive:
        starts = sorted({info.header_offset for info in archive.infolist()} | {archive.start_dir})
        for info in archive.infolist():
            name = info.filename.replace("\\", "/")
            if not info.is_dir() and census.takes(name, f"{path}/{name}", partial(_head, archive, info), key):
                check_member(path, info)
                start = info.header_offset
                if start < 0:
                    raise zipfile.BadZipFile("its beginning is missing")
                if max(start, info.compress_size, info.file_size) > _MOST:
                    raise zipfile.BadZipFile(f"{name} claims more bytes than any disk has")
                following = starts[bisect_right(starts, start)] if start < archive.start_dir else start
                length = min(following - start, _LONGEST + info.compress_size)
                deflated = _METHODS[info.compress_type]
                yield Member(name, (start, length, info.compress_size, info.file_size, info.CRC, deflated))


def _head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member's first bytes; none where it cannot be read: it is encrypted, compressed in a rare way or damaged."""
    try:
        with archive.open(info) as member:
            return member.read(HEAD)
    except Exception:  # damaged archives raise a dozen kinds
        return b""


def open_zip(handle: BinaryIO) -> zipfile.ZipFile:
    """A zip archive; what is no file of that kind raises as zipfile has it."""
    return zipfile.ZipFile(handle)


def check_member(archive: str, info: zipfile.ZipInfo) -> None:
    """Refuses a member that nobody could read here.

    Raises:
        InputError: it is encrypted, or compressed in a rare way.
    """
    if info.flag_bits & _ENCRYPTED:
        raise InputError(
            f"{archive} is encrypted ({info.filename} is):", "decrypt it first, fidtool asks for no password"
        )
    if info.compress_type not in _METHODS:
        method = _RARE_METHODS.get(info.compress_type, f"method {info.compress_type}")
        raise InputError(
            f"{archive} is compressed with {method} ({info.filename} is):", "use deflate", "store the images"
        )


class ZipReader(ExtentReader):
    """Reads members of zip archives.

    Args:
        files: the archives.
        file_index: which of them each member is in.
        places: of each member where it lies: array of shape (members,).
    """

    def __init__(self, files: Files, file_index: NDArray[np.int32], places: NDArray[np.void]) -> None:
        super().__init__(files)
        self._file_index, self._places = file_index, places

    def extent(self, item: int) -> Extent:
        place = self._places[item]
        return int(self._file_index[item]), int(place["start"]), int(place["length"])

    def unpack(self, item: int, data: bytes) -> Read:
        return _unpacked(data, self._places[item])

    def expecting(self, sizes: NDArray[np.int64]) -> ZipReader:
        return ZipReader(self._files.expecting(sizes), self._file_index, self._places)


def _unpacked(data: bytes, place: np.void) -> Read:
    packed, size = int(place["packed"]), int(place["size"])
    if size > MOST_BYTES:
        return ContentError(f"it has {size} bytes, and no image file has more than {MOST_BYTES}")
    start = body_start(data)
    if start is None or start + packed > len(data):
        return ContentError("the archive is damaged: where this member should be there is none")
    content = data[start : start + packed]
    if place["deflated"]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflate.decompress(content, size + 1)
        except zlib.error as error:
            return ContentError(f"the archive is damaged: {error}")
        except MemoryError as error:
            return error
    if len(content) != size or zlib.crc32(content) != int(place["crc"]):
        return ContentError("the archive is damaged: what it holds of this member has another checksum")
    return content


def body_start(data: bytes) -> int | None:
    """Where a member's bytes begin behind its header; None where ``data`` does not begin with one."""
    if len(data) < _HEADER.size:
        return None
    signature, *_, name, further = _HEADER.unpack_from(data)
    return _HEADER.size + name + further if signature == _SIGNATURE else None
