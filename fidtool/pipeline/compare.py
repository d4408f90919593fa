"""Comparison of one FAKE with REAL: metric values, diagnosis, error bars, influences, exhibits, and warnings."""

from __future__ import annotations

import hashlib
import math
import os
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import (
    Diagnosis,
    SetInspection,
    diagnosis_of,
    health_of,
    inspect_set,
    pair_warnings,
    set_warnings,
)
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import error_bars, fewest_images, fid_curve, interval
from fidtool.distances.exact import FINEST_STEP, FeatureSettings, feature_settings
from fidtool.distances.frechet import distance_between, influence
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.errors import (
    FidtoolError,
    InputError,
    ProgramError,
    ResultWarning,
    RunError,
    as_warning,
    in_short,
    on_every_rank,
    worst_first,
)
from fidtool.features.models.inception import Weights, load_weights
from fidtool.features.protocol import FEATURES
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number
from fidtool.metrics.registry import BUILT_IN, Requested
from fidtool.names import counted
from fidtool.pipeline.captions import captions_of
from fidtool.pipeline.classes import class_warnings, classes_of, values_of_classes
from fidtool.pipeline.groups import rows_of_groups
from fidtool.pipeline.heldout import HeldoutComparer
from fidtool.pipeline.opening import check_number
from fidtool.pipeline.pairs import image_values, worst_pairs
from fidtool.pipeline.plan import Plan, lacking_images, omission
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import Content, SetPlan
from fidtool.result.evaluation import Comparison, SetResult, SkippedFile
from fidtool.result.explanations import (
    Classes,
    Exhibit,
    HarmfulImage,
    Influence,
    Interval,
    Neighbour,
    NotComputed,
    Removal,
    Uncertainty,
)
from fidtool.result.record import known_settings
from fidtool.statistics.set_statistics import MeasuredSet

T = TypeVar("T")

_MOST_RANDOM, _MOST_NEIGHBOURS = 48, 24
"""Maximum numbers of images of one FAKE that a report shows: random ones, and those with their nearest real images."""
_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Bounds on the number of most harmful images that are listed."""
_APART = "its distance is that of the mean and covariance in its file, not of its images"
_SAME = "is the same set as REAL: the values say nothing about a generator"
_ROUGH = 0.2
"""Relative error above which a first-order prediction is reported as rough."""


@dataclass
class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way.

    Attributes:
        weights: Inception's, if the run has loaded them.
        heldout: compares each FAKE with a held-out set; None without one.
        recorded: what the metrics recorded, by their names, see `MetricContext.recorded`.
        left_out: on rank zero, the metrics for which REAL or some FAKEs have too few images.
        notes: on rank zero, what to say about these.
        parts: on rank zero, by the keys of the distances and the FAKEs that have error bars: the distances that
            `difference` compares.
        real: the inspection of REAL, on rank zero.
    """

    run: RunContext
    plan: Plan
    contents: Mapping[SetPlan, Content]
    weights: Weights | None
    heldout: HeldoutComparer | None
    recorded: dict[str, dict[str, Any]]
    left_out: list[NotComputed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    real: SetInspection | None = None

    def compare(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> Comparison:
        """Returns the comparison. A collective."""
        metrics = self._possible(real, fake, planned)
        numbers, warnings, of_images = self._numbers(metrics, real, fake, planned)
        classes = self._classes(metrics, real, fake, planned, of_images)
        heldout = None if self.heldout is None else self.heldout.compare(real, fake)
        return self.run.world.on_rank_zero(
            lambda: replace(self._conclude(real, fake, planned, numbers, warnings, of_images, classes), heldout=heldout)
        )

    def _numbers(
        self, metrics: Sequence[Requested], real: MeasuredSet, fake: MeasuredSet, planned: SetPlan
    ) -> tuple[dict[str, float], list[ResultWarning], dict[str, NDArray[np.float64]]]:
        """The values of metrics by key, warnings about them, and values of single images. A collective."""
        numbers, of_networks = dict[str, float](), dict[str, dict[str, dict[str, float]]]()
        warnings, of_images = list[ResultWarning](), dict[str, NDArray[np.float64]]()
        for asked in metrics:
            found = self._values(asked, real, fake, planned, warnings, of_images)
            network = self.plan.settings.network_of(asked.layer).extractor
            numbers |= self._by_key(asked, found)
            of_networks.setdefault(asked.metric.name, {}).setdefault(network, found)
        for asked in metrics:
            if not asked.further:
                whole = asked.metric.summarize(of_networks[asked.metric.name])
                whole = _checked(asked.metric, whole, asked.metric.summary, required=False)
                numbers |= self._by_key(asked, whole)
        return numbers, warnings, of_images

    def _by_key(self, asked: Requested, found: Mapping[str, T]) -> dict[str, T]:
        """What a metric returned by the names of values, by their keys."""
        value = self.plan.values_of(asked)[0]
        return {value.named(name): each for name, each in found.items()}

    def _classes(
        self,
        metrics: Sequence[Requested],
        real: MeasuredSet,
        fake: MeasuredSet,
        planned: SetPlan,
        of_images: Mapping[str, NDArray[np.float64]],
    ) -> Classes | None:
        """The classes of both sets; if requested, with values of metrics for which they suffice. A collective."""
        plan, run, sets = self.plan, self.run, ((self.plan.sets[0], real), (planned, fake))
        groups = run.world.on_rank_zero(
            lambda: rows_of_groups([(self.contents[one], each.statistics) for one, each in sets], plan.settings.seed)
        )
        numbers = partial(self._numbers, planned=planned)
        return classes_of(values_of_classes(groups, metrics, real, fake, of_images, plan, run, numbers), plan)

    def _possible(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> list[Requested]:
        """The metrics for which the sets have enough images, now that all have been counted. A collective."""
        settings = self.plan.settings

        def lacking() -> set[str]:
            sets = []
            for one, each in ((self.plan.sets[0], real), (planned, fake)):
                known = one.holds in ("statistics", "both")
                sets.append(one if known else replace(one, count=each.statistics.count))
            if planned.holds == "stream":
                found = (fake.statistics.count or 0) + len(fake.statistics.skipped)
                check_number(settings.expect, planned.path, found)
            reasons = lacking_images(settings.chosen, settings, *sets)
            for asked in settings.chosen:
                if (reason := reasons.get(asked.name)) is not None:
                    self.left_out.append(NotComputed(asked.name, asked.title, reason.stated, not asked.optional))
                    self.notes.append(omission(asked, reason))
                    self.run.console.say(self.notes[-1], warns=True)
            return {*reasons}

        names = self.run.world.on_rank_zero(lacking)
        return [each for each in settings.chosen if each.name not in names]

    def _values(
        self,
        asked: Requested,
        real: MeasuredSet,
        fake: MeasuredSet,
        planned: SetPlan,
        warnings: list[ResultWarning],
        of_images: dict[str, NDArray[np.float64]],
    ) -> dict[str, float]:
        """The values of a metric; warnings about them, and values of single images, are added. A collective."""
        plan, run, metric, layer = self.plan, self.run, asked.metric, asked.layer
        sets, said = list[FeatureSet](), list[str | ResultWarning]()
        for each, with_features in ((real, metric.real_features), (fake, metric.fake_features)):
            gaussian = each.gaussian(layer) if layer in each.statistics.layers else None
            rows = each.features[layer] if with_features else None
            sets.append(FeatureSet(each.path, rows, gaussian, each.statistics.order, each.pairs))
        if metric.captions:
            own = run.world.on_rank_zero(lambda: captions_of(planned, self.contents[planned], fake.statistics))
            sets[1] = replace(sets[1], captions=own)

        def classifier() -> Weights:
            return self.weights or load_weights(plan.settings.network.weights, run.console.say, classifier=True)

        features = feature_settings(plan.definitions.get(layer), run.device.torch_device, run.world)
        network, single = plan.settings.network_of(layer).extractor, dict[str, NDArray[np.float64]]()
        context = MetricContext(features, classifier, said, network, single)
        try:
            with run.clock(metric.phase or metric.name):
                found = metric.compute(sets[0], sets[1], context)
        except InputError as error:
            raise on_every_rank(error) from None  # all ranks have the same features and settings
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:  # custom metrics may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            position = f"({os.path.basename(last.filename)}:{last.lineno})"
            kind = RunError if type(metric) in BUILT_IN.values() else ProgramError
            raise kind(f"the metric {asked.name} failed: {in_short(error)} {position}") from error
        for warning in map(as_warning, said):
            if warning not in warnings:  # others are of the sets, and not of the network
                text = f"{asked.further}: {warning.text}" if asked.further else warning.text
                warnings.append(replace(warning, text=text))
        of_images |= self._by_key(asked, single)
        self.recorded.setdefault(asked.name, {}).update(context.recorded)
        return self.run.world.on_rank_zero(lambda: _checked(metric, found, metric.numbers))

    def _conclude(
        self,
        real: MeasuredSet,
        fake: MeasuredSet,
        planned: SetPlan,
        numbers: Mapping[str, float],
        warnings: Sequence[ResultWarning],
        of_images: Mapping[str, NDArray[np.float64]],
        classes: Classes | None,
    ) -> Comparison:
        """The comparison. On rank zero."""
        plan, settings, world, clock = self.plan, self.plan.settings, self.run.world, self.run.clock
        shown = self.run.console.shown
        contents = [self.contents[each] for each in (plan.sets[0], planned)]
        passed_over = [None if each.images is None else each.images.passed_over for each in contents]
        lines = [*self._set_warnings(real, fake, contents), *warnings]
        features = feature_settings(plan.definitions.get(FEATURES), self.run.device.torch_device, world)
        seen: tuple[SetInspection | None, SetInspection | None] = (None, None)
        diagnosis = harmful = exhibit = None
        single = image_values(contents[0].images, contents[1].images, fake, of_images) if of_images else None
        uncertainties = dict[str, Uncertainty]()
        if settings.diagnose:
            with clock("diagnosis"):
                one, other = real.statistics, fake.statistics
                self.real = self.real or inspect_set(real.path, one.pictures, passed_over[0], one.skipped)
                seen = self.real, self.real
                if fake is not real:
                    seen = self.real, inspect_set(fake.path, other.pictures, passed_over[1], other.skipped)
                diagnosis = diagnosis_of(*seen, settings.max_duplicates, bool(fake.pairs), shown)
                lines += diagnosis.lines
        for value in plan.values:
            if not settings.uncertainty or diagnosis is None or not value.number.error_bars:
                continue
            layer = value.features.layer
            of_layer = feature_settings(plan.definitions.get(layer), self.run.device.torch_device, world)
            with clock("uncertainty"):
                found, parts = _uncertainty_of(real, fake, diagnosis, of_layer, layer)
            uncertainties[value.key] = found
            if parts is not None:
                self.parts.setdefault(value.key, {})[fake.path] = parts
            else:
                points = ", ".join(f"{distance:.4g} for {images}" for images, distance in found.curve)
                what = "distance" if value == plan.distance else value.title
                known = f"{what} by number of images {points}" if points else ""
                lines.append(ResultWarning(fake.path, f"no error bars: {found.withheld}", detail=known))
        if classes:
            for text in class_warnings(classes, real, numbers, plan):
                lines.append(ResultWarning(fake.path, text, "medium"))
        if settings.influence and plan.distance is not None and plan.distance.key in numbers:
            with clock("influence"):
                distance, title = numbers[plan.distance.key], plan.distance.title
                harmful = _influence_of(real, fake, distance, title, features)
        if settings.report is not None:
            with clock("exhibits"):
                exhibit = _exhibit_of(real, fake, seen, features.device)
                exhibit = replace(exhibit, worst_pairs=worst_pairs(single, plan.values) if single else ())
        sets = [real, *([] if fake is real else [fake]), *([] if self.heldout is None else [self.heldout.heldout])]
        skipped = (SkippedFile(each.path, bad.file, bad.reason) for each in sets for bad in each.statistics.skipped)
        return Comparison(
            real=set_result(real, contents[0]),
            fake=set_result(fake, contents[1]),
            metrics=numbers,
            known=plan.values,
            warnings=tuple(worst_first(replace(line, text=shown(line.text)) for line in lines)),
            skipped=tuple(skipped),
            diagnosis=diagnosis,
            uncertainties=uncertainties,
            influence=harmful,
            exhibit=exhibit,
            of_images=single,
            classes=classes,
        )

    def _set_warnings(self, real: MeasuredSet, fake: MeasuredSet, contents: Sequence[Content]) -> list[ResultWarning]:
        names, settings = (real.path, fake.path), self.plan.settings
        if fake is not real and fake.path == real.path:  # one path, cropped or sampled in two ways
            names = f"{real.path} as REAL", f"{fake.path} as FAKE"
        same = fake.path == real.path and fake.statistics.framing == real.statistics.framing
        sets = {names[0]: real.statistics, names[1]: fake.statistics}
        layers = {each.layer: None for each in settings.chosen if each.metric.frechet}
        larger = contents[(fake.statistics.count or 0) > (real.statistics.count or 0)]
        return [
            *self.plan.warnings,
            *([] if self.heldout is None else self.heldout.warnings(real)),
            *([ResultWarning("", f"{fake.path} {_SAME}", "high")] if same else []),
            *set_warnings(sets, layers),
            *pair_warnings(real.statistics, names[1], fake.statistics, bool(layers), larger.file is None),
        ]


def _checked(
    metric: Metric, found: Mapping[str, float], numbers: Sequence[Number], required: bool = True
) -> dict[str, float]:
    own = {number.name for number in numbers}
    names = own | {number.spread for number in numbers if number.spread} | {*metric.further}
    returned = ", ".join(map(str, found)) if isinstance(found, Mapping) else f"{found!r}, which is not a dictionary"
    if not isinstance(found, Mapping) or not (own if required else set()) <= set(found) <= names:
        declared = ", ".join(sorted(names)) or "none"
        raise RunError(f"the metric {metric.name} returned {returned}; it declares {declared}")
    try:
        values = {name: float(value) for name, value in found.items()}
    except (TypeError, ValueError, OverflowError) as error:  # an integer can be too large for a float
        raise RunError(f"the metric {metric.name} returned something that is not a number: {error}") from None
    for name, value in values.items():
        if not math.isfinite(value):
            raise RunError(f"the metric {metric.name} returned {value} for {name}")
    return values


# --- explanations, on rank zero --------------------------------------------------------------------------------


def _uncertainty_of(
    real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis, features: FeatureSettings, layer: str
) -> tuple[Uncertainty, NDArray[np.float64] | None]:
    """The error bars of the distance of ``fake``, and the distances from which `difference` compares it with others."""
    if dependent := _why_dependent(real, fake, diagnosis, layer):
        return Uncertainty(None, None, dependent, ()), None
    target, rows = real.gaussian(layer), fake.features[layer]
    images, dims = rows.shape
    if images < (fewest := fewest_images(dims)):
        needed = f"at least {fewest} images are needed for features of {dims} dimensions, and there are {images}"
        about, sizes = perfect_distance(target, images), f"{target.count or 'very many'} and {images} images"
        perfect = (
            f"a perfect generator would have about {about:.3g}, as two samples of one distribution have, of {sizes}"
        )
        curve = fid_curve(target, rows, features)
        return Uncertainty(None, None, f"{needed}; {perfect}", curve), None
    parts, curve = error_bars(target, rows, features)
    corrected = Interval(*interval(parts))
    return Uncertainty(float(parts[0]) - corrected.value, corrected, "", curve), parts


def _why_dependent(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis, layer: str) -> str:
    """Why the images of ``fake`` are not independent samples of a generator, or not known to be; empty if they are."""
    if fake.apart:
        return _APART
    images = len(fake.features[layer])
    copies, shared = diagnosis.fake, diagnosis.shared
    dependent = "; the interval assumes independent samples and would be"
    if fake is real:
        return f"this set is REAL itself{dependent} wrong"
    if copies is None:
        return f"its images were not checked for duplicates, which are not independent{dependent} wrong"
    if are_dependent(copies, diagnosis.real):
        return f"{copies.copies} of {copies.images} images are duplicates of others{dependent} much too narrow"
    if shared is not None and shared.count >= NOTABLE_SHARE * images:
        return f"{shared.count} of {images} images are also in REAL{dependent} wrong"
    return ""


def _influence_of(
    real: MeasuredSet, fake: MeasuredSet, distance: float, title: str, features: FeatureSettings
) -> Influence:
    """The images that raise the distance of ``fake``, which messages call ``title``."""
    target, rows = real.gaussian(), fake.features[FEATURES]
    doubt = "this set is REAL itself" if fake is real else _APART if fake.apart else ""
    if not doubt and (len(rows) < 3 or target.count == 1):
        doubt = "at least 3 generated and 2 real images are needed"
    if doubt:
        return Influence((), (), (), doubt)
    everything = np.arange(len(rows))
    values = influence(target, features.gaussian(rows, everything), rows, features)
    order = np.argsort(-values, kind="stable")
    effects = values / (len(values) - 1)
    named = min(len(values), max(_FEWEST, min(_MOST, round(_FRACTIONS[-1] * len(values)))))
    # For a small set, several fractions give the same number of images.
    fractions = {max(1, round(part * len(values))): part for part in reversed(_FRACTIONS)}
    removals = []
    for count, part in sorted(fractions.items()):
        predicted = distance - float(values[order[:count]].sum()) / (len(values) - count)
        left = features.gaussian(rows, np.delete(everything, order[:count]))
        removals.append(Removal(part, count, predicted, distance_between(target, left)))
    off = [part for part in removals if abs(part.predicted - part.distance) > _ROUGH * abs(part.distance - distance)]
    if len(rows) <= rows.shape[1]:
        doubt = f"there are only {len(rows)} images for {rows.shape[1]} dimensions"
    elif off:
        doubt = (
            f"for the removal of the {counted(off[0].images, 'worst image')}, the effects predict an {title} of "
            f"{off[0].predicted:.6g}, but it is {off[0].distance:.6g}"
        )
    most, least = (
        tuple(HarmfulImage(_file(fake, int(image)), float(effects[image])) for image in images)
        for images in (order[:named], order[::-1][:_FEWEST])
    )
    return Influence(most, least, tuple(removals), doubt)


def set_result(measured: MeasuredSet, content: Content) -> SetResult:
    """Return what a result states about a set."""
    statistics = measured.statistics
    features = measured.features.get(FEATURES)
    images = content.images
    facts = SetResult(
        name=measured.path,
        count=statistics.count,
        found=statistics.found,
        passed_over=None if images is None else images.passed_over,
        framing=statistics.framing,
        made_with=statistics.config and known_settings(statistics.config),
        origin=statistics.origin,
        reference=content.reference,
        sha256=content.sha256,
        stated=statistics.definition is not None,
        precision=(statistics.arithmetic or {}).get("precision"),
        with_features=None if features is None else len(features),
    )
    if statistics.pictures is None:
        return facts
    records = statistics.pictures.records
    formats = Counter(value.decode() for value in records["format"].tolist())
    sizes = Counter(map("{}x{}".format, records["width"].tolist(), records["height"].tolist()))
    return replace(
        facts,
        formats=dict(formats.most_common()),
        sizes=dict(sizes.most_common(5)),
        pixels=hashlib.sha256(np.sort(records["digest"]).tobytes()).hexdigest(),
    )


def _file(measured: MeasuredSet, image: int) -> str:
    """Path of an image, or the path of its set and its index if only its features are known."""
    pictures = measured.statistics.pictures
    return f"{measured.path}[{image}]" if pictures is None else pictures.file(image)


def _exhibit_of(
    real: MeasuredSet,
    fake: MeasuredSet,
    seen: tuple[SetInspection | None, SetInspection | None],
    device: torch.device,
) -> Exhibit:
    """What a report shows of ``fake``: random images of both sets, and some of its own with the nearest real ones."""
    healths, random = [], []
    for measured, own in zip((fake, real), seen[::-1], strict=True):
        pictures = measured.statistics.pictures
        healths.append(None if own is None else health_of(own))
        random.append(tuple(map(pictures.file, range(min(_MOST_RANDOM, len(pictures))))) if pictures else ())
    rows, known = fake.features.get(FEATURES), real.features.get(FEATURES)
    neighbours: list[Neighbour] = []
    if rows is not None and known is not None and fake is not real:
        from fidtool.distances.neighbors import nearest_reals

        finest = FeatureSettings(FINEST_STEP, device=device)
        nearest, distances = nearest_reals(known, rows[:_MOST_NEIGHBOURS], finest)
        for image, (row, distance) in enumerate(zip(nearest.tolist(), distances.tolist(), strict=True)):
            neighbours.append(Neighbour(_file(fake, image), _file(real, row), distance))
    return Exhibit(
        fake=healths[0],
        real=healths[1],
        random=random[0],
        neighbours=tuple(neighbours),
        random_real=random[1],
        without_features=tuple({each.path: None for each in (real, fake) if FEATURES not in each.features}),
    )
