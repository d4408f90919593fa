"""Statistics of image sets, from the cache or from feature extraction on all ranks."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fidtool.errors import InputError, ResultWarning, mark_agreed, option, redact
from fidtool.features.protocol import FEATURES, PROBE
from fidtool.names import format_count
from fidtool.reading.batches import select_part
from fidtool.reading.stream import Stream
from fidtool.run.broadcast import broadcast_images
from fidtool.run.context import RunContext
from fidtool.run.extract import Extraction
from fidtool.run.networks import RunNetworks
from fidtool.run.pairs import PairEvaluator
from fidtool.run.plan import Plan
from fidtool.run.sets import RequestedSet, SetContent, SetPlan
from fidtool.run.since import locate_images, refuse_changed
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.accumulator import PAIRS, Accumulator, LayerSpec, Rows
from fidtool.statistics.cache import find_cached, put_in_cache
from fidtool.statistics.checkpoint import Checkpoint, Identity, claim
from fidtool.statistics.merging import describe_run, merge_statistics
from fidtool.statistics.set_statistics import (
    LayerStatistics,
    MeasuredSet,
    Statistics,
    broadcast_features,
)
from fidtool.system.json_fields import to_json_value

T = TypeVar("T")


class Measurer:
    """Measures the sets of a run on all ranks. The constructor is a collective.

    Args:
        requests: the sets as this rank's caller passes them.
        contents: what the sets hold, known on rank 0 alone.

    Attributes:
        counts: the work of all ranks so far, by the fields of `fidtool.settings.record.RunRecord`,
            on rank 0.
        cached: sets whose statistics came from the cache, on rank 0.
    """

    def __init__(
        self,
        run: RunContext,
        plan: Plan,
        requests: Sequence[RequestedSet],
        contents: Mapping[SetPlan, SetContent],
        networks: RunNetworks,
    ) -> None:
        self._run = run
        self._world = run.world
        self._plan = plan
        self._settings = plan.settings
        self._requests = requests
        self._contents = dict(contents)
        workers = plan.settings.num_workers
        self.num_workers = run.device.default_workers if workers is None else workers
        self.counts: Counter[str] = Counter()
        self.cached: list[str] = []
        self.networks = networks
        self.warnings = networks.warnings
        self.arithmetic: dict[str, str | int] = {
            "device": run.device.name,
            "precision": plan.settings.precision,
            "kernels": networks.kernels,
            "torch": torch.__version__,
            "pillow": run.versions["pillow"],
            "libjpeg": run.versions["libjpeg"],
            "batch_size": plan.batch_size,
            "fidtool": run.versions.get("fidtool", ""),
        }
        for layer, probe in networks.probes.items():
            self.arithmetic[f"{networks.definitions[layer].fingerprint}_{PROBE}"] = probe
        pairs = itertools.chain.from_iterable(set_plan.needs.pairs for set_plan in plan.distinct)
        self.pairs = PairEvaluator(run, [*dict.fromkeys(pairs)])

    def open_checkpoint(self) -> None:
        """Open the run's checkpoint, if it has one, before its sets are measured. A collective."""
        settings = self._settings
        if settings.checkpoint is not None and (self.networks.definitions or self.pairs.metrics):
            name = self._world.on_rank_zero(self._claim_checkpoint)
            config = {"max_pixels": settings.max_pixels}
            self._run.finished.checkpoint = Checkpoint(
                Path(settings.checkpoint), name, self.arithmetic, config, self._warn
            )

    def _claim_checkpoint(self) -> str:
        settings = self._settings
        order = {name: getattr(settings, name) for name in ("num", "seed", "sample", "diagnose")}
        sets = []
        for set_plan in self._plan.distinct:
            needs = set_plan.needs
            images = self._contents[set_plan].images
            if images is None:
                continue
            if not images.files.versioned:
                raise InputError(
                    f"{option('checkpoint')} cannot detect whether the images of {set_plan.path} "
                    "change before a resume:",
                    f"omit {option('checkpoint')}",
                    "store the images in files",
                )
            if images.part is not None:
                order["part"] = images.part.name
            sets.append(
                {
                    "path": redact(real_path(images.source)),
                    "count": len(images),
                    "identity": images.identity(),
                    "needed": {layer: layer in needs.collected for layer in needs.layers},
                    "framing": to_json_value(images.crop),
                    "pairs": [metric.name for metric in needs.pairs],
                }
            )
        definitions = dict(self.networks.definitions)
        main = asdict(definitions.pop(FEATURES)) if definitions else {}
        main["layers"] = {name: layer.fingerprint for name, layer in definitions.items()}
        identity = Identity(main, self.arithmetic, order, tuple(sets))
        return claim(str(settings.checkpoint), identity, self._warn)

    def measure(self, set_plan: SetPlan) -> MeasuredSet:
        """Return a set's statistics, on rank 0, and the features of each image, on all ranks. A
        collective.
        """
        needs = set_plan.needs
        file = self._contents[set_plan].file or Statistics({})
        if set_plan.holds == "stream":
            return self._compute(set_plan, needs.layers)[0]
        if set_plan.holds == "statistics":
            return broadcast_features(set_plan.path, file, needs.collected, self._world)
        measured, missing = self._read_cached_layers(set_plan)
        if missing is not None:
            known = measured.statistics
            computed, _ = self._compute(set_plan, missing)
            fits = self._world.on_rank_zero(
                lambda: not known.layers or known.same_images(computed.statistics)
            )
            if fits:
                measured = _join_layers(measured, computed)
            else:  # a file cannot be read any more
                measured, _ = self._compute(set_plan, needs.layers)
        if set_plan.holds == "both":
            # A file such as ADM's references, whose statistics are of more images.
            own = {name: replace(layer, features=None) for name, layer in file.layers.items()}
            statistics = replace(
                measured.statistics,
                layers={**measured.statistics.layers, **own},
                count=file.count,
                found=file.found,
                arithmetic=file.arithmetic,
                origin=file.origin,
            )
            return replace(
                measured, path=set_plan.path, statistics=statistics, has_file_statistics=True
            )
        return measured

    def measure_pair(
        self, real: SetPlan, fake: SetPlan, known: MeasuredSet | None, measured: MeasuredSet | None
    ) -> tuple[MeasuredSet, MeasuredSet]:
        """Return REAL, which may be ``known``, and a FAKE, which may be ``measured``. A
        collective; see `measure`.

        If their images are compared in pairs, both sets are measured in one pass, in which each
        image is decoded once.
        """
        if fake is real:
            known = known or self.measure(real)
            measured = measured or known
        if not fake.needs.pairs or (measured is not None and measured.pairs):
            return known or self.measure(real), measured or self.measure(fake)
        missing = None
        if known is None:
            known, missing = self._read_cached_layers(real)
        lacking_of_fake = None
        if measured is None:
            measured, lacking_of_fake = self._read_cached_layers(fake)
        computed, partner = self._compute(fake, lacking_of_fake or (), real, missing)
        if partner is not None:
            known = _join_layers(known, partner)
        if lacking_of_fake is not None:
            measured = _join_layers(measured, computed)
        return known, replace(measured, pairs=computed.pairs)

    def restrict_to_part(self, set_plan: SetPlan, part: str) -> None:
        """Restrict a set to one of its parts, see `select_part`. A collective."""
        images = self._run_on_images(
            set_plan, lambda images: select_part(images, part, self._plan.batch_size)
        )
        self._set_images(set_plan, images)

    def measure_new(
        self, set_plan: SetPlan, name: str, before: Statistics, config: Mapping[str, Any]
    ) -> Statistics:
        """Return the statistics of a set, on rank 0, of which only the images that are new pass
        the networks.

        A collective. The statistics ``before`` of all others are those of ``name``; rank 0 alone
        needs them.
        """
        world = self._world
        layers = self._make_layers(set_plan, set_plan.needs.layers)
        facts = describe_run(
            layers, self.arithmetic, config, set_plan.crop, self._settings.diagnose
        )
        located = self._run_on_images(
            set_plan, lambda images: locate_images(images, name, before, facts)
        )
        known, doubtful, new = located or (before, None, None)
        self._set_images(set_plan, doubtful)
        now = self._compute(set_plan, ())[0].statistics
        world.on_rank_zero(lambda: refuse_changed(set_plan.path, known, now, name))
        added = world.broadcast(0 if new is None else len(new))
        self._run.console.say(
            f"{set_plan.path}: {known.count} images are already in {name}, {added} are new"
        )
        parts = [known]
        if added:
            self._set_images(set_plan, new)
            self.open_checkpoint()
            parts.append(replace(self.measure(set_plan).statistics, config=config))
        return world.only_on_rank_zero(lambda: merge_statistics(parts)) or known

    def add_layers(self, set_plan: SetPlan, known: Statistics) -> Statistics:
        """Return the statistics of a set, on rank 0, of which those that are ``known`` of the
        same images are not computed again.

        A collective. Rank 0 alone needs the known ones.
        """
        world = self._world
        usable = world.only_on_rank_zero(lambda: self._check_known(set_plan, known)) or {}
        missing = world.broadcast([name for name in set_plan.needs.layers if name not in usable])
        computed, _ = self._compute(set_plan, missing)
        if not world.on_rank_zero(lambda: known.same_images(computed.statistics)):
            problem = (
                "the statistics to complete were not computed from the images that are now in "
                f"{set_plan.path}"
            )
            raise mark_agreed(InputError(problem))
        before = MeasuredSet(set_plan.path, replace(known, layers=usable), {})
        return _join_layers(before, computed).statistics

    def _run_on_images(self, set_plan: SetPlan, work: Callable[[ImageSet], T]) -> T | None:
        """What ``work`` returns, which reads images of a set, on rank 0; None on the others. A
        collective.
        """

        def read() -> T:
            images = self._get_images(set_plan)
            return images.run_with_timeout(lambda: work(images), self._settings.timeout)

        return self._world.only_on_rank_zero(read)

    def _get_images(self, set_plan: SetPlan) -> ImageSet:
        """The images of a set that is no stream, on rank 0."""
        images = self._contents[set_plan].images
        assert images is not None
        return images

    def _set_images(self, set_plan: SetPlan, images: ImageSet | None) -> None:
        self._contents[set_plan] = self._contents[set_plan]._replace(images=images)

    def _read_cached_layers(self, set_plan: SetPlan) -> tuple[MeasuredSet, list[str] | None]:
        """What the cache has of a set, and the layers that it lacks; None if it has all. A
        collective.
        """
        needs = set_plan.needs
        known = self._world.only_on_rank_zero(lambda: self._read_cache(set_plan))
        missing: list[str] | None = [*needs.layers]
        if known is not None:
            missing = [name for name in needs.layers if name not in known.layers] or None
        missing = self._world.broadcast(missing)
        statistics = known or Statistics({})
        return broadcast_features(set_plan.path, statistics, needs.collected, self._world), missing

    def _compute(
        self,
        set_plan: SetPlan,
        names: Sequence[str],
        real: SetPlan | None = None,
        of_real: Sequence[str] | None = None,
    ) -> tuple[MeasuredSet, MeasuredSet | None]:
        """The statistics of some layers from the images, which go through their networks. A
        collective.

        With ``real`` the images are compared with their partners in REAL. Unless ``of_real`` is
        None, the second set is REAL with the statistics of these layers.
        """
        computed = {*names, *(of_real or ())}
        of_partner = None
        if real is not None and of_real is not None:
            of_partner = self._make_layers(real, of_real)
        extraction = Extraction(
            self._run,
            self._settings,
            self.networks.get_extractors(computed) if computed else (),
            self._make_layers(set_plan, names),
            batch_size=self._plan.batch_size,
            num_workers=self.num_workers,
            crop=set_plan.crop,
            warn=self._warn,
            work=self.counts,
            pairs=None if real is None else self.pairs,
            partner_layers=of_partner,
        )
        if set_plan.holds == "stream":
            sums, images = extraction.run_stream(self._make_stream(set_plan))
            images = replace(images, crop=set_plan.crop)
        else:
            finished = self._run.finished
            finished.unsaved_since = finished.unsaved_since or time.monotonic()
            images = self._broadcast_images(set_plan)
            if real is not None:
                images = replace(images, partner=self._broadcast_images(real))
            sums = extraction.run(self._plan.distinct.index(set_plan), images)
        for warning in itertools.chain.from_iterable(self._world.gather(self.warnings)):
            self._add_warning(warning)
        measured = self._make_measured_set(set_plan, images, sums)
        partner = None
        if real is not None and images.partner is not None and sums.partner is not None:
            partner = self._make_measured_set(real, images.partner, sums.partner)
        return measured, partner

    def _make_stream(self, set_plan: SetPlan) -> Stream:
        settings = self._settings
        sampling = set_plan.sampling
        given = self._requests[set_plan.request].data
        assert isinstance(given, Images)
        takes_first = sampling.num is not None and not (sampling.first or given.generates)
        if takes_first and self._world.rank == 0:
            self._warn(
                f"{given.name} is an iterable: {option(sampling.setting)} takes its first "
                f"{sampling.num} images instead of a random subset"
            )
        split = settings.max_pixels if settings.frames == "all" else None
        return Stream(given, settings.floats, self._world, self._plan.batch_size, sampling, split)

    def _make_layers(self, set_plan: SetPlan, names: Sequence[str]) -> dict[str, LayerSpec]:
        layers = {}
        for name in names:
            definition = self.networks.definitions[name]
            network = self._settings.layer_network(name)
            step = None if definition.standard else network.step_setting
            collected = name in set_plan.needs.collected
            layers[name] = LayerSpec(definition, collected, network.subject, step)
        return layers

    def _broadcast_images(self, set_plan: SetPlan) -> ImageSet:
        """The images of a set on this rank. A collective."""
        images = self._contents[set_plan].images
        request = self._requests[set_plan.request]
        return broadcast_images(self._world, images, request, self._settings)

    def _make_measured_set(
        self, set_plan: SetPlan, images: ImageSet, sums: Accumulator
    ) -> MeasuredSet:
        """The set whose statistics were extracted. A collective."""
        world = self._world
        with world.together():
            rows = sums.rows()
        of_rank_zero = world.only_on_rank_zero(
            lambda: self._make_statistics(set_plan, images, sums, rows)
        )
        statistics, is_cached = of_rank_zero or (Statistics({}), False)
        if world.broadcast(is_cached):
            self._run.finished.cached.append(set_plan.path)
            self._run.finished.unsaved_since = None
        pairs = {}
        if PAIRS in rows:
            for column, metric in enumerate(set_plan.needs.pairs):
                pairs[metric.name] = rows[PAIRS][:, column]
        features = {name: rows[name] for name in sums.layers if name in rows}
        return MeasuredSet(images.path, statistics, features, pairs=pairs)

    def _warn(self, text: str) -> None:
        self._add_warning(ResultWarning("", text))

    def _add_warning(self, warning: ResultWarning) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)
            self._run.console.warn(str(warning))

    # --- on rank 0 -----------------------------------------------------------------------------

    def _check_known(self, set_plan: SetPlan, known: Statistics) -> dict[str, LayerStatistics]:
        """The layers of ``known`` statistics that this run needs. An InputError if these cannot be
        completed.
        """
        needs = set_plan.needs
        definitions = self.networks.definitions
        settings = self._settings
        usable = {
            name: layer
            for name, layer in needs.select_usable(known.layers_of(settings.networks)).items()
            if layer.definition == definitions[name]
        }
        problem = "the statistics to complete"
        if len(usable) == len(needs.layers):
            raise InputError(
                f"{problem} already have all networks of this run:",
                "name a network that they lack",
            )
        if not usable:
            needed = " and ".join(definitions[name].network for name in needs.layers)
            raise InputError(
                f"{problem} do not have {needed} with the settings and metrics of this run:",
                "pass statistics that were computed with the same settings",
            )
        part = self._get_images(set_plan).part
        for name, theirs, ours in (
            ("precision", (known.arithmetic or {}).get("precision"), settings.precision),
            ("framing", known.framing, set_plan.crop),
            ("part", known.part and known.part.name, part and part.name),
        ):
            if theirs != ours:
                raise InputError(f"{problem} have {name} {theirs}, and this run has {ours}")
        if known.pictures is None or not settings.diagnose:
            raise InputError(
                f"{problem} must come from the same images, which only records can show:",
                f"compute both without {option('diagnose', False)}",
            )
        return usable

    def _read_cache(self, set_plan: SetPlan) -> Statistics | None:
        images = self._get_images(set_plan)
        needs = set_plan.needs
        if not self._settings.cache or images.part is not None:
            return None
        definitions = {name: self.networks.definitions[name] for name in needs.layers}
        cached = find_cached(
            images,
            definitions,
            needs.collected,
            needs.features,
            self.arithmetic,
            self._settings.diagnose,
            self._warn,
        )
        if cached is None:
            return None
        line = (
            f"{images.path}: statistics of {format_count(len(images), 'image')} read from the cache"
        )
        missing = [definitions[name].network for name in needs.layers if name not in cached.layers]
        if missing:
            line += f", except those of {' and '.join(missing)}"
        else:
            self.cached.append(set_plan.path)
        self._run.console.say(line)
        return cached

    def _make_statistics(
        self, set_plan: SetPlan, images: ImageSet, sums: Accumulator, rows: Rows
    ) -> tuple[Statistics, bool]:
        """The statistics that were extracted, and whether they are in the cache now."""
        sums.check_precision()
        statistics = sums.statistics(images, rows, self.arithmetic)
        if set_plan.holds == "stream" and set_plan.sampling.num is not None:
            statistics = replace(statistics, found=None)
        changes = images.change_warning(self._settings.timeout)
        if changes is not None:
            self.warnings.append(changes)
        # A skipped file may be fixed later, and a part is hardly computed twice.
        is_lasting = not (changes or statistics.skipped or statistics.part)
        if not (self._settings.cache and statistics.layers and is_lasting):
            return statistics, False
        return statistics, put_in_cache(images, statistics, self._warn)


def _join_layers(known: MeasuredSet, computed: MeasuredSet) -> MeasuredSet:
    """A set with the layers that are known, and those that were computed from the same images."""
    now = computed.statistics
    order = known.statistics.order if now.order is None else now.order
    statistics = replace(now, layers={**known.statistics.layers, **now.layers}, order=order)
    return replace(
        computed, statistics=statistics, features={**known.features, **computed.features}
    )
