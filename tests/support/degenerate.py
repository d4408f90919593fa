"""Sets of images as written by faulty samplers, made with a toy generator of smooth noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.reading import records
from fidtool.reading.decode import decode
from support.command_line import Outcome, Run, messages
from support.places import TINY

Pixels = NDArray[np.uint8]


def sample(seed: int, side: int = 32) -> Pixels:
    """The toy generator: one smooth image per seed, uint8 of shape (side, side, 3)."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    fine = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(fine)


def write(folder: Path, pictures: Iterable[tuple[str, Pixels]], **settings: object) -> Path:
    """Write images under their names, whose suffix is the format, and return the folder."""
    for name, pixels in pictures:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file, **settings)
    return folder


def distinct(folder: Path, count: int, first: int = 0) -> Path:
    """A sampler without a fault."""
    return write(folder, ((f"{i:05}.png", sample(first + i)) for i in range(count)))


def same_seed_on_ranks(
    folder: Path, ranks: int, each: int, name: Callable[[int, int], str]
) -> Path:
    """Each rank samples the seeds 0, 1, 2, …; ``name`` returns the file name of a rank's sample
    ``i``.
    """
    return write(folder, ((name(rank, i), sample(i)) for rank in range(ranks) for i in range(each)))


def recompressed(folder: Path, ranks: int, each: int) -> Path:
    """The same, with a different JPEG quality on each rank."""
    for rank in range(ranks):
        pictures = ((f"{rank * each + i:05}.jpg", sample(i)) for i in range(each))
        write(folder, pictures, quality=95 - 5 * rank)
    return folder


def noise(folder: Path, count: int) -> Path:
    """An untrained generator."""
    rng = np.random.default_rng(5)
    return write(
        folder,
        ((f"{i}.png", rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for i in range(count)),
    )


def compared(
    here: Run, real: Path, fake: Path, *flags: object
) -> tuple[dict[str, Any], str, Outcome]:
    """Return a result, its warning about duplicates if there is one, and the whole output."""
    outcome = here("compute", real, fake, "--extractor", TINY, "--json", *flags)
    (result,) = outcome.json["results"]
    lines = [line for line in messages(result) if " duplicates: " in line]
    return result, lines[0] if lines else "", outcome


def make_real(tmp_path: Path) -> Path:
    """Write real images: those of the toy generator with other seeds."""
    return distinct(tmp_path / "real", 120, first=10_000)


RANKS: dict[str, Callable[[int, int], str]] = {
    "blocks": lambda rank, i: f"{rank * 40 + i:05}.png",
    "in turn": lambda rank, i: f"{i * 4 + rank}.png",
    "rank in the name": lambda rank, i: f"rank{rank}_{i}.png",
}


COUNT = 200
FLAGS = ("--extractor", TINY, "--uncertainty")


def blurred(amount: float, first: int) -> Iterator[tuple[str, Pixels]]:
    """The toy generator with reduced contrast: the lower, the worse."""
    for i in range(COUNT):
        pixels = sample(first + i).astype(float)
        yield f"{i:04}.png", (128 + (pixels - 128) * (1 - amount)).astype(np.uint8)


def make_sets(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """Write REAL, a bad FAKE, and two FAKEs of one good generator with different seeds."""
    real = distinct(tmp_path / "real", 300, first=50_000)
    bad = write(tmp_path / "bad", blurred(0.3, 1000))
    good = write(tmp_path / "good", blurred(0.1, 2000))
    again = write(tmp_path / "again", blurred(0.1, 3000))
    return real, bad, good, again


def records_of(files: Sequence[bytes]) -> records.RecordArray:
    return records.make_records([decode(data) for data in files])
