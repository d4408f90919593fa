"""Which images of a set are the same picture: exact copies, and copies that were re-encoded.

Exact copies have the same pixels. Near copies have thumbnails that differ by less than an encoder's losses: JPEG at
quality 50 moves them by up to 7 % of their contrast, while the nearest two of 512 CIFAR-10 images differ by 50 % and of
240 photos of flowers by 37 %. A mirrored, cropped or shifted picture is a different one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fidtool.images.records import BRIGHTNESS, NOISE, RecordArray

_TOLERANCE = 0.06
"""Root mean square difference of near copies' thumbnails, as a share of their contrast."""
_LEAST_TOLERANCE = 0.75
"""The same in grey levels, for pictures of little contrast: thumbnails are rounded."""
_LEAST_SHARE = 0.25
"""But no more than this share of their contrast: pictures of next to none look alike and need not be copies."""
_TINY = 0.05
"""Grey levels below any difference of two thumbnails."""
_MOST = 500_000
"""Beyond so many different pictures only exact copies are looked for: the search takes memory."""
_COORDINATES = 16
"""The search is in the thumbnails' first principal components, in which distances are no larger."""
_CANDIDATES = 6
_MEAN_WEIGHT = 0.3
"""Of the mean brightness in the search: more of it would tell copies apart whose contrasts differ by rounding."""
_SLACK = 1.2
_FEW = 1024
"""So many are compared each with each."""
_PAIRS = 100_000
"""So many are compared at a time."""

Groups = NDArray[np.int64]
"""Shape (images,): for each image the index of the first one, in the set's order, that is the same picture."""


@dataclass(frozen=True)
class Copies:
    """The copies in a set, by image.

    Attributes:
        exact: groups of equal pixels.
        near: groups of equal or nearly equal pictures, each of whole groups of ``exact``.
        complete: whether near copies were looked for; else there were too many pictures.
    """

    exact: Groups
    near: Groups
    complete: bool = True

    @property
    def originals(self) -> NDArray[np.bool_]:
        """Shape (images,): whether an image is the first of its picture."""
        return np.equal(self.near, np.arange(len(self.near)))

    @property
    def unique(self) -> int:
        """Number of different pictures."""
        return int(self.originals.sum())

    @property
    def copies(self) -> int:
        """Number of images that are not the first of their picture."""
        return len(self.near) - self.unique

    @property
    def exact_copies(self) -> int:
        """Number of images that have the pixels of an earlier one."""
        return len(self.exact) - len(np.unique(self.exact))


def find_copies(records: RecordArray) -> Copies:
    """Groups the images of a set by what they show; of images like noise only exact copies are found.

    Args:
        records: one per image, see `fidtool.images.records.RECORD`.
    """
    exact = _firsts(records["digest"])
    # The thumbnails of noise are all alike: none would be spared, and a pair says nothing.
    pictures = np.flatnonzero(np.equal(exact, np.arange(len(exact))) & (records["roughness"] < NOISE))
    if len(pictures) > _MOST:
        return Copies(exact, exact, complete=False)
    # Of exact copies one is looked at, and of thumbnails that are equal to the byte one, too.
    thumbs = np.ascontiguousarray(records["thumb"][pictures])
    same = _firsts(thumbs.view(f"V{thumbs.shape[1]}").reshape(-1))
    kinds = np.flatnonzero(np.equal(same, np.arange(len(same))))
    leader = np.arange(len(pictures))
    leader[kinds] = kinds[_leaders(thumbs[kinds])]
    leader = leader[same]
    near = np.arange(len(exact))
    near[pictures] = pictures[leader]
    return Copies(exact, near[exact])


def find_shared_copies(real: RecordArray, fake: RecordArray) -> NDArray[np.int64]:
    """The images of ``fake`` that equal one of ``real`` to the pixel.

    Images of one colour do not count: they are not learnt from REAL.

    Returns:
        int64 array of shape (pairs, 2): index in ``fake``, index in ``real``.
    """
    order = np.argsort(real["digest"], kind="stable")
    digests = real["digest"][order]
    places = np.searchsorted(digests, fake["digest"])
    equal = digests[np.minimum(places, len(digests) - 1)] == fake["digest"]
    found = np.flatnonzero(equal & (fake["low"] < fake["high"]))
    return np.stack([found, order[places[found]]], axis=1)


def _firsts(values: NDArray[np.generic]) -> Groups:
    """For each value the index of the first one that equals it."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    result: Groups = first[inverse.reshape(-1)].astype(np.int64)
    return result


def _leaders(thumbs: NDArray[np.uint8]) -> Groups:
    """For each thumbnail the index of the first one that it is a near copy of, or its own.

    Each round joins neighbours to groups and goes on with the first of each group, until none of these are near each
    other: a picture that occurs ten thousand times makes no more pairs than images.
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
    """Root mean square differences up to which thumbnails are near copies, in grey levels: float64, shape (n,)."""
    contrast = thumbs[:, :BRIGHTNESS].std(axis=1)
    least = np.minimum(_LEAST_TOLERANCE, _LEAST_SHARE * contrast)
    result: NDArray[np.float64] = np.maximum(np.maximum(least, _TOLERANCE * contrast), _TINY)
    return result


def _coordinates(thumbs: NDArray[np.uint8], tolerance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points in which near copies lie within 1 of each other, up to `_SLACK`: shape (n, coordinates)."""
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
    """Pairs of near copies among ``alive``, as indices into it; some of the nearest of each. Shape (n, 2)."""
    pairs = _neighbours(points[alive])
    parts = np.array_split(pairs, -(-len(pairs) // _PAIRS) or 1)
    return np.concatenate([part[_are_near(thumbs, tolerance, alive[part])] for part in parts])


def _neighbours(points: NDArray[np.float64]) -> Groups:
    """Pairs of points that may be within 1 of each other, for each at least the nearest one. Shape (n, 2)."""
    if len(points) <= _FEW:
        squares = np.square(points).sum(axis=1)
        distances = squares[:, None] + squares - 2.0 * points @ points.T
        return np.argwhere(np.triu(distances <= _SLACK**2, 1))
    from scipy.spatial import cKDTree  # takes as long to import as ten images take on two cores

    count = min(_CANDIDATES, len(points))
    _, neighbours = cKDTree(points).query(points, k=count, distance_upper_bound=_SLACK)
    first = np.repeat(np.arange(len(points)), count)
    second = neighbours.reshape(-1)
    other = (second < len(points)) & (first != second)  # a place without a neighbour has the tree's length
    return np.stack([first[other], second[other]], axis=1)


def _are_near(thumbs: NDArray[np.uint8], tolerance: NDArray[np.float64], pairs: Groups) -> NDArray[np.bool_]:
    one, other = thumbs[pairs].astype(np.int32).transpose(1, 0, 2)
    squares = np.square(one - other).mean(axis=1)
    result: NDArray[np.bool_] = squares <= tolerance[pairs].min(axis=1) ** 2
    return result


def _joined(count: int, pairs: NDArray[np.int64]) -> Groups:
    """For each of ``count`` points the index of the first one that it is joined with."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    return _firsts(labels)
