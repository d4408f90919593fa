"""The features of each image of a metric, in an order that depends only on the images."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError


class FeatureRows:
    """Feature vectors in host memory, each with a hash of its image. It has the methods of `ExactMoments`."""

    dims = 0  # need not be known

    def __init__(self) -> None:
        self._rows: list[NDArray[np.float32]] = []
        self._hashes: list[NDArray[np.int64]] = []
        self.refused: RunError | None = None

    @property
    def count(self) -> int:
        return sum(map(len, self._rows))

    def add(self, features: torch.Tensor, hashes: torch.Tensor) -> None:
        """Adds a batch: floats of shape (n, dims) and int64 of shape (n,). Raises a RunError unless all are finite."""
        if not features.isfinite().all():
            problem = "the network returned a feature that is NaN or infinite:"
            self.refused = self.refused or RunError(problem, "check its weights and input")
        self.flush()
        self._rows.append(features.to("cpu", torch.float32).numpy())
        self._hashes.append(hashes.cpu().numpy())

    def flush(self) -> None:
        """Raises the error if a feature was refused."""
        if self.refused is not None:
            raise copy.copy(self.refused)

    def to(self, device: torch.device) -> None:
        """Does nothing: the rows stay in host memory."""

    def merge(self, world: World) -> None:
        """Gathers the rows of all ranks, in place. A collective."""
        everyone = world.gather((self._rows, self._hashes))
        self._rows, self._hashes = ([part for own in kind for part in own] for kind in zip(*everyone, strict=True))

    def totals(self) -> dict[str, NDArray[Any]]:
        """Returns the number, the rows and the hashes, for `absorb`. They are ordered by the hashes: pseudo-random."""
        if not self._rows:
            return {"count": np.array(0), "rows": np.zeros((0, 0), np.float32), "order": np.zeros(0, np.int64)}
        rows, hashes = np.concatenate(self._rows), np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        return {"count": np.array(len(rows)), "rows": rows[order], "order": hashes[order]}

    def absorb(self, totals: dict[str, NDArray[Any]]) -> None:
        """Adds rows from `totals`."""
        self.add(torch.from_numpy(totals["rows"]), torch.from_numpy(totals["order"]))
