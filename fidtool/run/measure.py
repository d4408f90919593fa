"""Statistics of image sets, from the cache or from feature extraction on all ranks."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from fidtool.errors import InputError, ResultWarning, on_every_rank, option, redacted
from fidtool.features.protocol import FEATURES, PROBE
from fidtool.names import counted
from fidtool.reading.batches import part_of
from fidtool.reading.broadcast import broadcast_images
from fidtool.reading.stream import Stream
from fidtool.run.context import RunContext
from fidtool.run.extract import Extraction
from fidtool.run.networks import RunNetworks
from fidtool.run.pairs import Pairs
from fidtool.run.plan import Plan
from fidtool.run.sets import Content, RequestedSet, SetPlan
from fidtool.run.since import located, refuse_changed
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.memory import Images
from fidtool.statistics.accumulator import PAIRS, Accumulator, Layer, Rows
from fidtool.statistics.cache import find_cached, put_in_cache
from fidtool.statistics.checkpoint import Checkpoint, Identity, claim
from fidtool.statistics.merging import facts_of, merge_statistics
from fidtool.statistics.set_statistics import MeasuredSet, Statistics, spread_features
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
        self._run, self._world, self._plan, self._settings = run, run.world, plan, plan.settings
        self._requests, self._contents = requests, contents
        settings, device = plan.settings, run.device
        self.num_workers = (
            device.default_workers if settings.num_workers is None else settings.num_workers
        )
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
            self.arithmetic[f"{networks.definitions[layer].fingerprint}_{PROBE}"] = probe
        self.pairs = Pairs(
            run, [*dict.fromkeys(pair for planned in plan.distinct for pair in planned.needs.pairs)]
        )

    def open_checkpoint(self) -> None:
        """Opens the run's checkpoint, if it has one, before its sets are measured. A collective."""
        settings = self._settings
        if settings.checkpoint is not None and (self.networks.definitions or self.pairs.metrics):
            name = self._world.on_rank_zero(self._claim_checkpoint)
            self._run.finished.checkpoint = Checkpoint(
                str(settings.checkpoint), name, self.arithmetic, settings.max_pixels, self._warn
            )

    def _claim_checkpoint(self) -> str:
        settings, definitions, sets = self._settings, self.networks.definitions, []
        order = {name: getattr(settings, name) for name in ("num", "seed", "sample", "diagnose")}
        for each in self._plan.distinct:
            needs = each.needs
            if (source := self._contents[each].images) is None:
                continue
            if not source.files.versioned:
                raise InputError(
                    f"{option('checkpoint')} cannot detect whether the images of {each.path} "
                    "change before a resume:",
                    f"omit {option('checkpoint')}",
                    "store the images in files",
                    setting="checkpoint",
                )
            if source.part is not None:
                order["part"] = source.part.name
            sets.append(
                {
                    "path": redacted(real_path(source.path)),
                    "count": len(source),
                    "identity": source.identity(),
                    "needed": {layer: layer in needs.collected for layer in needs.layers},
                    "framing": plain(source.crop),
                    "pairs": [metric.name for metric in needs.pairs],
                }
            )
        further = {
            layer: each.fingerprint for layer, each in definitions.items() if layer != FEATURES
        }
        main = asdict(definitions[FEATURES]) if definitions else {}
        identity = Identity({**main, "layers": further}, self.arithmetic, order, tuple(sets))
        return claim(str(settings.checkpoint), identity, self._warn)

    def measure(self, planned: SetPlan, given: Statistics | None = None) -> MeasuredSet:
        """Returns a set's statistics, on rank zero, and the features of each image, on all ranks. A
        collective.

        Layers that ``given`` statistics of the same images have, on rank zero, are not computed
        again.
        """
        needs, file = planned.needs, self._contents[planned].file or Statistics({})
        if planned.holds == "stream":
            return self._computed(planned, needs.layers)[0]
        if planned.holds == "statistics":
            return spread_features(planned.path, file, needs.collected, self._world)
        measured, lacking = self._look_up(planned, given)
        if lacking is not None:
            found, _ = self._computed(planned, lacking)
            known = measured.statistics
            if len(lacking) == len(needs.layers):
                measured = found
            elif self._world.on_rank_zero(lambda: known.same_images(found.statistics)):
                measured = _joined(measured, found)
            elif given is None:  # a file cannot be read any more
                measured, _ = self._computed(planned, needs.layers)
            else:
                problem = (
                    "the statistics that are to be completed are not of the images in "
                    f"{planned.path}"
                )
                raise on_every_rank(InputError(f"{problem}, as they are now"))
        if planned.holds == "both":
            # A file such as ADM's references, whose statistics are of more images.
            own = {name: replace(each, features=None) for name, each in file.layers.items()}
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

    def take_part(self, planned: SetPlan, part: str) -> None:
        """Restricts a set to one of its parts, see `part_of`. A collective."""
        size = self._plan.batch_size
        self._restrict(planned, self._read(planned, lambda images: part_of(images, part, size)))

    def measure_new(
        self, planned: SetPlan, name: str, before: Statistics, config: Mapping[str, Any]
    ) -> Statistics:
        """Returns the statistics of a set, on rank zero, of which only the images that are new pass
        the networks.

        A collective. The statistics ``before`` of all others are those of ``name``; rank zero alone
        needs them.
        """
        world, layers = self._world, self._layers(planned, planned.needs.layers)
        facts = facts_of(layers, self.arithmetic, config, planned.crop, self._settings.diagnose)
        found = self._read(planned, lambda images: located(images, name, before, facts))
        known, doubtful, new = found or (before, None, None)
        self._restrict(planned, doubtful)
        now = self._computed(planned, ())[0].statistics
        world.on_rank_zero(lambda: refuse_changed(planned.path, known, now, name))
        parts = [known]
        added = world.broadcast(0 if new is None else len(new))
        self._run.console.say(
            f"{planned.path}: {known.count} images are those of {name}, {added} are new"
        )
        if added:
            self._restrict(planned, new)
            self.open_checkpoint()
            parts.append(replace(self.measure(planned).statistics, config=config))
        return world.only_on_rank_zero(lambda: merge_statistics(parts)) or known

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
        self._contents = {
            **self._contents,
            planned: self._contents[planned]._replace(images=images),
        }

    def measure_both(
        self, real: SetPlan, fake: SetPlan, known: MeasuredSet | None, measured: MeasuredSet | None
    ) -> tuple[MeasuredSet, MeasuredSet]:
        """Returns REAL, which may be ``known``, and a FAKE, which may be ``measured``. A
        collective; see `measure`.

        If their images are compared in pairs, both sets are measured in one pass, in which each
        image is decoded once.
        """
        if fake is real:
            known = known or self.measure(real)
            measured = measured or known
        if not fake.needs.pairs or (measured is not None and measured.pairs):
            return known or self.measure(real), measured or self.measure(fake)
        of_real, lacking = (known, None) if known else self._look_up(real)
        of_fake, lacked = (measured, None) if measured else self._look_up(fake)
        found, partner = self._computed(fake, lacked or (), real, lacking)
        if partner is not None:
            of_real = _joined(of_real, partner)
        if lacked is not None:
            of_fake = _joined(of_fake, found)
        return of_real, replace(of_fake, pairs=found.pairs)

    def _look_up(
        self, planned: SetPlan, given: Statistics | None = None
    ) -> tuple[MeasuredSet, list[str] | None]:
        """What is known of a set without its images, and the layers that it lacks; None if it has
        all. A collective.
        """
        needs, known = (
            planned.needs,
            self._world.only_on_rank_zero(lambda: self._known(planned, given)),
        )
        layers = {} if known is None else known.layers
        lacks = [layer for layer in needs.layers if layer not in layers]
        lacking = self._world.broadcast(None if known is not None and not lacks else lacks)
        collected = [layer for layer in needs.collected if layer not in (lacking or ())]
        return spread_features(
            planned.path, known or Statistics({}), collected, self._world
        ), lacking

    def _computed(
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
        settings, world, batch_size = self._settings, self._world, self._plan.batch_size
        sampling, finished = planned.sampling, self._run.finished
        if planned.holds != "stream":
            finished.unsaved_since = finished.unsaved_since or time.monotonic()
        layers, every = self._layers(planned, names), {*names, *(of_real or ())}
        of_partner = None if real is None or of_real is None else self._layers(real, of_real)
        extraction = Extraction(
            self._run,
            settings,
            self.networks.networks(every) if every else (),
            layers,
            batch_size=batch_size,
            num_workers=self.num_workers,
            crop=planned.crop,
            warn=self._warn,
            work=self.counts,
            pairs=None if real is None else self.pairs,
            of_partner=of_partner,
        )
        if planned.holds == "stream":
            given = self._requests[planned.request].given
            assert isinstance(given, Images)
            if (
                sampling.num is not None
                and not (sampling.first or given.generates)
                and world.rank == 0
            ):
                taken = (
                    f"{option(sampling.setting)} takes its first {sampling.num} images instead of "
                    "a random subset"
                )
                self._warn(f"{given.name} is an iterable: {taken}")
            split = settings.max_pixels if settings.frames == "all" else None
            stream = Stream(given, settings.floats, world, batch_size, sampling, split)
            partial, images = extraction.run_stream(stream)
            images = replace(images, crop=planned.crop)
        else:
            images = self._images(planned)
            if real is not None:
                images = replace(images, partner=self._images(real))
            partial = extraction.run(self._plan.distinct.index(planned), images)
        for warning in itertools.chain.from_iterable(world.gather(self.warnings)):
            self._add(warning)
        found, other = self._concluded(planned, images, partial), None
        if real is not None and images.partner is not None and partial.partner is not None:
            other = self._concluded(real, images.partner, partial.partner)
        return found, other

    def _layers(self, planned: SetPlan, names: Sequence[str]) -> dict[str, Layer]:
        found, collected = {}, planned.needs.collected
        for name in names:
            definition, network = self.networks.definitions[name], self._settings.network_of(name)
            step = None if definition.standard else network.step_setting
            found[name] = Layer(definition, name in collected, network.subject, step)
        return found

    def _images(self, planned: SetPlan) -> ImageSet:
        """The images of a set on this rank. A collective."""
        given = self._requests[planned.request].given
        assert not isinstance(given, Statistics)
        settings = self._settings
        return broadcast_images(
            self._world, self._contents[planned].images, given, settings.floats, settings.timeout
        )

    def _concluded(self, planned: SetPlan, images: ImageSet, partial: Accumulator) -> MeasuredSet:
        """The set whose statistics were extracted. A collective."""
        world, finished = self._world, self._run.finished
        with world.together():
            rows = partial.rows()
        found = world.only_on_rank_zero(lambda: self._finished(planned, images, partial, rows))
        statistics, cached = found or (Statistics({}), False)
        if world.broadcast(cached):
            finished.cached.append(planned.path)
            finished.unsaved_since = None
        metrics = planned.needs.pairs if PAIRS in rows else ()
        pairs = {metric.name: rows[PAIRS][:, column] for column, metric in enumerate(metrics)}
        features = {name: rows[name] for name in partial.layers if name in rows}
        return MeasuredSet(images.path, statistics, features, pairs=pairs)

    def _warn(self, text: str) -> None:
        self._add(ResultWarning("", text))

    def _add(self, warning: ResultWarning) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)
            self._run.console.warn(str(warning))

    # --- on rank zero -----------------------------------------------------------------------------

    def _known(self, planned: SetPlan, given: Statistics | None) -> Statistics | None:
        """What is known of a set without its images: layers of ``given`` statistics, or else those
        in the cache.
        """
        if given is None:
            return self._from_cache(planned)
        needs, definitions = planned.needs, self.networks.definitions
        usable = {
            name: layer
            for name, layer in needs.usable(given.layers_of(self._settings.networks)).items()
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
        arithmetic, part = given.arithmetic or {}, self._stored(planned).part
        for name, theirs, mine in (
            ("precision", arithmetic.get("precision"), self._settings.precision),
            ("framing", given.framing, planned.crop),
            ("part", given.part and given.part.name, part and part.name),
        ):
            if theirs != mine:
                raise InputError(f"{problem} have {name} {theirs}, and this run has {mine}")
        if given.pictures is None or not self._settings.diagnose:
            needed = f"compared by records, without {option('diagnose', False)}"
            raise InputError(f"{problem} must be of the same images, which are {needed}")
        return replace(given, layers=usable)

    def _from_cache(self, planned: SetPlan) -> Statistics | None:
        source, needs = self._stored(planned), planned.needs
        if not self._settings.cache or source.part is not None:
            return None
        definitions = {name: self.networks.definitions[name] for name in needs.layers}
        wanted, warn = (needs.collected, needs.features), self._warn
        found = find_cached(
            source, definitions, *wanted, self.arithmetic, self._settings.diagnose, warn
        )
        if found is None:
            return None
        lacking = [definitions[name].network for name in needs.layers if name not in found.layers]
        which = f", not those of {' and '.join(lacking)}" if lacking else ""
        images = counted(len(source), "image")
        self._run.console.say(f"{source.path}: statistics of {images} read from the cache{which}")
        self.cached += [] if lacking else [planned.path]
        with_features = any(layer.features is not None for layer in found.layers.values())
        return replace(
            found,
            found=len(source.stored),
            pictures=None
            if found.pictures is None
            else replace(found.pictures, prefix=source.prefix),
            order=source.numbers() if with_features else None,
        )

    def _finished(
        self, planned: SetPlan, images: ImageSet, partial: Accumulator, rows: Rows
    ) -> tuple[Statistics, bool]:
        """The statistics that were extracted, and whether they are in the cache now."""
        partial.check_precision()
        statistics = partial.statistics(images, rows, self.arithmetic)
        if planned.holds == "stream" and planned.sampling.num is not None:
            statistics = replace(statistics, found=None)
        changes = images.change_warning(self._settings.timeout)
        if changes is not None:
            self.warnings.append(changes)
        # A skipped file may be fixed later, and a part is hardly computed twice.
        caches = self._settings.cache and bool(statistics.layers)
        caches = caches and not (changes is not None or statistics.skipped or statistics.part)
        return statistics, caches and put_in_cache(images, statistics, self._warn)


def _joined(known: MeasuredSet, found: MeasuredSet) -> MeasuredSet:
    """A set with the layers that are known, and those that were computed from the same images."""
    before, now = known.statistics, found.statistics
    order = before.order if now.order is None else now.order
    statistics = replace(now, layers={**before.layers, **now.layers}, order=order)
    return replace(found, statistics=statistics, features={**known.features, **found.features})
