"""Files of earlier releases, in ``tests/goldens/files``. Later versions must be able to read them.

Version 0.1.0 wrote them, and they are never written again: ``pytest --write-goldens`` does not
touch them, and `SHA256` has their hashes. Code that reads them may change; the files may not. If a
release writes different files, keep those of that release beside them. No file contains the name of
a machine or its hardware.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fidtool
from support.exact_sets import NETWORK, make_exact_pictures, mixed, pixels
from support.goldens import FOLDER

FILES = FOLDER / "files"
REAL, FAKE = 21, 18
"""Numbers of images in the two sets, whose seeds are 1 and 2."""
BATCH = 4
ANYWHERE = "/data/real"
"""Path of the images in the files."""
SHA256 = {
    "adm.npz": "33bc87b4454d2d912d95d2faddeeeece15d3feeac113fd52d5852a025d30994f",
    "bare.npz": "53aa0912ff8388b67d3598c9e1a714f9e28ecf8009193a418f8289260d6ce865",
    "cache_entry.npz": "739627207f6a6249a570653d62674f66fc2a68cf5a46718a22ce48beca88a013",
    "callback_state.pt": "5ce04f74cfce153f222e867a2db0617990cfeeeffaeb7442e91b535ce40715fb",
    "features.npz": "873f8c4abcfdc0601b2603765a5735d50d1ad94a32c5bc37589c8632e8bfde73",
    "layers.npz": "c2a215e7d98ed399709610bb4f731be942ef6c437ddf278461cc1fc984c006dc",
    "metric_state.pt": "e64a5b706d2f959eb34b444adcd0854ba6b7ad5f7e73c56697748b07f809a38f",
    "own.npz": "022fd843dfefab4b93987f65668c84dc814a62100c8e224a261f791a252729ad",
    "pytorch_fid.npz": "865ca6a99e267a93716f094b53060d885c99a966847007b7b94a9a604846537a",
    "skipped.npz": "48d16bf94edd375809b72f0a64edf9584e745ee8ffdc1a6b4bb49ec5d59ca6df",
}


def make_sets(folder: Path) -> tuple[Path, Path]:
    """Write the images behind all files: ``real``, and ``fake``, which is lighter and has two exact
    duplicates.
    """
    real, fake = (
        make_exact_pictures(folder / "real", REAL, 1),
        make_exact_pictures(folder / "fake", FAKE, 2, 40),
    )
    shutil.copy(fake / "00003.png", fake / "00004.png")
    return real, fake


def statistics(path: str = "real", **settings: Any) -> fidtool.Statistics:
    """Return the statistics of a set in the current folder, without properties of this machine."""
    settings = {"num": 20, "seed": 3, "device": "cpu", **settings}
    found = fidtool.compute_statistics(path, extractor=NETWORK, cache=False, **settings)
    assert found is not None
    assert found.pictures is not None
    assert found.arithmetic is not None
    return replace(
        found,
        arithmetic=_of_nowhere(found.arithmetic),
        pictures=replace(found.pictures, prefix=f"{ANYWHERE}/"),
    )


def _of_nowhere(arithmetic: dict[str, Any]) -> dict[str, Any]:
    """Remove the properties of this machine from the arithmetic."""
    kept = ("precision", "batch_size")
    return {name: value if name in kept else "" for name, value in arithmetic.items()}


def of_layers(definition: Any) -> fidtool.Statistics:
    """Return statistics of three layers, like those of a run with sFID and CMMD."""

    def layer(seed: int, dims: int, extractor: str, kept: bool) -> fidtool.LayerStatistics:
        features = mixed(20, dims, seed)
        wholes = features.astype(np.float64)
        sigma = np.cov(wholes.T)
        defined = replace(definition, extractor=extractor, dims=dims)
        return fidtool.LayerStatistics(wholes.mean(0), sigma, defined, features if kept else None)

    layers = {"spatial": layer(2, 5, "spatial", False), "embedding": layer(3, 4, "embedding", True)}
    return fidtool.Statistics({"features": layer(1, 3, "main", True), **layers}, 20)


def images_of_training() -> tuple[torch.Tensor, torch.Tensor]:
    """Return real and fake images for the metric."""
    real, fake = (
        torch.from_numpy(pixels(9, seed, light)).permute(0, 3, 1, 2)
        for seed, light in ((1, 0), (2, 40))
    )
    return real.contiguous(), fake.contiguous()


def trained_metric() -> Any:
    """Return the training metric after updates with these images."""
    from fidtool.training import FrechetInceptionDistance

    metric = FrechetInceptionDistance(NETWORK)
    metric.persistent(True)
    real, fake = images_of_training()
    metric.update(real, real=True)
    metric.update(fake[:5], real=False)
    metric.update(fake[5:], real=False)
    return metric
