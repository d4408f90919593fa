"""Statistics of the part of a set that one rank has processed: finished batches, their exact sums, and image traits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, about
from fidtool.features.definition import Definition
from fidtool.features.protocol import layer_prefix
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RecordArray, columns_of, no_records
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import FeatureBuffer
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.precision import FEWEST_BITS, FeatureSizes

_FIRST_BATCH_BITS = FEWEST_BITS - 3
"""If the features of the first batch have fewer bits than this, the whole set would be refused in the end."""
RECORDS = tuple(columns_of(no_records()))
"""Keys of the images' records, whose bytes are stored in several parts, in `PartialStatistics.buffers`."""


class OverlapError(Exception):
    """Raised if two parts of a checkpoint have a batch in common, because concurrent runs wrote them."""


class StaleError(Exception):
    """Raised if a part of a checkpoint is out of date, for example because files have changed since."""


@dataclass(frozen=True)
class Layer:
    """A kind of feature vector that is computed for all images of a run.

    Attributes:
        with_features: whether metrics need per-image features, and not only their sums.
        subject: what the features belong to, for messages; empty for the run's own extractor.
        step_setting: setting that determines the step of the features, see `FeatureSizes`.
    """

    definition: Definition
    with_features: bool = False
    subject: str = ""
    step_setting: str | None = "feature_step"


class PartialStatistics:
    """Statistics of the part of a set that one rank has processed; after `merge`, of the whole set.

    Args:
        marks: a number for each batch that changes if its files change: uint64 array of shape (batches,).
        sizes: number of images in each batch of the plan.
        device: device of the sums, see `ExactMoments`.
        inspected: whether the images' records are collected, too.

    Attributes:
        moments: exact sums over the images of finished batches, by layer.
        buffers: per-image features by layer, for layers that need them; the images' records as bytes under `RECORDS`.
        traits: properties of the images of finished batches.
        skipped: files of finished batches that could not be read.
        done: which batches are finished: bool array of shape (batches,).
    """

    def __init__(
        self,
        marks: NDArray[np.uint64],
        layers: Mapping[str, Layer],
        sizes: Sequence[int],
        device: torch.device | str = "cpu",
        inspected: bool = False,
    ) -> None:
        self._layers = layers
        self.moments = {
            name: ExactMoments(layer.definition.dims, layer.definition.feature_step, device, layer.step_setting)
            for name, layer in layers.items()
        }
        self.buffers = {
            name: FeatureBuffer(sizes, layer.definition.dims) for name, layer in layers.items() if layer.with_features
        }
        if inspected:
            empty = columns_of(no_records())
            self.buffers |= {name: FeatureBuffer(sizes, rows.shape[1], np.uint8) for name, rows in empty.items()}
        self.traits = ImageProperties()
        self.skipped: list[BadFile] = []
        self.done = np.zeros(len(marks), dtype=bool)
        self._sizes = sizes
        self._marks = marks
        self._consistent = True

    @property
    def count(self) -> int:
        """Number of images added."""
        return next(iter(self.moments.values())).count

    def add(
        self,
        batch: int,
        features: Mapping[str, torch.Tensor] | None,
        traits: ImageProperties,
        records: RecordArray,
        skipped: Iterable[BadFile],
    ) -> None:
        """Adds one batch."""
        with self._undivided():
            self._add_features(batch, features)
            for name, rows in columns_of(records).items():
                if name in self.buffers:
                    self.buffers[name].put(batch, rows)
            self.traits += traits
            self.skipped += skipped
            self.done[batch] = True

    def _add_features(self, batch: int, features: Mapping[str, torch.Tensor] | None) -> None:
        """Adds the features to the sums and the buffers."""
        for name, moments in self.moments.items():
            layer = self._layers[name]
            vectors = torch.empty(0, layer.definition.dims, device="cpu") if features is None else features[name]
            if features is not None:
                with about(layer.subject):
                    if batch == 0 and not layer.definition.standard:
                        _check_first_batch(vectors, layer)
                    moments.add(vectors)
            if layer.with_features:
                self.buffers[name].put(batch, vectors.cpu().numpy())

    @contextlib.contextmanager
    def _undivided(self) -> Iterator[None]:
        """Marks the statistics as inconsistent if an exception interrupts the block.

        If a worker dies, a signal handler may raise an exception anywhere in it.
        """
        before, self._consistent = self._consistent, False
        yield
        self._consistent = before

    def replan(self, sizes: Sequence[int], first: int = 0) -> None:
        """Changes to a different plan, for sources whose number of images was unknown."""
        done = np.zeros(len(sizes), dtype=bool)
        done[first + np.flatnonzero(self.done)] = True
        self.buffers = {name: buffer.replanned(sizes, first) for name, buffer in self.buffers.items()}
        self._sizes, self.done, self._marks = sizes, done, np.zeros(len(sizes), dtype=np.uint64)

    def flush(self) -> None:
        """Adds the rows that the sums hold back, so that errors are raised now."""
        with self._undivided():
            for name, moments in self.moments.items():
                with about(self._layers[name].subject):
                    moments.flush()

    def to_arrays(self) -> dict[str, NDArray[Any]] | None:
        """Returns all but the buffers as arrays, for `absorb`; None if an exception interrupted an addition."""
        if not self._consistent:
            return None
        with self._undivided():
            self.flush()
            record = {"traits": asdict(self.traits), "skipped": [[bad.file, bad.reason] for bad in self.skipped]}
            return {
                **{
                    f"{layer_prefix(name, '.')}{key}": array
                    for name, moments in self.moments.items()
                    for key, array in moments.totals().items()
                },
                "done": self.done,
                "marks": self._marks[self.done],
                "record": np.array(json.dumps(record)),
            }

    def absorb(self, arrays: dict[str, NDArray[Any]], rows: Mapping[str, Mapping[int, NDArray[Any]]]) -> None:
        """Adds statistics from `to_arrays`. If an exception is raised, nothing was added.

        Raises:
            OverlapError: if one of the batches is already finished.
            StaleError: if files of the batches have changed since.
        """
        done: NDArray[np.bool_] = arrays["done"]
        if done.shape != self.done.shape or done.dtype != np.bool_:
            raise ValueError(f"it has {done.size} batches instead of {len(self.done)}")
        if (done & self.done).any():
            raise OverlapError
        if not np.array_equal(arrays["marks"], self._marks[done]):
            raise StaleError("files of the set have changed since")
        traits, skipped = self.traits + ImageProperties(**_record(arrays)["traits"]), self.skipped + skipped_in(arrays)
        if set(rows) != set(self.buffers) or any(set(each) != set(np.flatnonzero(done)) for each in rows.values()):
            raise ValueError("features of its images are missing")
        totals = [moments.restored(_of_layer(arrays, name)) for name, moments in self.moments.items()]
        if len({total.count for total in totals}) > 1:
            raise ValueError("its layers have different numbers of images")
        for name, batches in rows.items():
            for batch, each in batches.items():
                self.buffers[name].put(batch, each)
        for moments, total in zip(self.moments.values(), totals, strict=True):
            moments.add_sums(total)
        self.traits, self.skipped = traits, skipped
        self.done |= done

    def merge(self, world: World, name: str) -> None:
        """Sums over the ranks, in place: all ranks get the statistics of the whole set. A collective."""
        everyone = world.gather((np.packbits(self.done), self.traits, self.skipped))
        for moments in self.moments.values():
            moments.merge(world)
        for buffer in self.buffers.values():
            buffer.merge(world)
        times = sum(np.unpackbits(done, count=len(self.done)).astype(np.int64) for done, _, _ in everyone)
        self.traits = sum((traits for _, traits, _ in everyone), ImageProperties())
        self.skipped = sorted((bad for _, _, skipped in everyone for bad in skipped), key=lambda bad: bad.file)
        self.done[:] = True
        counts = {moments.count for moments in self.moments.values()}
        counts |= {int(buffer.counts.sum()) for buffer in self.buffers.values()}
        if np.any(times != 1) or counts != {sum(self._sizes) - len(self.skipped)}:
            raise RunError(f"not every image of {name} was counted exactly once", "please report this")


def _check_first_batch(features: torch.Tensor, layer: Layer) -> None:
    """Checks that the step is not far too coarse for the features of the first batch, so that a run fails early."""
    sizes, step = FeatureSizes(layer.step_setting), layer.definition.feature_step
    sizes.add(features.cpu().double().mul(2.0**step))
    if sizes.refusal(step) is None:  # otherwise the sums raise the error
        sizes.check_bits(step, _FIRST_BATCH_BITS)


def _of_layer(arrays: dict[str, NDArray[Any]], layer: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays of one layer, with the names that `ExactMoments.totals` uses."""
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
    """Returns the skipped files that `PartialStatistics.to_arrays` stored."""
    return [BadFile(file, reason) for file, reason in _record(arrays)["skipped"]]
