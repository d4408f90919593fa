"""Sets with files that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from support.pictures import make_pictures
from support.places import TINY

BAD: dict[str, Callable[[Path], object]] = {
    "truncated.png": lambda file: file.write_bytes(encoded()[:-60]),
    "corrupt.png": lambda file: file.write_bytes(encoded()[:30] + b"\0" * 10 + encoded()[40:]),
    "zero.png": lambda file: file.touch(),
    "text.jpg": lambda file: file.write_text("<html>not found</html>"),
    "gone.png": lambda file: file.symlink_to("nowhere"),
    "unreadable.png": lambda file: file.symlink_to("/proc/self/mem"),
}
"""Names of bad files and how to make them."""


def encoded() -> bytes:
    """A valid PNG."""
    import io

    buffer = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 20, 3)).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def make_sets(tmp_path: Path) -> tuple[Path, Path]:
    """37 images in both; in FAKE six more that are bad."""
    real = make_pictures(tmp_path / "real", 37, 1, sides=(31, 40))
    fake = make_pictures(tmp_path / "fake", 37, 2, sides=(31, 40))
    for name, make in BAD.items():
        make(fake / name)
    return real, fake


SKIP = ["--extractor", TINY, "--batch-size", 4, "--no-cache", "--json", "--on-error", "skip", "--max-skip", "0.2"]
