"""Statistics of images: their exact sums, rows of each image where they are needed, properties, and skipped files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, about
from fidtool.features.protocol import Definition, layer_prefix
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RecordArray, columns_of, no_records
from fidtool.sources.contents import BadFile
from fidtool.statistics.feature_buffer import FeatureBuffer
from fidtool.statistics.moments import FEWEST_BITS, ExactMoments, FeatureSizes

_FIRST_BATCH_BITS = FEWEST_BITS - 3
"""If the features of the first batch have fewer bits than this, the whole set would be refused in the end."""
_ROWS = "kept."
"""Prefix of the names of the arrays with the rows of each image."""
RECORDS = tuple(columns_of(no_records()))
"""Keys of the images' records, whose bytes are stored in several parts, in `Accumulator.buffers`."""


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


class Accumulator:
    """Statistics of the images in some batches of a plan: those of one rank, of a part of a checkpoint, or all.

    Args:
        sizes: number of images in each batch, which has fewer if files are skipped.
        device: device of the sums, see `ExactMoments`.
        inspected: whether the images' records are collected, too.
        first: number of the first batch in the plan.

    Attributes:
        moments: exact sums over the images that were added, by layer.
        buffers: per-image features by layer, for layers that need them; the images' records as bytes under `RECORDS`.
        traits: properties of the images.
        skipped: files that could not be read.
        counts: number of images of each batch, -1 for batches not added: int64 array of shape (batches,).
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        sizes: Sequence[int],
        device: torch.device | str = "cpu",
        inspected: bool = False,
        first: int = 0,
    ) -> None:
        self._layers, self._sizes, self._device, self._inspected, self.first = layers, sizes, device, inspected, first
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
        self.counts = np.full(len(sizes), -1, dtype=np.int64)

    def empty(self, sizes: Sequence[int], first: int = 0) -> Accumulator:
        """Returns empty statistics of the same kind, of other batches."""
        return Accumulator(self._layers, sizes, self._device, self._inspected, first)

    def of_batches(self, batches: range) -> Accumulator:
        """Returns empty statistics of some of the batches."""
        return self.empty(self._sizes[batches.start - self.first : batches.stop - self.first], batches.start)

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
        """Adds the batch of this number in the plan; ``features`` are None if it has no images."""
        place, rows = batch - self.first, columns_of(records)
        for name, moments in self.moments.items():
            layer = self._layers[name]
            vectors = torch.empty(0, layer.definition.dims, device="cpu") if features is None else features[name]
            if features is not None:
                with about(layer.subject):
                    if batch == 0 and not layer.definition.standard:
                        _check_first_batch(vectors, layer)
                    moments.add(vectors)
            if layer.with_features:
                rows[name] = vectors.cpu().numpy()
        for name, buffer in self.buffers.items():
            buffer.put(place, rows[name])
        self.traits += traits
        self.skipped += skipped
        self.counts[place] = 0 if features is None else len(next(iter(features.values())))

    def flush(self) -> None:
        """Adds the rows that the sums hold back, so that errors are raised now."""
        for name, moments in self.moments.items():
            with about(self._layers[name].subject):
                moments.flush()

    def absorb(self, other: Accumulator) -> None:
        """Adds the statistics of other batches."""
        start = other.first - self.first
        for name, moments in self.moments.items():
            moments.add_sums(other.moments[name])
        for name, buffer in self.buffers.items():
            buffer.absorb(other.buffers[name], start)
        added = np.flatnonzero(other.counts >= 0)
        self.counts[start + added] = other.counts[added]
        self.traits += other.traits
        self.skipped += other.skipped

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns everything as arrays, for `restore`. All batches must have been added."""
        self.flush()
        arrays: dict[str, NDArray[Any]] = {}
        for name, moments in self.moments.items():
            totals = moments.totals()
            if totals["high"].max() < 2**30:  # by Cauchy-Schwarz, all sums are below 2 ** 62 then
                totals["low"] += totals.pop("high") << 32
            arrays |= {f"{layer_prefix(name, '.')}{key}": array for key, array in totals.items()}
        arrays |= {f"{_ROWS}{name}": buffer.array() for name, buffer in self.buffers.items()}
        record = {"traits": asdict(self.traits), "skipped": [[bad.file, bad.reason] for bad in self.skipped]}
        return {**arrays, "counts": self.counts, "record": np.array(json.dumps(record))}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Adds what `to_arrays` returned to empty statistics of the same batches.

        Raises an exception of any kind if the arrays are damaged; the statistics must then not be used.
        """
        record = json.loads(str(arrays["record"]))
        self.traits = ImageProperties(**record["traits"])
        self.skipped = [BadFile(file, reason) for file, reason in record["skipped"]]
        self.counts[:] = arrays["counts"]
        for name, moments in self.moments.items():
            prefix = layer_prefix(name, ".")
            own = {each.removeprefix(prefix): array for each, array in arrays.items() if each.startswith(prefix)}
            self.moments[name] = moments.restored(own)
        ends = np.cumsum(self.counts)
        for name, buffer in self.buffers.items():
            for batch, rows in enumerate(np.split(arrays[f"{_ROWS}{name}"], ends[:-1])):
                buffer.put(batch, rows)
        if not self._is_whole():
            raise ValueError("it does not have all of its images")

    def _is_whole(self) -> bool:
        """Whether every batch was added, and everything is of the same number of images."""
        counts = {int(self.counts.sum()), sum(self._sizes) - len(self.skipped)}
        counts |= {moments.count for moments in self.moments.values()}
        counts |= {int(buffer.counts.sum()) for buffer in self.buffers.values()}
        return len(counts) == 1 and bool((self.counts >= 0).all())

    def merge(self, world: World, name: str) -> None:
        """Sums over the ranks, in place: all ranks get the statistics of the whole set. A collective."""
        everyone = world.gather((self.counts, self.traits, self.skipped))
        for moments in self.moments.values():
            moments.merge(world)
        for buffer in self.buffers.values():
            buffer.merge(world)
        times = sum((counts >= 0).astype(np.int64) for counts, _, _ in everyone)
        self.counts = np.maximum.reduce([counts for counts, _, _ in everyone])
        self.traits = sum((traits for _, traits, _ in everyone), ImageProperties())
        self.skipped = sorted((bad for _, _, skipped in everyone for bad in skipped), key=lambda bad: bad.file)
        if np.any(times != 1) or not self._is_whole():
            raise RunError(f"not every image of {name} was counted exactly once", "please report this")


def _check_first_batch(features: torch.Tensor, layer: Layer) -> None:
    """Checks that the step is not far too coarse for the features of the first batch, so that a run fails early."""
    sizes, step = FeatureSizes(layer.step_setting), layer.definition.feature_step
    sizes.add(features.cpu().double().mul(2.0**step))
    if sizes.refusal(step) is None:  # otherwise the sums raise the error
        sizes.check_bits(step, _FIRST_BATCH_BITS)
