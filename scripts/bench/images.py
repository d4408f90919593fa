"""Pictures for the benchmarks, made the same way every time. Imports no torch."""

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
"""Goes up when the pictures change, so that an old --folder is not taken for a new one."""
_LARGEST = 640
"""Longer side of the largest of mixed sizes."""


@dataclass(frozen=True)
class Recipe:
    """Two sets of pictures that differ a little.

    Attributes:
        count: pictures in each of the two sets.
        side: width and height in pixels; 0: mixed sizes, as photos from the web have them.
        suffix: file format: jpg, png or webp.
    """

    count: int
    side: int
    suffix: str

    def __str__(self) -> str:
        size = f"{self.side}x{self.side}" if self.side else "mixed sizes"
        return f"2 x {self.count} pictures, {size}, {self.suffix}"


@dataclass(frozen=True)
class PictureSets:
    """Folders of the two sets and the pictures in both together."""

    real: Path
    fake: Path
    total: int


def make_sets(folder: Path, recipe: Recipe) -> PictureSets:
    """Writes ``folder/real`` and ``folder/fake``, or finds there what an earlier call with this recipe wrote.

    Raises:
        click.ClickException: the folder holds something else; nothing of it is touched.
    """
    stamp = folder / "recipe.json"
    text = json.dumps({"version": _RECIPE_VERSION, **asdict(recipe)})
    if not (stamp.is_file() and stamp.read_text() == text):
        if folder.is_dir() and any(folder.iterdir()):
            raise click.ClickException(f"{folder} does not hold these pictures ({text}); name an empty or a new folder")
        _write(folder / "real", recipe, seed=1, roughness=1.0)
        _write(folder / "fake", recipe, seed=2, roughness=0.7)
        stamp.write_text(text)
    return PictureSets(folder / "real", folder / "fake", 2 * recipe.count)


@contextlib.contextmanager
def given_sets(real: Path, fake: Path) -> Iterator[PictureSets]:
    """Folders of pictures that are there already, and of nothing else.

    Raises:
        click.ClickException: one is empty.
    """
    for folder in (real, fake):
        if not any(folder.iterdir()):
            raise click.ClickException(f"{folder} is empty")
    yield PictureSets(real.absolute(), fake.absolute(), sum(1 for folder in (real, fake) for _ in folder.iterdir()))


@contextlib.contextmanager
def picture_sets(folder: Path | None, recipe: Recipe) -> Iterator[PictureSets]:
    """As `make_sets`; without a folder in a temporary one that goes at the end of the ``with`` block."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidtool-bench-")))
        yield make_sets(folder.absolute(), recipe)


def _write(folder: Path, recipe: Recipe, seed: int, roughness: float) -> None:
    folder.mkdir(parents=True)
    for number in range(recipe.count):
        # RandomState's streams are frozen for good, unlike those of numpy's newer generators.
        rng = np.random.RandomState([seed, number])
        picture = _picture(rng, recipe.side or _LARGEST, roughness)
        if not recipe.side:
            longer, ratio = rng.randint(_LARGEST // 4, _LARGEST + 1), rng.uniform(0.6, 1.0)
            sides = longer, max(1, round(longer * ratio))
            picture = picture.resize(sides if rng.randint(2) else sides[::-1], Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:06}.{recipe.suffix}", quality=90)


def _picture(rng: np.random.RandomState, side: int, roughness: float) -> Image.Image:
    """A gradient between four colours under noise whose octaves weaken as they get finer, as in photographs."""
    corners = rng.randint(0, 256, (2, 2, 3)).astype(np.uint8)
    pixels = _scaled(corners, side, Image.Resampling.BILINEAR)
    for octave in range(2, 8):
        cells = 2**octave
        if cells >= side and octave > 2:
            break
        noise = rng.randint(0, 256, (cells, cells, 3)).astype(np.uint8)
        pixels += (_scaled(noise, side, Image.Resampling.BICUBIC) - 127.5) * (roughness * 0.7 ** (octave - 1))
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def _scaled(cells: np.typing.NDArray[np.uint8], side: int, how: Image.Resampling) -> np.typing.NDArray[np.float32]:
    return np.asarray(Image.fromarray(cells).resize((side, side), how), dtype=np.float32)
