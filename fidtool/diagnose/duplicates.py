"""What the copies in a set mean: how many there are, how they lie, what caused them, and what to change."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.copies import Copies, Groups, find_shared_copies
from fidtool.images.records import ImageRecords

NOTABLE_SHARE = 0.01
"""A smaller share of copies is recorded and gives no warning: most photo collections have some."""
_NOTABLE_NEAR_SHARE = 0.05
"""The same if some are near copies: simple pictures may look alike by chance."""
_TIMES_REAL, _BEYOND_REAL = 2.0, 0.1
"""Sets of simple pictures have copies by nature: FAKE must have so many times REAL's share, or so much more of it."""
_MOST_BY_NATURE = 0.5
"""A small REAL says little about the likeness of many pictures."""
FEWEST_COPIES = 2
"""A single copy is an accident, whatever its share."""
_GROUPS, _FILES = 8, 8
_OF_PROCESSES = ("folder", "name", "rank", "ranks", "gpu", "cuda", "device", "proc", "process", "worker", "node")
"""What names call a thing that has a seed of its own."""

_MOST = 0.8
"""Share of the copies that must follow a pattern."""
_MANY_RANKS = 64
"""Most processes that write a set."""
_LARGE_BATCH = 512
"""Most images that are sampled in a batch."""
_THROUGHOUT = 0.5
"""Share of the set that must occur several times if each process or batch made the same (some may be missed)."""
_OFTEN, _FEWEST_OF_ONE = 0.02, 5
"""One picture that occurs so often, as a share of the set and as a number, is a pattern of its own."""
_HANDFUL = 0.1
"""Share of different pictures up to which the set is a few pictures repeated."""
_LOOKED_AT = 2000
"""Groups whose names are compared."""
_WHOLE_BATCH = 1.5
"""If each batch is the same, there are at most so many times as many different pictures as in one batch."""
_OF_BATCHES = ("batch", "batches", "iter", "iteration", "step", "round")
_OF_COPIES = ("copy", "copies", "dup", "duplicate", "repeat", "rep")
"""What a word in a name says of the number after it."""

PatternKind = Literal["ranks", "batches", "ranks or batches", "repeated", "one picture", "copies", "formats", "none"]


@dataclass(frozen=True)
class CopyPattern:
    """How copies lie in a set.

    Attributes:
        kind: ``ranks``: each of several processes wrote the same pictures; ``batches``: each batch did;
            ``ranks or batches``: one of the two; ``repeated``: few pictures make up the set, in no order;
            ``one picture`` is most of the copies; ``copies``, by their names; ``formats``: each picture is there in
            several; ``none``.
        multiplicity: how often most of the copied pictures occur.
        stride: files from a copy to the next, in natural order of the names; None if it differs.
        field: the only part in which the names of most copies differ, such as ``rank`` in ``rank3_0001.png``, or
            ``folder``, ``name`` or ``suffix``; empty if there is none.
    """

    kind: PatternKind
    multiplicity: int
    stride: int | None
    field: str


@dataclass(frozen=True)
class Duplicates:
    """The copies in a set.

    Attributes:
        images: number of images.
        unique: number of different pictures.
        exact: number of images that have the same pixels as an earlier one.
        near: number of further images that show the same as an earlier one, re-encoded.
        multiplicities: number of pictures by how often they occur.
        pattern: how the copies lie; None if there are too few to tell.
        examples: files of some pictures that occur several times, the most frequent first.
        complete: whether near copies were looked for; else there were too many pictures.
    """

    images: int
    unique: int
    exact: int
    near: int
    multiplicities: dict[int, int]
    pattern: CopyPattern | None
    examples: tuple[tuple[str, ...], ...]
    complete: bool = True

    @property
    def copies(self) -> int:
        """Number of images that show the same as an earlier one."""
        return self.images - self.unique

    @property
    def share(self) -> float:
        """Number of copies as a fraction of the images, 0 to 1."""
        return self.copies / self.images

    def to_dict(self) -> dict[str, Any]:
        """The copies for the JSON."""
        plain = asdict(self)
        return plain | {"unique_fraction": self.unique / self.images, "copies": self.copies}


@dataclass(frozen=True)
class SharedCopies:
    """Images of FAKE that equal one of REAL to the pixel.

    Attributes:
        count: number of such images.
        examples: some pairs of files, FAKE's and REAL's.
    """

    count: int
    examples: tuple[tuple[str, str], ...]


def duplicates_of(pictures: ImageRecords, copies: Copies) -> Duplicates:
    """A summary of the copies in a set."""
    found = Duplicates(
        images=len(pictures),
        unique=copies.unique,
        exact=copies.exact_copies,
        near=copies.copies - copies.exact_copies,
        multiplicities=multiplicities(copies.near),
        pattern=None,
        examples=_examples(pictures, copies),
        complete=copies.complete,
    )
    if found.share < NOTABLE_SHARE:
        return found
    return replace(found, pattern=find_pattern(pictures.names, copies.near))


def _examples(pictures: ImageRecords, copies: Copies) -> tuple[tuple[str, ...], ...]:
    firsts, counts = np.unique(copies.near, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:_GROUPS]
    groups = (np.flatnonzero(copies.near == firsts[place]) for place in often if counts[place] > 1)
    return tuple(tuple(pictures.file(int(image)) for image in group[:_FILES]) for group in groups)


def shared_copies_of(real: ImageRecords, fake: ImageRecords) -> SharedCopies:
    """The images of FAKE that are REAL's."""
    pairs = find_shared_copies(real.records, fake.records)
    examples = ((fake.file(int(one)), real.file(int(other))) for one, other in pairs[:_FILES])
    return SharedCopies(len(pairs), tuple(examples))


def has_notable_copies(fake: Duplicates, real: Duplicates | None) -> bool:
    """Whether ``fake`` has more copies than images of its kind have anyway, as ``real`` shows."""
    exact, usual = (0.0, 0.0) if real is None else (real.exact / real.images, _usual(real, fake.images))
    if fake.copies < FEWEST_COPIES:
        return False
    return fake.exact / fake.images >= max(NOTABLE_SHARE, _threshold(exact)) or fake.share >= max(
        _NOTABLE_NEAR_SHARE, _threshold(usual)
    )


def are_dependent(fake: Duplicates, real: Duplicates | None) -> bool:
    """Whether so many images of ``fake`` are copies that they are not independent samples."""
    usual = 0.0 if real is None else real.share
    return fake.exact >= NOTABLE_SHARE * fake.images or fake.share >= max(_NOTABLE_NEAR_SHARE, usual)


def _usual(real: Duplicates, images: int) -> float:
    """The share of copies that so many images of REAL's kind have: the more images, the more look alike.

    Any two look alike with a probability of about share / images.
    """
    rate = real.near / real.images if real.near >= FEWEST_COPIES else 0.0
    near = 1.0 - math.exp(-rate * max(1.0, images / real.images))
    return real.exact / real.images + min(near, _MOST_BY_NATURE)


def _threshold(usual: float) -> float:
    """The share of copies in FAKE from which on REAL's does not account for it."""
    return min(_TIMES_REAL * usual, usual + _BEYOND_REAL)


# --- how copies lie: what wrote them shows in the files' order and names ---------------------------------------------


def find_pattern(names: Sequence[str], groups: Groups) -> CopyPattern:
    """What the positions and names of copies have in common.

    Args:
        names: paths of the images relative to their folder.
        groups: for each image the index of the first one that is the same picture; some are copies.
    """
    tokens = [re.split(r"(\d+)", name) for name in names]
    order = sorted(range(len(names)), key=lambda index: [_sortable(token) for token in tokens[index]])
    placed = groups[order]
    by_group = np.argsort(placed, kind="stable")
    starts = np.flatnonzero(np.diff(placed[by_group], prepend=-1))
    members = [part for part in np.split(by_group, starts[1:]) if len(part) > 1]
    largest, copied = max(map(len, members)), sum(map(len, members))
    if len(starts) > 1 and largest >= max(_MOST * copied, _OFTEN * len(names), _FEWEST_OF_ONE):
        return CopyPattern("one picture", largest, None, "")
    multiplicity = _multiplicity([len(part) for part in members])
    steps = np.concatenate([np.diff(part) for part in members])
    stride = _common(steps.tolist(), [1] * len(steps))
    field = _field([[tokens[order[place]] for place in part] for part in members[:_LOOKED_AT]], tokens)
    usual = multiplicity or int(np.median([len(part) for part in members]))
    throughout = copied >= _THROUGHOUT * len(names)
    kind = _kind(usual if multiplicity else None, stride if throughout else None, field, len(starts), len(names))
    return CopyPattern(kind, usual, stride, field)


def _sortable(token: str) -> tuple[int, int, str]:
    """Numbers in names sort by value: 9.png before 10.png."""
    return (0, int(token), token) if token.isdecimal() and len(token) < 4000 else (1, 0, token)


def _common(values: Sequence[int], weights: Sequence[int]) -> int | None:
    """The value with most of the weight; None if there is none."""
    counts: Counter[int] = Counter()
    for value, weight in zip(values, weights, strict=True):
        counts[value] += weight
    value, weight = counts.most_common(1)[0]
    return value if weight >= _MOST * counts.total() else None


def _multiplicity(sizes: Sequence[int]) -> int | None:
    """How often most of the copied pictures occur: a last batch that is not full leaves some of them out once."""
    same = _common(sizes, sizes)
    if same is not None:
        return same
    largest = max(sizes)
    return largest if sum(size for size in sizes if size >= largest - 1) >= _MOST * sum(sizes) else None


def _kind(multiplicity: int | None, stride: int | None, field: str, pictures: int, images: int) -> PatternKind:
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
    return "repeated" if pictures <= _HANDFUL * images else "none"


def _field(groups: Sequence[Sequence[Sequence[str]]], everything: Sequence[Sequence[str]]) -> str:
    """The only part of a name in which copies differ: a folder, or a word before a number; empty if there is none."""
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
    """Number of pictures by how often they occur, ascending."""
    counts: NDArray[np.int64] = np.bincount(np.unique(groups, return_counts=True)[1])
    return {int(often): int(counts[often]) for often in np.flatnonzero(counts)}


# --- in words --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopiesEffect:
    """The effect of a FAKE's copies on its Fréchet distance.

    Attributes:
        title: of the distance, such as ``FID``.
        whole, without: the distance with the copies and without them.
    """

    title: str
    whole: float
    without: float

    def __str__(self) -> str:
        """In words; empty if no digit shown differs."""
        whole, without = f"{self.whole:.6g}", f"{self.without:.6g}"
        if whole == without:
            return ""
        fewer = ", fewer images having a larger bias" if self.without > self.whole else ""
        return f"without the copies the {self.title} is {without} and not {whole}{fewer}"


def duplicates_warning(name: str, found: Duplicates, generated: bool, effect: CopiesEffect | None) -> str:
    """A warning about copies.

    Args:
        name: path of the set, as given.
        found: the copies; there are some.
        generated: whether the set is FAKE, so that its copies may be the fault of seeds.
        effect: of the copies; None if unknown.
    """
    kind = "copies of others in it" if found.near else "exact copies of others in it"
    parts = [f"{name}: {found.copies} of {found.images} images ({found.share:.0%}) are {kind}: {_pattern_words(found)}"]
    parts.append(_advice(found) if generated else "each copy counts again in the statistics")
    if effect is not None and str(effect):
        parts.append(str(effect))
    return "; ".join(parts)


def _pattern_words(found: Duplicates) -> str:
    pattern = found.pattern
    if found.unique == 1:
        return f"one picture, {found.images} times"
    words = f"{found.unique} different pictures"
    if pattern is None:
        return words
    if pattern.kind == "one picture":
        return f"{words}, one of them {pattern.multiplicity} times"
    times = {2: "twice"}.get(pattern.multiplicity, f"{pattern.multiplicity} times")
    repeated = found.unique - found.multiplicities.get(1, 0)
    words += f", mostly {times} each" if 2 * repeated > found.unique else f", {repeated} of them mostly {times}"
    if pattern.stride is None and not pattern.field:
        return f"{words}, in no order"
    if pattern.stride == 1:
        words += ", one after the other"
    elif pattern.stride is not None:
        words += f", {pattern.stride} files apart"
    if pattern.field in ("folder", "name", "suffix"):
        words += f", under names that differ in a {pattern.field} alone"
    elif pattern.field:
        words += f", under names that differ in the number after {pattern.field!r} alone"
    return words


def _advice(found: Duplicates) -> str:
    pattern = found.pattern
    remedy = "give each sample a seed of its own, fidtool.sample_seed(seed, i) for sample number i"
    if pattern is None or pattern.kind == "none":
        return f"if these are samples, {remedy}"
    if pattern.kind == "one picture":
        return "it stands for samples that failed, mostly, or the generator repeats it: draw them anew"
    if pattern.kind == "copies":
        return "by their names they are copies: keep one of each"
    if pattern.kind == "formats":
        return "each picture is stored in several formats: keep one file of each"
    if pattern.kind == "repeated":
        return "a handful of pictures makes up the set: the generator has collapsed, or few seeds or prompts were used"
    processes = f"{pattern.multiplicity} processes had sampled with the same seed"
    if pattern.kind == "batches" and pattern.field not in ("", "folder", "name"):
        batches = f"the seed had been set anew for each {pattern.field}"
    elif pattern.stride == 1:
        batches = f"each batch of {pattern.multiplicity} had been drawn from one noise"
    else:
        size = "" if pattern.stride is None else f" of {pattern.stride}"
        batches = f"the seed had been set anew for each batch{size}"
    causes = {"ranks": processes, "batches": batches, "ranks or batches": f"{processes}, or {batches}"}
    told = f"as if {causes[pattern.kind]}"
    if pattern.kind == "ranks" and pattern.field and pattern.field.lower() not in _OF_PROCESSES:
        told += f", or as if what {pattern.field!r} stands for had not reached the generator"
    return f"{told}: {remedy}"


def shared_warning(real: str, fake: str, shared: SharedCopies, images: int) -> str:
    """A warning about images of FAKE that are REAL's.

    Args:
        real, fake: paths of the sets, as given.
        shared: the images; there are some.
        images: number of images of FAKE.
    """
    one, other = shared.examples[0]
    if shared.count == images:
        return (
            f"all {images} images in {fake} equal images in {real} to the pixel, {one} and {other} for instance: they "
            "are the real images, or learnt by heart"
        )
    return (
        f"{shared.count} of {images} images in {fake} equal images in {real} to the pixel, {one} and {other} for "
        "instance: real images have got in, or the generator has learnt them by heart"
    )
