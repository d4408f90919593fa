"""Statistics of the same features in the layouts of other tools, each written as that tool writes
it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.features.protocol import SPATIAL, SPATIAL_DIMS
from fidtool.statistics.foreign import add_definitions
from fidtool.statistics.set_statistics import LayerStatistics, Statistics

Rows = NDArray[np.float32]


def features(count: int = 60, dims: int = 8, seed: int = 0, shift: float = 0.0) -> Rows:
    """Returns features that are multiples of 2 ** -10, so that their sums are exact."""
    rows = np.random.RandomState(seed).standard_normal((count, dims)) + shift
    return (np.rint(rows * 1024) / 1024).astype(np.float32)


def gaussian(rows: Rows, ddof: int = 1) -> dict[str, NDArray[np.float64]]:
    exact = rows.astype(np.float64)
    return {"mu": exact.mean(0), "sigma": np.cov(exact, rowvar=False, ddof=ddof)}


def of_inception(protocol: str, spatial: bool = True) -> Statistics:
    """Returns statistics of random features as if Inception had computed them; the protocol may be
    empty.
    """
    rows = features(9, 2048)
    sums = gaussian(rows)
    found = Statistics.of(sums["mu"], sums["sigma"], len(rows), features=rows)
    further = (
        {SPATIAL: LayerStatistics(np.zeros(SPATIAL_DIMS), np.eye(SPATIAL_DIMS))} if spatial else {}
    )
    return add_definitions(replace(found, layers={**found.layers, **further}), protocol)


def stylegan(rows: Rows, *, sums: bool = True, kept: bool = False) -> dict[str, Any]:
    """Returns the attributes of StyleGAN's FeatureStats after all batches."""
    exact, dims = rows.astype(np.float64), rows.shape[1]
    return {
        "capture_all": kept,
        "capture_mean_cov": sums,
        "max_items": len(rows),
        "num_items": len(rows),
        "num_features": dims,
        "all_features": [rows[start : start + 16] for start in range(0, len(rows), 16)]
        if kept
        else [],
        "raw_mean": exact.sum(0) if sums else np.zeros(dims),
        "raw_cov": exact.T @ exact if sums else np.zeros((dims, dims)),
    }


def edm2(rows: Rows, others: Rows | None = None) -> dict[str, Any]:
    """Returns EDM2's statistics of Inception and, if there are ``others``, of DINOv2."""
    found: dict[str, Any] = {"num_images": len(rows), "fid": gaussian(rows)}
    return found if others is None else found | {"fd_dinov2": gaussian(others)}


def dgm_eval(file: Path, rows: Rows) -> None:
    """Writes float64, and an array of Python objects."""
    parameters = np.array({"batch_size": 50, "train_set": True}, dtype=object)
    np.savez(file, model=np.array("dinov2"), reps=rows.astype(np.float64), hparams=parameters)


def pickled(value: Any, protocol: int = 4) -> Callable[[Path], None]:
    return lambda file: _write(file, pickle.dumps(value, protocol))


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


LAYOUTS: dict[str, Callable[[Path, Rows], object]] = {
    "mu and sigma": lambda file, rows: np.savez(file, **gaussian(rows)),
    "ADM": lambda file, rows: np.savez(file, **gaussian(rows), mu_s=np.zeros(3), sigma_s=np.eye(3)),
    "MeanFlow": lambda file, rows: np.savez(
        file, **{f"ref_{name}": each for name, each in gaussian(rows).items()}
    ),
    "MeanFlow beside others": lambda file, rows: np.savez(
        file,
        mu=np.zeros(3),
        sigma=np.eye(3),
        **{f"ref_{name}": each for name, each in gaussian(rows).items()},
    ),
    "clean-fid for KID": lambda file, rows: np.savez_compressed(file, feats=rows),
    "score_sde": lambda file, rows: np.savez_compressed(
        file, pool_3=rows, logits=np.zeros((len(rows), 1008), "f4")
    ),
    "dgm-eval": dgm_eval,
    "EDM2": lambda file, rows: pickled(edm2(rows, features(30, 5)))(file),
    "EDM2 of Inception": lambda file, rows: pickled(edm2(rows))(file),
    "StyleGAN": lambda file, rows: pickled(stylegan(rows))(file),
    "StyleGAN with features": lambda file, rows: pickled(stylegan(rows, kept=True), 3)(file),
    "StyleGAN for KID": lambda file, rows: pickled(stylegan(rows, sums=False, kept=True))(file),
    "FD-Loss of one": lambda file, rows: pickled({"jit_in256_stats.npz": gaussian(rows)})(file),
    "a pickled dict": lambda file, rows: pickled(
        {**gaussian(rows), "settings": {"size": 3}, "names": ["a"]}, 2
    )(file),
    "of protocol 0": lambda file, rows: pickled(gaussian(rows), 0)(file),
}
"""Functions that write a file."""
WITH_FEATURES = (
    *("clean-fid for KID", "score_sde", "dgm-eval"),
    *("StyleGAN with features", "StyleGAN for KID"),
)
DDOF_0 = tuple(name for name in LAYOUTS if name.startswith("StyleGAN"))


def write_layout(name: str, file: Path, rows: Rows) -> Path:
    """Writes statistics in a layout to exactly this path."""
    # numpy.savez appends a suffix where there is none.
    LAYOUTS[name](file.with_name("written.npz"), rows)
    return file.with_name("written.npz").rename(file)
