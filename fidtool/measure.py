"""Statistics of sets of images: from the cache, or by all ranks through the networks."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.assembly import Assembly
from fidtool.errors import InputError
from fidtool.extraction import Extraction, Work
from fidtool.features.flags import told_of
from fidtool.features.protocol import FEATURES, Definition, layer_prefix
from fidtool.images.batches import plan_batches
from fidtool.images.integrity import IntegrityCheck, broadcast_images, change_warning
from fidtool.images.records import ImageRecords
from fidtool.images.stream import Stream, images_of
from fidtool.keeping import Keeping
from fidtool.needs import SetNeeds
from fidtool.redaction import redacted
from fidtool.session import Session
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.cache import StatisticsCache
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.feature_buffer import Features, in_canonical_order
from fidtool.statistics.partial import RECORDS, Layer, PartialStatistics
from fidtool.statistics.statistics_file import LayerStatistics, MeasuredSet, Statistics, spread_features
from fidtool.validation import text_of
from fidtool.versions import libjpeg, versions


class Measurer:
    """Turns images into statistics, on all ranks together.

    Args:
        session: the run.
        classifier: Inception's weights must have it.

    Attributes:
        assembly: the networks.
        arithmetic: what decides the features' bits beyond their definitions.
        batch_size, num_workers: the settings, or the device's defaults.
        images_computed, forward_passes: work done through the networks so far, over all ranks.
        images_resumed: images whose work was in the checkpoint.
        keeping: what is kept, should the run fail.
        cached: paths whose statistics came from the cache.
        warnings: doubts about the run as a whole.
    """

    def __init__(self, session: Session, classifier: bool) -> None:
        world, device, config, console = session.world, session.device, session.config, session.console
        self._session, self._world, self._config, self._console = session, world, config, console
        self._cache = StatisticsCache(console.warn)
        # Rank zero's default: another device on another rank must not lead to another plan.
        self.batch_size = world.broadcast(config.batch_size or device.default_batch_size)
        default_workers = device.default_workers(world.launch)
        self.num_workers = default_workers if config.num_workers is None else config.num_workers
        self.images_computed = self.forward_passes = self.images_resumed = 0
        self.cached: list[str] = []
        self.assembly = Assembly(session, self.batch_size, classifier)
        self.warnings = self.assembly.doubts()
        self.arithmetic: dict[str, str | int] = {
            "device": device.name,
            "precision": config.precision,
            "kernels": self.assembly.kernels,
            "torch": torch.__version__,
            "pillow": version("pillow"),
            "libjpeg": libjpeg(),
            "batch_size": self.batch_size,
            "fidtool": versions().get("fidtool", ""),
        }
        for layer, probe in self.assembly.probes.items():
            self.arithmetic[f"{layer_prefix(layer, '_')}probe"] = probe
        self._checkpoint: Checkpoint | None = None
        if config.checkpoint is not None:
            every, limit = config.checkpoint_every, config.max_pixels
            self._checkpoint = Checkpoint(str(config.checkpoint), every, limit, self._complain)
        self.keeping = Keeping(text_of(config.checkpoint), self._checkpoint)

    @property
    def definition(self) -> Definition:
        """What defines the extractor's features; the same on every rank."""
        return self.assembly.definitions[FEATURES]

    def open_checkpoint(self, sources: Sequence[ImageSet], needs: Sequence[SetNeeds]) -> None:
        """Makes the checkpoint folder this run's, or takes up its work. A collective.

        Args:
            sources: all sets of images that will be measured, in their order, on rank zero.
            needs: what is needed of each.

        Raises:
            InputError: it belongs to another run.
        """
        checkpoint = self._checkpoint
        if checkpoint is None:
            return

        def claim() -> tuple[str, str]:
            for source in sources:
                if not source.source.files.versioned:
                    raise InputError(
                        f"--checkpoint cannot tell whether {source.path} will hold the same images next time: leave it "
                        "out, or put them into files"
                    )
            order = {"num": self._config.num, "seed": self._config.seed, "diagnose": self._config.diagnose}
            sets = [
                {
                    "path": redacted(real_path(source.path)),
                    "count": len(source),
                    "identity": source.identity(),
                    "needed": {layer: layer in needed.kept for layer in needed.layers},
                }
                for source, needed in zip(sources, needs, strict=True)
            ]
            further = {
                layer: self.assembly.definitions[layer].fingerprint
                for needed in needs
                for layer in needed.layers
                if layer != FEATURES
            }
            definition = {**asdict(self.definition), "layers": further}
            whole = {"definition": definition, "arithmetic": self.arithmetic, "order": order, "sets": sets}
            return checkpoint.claim(whole), uuid.uuid4().hex[:12]

        checkpoint.join(*self._world.on_rank_zero(claim), self._world.rank)

    def measure(self, number: int | None, path: str, source: ImageSet | None, needed: SetNeeds) -> MeasuredSet:
        """Statistics of one source. A collective.

        Args:
            number: which of the run's sets of images it is, counted from 0; None of a part of one, which no
                checkpoint keeps.
            path: of the source, as it was given.
            source: the images in canonical order, on rank zero; None on the others.
            needed: what is needed of it.

        Raises:
            FidtoolError: an image cannot be read, a rank was lost, a feature is out of range.
        """
        layers = self._layers(needed, needed.kept)
        known: list[Statistics] = []  # on rank zero, once there is something to know

        def look_up() -> NDArray[np.uint64] | None:
            """The marks of the set's batches, or None where the cache has what is needed."""
            assert source is not None
            found = self._cached(source, needed)
            if found is None:
                return source.marks(plan_batches(source, self.batch_size))
            self._console.say(f"{source.path}: statistics of {len(source)} images from the cache")
            if number is not None:
                self.cached.append(source.path)
            known.append(_as_found_now(found, source))
            return None

        marks = self._world.on_rank_zero(look_up)
        if marks is None:
            return spread_features(path, known[0] if known else None, needed.kept, self._world)
        given = self._session.given.get(path)
        images = broadcast_images(self._world, source, given, self._config.value_range)
        networks = self.assembly.networks(self.warnings.append)
        # Of a part of a set, which no checkpoint keeps, nobody need be told.
        watched = contextlib.nullcontext() if number is None else self.keeping.at_work(path)
        with IntegrityCheck(source) as integrity:
            with watched:
                share, work = self._extraction(layers, number is not None).measure(number or 0, images, marks, networks)
            self._world.on_rank_zero(integrity.wait)
        measured, cached = self._concluded(images if source is None else source, share, work, layers)
        if cached and number is not None:
            self.keeping.cached(path)
        return measured

    def _concluded(
        self, images: ImageSet, share: PartialStatistics, work: Work, layers: Mapping[str, Layer]
    ) -> tuple[MeasuredSet, bool]:
        """The statistics of a set that has gone through the networks, and whether they are cached. A collective."""
        known: list[Statistics] = []
        self.images_computed += work.images
        self.forward_passes += work.forward_passes
        self.images_resumed += work.resumed
        self._share_complaints()
        with self._world.together():
            kept = {name: rows.array() for name, rows in share.buffers.items()}
            features = {name: in_canonical_order(images, rows, share.skipped) for name, rows in kept.items()}
            records = features.pop(RECORDS, None)

        def finish() -> bool:
            pictures = None if records is None else ImageRecords.of(images, records, share.skipped)
            known.append(self._finished(images, share, layers, features, pictures))
            return self._put(images, layers, known[0])

        cached = self._world.on_rank_zero(finish)
        return MeasuredSet(images.path, known[0] if known else None, features), cached

    def measure_stream(self, images: Images, needed: SetNeeds) -> MeasuredSet:
        """Statistics of an iterable, which is gone through once. A collective.

        Args:
            images: this rank's iterable.
            needed: see `measure`.

        Raises:
            FidtoolError: see `measure`; also see `fidtool.images.stream.Stream`.
        """
        config = self._config
        layers = self._layers(needed, needed.kept)
        networks = self.assembly.networks(self.warnings.append)
        if config.num is not None and self._world.rank == 0:
            self._complain(f"{images.name} is an iterable: --num takes its first {config.num} images, no random ones")
        stream = Stream(images, config.value_range, self._world, self.batch_size, config.num, self._session.outside)
        share, work, plan = self._extraction(layers, kept=False).measure_stream(stream, images.name, networks)
        measured, _ = self._concluded(images_of(images, plan, config.seed), share, work, layers)
        if config.num is None or measured.statistics is None:
            return measured
        # Nobody knows how many more would have come.
        return replace(measured, statistics=replace(measured.statistics, found=None))

    def _layers(self, needed: SetNeeds, kept: Collection[str]) -> dict[str, Layer]:
        return {name: Layer(self.assembly.definitions[name], name in kept) for name in needed.layers}

    def _cached(self, source: ImageSet, needed: SetNeeds) -> Statistics | None:
        """What the cache has of a source: with the optional features, or else without."""
        if not self._config.cache:
            return None
        for kept in dict.fromkeys([frozenset(needed.kept), needed.features]):
            layers = self._layers(needed, kept)
            if (found := self._cache.find(source, layers, self.arithmetic, self._config.diagnose)) is not None:
                return found
        return None

    def _extraction(self, layers: Mapping[str, Layer], kept: bool) -> Extraction:
        return Extraction(
            self._session,
            layers,
            self.batch_size,
            self.num_workers,
            self._checkpoint if kept else None,
            self._complain,
        )

    def _complain(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)
            self._console.warn(line)

    def _share_complaints(self) -> None:
        """What another rank met is said as well, once. A collective."""
        for line in itertools.chain.from_iterable(self._world.gather(self.warnings)):
            self._complain(line)

    def _finished(
        self,
        source: ImageSet,
        share: PartialStatistics,
        layers: Mapping[str, Layer],
        features: Mapping[str, Features],
        pictures: ImageRecords | None,
    ) -> Statistics:
        found = {}
        for name, moments in share.moments.items():
            definition = layers[name].definition
            with told_of(name, definition.standard):
                if not definition.standard:
                    moments.check_precision()
                gaussian = moments.mean_covariance(definition.ddof)
            found[name] = LayerStatistics(gaussian.mu, gaussian.sigma, definition, features.get(name))
        return Statistics(
            found,
            share.count,
            arithmetic=self.arithmetic,
            traits=share.traits,
            skipped=tuple(share.skipped),
            found=source.found,
            pictures=pictures,
        )

    def _put(self, source: ImageSet, layers: Mapping[str, Layer], result: Statistics) -> bool:
        """Puts the statistics into the cache, where they will be right tomorrow; whether they are there."""
        if doubt := change_warning(source):
            self.warnings.append(doubt)
            return False
        if not self._config.cache or result.skipped:  # what could not be read today may be mended tomorrow
            return False
        key = self._cache.key(source, layers, self.arithmetic, result.pictures is not None)
        return self._cache.put(key, source, result)


def _as_found_now(statistics: Statistics, source: ImageSet) -> Statistics:
    """The statistics with the number of images there are, and with the images' paths as this run's user types them."""
    pictures = statistics.pictures
    named = None if pictures is None else replace(pictures, prefix=source.source.prefix)
    return replace(statistics, found=source.found, pictures=named)
