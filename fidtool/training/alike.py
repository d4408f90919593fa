"""Did several ranks generate the same images? A mark per image, compared when the ranks meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = -7046029254386353131  # 2 ** 64 over the golden ratio, as a signed integer
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685


def image_marks(images: torch.Tensor) -> torch.Tensor:
    """A 64-bit mark of each image: equal images have equal ones, others practically never.

    A sum of the values times weights that depend on their place, modulo 2 ** 64: the same on any device.

    Args:
        images: uint8 tensor of shape (n, channels, height, width).

    Returns:
        int64 tensor of shape (n,) on the CPU.
    """
    flat = images.flatten(1)
    weights = _weights(flat.shape[1], flat.device)
    size = images.shape[2] * 65537 + images.shape[1]
    # One by one: widened to int64, a batch of photos would take gigabytes.
    marks = [(row.to(torch.int64) * weights).sum() + size for row in flat]
    return torch.stack(marks).cpu() if marks else torch.zeros(0, dtype=torch.int64, device="cpu")


@lru_cache(maxsize=4)
def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Pseudo-random odd numbers, the mix of SplitMix64 (Steele, Lea and Flood 2014)."""
    with torch.inference_mode(False):
        values = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _GOLDEN
        for shift, factor in ((30, _MIX1), (27, _MIX2)):
            values = (values ^ _shifted(values, shift)) * factor
        return (values ^ _shifted(values, 31)) | 1


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


@dataclass(frozen=True)
class Alike:
    """Images that more than one rank generated.

    Attributes:
        images: how many of the ranks' images are of that kind, each counted as often as it came.
        total: number of the ranks' images.
        ranks: who generated some of them.
    """

    images: int
    total: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks[:8])) + (" and others" if len(self.ranks) > 8 else "")
        return (
            f"{self.images} of {self.total} fakes came from more than one rank (ranks {ranks}): the FID is of fewer "
            "images than it seems. If all ranks sample with the same seed, seed sample number i with "
            "fidtool.sample_seed(seed, i), where i counts the samples of all ranks; else the generator gives few "
            "different images"
        )


def find_alike(marks: Sequence[NDArray[np.int64]], ranks: Sequence[int]) -> Alike | None:
    """Looks for images that several ranks generated.

    Args:
        marks: `image_marks` of each rank's images.
        ranks: the ranks' numbers.

    Returns:
        What there is to tell, or None.
    """
    owners = np.repeat(np.arange(len(marks)), [len(own) for own in marks])
    every = np.concatenate(marks) if marks else np.zeros(0, dtype=np.int64)
    _, image = np.unique(every, return_inverse=True)
    # The ranks of each image, without repetition: more than one entry, and it is alike.
    pairs = np.unique(np.stack([image, owners]), axis=1) if len(every) else np.zeros((2, 0), dtype=np.int64)
    shared = np.bincount(pairs[0], minlength=1) > 1
    hit = shared[image] if len(every) else np.zeros(0, dtype=bool)
    if not hit.any():
        return None
    return Alike(int(hit.sum()), len(every), tuple(ranks[place] for place in np.unique(owners[hit])))
