"""The captions of the images of each FAKE: found before any image is decoded, and given to the
metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fidtool.errors import InputError, option, prefix_errors
from fidtool.names import format_count
from fidtool.run.sets import FAKE, SetContent, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import Numbered, check_name_order
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics

_COLUMNS = ("caption", "text", "prompt", "captions", "description")


@prefix_errors(setting="captions")
def add_captions(
    contents: Mapping[SetPlan, SetContent], settings: Settings
) -> dict[SetPlan, SetContent]:
    """Return what the sets hold, with the captions of the FAKEs if a metric needs them. An
    InputError if some lack.
    """
    metrics = [
        requested.metric for requested in settings.selected_metrics if requested.metric.captions
    ]
    given = settings.captions
    if not metrics:
        return dict(contents)
    if given is None:
        raise InputError(
            f"{metrics[0].numbers[0].title} needs the captions of the images:",
            f"pass {option('captions', ...)}",
        )
    if isinstance(given, tuple):
        texts = Texts("", "captions", "caption", {}, given)
    else:
        texts = read_texts(f"{given}", "captions", "caption", _COLUMNS)
    captioned = {}
    for set_plan, content in contents.items():
        if FAKE in set_plan.roles:
            content = content._replace(captions=_find_captions(set_plan, content, texts))
        captioned[set_plan] = content
    return captioned


def _find_captions(set_plan: SetPlan, content: SetContent, texts: Texts) -> dict[int, str]:
    """The captions by the numbers of the images in stored order."""
    path = set_plan.path
    images = content.images
    setting = option("captions", texts.place or None)
    if images is None:
        remedy = "pass the captions as a list in the order of the images"
        if content.file is not None:
            remedy = "pass the images instead"
        if content.file is not None or not texts.listed:
            raise InputError(
                f"{setting} is for images with paths, which {path} does not have:", remedy
            )
        count = set_plan.sampling.num or len(texts.listed)
        captions = texts.for_images(path, path, Numbered(count), range(count), count)
        return dict(enumerate(captions or ()))
    positions = images.order
    if images.lines is not None:  # of a list of paths, the order is that of its lines
        positions = np.argsort(np.argsort(images.lines))[positions]
    elif texts.listed:
        problem = f"{setting} has no paths"
        check_name_order(problem, path, images.stored, "add a column named path")
    names = [images.stored[number] for number in images.order]
    captions = texts.for_images(path, images.prefix, names, positions, len(images.stored))
    if captions is None:
        raise InputError(f"{setting} names no image in {path}, such as {images.file(0)}")
    return dict(zip(images.order.tolist(), captions, strict=True))


def order_captions(
    set_plan: SetPlan, content: SetContent, statistics: Statistics
) -> Sequence[str] | None:
    """Return the captions in the order of the features; None without features. An InputError if
    the numbers differ.
    """
    if statistics.order is None:
        return None
    captions = content.captions
    images = len(statistics.order) + len(statistics.skipped)
    if set_plan.holds == "stream" and images != len(captions):
        raise InputError(
            f"{option('captions')} has {format_count(len(captions), 'caption')}, but "
            f"{set_plan.path} has {format_count(images, 'image')}"
        )
    return [captions[number] for number in statistics.order.tolist()]
