"""What zip and tar archives have in common: a listing of members, archive by archive. Imports no torch."""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.sources.census import Census, PassedOver
from fidtool.sources.contents import Files, readable
from fidtool.sources.image_set import Names, beneath

Place = TypeVar("Place")

_MOST_KINDS = 8
"""So many images a sample may have; where names end in more ways, what is behind their dots means something else."""
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
        names: theirs, as they are stored; with the archive's before it where there are several.
        places: where each lies.
        holders: which of the archives each is in: int32 array of shape (images,).
        passed_over: what else there is.
        began: when, in nanoseconds since 1970.
    """

    names: Names
    places: list[Place]
    holders: NDArray[np.int32]
    passed_over: PassedOver
    began: int

    def by_name(self) -> list[int]:
        """The images sorted by name, archive by archive."""
        names = list(self.names)
        holders = self.holders.tolist()
        return sorted(range(len(names)), key=lambda image: (holders[image], names[image]))


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
        members: lists those of one: called with its path, itself and what counts the others.
        stored: gives what places ascend by in an archive.

    Raises:
        InputError: an archive that cannot be read, names that occur twice in one, or no images.
    """
    began = time.time_ns()
    census = Census(looks=not files.remote)  # each look would be a request
    names: list[str] = []
    places: list[Place] = []
    holders: list[NDArray[np.int32]] = []
    labels = beneath(files.paths)[1]
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
        holders.append(np.full(len(found), file, dtype=np.int32))
    if not names:
        raise InputError(census.nothing_found(path, kind))
    return Listing(Names(names), places, np.concatenate(holders), census.found(), began)


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
        raise InputError(f"each sample in {path} has {len(kinds)} images ({has}): pick one as in {path}:{min(kinds)}")


def _refuse_duplicates(archive: str, found: Sequence[Member[Place]]) -> None:
    # Of a million names a set would take more room than all that is kept of them.
    hashes = np.fromiter((hash(posixpath.normpath(member.name)) for member in found), np.int64, len(found))
    if len(np.unique(hashes)) == len(found):
        return
    name, times = Counter(posixpath.normpath(member.name) for member in found).most_common(1)[0]
    if times == 1:
        return
    raise InputError(
        f"{archive} holds {times} members named {name}: which one counts is anybody's guess; make the archive anew, "
        "each name once"
    )
