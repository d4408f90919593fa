"""Names of images, millions of them, in little memory. Imports no torch."""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_SEPARATOR = b"\0"
_PIECE = 1 << 16


class _Texts(Sequence[str]):
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


class Names(_Texts):
    """Texts end to end in one piece of memory: a name takes its own bytes and eight more.

    A tuple of as many texts would take three times as much, and each process that reads one would make a copy of the
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
    while piece := list(itertools.islice(waiting, _PIECE)):
        yield _SEPARATOR.join(map(os.fsencode, piece))


def beneath(paths: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that several paths share, with a slash behind it or empty, and what is left of each."""
    folders = [path.split("/")[:-1] for path in paths]
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    prefix = "".join(f"{level[0]}/" for level in shared)
    return prefix, [path[len(prefix) :] for path in paths]


class Prefixed(_Texts):
    """Other names with the same text before each.

    Args:
        prefix: the text.
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


class Numbered(_Texts):
    """The names of things that have none: ``[0]``, ``[1]`` and so on; nothing is kept."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> str:
        return f"[{index}]"
