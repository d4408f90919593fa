"""Images in memory that programs pass to fidtool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from support.source_forms import names_in


class Samples(torch.utils.data.Dataset[Any]):
    """Pairs of an image and its label, like torchvision's datasets."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self._pixels[index]).permute(2, 0, 1) / 255, 7


def opened(folder: Path) -> list[Image.Image]:
    return [Image.open(folder / name) for name in names_in(folder)]


def refilled(pixels: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield the same array, refilled for each image."""
    memory = np.empty_like(pixels[0])
    for image in pixels:
        memory[:] = image
        yield memory


def animated(file: Path, pixels: NDArray[np.uint8]) -> Iterator[Image.Image]:
    """Yield the frames of an animation: the same Pillow object each time."""
    first, *others = map(Image.fromarray, pixels)
    first.save(file, save_all=True, append_images=others)
    with Image.open(file) as animation:
        yield from ImageSequence.Iterator(animation)


class Refilled(Samples):
    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        super().__init__(pixels)
        self._memory = np.empty_like(pixels[0])

    def __getitem__(self, index: int) -> Any:
        self._memory[:] = self._pixels[index]
        return self._memory


def in_twos(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + 2] for start in range(0, len(items), 2))


class Rows(Samples):
    """Like Hugging Face's ``datasets.Dataset``, whose shape is that of the table."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), 2

    def __getitem__(self, index: int) -> Any:
        return {"image": Image.fromarray(self._pixels[index]), "label": 3}


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pixels)
