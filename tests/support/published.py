"""A mirror of published references with a few small files."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.references.catalogue import REFERENCES

EDM, EDM2 = REFERENCES["edm:cifar10"], REFERENCES["edm2:img64"]
ADM, METFACES = REFERENCES["adm:imagenet64"], REFERENCES["clean-fid:metfaces-1024-train"]
DIMS = 2048


def statistics(seed: int, dims: int = DIMS) -> dict[str, NDArray[np.float64]]:
    rng = np.random.RandomState(seed)
    root = rng.randn(dims, 20) / 20
    return {"mu": 0.4 + 0.1 * rng.randn(dims), "sigma": root @ root.T}


def publish(place: Path, url: str, content: bytes) -> None:
    file = place / url.partition("://")[2]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def archive(**arrays: Any) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def make_mirror(place: Path) -> Path:
    """Write the mirror and return its folder."""
    publish(place, EDM.url, archive(**statistics(0)))
    spatial = {f"{name}_s": value for name, value in statistics(1, 2023).items()}
    pixels = np.random.RandomState(2).randint(0, 256, (8, 64, 64, 3)).astype(np.uint8)
    publish(place, ADM.url, archive(arr_0=pixels, **statistics(3), **spatial))
    features = np.random.RandomState(5).rand(9, DIMS).astype(np.float32)
    publish(
        place, METFACES.url, archive(mu=features.mean(axis=0), sigma=np.cov(features, rowvar=False))
    )
    publish(place, METFACES.features_url, archive(feats=features))
    publish(
        place,
        EDM2.url,
        pickle.dumps({"fid": statistics(6), "fd_dinov2": statistics(7, 1024), "num_images": 50}),
    )
    return place
