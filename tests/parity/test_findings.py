"""Findings about faulty images and about differences between sets, without false alarms for natural
properties.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from fidtool.diagnose.diagnosis import inspect_set, select_unusual
from fidtool.diagnose.differences import pair_findings
from fidtool.diagnose.order import find_misplaced
from fidtool.reading.decode import decode
from fidtool.reading.records import ImageRecords, RecordArray, make_records, thumbnails
from support import degenerate
from support.command_line import Run, messages
from support.degenerate import compared
from support.encoded import encoded
from support.places import CONFORMANCE
from support.shared_statistics import share_statistics

TRAIN = CONFORMANCE / "cifar10" / "train"


@pytest.fixture(autouse=True)
def kept(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cache the statistics of the photos that many of these tests compare with."""
    share_statistics(environment, tmp_path_factory.getbasetemp() / "findings-statistics")


@pytest.fixture
def photos() -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    files = sorted((CONFORMANCE / "cifar10" / "test").glob("*.png"))[:100]
    if not files:
        pytest.skip("needs the conformance images")
    return [np.asarray(Image.open(file).convert("RGB")) for file in files]


def enlarged(
    x: degenerate.Pixels, side: int, by: Image.Resampling, width: int | None = None
) -> degenerate.Pixels:
    """Shrink an image to this side, or this width and height, and enlarge it again."""
    small = Image.fromarray(x).resize((width or side, side), Image.Resampling.LANCZOS)
    return np.asarray(small.resize(x.shape[1::-1], by))


def codes(here: Run, real: Path, fake: Path) -> set[str]:
    return {each["code"] for each in compared(here, real, fake)[0]["diagnosis"]["findings"]}


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda x: x[..., ::-1], "swapped channels"),
        (lambda x: (x / 127.5 - 1).clip(0, 1) * 255, "negative"),
        (lambda x: (x / 255 + 1) / 2 * 255, "pale"),
        (lambda x: x / 255, "unscaled"),
        (lambda x: (x.astype(int) * 3 // 2) % 256, "rough"),
        (lambda x: x.transpose(2, 0, 1).reshape(x.shape), "colourless"),
        (lambda x: ((x / 255 - 0.45) / 0.23).clip(0, 1) * 255, "clipped"),
        (lambda x: 128 + (x.astype(float) - 128) * 0.3, "contrast"),
        (lambda x: x * 0.5, "brightness"),
        (lambda x: (x - x.min()) / (x.max() - x.min()) * 255, "stretched"),
        (lambda x: enlarged(x, 21, Image.Resampling.BICUBIC), "less detail"),
        (lambda x: enlarged(x, 16, Image.Resampling.NEAREST), "repeated pixels"),
        (lambda x: enlarged(x, 16, Image.Resampling.BICUBIC, width=32), "less detail"),
        (lambda x: np.repeat(x[::2], 2, axis=0), "repeated pixels"),
        (lambda x: np.mean([np.roll(x, step, axis=0) for step in range(4)], axis=0), "less detail"),
    ],
)
def test_wrong_values_and_layouts(
    here: Run, tmp_path: Path, photos: list[Any], make: Callable[[Any], Any], code: str
) -> None:
    broken = (np.ascontiguousarray(make(x)).astype(np.uint8) for x in photos)
    fake = degenerate.write(tmp_path / "fake", ((f"{i}.png", x) for i, x in enumerate(broken)))
    found = codes(here, TRAIN, fake)
    assert code in found
    assert "alike" not in found


@pytest.mark.parametrize("kind", ["jitter", "shift"])
def test_a_collapsed_generator(here: Run, tmp_path: Path, photos: list[Any], kind: str) -> None:
    """The images are similar but no duplicates."""
    rng = np.random.default_rng(1)

    def again(x: Any) -> Any:
        if kind == "shift":
            x = np.roll(x, rng.integers(-1, 2, 2), (0, 1))
        return (
            (x + rng.integers(-20, 20, (1, 1, 3)) + rng.integers(-8, 8, x.shape))
            .clip(0, 255)
            .astype(np.uint8)
        )

    fake = degenerate.write(tmp_path / "fake", ((f"{i}.png", again(photos[17])) for i in range(60)))
    result, _, _ = compared(here, TRAIN, fake)
    (alike,) = [each for each in result["diagnosis"]["findings"] if each["code"] == "alike"]
    assert (alike["set"], alike["severity"]) == ("pair", "high")
    assert any("has collapsed" in line for line in messages(result))


@pytest.mark.parametrize(
    "folders", [("cifar10/train", "cifar10/test"), ("flowers/daisy", "flowers/roses")]
)
def test_no_differences_between_photos_of_one_kind(folders: tuple[str, str]) -> None:
    """Nor between 20 random halves of each set."""
    sets = [records_in(CONFORMANCE / folder) for folder in folders]
    pairs = [sets, sets[::-1]]
    for each in sets:
        for seed in range(20):
            order = np.random.default_rng(seed).permutation(len(each))
            pairs.append([each[part] for part in np.split(order, 2)])
    assert [pair_findings(*(named(each) for each in pair), []) for pair in pairs] == [[]] * len(
        pairs
    )


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def shrunk(image: Image.Image, by: int, to: Image.Resampling) -> Image.Image:
    small = image.resize(
        (max(1, image.width // by), max(1, image.height // by)), Image.Resampling.BICUBIC
    )
    return small.resize(image.size, to)


def with_noise(image: Image.Image, scale: float) -> Image.Image:
    pixels = np.asarray(image)
    noise = np.random.default_rng(pixels.size).normal(0, scale, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


RECONSTRUCTIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    **{f"JPEG {quality}": partial(as_jpeg, quality=quality) for quality in (10, 30, 60, 95)},
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(min(image.size) / 10)),
    "super-resolved": partial(shrunk, by=4, to=Image.Resampling.BICUBIC),
    "noisy": partial(with_noise, scale=50.0),
    "mean colour": partial(shrunk, by=10_000, to=Image.Resampling.NEAREST),
    "paler": lambda image: image.point(lambda value: 60 + 0.7 * value),
    "gray": lambda image: image.convert("L").convert("RGB"),
}


@pytest.mark.parametrize("kind", RECONSTRUCTIONS)
@pytest.mark.parametrize("folder", ["cifar10/test", "flowers/roses", "frames"])
def test_only_reconstructions_in_another_order_are_said(folder: str, kind: str) -> None:
    """Of photos; frames are nearly identical, and bad reconstructions of them in any order are
    accepted.
    """
    if folder == "frames":
        (file,) = sorted((CONFORMANCE / "flowers/daisy").glob("*.jpg"))[:1]
        whole = Image.open(file).resize((200, 200))
        images = [whole.crop((number, number, number + 180, number + 180)) for number in range(10)]
    else:
        files = sorted((CONFORMANCE / folder).glob("*.[jp]*g"))
        images = [Image.open(file).convert("RGB") for file in files]
    change = RECONSTRUCTIONS[kind]
    real, fake = (
        np.concatenate([thumbnails(np.asarray(each)[None]) for each in images])
        for images in (images, map(change, images))
    )
    assert len(find_misplaced(real, fake)[0]) == 0
    if folder == "frames" and kind != "JPEG 95":
        return
    numbers = np.arange(len(images))
    least = 0 if folder == "frames" else 0.3 * len(images)
    for order in (
        np.random.default_rng(0).permutation(numbers),
        np.roll(numbers, 1),
        sorted(numbers, key=str),
    ):
        if not np.array_equal(order, numbers):
            assert len(find_misplaced(real, fake[order])[0]) > least


@pytest.mark.parametrize("folder", ["cifar10/train", "flowers/daisy"])
def test_few_images_of_one_kind_and_few_colours_are_no_faults(folder: str) -> None:
    """Of 12 photos, one is often gray; images of four colours repeat pixels without having been
    enlarged.
    """
    sets = records_in(CONFORMANCE / folder)
    for seed in range(20):
        one, other = (
            named(sets[part])
            for part in np.split(np.random.default_rng(seed).permutation(len(sets))[:24], 2)
        )
        inspected = inspect_set("set", one)
        assert inspected is not None
        assert select_unusual(inspected, inspect_set("other", other)) == []
    files = sorted((CONFORMANCE / folder).glob("*.[jp]*g"))[:60]
    photos = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    few = [np.asarray(Image.fromarray(each).quantize(4).convert("RGB")) for each in photos]
    quantised = make_records([decode(each) for each in map(encoded, few)])
    found = {each.code for each in pair_findings(named(sets), named(quantised), [])}
    assert not found & {"repeated pixels", "less detail"}
    plain = [np.where(in_disc(photo), photo * 0.85, 255).astype(np.uint8) for photo in photos]
    blurred = [
        np.asarray(Image.fromarray(each).filter(ImageFilter.GaussianBlur(1.5))) for each in plain
    ]
    sides = (
        named(make_records([decode(each) for each in map(encoded, side)]))
        for side in (plain, blurred)
    )
    assert "less detail" in {each.code for each in pair_findings(*sides, [])}, (
        "on a plain background"
    )


def in_disc(photo: NDArray[np.uint8]) -> NDArray[np.bool_]:
    y, x = (np.linspace(-1, 1, side) for side in photo.shape[:2])
    return (y[:, None] ** 2 + x**2 < 0.64)[..., None]


def records_in(folder: Path) -> RecordArray:
    files = sorted(folder.glob("*.[jp]*g"))
    if not files:
        pytest.skip("needs the conformance images")
    return make_records([decode(file.read_bytes()) for file in files])


def named(records: RecordArray) -> ImageRecords:
    return ImageRecords(records, [str(number) for number in range(len(records))])


def on_black(seed: int) -> degenerate.Pixels:
    """Return a coloured spot on a black background."""
    y, x = np.mgrid[:32, :32] - np.random.default_rng(seed).integers(8, 24, (2, 1, 1))
    spot = np.exp(-(x**2 + y**2) / 60)[..., None] * np.random.default_rng(seed).uniform(60, 255, 3)
    return spot.astype(np.uint8)


def dithered(seed: int) -> degenerate.Pixels:
    """Return an image of black and white pixels only."""
    return np.asarray(Image.fromarray(degenerate.sample(seed)).convert("1").convert("L"))


@pytest.mark.parametrize("make", [on_black, dithered])
def test_properties_of_both_sets_are_no_faults(
    here: Run, tmp_path: Path, make: Callable[[int], degenerate.Pixels]
) -> None:
    sets = [
        degenerate.write(tmp_path / name, ((f"{i}.png", make(first + i)) for i in range(60)))
        for name, first in (("a", 0), ("b", 1000))
    ]
    result, line, _ = compared(here, *sets)
    assert (result["diagnosis"]["findings"], line) == ([], "")
