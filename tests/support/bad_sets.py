"""Sets with files that cannot be read, and files that cannot be evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from support.encoded import encoded, noise
from support.pictures import make_pictures
from support.places import TINY

COUNT = 20
SMALL = ("--extractor", TINY)


def make_place(tmp_path: Path) -> Path:
    """Make the folder in which the commands run, with two valid sets and several invalid ones."""
    make_pictures(tmp_path / "real", COUNT, 0)
    make_pictures(tmp_path / "fake", COUNT, 1)
    for name in ("empty", "texts/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("no image")
    for name in ("notes.txt", "archive.zip", "wrong.pth"):
        (tmp_path / name).write_bytes(b"something else\0")
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, mu=np.zeros(16), sigma=np.eye(16))
    return tmp_path


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


GOOD = encoded(noise())
BAD: dict[str, Callable[[Path], object]] = {
    "truncated.png": lambda file: file.write_bytes(GOOD[:-60]),
    "corrupt.png": lambda file: file.write_bytes(GOOD[:30] + b"\0" * 10 + GOOD[40:]),
    "zero.png": lambda file: file.touch(),
    "text.jpg": lambda file: file.write_text("<html>not found</html>"),
    "gone.png": lambda file: file.symlink_to("nowhere"),
    "unreadable.png": lambda file: file.symlink_to("/proc/self/mem"),
}
"""Names of bad files, and functions that return their contents."""


def make_sets(tmp_path: Path) -> tuple[Path, Path]:
    """Make two sets of 37 images. FAKE has six bad files as well."""
    real = make_pictures(tmp_path / "real", 37, 1, sides=(31, 40))
    fake = make_pictures(tmp_path / "fake", 37, 2, sides=(31, 40))
    for name, make in BAD.items():
        make(fake / name)
    return real, fake


SKIP = [
    "--extractor",
    TINY,
    "--batch-size",
    4,
    "--no-cache",
    "--json",
    "--on-error",
    "skip",
    "--max-skip",
    "0.2",
]
