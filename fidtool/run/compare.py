"""Comparison of one FAKE with REAL: metric values, diagnosis, error bars, influences, exhibits, and
warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import (
    Diagnosis,
    SetInspection,
    diagnose,
    inspect_set,
    pair_warnings,
    set_warnings,
)
from fidtool.errors import ResultWarning, worst_first
from fidtool.features.protocol import FEATURES
from fidtool.result.evaluation import Comparison, SkippedFile
from fidtool.result.explanations import Classes, Influence, NotComputed, Uncertainty
from fidtool.run.classes import class_warnings, compute_classes, summarize_classes
from fidtool.run.compute import ComputedValues, MetricRunner
from fidtool.run.explain import (
    Inspections,
    build_exhibit,
    build_set_result,
    estimate_influence,
    estimate_uncertainty,
)
from fidtool.run.groups import group_rows
from fidtool.run.heldout import HeldoutComparer
from fidtool.run.opening import check_image_count
from fidtool.run.pairs import find_worst_pairs, image_values
from fidtool.run.plan import find_omissions
from fidtool.run.sets import SetContent, SetPlan
from fidtool.statistics.set_statistics import MeasuredSet


@dataclass
class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way.

    Attributes:
        runner: computes the metrics.
        heldout: compares each FAKE with a held-out set; None without one.
        left_out: on rank 0, the metrics for which REAL or some FAKEs have too few images.
        notes: on rank 0, what to say about these.
        parts: on rank 0, by the keys of the distances and the FAKEs that have error bars: the
            distances that `difference` compares.
        real: the inspection of REAL, on rank 0.
    """

    runner: MetricRunner
    heldout: HeldoutComparer | None = None
    left_out: list[NotComputed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    real: SetInspection | None = None

    def compare(self, real: MeasuredSet, fake: MeasuredSet, set_plan: SetPlan) -> Comparison:
        """Return the comparison. A collective."""
        runner = self.runner
        plan = runner.plan
        world = runner.run.world
        content_of_real = runner.contents[plan.sets[0]]
        content_of_fake = runner.contents[set_plan]
        possible = world.on_rank_zero(lambda: self._find_possible(real, fake, set_plan))
        metrics = [
            requested for requested in plan.settings.selected_metrics if requested.name in possible
        ]
        computed = runner.compute(metrics, real, fake, set_plan)
        sets = (
            (plan.sets[0], content_of_real, real.statistics),
            (set_plan, content_of_fake, fake.statistics),
        )
        groups = world.on_rank_zero(lambda: group_rows(sets, plan.settings.seed))
        classes = compute_classes(groups, metrics, real, fake, set_plan, computed, runner)
        heldout = None if self.heldout is None else self.heldout.compare(real, fake)
        builder = _ComparisonBuilder(
            self,
            real,
            fake,
            content_of_real,
            content_of_fake,
            computed,
            summarize_classes(classes, plan),
        )
        return world.on_rank_zero(lambda: replace(builder.build(), heldout=heldout))

    def _find_possible(self, real: MeasuredSet, fake: MeasuredSet, set_plan: SetPlan) -> set[str]:
        """The names of the metrics for which the sets have enough images, now that all have been
        counted.
        """
        plan = self.runner.plan
        settings = plan.settings
        if set_plan.holds == "stream":
            statistics = fake.statistics
            count = (statistics.count or 0) + len(statistics.skipped)
            check_image_count(settings.expect, set_plan.path, count)
        sizes = [
            replace(own, count=len(next(iter(measured.features.values()), ())))
            for own, measured in ((plan.sets[0], real), (set_plan, fake))
        ]
        names = {requested.name for requested in settings.selected_metrics}
        for missing, line in find_omissions(settings.selected_metrics, settings, *sizes):
            self.left_out.append(missing)
            self.notes.append(line)
            self.runner.run.console.say(line, warns=True)
            names.remove(missing.metric)
        return names


@dataclass
class _ComparisonBuilder:
    """The comparison of a FAKE, put together on rank 0.

    Attributes:
        warnings: the warnings so far.
    """

    comparer: Comparer
    real: MeasuredSet
    fake: MeasuredSet
    content_of_real: SetContent
    content_of_fake: SetContent
    computed: ComputedValues
    classes: Classes | None
    warnings: list[ResultWarning] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = self.comparer.runner
        self.run = self.runner.run
        self.plan = self.runner.plan

    def build(self) -> Comparison:
        """Return the comparison, but for that with a held-out set."""
        real = self.real
        fake = self.fake
        of_images = None
        if self.computed.of_images:
            of_images = image_values(
                self.content_of_real.images,
                self.content_of_fake.images,
                fake,
                self.computed.of_images,
            )
        self.warnings += self._set_warnings()
        self.warnings += self.computed.warnings
        diagnosis = None
        inspections: Inspections = (None, None)
        uncertainties = {}
        if self.plan.settings.diagnose:
            with self.run.clock("diagnosis"):
                inspections = self._inspect()
                diagnosis = diagnose(
                    *inspections,
                    self.plan.settings.max_duplicates,
                    bool(fake.pairs),
                    self.run.console.render,
                )
            self.warnings += diagnosis.lines
            uncertainties = self._estimate_uncertainties(diagnosis)
        if self.classes is not None:
            for text in class_warnings(self.classes, real, self.computed.numbers, self.plan):
                self.warnings.append(ResultWarning(fake.path, text, "medium"))
        influence = self._estimate_influence()
        exhibit = None
        if self.plan.settings.report is not None:
            with self.run.clock("exhibits"):
                exhibit = build_exhibit(real, fake, inspections, self.run.device.torch_device)
            if of_images is not None:
                exhibit = replace(
                    exhibit, worst_pairs=find_worst_pairs(of_images, self.plan.values)
                )
        return Comparison(
            real=build_set_result(real, self.content_of_real),
            fake=build_set_result(fake, self.content_of_fake),
            metrics=self.computed.numbers,
            known=self.plan.values,
            warnings=tuple(
                worst_first(warning.shown(self.run.console.render) for warning in self.warnings)
            ),
            skipped=tuple(self._list_skipped()),
            diagnosis=diagnosis,
            uncertainties=uncertainties,
            influence=influence,
            exhibit=exhibit,
            of_images=of_images,
            classes=self.classes,
        )

    def _set_warnings(self) -> Iterator[ResultWarning]:
        real = self.real
        fake = self.fake
        of_real = real.statistics
        of_fake = fake.statistics
        names = [real.path, fake.path]
        if fake is not real and fake.path == real.path:  # one path, cropped or sampled in two ways
            names = [f"{real.path} as REAL", f"{fake.path} as FAKE"]
        yield from self.plan.warnings
        if self.comparer.heldout is not None:
            yield from self.comparer.heldout.warnings(real)
        if fake.path == real.path and of_fake.framing == of_real.framing:
            yield ResultWarning(
                "",
                f"{fake.path} is the same set as REAL: the values say nothing about a generator",
                "high",
            )
        layers = {
            requested.layer: None
            for requested in self.plan.settings.selected_metrics
            if requested.metric.frechet
        }
        for name, statistics in {names[0]: of_real, names[1]: of_fake}.items():
            yield from set_warnings(name, statistics, layers)
        larger = self.content_of_real
        if (of_fake.count or 0) > (of_real.count or 0):
            larger = self.content_of_fake
        yield from pair_warnings(of_real, names[1], of_fake, bool(layers), larger.file is None)

    def _inspect(self) -> Inspections:
        real = self.comparer.real
        if real is None:
            real = self.comparer.real = _inspect_set(self.real, self.content_of_real)
        if self.fake is self.real:
            return real, real
        return real, _inspect_set(self.fake, self.content_of_fake)

    def _estimate_uncertainties(self, diagnosis: Diagnosis) -> dict[str, Uncertainty]:
        uncertainties: dict[str, Uncertainty] = {}
        if not self.plan.settings.uncertainty:
            return uncertainties
        path = self.fake.path
        for value in self.plan.values:
            if not value.number.error_bars:
                continue
            layer = value.features.layer
            features = self.runner.feature_settings(layer)
            with self.run.clock("uncertainty"):
                uncertainty, parts = estimate_uncertainty(
                    self.real, self.fake, diagnosis, features, layer
                )
            uncertainties[value.key] = uncertainty
            if parts is not None:
                self.comparer.parts.setdefault(value.key, {})[path] = parts
                continue
            curve = ", ".join(
                f"{distance:.4g} for {images}" for images, distance in uncertainty.curve
            )
            if curve:
                title = "distance" if value == self.plan.distance else value.title
                curve = f"{title} by number of images: {curve}"
            self.warnings.append(
                ResultWarning(path, f"no error bars: {uncertainty.withheld}", detail=curve)
            )
        return uncertainties

    def _estimate_influence(self) -> Influence | None:
        distance = self.plan.distance
        numbers = self.computed.numbers
        if not self.plan.settings.influence or distance is None or distance.key not in numbers:
            return None
        number = numbers[distance.key]
        with self.run.clock("influence"):
            return estimate_influence(
                self.real, self.fake, number, distance.title, self.runner.feature_settings(FEATURES)
            )

    def _list_skipped(self) -> Iterator[SkippedFile]:
        sets = [self.real]
        if self.fake is not self.real:
            sets.append(self.fake)
        if self.comparer.heldout is not None:
            sets.append(self.comparer.heldout.heldout)
        for measured in sets:
            for bad_file in measured.statistics.skipped:
                yield SkippedFile(measured.path, bad_file.file, bad_file.reason)


def _inspect_set(measured: MeasuredSet, content: SetContent) -> SetInspection | None:
    passed_over = None if content.images is None else content.images.passed_over
    return inspect_set(
        measured.path, measured.statistics.pictures, passed_over, measured.statistics.skipped
    )
