"""Two small sets of pictures, for people who have no images at hand yet. Imports no torch."""

from __future__ import annotations

import colorsys
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

from fidtool.errors import InputError

COUNT = 64
SIDE = 96


def make_sets(folder: Path) -> tuple[Path, Path]:
    """Writes `COUNT` drawings of simple shapes to ``folder/real`` and as many bad copies to ``folder/fake``.

    The fakes are other drawings by the same rules, blurred and with shifted colours: what a generator in mid-training
    might give. The pictures are the same at every call.

    Raises:
        InputError: the folder has something in it that is not the demo's.
        OSError: the folder cannot be written.
    """
    marker = folder / ".fidtool-demo"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise InputError(
            f"{folder} was not made by the demo, which would overwrite what is in it", "pass another --folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()
    folders = folder / "real", folder / "fake"
    for place, first_seed in zip(folders, (0, COUNT), strict=True):
        place.mkdir(parents=True, exist_ok=True)
        for number in range(COUNT):
            picture = _drawing(random.Random(first_seed + number))
            if place.name == "fake":
                red, green, blue = picture.split()
                picture = Image.merge("RGB", (green, red, blue)).filter(ImageFilter.GaussianBlur(1.5))
            picture.save(place / f"{number:03}.png")
    return folders


def _drawing(rng: random.Random) -> Image.Image:
    """A few overlapping shapes in related colours on a plain ground."""
    hue = rng.random()

    def colour(value: float) -> tuple[int, int, int]:
        shade = (hue + rng.uniform(-0.15, 0.15)) % 1.0
        red, green, blue = colorsys.hsv_to_rgb(shade, rng.uniform(0.3, 0.9), value)
        return round(255 * red), round(255 * green), round(255 * blue)

    picture = Image.new("RGB", (SIDE, SIDE), colour(rng.uniform(0.2, 0.9)))
    pen = ImageDraw.Draw(picture)
    for _ in range(rng.randint(3, 9)):
        x, y, size = rng.randrange(SIDE), rng.randrange(SIDE), rng.randint(8, 40)
        box = (x - size // 2, y - size // 2, x + size // 2, y + size // 2)
        draw = rng.choice((pen.ellipse, pen.rectangle))
        draw(box, fill=colour(rng.uniform(0.3, 1.0)), outline=colour(0.1))
    return picture
