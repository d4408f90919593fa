"""Statistics of image sets, from the cache or from feature extraction on all ranks."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from fidtool.errors import InputError, ResultWarning, on_every_rank, option, redact
from fidtool.features.protocol import FEATURES, PROBE
from fidtool.names import format_count
from fidtool.reading.batches import part_of
from fidtool.reading.broadcast import broadcast_images
from fidtool.reading.stream import Stream
from fidtool.run.context import RunContext
from fidtool.run.extract import Extraction
from fidtool.run.networks import RunNetworks
from fidtool.run.pairs import Pairs
from fidtool.run.plan import Plan
from fidtool.run.sets import Content, RequestedSet, SetPlan
from fidtool.run.since import locate_images, refuse_changed
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.accumulator import PAIRS, Accumulator, Layer, Rows
from fidtool.statistics.cache import find_cached, put_in_cache
from fidtool.statistics.checkpoint import Checkpoint, Identity, claim
from fidtool.statistics.merging import describe_run, merge_statistics
from fidtool.statistics.set_statistics import (
    LayerStatistics,
    MeasuredSet,
    Statistics,
    spread_features,
)
from fidtool.system.json_fields import plain

T = TypeVar("T")


class Measurer:
    """Measures the sets of a run on all ranks. The constructor is a collective.

    Args:
        requests: the sets as this rank's caller passes them.
        contents: what the sets hold, known on rank zero alone.

    Attributes:
        counts: the work of all ranks so far, by the fields of `fidtool.settings.record.RunRecord`,
            on rank zero.
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
        pairs = itertools.chain.from_iterable(planned.needs.pairs for planned in plan.distinct)
        self.pairs = Pairs(run, [*dict.fromkeys(pairs)])

    def open_checkpoint(self) -> None:
        """Open the run's checkpoint, if it has one, before its sets are measured. A collective."""
        settings = self._settings
        if settings.checkpoint is not None and (self.networks.definitions or self.pairs.metrics):
            name = self._world.on_rank_zero(self._claim_checkpoint)
            self._run.finished.checkpoint = Checkpoint(
                str(settings.checkpoint), name, self.arithmetic, settings.max_pixels, self._warn
            )

    def _claim_checkpoint(self) -> str:
        settings = self._settings
        order = {name: getattr(settings, name) for name in ("num", "seed", "sample", "diagnose")}
        sets = []
        for planned in self._plan.distinct:
            needs = planned.needs
            images = self._contents[planned].images
            if images is None:
                continue
            if not images.files.versioned:
                raise InputError(
                    f"{option('checkpoint')} cannot detect whether the images of {planned.path} "
                    "change before a resume:",
                    f"omit {option('checkpoint')}",
                    "store the images in files",
                )
            if images.part is not None:
                order["part"] = images.part.name
            sets.append(
                {
                    "path": redact(real_path(images.path)),
                    "count": len(images),
                    "identity": images.identity(),
                    "needed": {layer: layer in needs.collected for layer in needs.layers},
                    "framing": plain(images.crop),
                    "pairs": [metric.name for metric in needs.pairs],
                }
            )
        definitions = dict(self.networks.definitions)
        main = asdict(definitions.pop(FEATURES)) if definitions else {}
        main["layers"] = {name: layer.fingerprint for name, layer in definitions.items()}
        identity = Identity(main, self.arithmetic, order, tuple(sets))
        return claim(str(settings.checkpoint), identity, self._warn)

    def measure(self, planned: SetPlan) -> MeasuredSet:
        """Return a set's statistics, on rank zero, and the features of each image, on all ranks. A
        collective.
        """
        needs = planned.needs
        file = self._contents[planned].file or Statistics({})
        if planned.holds == "stream":
            return self._compute(planned, needs.layers)[0]
        if planned.holds == "statistics":
            return spread_features(planned.path, file, needs.collected, self._world)
        measured, lacking = self._look_up(planned)
        if lacking is not None:
            known = measured.statistics
            found, _ = self._compute(planned, lacking)
            fits = self._world.on_rank_zero(
                lambda: not known.layers or known.same_images(found.statistics)
            )
            if fits:
                measured = _join(measured, found)
            else:  # a file cannot be read any more
                measured, _ = self._compute(planned, needs.layers)
        if planned.holds == "both":
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
            return replace(measured, path=planned.path, statistics=statistics, apart=True)
        return measured

    def measure_both(
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
        lacking = None
        if known is None:
            known, lacking = self._look_up(real)
        lacking_of_fake = None
        if measured is None:
            measured, lacking_of_fake = self._look_up(fake)
        found, partner = self._compute(fake, lacking_of_fake or (), real, lacking)
        if partner is not None:
            known = _join(known, partner)
        if lacking_of_fake is not None:
            measured = _join(measured, found)
        return known, replace(measured, pairs=found.pairs)

    def take_part(self, planned: SetPlan, part: str) -> None:
        """Restrict a set to one of its parts, see `part_of`. A collective."""
        size = self._plan.batch_size
        self._restrict(planned, self._read(planned, lambda images: part_of(images, part, size)))

    def measure_new(
        self, planned: SetPlan, name: str, before: Statistics, config: Mapping[str, Any]
    ) -> Statistics:
        """Return the statistics of a set, on rank zero, of which only the images that are new pass
        the networks.

        A collective. The statistics ``before`` of all others are those of ``name``; rank zero alone
        needs them.
        """
        world = self._world
        layers = self._layers(planned, planned.needs.layers)
        facts = describe_run(layers, self.arithmetic, config, planned.crop, self._settings.diagnose)
        found = self._read(planned, lambda images: locate_images(images, name, before, facts))
        known, doubtful, new = found or (before, None, None)
        self._restrict(planned, doubtful)
        now = self._compute(planned, ())[0].statistics
        world.on_rank_zero(lambda: refuse_changed(planned.path, known, now, name))
        added = world.broadcast(0 if new is None else len(new))
        self._run.console.say(
            f"{planned.path}: {known.count} images are those of {name}, {added} are new"
        )
        parts = [known]
        if added:
            self._restrict(planned, new)
            self.open_checkpoint()
            parts.append(replace(self.measure(planned).statistics, config=config))
        return world.only_on_rank_zero(lambda: merge_statistics(parts)) or known

    def complete(self, planned: SetPlan, known: Statistics) -> Statistics:
        """Return the statistics of a set, on rank zero, of which those that are ``known`` of the
        same images are not computed again.

        A collective. Rank zero alone needs the known ones.
        """
        world = self._world
        usable = world.only_on_rank_zero(lambda: self._check_known(planned, known)) or {}
        lacking = world.broadcast([name for name in planned.needs.layers if name not in usable])
        found, _ = self._compute(planned, lacking)
        if not world.on_rank_zero(lambda: known.same_images(found.statistics)):
            problem = (
                f"the statistics that are to be completed are not of the images in {planned.path}, "
                "as they are now"
            )
            raise on_every_rank(InputError(problem))
        before = MeasuredSet(planned.path, replace(known, layers=usable), {})
        return _join(before, found).statistics

    def _read(self, planned: SetPlan, work: Callable[[ImageSet], T]) -> T | None:
        """What ``work`` returns, which reads images of a set, on rank zero; None on the others. A
        collective.
        """

        def read() -> T:
            images = self._stored(planned)
            return images.in_time(lambda: work(images), self._settings.timeout)

        return self._world.only_on_rank_zero(read)

    def _stored(self, planned: SetPlan) -> ImageSet:
        """The images of a set that is no stream, on rank zero."""
        images = self._contents[planned].images
        assert images is not None
        return images

    def _restrict(self, planned: SetPlan, images: ImageSet | None) -> None:
        self._contents[planned] = self._contents[planned]._replace(images=images)

    def _look_up(self, planned: SetPlan) -> tuple[MeasuredSet, list[str] | None]:
        """What the cache has of a set, and the layers that it lacks; None if it has all. A
        collective.
        """
        needs = planned.needs
        known = self._world.only_on_rank_zero(lambda: self._from_cache(planned))
        lacking: list[str] | None = [*needs.layers]
        if known is not None:
            lacking = [name for name in needs.layers if name not in known.layers] or None
        lacking = self._world.broadcast(lacking)
        collected = [name for name in needs.collected if name not in (lacking or ())]
        statistics = known or Statistics({})
        return spread_features(planned.path, statistics, collected, self._world), lacking

    def _compute(
        self,
        planned: SetPlan,
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
            of_partner = self._layers(real, of_real)
        extraction = Extraction(
            self._run,
            self._settings,
            self.networks.networks(computed) if computed else (),
            self._layers(planned, names),
            batch_size=self._plan.batch_size,
            num_workers=self.num_workers,
            crop=planned.crop,
            warn=self._warn,
            work=self.counts,
            pairs=None if real is None else self.pairs,
            of_partner=of_partner,
        )
        if planned.holds == "stream":
            sums, images = extraction.run_stream(self._stream(planned))
            images = replace(images, crop=planned.crop)
        else:
            finished = self._run.finished
            finished.unsaved_since = finished.unsaved_since or time.monotonic()
            images = self._images(planned)
            if real is not None:
                images = replace(images, partner=self._images(real))
            sums = extraction.run(self._plan.distinct.index(planned), images)
        for warning in itertools.chain.from_iterable(self._world.gather(self.warnings)):
            self._add_warning(warning)
        measured = self._collect(planned, images, sums)
        partner = None
        if real is not None and images.partner is not None and sums.partner is not None:
            partner = self._collect(real, images.partner, sums.partner)
        return measured, partner

    def _stream(self, planned: SetPlan) -> Stream:
        settings = self._settings
        sampling = planned.sampling
        given = self._requests[planned.request].given
        assert isinstance(given, Images)
        takes_first = sampling.num is not None and not (sampling.first or given.generates)
        if takes_first and self._world.rank == 0:
            self._warn(
                f"{given.name} is an iterable: {option(sampling.setting)} takes its first "
                f"{sampling.num} images instead of a random subset"
            )
        split = settings.max_pixels if settings.frames == "all" else None
        size = self._plan.batch_size
        return Stream(given, settings.floats, self._world, size, sampling, split)

    def _layers(self, planned: SetPlan, names: Sequence[str]) -> dict[str, Layer]:
        layers = {}
        for name in names:
            definition = self.networks.definitions[name]
            network = self._settings.network_of(name)
            step = None if definition.standard else network.step_setting
            collected = name in planned.needs.collected
            layers[name] = Layer(definition, collected, network.subject, step)
        return layers

    def _images(self, planned: SetPlan) -> ImageSet:
        """The images of a set on this rank. A collective."""
        given = self._requests[planned.request].given
        assert not isinstance(given, Statistics)
        images = self._contents[planned].images
        settings = self._settings
        return broadcast_images(self._world, images, given, settings.floats, settings.timeout)

    def _collect(self, planned: SetPlan, images: ImageSet, sums: Accumulator) -> MeasuredSet:
        """The set whose statistics were extracted. A collective."""
        world = self._world
        with world.together():
            rows = sums.rows()
        found = world.only_on_rank_zero(lambda: self._make_statistics(planned, images, sums, rows))
        statistics, is_cached = found or (Statistics({}), False)
        if world.broadcast(is_cached):
            self._run.finished.cached.append(planned.path)
            self._run.finished.unsaved_since = None
        pairs = {}
        if PAIRS in rows:
            for column, metric in enumerate(planned.needs.pairs):
                pairs[metric.name] = rows[PAIRS][:, column]
        features = {name: rows[name] for name in sums.layers if name in rows}
        return MeasuredSet(images.path, statistics, features, pairs=pairs)

    def _warn(self, text: str) -> None:
        self._add_warning(ResultWarning("", text))

    def _add_warning(self, warning: ResultWarning) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)
            self._run.console.warn(str(warning))

    # --- on rank zero -----------------------------------------------------------------------------

    def _check_known(self, planned: SetPlan, known: Statistics) -> dict[str, LayerStatistics]:
        """The layers of ``known`` statistics that this run needs. An InputError if these cannot be
        completed.
        """
        needs = planned.needs
        definitions = self.networks.definitions
        settings = self._settings
        usable = {
            name: layer
            for name, layer in needs.usable(known.layers_of(settings.networks)).items()
            if layer.definition == definitions[name]
        }
        problem = "the statistics that are to be completed"
        if len(usable) == len(needs.layers):
            raise InputError(f"{problem} have all networks of this run:", "name one that they lack")
        if not usable:
            needed = " and ".join(definitions[name].network for name in needs.layers)
            raise InputError(
                f"{problem} have none of {needed} with the settings and metrics of this run"
            )
        part = self._stored(planned).part
        for name, theirs, ours in (
            ("precision", (known.arithmetic or {}).get("precision"), settings.precision),
            ("framing", known.framing, planned.crop),
            ("part", known.part and known.part.name, part and part.name),
        ):
            if theirs != ours:
                raise InputError(f"{problem} have {name} {theirs}, and this run has {ours}")
        if known.pictures is None or not settings.diagnose:
            needed = f"compared by records, without {option('diagnose', False)}"
            raise InputError(f"{problem} must be of the same images, which are {needed}")
        return usable

    def _from_cache(self, planned: SetPlan) -> Statistics | None:
        images = self._stored(planned)
        needs = planned.needs
        if not self._settings.cache or images.part is not None:
            return None
        definitions = {name: self.networks.definitions[name] for name in needs.layers}
        found = find_cached(
            images,
            definitions,
            needs.collected,
            needs.features,
            self.arithmetic,
            self._settings.diagnose,
            self._warn,
        )
        if found is None:
            return None
        line = (
            f"{images.path}: statistics of {format_count(len(images), 'image')} read from the cache"
        )
        lacking = [definitions[name].network for name in needs.layers if name not in found.layers]
        if lacking:
            line += f", not those of {' and '.join(lacking)}"
        else:
            self.cached.append(planned.path)
        self._run.console.say(line)
        pictures = found.pictures
        if pictures is not None:
            pictures = replace(pictures, prefix=images.prefix)
        has_features = any(layer.features is not None for layer in found.layers.values())
        order = images.numbers() if has_features else None
        return replace(found, found=len(images.stored), pictures=pictures, order=order)

    def _make_statistics(
        self, planned: SetPlan, images: ImageSet, sums: Accumulator, rows: Rows
    ) -> tuple[Statistics, bool]:
        """The statistics that were extracted, and whether they are in the cache now."""
        sums.check_precision()
        statistics = sums.statistics(images, rows, self.arithmetic)
        if planned.holds == "stream" and planned.sampling.num is not None:
            statistics = replace(statistics, found=None)
        changes = images.change_warning(self._settings.timeout)
        if changes is not None:
            self.warnings.append(changes)
        # A skipped file may be fixed later, and a part is hardly computed twice.
        is_lasting = not (changes or statistics.skipped or statistics.part)
        if not (self._settings.cache and statistics.layers and is_lasting):
            return statistics, False
        return statistics, put_in_cache(images, statistics, self._warn)


def _join(known: MeasuredSet, found: MeasuredSet) -> MeasuredSet:
    """A set with the layers that are known, and those that were computed from the same images."""
    before = known.statistics
    now = found.statistics
    order = before.order if now.order is None else now.order
    statistics = replace(now, layers={**before.layers, **now.layers}, order=order)
    return replace(found, statistics=statistics, features={**known.features, **found.features})
