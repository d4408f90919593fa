"""Images that raise an FID."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support import degenerate


def with_harmful(folder: Path, good: int, bad: int) -> Path:
    """Write images of the toy generator, and some of noise among them."""
    degenerate.distinct(folder, good)
    return degenerate.write(
        folder,
        (
            (f"bad-{i}.png", np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8))
            for i in range(bad)
        ),
    )
