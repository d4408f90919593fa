"""Two small sets of synthetic images, for trying out the tool."""

from __future__ import annotations

import colorsys
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

from fidtool.errors import InputError

COUNT = 64
SIDE = 96


def make_sets(folder: Path) -> tuple[Path, Path]:
    """Writes `COUNT` drawings of simple shapes to ``folder/real`` and `COUNT` imitations to ``folder/fake``.

    The imitations are different drawings from the same distribution, blurred and with swapped colour channels, like the
    output of a partly trained generator. The images are the same for every call.
    """
    marker = folder / ".fidtool-demo"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise InputError(
            f"{folder} was not created by the demo, which would overwrite its files:", "pass another --folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()
    folders = folder / "real", folder / "fake"
    for target, first_seed in zip(folders, (0, COUNT), strict=True):
        target.mkdir(parents=True, exist_ok=True)
        for number in range(COUNT):
            image = _drawing(random.Random(first_seed + number))
            if target.name == "fake":
                red, green, blue = image.split()
                image = Image.merge("RGB", (green, red, blue)).filter(ImageFilter.GaussianBlur(1.5))
            image.save(target / f"{number:03}.png")
    return folders


def _drawing(rng: random.Random) -> Image.Image:
    """A few overlapping shapes in related colours on a plain background."""
    hue = rng.random()

    def colour(value: float) -> tuple[int, int, int]:
        shade = (hue + rng.uniform(-0.15, 0.15)) % 1.0
        red, green, blue = colorsys.hsv_to_rgb(shade, rng.uniform(0.3, 0.9), value)
        return round(255 * red), round(255 * green), round(255 * blue)

    image = Image.new("RGB", (SIDE, SIDE), colour(rng.uniform(0.2, 0.9)))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(3, 9)):
        x, y, size = rng.randrange(SIDE), rng.randrange(SIDE), rng.randint(8, 40)
        box = (x - size // 2, y - size // 2, x + size // 2, y + size // 2)
        draw = rng.choice((pen.ellipse, pen.rectangle))
        draw(box, fill=colour(rng.uniform(0.3, 1.0)), outline=colour(0.1))
    return image
