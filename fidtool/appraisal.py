"""What stands beside a Fréchet distance if asked for: its error bars, the images that raise it, what a report shows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.annexes import Difference, HarmfulImage, Influence, Removal, Uncertainty
from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, health_of
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.frechet import frechet_distance
from fidtool.distances.influence import Target, influence
from fidtool.distances.nearest import nearest_rows
from fidtool.distances.rows import FeatureSettings
from fidtool.distances.uncertainty import ErrorBars, difference, error_bars, fewest_images, fid_curve
from fidtool.features.protocol import FEATURES
from fidtool.report.exhibits import MOST_NEIGHBOURS, MOST_RANDOM, Exhibit, Neighbour
from fidtool.session import Session
from fidtool.statistics.gaussian import MeanCovariance
from fidtool.statistics.measured import MeasuredSet
from fidtool.statistics.pictures import Pictures

_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Harmful images that are named."""
_FEWEST_TO_TELL = 3
_ROUGH = 0.2
"""A first-order prediction that is farther off than that is no guide."""


class Appraisal:
    """Looks at the features of one FAKE after the other. Made and used on all ranks alike.

    Args:
        session: the run.
        settings: how features are added up.
        title: what their Fréchet distance is called.

    Attributes:
        bars: of each FAKE that has them, by path.
    """

    def __init__(self, session: Session, settings: FeatureSettings, title: str) -> None:
        self._session, self._world, self._config = session, session.world, session.config
        self._settings, self._title = settings, title
        self.bars: dict[str, ErrorBars] = {}

    def uncertainty(self, real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis | None) -> Uncertainty | None:
        """How sure the distance of ``fake`` is; None where nobody asked. A collective."""
        if not self._config.uncertainty:
            return None
        with self._session.clock("uncertainty"):
            if withheld := _why_withheld(real, fake, diagnosis):
                return Uncertainty(None, None, withheld, self._curve(real, fake))
            bars = error_bars(self._target(real), fake.features[FEATURES], self._settings, self._world)
            self.bars[fake.path] = bars
            return Uncertainty(bars.bias, bars.corrected, "", bars.curve)

    def _target(self, real: MeasuredSet) -> Target:
        def on_rank_zero() -> Target:
            assert real.statistics is not None
            return Target(real.statistics.mu, real.statistics.sigma, real.statistics.count)

        return self._world.on_rank_zero(on_rank_zero)

    def differences(self) -> tuple[Difference, ...]:
        """Of each pair of the FAKEs that have error bars."""
        return tuple(
            Difference(one, other, difference(self.bars[one], self.bars[other]))
            for one, other in itertools.combinations(self.bars, 2)
        )

    def influence(self, real: MeasuredSet, fake: MeasuredSet, scores: Mapping[str, float]) -> Influence | None:
        """Which images raise the distance of ``fake``; None where nobody asked. A collective."""
        if not self._config.influence:
            return None
        with self._session.clock("influence"):
            return self._world.on_rank_zero(lambda: self._influence(real, fake, scores["fid"]))

    def _influence(self, real: MeasuredSet, fake: MeasuredSet, distance: float) -> Influence:
        statistics, features = real.statistics, fake.features[FEATURES]
        assert statistics is not None
        target = Target(statistics.mu, statistics.sigma, statistics.count)
        if doubt := _nothing_to_find(real, fake, len(features)):
            return Influence((), (), (), doubt)
        everything = np.arange(len(features))
        values = influence(target, self._gaussian(fake, everything), features, self._world, self._settings.device)
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
        real: Target,
        fake: MeasuredSet,
        distance: float,
        values: NDArray[np.float64],
        worst: NDArray[np.int64],
        fraction: float,
    ) -> Removal:
        """The distance without the most harmful images, as their effects have it and as it is."""
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
        return self._settings.gaussian(fake.features[FEATURES], rows, self._world)

    def exhibit(
        self, real: MeasuredSet, fake: MeasuredSet, seen: tuple[SetInspection | None, SetInspection | None]
    ) -> Exhibit | None:
        """What a report shows of ``fake``, on rank zero; None elsewhere, and where nobody asked. A collective.

        Args:
            real, fake: the sets.
            seen: what was seen of their images, on rank zero.
        """
        if not self._config.exhibits:
            return None
        shown: list[Exhibit] = []
        with self._session.clock("exhibits"):
            self._world.on_rank_zero(lambda: shown.append(_exhibit(real, fake, seen, self._settings.device)))
            known = FEATURES in fake.features and self._config.metric("fid") is not None
            curve = self._curve(real, fake) if known and not self._config.uncertainty else ()
        return replace(shown[0], curve=curve) if shown else None

    def _curve(self, real: MeasuredSet, fake: MeasuredSet) -> tuple[tuple[int, float], ...]:
        return fid_curve(self._target(real), fake.features[FEATURES], self._settings, self._world)


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


def _pictures(measured: MeasuredSet) -> Pictures | None:
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
