"""Checkpoints notice changes of both sets of a pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fidtool.sources.listing import open_images
from fidtool.sources.pairing import pair_images


def test_two_sets_in_one_file_do_not_cancel(tmp_path: Path) -> None:
    """Otherwise a resumed run would not notice that the file has changed."""
    file = tmp_path / "both.npz"

    def marks(seed: int) -> list[int]:
        pixels = np.random.RandomState(seed).randint(0, 256, (4, 8, 8, 3)).astype(np.uint8)
        np.savez(file, real=pixels, recon=pixels[:, ::-1], more=np.zeros(seed))
        real, recon = (open_images(f"{file}:{name}") for name in ("real", "recon"))
        together = replace(pair_images(recon, real, None), partner=real)
        return [together.hash_files(batch) for batch in (range(2), range(2, 4))]

    first, second = marks(1), marks(2)
    assert 0 not in first
    assert first != second
