"""Error bars of a Fréchet distance, the images that raise it, and the images that a report shows; on rank zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, Health, SetInspection, health_of
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import error_bars, fewest_images, fid_curve
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.frechet import frechet_distance, influence
from fidtool.distances.jackknife import interval
from fidtool.distances.neighbors import nearest_rows
from fidtool.distributed.world import World
from fidtool.features.protocol import FEATURES
from fidtool.results import HarmfulImage, Influence, Removal, Uncertainty
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import MeasuredSet

MOST_RANDOM = 48
"""Maximum number of random images of one FAKE in a report."""
MOST_NEIGHBOURS = 24
"""Maximum number of images of one FAKE that a report shows with their nearest real images."""
_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Bounds on the number of most harmful images that are listed."""
_FEWEST_FOR_INFLUENCE = 3
"""Images of FAKE that an influence needs."""
_APART = "its distance is that of the mean and covariance in its file, not of its images"
_ROUGH = 0.2
"""Relative error above which a first-order prediction is reported as rough."""


@dataclass(frozen=True)
class Neighbour:
    """Paths of a generated image and its nearest real one, empty if only its features are known.

    ``distance`` is the Euclidean distance between their features.
    """

    fake: str
    real: str
    distance: float


@dataclass(frozen=True)
class Exhibit:
    """What a report can show of one FAKE and of REAL. On rank zero.

    Attributes:
        fake, real: properties of the sets; None if their images were not inspected.
        random: paths of the first images of FAKE in its pseudo-random order.
        neighbours: some images of FAKE, each with its nearest real one; empty if either set's features are unknown.
        curve: the distance as a function of the number of images, as in `Uncertainty`; empty if FAKE's features are
            unknown.
        random_real: as ``random``, of REAL.
        without_features: paths of the sets whose per-image features are unknown.
    """

    fake: Health | None
    real: Health | None
    random: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    curve: tuple[tuple[int, float], ...] = ()
    random_real: tuple[str, ...] = ()
    without_features: tuple[str, ...] = ()


def gaussian_of(measured: MeasuredSet, layer: str = FEATURES) -> Gaussian:
    """Mean, covariance and number of images of a set."""
    assert measured.statistics is not None
    of_layer = measured.statistics.layers[layer]
    return Gaussian(of_layer.mu, of_layer.sigma, measured.statistics.count)


def uncertainty_of(
    real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis, features: FeatureSettings, world: World
) -> tuple[Uncertainty, NDArray[np.float64] | None]:
    """The error bars of the distance of ``fake``, and the distances from which `difference` compares it with others."""
    if withheld := _why_withheld(real, fake, diagnosis):
        curve = () if fake.apart else fid_curve(gaussian_of(real), fake.features[FEATURES], features, world)
        return Uncertainty(None, None, withheld, curve), None
    parts, curve = error_bars(gaussian_of(real), fake.features[FEATURES], features, world)
    corrected = interval(parts)
    return Uncertainty(float(parts[0]) - corrected.value, corrected, "", curve), parts


def _why_withheld(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis) -> str:
    if fake.apart:
        return _APART
    images, dims = fake.features[FEATURES].shape
    if images < (fewest := fewest_images(dims)):
        return f"at least {fewest} images are needed for features of {dims} dimensions, and there are {images}"
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


def influence_of(
    real: MeasuredSet, fake: MeasuredSet, distance: float, title: str, features: FeatureSettings, world: World
) -> Influence:
    """The images that raise the distance of ``fake``, which messages call ``title``."""
    target, rows = gaussian_of(real), fake.features[FEATURES]
    if fake is real:
        return Influence((), (), (), "this set is REAL itself")
    if fake.apart:
        return Influence((), (), (), _APART)
    if len(rows) < _FEWEST_FOR_INFLUENCE or target.count == 1:
        doubt = f"at least {_FEWEST_FOR_INFLUENCE} generated and 2 real images are needed"
        return Influence((), (), (), doubt)
    everything = np.arange(len(rows))
    values = influence(target, features.gaussian(rows, everything, world), rows, world, features.device)
    order = np.argsort(-values, kind="stable")
    effects = values / (len(values) - 1)
    named = min(len(values), max(_FEWEST, min(_MOST, round(_FRACTIONS[-1] * len(values)))))
    # For a small set, several fractions give the same number of images.
    fractions = {max(1, round(part * len(values))): part for part in reversed(_FRACTIONS)}
    removals, mu, sigma = [], target.mu, target.sigma
    for count, part in sorted(fractions.items()):
        predicted = distance - float(values[order[:count]].sum()) / (len(values) - count)
        left = features.gaussian(rows, np.delete(everything, order[:count]), world)
        computed = frechet_distance(mu, sigma, left.mu, left.sigma, count1=target.count, count2=left.count)
        removals.append(Removal(part, count, predicted, computed))
    off = [part for part in removals if abs(part.predicted - part.distance) > _ROUGH * abs(part.distance - distance)]
    doubt = ""
    if len(rows) <= rows.shape[1]:
        doubt = f"there are only {len(rows)} images for {rows.shape[1]} dimensions"
    elif off:
        doubt = (
            f"for the removal of the {off[0].images} worst images, the effects predict an {title} of "
            f"{off[0].predicted:.6g}, but it is {off[0].distance:.6g}"
        )
    most, least = (
        tuple(HarmfulImage(_file(fake, int(image)), float(effects[image])) for image in images)
        for images in (order[:named], order[::-1][:_FEWEST])
    )
    return Influence(most, least, tuple(removals), doubt)


def _file(measured: MeasuredSet, image: int) -> str:
    """Path of an image, or the path of its set and its index if only its features are known."""
    assert measured.statistics is not None
    pictures = measured.statistics.pictures
    return f"{measured.path}[{image}]" if pictures is None else pictures.file(image)


def exhibit_of(
    real: MeasuredSet,
    fake: MeasuredSet,
    seen: tuple[SetInspection | None, SetInspection | None],
    with_curve: bool,
    features: FeatureSettings,
    world: World,
) -> Exhibit:
    """What a report shows of ``fake``."""
    healths, random = [], []
    for measured, own, other in zip((fake, real), seen[::-1], seen, strict=True):
        assert measured.statistics is not None
        skipped, pictures = measured.statistics.skipped, measured.statistics.pictures
        healths.append(None if own is None else health_of(own, skipped, other, generated=measured is fake))
        random.append(tuple(map(pictures.file, range(min(MOST_RANDOM, len(pictures))))) if pictures else ())
    rows, known = fake.features.get(FEATURES), real.features.get(FEATURES)
    neighbours: list[Neighbour] = []
    if rows is not None and known is not None and fake is not real:
        nearest, distances = nearest_rows(rows[:MOST_NEIGHBOURS], known, features.device)
        for image, (row, distance) in enumerate(zip(nearest.tolist(), distances.tolist(), strict=True)):
            neighbours.append(Neighbour(_file(fake, image), _file(real, row), distance))
    curve: tuple[tuple[int, float], ...] = ()
    if with_curve and rows is not None and not fake.apart:
        curve = fid_curve(gaussian_of(real), rows, features, world)
    return Exhibit(
        fake=healths[0],
        real=healths[1],
        random=random[0],
        neighbours=tuple(neighbours),
        random_real=random[1],
        without_features=tuple({each.path: None for each in (real, fake) if FEATURES not in each.features}),
        curve=curve,
    )
