"""How certain a Fréchet distance is, which images raise it, and what a report shows beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, health_of
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import ErrorBars, difference, error_bars, fewest_images, fid_curve
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import Gaussian, frechet_distance, influence
from fidtool.distances.neighbors import nearest_rows
from fidtool.features.protocol import FEATURES
from fidtool.images.records import ImageRecords
from fidtool.pipeline.run import RunContext
from fidtool.results import (
    MOST_NEIGHBOURS,
    MOST_RANDOM,
    Difference,
    Exhibit,
    HarmfulImage,
    Influence,
    Neighbour,
    Removal,
    Uncertainty,
)
from fidtool.statistics.moments import MeanCovariance
from fidtool.statistics.statistics_file import MeasuredSet

_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Harmful images that are named."""
_FEWEST_TO_TELL = 3
_ROUGH = 0.2
"""A first-order prediction that is farther off than that is no guide."""


class Explanations:
    """What stands beside the Fréchet distance of each FAKE, if asked for. Made and used on all ranks alike.

    Args:
        run: the run.
        features: how features are added up.
        title: what their Fréchet distance is called.
    """

    def __init__(self, run: RunContext, features: FeatureSettings, title: str) -> None:
        self._run, self._world, self._settings = run, run.world, run.settings
        self._features, self._title = features, title
        self._bars: dict[str, ErrorBars] = {}

    def uncertainty(self, real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis | None) -> Uncertainty | None:
        """How certain the distance of ``fake`` is; None where that was not asked for. A collective."""
        if not self._settings.uncertainty:
            return None
        with self._run.clock("uncertainty"):
            if withheld := _why_withheld(real, fake, diagnosis):
                return Uncertainty(None, None, withheld, self._curve(real, fake))
            bars = error_bars(self._target(real), fake.features[FEATURES], self._features, self._world)
            self._bars[fake.path] = bars
            return Uncertainty(bars.bias, bars.corrected, "", bars.curve)

    def _target(self, real: MeasuredSet) -> Gaussian:
        return self._world.on_rank_zero(lambda: _target_of(real))

    def differences(self) -> tuple[Difference, ...]:
        """Of each pair of the FAKEs that have error bars."""
        return tuple(
            Difference(one, other, difference(self._bars[one], self._bars[other]))
            for one, other in itertools.combinations(self._bars, 2)
        )

    def influence(self, real: MeasuredSet, fake: MeasuredSet, distance: float | None) -> Influence | None:
        """Which images raise the distance of ``fake``; None where that was not asked for. A collective."""
        if not self._settings.influence or distance is None:
            return None
        with self._run.clock("influence"):
            return self._world.on_rank_zero(lambda: self._influence(real, fake, distance))

    def _influence(self, real: MeasuredSet, fake: MeasuredSet, distance: float) -> Influence:
        target, features = _target_of(real), fake.features[FEATURES]
        if reason := _nothing_to_find(real, fake, len(features)):
            return Influence((), (), (), reason)
        everything = np.arange(len(features))
        values = influence(target, self._gaussian(fake, everything), features, self._world, self._features.device)
        order = np.argsort(-values, kind="stable")
        effects = values / (len(values) - 1)
        named = min(len(values), max(_FEWEST, min(_MOST, round(_FRACTIONS[-1] * len(values)))))
        # Of few images all fractions are the same one.
        fractions = {max(1, round(part * len(values))): part for part in reversed(_FRACTIONS)}
        removals = tuple(
            self._removal(target, fake, distance, values, order[:count], part)
            for count, part in sorted(fractions.items())
        )
        return Influence(
            tuple(HarmfulImage(_file(fake, int(image)), float(effects[image])) for image in order[:named]),
            tuple(HarmfulImage(_file(fake, int(image)), float(effects[image])) for image in order[::-1][:_FEWEST]),
            removals,
            self._roughness(distance, removals, len(values), features.shape[1]),
        )

    def _removal(
        self,
        real: Gaussian,
        fake: MeasuredSet,
        distance: float,
        values: NDArray[np.float64],
        worst: NDArray[np.int64],
        fraction: float,
    ) -> Removal:
        """The distance without the most harmful images, as their effects predict it and as it is."""
        count = len(worst)
        predicted = distance - float(values[worst].sum()) / (len(values) - count)
        others = self._gaussian(fake, np.delete(np.arange(len(values)), worst))
        left = frechet_distance(real.mu, real.sigma, others.mu, others.sigma, count1=real.count, count2=others.count)
        return Removal(fraction, count, predicted, left)

    def _roughness(self, distance: float, removals: Sequence[Removal], images: int, dims: int) -> str:
        """Why the effects are a rough guide; empty if they are a good one."""
        if images <= dims:
            return f"{images} images for {dims} dimensions: each has directions to itself, and its effect is underrated"
        off = [
            part for part in removals if abs(part.predicted - part.distance) > _ROUGH * abs(part.distance - distance)
        ]
        if not off:
            return ""
        return (
            f"without the worst {off[0].images} images the effects predict an {self._title} of "
            f"{off[0].predicted:.6g} and it is {off[0].distance:.6g}"
        )

    def _gaussian(self, fake: MeasuredSet, rows: NDArray[np.int64]) -> MeanCovariance:
        return self._features.gaussian(fake.features[FEATURES], rows, self._world)

    def exhibit(
        self, real: MeasuredSet, fake: MeasuredSet, seen: tuple[SetInspection | None, SetInspection | None]
    ) -> Exhibit | None:
        """What a report shows of ``fake``, on rank zero; None elsewhere, and where there is no report. A collective.

        Args:
            real, fake: the sets.
            seen: the inspection of their images, on rank zero.
        """
        if not self._settings.exhibits:
            return None
        with self._run.clock("exhibits"):
            shown = self._world.only_on_rank_zero(lambda: _exhibit(real, fake, seen, self._features.device))
            known = FEATURES in fake.features and self._settings.metric("fid") is not None
            curve = self._curve(real, fake) if known and not self._settings.uncertainty else ()
        return None if shown is None else replace(shown, curve=curve)

    def _curve(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[tuple[int, float], ...]:
        return fid_curve(self._target(real), fake.features[FEATURES], self._features, self._world)


def _target_of(real: MeasuredSet) -> Gaussian:
    """On rank zero."""
    assert real.statistics is not None
    return Gaussian(real.statistics.mu, real.statistics.sigma, real.statistics.count)


def _why_withheld(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis | None) -> str:
    """Why there can be no interval; empty if there can."""
    images, dims = fake.features[FEATURES].shape
    if images < (fewest := fewest_images(dims)):
        return f"they need at least {fewest} images for features of {dims} dimensions, and there are {images}"
    copies = None if diagnosis is None else diagnosis.fake
    dependent = "; an interval would take them for independent samples and be wrong"
    if fake.path == real.path:
        return f"it is REAL itself{dependent}"
    if copies is None:
        return f"nobody looked whether its images are copies of each other, which makes them dependent{dependent}"
    if are_dependent(copies, None if diagnosis is None else diagnosis.real):
        return f"{copies.copies} of {copies.images} images are copies of others{dependent} and far too narrow"
    shared = None if diagnosis is None else diagnosis.shared
    if shared is not None and shared.count >= NOTABLE_SHARE * images:
        return f"{shared.count} of {images} images are REAL's own{dependent}"
    return ""


def _nothing_to_find(real: MeasuredSet, fake: MeasuredSet, images: int) -> str:
    """Why no image can be told to raise the distance; empty if one can."""
    if fake.path == real.path:
        return "it is REAL itself"
    if images < _FEWEST_TO_TELL or (real.statistics is not None and real.statistics.count == 1):
        return f"it takes {_FEWEST_TO_TELL} images, and more than one real one"
    return ""


def _file(measured: MeasuredSet, image: int) -> str:
    """Path of an image, or its number where only its features are known."""
    pictures = _pictures(measured)
    return f"{measured.path}[{image}]" if pictures is None else pictures.file(image)


def _pictures(measured: MeasuredSet) -> ImageRecords | None:
    assert measured.statistics is not None
    return measured.statistics.pictures


def _exhibit(
    real: MeasuredSet, fake: MeasuredSet, seen: tuple[SetInspection | None, SetInspection | None], device: torch.device
) -> Exhibit:
    healths = []
    for measured, own, other in zip((fake, real), seen[::-1], seen, strict=True):
        skipped = () if measured.statistics is None else measured.statistics.skipped
        healths.append(None if own is None else health_of(own, skipped, other, generated=measured is fake))
    shown = range(min(MOST_RANDOM, 0 if healths[0] is None else healths[0].images))
    neighbours: list[Neighbour] = []
    if FEATURES in real.features and FEATURES in fake.features and fake.path != real.path:
        some = fake.features[FEATURES][:MOST_NEIGHBOURS]
        rows, distances = nearest_rows(some, real.features[FEATURES], device)
        for image, (row, distance) in enumerate(zip(rows.tolist(), distances.tolist(), strict=True)):
            neighbours.append(Neighbour(_file(fake, image), _file(real, row), distance))
    return Exhibit(healths[0], healths[1], tuple(_file(fake, image) for image in shown), tuple(neighbours))
