"""Search for exact and near duplicates, without false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.diagnose import duplicates
from fidtool.diagnose.duplicates import (
    SharedCopies,
    find_copies,
    find_duplicates,
    find_shared_copies,
    has_notable_copies,
)
from fidtool.reading.records import BRIGHTNESS, RECORD, ImageRecords, RecordArray
from support.degenerate import records_of, sample
from support.encoded import encoded


class TestInspection:
    @pytest.mark.parametrize("quality", [1, 35, 50, 75, 99])
    def test_jpeg_quality_is_estimated(self, quality: int) -> None:
        (record,) = records_of([encoded(sample(1), "JPEG", quality=quality)])
        assert record["quality"] == quality


def near_copies(records: RecordArray) -> list[int]:
    """The first image that each is a duplicate of, exact or near."""
    near = find_copies(records)[1]
    assert near is not None
    return [int(first) for first in near]


class TestCopies:
    def test_equal_pixels_in_any_format_are_exact_duplicates(self) -> None:
        files = [
            encoded(sample(0)),
            encoded(sample(1)),
            encoded(sample(0), "BMP"),
            encoded(sample(0), "PNG"),
        ]
        records = records_of(files)
        assert find_copies(records)[0].tolist() == near_copies(records) == [0, 1, 0, 0]

    def test_an_image_that_differs_by_one_grey_level_is_a_near_duplicate(self) -> None:
        other = sample(0).copy()
        other[3, 4, 1] ^= 1
        records = records_of([encoded(sample(0)), encoded(other), encoded(sample(1))])
        assert find_copies(records)[0].tolist() == [0, 1, 2]
        assert near_copies(records) == [0, 0, 2]

    def test_a_different_shape_is_not_an_exact_duplicate(self) -> None:
        flat = [np.full(shape, 9, dtype=np.uint8) for shape in ((4, 6, 3), (6, 4, 3))]
        assert find_copies(records_of([encoded(pixels) for pixels in flat]))[0].tolist() == [0, 1]

    def test_no_false_alarm_on_noise_and_smooth_images(self) -> None:
        rng = np.random.default_rng(0)
        noise = [encoded(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(300)]
        smooth = [encoded(sample(seed)) for seed in range(300)]
        assert near_copies(records_of(noise + smooth)) == [*range(600)]

    def test_the_groups_equal_those_of_comparing_all_pairs(self) -> None:
        rng = np.random.default_rng(2)
        base = [sample(seed) for seed in range(60)]
        files = [encoded(image) for image in base]
        files += [
            encoded(base[place], "JPEG", quality=int(rng.integers(80, 100)))
            for place in rng.integers(0, 60, 90)
        ]
        records = records_of(files)
        thumbs = records["thumb"].astype(np.float64)
        contrast = thumbs[:, :BRIGHTNESS].std(axis=1)
        assert contrast.min() > 3
        tolerance = np.maximum(0.75, 0.06 * contrast)
        rms = np.sqrt(((thumbs[:, None] - thumbs[None]) ** 2).mean(2))
        near = rms <= np.minimum(tolerance[:, None], tolerance[None])
        # The first near image; different images are far apart, so that near ones form groups.
        expected = near.argmax(1)
        assert near_copies(records) == expected.tolist()

    def test_what_two_sets_share(self) -> None:
        real, fake, other = (
            ImageRecords(
                records_of([encoded(sample(seed)) for seed in seeds]),
                [f"{name}{seed}" for seed in seeds],
            )
            for name, seeds in (
                ("real", (0, 1, 2, 3, 4)),
                ("fake", (9, 3, 8, 0)),
                ("other", (9, 8)),
            )
        )
        assert find_shared_copies(real, fake) == SharedCopies(
            2, (("fake3", "real3"), ("fake0", "real0"))
        )
        assert find_shared_copies(real, other) == SharedCopies(0, ())

    def test_only_exact_duplicates_of_noise_are_found(self) -> None:
        """Near duplicates of noise are not searched for, because all thumbnails of noise are
        alike.
        """
        rng = np.random.default_rng(7)
        pictures = [rng.integers(0, 256, (64, 64, 3), dtype=np.uint8) for _ in range(20)]
        records = records_of([encoded(picture) for picture in [*pictures, *pictures[:5]]])
        assert near_copies(records) == [*range(20), *range(5)]
        assert near_copies(
            records_of([encoded(pictures[0]), encoded(pictures[0], "JPEG", quality=95)])
        ) == [0, 1]


def test_natural_near_duplicates_of_simple_images() -> None:
    """Duplicates that REAL has as well are not reported for FAKE."""
    records = np.zeros(100, dtype=RECORD)
    records["digest"] = np.arange(100)
    records["thumb"][:90] = np.random.default_rng(0).integers(0, 256, (90, 72))
    pictures = ImageRecords(records, [f"{i}.png" for i in range(100)])
    duplicates = find_duplicates(pictures)
    assert (duplicates.exact, duplicates.near) == (0, 9)
    assert has_notable_copies(duplicates, None)
    assert not has_notable_copies(duplicates, duplicates)
    records["digest"][90:] = 7
    exact = find_duplicates(pictures)
    assert (exact.exact, exact.near) == (10, 0)
    assert has_notable_copies(exact, None)
    assert has_notable_copies(exact, duplicates)
    assert not has_notable_copies(exact, exact)


def near_thumbs(thumbs: NDArray[np.uint8]) -> list[int]:
    """The first thumbnail that each is a near duplicate of; no two images are equal."""
    records = np.zeros(len(thumbs), dtype=RECORD)
    records["digest"] = np.arange(len(thumbs))
    records["thumb"] = thumbs
    return near_copies(records)


def test_duplicates_that_differ_slightly_are_grouped() -> None:
    rng = np.random.RandomState(0)
    originals = rng.randint(0, 256, (150, 72))
    kinds = rng.randint(0, 150, 400)
    thumbs = (originals[kinds] + rng.randint(-1, 2, (400, 72))).clip(0, 255).astype(np.uint8)
    _, first, inverse = np.unique(kinds, return_index=True, return_inverse=True)
    assert np.array_equal(near_thumbs(thumbs), first[inverse])


def variants(count: int, kinds: int, noise: int, seed: int) -> NDArray[np.uint8]:
    """Different thumbnails, each a variant of one of ``kinds``, of which the first have most."""
    rng = np.random.default_rng(seed)
    originals = rng.integers(0, 256, (kinds, 72))
    chosen = np.minimum(rng.geometric(4 / (kinds + 3), count), kinds) - 1
    return np.unique(
        (originals[chosen] + rng.integers(-noise, noise + 1, (count, 72))).clip(0, 255), axis=0
    ).astype("u1")


@pytest.mark.parametrize(
    ("count", "kinds", "noise"), [(2, 1, 1), (5, 2, 9), (40, 4, 3), (900, 60, 2), (900, 60, 9)]
)
def test_a_small_set_is_grouped_as_with_the_tree(
    monkeypatch: pytest.MonkeyPatch, count: int, kinds: int, noise: int
) -> None:
    for seed in range(4):
        thumbs = variants(count, kinds, noise, seed)
        compared = near_thumbs(thumbs)
        with monkeypatch.context() as patch:
            patch.setattr(duplicates, "MAX_ALL_PAIRS_IMAGES", 0)
            assert near_thumbs(thumbs) == compared


@pytest.mark.parametrize("few", [0, 2000])
def test_the_frames_of_a_film_are_one_group(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Each is like the next, in whatever order, and the first and the last are not alike."""
    monkeypatch.setattr(duplicates, "MAX_ALL_PAIRS_IMAGES", few)
    frames = np.zeros((800, 72), np.uint8)
    frames[:, ::2] = 200
    for number in range(1, len(frames)):
        frames[number:, number % 72] += 4
    assert near_thumbs(frames[[0, -1]]) == [0, 1]
    assert not any(near_thumbs(np.random.default_rng(0).permutation(frames)))
