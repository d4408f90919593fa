"""PRDC, KID, CMMD and FID∞ of fixed random features, in memory and on disk; prints each exactly.

``metric_functions.py FOLDER``: the features on disk are in this folder.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import torch
from common import refused, say

from fidtool.distances.exact import FeatureSettings
from fidtool.distances.extrapolation import fid_infinity
from fidtool.distances.kernel import cmmd, kid
from fidtool.distances.neighbors import prdc
from fidtool.distributed.launch import discover
from fidtool.distributed.world import World, open_world
from fidtool.errors import RunError
from fidtool.statistics.moments import Gaussian

sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.feature_sets import Features, mixture, normal


def hexadecimal(value: object) -> str:
    """Return every number of a result, exactly."""
    numbers = dataclasses.astuple(value) if dataclasses.is_dataclass(value) else (value,)  # type: ignore[arg-type]
    return " ".join(float(number).hex() for entry in numbers for number in np.atleast_1d(entry))


def measure(world: World, real: Features, fake: Features) -> None:
    for ties in ("strict", "inclusive"):
        say(f"{world.rank} prdc {ties}: {hexadecimal(prdc(real, fake, world, ties=ties, feature_step=18))}")  # type: ignore[arg-type]
    say(f"{world.rank} kid: {hexadecimal(kid(real, fake, world, subset_size=150, subsets=7, feature_step=18))}")
    say(f"{world.rank} cmmd: {hexadecimal(cmmd(real, fake, world, feature_step=18))}")
    target = Gaussian(np.zeros(24), np.eye(24), None)
    found = fid_infinity(target, fake, FeatureSettings(18), world, points=6, fewest=300)
    say(f"{world.rank} fid infinity: {hexadecimal(found)}")


def main(folder: Path) -> None:
    """Compute them in memory, from disk, and with an invalid feature that only one rank reads and all must report."""
    torch.set_num_threads(1 + int(os.environ.get("WORLD_SIZE", "1")) % 2)
    real, fake = mixture(2500, 24, 1), mixture(2300, 24, 2) + np.float32(0.1)
    with open_world(discover()) as world:
        measure(world, real, fake)
        world.on_rank_zero(lambda: [np.save(folder / name, x) for name, x in (("r.npy", real), ("f.npy", fake))])
        measure(world, *(np.load(folder / name, mmap_mode="r") for name in ("r.npy", "f.npy")))
        broken = normal(2500, 24, 3)
        broken[-1, -1] = np.nan
        message = refused(RunError, lambda: prdc(broken, fake, world, feature_step=18), "NaN or infinite")
        say(f"{world.rank} refused: {message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
