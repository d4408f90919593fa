"""Error bars of a Fréchet distance, the images that raise it, and the images that a report shows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, health_of
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import error_bars, fewest_images, fid_curve
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import frechet_distance, influence
from fidtool.distances.jackknife import difference, interval
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
from fidtool.settings import Settings
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import MeasuredSet

_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Bounds on the number of most harmful images that are listed."""
_FEWEST_FOR_INFLUENCE = 3
"""Images of FAKE that an influence needs."""
_APART = "its distance is that of the mean and covariance in its file, not of its images"
_ROUGH = 0.2
"""Relative error above which a first-order prediction is reported as rough."""


class Explanations:
    """Error bars, influences and exhibits of each FAKE, where they were requested. All ranks make the same calls."""

    def __init__(self, run: RunContext, settings: Settings, features: FeatureSettings, title: str) -> None:
        self._run, self._world, self._settings = run, run.world, settings
        self._features, self._title = features, title
        self._parts: dict[str, NDArray[np.float64]] = {}

    def uncertainty(self, real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis | None) -> Uncertainty | None:
        """The error bars of the distance of ``fake``; None if they were not requested. A collective."""
        if not self._settings.uncertainty:
            return None
        with self._run.clock("uncertainty"):
            if withheld := _why_withheld(real, fake, diagnosis):
                return Uncertainty(None, None, withheld, () if fake.apart else self._curve(real, fake))
            parts, curve = error_bars(self._target(real), fake.features[FEATURES], self._features, self._world)
            self._parts[fake.path] = parts
            corrected = interval(parts)
            return Uncertainty(float(parts[0]) - corrected.value, corrected, "", curve)

    def _target(self, real: MeasuredSet) -> Gaussian:
        return self._world.on_rank_zero(lambda: _target_of(real))

    def differences(self) -> tuple[Difference, ...]:
        """The difference of each pair of FAKEs that have error bars."""
        return tuple(
            Difference(one, other, difference(self._parts[one], self._parts[other]))
            for one, other in itertools.combinations(self._parts, 2)
        )

    def influence(self, real: MeasuredSet, fake: MeasuredSet, distance: float | None) -> Influence | None:
        """The images that raise the distance of ``fake``; None if they were not requested. A collective."""
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
        # For a small set, several fractions give the same number of images.
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
        """The distance without the most harmful images: predicted by their effects, and computed."""
        count = len(worst)
        predicted = distance - float(values[worst].sum()) / (len(values) - count)
        others = self._gaussian(fake, np.delete(np.arange(len(values)), worst))
        left = frechet_distance(real.mu, real.sigma, others.mu, others.sigma, count1=real.count, count2=others.count)
        return Removal(fraction, count, predicted, left)

    def _roughness(self, distance: float, removals: Sequence[Removal], images: int, dims: int) -> str:
        """Why the effects are only rough; empty if they predict the removals well."""
        if images <= dims:
            return f"there are only {images} images for {dims} dimensions"
        off = [
            part for part in removals if abs(part.predicted - part.distance) > _ROUGH * abs(part.distance - distance)
        ]
        if not off:
            return ""
        return (
            f"for the removal of the {off[0].images} worst images, the effects predict an {self._title} of "
            f"{off[0].predicted:.6g}, but it is {off[0].distance:.6g}"
        )

    def _gaussian(self, fake: MeasuredSet, rows: NDArray[np.int64]) -> Gaussian:
        return self._features.gaussian(fake.features[FEATURES], rows, self._world)

    def exhibit(
        self, real: MeasuredSet, fake: MeasuredSet, seen: tuple[SetInspection | None, SetInspection | None]
    ) -> Exhibit | None:
        """What a report shows of ``fake``, on rank zero. A collective."""
        if self._settings.report is None:
            return None
        with self._run.clock("exhibits"):
            shown = self._world.only_on_rank_zero(lambda: _exhibit(real, fake, seen, self._features.device))
            known = FEATURES in fake.features and not fake.apart and self._settings.metric("fid") is not None
            curve = self._curve(real, fake) if known and not self._settings.uncertainty else ()
        return None if shown is None else replace(shown, curve=curve)

    def _curve(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[tuple[int, float], ...]:
        return fid_curve(self._target(real), fake.features[FEATURES], self._features, self._world)


def _target_of(real: MeasuredSet) -> Gaussian:
    assert real.statistics is not None
    return Gaussian(real.statistics.mu, real.statistics.sigma, real.statistics.count)


def _why_withheld(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis | None) -> str:
    if fake.apart:
        return _APART
    images, dims = fake.features[FEATURES].shape
    if images < (fewest := fewest_images(dims)):
        return f"at least {fewest} images are needed for features of {dims} dimensions, and there are {images}"
    copies = None if diagnosis is None else diagnosis.fake
    dependent = "; the interval assumes independent samples and would be"
    if fake is real:
        return f"this set is REAL itself{dependent} wrong"
    if copies is None:
        return f"its images were not checked for duplicates, which are not independent{dependent} wrong"
    if are_dependent(copies, None if diagnosis is None else diagnosis.real):
        return f"{copies.copies} of {copies.images} images are duplicates of others{dependent} much too narrow"
    shared = None if diagnosis is None else diagnosis.shared
    if shared is not None and shared.count >= NOTABLE_SHARE * images:
        return f"{shared.count} of {images} images are also in REAL{dependent} wrong"
    return ""


def _nothing_to_find(real: MeasuredSet, fake: MeasuredSet, images: int) -> str:
    if fake is real:
        return "this set is REAL itself"
    if fake.apart:
        return _APART
    if images < _FEWEST_FOR_INFLUENCE or (real.statistics is not None and real.statistics.count == 1):
        return f"at least {_FEWEST_FOR_INFLUENCE} generated and 2 real images are needed"
    return ""


def _file(measured: MeasuredSet, image: int) -> str:
    """Path of an image, or the path of its set and its index if only its features are known."""
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
    return Exhibit(
        fake=healths[0],
        real=healths[1],
        random=_random(fake),
        neighbours=_neighbours(real, fake, device),
        random_real=_random(real),
        without_features=tuple({each.path: None for each in (real, fake) if FEATURES not in each.features}),
    )


def _random(measured: MeasuredSet) -> tuple[str, ...]:
    pictures = _pictures(measured)
    shown = 0 if pictures is None else min(MOST_RANDOM, len(pictures))
    return tuple(_file(measured, image) for image in range(shown))


def _neighbours(real: MeasuredSet, fake: MeasuredSet, device: torch.device) -> tuple[Neighbour, ...]:
    if FEATURES not in real.features or FEATURES not in fake.features or fake is real:
        return ()
    some = fake.features[FEATURES][:MOST_NEIGHBOURS]
    rows, distances = nearest_rows(some, real.features[FEATURES], device)
    nearest = enumerate(zip(rows.tolist(), distances.tolist(), strict=True))
    return tuple(Neighbour(_file(fake, image), _file(real, row), distance) for image, (row, distance) in nearest)
