"""The distance has the same bits whatever the launcher set."""

from __future__ import annotations

import os
import subprocess
import sys


def test_same_bits_whatever_the_launcher_set() -> None:
    """torchrun sets OMP_NUM_THREADS=1; the distance does not depend on it, and leaves torch's setting alone."""
    code = (
        "import numpy as np, torch, fidtool; rng = np.random.RandomState(0);"
        "a, b = rng.randn(900, 400), rng.rand(900, 400);"
        "before = torch.get_num_threads();"
        "print(fidtool.frechet_distance(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T)).hex());"
        "assert torch.get_num_threads() == before"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(printed) == 1
