"""Statistics of images: their exact sums, rows of each image where they are needed, properties, and
skipped files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.world import World
from fidtool.errors import RunError, SettingName, prefix_errors
from fidtool.features.device import HostCopy
from fidtool.features.extractor import LayerFeatures
from fidtool.features.passes import GroupFeatures
from fidtool.features.protocol import Definition
from fidtool.reading.decode import ImageProperties
from fidtool.reading.loader import Piece
from fidtool.reading.records import RECORD, ImageRecords, to_bytes_array
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.moments import MIN_BITS, ExactMoments
from fidtool.statistics.rows import CHUNK_BYTES, empty_rows, reorder
from fidtool.statistics.set_statistics import (
    NO_IMAGES,
    LayerStatistics,
    Statistics,
)

# If the features of the first batch have fewer bits than this, the whole set would be refused in
# the end.
_FIRST_BATCH_BITS = MIN_BITS - 3
RECORDS = "records"
"""Key of the bytes of the images' records in `Accumulator.rows`."""
PAIRS = "pairs"
"""Key of the values of pairs in `Accumulator.rows`."""

Places = NDArray[np.int64]
"""Places of images in a set, array of shape (images,)."""
Rows = Mapping[str, NDArray[Any]]
"""Rows of images by name, arrays of shape (images, dims)."""


class LayerSpec(NamedTuple):
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


Layers = Mapping[str, LayerSpec]
"""Kinds of feature vectors by name."""


class _Addition(NamedTuple):
    """A piece whose features a device may still compute.

    Attributes:
        vectors: its features by layer.
        copies: those that are stored.
    """

    piece: Piece
    places: Places
    vectors: LayerFeatures
    copies: Mapping[str, HostCopy]


@dataclass(eq=False)
class Accumulator:
    """Statistics of images by their places in a set: of one rank, of a part of the set, or of all
    ranks.

    Attributes:
        layers: the kinds of feature vectors, by name.
        capacity: number of images in the set, or in the part.
        inspected: whether the images' records are collected, too.
        pairs: number of values that each pair of images has.
        partner_layers: layers of the images' partners whose statistics are collected, too; None
            for none.
        used: which images are in the statistics, bool array of shape (capacity,).
        unusable: which images were skipped, bool array of shape (capacity,).
        partner: statistics of the partners; None if they are not collected.
    """

    layers: Layers
    capacity: int
    device: torch.device | str = "cpu"
    inspected: bool = False
    pairs: int = 0
    partner_layers: Layers | None = None

    def __post_init__(self) -> None:
        count = self.capacity
        self.partner: Accumulator | None = None
        if self.partner_layers is not None:
            self.partner = Accumulator(self.partner_layers, count, self.device, self.inspected)
        self.used = np.zeros(count, dtype=bool)
        self.unusable = np.zeros(count, dtype=bool)
        self.moments: dict[str, ExactMoments] = {}
        self._rows: dict[str, NDArray[Any]] = {}
        for name, layer in self.layers.items():
            definition = layer.definition
            self.moments[name] = ExactMoments(
                definition.dims, definition.feature_step, self.device, layer.step_setting
            )
            if layer.with_features:
                self._rows[name] = empty_rows(count, definition.dims)
        if self.inspected:
            self._rows[RECORDS] = empty_rows(count, RECORD.itemsize, np.uint8)
        if self.pairs:
            self._rows[PAIRS] = empty_rows(count, self.pairs, np.float64)
        self.traits = ImageProperties()
        self.skipped: list[BadFile] = []
        self._unfinished: list[_Addition] = []

    def empty_copy(self, count: int) -> Accumulator:
        """Return empty statistics of the same kind, of ``count`` images."""
        return replace(self, capacity=count)

    @property
    def count(self) -> int:
        return int(self.used.sum())

    def rows(self) -> dict[str, NDArray[Any]]:
        """Return the rows of the images in the order of the set, without gaps for skipped files.

        They are the features of layers that need them by the name of the layer, the bytes of the
        images' records under `RECORDS`, and the values of pairs under `PAIRS`: arrays of shape
        (images, dims), memory-mapped if they are large.
        """
        assert not self._unfinished
        if self.used.all():
            return self._rows
        places = np.flatnonzero(self.used)
        return {name: reorder(rows, places) for name, rows in self._rows.items()}

    def add(self, piece: Piece, features: GroupFeatures, places: Places) -> None:
        """Add a piece. `finish` completes its batch, and is called when the next batch begins.

        Args:
            features: those of its images, and of their partners, if they have layers.
            places: places of its images, also of those that were skipped.
        """
        if self._unfinished and self._unfinished[0].piece.number != piece.number:
            self.finish()
        vectors: LayerFeatures = {}
        copies: dict[str, HostCopy] = {}
        if piece.count:
            for name, layer in self.layers.items():
                vectors[name] = features[0][name]
                self.moments[name].add(vectors[name])
                if layer.with_features:
                    copies[name] = HostCopy(vectors[name])
        self._unfinished.append(_Addition(piece, places, vectors, copies))
        if self.partner is not None and piece.partner is not None:
            of_partner = features[1:] if self.layers else features
            self.partner.add(piece.partner, of_partner, places)

    def finish(self) -> None:
        """Wait for the features of the latest batch, check their range, and store their rows."""
        for name in self.layers:
            self._check_range(name)
        for addition in self._unfinished:
            piece = addition.piece
            rows: dict[str, NDArray[Any]] = {
                RECORDS: to_bytes_array(piece.records),
                PAIRS: piece.pairs,
            }
            for name, copy in addition.copies.items():
                rows[name] = copy.wait().numpy()
            used = np.array(piece.used, dtype=bool)
            places = addition.places
            self._record_images(places[used], places[~used], rows, piece.properties, piece.skipped)
        self._unfinished.clear()
        if self.partner is not None:
            self.partner.finish()

    def _check_range(self, name: str) -> None:
        """Check the features of the latest batch; an error names the image."""
        layer = self.layers[name]
        added = [addition for addition in self._unfinished if addition.vectors]
        if not added:
            return
        with prefix_errors(layer.subject):
            try:
                self.moments[name].check_range()
            except RunError as error:
                vectors = torch.cat([addition.vectors[name] for addition in added])
                largest = vectors.abs().amax(dim=1).nan_to_num(nan=math.inf)
                files = [file for addition in added for file in addition.piece.files]
                error.begin_with(files[int(largest.argmax())])
                raise
            if added[0].piece.number == 0 and not layer.definition.standard:
                self.moments[name].check_precision(_FIRST_BATCH_BITS)

    def absorb(self, other: Accumulator, places: Places) -> None:
        """Add statistics of the same kind; ``places`` are those of their images here."""
        other.finish()
        for name, moments in self.moments.items():
            moments.absorb(other.moments[name].totals())
        used = places[np.flatnonzero(other.used)]
        unusable = places[np.flatnonzero(other.unusable)]
        self._record_images(used, unusable, other.rows(), other.traits, other.skipped)
        if self.partner is not None and other.partner is not None:
            self.partner.absorb(other.partner, places)

    def add_part(self, part: Statistics, pairs: NDArray[np.float64] | None = None) -> None:
        """Add statistics of a part of the set, with the values of its pairs; a ValueError if its
        sums are damaged.
        """
        assert part.part is not None
        rows: dict[str, Any] = {name: layer.features for name, layer in part.layers.items()}
        rows[PAIRS] = pairs
        if part.pictures is not None:
            rows[RECORDS] = to_bytes_array(part.pictures.records)
        for name, moments in self.moments.items():
            moments.absorb(part.layers[name].sums or {})
        self._record_images(
            part.part.places,
            part.part.skipped,
            rows,
            part.traits or ImageProperties(),
            part.skipped,
        )

    def _record_images(
        self,
        used: Places,
        unusable: Places,
        rows: Rows,
        traits: ImageProperties,
        skipped: Sequence[BadFile],
    ) -> None:
        """Note images by their places, and store the rows of those that are used."""
        if len(used):
            for name, stored in self._rows.items():
                stored[used] = rows[name]
        self.used[used] = True
        self.unusable[unusable] = True
        self.traits = ImageProperties.total((self.traits, traits))
        self.skipped += skipped

    def merge(self, world: World, name: str) -> None:
        """Sum over the ranks, in place: all ranks get the statistics of the whole set. A
        collective.
        """
        for moments in self.moments.values():
            moments.merge(world)
        for rows in self._rows.values():
            _merge_rows(rows.view(f"i{rows.itemsize}"), world)
        everyone = world.gather((self.traits, self.skipped))
        self.traits = ImageProperties.total(traits for traits, _ in everyone)
        skipped = itertools.chain.from_iterable(skipped for _, skipped in everyone)
        self.skipped = sorted(skipped, key=lambda bad_file: bad_file.file)
        flags = np.stack([self.used, self.unusable]).astype(np.uint8)
        times = world.all_reduce_sum(torch.from_numpy(flags)).numpy()
        self.used, self.unusable = times > 0
        counts = {self.count, *(moments.count for moments in self.moments.values())}
        if (times.sum(axis=0) != 1).any() or len(counts) > 1:
            raise RunError(
                f"not every image of {name} was counted exactly once", "please report this"
            )
        if self.partner is not None:
            self.partner.merge(world, name)

    def check_precision(self) -> None:
        """Raise a RunError if the features of a network other than Inception have too few bits."""
        for name, layer in self.layers.items():
            if not layer.definition.standard:
                with prefix_errors(layer.subject):
                    self.moments[name].check_precision()

    def layer_statistics(self, rows: Rows, sums_alone: bool = False) -> dict[str, LayerStatistics]:
        """Return the statistics of the layers, with the features in ``rows``; see
        `LayerStatistics` for sums alone.
        """
        layers = {}
        for name, layer in self.layers.items():
            moments = self.moments[name]
            gaussian = NO_IMAGES
            with prefix_errors(layer.subject):
                if moments.count and not sums_alone:
                    gaussian = moments.mean_covariance(layer.definition.ddof)
            layers[name] = LayerStatistics(
                gaussian.mu, gaussian.sigma, layer.definition, rows.get(name), moments.totals()
            )
        return layers

    def statistics(
        self, images: ImageSet, rows: Rows, arithmetic: dict[str, Any], sums_alone: bool = False
    ) -> Statistics:
        """Return the statistics of the images of a set, or of a part of one, with their
        ``rows``.
        """
        images = images.drop_skipped(self.skipped)
        with_features = any(layer.with_features for layer in self.layers.values())
        return Statistics(
            self.layer_statistics(rows, sums_alone),
            self.count,
            arithmetic=arithmetic,
            traits=self.traits,
            skipped=tuple(self.skipped),
            found=len(images.stored),
            pictures=ImageRecords.from_images(images, rows[RECORDS]) if RECORDS in rows else None,
            order=images.numbers() if with_features else None,
            framing=images.crop,
            part=images.part,
        )


def _merge_rows(bits: NDArray[Any], world: World) -> None:
    """Give all ranks the rows of all ranks, a limited number of bytes at a time. A collective.

    The rows of other ranks are zeros, so that the sums of all bits, as integers, are the rows of
    all.
    """
    at_once = max(1, CHUNK_BYTES // bits.strides[0])
    for start in range(0, len(bits), at_once):
        world.all_reduce_sum(torch.from_numpy(bits[start : start + at_once]))
