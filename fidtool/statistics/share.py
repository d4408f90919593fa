"""What one rank has gathered of one set: which batches are in, their exact sums, and all else that was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.images.source import BadFile
from fidtool.images.traits import Traits
from fidtool.statistics.moments import ExactMoments


class OverlapError(Exception):
    """Two parts of a checkpoint have a batch in common: runs at the same time wrote them."""


class StaleError(Exception):
    """A part of a checkpoint is of files that are no longer what they were."""


class Share:
    """A rank's part of a set.

    Args:
        marks: of each batch, a number that tells whether its files are still what they were.
        dims, feature_step, device: see `ExactMoments`.

    Attributes:
        moments: the exact sums over the images of the batches that are in.
        traits: what was seen of these images.
        skipped: their files that could not be read.
    """

    def __init__(
        self, marks: NDArray[np.uint64], dims: int, feature_step: int, device: torch.device | str = "cpu"
    ) -> None:
        self.moments = ExactMoments(dims, feature_step, device)
        self.traits = Traits()
        self.skipped: list[BadFile] = []
        self._marks = marks
        self._done = np.zeros(len(marks), dtype=bool)
        self._torn = False

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which batches are in: bool array of shape (batches,)."""
        return self._done

    def add(self, batch: int, features: torch.Tensor | None, traits: Traits, skipped: Iterable[BadFile]) -> None:
        """Adds batch number ``batch``: features of shape (n, dims), or None where no image of it could be read.

        Raises:
            RunError: see `ExactMoments.add`.
        """
        self._torn = True  # a worker's death is raised from a signal handler, anywhere
        if features is not None:
            self.moments.add(features)
        self.traits += traits
        self.skipped += skipped
        self._done[batch] = True
        self._torn = False

    def freeze(self) -> dict[str, NDArray[Any]] | None:
        """Everything as arrays, for `absorb`; None where an exception broke into an addition and left a part of it.

        Raises:
            RunError: see `ExactMoments.add`.
        """
        if self._torn:
            return None
        self._torn = True
        record = {"traits": asdict(self.traits), "skipped": [[bad.file, bad.reason] for bad in self.skipped]}
        arrays = {
            **self.moments.totals(),
            "done": self._done,
            "marks": self._marks[self._done],
            "record": np.array(json.dumps(record)),
        }
        self._torn = False
        return arrays

    def absorb(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Adds what another share's `freeze` gave.

        Raises:
            OverlapError: a batch of it is in already.
            StaleError: files of its batches have changed since.
            ValueError, KeyError, TypeError: these are no such arrays.
                Nothing was added in any of these cases.
        """
        done = arrays["done"]
        if done.shape != self._done.shape or done.dtype != np.bool_:
            raise ValueError(f"it is of {done.size} batches and not of {len(self._done)}")
        if (done & self._done).any():
            raise OverlapError
        if not np.array_equal(arrays["marks"], self._marks[done]):
            raise StaleError("files of the set have changed since")
        traits, skipped = self.traits + Traits(**_record(arrays)["traits"]), self.skipped + skipped_in(arrays)
        self.moments.absorb(arrays)
        self.traits, self.skipped = traits, skipped
        self._done |= done

    def merge(self, world: World, sizes: Sequence[int], name: str) -> None:
        """Sums over the ranks, in place: every rank ends with the whole set. A collective.

        Args:
            world: the ranks.
            sizes: number of images in each batch of the plan.
            name: the set, for the message.

        Raises:
            RunError: an image was counted twice or not at all.
        """
        shares = world.gather((np.packbits(self._done), self.traits, self.skipped))
        self.moments.merge(world)
        times = sum(np.unpackbits(done, count=len(self._done)).astype(np.int64) for done, _, _ in shares)
        self.traits = sum((traits for _, traits, _ in shares), Traits())
        self.skipped = sorted((bad for _, _, skipped in shares for bad in skipped), key=lambda bad: bad.file)
        self._done[:] = True
        if np.any(times != 1) or self.moments.count + len(self.skipped) != sum(sizes):
            raise RunError(f"not every image of {name} was counted exactly once; please report this")


def _record(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(str(arrays["record"]))
    return record


def skipped_in(arrays: dict[str, NDArray[Any]]) -> list[BadFile]:
    """The files that a share left out, by what its `Share.freeze` gave."""
    return [BadFile(file, reason) for file, reason in _record(arrays)["skipped"]]
