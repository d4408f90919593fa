"""Generated images for the benchmarks."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from PIL import Image

_RECIPE_VERSION = 1
"""Increase it when the generated images change, so that an old --folder is not reused."""
_LARGEST = 640
"""Longer side, in pixels, of the largest images of mixed sizes."""


@dataclass(frozen=True)
class Recipe:
    """How to generate two sets of images that differ slightly.

    Attributes:
        count: number of images in each of the two sets.
        side: width and height in pixels; 0 gives mixed sizes, like photos from the web.
        suffix: file format: jpg, png or webp.
    """

    count: int
    side: int
    suffix: str

    def __str__(self) -> str:
        size = f"{self.side}x{self.side}" if self.side else "mixed sizes"
        return f"2 x {self.count} images, {size}, {self.suffix}"


@dataclass(frozen=True)
class ImageSets:
    """Folders of the two sets, and the number of images in both together."""

    real: Path
    fake: Path
    total: int


def make_sets(folder: Path, recipe: Recipe) -> ImageSets:
    """Write ``folder/real`` and ``folder/fake``, or reuse them if an earlier call wrote them with
    the same recipe.

    Raises:
        click.ClickException: if the folder contains anything else. Nothing in it is changed.
    """
    stamp = folder / "recipe.json"
    text = json.dumps({"version": _RECIPE_VERSION, **asdict(recipe)})
    if not (stamp.is_file() and stamp.read_text() == text):
        if folder.is_dir() and any(folder.iterdir()):
            raise click.ClickException(
                f"{folder} does not contain these images ({text}); use an empty or a new folder"
            )
        _write(folder / "real", recipe, seed=1, roughness=1.0)
        _write(folder / "fake", recipe, seed=2, roughness=0.7)
        stamp.write_text(text)
    return ImageSets(folder / "real", folder / "fake", 2 * recipe.count)


@contextlib.contextmanager
def existing_sets(real: Path, fake: Path) -> Iterator[ImageSets]:
    """Use two existing folders, which must contain images and nothing else.

    Raises:
        click.ClickException: if a folder is empty.
    """
    for folder in (real, fake):
        if not any(folder.iterdir()):
            raise click.ClickException(f"{folder} is empty")
    yield ImageSets(
        real.absolute(),
        fake.absolute(),
        sum(1 for folder in (real, fake) for _ in folder.iterdir()),
    )


@contextlib.contextmanager
def image_sets(folder: Path | None, recipe: Recipe) -> Iterator[ImageSets]:
    """Like `make_sets`. Without a folder, use a temporary one and remove it at the end of the
    ``with`` block.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidtool-bench-")))
        yield make_sets(folder.absolute(), recipe)


def _write(folder: Path, recipe: Recipe, seed: int, roughness: float) -> None:
    folder.mkdir(parents=True)
    for number in range(recipe.count):
        # The streams of RandomState never change, unlike those of NumPy's newer generators.
        rng = np.random.RandomState([seed, number])
        image = _image(rng, recipe.side or _LARGEST, roughness)
        if not recipe.side:
            longer, ratio = rng.randint(_LARGEST // 4, _LARGEST + 1), rng.uniform(0.6, 1.0)
            sides = longer, max(1, round(longer * ratio))
            image = image.resize(sides if rng.randint(2) else sides[::-1], Image.Resampling.BICUBIC)
        image.save(folder / f"{number:06}.{recipe.suffix}", quality=90)


def _image(rng: np.random.RandomState, side: int, roughness: float) -> Image.Image:
    """Return a gradient between four colours plus noise whose amplitude decreases with frequency,
    as in photographs.
    """
    corners = rng.randint(0, 256, (2, 2, 3)).astype(np.uint8)
    pixels = _scaled(corners, side, Image.Resampling.BILINEAR)
    for octave in range(2, 8):
        cells = 2**octave
        if cells >= side and octave > 2:
            break
        noise = rng.randint(0, 256, (cells, cells, 3)).astype(np.uint8)
        pixels += (_scaled(noise, side, Image.Resampling.BICUBIC) - 127.5) * (
            roughness * 0.7 ** (octave - 1)
        )
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def photograph(rng: np.random.RandomState, width: int, height: int) -> np.typing.NDArray[np.uint8]:
    """Return the pixels of a large image like those of `make_sets`, of shape (height, width, 3)."""
    return np.asarray(_image(rng, max(width, height), 1.0))[:height, :width]


def _scaled(
    cells: np.typing.NDArray[np.uint8], side: int, how: Image.Resampling
) -> np.typing.NDArray[np.float32]:
    return np.asarray(Image.fromarray(cells).resize((side, side), how), dtype=np.float32)
