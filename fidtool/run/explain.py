"""What a result says about a value besides it: error bars, harmful images, what a page shows. On
rank 0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Diagnosis, SetInspection, describe_set
from fidtool.diagnose.duplicates import NOTABLE_SHARE, are_dependent
from fidtool.distances.error_bars import error_bars, fewest_images, fid_curve, interval
from fidtool.distances.exact import MAX_STEP, FeatureSettings
from fidtool.distances.frechet import distance_between, influence
from fidtool.distances.sampling_bias import expected_distance
from fidtool.features.protocol import FEATURES
from fidtool.names import format_count
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
from fidtool.run.sets import SetContent
from fidtool.settings.record import known_settings
from fidtool.statistics.set_statistics import MeasuredSet

Inspections = tuple[SetInspection | None, SetInspection | None]
"""Those of REAL and a FAKE; None without the diagnosis, or without records of the images."""

# Maximum numbers of images of one FAKE that a report shows: random ones, and those with their
# nearest real images.
_MAX_RANDOM = 48
_MAX_NEIGHBOURS = 24
_FRACTIONS = (0.005, 0.01, 0.02)
# Bounds on the number of most harmful images that are listed.
_MIN_LISTED = 20
_MAX_LISTED = 1000
# Relative error above which a first-order prediction is reported as rough.
_ROUGH_ERROR = 0.2
_SEPARATE_STATISTICS = (
    "its distance is computed from the mean and covariance in its file, not from its images"
)


def estimate_uncertainty(
    real: MeasuredSet,
    fake: MeasuredSet,
    diagnosis: Diagnosis,
    features: FeatureSettings,
    layer: str,
) -> tuple[Uncertainty, NDArray[np.float64] | None]:
    """The error bars of the distance of ``fake``, and the distances from which `difference`
    compares it with others.
    """
    dependent = _find_dependence(real, fake, diagnosis, layer)
    if dependent:
        return Uncertainty(None, None, dependent, ()), None
    target = real.gaussian(layer)
    rows = fake.features[layer]
    images, dims = rows.shape
    fewest = fewest_images(dims)
    if images < fewest:
        withheld = (
            f"at least {fewest} images are needed for features of {dims} dimensions, and there "
            f"are only {images}; a perfect generator would have about "
            f"{expected_distance(target, images):.3g}, the distance between samples of "
            f"{target.count or 'very many'} and {images} images from one distribution"
        )
        return Uncertainty(None, None, withheld, fid_curve(target, rows, features)), None
    parts, curve = error_bars(target, rows, features)
    corrected = Interval(*interval(parts))
    return Uncertainty(float(parts[0]) - corrected.value, corrected, "", curve), parts


def _find_dependence(real: MeasuredSet, fake: MeasuredSet, diagnosis: Diagnosis, layer: str) -> str:
    """Why the images of ``fake`` are not independent samples of a generator, or not known to be;
    empty if they are.
    """
    if fake.has_file_statistics:
        return _SEPARATE_STATISTICS
    images = len(fake.features[layer])
    copies = diagnosis.fake
    shared = diagnosis.shared
    if fake is real:
        reason = "this set is REAL itself"
        effect = "wrong"
    elif copies is None:
        reason = "its images were not checked for duplicates, which are not independent samples"
        effect = "wrong"
    elif are_dependent(copies, diagnosis.real):
        reason = f"{copies.copies} of {copies.images} images are duplicates of other images"
        effect = "much too narrow"
    elif shared is not None and shared.count >= NOTABLE_SHARE * images:
        reason = f"{shared.count} of {images} images are also in REAL"
        effect = "wrong"
    else:
        return ""
    return f"{reason}; the interval assumes independent samples and would be {effect}"


def estimate_influence(
    real: MeasuredSet, fake: MeasuredSet, distance: float, title: str, features: FeatureSettings
) -> Influence:
    """The images that raise the distance of ``fake``, which messages call ``title``."""
    target = real.gaussian()
    rows = fake.features[FEATURES]
    size, dims = rows.shape
    doubt = ""
    if fake is real:
        doubt = "this set is REAL itself"
    elif fake.has_file_statistics:
        doubt = _SEPARATE_STATISTICS
    elif size < 3 or target.count == 1:
        doubt = "at least 3 generated and 2 real images are needed"
    if doubt:
        return Influence((), (), (), doubt)
    everything = np.arange(size)
    values = influence(target, features.gaussian(rows, everything), rows, features)
    order = np.argsort(-values, kind="stable")
    # For a small set, several fractions give the same number of images.
    fractions = {max(1, round(part * size)): part for part in reversed(_FRACTIONS)}
    removals = []
    for count, part in sorted(fractions.items()):
        worst = order[:count]
        predicted = distance - float(values[worst].sum()) / (size - count)
        left = features.gaussian(rows, np.delete(everything, worst))
        removal = Removal(part, count, predicted, distance_between(target, left))
        error = abs(predicted - removal.distance)
        if not doubt and error > _ROUGH_ERROR * abs(removal.distance - distance):
            doubt = (
                f"without the {format_count(count, 'worst image')}, the effects predict an "
                f"{title} of {predicted:.6g}, but the {title} is {removal.distance:.6g}"
            )
        removals.append(removal)
    if size <= dims:
        doubt = f"there are only {size} images for {dims} dimensions"
    effects = values / (size - 1)
    listed = max(_MIN_LISTED, min(_MAX_LISTED, round(_FRACTIONS[-1] * size)))

    def name_images(images: NDArray[np.intp]) -> tuple[HarmfulImage, ...]:
        return tuple(
            HarmfulImage(_image_path(fake, image), float(effects[image]))
            for image in images.tolist()
        )

    return Influence(
        name_images(order[:listed]), name_images(order[::-1][:_MIN_LISTED]), tuple(removals), doubt
    )


def build_set_result(measured: MeasuredSet, content: SetContent) -> SetResult:
    """Return what a result states about a set."""
    statistics = measured.statistics
    features = measured.features.get(FEATURES)
    facts = SetResult(
        name=measured.path,
        count=statistics.count,
        found=statistics.found,
        passed_over=None if content.images is None else content.images.passed_over,
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


def _image_path(measured: MeasuredSet, image: int) -> str:
    """Path of an image, or the path of its set and its index if only its features are known."""
    pictures = measured.statistics.pictures
    return f"{measured.path}[{image}]" if pictures is None else pictures.file(image)


def build_exhibit(
    real: MeasuredSet,
    fake: MeasuredSet,
    inspections: Inspections,
    device: torch.device,
) -> Exhibit:
    """What a report shows of ``fake``: random images of both sets, and some of its own with the
    nearest real ones.
    """
    rows = fake.features.get(FEATURES)
    known = real.features.get(FEATURES)
    neighbours = []
    if rows is not None and known is not None and fake is not real:
        from fidtool.distances.neighbors import nearest_reals

        finest = FeatureSettings(MAX_STEP, device=device)
        nearest, distances = nearest_reals(known, rows[:_MAX_NEIGHBOURS], finest)
        pairs = zip(nearest.tolist(), distances.tolist(), strict=True)
        for image, (row, distance) in enumerate(pairs):
            neighbours.append(Neighbour(_image_path(fake, image), _image_path(real, row), distance))
    missing = [measured.path for measured in (real, fake) if FEATURES not in measured.features]
    inspection_of_real, inspection_of_fake = inspections
    return Exhibit(
        fake=None if inspection_of_fake is None else describe_set(inspection_of_fake),
        real=None if inspection_of_real is None else describe_set(inspection_of_real),
        random=_first_files(fake),
        neighbours=tuple(neighbours),
        random_real=_first_files(real),
        without_features=tuple(dict.fromkeys(missing)),
    )


def _first_files(measured: MeasuredSet) -> tuple[str, ...]:
    """Paths of random images; none if only their features are known."""
    pictures = measured.statistics.pictures
    if pictures is None:
        return ()
    return tuple(map(pictures.file, range(min(_MAX_RANDOM, len(pictures)))))
