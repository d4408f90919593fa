"""A source as an ordered list of images, with names in little memory. Imports no torch."""

from __future__ import annotations

import abc
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.sources.census import NOTHING, PassedOver
from fidtool.sources.contents import GONE, Files, ForeignError, Read, Reader, Stamps, StoreError, bytes_of

Indices = Sequence[int] | NDArray[np.int64]
"""Positions in a set."""
_SAMPLED = 64
"""Number of contents that ranks compare."""
_BLOCK = 1 << 16
"""Number of images to process at a time."""
_PIECE = 1 << 16
"""Bytes of each, where contents can only be read in order."""


@dataclass(frozen=True)
class ImageSource:
    """What there is in a source.

    Attributes:
        path: the source as the user typed it.
        kind: what it is, for people: ``folder``, ``zip archive``.
        names: of its images, as the reader numbers them.
        prefix: what stands before a name where an image is shown.
        files: what lies on the disk or in the store.
        reader: what gets the images' contents.
        file_index: which of the files each image is in; None where every image is a file.
        listed: when the listing began, in nanoseconds since 1970.
        passed_over: what else is there.
        warning: what may not be intended, as a sentence; empty if there is nothing.
    """

    path: str
    kind: str
    names: Sequence[str]
    prefix: str
    files: Files
    reader: Reader
    file_index: NDArray[np.int32] | None
    listed: int
    passed_over: PassedOver = NOTHING
    warning: str = ""


@dataclass(frozen=True)
class NamedFiles:
    """Files that hold images, as a user named them.

    Attributes:
        path: what the user typed.
        files: the files that it means, all of one kind.
        prefix: what stands before a name where an image is shown.
        key: what the user typed after a colon; empty if nothing.
        value_range: what black and white are in an array of floats.
    """

    path: str
    files: Files
    prefix: str
    key: str = ""
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class ImageSet:
    """Images of one source, in sorted order until `draw` picks and permutes them.

    Attributes:
        source: what there is.
        stamps: see `fidtool.sources.contents.Stamps`; on rank zero alone.
        order: which images of the source these are: array of shape (images,).
    """

    source: ImageSource
    stamps: Stamps = field(repr=False)
    order: NDArray[np.integer] = field(repr=False)

    @classmethod
    def of(cls, source: ImageSource, by_name: Sequence[int] | None = None) -> ImageSet:
        """All images of a source.

        Args:
            source: what there is.
            by_name: its images sorted by name, where they are stored otherwise.
        """
        count = len(source.names)
        order = np.arange(count) if by_name is None else np.array(by_name, dtype=np.int64)
        return cls(source, source.files.stamps(), order.astype(np.uint32) if count < 2**32 else order)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def path(self) -> str:
        """The source as the user typed it."""
        return self.source.path

    @property
    def found(self) -> int:
        """Number of images in the source, before `draw`."""
        return len(self.source.names)

    @property
    def in_order(self) -> bool:
        """Whether they can only be read as they are stored, from first to last."""
        return self.source.reader.in_order

    def name(self, index: int) -> str:
        """Name of image ``index``."""
        return self.source.names[int(self.order[index])]

    @property
    def names(self) -> Iterator[str]:
        """The names of all, in this order."""
        return map(self.source.names.__getitem__, map(int, self.order))

    def file(self, index: int) -> str:
        """Path of image ``index``, for people."""
        return f"{self.source.prefix}{self.name(index)}"

    def summary(self) -> dict[str, str | int | bool]:
        """What the set is, as JSON has it."""
        return {
            "source": self.path,
            "kind": self.source.kind,
            "count": len(self),
            "found": self.found,
            "in_order": self.in_order,
            "passed_over": self.source.passed_over.words,
        }

    def in_words(self) -> str:
        """The same for people."""
        drawn = f"{len(self)} of {self.found}" if len(self) < self.found else str(self.found)
        way = "from first to last" if self.in_order else "in any order"
        others = self.source.passed_over.words
        rest = f"; passed over: {others}" if others else ""
        return f"{self.source.kind}, {drawn} images, read {way}{rest}"

    def read(self, indices: Indices) -> list[Read]:
        """Contents of these images, or why there are none."""
        return self.source.reader.read([int(self.order[index]) for index in indices])

    def contents(self, indices: Indices) -> Iterator[Read]:
        """The same, one after the other, with no more of them in memory than are worth asking for together."""
        step = self.source.reader.at_once
        for start in range(0, len(indices), step):
            yield from self.read(indices[start : start + step])

    def stream(self, indices: NDArray[np.int64]) -> Iterator[Read]:
        """Contents of these images, which are in the order in which they are stored."""
        return self.source.reader.stream(self.order[indices].astype(np.int64))

    def draw(self, num: int | None, seed: int) -> ImageSet:
        """The images in canonical order, all of them or the first ``num``.

        Raises:
            InputError: there are fewer than ``num`` images.
        """
        if num is not None and num > len(self):
            raise InputError(f"{option('num')} asks for {num} images but {self.path} has {len(self)}", setting="num")
        return replace(self, order=self.order[canonical_order(len(self), seed)[:num]])

    def only(self, names: Collection[str]) -> ImageSet:
        """The images of these names, in the order of this set."""
        kept = [index for index, name in enumerate(self.names) if name in names]
        return replace(self, order=self.order[kept])

    def identity(self) -> str:
        """SHA-256 of the source's real path, of the images' names in this order, and of how they are read."""
        sha = hashlib.sha256(os.fsencode(real_path(self.path)) + b"\0")
        sha.update(self.source.reader.variant.encode() + b"\0")
        sha.update(hashes_of(self.source.names))
        sha.update(self.order.astype("<i8").data)
        return sha.hexdigest()

    def stamps_of(self, indices: Indices) -> Stamps:
        """The stamps of these images' files: array of shape (images, 5)."""
        items = self.order[indices]
        found: Stamps = self.stamps[items if self.source.file_index is None else self.source.file_index[items]]
        return found

    def state(self) -> str:
        """SHA-256 of the stamps of the images' files: another one, or a changed one, is another state."""
        sha = hashlib.sha256()
        if self.source.file_index is not None:
            sha.update(np.ascontiguousarray(self.stamps, dtype="<i8").data)
            return sha.hexdigest()
        for start in range(0, len(self), _BLOCK):
            sha.update(self.stamps_of(range(start, min(start + _BLOCK, len(self)))).astype("<i8").data)
        return sha.hexdigest()

    def marks(self, batches: Iterable[Indices]) -> NDArray[np.uint64]:
        """A number for each batch that changes when one of its files does: of sizes, mtimes and ctimes.

        What a remount or another machine may change (inode, device) is left out.
        """
        found = [hashlib.sha256(np.ascontiguousarray(self.stamps_of(batch)[:, :3]).data) for batch in batches]
        return np.array([int.from_bytes(sha.digest()[:8], "little") for sha in found], dtype=np.uint64)

    def missing(self) -> list[str]:
        """Paths of the files that were not there when the source was listed."""
        return [self.source.files.paths[int(file)] for file in np.flatnonzero(self.stamps[:, 0] == GONE)]

    def changed(self) -> list[str]:
        """Paths of the files that are no longer as they were when the source was listed."""
        files = self.source.files
        return [files.paths[file] for file in files.changed(self.stamps)]

    def for_other_ranks(self) -> ImageSet:
        """What another rank needs of this list."""
        sizes = np.ascontiguousarray(self.stamps[:, 0])
        files, reader = self.source.files.expecting(sizes), self.source.reader.expecting(sizes)
        return replace(self, source=replace(self.source, files=files, reader=reader), stamps=self.stamps[:0])

    def sample(self) -> str:
        """SHA-256 of a few of the contents: ranks with other digests see other contents.

        Raises:
            InputError: files are not there, or have other sizes, on this rank alone.
        """
        sha = hashlib.sha256()
        for content in self._sampled(_SAMPLED // 8 if self.source.files.remote else _SAMPLED):
            if isinstance(content, (ForeignError, StoreError)):
                raise InputError(str(content))
            sha.update(hashlib.sha256(bytes_of(content)).digest())
        return sha.hexdigest()

    def _sampled(self, count: int) -> Iterator[Read]:
        if not self.in_order:
            yield from self.contents(range(min(count, len(self))))
            return
        files = self.source.files
        sizes = files.stamps()[:, 0].clip(0)
        ends = np.cumsum(sizes)
        for place in np.linspace(0, max(0, int(ends[-1]) - _PIECE), count).astype(np.int64):
            file = int(np.searchsorted(ends, place, side="right"))
            start = int(place - ends[file] + sizes[file])
            yield from files.fetch([(file, start, min(_PIECE, int(sizes[file]) - start))])


def hashes_of(names: Sequence[str]) -> bytes:
    """SHA-256 of some names, in their order."""
    sha = hashlib.sha256()
    for start in range(0, len(names), _BLOCK):
        sha.update(b"\0".join(map(os.fsencode, names[start : start + _BLOCK])) + b"\0")
    return sha.digest()


def absolute_prefix(prefix: str) -> str:
    """What stands before the images' names, for readers elsewhere on this machine."""
    if not prefix or "://" in prefix:
        return prefix
    return os.path.join(os.path.realpath(prefix), "") if prefix.endswith("/") else os.path.realpath(prefix)


def real_path(path: str) -> str:
    """A path on this machine without its links; a URL as it is."""
    return path if "://" in path else os.path.realpath(path)


_SEPARATOR = b"\0"
_NAMES_AT_ONCE = 1 << 16


class _LazyNames(Sequence[str]):
    """Names that are made when they are asked for."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self._at(each) for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._at(index % len(self))

    @abc.abstractmethod
    def _at(self, index: int) -> str:
        """Name ``index``, counted from the beginning."""


class Names(_LazyNames):
    """Strings end to end in one piece of memory: a name takes its own bytes and eight more.

    A tuple of strings would take three times as much, and each process that reads one would make a copy of the
    page it is on.

    Args:
        names: none of them with a null character in it; file names may hold bytes that are no UTF-8, in Python's way.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._text = _SEPARATOR.join(_pieces(names))
        places = np.flatnonzero(np.frombuffer(self._text, dtype=np.uint8) == 0)
        self._ends = np.append(places, len(self._text)) if self._text else np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def _at(self, index: int) -> str:
        start = int(self._ends[index - 1]) + 1 if index else 0
        return os.fsdecode(self._text[start : int(self._ends[index])])

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self._text.split(_SEPARATOR)) if self._text else iter(())

    def __getstate__(self) -> tuple[bytes, NDArray[Any]]:
        """The ends as lengths, which are small numbers: what travels to other ranks is the names and little more."""
        lengths = np.diff(self._ends, prepend=-1) - 1
        kind = np.uint8 if lengths.max(initial=0) < 256 else np.uint32
        return self._text, lengths.astype(kind)

    def __setstate__(self, state: tuple[bytes, NDArray[Any]]) -> None:
        self._text, lengths = state
        self._ends = np.cumsum(lengths.astype(np.int64) + 1) - 1


def _pieces(names: Iterable[str]) -> Iterator[bytes]:
    """Many names in each: of millions, single objects would take several times what the text does."""
    waiting = iter(names)
    while piece := list(itertools.islice(waiting, _NAMES_AT_ONCE)):
        yield _SEPARATOR.join(map(os.fsencode, piece))


def split_common_folder(paths: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that several paths share, with a slash behind it or empty, and what is left of each."""
    folders = [path.split("/")[:-1] for path in paths]
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    prefix = "".join(f"{level[0]}/" for level in shared)
    return prefix, [path[len(prefix) :] for path in paths]


class Prefixed(_LazyNames):
    """Other names with the same prefix.

    Args:
        prefix: the prefix.
        names: the names.
    """

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        self._prefix, self._names = prefix, names

    def __len__(self) -> int:
        return len(self._names)

    def _at(self, index: int) -> str:
        return f"{self._prefix}{self._names[index]}"

    def __iter__(self) -> Iterator[str]:
        return (f"{self._prefix}{name}" for name in self._names)


class Numbered(_LazyNames):
    """The names of things that have none: ``[0]``, ``[1]`` and so on; nothing is kept."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> str:
        return f"[{index}]"


def canonical_order(count: int, seed: int = 0) -> NDArray[np.int64]:
    """A fixed pseudo-random permutation of ``range(count)``; every prefix of it is a fair sample.

    Index ``i`` gets SplitMix64's output at position ``i`` of the stream that ``seed`` starts (Steele, Lea & Flood,
    "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), and the indices are sorted by it. The generator
    is written out here because no library promises that its permutations stay the same from version to version.

    Args:
        count: number of images, at least 0.
        seed: any integer; equal seeds give equal permutations on every machine.

    Returns:
        int64 array of shape (count,).
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(_mix(seed))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The outputs are distinct (SplitMix64's finaliser is a bijection), so the sort has no ties.
    return np.argsort(z, kind="stable").astype(np.int64)


def _mix(seed: int) -> int:
    """Spreads neighbouring seeds over 64 bits: unmixed, seed k + constant would give seed k's stream, shifted."""
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & mask
    return (z ^ (z >> 32)) * 0xDABA0B6EB09322E3 & mask
