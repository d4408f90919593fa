"""Images and features with the same bits on every processor: integers divided by powers of two."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from support.goldens import FOLDER

NETWORK = "network.py:network"
"""Value of --extractor for the goldens' network, relative to the current folder; see
`beside_network`.
"""
DIMS = 12


def beside_network(folder: Path) -> Path:
    """Copy the goldens' network to a folder, so that the record of a run contains no path of this
    machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / "network.py", folder / "network.py")
    return folder


def pixels(count: int, seed: int, light: int = 0) -> NDArray[np.uint8]:
    """Return smooth images of shape (count, 16, 16, 3). ``light``, at most 60, makes them
    brighter.
    """
    coarse = np.random.RandomState(seed).randint(0, 196, (count, 5, 5, 3)) + light
    fine = coarse.repeat(4, axis=1).repeat(4, axis=2)
    blurred = (
        fine[:, :-4, :-4] + fine[:, 2:-2, :-4] + fine[:, :-4, 2:-2] + fine[:, 2:-2, 2:-2]
    ) // 4
    return blurred.astype(np.uint8)


def make_exact_pictures(folder: Path, count: int, seed: int, light: int = 0) -> Path:
    """Write `pixels` as PNGs and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pixels(count, seed, light)):
        Image.fromarray(picture).save(folder / f"{number:05}.png")
    return folder


def bells(
    count: int, dims: int, seed: int, shift: float = 0.0, spread: float = 1.0
) -> NDArray[np.float32]:
    """Return bell-shaped features: multiples of 2 ** -10 if ``shift`` and ``spread`` have few
    bits.
    """
    wholes = np.random.RandomState(seed).randint(-600, 601, (6, count, dims)).sum(axis=0)
    return (wholes / 1024.0 * spread + shift).astype(np.float32)


def mixed(count: int, dims: int, seed: int) -> NDArray[np.float32]:
    """Return correlated `bells`: each feature contains a part of the one before it."""
    own = bells(count, dims, seed).astype(np.float64)
    own[:, 1:] += 0.5 * own[:, :-1]
    return own.astype(np.float32)


def lattice(count: int, dims: int, seed: int, side: int = 3) -> NDArray[np.float32]:
    """Return small integers, with many duplicates and many equal distances."""
    return np.random.RandomState(seed).randint(0, side, (count, dims)).astype(np.float32)
