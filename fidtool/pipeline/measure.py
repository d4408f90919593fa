"""Statistics of image sets, from the cache or from feature extraction on all ranks."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from numpy.typing import NDArray

from fidtool.errors import InputError, about, on_every_rank, option, redacted
from fidtool.features.protocol import FEATURES
from fidtool.images.batches import Stream, broadcast_images
from fidtool.images.framing import Crop
from fidtool.images.records import ImageRecords
from fidtool.pipeline.extract import Extraction
from fidtool.pipeline.networks import RunNetworks
from fidtool.pipeline.plan import Plan
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import Content, RequestedSet, SetPlan
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.accumulator import RECORDS, Accumulator, Layer
from fidtool.statistics.saved import Checkpoint, claim, find_cached, put_in_cache
from fidtool.statistics.set_statistics import (
    Features,
    LayerStatistics,
    MeasuredSet,
    Statistics,
    in_canonical_order,
    spread_features,
)


class Measurer:
    """Measures the sets of a run on all ranks. The constructor is a collective.

    Args:
        requests: the sets as this rank's caller passes them.
        contents: what the sets hold, known on rank zero alone.

    Attributes:
        counts: the work of all ranks so far, by the fields of `fidtool.record.RunRecord`, on rank zero.
        cached: sets whose statistics came from the cache, on rank zero.
    """

    def __init__(
        self,
        run: RunContext,
        plan: Plan,
        requests: Sequence[RequestedSet],
        contents: Mapping[SetPlan, Content],
        networks: RunNetworks,
    ) -> None:
        self._run, self._world, self._plan, self._settings = run, run.world, plan, plan.settings
        self._requests, self._contents = requests, contents
        settings, device = plan.settings, run.device
        self.num_workers = device.default_workers if settings.num_workers is None else settings.num_workers
        self.counts: Counter[str] = Counter()
        self.cached: list[str] = []
        self.networks, self.warnings = networks, networks.warnings
        self.arithmetic: dict[str, str | int] = {
            "device": device.name,
            "precision": settings.precision,
            "kernels": networks.kernels,
            "torch": torch.__version__,
            "pillow": run.versions["pillow"],
            "libjpeg": run.versions["libjpeg"],
            "batch_size": plan.batch_size,
            "fidtool": run.versions.get("fidtool", ""),
        }
        for layer, probe in networks.probes.items():
            self.arithmetic[f"{networks.definitions[layer].fingerprint}_probe"] = probe
        if settings.checkpoint is not None and networks.definitions:
            name = run.world.on_rank_zero(self._claim_checkpoint)
            run.finished.checkpoint = Checkpoint(str(settings.checkpoint), name, settings.max_pixels, self._warn)

    def _claim_checkpoint(self) -> str:
        settings, definitions, sets = self._settings, self.networks.definitions, []
        for each, needs in self._plan.needs.items():
            if (source := self._contents[each].images) is None:
                continue
            if not source.files.versioned:
                raise InputError(
                    f"{option('checkpoint')} cannot detect whether the images of {each.path} change before a resume:",
                    f"omit {option('checkpoint')}",
                    "store the images in files",
                    setting="checkpoint",
                )
            sets.append(
                {
                    "path": redacted(real_path(source.path)),
                    "count": len(source),
                    "identity": source.identity(),
                    "needed": {layer: layer in needs.collected for layer in needs.layers},
                    "framing": source.framing,
                }
            )
        further = {layer: each.fingerprint for layer, each in definitions.items() if layer != FEATURES}
        identity = {
            "definition": {**asdict(definitions[FEATURES]), "layers": further},
            "arithmetic": self.arithmetic,
            "order": {name: getattr(settings, name) for name in ("num", "seed", "sample", "diagnose")},
            "sets": sets,
        }
        return claim(str(settings.checkpoint), identity, self._warn)

    def measure(self, planned: SetPlan, given: Statistics | None = None) -> MeasuredSet:
        """Returns a set's statistics, on rank zero, and the features of each image, on all ranks. A collective.

        Layers that ``given`` statistics of the same images have, on rank zero, are not computed again.
        """
        needs, file = self._plan.needs[planned], self._contents[planned].file or Statistics({})
        if planned.holds == "stream":
            return self._computed(planned, needs.layers)
        if planned.holds == "statistics":
            return spread_features(planned.path, file, needs.collected, self._world)
        known = self._world.only_on_rank_zero(lambda: self._known(planned, given)) or Statistics({})
        lacking = self._world.broadcast([layer for layer in needs.layers if layer not in known.layers])
        collected = [layer for layer in needs.collected if layer not in lacking]
        measured = spread_features(planned.path, known, collected, self._world)
        if lacking:
            measured = self._completed(planned, measured, lacking, given is not None)
        if planned.holds == "both":
            # A file such as ADM's references, whose statistics are of more images.
            own = {name: replace(each, features=None) for name, each in file.layers.items()}
            found = replace(
                measured.statistics,
                layers={**measured.statistics.layers, **own},
                count=file.count,
                found=file.found,
                arithmetic=file.arithmetic,
                origin=file.origin,
            )
            return replace(measured, path=planned.path, statistics=found, apart=True)
        return measured

    def _completed(self, planned: SetPlan, known: MeasuredSet, lacking: Sequence[str], given: bool) -> MeasuredSet:
        """The set with the layers that it lacks, for which the images go through their networks alone. A collective."""
        finished, every = self._run.finished, self._plan.needs[planned].layers
        finished.unsaved_since = finished.unsaved_since or time.monotonic()
        found, before = self._computed(planned, lacking), known.statistics
        if len(lacking) == len(every):
            return found
        if self._world.on_rank_zero(lambda: not before.same_images(found.statistics)):
            if given:
                problem = f"the statistics that are to be completed are not of the images in {planned.path}"
                raise on_every_rank(InputError(f"{problem}, as they are now"))
            return self._computed(planned, every)  # a file cannot be read any more
        layers = {**before.layers, **found.statistics.layers}
        order = before.order if found.statistics.order is None else found.statistics.order
        statistics = replace(found.statistics, layers=layers, order=order)
        return replace(found, statistics=statistics, features={**known.features, **found.features})

    def _computed(self, planned: SetPlan, names: Sequence[str]) -> MeasuredSet:
        """The statistics of some layers from the images, which go through their networks. A collective."""
        settings, world, batch_size = self._settings, self._world, self._plan.batch_size
        needs, given, sampling = self._plan.needs[planned], self._requests[planned.request].given, planned.sampling
        layers = {}
        for name in names:
            definition = self.networks.definitions[name]
            network = settings.network_of(name)
            step = None if definition.standard else network.step_setting
            layers[name] = Layer(definition, name in needs.collected, network.subject, step)
        extraction = Extraction(
            self._run,
            settings,
            self.networks.networks(names),
            layers,
            batch_size=batch_size,
            num_workers=self.num_workers,
            crop=None if planned.framing is None else Crop.parse(planned.framing),
            warn=self._warn,
            checkpoint=None if planned.holds == "stream" else self._run.finished.checkpoint,
            work=self.counts,
        )
        if planned.holds == "stream":
            assert isinstance(given, Images)
            if sampling.num is not None and not (sampling.first or given.generates) and world.rank == 0:
                taken = f"{option(sampling.setting)} takes its first {sampling.num} images instead of a random subset"
                self._warn(f"{given.name} is an iterable: {taken}")
            split = settings.max_pixels if settings.frames == "all" else None
            stream = Stream(given, settings.floats, world, batch_size, sampling, self._run.outside, split)
            partial, images = extraction.run_stream(stream)
            images = replace(images, framing=planned.framing)
        else:
            assert not isinstance(given, Statistics)
            images = broadcast_images(world, self._contents[planned].images, given, settings.floats)
            partial = extraction.run([*self._plan.needs].index(planned), images)
        for line in itertools.chain.from_iterable(world.gather(self.warnings)):
            self._warn(line)
        with world.together():
            rows = partial.rows().items()
            features = {name: in_canonical_order(images, each, partial.skipped) for name, each in rows}
            records = features.pop(RECORDS, None)

        found = world.only_on_rank_zero(lambda: self._finished(planned, images, partial, layers, features, records))
        statistics, cached = found or (Statistics({}), False)
        if world.broadcast(cached):
            self._run.finished.cached.append(planned.path)
            self._run.finished.unsaved_since = None
        return MeasuredSet(images.path, statistics, features)

    def _warn(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)
            self._run.console.warn(line)

    # --- on rank zero ------------------------------------------------------------------------------------------------

    def _known(self, planned: SetPlan, given: Statistics | None) -> Statistics | None:
        """What is known of a set without its images: layers of ``given`` statistics, or else those in the cache."""
        if given is None:
            return self._from_cache(planned)
        layers, needs = given.layers_of(self._settings.networks), self._plan.needs[planned]
        usable = {
            name: each
            for name, each in layers.items()
            if name in needs.layers and each.definition == self.networks.definitions[name]
            if each.features is not None or name not in needs.features
        }
        problem, precision = "the statistics that are to be completed", (given.arithmetic or {}).get("precision")
        if usable.keys() >= {*needs.layers}:
            raise InputError(f"{problem} have all networks of this run:", "name one that they lack")
        if not usable:
            needed = " and ".join(self.networks.definitions[name].network for name in needs.layers)
            raise InputError(f"{problem} have none of {needed} with the settings and metrics of this run")
        for name, theirs, mine in (
            ("precision", precision, self._settings.precision),
            ("framing", given.framing, planned.framing),
        ):
            if theirs != mine:
                raise InputError(f"{problem} have {name} {theirs}, and this run has {mine}")
        if given.pictures is None or not self._settings.diagnose:
            needed = f"compared by records, without {option('diagnose', False)}"
            raise InputError(f"{problem} must be of the same images, which are {needed}")
        return replace(given, layers=usable)

    def _from_cache(self, planned: SetPlan) -> Statistics | None:
        source, needs = self._contents[planned].images, self._plan.needs[planned]
        assert source is not None
        if not self._settings.cache:
            return None
        definitions = {name: self.networks.definitions[name] for name in needs.layers}
        wanted, warn = (needs.collected, needs.features), self._run.console.warn
        found = find_cached(source, definitions, *wanted, self.arithmetic, self._settings.diagnose, warn)
        if found is None:
            return None
        lacking = [definitions[name].network for name in needs.layers if name not in found.layers]
        which = f", not those of {' and '.join(lacking)}" if lacking else ""
        self._run.console.say(f"{source.path}: statistics of {len(source)} images read from the cache{which}")
        self.cached += [] if lacking else [planned.path]
        with_features = any(layer.features is not None for layer in found.layers.values())
        return replace(
            found,
            found=len(source.stored),
            pictures=None if found.pictures is None else replace(found.pictures, prefix=source.prefix),
            order=source.numbers() if with_features else None,
        )

    def _finished(
        self,
        planned: SetPlan,
        images: ImageSet,
        partial: Accumulator,
        layers: Mapping[str, Layer],
        features: Mapping[str, Features],
        records: NDArray[Any] | None,
    ) -> tuple[Statistics, bool]:
        """The statistics that were extracted, and whether they are in the cache now."""
        found = {}
        for name, moments in partial.moments.items():
            definition = layers[name].definition
            with about(layers[name].subject):
                if not definition.standard:
                    moments.check_precision()
                gaussian = moments.mean_covariance(definition.ddof)
            found[name] = LayerStatistics(gaussian.mu, gaussian.sigma, definition, features.get(name))
        statistics = Statistics(
            found,
            partial.count,
            arithmetic=self.arithmetic,
            traits=partial.traits,
            skipped=tuple(partial.skipped),
            found=None if planned.holds == "stream" and planned.sampling.num is not None else len(images.stored),
            pictures=None if records is None else ImageRecords.of(images, records, partial.skipped),
            order=images.numbers(partial.skipped) if features else None,
            framing=images.framing,
        )
        if changes := images.change_warning():
            self.warnings.append(changes)
        caches = self._settings.cache and not (changes or statistics.skipped)  # a skipped file may be fixed later
        return statistics, caches and put_in_cache(images, statistics, self._run.console.warn)
