"""Whether images of pairs are in different orders, by their thumbnails: what is found, and what is
no fault.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.diagnose.order import SAMPLE, find_misplaced
from fidtool.reading.records import thumbnails

Images = NDArray[np.uint8]
SIDE = 16


def pictures(count: int = 60, contrast: float = 50.0) -> Images:
    """Return smooth images, shape (count, SIDE, SIDE, 3), of random colours and of this
    contrast.
    """
    rng = np.random.default_rng(0)
    coarse = rng.normal(128, contrast, (count, 1, 1, 3)) + rng.normal(0, contrast, (count, 4, 4, 3))
    return as_bytes(coarse.repeat(SIDE // 4, axis=1).repeat(SIDE // 4, axis=2))


def frames() -> Images:
    """Return 10 frames, nearly identical, of a square that moves."""
    found = np.repeat(pictures(1), 10, axis=0)
    for number, frame in enumerate(found):
        frame[6:10, number : number + 4] = 250
    return found


def as_bytes(values: NDArray[np.float64]) -> Images:
    return values.round().clip(0, 255).astype(np.uint8)


def noisy(images: Images, scale: float = 20.0) -> Images:
    return as_bytes(images + np.random.default_rng(1).normal(0, scale, images.shape))


def mean_colours(images: Images) -> Images:
    return as_bytes(np.broadcast_to(images.mean(axis=(1, 2), keepdims=True), images.shape))


def blurred(images: Images) -> Images:
    return as_bytes(
        sum(
            np.roll(images.astype(float), (x, y), (1, 2))
            for x in range(-2, 3)
            for y in range(-2, 3)
        )
        / 25
    )


def lighter(images: Images) -> Images:
    return as_bytes(0.7 * images + 60.0)


def faint(images: Images) -> Images:
    """Return what an untrained network may: almost the same image each time."""
    return noisy(as_bytes(0.02 * images + 120.0), 10.0)


def number_of(real: Images, fake: Images) -> int:
    return len(find_misplaced(thumbnails(real), thumbnails(fake))[0])


@pytest.mark.parametrize("change", [np.copy, noisy, mean_colours, blurred, lighter, faint])
@pytest.mark.parametrize("made", [pictures, frames, lambda: pictures(contrast=6.0)])
def test_partners_are_no_fault(
    made: Callable[[], Images], change: Callable[[Images], Images]
) -> None:
    real = made()
    assert number_of(real, change(real)) == 0


@pytest.mark.parametrize("change", [np.copy, noisy, mean_colours, blurred, lighter])
def test_another_order_is_found(change: Callable[[Images], Images]) -> None:
    real = pictures()
    fake = change(real)
    for order in (
        np.roll(np.arange(60), 1),
        np.random.default_rng(2).permutation(60),
        sorted(range(60), key=str),
    ):
        found, others = find_misplaced(thumbnails(real), thumbnails(fake[order]))
        assert len(found) > (15 if change is mean_colours else 30)
        if change is np.copy:
            assert np.array_equal(others, np.asarray(order)[found])


def test_frames_in_another_order_are_found() -> None:
    assert number_of(frames(), frames()[[1, 0, *range(2, 10)]]) == 2
    assert number_of(frames(), frames()[::-1]) >= 8


@pytest.mark.parametrize(("swapped", "found"), [(0, 0), (8, 0), (10, 10)])
def test_few_in_another_place_are_accepted(swapped: int, found: int) -> None:
    """Below 15 %, as some images resemble each other."""
    real = pictures()
    order = np.arange(60)
    order[:swapped] = np.roll(order[:swapped], 1)
    assert number_of(real, real[order]) == found


def test_a_sample_is_compared_with_all() -> None:
    """In blocks; the partner is never its own rival."""
    rng = np.random.default_rng(3)
    real = rng.integers(0, 256, (40_000, 72)).astype(np.uint8)
    assert len(find_misplaced(real, real)[0]) == 0
    found, others = find_misplaced(real, real[::-1])
    assert np.array_equal(found, np.arange(SAMPLE))
    assert np.array_equal(others, len(real) - 1 - np.arange(SAMPLE))


@pytest.mark.parametrize("count", [0, 1])
def test_single_pairs_have_no_order(count: int) -> None:
    thumbs = thumbnails(pictures(2))
    assert len(find_misplaced(thumbs[:count], thumbs[1 : 1 + count])[0]) == 0
