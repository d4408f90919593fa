"""Search for duplicates in a set of images: exact duplicates, and near duplicates such as re-encoded images.

Exact duplicates are pixel-identical. Near duplicates have thumbnails that differ about as little as lossy compression
changes them: JPEG at quality 50 changes a thumbnail by up to 7 % of its contrast, whereas the two most similar of 512
CIFAR-10 images differ by 50 %, and of 240 photos of flowers by 37 %. Mirrored, cropped or shifted images are not
duplicates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fidtool.images.records import BRIGHTNESS, NOISE, RecordArray

_TOLERANCE = 0.06
"""Thumbnails are near duplicates up to this root mean square difference, as a share of their contrast (the standard
deviation of their brightness)."""
_LEAST_TOLERANCE = 0.75
"""Lower bound of the tolerance, in grey levels: at low contrast, the rounding of thumbnails to integers matters."""
_LEAST_SHARE = 0.25
"""Limit of that lower bound, as a share of the contrast: images of almost no contrast look alike without being
duplicates."""
_TINY = 0.05
"""Tolerance for images without contrast, in grey levels: less than any two unequal thumbnails differ."""
_MOST = 500_000
"""With more different images than this, only exact duplicates are searched for, to limit memory."""
_COORDINATES = 16
"""Principal components of the thumbnails in which neighbours are searched for. The projection never increases a
distance, so it loses no near duplicates."""
_CANDIDATES = 6
"""Neighbours that the k-d tree returns for each image, including the image itself."""
_MEAN_WEIGHT = 0.3
"""Weight of the mean brightness in the search: a larger one would separate near duplicates whose contrasts differ by
rounding."""
_SLACK = 1.2
"""Search radius, in tolerances. It exceeds 1 because each image is scaled by its own tolerance; the candidates are then
compared exactly."""
_FEW = 1024
"""Up to this many images, all pairs are compared; for more, a k-d tree finds candidates."""
_PAIRS = 100_000
"""Candidate pairs that are compared at a time, to limit memory."""

Groups = NDArray[np.int64]
"""Shape (images,): for each image, the index of the first image in the set's order that it is a duplicate of; its own
index if there is none."""


def find_copies(records: RecordArray) -> tuple[Groups, Groups | None]:
    """Returns the groups of exact duplicates in a set, and those of exact and near ones.

    The latter are None if there are too many images to search for them. Images that look like noise have only exact
    ones.
    """
    exact = _firsts(records["digest"])
    # The thumbnails of noise are all alike, so that every pair of them would be a near duplicate.
    different = np.flatnonzero(np.equal(exact, np.arange(len(exact))) & (records["roughness"] < NOISE))
    if len(different) > _MOST:
        return exact, None
    # The search sees one image of each group of exact duplicates, and each distinct thumbnail once.
    thumbs = np.ascontiguousarray(records["thumb"][different])
    same = _firsts(thumbs.view(f"V{thumbs.shape[1]}").reshape(-1))
    kinds = np.flatnonzero(np.equal(same, np.arange(len(same))))
    leader = np.arange(len(different))
    leader[kinds] = kinds[_leaders(thumbs[kinds])]
    leader = leader[same]
    near = np.arange(len(exact))
    near[different] = different[leader]
    return exact, near[exact]


def find_shared_copies(real: RecordArray, fake: RecordArray) -> NDArray[np.int64]:
    """Images of ``fake`` identical to one of ``real``, except plain ones: int64 of shape (pairs, 2), fake first."""
    order = np.argsort(real["digest"], kind="stable")
    digests = real["digest"][order]
    positions = np.searchsorted(digests, fake["digest"])
    equal = digests[np.minimum(positions, len(digests) - 1)] == fake["digest"]
    found = np.flatnonzero(equal & (fake["low"] < fake["high"]))
    return np.stack([found, order[positions[found]]], axis=1)


def _firsts(values: NDArray[np.generic]) -> Groups:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    result: Groups = first[inverse.reshape(-1)].astype(np.int64)
    return result


def _leaders(thumbs: NDArray[np.uint8]) -> Groups:
    """Returns, for each thumbnail, the index of the first thumbnail of its group of near duplicates.

    Each round joins neighbours into groups and continues with the first of each group, until no two of these are near
    duplicates. Pairs are therefore linear in the number of images even if one image occurs ten thousand times.
    """
    leader = np.arange(len(thumbs))
    if len(thumbs) < 2:
        return leader
    tolerance = tolerances(thumbs)
    points = _coordinates(thumbs, tolerance)
    alive = leader
    while len(pairs := _near_pairs(thumbs, tolerance, points, alive)):
        groups = _joined(len(alive), pairs)
        leader = alive[groups][np.searchsorted(alive, leader)]
        alive = np.unique(leader)
    return leader


def tolerances(thumbs: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns each thumbnail's tolerance, a root mean square difference in grey levels: float64, shape (n,)."""
    contrast = thumbs[:, :BRIGHTNESS].std(axis=1)
    least = np.minimum(_LEAST_TOLERANCE, _LEAST_SHARE * contrast)
    result: NDArray[np.float64] = np.maximum(np.maximum(least, _TOLERANCE * contrast), _TINY)
    return result


def _coordinates(thumbs: NDArray[np.uint8], tolerance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Maps thumbnails to points: those of near duplicates are at most `_SLACK` apart. Shape (n, coordinates)."""
    values = thumbs.astype(np.float32)
    brightness = values[:, :BRIGHTNESS]
    mean = brightness.mean(axis=1, keepdims=True)
    brightness -= mean
    values[:, BRIGHTNESS:] -= 128.0
    values = np.concatenate([values, _MEAN_WEIGHT * np.sqrt(BRIGHTNESS) * mean], axis=1)
    values /= (tolerance * np.sqrt(thumbs.shape[1])).astype(np.float32)[:, None]
    values -= values.mean(axis=0)
    _, axes = np.linalg.eigh(values.T @ values)
    points: NDArray[np.float64] = (values @ axes[:, -_COORDINATES:]).astype(np.float64)
    return points


def _near_pairs(
    thumbs: NDArray[np.uint8], tolerance: NDArray[np.float64], points: NDArray[np.float64], alive: Groups
) -> NDArray[np.int64]:
    """Finds pairs of near duplicates, as indices into ``alive``: for each image some of its nearest. Shape (n, 2)."""
    pairs = _neighbours(points[alive])
    parts = np.array_split(pairs, -(-len(pairs) // _PAIRS) or 1)
    return np.concatenate([part[_are_near(thumbs, tolerance, alive[part])] for part in parts])


def _neighbours(points: NDArray[np.float64]) -> Groups:
    """Finds pairs of points that may be within 1 of each other: for each point at least its nearest. Shape (n, 2)."""
    if len(points) <= _FEW:
        squares = np.square(points).sum(axis=1)
        distances = squares[:, None] + squares - 2.0 * points @ points.T
        return np.argwhere(np.triu(distances <= _SLACK**2, 1))
    from scipy.spatial import cKDTree  # importing it takes as long as ten images on two cores

    count = min(_CANDIDATES, len(points))
    _, neighbours = cKDTree(points).query(points, k=count, distance_upper_bound=_SLACK)
    first = np.repeat(np.arange(len(points)), count)
    second = neighbours.reshape(-1)
    other = (second < len(points)) & (first != second)  # the tree returns its length where there is no neighbour
    return np.stack([first[other], second[other]], axis=1)


def _are_near(thumbs: NDArray[np.uint8], tolerance: NDArray[np.float64], pairs: Groups) -> NDArray[np.bool_]:
    one, other = thumbs[pairs].astype(np.int32).transpose(1, 0, 2)
    squares = np.square(one - other).mean(axis=1)
    result: NDArray[np.bool_] = squares <= tolerance[pairs].min(axis=1) ** 2
    return result


def _joined(count: int, pairs: NDArray[np.int64]) -> Groups:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    return _firsts(labels)
