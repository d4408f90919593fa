"""Folders of images, and batches of images for training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fidtool.reading.batches import Batch
from fidtool.reading.decode import DecodeOptions, ImageProperties
from fidtool.reading.loader import Piece, load_pieces
from fidtool.sources.image_set import ImageSet
from support.processes import PATIENCE


def make_pictures(
    folder: Path, count: int, seed: int = 0, suffix: str = ".png", sides: Sequence[int] = (32,)
) -> Path:
    """Write ``count`` images of smooth noise, with sides from ``sides`` in turn, and return the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(seed)
    for number in range(count):
        coarse = rng.randint(0, 256, (8, 8, 3)).astype(np.uint8)
        side = sides[number % len(sides)]
        picture = Image.fromarray(coarse).resize(
            (side, side + number % 3), Image.Resampling.BICUBIC
        )
        picture.save(folder / f"{number:05}{suffix}")
    return folder


def pictures(count: int, seed: int, side: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def fill(metric: Any, seed: int = 1) -> None:
    metric.update(pictures(20, seed), real=True)
    metric.update(pictures(20, seed + 1) // 2, real=False)


def load_whole(
    source: ImageSet | None, batches: Iterable[Batch], options: DecodeOptions, workers: int
) -> list[Piece]:
    """Returns all batches, each as one piece."""
    pieces: list[Piece] = []
    found = []
    for piece in load_pieces(source, batches, options, workers, PATIENCE, lambda _: None):
        pieces.append(piece)
        if piece.last:
            found.append(
                Piece(
                    piece.number,
                    [int(position) for each in pieces for position in each.images],
                    pixels=np.concatenate([each.pixels for each in pieces]),
                    sizes=[size for each in pieces for size in each.sizes],
                    properties=ImageProperties.total(each.properties for each in pieces),
                    records=np.concatenate([each.records for each in pieces]),
                    skipped=[bad for each in pieces for bad in each.skipped],
                    used=[used for each in pieces for used in each.used],
                )
            )
            pieces = []
    assert not pieces
    return found
