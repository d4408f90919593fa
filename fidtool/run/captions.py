"""The captions of the images of each FAKE: found before any image is decoded, and given to the
metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fidtool.errors import InputError, option
from fidtool.names import counted
from fidtool.run.sets import FAKE, Content, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import Numbered, check_numbers
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics

_COLUMNS = ("caption", "text", "prompt", "captions", "description")


def with_captions(
    contents: Mapping[SetPlan, Content], settings: Settings
) -> dict[SetPlan, Content]:
    """Returns what the sets hold, with the captions of the FAKEs if a metric needs them. An
    InputError if some lack.
    """
    asking, given = (
        [each.metric for each in settings.chosen if each.metric.captions],
        settings.captions,
    )
    if not asking:
        return dict(contents)
    if given is None:
        raise InputError(
            f"{asking[0].numbers[0].title} needs the captions of the images:",
            f"pass {option('captions', ...)}",
            setting="captions",
        )
    what = "captions", "caption"
    texts = (
        Texts("", *what, {}, given)
        if isinstance(given, tuple)
        else read_texts(f"{given}", *what, _COLUMNS)
    )
    return {
        planned: content._replace(captions=_found(planned, content, texts))
        if FAKE in planned.roles
        else content
        for planned, content in contents.items()
    }


def _found(planned: SetPlan, content: Content, texts: Texts) -> dict[int, str]:
    """The captions by the numbers of the images in stored order."""
    path, images, named = planned.path, content.images, option("captions", texts.place or None)
    if images is None and (content.file is not None or not texts.listed):
        raise InputError(
            f"{named} is for images with paths, which {path} does not have:",
            "pass the images instead" if content.file else "pass a list in the order of the images",
            setting="captions",
        )
    if images is None:
        count = planned.sampling.num or len(texts.listed)
        return dict(enumerate(texts.of(path, path, Numbered(count), range(count), count) or ()))
    positions = images.order
    if images.lines is None and texts.listed:
        check_numbers(f"{named} has no paths", path, images.stored, "captions", "add a column path")
    elif images.lines is not None:  # of a list of paths, the order is that of its lines
        positions = np.argsort(np.argsort(images.lines))[positions]
    names = [images.stored[number] for number in images.order]
    if (found := texts.of(path, images.prefix, names, positions, len(images.stored))) is None:
        raise InputError(
            f"{named} names no image of {path}, such as {images.file(0)}", setting="captions"
        )
    return dict(zip(images.order.tolist(), found, strict=True))


def captions_of(planned: SetPlan, content: Content, statistics: Statistics) -> Sequence[str] | None:
    """Returns the captions in the order of the features; None without features. An InputError if
    the numbers differ.
    """
    if statistics.order is None:
        return None
    images = len(statistics.order) + len(statistics.skipped)
    if planned.holds == "stream" and images != len(content.captions):
        problem = (
            f"{option('captions')} has {counted(len(content.captions), 'caption')}, but "
            f"{planned.path}"
        )
        raise InputError(f"{problem} has {counted(images, 'image')}", setting="captions")
    return [content.captions[number] for number in statistics.order.tolist()]
