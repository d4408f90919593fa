"""Ordered lists of the images in a source, with memory-efficient names."""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, InputError, ProgramError, ResultWarning, option
from fidtool.names import format_count
from fidtool.sources.contents import (
    MISSING_FILE,
    BadFile,
    Files,
    Numbers,
    Read,
    Reader,
    ValueRange,
    comparable_bytes,
)
from fidtool.sources.crops import Crop
from fidtool.sources.kinds import IgnoredFiles, may_have_floats
from fidtool.system.local_files import read_with_timeout

T = TypeVar("T")

Indices = Sequence[int] | NDArray[np.int64]
"""Positions in a set."""
# Number of samples of the contents that ranks compare.
_SAMPLE_COUNT = 64
# Number of names to hash at a time, and bytes per sample of what can only be read sequentially.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class SourceFiles:
    """Files that contain images, as named by the caller; ``key`` is the part of ``path`` after a
    colon, if any.
    """

    path: str
    files: Files
    prefix: str
    key: str
    value_range: ValueRange | None


class Sampling(NamedTuple):
    """Which images of a set are used.

    Attributes:
        num: their number; None for all.
        seed: seed of a random sample, and of the order of the images.
        first: whether the first images are used, in a list the first lines, and not a random
            sample.
        setting: name of the setting that ``num`` is from.
        other: name of the setting that samples only the sets that ``num`` is also for, if it is for
            all.
    """

    num: int | None
    seed: int
    first: bool = False
    setting: str = "num"
    other: str = ""

    def too_few_error(self, has: str) -> InputError:
        """Return the error for a set that has fewer images, as ``has`` says."""
        problem = f"{option(self.setting)} asks for {self.num} images but {has}"
        remedies = []
        if self.other:
            remedies.append(f"pass {option(self.other, self.num)} instead")
        return InputError(problem, *remedies)


@dataclass(frozen=True)
class SetPart:
    """Which images of a set are used, or statistics are of, if these are not all.

    Attributes:
        name: name of the part, such as ``3/16``.
        whole: SHA-256 of the whole set, see `ImageSet.digest`.
        total: number of images in the whole set.
        places: places of the part's images among these, ascending int64 array of shape (images,).
        skipped: places of those that were skipped as unreadable, of which there are no statistics.
    """

    name: str
    whole: str
    total: int
    places: NDArray[np.int64] = field(repr=False, compare=False)
    skipped: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False, compare=False
    )


@dataclass(frozen=True)
class ImageSet:
    """Images of one source. They are sorted by name until `draw` selects and permutes them.

    Attributes:
        path: the source as passed by the caller, or the caller's name for it.
        kind: display name of its kind, such as ``folder`` or ``zip archive``.
        stored: names of all images in the source, in the reader's numbering.
        prefix: prefix of a name where an image is shown.
        order: number in the source of each image, integer array of shape (images,).
        warning: a warning about the source; None if there is none.
        lines: line of each image in a list of paths, which is sorted; None for other sources.
        listed: time at which listing began, in nanoseconds since 1970.
        crop: how the images are cropped and resized after they are read; None if they are not.
        floats: how the floats of encoded images become bytes; None if it is not specified.
        partner: the images of REAL that belong to these, in the same order; None unless pairs are
            compared.
        part: which images of the set these are; None if they are all that `draw` returned.
        place: the source, if ``path`` is the caller's name for it; else empty.
    """

    path: str
    kind: str
    stored: Sequence[str]
    prefix: str
    reader: Reader
    order: NDArray[np.integer] = field(repr=False)
    passed_over: IgnoredFiles = field(default_factory=IgnoredFiles)
    warning: ResultWarning | None = None
    lines: NDArray[np.int64] | None = field(default=None, repr=False)
    listed: int = 0
    crop: Crop | None = None
    floats: ValueRange | None = None
    partner: ImageSet | None = field(default=None, repr=False)
    part: SetPart | None = None
    place: str = ""

    @property
    def source(self) -> str:
        """The source as passed by the caller."""
        return self.place or self.path

    @property
    def files(self) -> Files:
        """The files that contain the images."""
        return self.reader.files

    @property
    def has_floats(self) -> bool:
        """Whether images may be of floats, whose bytes depend on a value range."""
        if self.reader.encoded and any(map(may_have_floats, self.stored)):
            return True
        return self.reader.scaled

    def __len__(self) -> int:
        return len(self.order)

    @property
    def whole_count(self) -> int:
        """Number of images of the set, of which these may be a part."""
        return len(self) if self.part is None else self.part.total

    def file(self, index: int) -> str:
        """Return the path of image ``index``, for messages."""
        return f"{self.prefix}{self.stored[int(self.order[index])]}"

    def read(self, indices: Indices) -> Iterator[Read]:
        """Yield the contents of these images, with errors in place of those that cannot be read.

        If images can only be read sequentially, the indices must be in stored order.
        """
        return self.reader.read(self.order[indices].astype(np.int64))

    def run_with_timeout(self, work: Callable[[], T], seconds: float) -> T:
        """Return what ``work`` returns, which reads images; see
        `fidtool.system.local_files.read_with_timeout`.

        Objects of a program are read in its own thread, as it may expect.
        """
        if not self.files.paths:
            return work()
        return read_with_timeout(f"images of {self.path}", work, seconds)

    def for_processes(self, processes: int) -> ImageSet:
        """Return the images for one of so many processes that read many of them at the same
        time.
        """
        partner = None if self.partner is None else self.partner.for_processes(processes)
        return replace(self, reader=self.reader.for_processes(processes), partner=partner)

    def draw(self, sampling: Sampling) -> ImageSet:
        """Return the images in canonical order: all of them, or a sample. An InputError if there
        are too few.
        """
        num = sampling.num
        order = self.order
        if num is not None and num > len(self):
            raise sampling.too_few_error(f"{self.path} has {len(self)}")
        if sampling.first and self.lines is not None:  # a list is the user's own order
            order = order[np.sort(np.argsort(self.lines)[:num])]
        elif sampling.first:
            order = order[:num]
        return replace(self, order=order[canonical_order(len(order), sampling.seed)[:num]])

    def take_part(self, part: SetPart) -> ImageSet:
        """Return the images of a part of this set."""
        return replace(self, order=self.order[part.places], part=part)

    def drop_skipped(self, skipped: Collection[BadFile]) -> ImageSet:
        """Return the images without those that were skipped, whose places the part states."""
        if not skipped:
            return self
        files = {bad_file.file for bad_file in skipped}
        used = np.array([self.file(index) not in files for index in range(len(self))])
        part = self.part
        if part is not None:
            part = replace(part, places=part.places[used], skipped=part.places[~used])
        return replace(self, order=self.order[used], part=part)

    def numbers(self) -> Numbers:
        """Return the number in stored order of each image, int64 array of shape (images,)."""
        return self.order.astype(np.int64)

    def stamps(self) -> NDArray[np.int64]:
        """Return the size and mtime, or remote version, of the file of each image.

        It is an int64 array of shape (images, 2); (0, 2) if they are not known.
        """
        if not self.files.versioned:
            return np.zeros((0, 2), dtype=np.int64)
        return self.files.stamps[self._file_indices(self.order), :2]

    def _file_indices(self, numbers: NDArray[np.integer]) -> NDArray[np.integer]:
        file_index: NDArray[np.integer] | None = self.reader.file_index
        return numbers if file_index is None else file_index[numbers]

    def identity(self) -> str:
        """Return the SHA-256 of the source's real path, the images' names, order and crop, and the
        variant.
        """
        return self._hash(os.fsencode(real_path(self.source)) + b"\0")

    def digest(self) -> str:
        """Return the SHA-256 of the same without the path, of the sizes of the files, and of a
        sample of the contents.

        Copies of a set have the same, wherever they are. Of remote files, it is of their versions
        as well.
        """
        columns = 2 if self.files.remote else 1
        sha = hashlib.sha256(self.files.stamps[:, :columns].astype("<i8").tobytes())
        sha.update(self.hash_sample().encode())
        return self._hash(sha.digest())

    def _hash(self, begin: bytes) -> str:
        sha = hashlib.sha256(begin)
        sha.update(self.reader.variant.encode() + b"\0")
        sha.update(hash_names(self.stored))
        sha.update(self.order.astype("<i8").data)
        if self.crop is not None:
            sha.update(f"framed by {self.crop}".encode())
        if self.floats is not None and not self.reader.variant and self.has_floats:
            sha.update(self.floats.variant.encode())
        return sha.hexdigest()

    def hash_stamps(self) -> str:
        """Return the SHA-256 of the stamps of the images' files. It differs if files are added,
        removed or changed.
        """
        stamps = self.files.stamps
        if self.reader.file_index is None:
            stamps = stamps[self.order]
        return hashlib.sha256(stamps.astype("<i8").tobytes()).hexdigest()

    def hash_files(self, indices: Indices) -> int:
        """Return a hash of the sizes, mtimes and ctimes of the files of these images, below
        2 ** 64.

        Inodes and devices are excluded, because a remount or a different machine may change them.
        """
        stamps = self.files.stamps[self._file_indices(self.order[indices]), :3]
        digest = hashlib.sha256(stamps.tobytes()).digest()
        mark = int.from_bytes(digest[:8], "little")
        if self.partner is not None:
            # Times 3, so that the hashes of two sets in one file do not cancel.
            mark ^= (3 * self.partner.hash_files(indices)) % 2**64
        return mark

    def missing_lines(self) -> list[str]:
        """Return the lines of a list, with their paths, whose files did not exist when the source
        was listed.
        """
        if self.lines is None:
            return []
        gone = np.flatnonzero(self.files.stamps[:, 0] == MISSING_FILE).tolist()
        return [f"line {self.lines[file]}: {self.files.paths[file]}" for file in gone]

    def change_warning(self, seconds: float) -> ResultWarning | None:
        """Return a warning if files have changed since they were listed, or if this is unknown;
        else None.

        ``seconds`` is how long the storage may take.
        """
        try:
            changed = self.run_with_timeout(self.files.find_changed, seconds)
        except FidtoolError as error:
            text = f"cannot check whether {self.path} changed while it was read: {error}"
        else:
            if not changed:
                return None
            were = "it was" if len(changed) == 1 else "they were"
            text = (
                f"{format_count(len(changed), 'file')} of {self.path} changed while {were} read, "
                f"including {changed[0]}: the results may mix old and new images; run again"
            )
        return ResultWarning("", text, "medium")

    def hash_sample(self) -> str:
        """Return the SHA-256 of a sample of the contents, by which ranks check that they see the
        same images.
        """
        sha = hashlib.sha256()
        for content in self._read_samples():
            if isinstance(content, FidtoolError) and not isinstance(content, ProgramError):
                raise content
            sha.update(hashlib.sha256(comparable_bytes(content)).digest())
        return sha.hexdigest()

    def _read_samples(self) -> Iterator[Read]:
        files = self.files
        if not self.reader.in_order:
            most = _SAMPLE_COUNT // 8 if files.remote else _SAMPLE_COUNT
            yield from self.read(range(min(most, len(self))))
            return
        if files.remote:  # each rank downloads only what it reads, and compares its size
            return
        sizes = files.stamps[:, 0].clip(0).tolist()
        blocks = max(1, _SAMPLE_COUNT // len(sizes))  # of each file
        for file in range(0, len(sizes), 1 + len(sizes) // _SAMPLE_COUNT):
            last = max(0, sizes[file] - _BLOCK)
            for start in np.linspace(0, last, blocks).astype(np.int64).tolist():
                yield files.read_bytes(file, start, min(_BLOCK, sizes[file] - start))


def hash_names(names: Sequence[str]) -> bytes:
    """Return the SHA-256 of these names; their order matters."""
    sha = hashlib.sha256()
    for start in range(0, len(names), _BLOCK):
        sha.update(b"\0".join(map(os.fsencode, names[start : start + _BLOCK])) + b"\0")
    return sha.digest()


def real_path(path: str) -> str:
    """Return a local path with symbolic links resolved; a URL is returned unchanged."""
    return path if "://" in path else os.path.realpath(path)


class Names(Sequence[str]):
    """Names stored contiguously in memory; each takes eight bytes in addition to its own.

    A tuple of strings would take three times as much. Forked workers share this memory, whereas the
    reference count of a string changes when it is read, and so copies its memory page. They must
    not contain null characters.
    """

    def __init__(self, names: Iterable[str]) -> None:
        text = bytearray()  # rather than a list of millions of objects, which are joined
        for name in names:
            text += os.fsencode(name) + b"\0"
        self._text = bytes(text)
        self._prefix = ""

    @cached_property
    def _end_offsets(self) -> NDArray[np.intp]:
        return np.flatnonzero(np.frombuffer(self._text, dtype=np.uint8) == 0)

    def __getstate__(self) -> dict[str, Any]:
        # Other ranks find the ends again.
        return {name: value for name, value in vars(self).items() if name != "_end_offsets"}

    def with_prefix(self, prefix: str) -> Names:
        """Return these names after a prefix. They share the memory."""
        names = copy.copy(self)
        names._prefix = prefix
        return names

    def __len__(self) -> int:
        return len(self._end_offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        positions = range(len(self))[index]
        return self._at(positions) if isinstance(positions, int) else list(map(self._at, positions))

    def __iter__(self) -> Iterator[str]:
        return map(self._at, range(len(self)))

    def _at(self, index: int) -> str:
        start = int(self._end_offsets[index - 1]) + 1 if index else 0
        return self._prefix + os.fsdecode(self._text[start : int(self._end_offsets[index])])


class Numbered(Names):
    """Names for images without names: ``[0]``, ``[1]`` and so on. They take no memory."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> str:
        return f"[{index}]"


def check_name_order(problem: str, path: str, stored: Sequence[str], *remedies: str) -> None:
    """Refuse to rely on the order of names whose numbers have another order, such as 10.png before
    9.png.
    """
    if isinstance(stored, Numbered):
        return
    last: dict[str, tuple[list[int], str]] = {}
    for name in stored:
        numbers = list(map(int, re.findall(r"\d+", name)))
        alike = re.sub(r"\d+", "0", name)
        before, other = last.get(alike, ([], ""))
        if numbers < before:
            raise InputError(
                f"{problem}, and sorted by name {other} comes before {name} in {path}:",
                *remedies,
                "add leading zeros to the numbers",
            )
        last[alike] = (numbers, name)


def split_common_folder(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common folder of several paths, with a trailing slash or empty, and the rest of
    each path.
    """
    shared = os.path.commonprefix(paths)  # noqa: RUF071 - it is cut at a slash
    prefix = shared[: shared.rfind("/") + 1]
    return prefix, [path[len(prefix) :] for path in paths]


def splitmix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the outputs for these states, see `canonical_order`. It is a bijection."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def canonical_order(count: int, seed: int = 0, first: int | None = None) -> NDArray[np.int64]:
    """Return a reproducible pseudo-random permutation of ``range(count)``. Every prefix of it is a
    random sample.

    Index ``i`` is assigned output ``i`` of the SplitMix64 stream that begins at ``seed`` (Steele,
    Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014), and the indices are
    sorted by these outputs. The generator is implemented here because libraries do not guarantee
    that their permutations stay the same in later versions. Only the ``first`` entries take less
    time; None is all.
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    # Unmixed, the stream of seed k + constant would be that of seed k, shifted by one position.
    mask = (1 << 64) - 1
    mixed = (seed * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & mask
    z += np.uint64((mixed ^ (mixed >> 32)) * 0xDABA0B6EB09322E3 & mask)
    z = splitmix64(z)
    # The outputs are distinct, so the sort has no ties.
    if first is None or first >= count:
        return np.argsort(z, kind="stable").astype(np.int64)
    smallest = np.argpartition(z, first)[:first]
    return smallest[np.argsort(z[smallest])].astype(np.int64)
