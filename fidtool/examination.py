"""Looks at the images of a run's sets, on all ranks together, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, diagnosis_of, inspect_set
from fidtool.diagnose.duplicates import CopiesEffect
from fidtool.distances.frechet import frechet_distance
from fidtool.distances.rows import FeatureSettings
from fidtool.features.protocol import FEATURES
from fidtool.measure import Measurer
from fidtool.needs import SetNeeds
from fidtool.session import Session
from fidtool.sets import Sets
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.gaussian import MeanCovariance, without
from fidtool.statistics.measured import MeasuredSet
from fidtool.statistics.store import Statistics


class Examination:
    """Looks at sets, one FAKE after the other. Made and used on all ranks alike; what it sees is on rank zero.

    Args:
        session: the run.
        sets: its sets.
        measurer: what measures images; None where there are none.
        features: what is known of the features.
        title: what their Fréchet distance is called.
    """

    def __init__(
        self, session: Session, sets: Sets, measurer: Measurer | None, features: FeatureSettings, title: str
    ) -> None:
        self._session, self._world = session, session.world
        self._sets, self._measurer = sets, measurer
        self._ddof, self._title = features.ddof, title
        self._gaussian_of = partial(features.gaussian, world=session.world)
        self._real: SetInspection | None = None
        self._fake: SetInspection | None = None

    @property
    def seen(self) -> tuple[SetInspection | None, SetInspection | None]:
        """What was seen of REAL and of the last FAKE, on rank zero."""
        return self._real, self._fake

    def of(self, real: MeasuredSet, fake: MeasuredSet, scores: Mapping[str, float]) -> Diagnosis | None:
        """What there is to say of a FAKE and REAL; None where nobody asked. A collective.

        Raises:
            FidtoolError: an image cannot be read, a rank was lost.
        """
        if not self._session.config.diagnose:
            return None
        with self._session.clock("diagnosis"):
            many = self._world.on_rank_zero(lambda: self._look(real, fake))
            whole = scores.get("fid")
            less = self._without_copies(real, fake) if many and whole is not None else None
            effect = None if whole is None or less is None else CopiesEffect(self._title, whole, less)
            return self._world.on_rank_zero(
                lambda: diagnosis_of(self._real, self._fake, effect, self._session.config.max_duplicates)
            )

    def _look(self, real: MeasuredSet, fake: MeasuredSet) -> bool:
        """Sees the two sets, and says whether FAKE has so many copies that the distance without them is of interest."""
        if self._real is None:
            self._real = inspect_set(real.path, _statistics(real).pictures, self._sets.passed_over(real.path))
        same = fake.path == real.path
        if same:
            self._fake = self._real
        else:
            self._fake = inspect_set(fake.path, _statistics(fake).pictures, self._sets.passed_over(fake.path))
        return self._fake is not None and not same and self._fake.has_notable_copies(self._real)

    def _without_copies(self, real: MeasuredSet, fake: MeasuredSet) -> float | None:
        """From the features, where they were kept; else the fewer of the copies and the others are measured again."""
        if FEATURES in fake.features:
            return self._world.on_rank_zero(lambda: self._distance(real, self._kept_originals(fake)))
        if self._measurer is None or not self._sets.can_be_read_again(fake.path):
            return None
        part = self._measurer.measure(None, fake.path, self._fewer(fake.path), SetNeeds())
        return self._world.on_rank_zero(lambda: self._distance(real, self._originals(fake, part)))

    def _kept_originals(self, fake: MeasuredSet) -> MeanCovariance:
        assert self._fake is not None
        return self._gaussian_of(fake.features[FEATURES], np.flatnonzero(self._fake.copies.originals))

    def _fewer(self, path: str) -> ImageSet | None:
        """The images to measure again, on rank zero."""
        images = self._sets.images(path)
        if images is None or self._fake is None:
            return None
        wanted = self._measured_again()
        names = {self._fake.pictures.names[int(index)] for index in np.flatnonzero(wanted)}
        self._session.console.say(f"{path}: {len(names)} images once more, for the {self._title} without copies")
        return images.only(names)

    def _measured_again(self) -> NDArray[np.bool_]:
        assert self._fake is not None
        originals = self._fake.copies.originals
        return originals if originals.mean() <= 0.5 else ~originals

    def _originals(self, fake: MeasuredSet, part: MeasuredSet) -> MeanCovariance:
        assert self._fake is not None
        again = _gaussian(part)
        if bool(self._measured_again()[0]):  # the first image is no copy of an earlier one
            return again
        return without(_gaussian(fake), again, self._ddof)

    def _distance(self, real: MeasuredSet, originals: MeanCovariance) -> float:
        target = _gaussian(real)
        return frechet_distance(
            target.mu,
            target.sigma,
            originals.mu,
            originals.sigma,
            count1=target.count or None,
            count2=originals.count,
        )


def _statistics(measured: MeasuredSet) -> Statistics:
    """On rank zero."""
    assert measured.statistics is not None
    return measured.statistics


def _gaussian(measured: MeasuredSet) -> MeanCovariance:
    statistics = _statistics(measured)
    return MeanCovariance(statistics.mu, statistics.sigma, statistics.count or 0)
