"""Records of batches: the same bytes as those of a plain implementation for single images."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.reading import records
from fidtool.reading.decode import DecodedImage, ImageProperties
from fidtool.reading.records import RECORD, is_detailed, make_records
from support.record_reference import reference_record

KINDS = ("noise", "gray", "flat", "black", "few values", "smooth", "dark", "ramp")


def pixels_of(kind: str, height: int, width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    noise = rng.integers(0, 256, (height, width, 3))
    made = {
        "noise": noise,
        "gray": np.repeat(noise[..., :1], 3, axis=2),
        "flat": np.full_like(noise, rng.integers(0, 256)),
        "black": np.where(rng.random((height, width, 1)) < 0.5, 0, noise),
        "few values": noise // 128 * 255,
        "smooth": np.cumsum(noise % 5 - 2, axis=1) + 128,
        "dark": noise // 255,
        "ramp": np.broadcast_to(np.arange(width)[:, None], noise.shape),
    }[kind]
    return made.clip(0, 255).astype(np.uint8)


def random_image(height: int, width: int, rng: np.random.Generator) -> DecodedImage:
    file_format, mode = (
        str(rng.choice(["PNG", "JPEG2000", "a long name", ""])),
        str(rng.choice(["RGB", "I;16B", ""])),
    )
    properties = ImageProperties(*rng.integers(0, 2, 6).tolist())
    pixels = pixels_of(str(rng.choice(KINDS)), height, width, rng)
    return DecodedImage(pixels, properties, file_format, mode, int(rng.integers(0, 101)))


def assert_like_the_reference(images: list[DecodedImage]) -> None:
    expected = np.concatenate([reference_record(image) for image in images])
    found = make_records(images)
    assert found.dtype == RECORD
    for name in RECORD.names or ():
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_of_mixed_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [(int(rng.integers(1, 301)), int(rng.integers(1, 201))) for _ in range(4)]
    sizes += [(int(rng.integers(1, 12)), int(rng.integers(1, 12))) for _ in range(4)]
    assert_like_the_reference(
        [random_image(*sizes[place], rng) for place in rng.integers(0, len(sizes), 24)]
    )


@pytest.mark.parametrize("size", [(1, 1), (7, 1), (32, 32), (127, 127), (128, 129), (191, 255)])
def test_each_kind_of_image(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    pixels = [pixels_of(kind, *size, rng) for kind in KINDS]
    pixels.append(pixels[0][:, ::-1])  # not contiguous
    assert_like_the_reference(
        [DecodedImage(each, ImageProperties(), "PNG", "RGB", 0) for each in pixels]
    )


@pytest.mark.parametrize("form", ["{}.png", "n01440764/{:08}.JPEG", "[{}]", "sample {:06} é.webp"])
def test_the_sample_of_a_set_whose_detail_is_measured(form: str) -> None:
    names = [form.format(number) for number in range(20_000)]

    def sample(count: int) -> set[str]:
        return {name for name in names[:count] if is_detailed(name, count)}

    assert len(sample(2048)) == 2048
    for count in (3000, 8000, 20_000):
        assert 1850 < len(sample(count)) < 2250
        assert sample(20_000) & {*names[:count]} <= sample(count), "a larger set needs no more"
        first = len(sample(count) & {*names[: count // 2]})
        assert 850 < first < 1200, "it is evenly distributed"


def test_detail_is_measured_of_some_images() -> None:
    """All else is recorded of each image."""
    rng = np.random.default_rng(6)
    images = [random_image(20, 20 + number % 2, rng) for number in range(8)]
    expected = make_records(images)
    measured = [1, 3, 4, 6]
    found = make_records(images, [number in measured for number in range(8)])
    assert found[measured].tobytes() == expected[measured].tobytes()
    detail = ["lowest", "highest", "bands", "repeats"]
    others = [name for name in RECORD.names or () if name not in detail]
    assert (found[others] == expected[others]).all()
    found[measured] = 0
    assert not any(found[name].any() for name in detail)


def test_stripes_that_the_sample_does_not_see(recwarn: pytest.WarningsRecorder) -> None:
    """All sampled values are equal, and their neighbours are not."""
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[:, 1::2] = 255
    (record,) = records.make_records([DecodedImage(pixels, ImageProperties(), "PNG", "RGB", 0)])
    assert record["roughness"] == 0
    assert not recwarn.list
