"""Summary of the duplicates in a set: how many there are, which pattern they follow, the probable cause and remedy."""

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
"""Share of duplicates at which a warning is issued. Smaller shares are only recorded: most photo collections have a
few duplicates."""
_NOTABLE_NEAR_SHARE = 0.05
"""The same threshold for exact and near duplicates together: simple images may look alike by chance."""
_TIMES_REAL, _BEYOND_REAL = 2.0, 0.1
"""Sets of simple images naturally have duplicates. FAKE's share of duplicates is therefore compared with REAL's: it is
unusual from this multiple of it, or this much above it, whichever is less."""
_MOST_BY_NATURE = 0.5
"""Largest share of near duplicates that REAL can excuse: a small REAL says little about a large FAKE."""
FEWEST_COPIES = 2
"""Fewer duplicates than this are regarded as accidental, even in a small set."""
_GROUPS, _FILES = 8, 8
"""Maximum number of groups of duplicates listed as examples, and of files listed per group."""
_OF_PROCESSES = ("folder", "name", "rank", "ranks", "gpu", "cuda", "device", "proc", "process", "worker", "node")
"""Words in file names that denote something with its own random seed."""

_MOST = 0.8
"""Share of the duplicates that must follow a pattern for it to be reported."""
_MANY_RANKS = 64
"""Largest number of processes assumed to have written a set; more repetitions are attributed to batches."""
_LARGE_BATCH = 512
"""Largest batch size assumed in sampling."""
_THROUGHOUT = 0.5
"""Share of the set's images that must occur more than once before a pattern of positions is attributed to processes or
batches: all images would if each process or batch had generated the same ones, but some may not be recognised."""
_OFTEN, _FEWEST_OF_ONE = 0.02, 5
"""The least share of the set, and number of images, for a single repeated image to be a separate pattern."""
_HANDFUL = 0.1
"""Up to this share of different images, the set is described as a few images repeated."""
_LOOKED_AT = 2000
"""Maximum number of groups of duplicates whose file names are compared, to limit time."""
_WHOLE_BATCH = 1.5
"""If all batches are the same, the set has about as many different images as one batch; up to this many times as many
are accepted."""
_OF_BATCHES = ("batch", "batches", "iter", "iteration", "step", "round")
"""Words in file names before the number of a batch."""
_OF_COPIES = ("copy", "copies", "dup", "duplicate", "repeat", "rep")
"""Words in file names before the number of a copy."""

PatternKind = Literal["ranks", "batches", "ranks or batches", "repeated", "one picture", "copies", "formats", "none"]


@dataclass(frozen=True)
class CopyPattern:
    """Pattern of the duplicates in a set.

    Attributes:
        kind: ``ranks``: several processes wrote the same images; ``batches``: all batches are the same;
            ``ranks or batches``: one of the two; ``repeated``: the set consists of a few images, in no particular
            order; ``one picture``: most duplicates are of one image; ``copies``: the file names call them copies;
            ``formats``: each image is stored in several formats; ``none``: no pattern was found.
        multiplicity: how often most of the duplicated images occur.
        stride: number of files from one duplicate to the next, in natural order of the names; None if it varies.
        field: the only part in which the names of most duplicates differ, such as ``rank`` in ``rank3_0001.png``, or
            ``folder``, ``name`` or ``suffix``; empty if there is none.
    """

    kind: PatternKind
    multiplicity: int
    stride: int | None
    field: str


@dataclass(frozen=True)
class Duplicates:
    """The duplicates in a set, in numbers.

    Attributes:
        images: number of images.
        unique: number of different images.
        exact: number of images that are pixel-identical to an earlier image.
        near: number of other images that are near duplicates of an earlier image, for example re-encoded.
        multiplicities: maps a number of occurrences to the number of different images that occur that many times.
        pattern: pattern of the duplicates; None if there are too few to find one.
        examples: files of some duplicated images, the most frequent image first.
        complete: whether near duplicates were searched for; False if there were too many images.
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
        """Number of images that are exact or near duplicates of an earlier image."""
        return self.images - self.unique

    @property
    def share(self) -> float:
        """Duplicates as a fraction of the images, 0 to 1."""
        return self.copies / self.images

    def to_dict(self) -> dict[str, Any]:
        """Returns the duplicates as they appear in the JSON."""
        plain = asdict(self)
        return plain | {"unique_fraction": self.unique / self.images, "copies": self.copies}


@dataclass(frozen=True)
class SharedCopies:
    """Images of FAKE that are pixel-identical to an image of REAL.

    Attributes:
        count: number of such images in FAKE.
        examples: some pairs of files: FAKE's, REAL's.
    """

    count: int
    examples: tuple[tuple[str, str], ...]


def duplicates_of(images: ImageRecords, copies: Copies) -> Duplicates:
    """Summarises the duplicates in a set."""
    found = Duplicates(
        images=len(images),
        unique=copies.unique,
        exact=copies.exact_copies,
        near=copies.copies - copies.exact_copies,
        multiplicities=multiplicities(copies.near),
        pattern=None,
        examples=_examples(images, copies),
        complete=copies.complete,
    )
    if found.share < NOTABLE_SHARE:
        return found
    return replace(found, pattern=find_pattern(images.names, copies.near))


def _examples(images: ImageRecords, copies: Copies) -> tuple[tuple[str, ...], ...]:
    firsts, counts = np.unique(copies.near, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:_GROUPS]
    groups = (np.flatnonzero(copies.near == firsts[group]) for group in often if counts[group] > 1)
    return tuple(tuple(images.file(int(image)) for image in group[:_FILES]) for group in groups)


def shared_copies_of(real: ImageRecords, fake: ImageRecords) -> SharedCopies:
    """Finds the images of FAKE that are also in REAL."""
    pairs = find_shared_copies(real.records, fake.records)
    examples = ((fake.file(int(one)), real.file(int(other))) for one, other in pairs[:_FILES])
    return SharedCopies(len(pairs), tuple(examples))


def has_notable_copies(fake: Duplicates, real: Duplicates | None) -> bool:
    """Returns whether ``fake`` has more duplicates than is natural for its kind of images, judged by ``real``."""
    exact, usual = (0.0, 0.0) if real is None else (real.exact / real.images, _usual(real, fake.images))
    if fake.copies < FEWEST_COPIES:
        return False
    return fake.exact / fake.images >= max(NOTABLE_SHARE, _threshold(exact)) or fake.share >= max(
        _NOTABLE_NEAR_SHARE, _threshold(usual)
    )


def are_dependent(fake: Duplicates, real: Duplicates | None) -> bool:
    """Returns whether ``fake`` has too many duplicates for its images to be treated as independent samples."""
    usual = 0.0 if real is None else real.share
    return fake.exact >= NOTABLE_SHARE * fake.images or fake.share >= max(_NOTABLE_NEAR_SHARE, usual)


def _usual(real: Duplicates, images: int) -> float:
    """Estimates the share of duplicates that this number of images of REAL's kind naturally has.

    The more images, the more of them look alike: any two do with a probability of about share / images.
    """
    rate = real.near / real.images if real.near >= FEWEST_COPIES else 0.0
    near = 1.0 - math.exp(-rate * max(1.0, images / real.images))
    return real.exact / real.images + min(near, _MOST_BY_NATURE)


def _threshold(usual: float) -> float:
    """Returns the share of duplicates from which FAKE has unusually many, if ``usual`` is the natural share."""
    return min(_TIMES_REAL * usual, usual + _BEYOND_REAL)


# --- pattern: the order and the names of the files show what wrote the duplicates ------------------------------------


def find_pattern(names: Sequence[str], groups: Groups) -> CopyPattern:
    """Finds what the positions and names of duplicates have in common.

    Args:
        names: paths of the images relative to their folder.
        groups: see `Groups`; there is at least one duplicate.
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
    field = _field([[tokens[order[position]] for position in part] for part in members[:_LOOKED_AT]], tokens)
    usual = multiplicity or int(np.median([len(part) for part in members]))
    throughout = copied >= _THROUGHOUT * len(names)
    kind = _kind(usual if multiplicity else None, stride if throughout else None, field, len(starts), len(names))
    return CopyPattern(kind, usual, stride, field)


def _sortable(token: str) -> tuple[int, int, str]:
    """Returns a sort key by which numbers in names are sorted by value: 9.png before 10.png."""
    return (0, int(token), token) if token.isdecimal() and len(token) < 4000 else (1, 0, token)


def _common(values: Sequence[int], weights: Sequence[int]) -> int | None:
    """Returns the value that has at least `_MOST` of the weight; None if there is none."""
    counts: Counter[int] = Counter()
    for value, weight in zip(values, weights, strict=True):
        counts[value] += weight
    value, weight = counts.most_common(1)[0]
    return value if weight >= _MOST * counts.total() else None


def _multiplicity(sizes: Sequence[int]) -> int | None:
    """Returns how often most duplicated images occur; None if it varies.

    One occurrence fewer is accepted, because a last batch that is not full lacks some of the images.
    """
    same = _common(sizes, sizes)
    if same is not None:
        return same
    largest = max(sizes)
    return largest if sum(size for size in sizes if size >= largest - 1) >= _MOST * sum(sizes) else None


def _kind(multiplicity: int | None, stride: int | None, field: str, unique: int, images: int) -> PatternKind:
    if unique == 1:
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
        # Adjacent duplicates come from one batch, or from ranks that write in turn. Otherwise the stride is the number
        # of images that one rank or one batch generated.
        size = multiplicity if stride == 1 else stride
        if multiplicity > _MANY_RANKS:
            return "batches"
        by_batches = size <= _LARGE_BATCH and (stride == 1 or unique <= _WHOLE_BATCH * stride)
        return "ranks or batches" if by_batches else "ranks"
    if field:
        return "ranks"
    return "repeated" if unique <= _HANDFUL * images else "none"


def _field(groups: Sequence[Sequence[Sequence[str]]], everything: Sequence[Sequence[str]]) -> str:
    """Returns the only part in which the names of duplicates differ, see `CopyPattern`; empty if there is none."""
    positions: Counter[int] = Counter()
    for first, *others in groups:
        differing = {
            position
            for other in others
            if len(other) == len(first)
            for position in range(len(first))
            if other[position] != first[position]
        }
        if len(differing) == 1 and all(len(other) == len(first) for other in others):
            positions[differing.pop()] += 1
    if not positions or positions.most_common(1)[0][1] < _MOST * len(groups):
        return ""
    position = positions.most_common(1)[0][0]
    values = {name[position] for name in everything if position < len(name)}
    largest = max(len(group) for group in groups)
    if len(values) > 1.5 * largest or len(values) == len(everything):
        return ""  # a running number, which is different for every image
    return _title(groups[0][0], position)


def _title(tokens: Sequence[str], position: int) -> str:
    if position and position == len(tokens) - 1 and re.fullmatch(r"\.\w+", tokens[position]):
        return "suffix"
    word = re.search(r"([^\W\d_]+)[\W_]*$", tokens[position - 1]) if position else None
    if position % 2 and word is not None and "/" not in word.group(0):
        return word.group(1)
    return "folder" if "/" in "".join(tokens[position + 1 :]) else "name"


def multiplicities(groups: Groups) -> dict[int, int]:
    """Counts the different images by how often they occur, in ascending order of occurrences."""
    counts: NDArray[np.int64] = np.bincount(np.unique(groups, return_counts=True)[1])
    return {int(often): int(counts[often]) for often in np.flatnonzero(counts)}


# --- messages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopiesEffect:
    """Effect of FAKE's duplicates on its Fréchet distance.

    Attributes:
        title: name of the distance, such as ``FID``.
        whole, without: the distance with and without the duplicates.
    """

    title: str
    whole: float
    without: float

    def __str__(self) -> str:
        """Returns a sentence for a warning; empty if both distances are the same to six digits."""
        whole, without = f"{self.whole:.6g}", f"{self.without:.6g}"
        if whole == without:
            return ""
        fewer = " (fewer images have a larger bias)" if self.without > self.whole else ""
        return f"without the duplicates the {self.title} is {without} instead of {whole}{fewer}"


def duplicates_warning(name: str, found: Duplicates, generated: bool, effect: CopiesEffect | None) -> str:
    """Returns a warning about duplicates.

    Args:
        name: path of the set, as passed by the caller.
        found: the duplicates, at least one.
        generated: whether the set is FAKE, so that random seeds may be the cause.
        effect: effect of the duplicates on the distance; None if unknown.
    """
    kinds = " or ".join(kind for kind, number in (("exact", found.exact), ("near", found.near)) if number)
    count = f"{found.copies} of {found.images} images ({found.share:.0%})"
    parts = [f"{name}: {count} are {kinds} duplicates: {_described(found)}"]
    parts.append(_advice(found) if generated else "every duplicate counts in the statistics, so remove unintended ones")
    if effect is not None and str(effect):
        parts.append(str(effect))
    return "; ".join(parts)


def _described(found: Duplicates) -> str:
    pattern = found.pattern
    if found.unique == 1:
        return f"the same image {found.images} times"
    text = f"{found.unique} different images"
    if pattern is None:
        return text
    if pattern.kind == "one picture":
        return f"{text}, one of which occurs {pattern.multiplicity} times"
    repeated = found.unique - found.multiplicities.get(1, 0)
    times = f"mostly {pattern.multiplicity} times each"
    text += f", {times}" if 2 * repeated > found.unique else f", {repeated} of them repeated ({times})"
    if pattern.stride is None and not pattern.field:
        return f"{text}, in no particular order"
    if pattern.stride == 1:
        text += ", next to each other"
    elif pattern.stride is not None:
        text += f", {pattern.stride} files apart"
    if pattern.field in ("folder", "name", "suffix"):
        part = {"folder": "the folder", "name": "one part", "suffix": "the suffix"}[pattern.field]
        text += f", with file names that differ only in {part}"
    elif pattern.field:
        text += f", with file names that differ only in the number after {pattern.field!r}"
    return text


def _advice(found: Duplicates) -> str:
    pattern = found.pattern
    remedy = "give each sample its own seed, fidtool.sample_seed(seed, i) for sample i"
    if pattern is None or pattern.kind == "none":
        return f"if these are generated samples, {remedy}"
    if pattern.kind == "one picture":
        return "it is probably the output of failed samples, or the generator repeats it: generate these samples again"
    if pattern.kind == "copies":
        return "the file names call them copies: keep one file of each"
    if pattern.kind == "formats":
        return "each image is stored in several formats: keep one file of each"
    if pattern.kind == "repeated":
        return "few images make up the whole set: the generator has collapsed, or few seeds or prompts were used"
    processes = f"{pattern.multiplicity} processes had used the same random seed"
    if pattern.kind == "batches" and pattern.field not in ("", "folder", "name"):
        batches = f"the random seed had been reset for each {pattern.field}"
    elif pattern.stride == 1:
        batches = f"each batch of {pattern.multiplicity} had been generated from the same noise"
    else:
        size = "" if pattern.stride is None else f" of {pattern.stride}"
        batches = f"the random seed had been reset for each batch{size}"
    causes = {"ranks": processes, "batches": batches, "ranks or batches": f"{processes}, or {batches}"}
    cause = f"it looks as if {causes[pattern.kind]}"
    if pattern.kind == "ranks" and pattern.field and pattern.field.lower() not in _OF_PROCESSES:
        cause += f", or as if the generator had ignored {pattern.field!r}"
    return f"{cause}: {remedy}"


def shared_warning(real: str, fake: str, shared: SharedCopies, images: int) -> str:
    """Returns a warning about images of FAKE that are also in REAL.

    Args:
        real, fake: paths of the sets, as passed by the caller.
        shared: the shared images, at least one.
        images: number of images in FAKE.
    """
    one, other = shared.examples[0]
    if shared.count == images:
        return (
            f"all {images} images in {fake} are pixel-identical to images in {real} (for example {one} and {other}): "
            "they are real images, or the generator has memorised its training images"
        )
    are = "is" if shared.count == 1 else "are"
    return (
        f"{shared.count} of {images} images in {fake} {are} pixel-identical to images in {real} (for example {one} and "
        f"{other}): real images were mixed in (remove them), or the generator has memorised training images"
    )
