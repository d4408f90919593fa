"""Comparison of one FAKE with REAL: metric values, diagnosis, error bars, influences, exhibits, and
warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import (
    Diagnosis,
    SetInspection,
    diagnosis_of,
    inspect_set,
    pair_warnings,
    set_warnings,
)
from fidtool.errors import ResultWarning, worst_first
from fidtool.features.protocol import FEATURES
from fidtool.result.evaluation import Comparison, SkippedFile
from fidtool.result.explanations import Classes, Influence, NotComputed, Uncertainty
from fidtool.run.classes import class_warnings, classes_of, values_of_classes
from fidtool.run.compute import Computed, MetricRunner
from fidtool.run.explain import exhibit_of, influence_of, set_result, uncertainty_of
from fidtool.run.groups import rows_of_groups
from fidtool.run.heldout import HeldoutComparer
from fidtool.run.opening import check_number
from fidtool.run.pairs import image_values, worst_pairs
from fidtool.run.plan import omissions
from fidtool.run.sets import Content, SetPlan
from fidtool.statistics.set_statistics import MeasuredSet


@dataclass
class Comparer:
    """Compares each FAKE with REAL. All ranks create and use it in the same way.

    Attributes:
        runner: computes the metrics.
        heldout: compares each FAKE with a held-out set; None without one.
        left_out: on rank zero, the metrics for which REAL or some FAKEs have too few images.
        notes: on rank zero, what to say about these.
        parts: on rank zero, by the keys of the distances and the FAKEs that have error bars: the
            distances that `difference` compares.
        real: the inspection of REAL, on rank zero.
    """

    runner: MetricRunner
    heldout: HeldoutComparer | None = None
    left_out: list[NotComputed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    real: SetInspection | None = None

    def compare(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> Comparison:
        """Returns the comparison. A collective."""
        runner, world = self.runner, self.runner.run.world
        contents, plan = runner.contents, runner.plan
        usual, generated = contents[plan.sets[0]], contents[planned]
        possible = world.on_rank_zero(lambda: self._possible(real, fake, planned))
        metrics = [asked for asked in plan.settings.chosen if asked.name in possible]
        computed = runner.compute(metrics, real, fake, planned)
        sets = (usual, real.statistics), (generated, fake.statistics)
        groups = world.on_rank_zero(lambda: rows_of_groups(sets, plan.settings.seed))
        of_classes = values_of_classes(groups, metrics, real, fake, planned, computed, runner)
        heldout = None if self.heldout is None else self.heldout.compare(real, fake)
        conclusion = _Conclusion(
            self, real, fake, usual, generated, computed, classes_of(of_classes, plan)
        )
        return world.on_rank_zero(lambda: replace(conclusion.comparison(), heldout=heldout))

    def _possible(self, real: MeasuredSet, fake: MeasuredSet, planned: SetPlan) -> set[str]:
        """The names of the metrics for which the sets have enough images, now that all have been
        counted.
        """
        settings = self.runner.plan.settings
        if planned.holds == "stream":
            check_number(
                settings.expect,
                planned.path,
                (fake.statistics.count or 0) + len(fake.statistics.skipped),
            )
        names = {asked.name for asked in settings.chosen}
        sets = (self.runner.plan.sets[0], real), (planned, fake)
        sizes = [
            replace(one, count=len(next(iter(each.features.values()), ()))) for one, each in sets
        ]
        for lacking, line in omissions(settings.chosen, settings, *sizes):
            self.left_out.append(lacking)
            self.notes.append(line)
            self.runner.run.console.say(line, warns=True)
            names.remove(lacking.metric)
        return names


@dataclass
class _Conclusion:
    """The comparison of a FAKE, put together on rank zero.

    Attributes:
        usual, generated: what REAL and the FAKE hold.
        lines: the warnings so far.
    """

    comparer: Comparer
    real: MeasuredSet
    fake: MeasuredSet
    usual: Content
    generated: Content
    computed: Computed
    classes: Classes | None
    lines: list[ResultWarning] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = self.comparer.runner
        self.run = self.runner.run
        self.plan = self.runner.plan

    def comparison(self) -> Comparison:
        """Returns the comparison, but for that with a held-out set."""
        real, fake, of_images = self.real, self.fake, self.computed.of_images
        single = (
            image_values(self.usual.images, self.generated.images, fake, of_images)
            if of_images
            else None
        )
        self.lines += [*self._set_warnings(), *self.computed.warnings]
        diagnosis = self._diagnosis()
        uncertainties = {} if diagnosis is None else self._uncertainties(diagnosis)
        if self.classes is not None:
            for text in class_warnings(self.classes, real, self.computed.numbers, self.plan):
                self.lines.append(ResultWarning(fake.path, text, "medium"))
        influence = self._influence()
        exhibit = None
        if self.plan.settings.report is not None:
            with self.run.clock("exhibits"):
                exhibit = exhibit_of(real, fake, self.inspections, self.run.device.torch_device)
            if single is not None:
                exhibit = replace(exhibit, worst_pairs=worst_pairs(single, self.plan.values))
        shown = self.run.console.shown
        return Comparison(
            real=set_result(real, self.usual),
            fake=set_result(fake, self.generated),
            metrics=self.computed.numbers,
            known=self.plan.values,
            warnings=tuple(worst_first(line.shown(shown) for line in self.lines)),
            skipped=tuple(self._skipped()),
            diagnosis=diagnosis,
            uncertainties=uncertainties,
            influence=influence,
            exhibit=exhibit,
            of_images=single,
            classes=self.classes,
        )

    def _set_warnings(self) -> Iterator[ResultWarning]:
        real, fake, heldout = self.real, self.fake, self.comparer.heldout
        names = real.path, fake.path
        if fake is not real and fake.path == real.path:  # one path, cropped or sampled in two ways
            names = f"{real.path} as REAL", f"{fake.path} as FAKE"
        yield from self.plan.warnings
        if heldout is not None:
            yield from heldout.warnings(real)
        if fake.path == real.path and fake.statistics.framing == real.statistics.framing:
            text = f"{fake.path} is the same set as REAL: the values say nothing about a generator"
            yield ResultWarning("", text, "high")
        layers = {asked.layer: None for asked in self.plan.settings.chosen if asked.metric.frechet}
        yield from set_warnings({names[0]: real.statistics, names[1]: fake.statistics}, layers)
        fake_is_larger = (fake.statistics.count or 0) > (real.statistics.count or 0)
        larger = self.generated if fake_is_larger else self.usual
        yield from pair_warnings(
            real.statistics, names[1], fake.statistics, bool(layers), larger.file is None
        )

    @cached_property
    def inspections(self) -> tuple[SetInspection | None, SetInspection | None]:
        """Those of REAL and the FAKE; None without the diagnosis, or without records of the
        images.
        """
        if not self.plan.settings.diagnose:
            return None, None
        real = self.comparer.real = self.comparer.real or _inspected(self.real, self.usual)
        return real, real if self.fake is self.real else _inspected(self.fake, self.generated)

    def _diagnosis(self) -> Diagnosis | None:
        settings = self.plan.settings
        if not settings.diagnose:
            return None
        with self.run.clock("diagnosis"):
            paired = bool(self.fake.pairs)
            diagnosis = diagnosis_of(
                *self.inspections, settings.max_duplicates, paired, self.run.console.shown
            )
        self.lines += diagnosis.lines
        return diagnosis

    def _uncertainties(self, diagnosis: Diagnosis) -> dict[str, Uncertainty]:
        uncertainties = dict[str, Uncertainty]()
        barred = [value for value in self.plan.values if value.number.error_bars]
        for value in barred if self.plan.settings.uncertainty else ():
            layer = value.features.layer
            with self.run.clock("uncertainty"):
                uncertainty, parts = uncertainty_of(
                    self.real, self.fake, diagnosis, self.runner.features(layer), layer
                )
            uncertainties[value.key] = uncertainty
            if parts is not None:
                self.comparer.parts.setdefault(value.key, {})[self.fake.path] = parts
                continue
            points = ", ".join(
                f"{distance:.4g} for {images}" for images, distance in uncertainty.curve
            )
            what = "distance" if value == self.plan.distance else value.title
            curve = f"{what} by number of images {points}" if points else ""
            self.lines.append(
                ResultWarning(
                    self.fake.path, f"no error bars: {uncertainty.withheld}", detail=curve
                )
            )
        return uncertainties

    def _influence(self) -> Influence | None:
        distance, numbers = self.plan.distance, self.computed.numbers
        if not self.plan.settings.influence or distance is None or distance.key not in numbers:
            return None
        with self.run.clock("influence"):
            features = self.runner.features(FEATURES)
            return influence_of(
                self.real, self.fake, numbers[distance.key], distance.title, features
            )

    def _skipped(self) -> Iterator[SkippedFile]:
        heldout = self.comparer.heldout
        sets = [self.real]
        if self.fake is not self.real:
            sets.append(self.fake)
        if heldout is not None:
            sets.append(heldout.heldout)
        for measured in sets:
            for bad in measured.statistics.skipped:
                yield SkippedFile(measured.path, bad.file, bad.reason)


def _inspected(measured: MeasuredSet, content: Content) -> SetInspection | None:
    passed_over = None if content.images is None else content.images.passed_over
    return inspect_set(
        measured.path, measured.statistics.pictures, passed_over, measured.statistics.skipped
    )
