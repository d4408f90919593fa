"""The groups of the images of REAL and the FAKEs, their classes or folders, as they are known before a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import listed
from fidtool.errors import InputError, option
from fidtool.pipeline.sets import Content, SetPlan
from fidtool.settings import Settings
from fidtool.sources.classes import classes_of_folders, folders_of, stored_classes
from fidtool.sources.image_set import Numbered, canonical_order
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import text_of

_COLUMNS = ("label", "labels", "class", "classname", "classid", "category", "target", "y")
"""Usual names of a column of classes, as `fidtool.names.folded`."""


def with_groups(contents: Mapping[SetPlan, Content], settings: Settings) -> dict[SetPlan, Content]:
    """Return REAL and the FAKEs with the groups of their images. No image is read.

    Raises:
        InputError: if the labels are of no set; if values of each group are requested, but those of a set are not
            known, or REAL and a FAKE have none in common.
    """
    place, used, found = text_of(settings.labels), list[str](), dict[SetPlan, Content]()
    texts = None if place is None else read_texts(place, "labels", "class", _COLUMNS)
    for each, content in contents.items():
        found[each] = content._replace(groups=_groups_of(each.path, content, settings, texts, used))
    if place is not None and not used:
        problem = f"{option('labels', place)} is not of the images in {' or '.join(each.path for each in found)}"
        raise InputError(problem, setting="labels")
    if settings.grouped_by:
        _check_common({each.path: content.groups for each, content in found.items()}, settings.grouped_by)
    return found


def _groups_of(
    path: str, content: Content, settings: Settings, texts: Texts | None, used: list[str]
) -> Sequence[str] | None:
    """The group of each image of a set, whose path is added to ``used`` if ``texts`` has them."""
    images, file = content.images, content.file
    if images is not None:
        prefix, names, numbers = images.prefix, images.stored, None
    elif file is not None and file.count:
        pictures, numbers = file.pictures, file.order
        prefix, names = (path, Numbered(file.count)) if pictures is None else (pictures.prefix, pictures.names)
    else:
        return None
    if settings.per_folder:
        return folders_of(names)
    own = (images and stored_classes(images)) or classes_of_folders(names)
    if texts is None or (texts.listed and (own or len(texts.listed) != len(names))):
        return own  # a list without paths is of a set that has no classes of its own
    labels = texts.of(path, prefix, names, range(len(names)) if numbers is None else numbers, len(names))
    used += [] if labels is None else [path]
    return own if labels is None else labels


def _check_common(known: Mapping[str, Sequence[str] | None], setting: str) -> None:
    """Refuse sets without groups, and a FAKE that has none in common with REAL, the first set."""
    what, named = {"per_class": "classes", "per_folder": "subfolders"}[setting], option(setting, True)
    (real, first), *_ = known.items()
    for path, groups in known.items():
        if first is None or groups is None:
            remedies = ["pass folders with subfolders", *[f"pass {option('labels', ...)}"] * (setting == "per_class")]
            raise InputError(f"{named} needs {what}, and {path} has none:", *remedies, setting=setting)
        if {*groups}.isdisjoint(first):
            both = f"{real} has {listed(sorted({*first}))}, and {path} has {listed(sorted({*groups}))}"
            raise InputError(f"{named} needs {what} of the same names, but {both}", setting=setting)


def rows_of_groups(content: Content, measured: Statistics, seed: int) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each group's images in the features of a set; none if the groups are not known.

    They are in the canonical order of a set that has no other images, by which subsets are drawn, if the stored order
    is that of names and no image was skipped.
    """
    if content.groups is None:
        return {}
    order = measured.order if content.images is None else content.images.numbers(measured.skipped)
    of_row = range(len(content.groups)) if content.images is None or order is None else order.tolist()
    rows = defaultdict[str, list[int]](list)
    for row in range(len(of_row)) if order is None else np.argsort(order).tolist():
        rows[content.groups[of_row[row]]].append(row)
    return {name: np.array(found)[canonical_order(len(found), seed)] for name, found in rows.items()}
