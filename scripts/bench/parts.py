"""Decoders beside Pillow: are their pixels Pillow's, and are they faster? Imported by `bench.py decoders` alone."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from bench_pictures import PictureSets
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
COLUMNS = ("decoder", "ms an image", "threads", "processes", "Pillow's pixels")


def _pillow(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _torchvision(data: bytes) -> Pixels:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: Pixels = decode_image(encoded, ImageReadMode.RGB).permute(1, 2, 0).contiguous().numpy()
    return pixels


def _opencv(data: bytes) -> Pixels:
    cv2 = import_module("cv2")
    pixels: Pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return pixels


def _simplejpeg(data: bytes) -> Pixels:
    pixels: Pixels = import_module("simplejpeg").decode_jpeg(data)
    return pixels


def _imagecodecs(data: bytes) -> Pixels:
    pixels: Pixels = np.ascontiguousarray(import_module("imagecodecs").imread(data)[..., :3])
    return pixels


_DECODERS: dict[str, Callable[[bytes], Pixels]] = {
    "Pillow": _pillow,
    "torchvision.io": _torchvision,
    "opencv": _opencv,
    "simplejpeg": _simplejpeg,
    "imagecodecs": _imagecodecs,
}


def compare_decoders(sets: PictureSets, seconds: float) -> list[dict[str, Any]]:
    """Decodes the pictures of a set with each decoder that is installed and knows their format.

    Returns:
        Of each the milliseconds an image in one thread, the speed-up of as many threads and processes as there are
        cores, and the share of the pictures that are Pillow's to the last bit.
    """
    data = [file.read_bytes() for file in sorted(sets.real.iterdir())]
    expected = [_pillow(each) for each in data]
    found: list[dict[str, Any]] = []
    for name, decode in _DECODERS.items():
        try:
            equal = [np.array_equal(decode(each), pixels) for each, pixels in zip(data, expected, strict=True)]
        except Exception as error:  # not installed, or another format
            found.append({"decoder": name, "fails": f"{type(error).__name__}: {error}"[:80]})
            continue
        one = _rate(decode, data, seconds)
        spread = {
            kind: _spread(kind, decode, data, seconds) / one for kind in (ThreadPoolExecutor, ProcessPoolExecutor)
        }
        speed_ups = dict(zip(("threads", "processes"), spread.values(), strict=True))
        found.append({"decoder": name, "milliseconds": 1e3 / one, **speed_ups, "equal": float(np.mean(equal))})
    return found


def table_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """For `bench_output.table`."""
    rows = []
    for entry in found:
        if "fails" in entry:
            rows.append([entry["decoder"], entry["fails"], "", "", ""])
            continue
        speed_ups = [f"{entry[kind]:.2f}x" for kind in ("threads", "processes")]
        rows.append([entry["decoder"], f"{entry['milliseconds']:.2f}", *speed_ups, f"{entry['equal']:.0%}"])
    return rows


def _rate(decode: Callable[[bytes], Pixels], data: Sequence[bytes], seconds: float) -> float:
    """Images/s in the calling thread."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for each in data:
            decode(each)
        count += len(data)
    return count / (time.perf_counter() - started)


def _spread(kind: type[Executor], decode: Callable[[bytes], Pixels], data: Sequence[bytes], seconds: float) -> float:
    """Images/s of as many at once as there are cores."""
    cores = os.cpu_count() or 1
    with kind(cores) as pool:  # type: ignore[call-arg]
        return sum(pool.map(partial(_rate, decode, seconds=seconds), [data] * cores))
