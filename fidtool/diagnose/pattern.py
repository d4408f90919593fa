"""How the copies in a set lie: what wrote them shows in the files' order and names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.copies import Groups

_MOST = 0.8
"""So much of the copies must follow a pattern."""
_MANY_RANKS = 64
"""More processes than that rarely write one set."""
_LARGE_BATCH = 512
"""Larger batches are rarely sampled."""
_ALL = 0.5
"""So much of the set must come several times, where each process or batch has made the same (some may go unseen)."""
_OFTEN, _FEWEST = 0.02, 5
"""One picture that comes so often is worth a word of its own."""
_FEW = 0.1
"""So small a share of different pictures is a handful that was repeated."""
_LOOKED_AT = 2000
"""Groups whose names are compared."""
_WHOLE_BATCH = 1.5
"""Where each batch is the same there are as many pictures as in one, and a few that look alike by chance."""
_OF_BATCHES = ("batch", "batches", "iter", "iteration", "step", "round")
_OF_COPIES = ("copy", "copies", "dup", "duplicate", "repeat", "rep")
"""What a name's word says of the number behind it."""

Kind = Literal["ranks", "batches", "ranks or batches", "repeated", "one picture", "copies", "formats", "none"]


@dataclass(frozen=True)
class Pattern:
    """How copies lie in a set.

    Attributes:
        kind: ``ranks``: each of several processes wrote the same pictures; ``batches``: each batch did;
            ``ranks or batches``: one of the two; ``repeated``: few pictures make up the set, in no order;
            ``one picture`` is most of the copies; ``copies``, by their names; ``formats``: each picture is there in
            several; ``none``.
        multiplicity: how often most of the copied pictures come.
        stride: files from a copy to the next, in natural order of the names, where that is the same for most; else
            None.
        field: what most copies' names differ in alone, such as ``rank`` in ``rank3_0001.png``, or ``folder``, ``name``
            or ``suffix``; empty if nothing.
    """

    kind: Kind
    multiplicity: int
    stride: int | None
    field: str


def find_pattern(names: Sequence[str], groups: Groups) -> Pattern:
    """What the copies' places and names have in common.

    Args:
        names: paths of the images relative to their folder.
        groups: for each the first that is the same picture; there are copies among them.
    """
    tokens = [re.split(r"(\d+)", name) for name in names]
    order = sorted(range(len(names)), key=lambda index: [_sortable(token) for token in tokens[index]])
    placed = groups[order]
    by_group = np.argsort(placed, kind="stable")
    starts = np.flatnonzero(np.diff(placed[by_group], prepend=-1))
    members = [part for part in np.split(by_group, starts[1:]) if len(part) > 1]
    largest, copied = max(map(len, members)), sum(map(len, members))
    if len(starts) > 1 and largest >= max(_MOST * copied, _OFTEN * len(names), _FEWEST):
        return Pattern("one picture", largest, None, "")
    multiplicity = _multiplicity([len(part) for part in members])
    steps = np.concatenate([np.diff(part) for part in members])
    stride = _common(steps.tolist(), [1] * len(steps))
    field = _field([[tokens[order[place]] for place in part] for part in members[:_LOOKED_AT]], tokens)
    usual = multiplicity or int(np.median([len(part) for part in members]))
    throughout = copied >= _ALL * len(names)
    kind = _kind(usual if multiplicity else None, stride if throughout else None, field, len(starts), len(names))
    return Pattern(kind, usual, stride, field)


def _sortable(token: str) -> tuple[int, int, str]:
    """Numbers in names sort by value: 9.png before 10.png."""
    return (0, int(token), token) if token.isdecimal() and len(token) < 4000 else (1, 0, token)


def _common(values: Sequence[int], weights: Sequence[int]) -> int | None:
    """The value that most of the weight has, if one has."""
    counts: Counter[int] = Counter()
    for value, weight in zip(values, weights, strict=True):
        counts[value] += weight
    value, weight = counts.most_common(1)[0]
    return value if weight >= _MOST * counts.total() else None


def _multiplicity(sizes: Sequence[int]) -> int | None:
    """How often most of the copied pictures come: a last batch that is not full leaves some of them out once."""
    same = _common(sizes, sizes)
    if same is not None:
        return same
    largest = max(sizes)
    return largest if sum(size for size in sizes if size >= largest - 1) >= _MOST * sum(sizes) else None


def _kind(multiplicity: int | None, stride: int | None, field: str, pictures: int, images: int) -> Kind:
    if pictures == 1:
        return "repeated"
    word = field.lower()
    if word == "suffix":
        return "formats"
    if word in _OF_COPIES:
        return "copies"
    if word in _OF_BATCHES:
        return "batches"
    if word not in ("", "folder", "name"):
        return "ranks"
    if multiplicity is not None and stride is not None:
        # Copies side by side come from one batch, or from ranks that write in turn; else the stride is what one rank
        # or one batch has made.
        size = multiplicity if stride == 1 else stride
        if multiplicity > _MANY_RANKS:
            return "batches"
        by_batches = size <= _LARGE_BATCH and (stride == 1 or pictures <= _WHOLE_BATCH * stride)
        return "ranks or batches" if by_batches else "ranks"
    if field:
        return "ranks"
    return "repeated" if pictures <= _FEW * images else "none"


def _field(groups: Sequence[Sequence[Sequence[str]]], everything: Sequence[Sequence[str]]) -> str:
    """The part of a name in which copies differ and nothing else does: a folder, or a word before a number."""
    places: Counter[int] = Counter()
    for first, *others in groups:
        differing = {
            place
            for other in others
            if len(other) == len(first)
            for place in range(len(first))
            if other[place] != first[place]
        }
        if len(differing) == 1 and all(len(other) == len(first) for other in others):
            places[differing.pop()] += 1
    if not places or places.most_common(1)[0][1] < _MOST * len(groups):
        return ""
    place = places.most_common(1)[0][0]
    values = {name[place] for name in everything if place < len(name)}
    largest = max(len(group) for group in groups)
    if len(values) > 1.5 * largest or len(values) == len(everything):
        return ""  # a running number, which differs between all images
    return _title(groups[0][0], place)


def _title(tokens: Sequence[str], place: int) -> str:
    if place and place == len(tokens) - 1 and re.fullmatch(r"\.\w+", tokens[place]):
        return "suffix"
    word = re.search(r"([^\W\d_]+)[\W_]*$", tokens[place - 1]) if place else None
    if place % 2 and word is not None and "/" not in word.group(0):
        return word.group(1)
    return "folder" if "/" in "".join(tokens[place + 1 :]) else "name"


def multiplicities(groups: Groups) -> dict[int, int]:
    """How many pictures come how often: number of pictures by how often, ascending."""
    counts: NDArray[np.int64] = np.bincount(np.unique(groups, return_counts=True)[1])
    return {int(often): int(counts[often]) for often in np.flatnonzero(counts)}
