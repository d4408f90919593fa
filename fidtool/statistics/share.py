"""What one rank has gathered of one set: which batches are in, their exact sums, and all else that was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.features.flags import told_of
from fidtool.features.protocol import Definition, layer_prefix
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RECORD, RecordArray
from fidtool.sources.contents import BadFile
from fidtool.statistics.kept import KeptRows
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.precision import FEWEST_BITS, FeatureSizes

_HOPELESS = FEWEST_BITS - 3
"""A first batch of so few bits shows that the whole set will be refused."""


RECORDS = "records"
"""Where the images' records are kept, among the layers' features."""


class OverlapError(Exception):
    """Two parts of a checkpoint have a batch in common: runs at the same time wrote them."""


class StaleError(Exception):
    """A part of a checkpoint is of files that are no longer what they were."""


@dataclass(frozen=True)
class Layer:
    """A feature vector that every image of a run has.

    Attributes:
        definition: what defines it.
        kept: metrics need each image's, and not only their sums.
    """

    definition: Definition
    kept: bool = False


class Share:
    """A rank's part of a set.

    Args:
        marks: of each batch, a number that tells whether its files are still what they were.
        layers: what is gathered of each image, by name; at least one.
        sizes: number of images in each batch of the plan.
        device: see `ExactMoments`.
        inspected: each image's record is kept, too.

    Attributes:
        moments: of each layer the exact sums over the images of the batches that are in.
        kept: of the layers that ask for it, each image's features; under `RECORDS` its record, as bytes.
        traits: what was seen of these images.
        skipped: their files that could not be read.
    """

    def __init__(
        self,
        marks: NDArray[np.uint64],
        layers: Mapping[str, Layer],
        sizes: Sequence[int],
        device: torch.device | str = "cpu",
        inspected: bool = False,
    ) -> None:
        self.moments = {
            name: ExactMoments(layer.definition.dims, layer.definition.feature_step, device)
            for name, layer in layers.items()
        }
        self.kept = {name: KeptRows(sizes, layer.definition.dims) for name, layer in layers.items() if layer.kept}
        if inspected:
            self.kept[RECORDS] = KeptRows(sizes, RECORD.itemsize, np.uint8)
        self._standard = {name: layer.definition.standard for name, layer in layers.items()}
        self._sizes = sizes
        self.traits = ImageProperties()
        self.skipped: list[BadFile] = []
        self._marks = marks
        self._done = np.zeros(len(marks), dtype=bool)
        self._torn = False

    @property
    def count(self) -> int:
        """Number of images that are in."""
        return next(iter(self.moments.values())).count

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which batches are in: bool array of shape (batches,)."""
        return self._done

    def add(
        self,
        batch: int,
        features: Mapping[str, torch.Tensor] | None,
        traits: ImageProperties,
        records: RecordArray,
        skipped: Iterable[BadFile],
    ) -> None:
        """Adds batch number ``batch``.

        Args:
            batch: its place in the plan.
            features: of each layer a tensor of shape (n, dims), or None where no image of the batch could be read.
            traits, records, skipped: what was seen of its files.

        Raises:
            RunError: see `ExactMoments.add`.
        """
        self._torn = True  # a worker's death is raised from a signal handler, anywhere
        for name, moments in self.moments.items():
            if features is not None:
                with told_of(name, self._standard[name]):
                    if batch == 0 and not self._standard[name]:
                        _refuse_hopeless(features[name], moments.feature_step)
                    moments.add(features[name])
            if name in self.kept:
                dims = self.kept[name].dims
                rows = np.empty((0, dims), dtype=np.float32) if features is None else features[name].cpu().numpy()
                self.kept[name].put(batch, rows)
        if RECORDS in self.kept:
            self.kept[RECORDS].put(batch, records.view(np.uint8).reshape(len(records), RECORD.itemsize))
        self.traits += traits
        self.skipped += skipped
        self._done[batch] = True
        self._torn = False

    def replan(self, sizes: Sequence[int], first: int = 0) -> None:
        """Goes over to another plan, in which batch 0 is number ``first``: of images that nobody could count before.

        Raises:
            RunError: there is no room for what is kept.
        """
        done = np.zeros(len(sizes), dtype=bool)
        numbers = first + np.flatnonzero(self._done)
        done[numbers] = True
        self.kept = {name: rows.moved(sizes, first) for name, rows in self.kept.items()}
        self._sizes, self._done, self._marks = sizes, done, np.zeros(len(sizes), dtype=np.uint64)

    def settle(self) -> None:
        """Takes in what the sums hold back for a full block: what is wrong with it is said now.

        Raises:
            RunError: see `ExactMoments.add`.
        """
        for name, moments in self.moments.items():
            with told_of(name, self._standard[name]):
                moments.flush()

    def freeze(self) -> dict[str, NDArray[Any]] | None:
        """Everything as arrays, for `absorb`; None where an exception broke into an addition and left a part of it.

        Raises:
            RunError: see `ExactMoments.add`.
        """
        if self._torn:
            return None
        self._torn = True
        self.settle()
        record = {"traits": asdict(self.traits), "skipped": [[bad.file, bad.reason] for bad in self.skipped]}
        arrays = {
            **{
                f"{layer_prefix(name, '.')}{key}": array
                for name, moments in self.moments.items()
                for key, array in moments.totals().items()
            },
            "done": self._done,
            "marks": self._marks[self._done],
            "record": np.array(json.dumps(record)),
        }
        self._torn = False
        return arrays

    def absorb(self, arrays: dict[str, NDArray[Any]], kept: Mapping[str, Mapping[int, NDArray[Any]]]) -> None:
        """Adds what another share's `freeze` gave.

        Args:
            arrays: what it gave.
            kept: of each layer whose features are kept, those of its batches.

        Raises:
            OverlapError: a batch of it is in already.
            StaleError: files of its batches have changed since.
            ValueError, KeyError, TypeError: these are no such arrays.
                Nothing was added in any of these cases.
        """
        done: NDArray[np.bool_] = arrays["done"]
        if done.shape != self._done.shape or done.dtype != np.bool_:
            raise ValueError(f"it is of {done.size} batches and not of {len(self._done)}")
        if (done & self._done).any():
            raise OverlapError
        if not np.array_equal(arrays["marks"], self._marks[done]):
            raise StaleError("files of the set have changed since")
        traits, skipped = self.traits + ImageProperties(**_record(arrays)["traits"]), self.skipped + skipped_in(arrays)
        if set(kept) != set(self.kept) or any(set(rows) != set(np.flatnonzero(done)) for rows in kept.values()):
            raise ValueError("features of its images are missing")
        totals = [moments.unpacked(_of_layer(arrays, name)) for name, moments in self.moments.items()]
        if len({total.count for total in totals}) > 1:
            raise ValueError("its layers are not of the same images")
        for name, rows in kept.items():
            for batch, vectors in rows.items():
                self.kept[name].put(batch, vectors)
        for moments, total in zip(self.moments.values(), totals, strict=True):
            moments.take(total)
        self.traits, self.skipped = traits, skipped
        self._done |= done

    def merge(self, world: World, name: str) -> None:
        """Sums over the ranks, in place: every rank ends with the whole set. A collective.

        Args:
            world: the ranks.
            name: the set, for the message.

        Raises:
            RunError: an image was counted twice or not at all.
        """
        shares = world.gather((np.packbits(self._done), self.traits, self.skipped))
        for moments in self.moments.values():
            moments.merge(world)
        for kept in self.kept.values():
            kept.exchange(world)
        times = sum(np.unpackbits(done, count=len(self._done)).astype(np.int64) for done, _, _ in shares)
        self.traits = sum((traits for _, traits, _ in shares), ImageProperties())
        self.skipped = sorted((bad for _, _, skipped in shares for bad in skipped), key=lambda bad: bad.file)
        self._done[:] = True
        rows = {int(kept.counts.sum()) for kept in self.kept.values()}
        counts = {moments.count for moments in self.moments.values()} | rows
        if np.any(times != 1) or counts != {sum(self._sizes) - len(self.skipped)}:
            raise RunError(f"not every image of {name} was counted exactly once; please report this")


def _refuse_hopeless(features: torch.Tensor, feature_step: int) -> None:
    """Ends a run of hours at its first batch, where the step is far from what the features need."""
    sizes = FeatureSizes("cpu")
    sizes.add(features.cpu().double().mul(2.0**feature_step))
    if not sizes.refusal(feature_step):  # else the sums say what is wrong
        sizes.check_median(feature_step, _HOPELESS)


def _of_layer(arrays: dict[str, NDArray[Any]], layer: str) -> dict[str, NDArray[Any]]:
    """The arrays of one layer's sums, by the names that `ExactMoments.totals` gives them."""
    prefix = layer_prefix(layer, ".")
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if (name.startswith(prefix) if prefix else "." not in name)
    }


def _record(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(str(arrays["record"]))
    return record


def skipped_in(arrays: dict[str, NDArray[Any]]) -> list[BadFile]:
    """The files that a share left out, by what its `Share.freeze` gave."""
    return [BadFile(file, reason) for file, reason in _record(arrays)["skipped"]]
