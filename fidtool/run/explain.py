"""What a result says about a value besides it: error bars, harmful images, what a page shows. On
rank zero.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, health_of
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import error_bars, fewest_images, fid_curve, interval
from fidtool.distances.exact import FINEST_STEP, FeatureSettings
from fidtool.distances.frechet import distance_between, influence
from fidtool.distances.sampling_bias import perfect_distance
from fidtool.features.protocol import FEATURES
from fidtool.names import counted
from fidtool.result.evaluation import SetResult
from fidtool.result.explanations import (
    Exhibit,
    HarmfulImage,
    Influence,
    Interval,
    Neighbour,
    Removal,
    Uncertainty,
)
from fidtool.run.sets import Content
from fidtool.settings.record import known_settings
from fidtool.statistics.set_statistics import MeasuredSet

_MOST_RANDOM, _MOST_NEIGHBOURS = 48, 24
"""Maximum numbers of images of one FAKE that a report shows: random ones, and those with their
nearest real images.
"""
_FRACTIONS = (0.005, 0.01, 0.02)
_FEWEST, _MOST = 20, 1000
"""Bounds on the number of most harmful images that are listed."""
_ROUGH = 0.2
"""Relative error above which a first-order prediction is reported as rough."""
_APART = "its distance is that of the mean and covariance in its file, not of its images"


def uncertainty_of(
    real: MeasuredSet,
    fake: MeasuredSet,
    diagnosis: Diagnosis,
    features: FeatureSettings,
    layer: str,
) -> tuple[Uncertainty, NDArray[np.float64] | None]:
    """The error bars of the distance of ``fake``, and the distances from which `difference`
    compares it with others.
    """
    if dependent := _why_dependent(real, fake, diagnosis, layer):
        return Uncertainty(None, None, dependent, ()), None
    target, rows = real.gaussian(layer), fake.features[layer]
    images, dims = rows.shape
    if images < (fewest := fewest_images(dims)):
        needed = (
            f"at least {fewest} images are needed for features of {dims} dimensions, and there "
            f"are {images}"
        )
        about, sizes = (
            perfect_distance(target, images),
            f"{target.count or 'very many'} and {images} images",
        )
        perfect = (
            f"a perfect generator would have about {about:.3g}, as two samples of one "
            f"distribution have, of {sizes}"
        )
        curve = fid_curve(target, rows, features)
        return Uncertainty(None, None, f"{needed}; {perfect}", curve), None
    parts, curve = error_bars(target, rows, features)
    corrected = Interval(*interval(parts))
    return Uncertainty(float(parts[0]) - corrected.value, corrected, "", curve), parts


def _why_dependent(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis, layer: str) -> str:
    """Why the images of ``fake`` are not independent samples of a generator, or not known to be;
    empty if they are.
    """
    if fake.apart:
        return _APART
    images = len(fake.features[layer])
    copies, shared = diagnosis.fake, diagnosis.shared
    dependent = "; the interval assumes independent samples and would be"
    if fake is real:
        return f"this set is REAL itself{dependent} wrong"
    if copies is None:
        return (
            f"its images were not checked for duplicates, which are not independent{dependent} "
            "wrong"
        )
    if are_dependent(copies, diagnosis.real):
        return (
            f"{copies.copies} of {copies.images} images are duplicates of others{dependent} much "
            "too narrow"
        )
    if shared is not None and shared.count >= NOTABLE_SHARE * images:
        return f"{shared.count} of {images} images are also in REAL{dependent} wrong"
    return ""


def influence_of(
    real: MeasuredSet, fake: MeasuredSet, distance: float, title: str, features: FeatureSettings
) -> Influence:
    """The images that raise the distance of ``fake``, which messages call ``title``."""
    target, rows = real.gaussian(), fake.features[FEATURES]
    doubt = "this set is REAL itself" if fake is real else _APART if fake.apart else ""
    if not doubt and (len(rows) < 3 or target.count == 1):
        doubt = "at least 3 generated and 2 real images are needed"
    if doubt:
        return Influence((), (), (), doubt)
    size = len(rows)
    everything = np.arange(size)
    values = influence(target, features.gaussian(rows, everything), rows, features)
    order = np.argsort(-values, kind="stable")
    effects = values / (size - 1)
    named = max(_FEWEST, min(_MOST, round(_FRACTIONS[-1] * size)))
    # For a small set, several fractions give the same number of images.
    fractions = {max(1, round(part * size)): part for part in reversed(_FRACTIONS)}
    removals = []
    for count, part in sorted(fractions.items()):
        predicted = distance - float(values[order[:count]].sum()) / (size - count)
        left = features.gaussian(rows, np.delete(everything, order[:count]))
        removals.append(Removal(part, count, predicted, distance_between(target, left)))
    off = [
        part
        for part in removals
        if abs(part.predicted - part.distance) > _ROUGH * abs(part.distance - distance)
    ]
    if size <= rows.shape[1]:
        doubt = f"there are only {size} images for {rows.shape[1]} dimensions"
    elif off:
        doubt = (
            f"for the removal of the {counted(off[0].images, 'worst image')}, the effects predict "
            f"an {title} of {off[0].predicted:.6g}, but it is {off[0].distance:.6g}"
        )
    most, least = (
        tuple(HarmfulImage(_file(fake, image), float(effects[image])) for image in images.tolist())
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


def exhibit_of(
    real: MeasuredSet,
    fake: MeasuredSet,
    seen: tuple[SetInspection | None, SetInspection | None],
    device: torch.device,
) -> Exhibit:
    """What a report shows of ``fake``: random images of both sets, and some of its own with the
    nearest real ones.
    """
    of_real, of_fake = (None if own is None else health_of(own) for own in seen)
    rows, known = fake.features.get(FEATURES), real.features.get(FEATURES)
    neighbours: list[Neighbour] = []
    if rows is not None and known is not None and fake is not real:
        from fidtool.distances.neighbors import nearest_reals

        finest = FeatureSettings(FINEST_STEP, device=device)
        nearest, distances = nearest_reals(known, rows[:_MOST_NEIGHBOURS], finest)
        for image, (row, distance) in enumerate(
            zip(nearest.tolist(), distances.tolist(), strict=True)
        ):
            neighbours.append(Neighbour(_file(fake, image), _file(real, row), distance))
    return Exhibit(
        fake=of_fake,
        real=of_real,
        random=_first_files(fake),
        neighbours=tuple(neighbours),
        random_real=_first_files(real),
        without_features=tuple(
            dict.fromkeys(each.path for each in (real, fake) if FEATURES not in each.features)
        ),
    )


def _first_files(measured: MeasuredSet) -> tuple[str, ...]:
    """Paths of random images; none if only their features are known."""
    pictures = measured.statistics.pictures
    return (
        ()
        if pictures is None
        else tuple(map(pictures.file, range(min(_MOST_RANDOM, len(pictures)))))
    )
