"""The duplicates in a set of images: exact ones, near ones such as re-encoded images, and what made
them.

Exact duplicates are pixel-identical. Near duplicates have thumbnails that differ about as little as
lossy compression changes them: JPEG at quality 50 changes a thumbnail by up to 7 % of its contrast,
whereas the two most similar of 512 CIFAR-10 images differ by 50 %, and of 240 photos of flowers by
37 %. Mirrored, cropped or shifted images are not duplicates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.findings import Finding
from fidtool.diagnose.measures import Floats
from fidtool.errors import Severity
from fidtool.names import format_count, natural_key
from fidtool.reading.records import BRIGHTNESS, NOISE, ImageRecords, RecordArray

# Thumbnails are near duplicates up to this root mean square difference, as a share of their
# contrast (the standard deviation of their brightness).
_TOLERANCE = 0.06
# Lower bound of the tolerance, in grey levels: at low contrast, the rounding of thumbnails to
# integers matters.
_MIN_TOLERANCE = 0.75
# Limit of that lower bound, as a share of the contrast: images of almost no contrast look alike
# without being duplicates.
_MIN_SHARE = 0.25
# Tolerance for images without contrast, in grey levels: less than any two unequal thumbnails
# differ.
_TINY = 0.05
MAX_NEAR_SEARCH_IMAGES = 500_000
"""With more different images than this, only exact duplicates are searched for, to limit memory."""
# Principal components of the thumbnails in which neighbours are searched for. The projection never
# increases a distance, so it loses no near duplicates.
_COORDINATES = 16
# Neighbours that the search returns for each image, including the image itself.
_CANDIDATES = 6
MAX_ALL_PAIRS_IMAGES = 2000
"""So few images are all compared with each other, in less time than importing SciPy's k-d tree
takes.
"""
# Weight of the mean brightness in the search: a larger one would separate near duplicates whose
# contrasts differ by rounding.
_MEAN_WEIGHT = 0.3
# Search radius, in tolerances. It exceeds 1 because each image is scaled by its own tolerance; the
# candidates are then compared exactly.
_SLACK = 1.2
# Number of pairs that are compared at a time, to limit memory.
_PAIRS_AT_ONCE = 100_000

GroupIndices = NDArray[np.intp]
"""Shape (images,): for each image, the index of the first image in the set's order that it is a
duplicate of; its own index if there is none.
"""


def find_copies(records: RecordArray) -> tuple[GroupIndices, GroupIndices | None]:
    """Return the groups of exact duplicates in a set, and those of exact and near ones.

    The latter are None if there are too many images to search for them. Images that look like noise
    have only exact ones.
    """
    exact = _first_occurrences(records["digest"])
    is_first = exact == np.arange(len(exact))
    # The thumbnails of noise are all alike, so that every pair of them would be a near duplicate.
    different = np.flatnonzero(is_first & (records["roughness"] < NOISE))
    if len(different) > MAX_NEAR_SEARCH_IMAGES:
        return exact, None
    # The search sees one image of each group of exact duplicates, and each distinct thumbnail once.
    thumbs = np.ascontiguousarray(records["thumb"][different])
    same = _first_occurrences(thumbs.view(f"V{thumbs.shape[1]}").reshape(-1))
    kinds, kind = np.unique(same, return_inverse=True)
    leaders = kinds[_group_near_copies(thumbs[kinds])]
    near = np.arange(len(exact))
    near[different] = different[leaders[kind]]
    return exact, near[exact]


def _first_occurrences(values: NDArray[np.generic]) -> GroupIndices:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return np.asarray(first[inverse])


def _group_near_copies(thumbs: NDArray[np.uint8]) -> GroupIndices:
    """Return, for each thumbnail, the index of the first thumbnail of its group of near
    duplicates.

    Each round joins neighbours into groups and continues with the first of each group, until no two
    of these are near duplicates. Pairs are therefore linear in the number of images even if one
    image occurs ten thousand times.
    """
    leader = np.arange(len(thumbs))
    if len(thumbs) < 2:
        return leader
    tolerance = tolerances(thumbs)
    points = _embed_thumbnails(thumbs, tolerance)
    alive = leader
    while True:
        joined = []
        candidates = _find_neighbours(points[alive])
        for start in range(0, len(candidates), _PAIRS_AT_ONCE):
            pairs = candidates[start : start + _PAIRS_AT_ONCE]
            values = thumbs[alive[pairs]].astype(np.int32)
            squares = np.square(values[:, 0] - values[:, 1]).mean(axis=1)
            joined.append(pairs[squares <= tolerance[alive[pairs]].min(axis=1) ** 2])
        if not any(map(len, joined)):
            return leader
        groups = _connected_components(np.concatenate(joined), len(alive))
        leader = alive[groups][np.searchsorted(alive, leader)]
        alive = np.unique(leader)


def _embed_thumbnails(thumbs: NDArray[np.uint8], tolerance: Floats) -> Floats:
    """Return points, of which those of near duplicates are at most `_SLACK` apart. Shape (n,
    _COORDINATES).
    """
    brightness = thumbs[:, :BRIGHTNESS].astype(np.float32)
    mean = brightness.mean(axis=1, keepdims=True)
    colour = thumbs[:, BRIGHTNESS:] - np.float32(128.0)
    # In place, because sets may have half a million thumbnails.
    brightness -= mean
    values = np.concatenate(
        [brightness, colour, _MEAN_WEIGHT * np.sqrt(BRIGHTNESS) * mean], axis=1, dtype=np.float64
    )
    values /= tolerance[:, None] * np.sqrt(thumbs.shape[1])
    values -= values.mean(axis=0)
    _, components = np.linalg.eigh(values.T @ values)
    return np.asarray(values @ components[:, -_COORDINATES:])


def tolerances(thumbs: NDArray[np.uint8]) -> Floats:
    """Return each thumbnail's tolerance, a root mean square difference in grey levels: float64,
    shape (n,).
    """
    contrast = thumbs[:, :BRIGHTNESS].std(axis=1)
    least = np.minimum(_MIN_TOLERANCE, _MIN_SHARE * contrast)
    return np.asarray(np.maximum(np.maximum(least, _TOLERANCE * contrast), _TINY))


def _connected_components(pairs: GroupIndices, count: int) -> GroupIndices:
    """Return, for each of ``count`` points, the first of those that ``pairs`` connect with it."""
    first = np.arange(count)
    one, other = pairs.T
    while True:
        lower = first.copy()
        # Each moves whole groups.
        np.minimum.at(lower, first[one], first[other])
        np.minimum.at(lower, first[other], first[one])
        lower = lower[lower]
        if np.array_equal(lower, first):
            return first
        first = lower


def _find_neighbours(points: Floats) -> GroupIndices:
    """Find pairs of points that may be within 1 of each other: for each point at least its
    nearest. Shape (n, 2).
    """
    if len(points) <= MAX_ALL_PAIRS_IMAGES:
        count = min(_CANDIDATES, len(points))
        norms = np.square(points).sum(axis=1)
        squares = norms[:, None] + norms - 2.0 * points @ points.T
        crowded = np.flatnonzero(np.count_nonzero(squares <= _SLACK**2, axis=1) > 1)
        neighbours = squares[crowded].argpartition(count - 1)[:, :count]
        near = squares[crowded[:, None], neighbours] <= _SLACK**2
    else:
        from scipy.spatial import cKDTree  # deferred: importing it takes a third of a second

        _, neighbours = cKDTree(points).query(points, k=_CANDIDATES, distance_upper_bound=_SLACK)
        crowded = np.arange(len(points))
        near = neighbours < len(points)  # the tree returns its length where there is no neighbour
    near &= neighbours != crowded[:, None]
    row, column = np.nonzero(near)
    return np.stack([crowded[row], neighbours[row, column]], axis=1)


NOTABLE_SHARE = 0.01
"""Share of duplicates at which a warning is issued. Smaller shares are only recorded: most photo
collections have a few duplicates.
"""
# The same threshold for exact and near duplicates together: simple images may look alike by chance.
_NOTABLE_NEAR_SHARE = 0.05
# Sets of simple images naturally have duplicates. FAKE's share of duplicates is therefore compared
# with REAL's: it is unusual from this multiple of it, or this much above it, whichever is less.
_TIMES_REAL = 2.0
_BEYOND_REAL = 0.1
# No kind of images naturally has a larger share of near duplicates. It is also the largest share
# that REAL can excuse: a small REAL says little about a large FAKE.
_MAX_NATURAL_SHARE = 0.5
# Fewer duplicates than this are regarded as accidental, even in a small set.
_MIN_COPIES = 2
COPIES = "copies"
"""Code of the finding about duplicates."""
# Maximum number of groups of duplicates listed as examples, and of files listed per group.
_GROUPS = 8
_FILES = 8
# Share of the repeated images that must follow the pattern of a common seed.
_MAX_REPEATED = 0.8
# Share of the set's images that must occur more than once for that pattern: all would if each
# process had generated the same ones, but some may not be recognised.
_MIN_REPEATED_SHARE = 0.5


@dataclass(frozen=True)
class SameSeed:
    """How the duplicates are arranged that processes with the same seed made.

    Attributes:
        multiplicity: how often most repeated images occur.
        stride: distance from one to the next, in files in natural order of the names.
    """

    multiplicity: int
    stride: int


@dataclass(frozen=True)
class Duplicates:
    """The duplicates in a set, in numbers.

    Attributes:
        images: number of images.
        unique: number of different images.
        exact: number of images that are pixel-identical to an earlier image.
        near: number of other images that are near duplicates of an earlier image, for example
            re-encoded.
        multiplicities: maps a number of occurrences to the number of different images that occur
            that many times.
        pattern: how the duplicates are arranged, if processes seem to have sampled with the same
            seed; else None.
        examples: files of some duplicated images, the most frequent image first.
        complete: whether near duplicates were searched for; False if there were too many images.
    """

    images: int
    unique: int
    exact: int
    near: int
    multiplicities: dict[int, int]
    pattern: SameSeed | None
    examples: tuple[tuple[str, ...], ...]
    complete: bool = True

    DERIVED = ("unique_fraction", "copies")

    @property
    def copies(self) -> int:
        """Number of images that are exact or near duplicates of an earlier image."""
        return self.images - self.unique

    @property
    def share(self) -> float:
        """Duplicates as a fraction of the images, 0 to 1."""
        return self.copies / max(1, self.images)

    @property
    def unique_fraction(self) -> float:
        """Different images as a fraction of the images, 0 to 1."""
        return self.unique / max(1, self.images)  # 0 only in a result that was changed


@dataclass(frozen=True)
class SharedCopies:
    """Images of FAKE that are pixel-identical to an image of REAL.

    Attributes:
        count: number of such images in FAKE.
        examples: pairs of files, FAKE's and REAL's.
    """

    count: int
    examples: tuple[tuple[str, str], ...]


def find_duplicates(images: ImageRecords) -> Duplicates:
    """Find the duplicates in a set, see `fidtool.diagnose.duplicates`."""
    exact, near = find_copies(images.records)
    groups = exact if near is None else near
    firsts, counts = np.unique(groups, return_counts=True)
    copies = len(images) - len(firsts)
    exact_copies = len(images) - len(np.unique(exact))
    kinds, numbers = np.unique(counts, return_counts=True)
    examples = []
    for group in np.argsort(-counts, kind="stable")[:_GROUPS]:
        if counts[group] > 1:
            members = np.flatnonzero(groups == firsts[group])[:_FILES]
            examples.append(tuple(images.file(int(image)) for image in members))
    pattern = None
    if copies >= NOTABLE_SHARE * len(images):
        pattern = find_same_seed(images.names, groups)
    return Duplicates(
        images=len(images),
        unique=len(firsts),
        exact=exact_copies,
        near=copies - exact_copies,
        multiplicities=dict(zip(kinds.tolist(), numbers.tolist(), strict=True)),
        pattern=pattern,
        examples=tuple(examples),
        complete=near is not None,
    )


def find_same_seed(names: Sequence[str], groups: GroupIndices) -> SameSeed | None:
    """Find out whether several processes that sampled with the same seed wrote a set.

    Most images then occur equally often, once less if the last batch is not full, at a constant
    distance in natural order of the names: next to each other if the processes wrote in turn, else
    one process's images apart.
    """
    stems = {re.sub(r"\.[A-Za-z]\w*$", "", name) for name in names}
    if 2 * len(stems) <= len(names):
        return None  # each image is stored in several formats
    sizes = np.unique(groups, return_counts=True)[1]
    sizes = sizes[sizes > 1]
    if len(sizes) < 2 or sizes.sum() < _MIN_REPEATED_SHARE * len(names):
        return None
    multiplicity = int(np.quantile(sizes, _MAX_REPEATED, method="higher"))
    as_often = (sizes == multiplicity) | (sizes == multiplicity - 1)
    order = sorted(range(len(names)), key=lambda place: natural_key(names[place]))
    placed = groups[order]
    by_group = np.argsort(placed, kind="stable")
    is_same = np.diff(placed[by_group]) == 0
    steps, numbers = np.unique(np.diff(by_group)[is_same], return_counts=True)
    if (
        sizes[as_often].sum() < _MAX_REPEATED * sizes.sum()
        or numbers.max() < _MAX_REPEATED * numbers.sum()
    ):
        return None
    return SameSeed(multiplicity, int(steps[numbers.argmax()]))


def find_shared_copies(real: ImageRecords, fake: ImageRecords) -> SharedCopies:
    """Find the images of FAKE that are also in REAL, except those of a single colour."""
    digests = real.records["digest"]
    own = fake.records["digest"]
    shared = np.flatnonzero(np.isin(own, digests) & (fake.records["low"] < fake.records["high"]))
    examples = []
    for image in shared[:_FILES].tolist():
        partner = int((digests == own[image]).argmax())
        examples.append((fake.file(image), real.file(partner)))
    return SharedCopies(len(shared), tuple(examples))


def has_notable_copies(fake: Duplicates, real: Duplicates | None) -> bool:
    """Return whether ``fake`` has more duplicates than is natural for its kind of images, judged
    by ``real``.
    """
    if fake.copies < _MIN_COPIES:
        return False
    exact = usual = 0.0
    if real is not None:
        exact = real.exact / real.images
        usual = exact
        if real.near >= _MIN_COPIES:
            # Any two images of REAL's kind are near duplicates at about the rate of its near ones,
            # divided by its images.
            times = max(1.0, fake.images / real.images)
            near = 1.0 - math.exp(-real.near / real.images * times)
            usual += min(near, _MAX_NATURAL_SHARE)
    most_exact = min(_TIMES_REAL * exact, exact + _BEYOND_REAL)
    most = min(_TIMES_REAL * usual, usual + _BEYOND_REAL)
    exact_share = fake.exact / fake.images
    return exact_share >= max(NOTABLE_SHARE, most_exact) or fake.share >= max(
        _NOTABLE_NEAR_SHARE, most
    )


def has_unnatural_copies(duplicates: Duplicates) -> bool:
    """Return whether a set has more duplicates than any kind of images naturally has."""
    fewest = max(NOTABLE_SHARE * duplicates.images, _MIN_COPIES)
    return duplicates.exact >= fewest or duplicates.share >= _MAX_NATURAL_SHARE


def are_dependent(fake: Duplicates, real: Duplicates | None) -> bool:
    """Return whether ``fake`` has too many duplicates for its images to be treated as independent
    samples.
    """
    usual = 0.0 if real is None else real.share
    most = max(_NOTABLE_NEAR_SHARE, usual)
    return fake.exact >= NOTABLE_SHARE * fake.images or fake.share >= most


# --- messages -------------------------------------------------------------------------------------


def describe_duplicates(duplicates: Duplicates) -> str:
    """Return how many duplicates a set with at least one has, and of which kinds."""
    kinds = {"exact": duplicates.exact, "near": duplicates.near}
    named = " or ".join(kind for kind, number in kinds.items() if number)
    pattern = duplicates.pattern
    described = f"{duplicates.unique} different images"
    if duplicates.unique == 1:
        described = f"the same image {duplicates.images} times"
    elif pattern is None:
        repeated = duplicates.unique - duplicates.multiplicities.get(1, 0)
        described += f", {repeated} of them repeated"
    else:
        apart = format_count(pattern.stride, "file")
        described += f", mostly {pattern.multiplicity} times each, {apart} apart"
    return (
        f"{duplicates.copies} of {duplicates.images} images ({duplicates.share:.0%}) are {named} "
        f"duplicates: {described}"
    )


def copies_finding(duplicates: Duplicates, generated: bool) -> Finding:
    """Return the finding about a set with at least one duplicate."""
    pattern = duplicates.pattern
    remedy = "give each sample its own seed, fidtool.sample_seed(seed, i) for sample i"
    if not generated:
        remedy = "every duplicate counts in the statistics, so remove unintended ones"
    elif pattern is None:
        remedy = f"if these are generated samples, {remedy}"
    else:
        remedy = (
            f"it looks as if {pattern.multiplicity} processes used the same random seed, or each "
            f"batch started from it: {remedy}"
        )
    example = duplicates.examples[0][0] if duplicates.examples else ""
    return Finding(
        COPIES, "high", duplicates.copies, example, f"{describe_duplicates(duplicates)}; {remedy}"
    )


def leak_finding(real: str, shared: SharedCopies, images: int) -> Finding:
    """Return the finding about images of FAKE, of which there are ``images``, that are also in
    REAL.
    """
    one, other = shared.examples[0]
    message = (
        f"{shared.count} of {images} images are pixel-identical to images in {real} (for example "
        f"{one} and {other}): remove real images that were mixed in; if none were, the generator "
        "has memorised training images"
    )
    severity: Severity = "high" if shared.count >= NOTABLE_SHARE * images else "medium"
    return Finding("leak", severity, shared.count, one, message, "pair")
