"""Statistics of images: their exact sums, rows of each image where they are needed, properties, and skipped files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, SettingName, about
from fidtool.features.extractor import BatchFeatures
from fidtool.features.protocol import Definition, layer_prefix
from fidtool.images.decode import ImageProperties
from fidtool.images.loader import DecodedBatch
from fidtool.images.records import RECORD
from fidtool.sources.contents import BadFile
from fidtool.statistics.moments import FEWEST_BITS, ExactMoments
from fidtool.statistics.set_statistics import CHUNK_BYTES, RowStorage, reordered

_FIRST_BATCH_BITS = FEWEST_BITS - 3
"""If the features of the first batch have fewer bits than this, the whole set would be refused in the end."""
_ROWS = "kept."
"""Prefix of the names of the arrays with the rows of each image."""
RECORDS, PAIRS = "records", "pairs"
"""Keys of the bytes of the images' records, and of the values of pairs, in `Accumulator.rows`."""
_PARTNER = "real/"
"""Prefix of the names of the arrays with the statistics of the partners."""


class Layer(NamedTuple):
    """A kind of feature vector that is computed for all images of a run.

    Attributes:
        with_features: whether metrics need per-image features, and not only their sums.
        subject: what the features belong to, for messages; empty for the run's own extractor.
        step_setting: setting that determines the step of the features, see `ExactMoments`.
    """

    definition: Definition
    with_features: bool = False
    subject: str = ""
    step_setting: SettingName | None = "feature_step"


class Accumulator:
    """Statistics of the images in some batches of a plan: those of one rank, of a part of a checkpoint, or all.

    Args:
        sizes: number of images in each batch, which has fewer if files are skipped.
        inspected: whether the images' records are collected, too.
        first: number of the first batch in the plan.
        pairs: number of values that each pair of images has.
        of_partner: layers of the images' partners of which the statistics are collected, too; None for none.

    Attributes:
        counts: number of images of each batch, -1 for batches not added: int64 array of shape (batches,).
        partner: statistics of the partners; None if they are not collected.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        sizes: Sequence[int] | NDArray[np.int64],
        device: torch.device | str = "cpu",
        inspected: bool = False,
        first: int = 0,
        pairs: int = 0,
        of_partner: Mapping[str, Layer] | None = None,
    ) -> None:
        self._layers, self._device, self._inspected, self.first = layers, device, inspected, first
        self._pairs, self._of_partner = pairs, of_partner
        self.partner = None if of_partner is None else Accumulator(of_partner, sizes, device, inspected, first)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.counts = np.full(len(sizes), -1, dtype=np.int64)
        self.moments = {
            name: ExactMoments(layer.definition.dims, layer.definition.feature_step, device, layer.step_setting)
            for name, layer in layers.items()
        }
        count = int(self._sizes.sum())
        self._rows = {
            name: RowStorage(count, each.definition.dims) for name, each in layers.items() if each.with_features
        }
        if inspected:
            self._rows[RECORDS] = RowStorage(count, RECORD.itemsize, np.uint8)
        if pairs:
            self._rows[PAIRS] = RowStorage(count, pairs, np.float64)
        self.traits = ImageProperties()
        self.skipped: list[BadFile] = []

    def of_batches(self, batches: range) -> Accumulator:
        """Returns empty statistics of some of the batches."""
        sizes = self._sizes[batches.start - self.first : batches.stop - self.first]
        settings = self._device, self._inspected, batches.start, self._pairs, self._of_partner
        return Accumulator(self._layers, sizes, *settings)

    @property
    def count(self) -> int:
        return int(self.counts.clip(0).sum())

    def rows(self) -> dict[str, NDArray[Any]]:
        """Returns the rows of the images in the order of the plan, without gaps for skipped files.

        They are the features of layers that need them by the name of the layer, the bytes of the images' records under
        `RECORDS`, and the values of pairs under `PAIRS`: arrays of shape (images, dims), memory-mapped if they are
        large.
        """
        found = {name: storage.array() for name, storage in self._rows.items()}
        if np.array_equal(self.counts, self._sizes):
            return found
        places = map(self._place, map(int, np.flatnonzero(self.counts > 0)))
        kept = np.concatenate([np.arange(0), *(np.arange(each.start, each.stop) for each in places)])
        return {name: reordered(rows, kept) for name, rows in found.items()}

    def _place(self, batch: int) -> slice:
        """Returns the place of a batch, by its number here, in the storage of rows."""
        return slice(int(self._starts[batch]), int(self._starts[batch] + self.counts[batch]))

    def add(self, batch: DecodedBatch, features: BatchFeatures) -> None:
        """Adds a batch; ``features`` are those of its images, and of their partners, if they have layers."""
        records = batch.records.view(np.uint8).reshape(-1, RECORD.itemsize)
        rows: dict[str, NDArray[Any]] = {RECORDS: records, PAIRS: batch.pairs}
        own, others = (features[:1], features[1:]) if self._layers else ((), features)
        for name, layer in self._layers.items() if batch.count else ():
            vectors = own[0][name]
            with about(layer.subject):
                self.moments[name].add(vectors)
                if batch.number == 0 and not layer.definition.standard:
                    self.moments[name].check_precision(_FIRST_BATCH_BITS)
            if layer.with_features:
                rows[name] = vectors.cpu().numpy()
        place = batch.number - self.first
        if batch.count:
            for name, storage in self._rows.items():
                storage.write(int(self._starts[place]), rows[name])
        self.traits = ImageProperties.total((self.traits, batch.properties))
        self.skipped += batch.skipped
        self.counts[place] = batch.count
        if self.partner is not None and batch.partner is not None:
            self.partner.add(batch.partner, others)

    def flush(self) -> None:
        """Adds the rows that the sums hold back, so that errors are raised now."""
        for name, moments in self.moments.items():
            with about(self._layers[name].subject):
                moments.flush()
        if self.partner is not None:
            self.partner.flush()

    def absorb(self, other: Accumulator) -> None:
        """Adds the statistics of other batches."""
        start = other.first - self.first
        for name, moments in self.moments.items():
            moments.add_sums(other.moments[name])
        added = np.flatnonzero(other.counts >= 0)
        for name, storage in self._rows.items():
            theirs = other._rows[name].array()
            for batch in map(int, added):
                storage.write(int(self._starts[start + batch]), theirs[other._place(batch)])
        self.counts[start + added] = other.counts[added]
        self.traits = ImageProperties.total((self.traits, other.traits))
        self.skipped += other.skipped
        if self.partner is not None and other.partner is not None:
            self.partner.absorb(other.partner)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns everything as arrays, for `restore`. All batches must have been added."""
        self.flush()
        arrays: dict[str, NDArray[Any]] = {}
        for name, moments in self.moments.items():
            arrays |= {f"{layer_prefix(name, '.')}{key}": array for key, array in moments.totals().items()}
        arrays |= {f"{_ROWS}{name}": storage.array() for name, storage in self._rows.items()}
        if self.partner is not None:
            arrays |= {f"{_PARTNER}{name}": array for name, array in self.partner.to_arrays().items()}
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
            moments.absorb(own)
        for name, storage in self._rows.items():
            rows = arrays[f"{_ROWS}{name}"]
            if len(rows) != self._sizes.sum():
                raise ValueError("it does not have all of its rows")
            storage.write(0, rows)
        if self.partner is not None:
            own = {name.removeprefix(_PARTNER): each for name, each in arrays.items() if name.startswith(_PARTNER)}
            self.partner.restore(own)
        if not self._is_whole():
            raise ValueError("it does not have all of its images")

    def _is_whole(self) -> bool:
        """Whether every batch was added, and everything is of the same number of images."""
        counts = {self.count, int(self._sizes.sum()) - len(self.skipped)}
        counts |= {moments.count for moments in self.moments.values()}
        return len(counts) == 1 and bool((self.counts >= 0).all())

    def merge(self, world: World, name: str) -> None:
        """Sums over the ranks, in place: all ranks get the statistics of the whole set. A collective."""
        everyone = world.gather((self.counts, self.traits, self.skipped))
        for moments in self.moments.values():
            moments.merge(world)
        if world.size > 1:
            for storage in self._rows.values():
                self._merge_rows(storage, world)
        times = sum((counts >= 0).astype(np.int64) for counts, _, _ in everyone)
        self.counts = np.maximum.reduce([counts for counts, _, _ in everyone])
        self.traits = ImageProperties.total(traits for _, traits, _ in everyone)
        self.skipped = sorted((bad for _, _, skipped in everyone for bad in skipped), key=lambda bad: bad.file)
        if np.any(times != 1) or not self._is_whole():
            raise RunError(f"not every image of {name} was counted exactly once", "please report this")
        if self.partner is not None:
            self.partner.merge(world, name)

    def _merge_rows(self, storage: RowStorage, world: World) -> None:
        """Gives all ranks the rows of all ranks, a limited number of bytes at a time. A collective."""
        everything, own = storage.array(), [int(batch) for batch in np.flatnonzero(self.counts > 0)]
        at_once = max(1, CHUNK_BYTES // (world.size * storage.row_bytes * int(self._sizes.max(initial=1))))
        for start in range(0, max(world.gather(len(own))), at_once):
            mine = [(batch, np.array(everything[self._place(batch)])) for batch in own[start : start + at_once]]
            received = world.gather(mine)
            with world.together():
                for batch, rows in itertools.chain(*received[: world.rank], *received[world.rank + 1 :]):
                    storage.write(int(self._starts[batch]), rows)
