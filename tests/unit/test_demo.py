"""The demo's images: users compare their values with documented ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fidtool.cli.demo import make_sets
from support.goldens import Golden, near

_LOOKED_AT = 4


def looked_at(file: Path) -> dict[str, Any]:
    """Return the mean colour, and the mean difference of neighbouring pixels, which blurring
    reduces.
    """
    with Image.open(file) as picture:
        values = np.asarray(picture, dtype=np.float64)
        found = {"format": picture.format, "mode": picture.mode, "size": list(picture.size)}
    colour, edges = values.mean((0, 1)).tolist(), float(np.abs(np.diff(values, axis=1)).mean())
    return found | {"colour": near(colour, absolute=0.5), "edges": near(edges, 0.02)}


def test_golden_images(golden: Golden, tmp_path: Path) -> None:
    """The number of images and properties of some; the last digits depend on Pillow."""
    found = {}
    for place in make_sets(tmp_path / "demo"):
        files = sorted(place.iterdir())
        listed = {"count": len(files), "first": files[0].name, "last": files[-1].name}
        found[place.name] = listed | {file.name: looked_at(file) for file in files[:_LOOKED_AT]}
    golden("demo/pictures", found)
