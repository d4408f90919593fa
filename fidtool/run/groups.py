"""The groups of the images of REAL and the FAKEs, their classes or folders, as they are known
before a run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, option
from fidtool.names import shortened
from fidtool.run.sets import FAKE, Content, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.array_files import arrays_in
from fidtool.sources.image_set import ImageSet, canonical_order, split_common_folder
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import text_of

_NAMES = (
    "label",
    "labels",
    "class",
    "classes",
    "classname",
    "classid",
    "category",
    "target",
    "y",
    "arr_1",
)
"""Usual names of a column, or an array in a ``.npz``, of classes; the last is that of
guided-diffusion's samples.
"""
_NO_CLASS = re.compile(r"\d{5,}|.+\.(tar|tgz|zip)(\.\w+)?")
"""A folder of the first images, of the next ones and so on, as StyleGAN's tool makes them; an
archive.
"""

Groups = Mapping[str, Sequence[NDArray[np.int64]]]
"""Rows of the images of each group in the features of REAL and a FAKE."""


def with_groups(contents: Mapping[SetPlan, Content], settings: Settings) -> dict[SetPlan, Content]:
    """Return REAL and the FAKEs with the groups of their images. No image is read.

    Raises:
        InputError: if the labels are of no set; if values of each group are requested, but REAL and
            a FAKE have none in common.
    """
    place = None if settings.per_folder else text_of(settings.labels)
    texts = None if place is None else read_texts(place, "labels", "class", _NAMES)
    groups = {
        each: _groups_of(each.path, content, settings, texts) for each, content in contents.items()
    }
    if texts and not any(labelled for _, labelled in groups.values()):
        raise InputError(
            f"{option('labels', place)} is not of the images in "
            f"{' or '.join(each.path for each in contents)}",
            setting="labels",
        )
    (real, (known, _)), *_ = groups.items()
    for fake, (found, _) in groups.items():
        if settings.grouped_by and FAKE in fake.roles and {*found}.isdisjoint(known):
            names = [shortened(", ".join(sorted({*each}))) or "none" for each in (known, found)]
            setting, has = (
                f"per_{settings.grouped_by}",
                f"{real.path} has {names[0]}, and {fake.path} has {names[1]}",
            )
            refused = InputError(
                f"{option(setting, True)} compares folders of one name, or labels, but {has}:",
                f"put the images of each {settings.grouped_by} into folders of one name in both "
                "sets",
                setting=setting,
            )
            if settings.per_class and place is None:
                refused.advise(f"pass {option('labels', ...)}")
            raise refused
    return {each: content._replace(groups=groups[each][0]) for each, content in contents.items()}


def _groups_of(
    path: str, content: Content, settings: Settings, texts: Texts | None
) -> tuple[Sequence[str], bool]:
    """The groups of a set, as in `Content`, and whether ``texts`` has them; without paths, if
    nothing else has.
    """
    images, file = content.images, content.file
    if images is not None:
        prefix, names = images.prefix, images.stored
    elif file is not None and file.pictures is not None:
        prefix, names = file.pictures.prefix, file.pictures.names
    else:
        return (), False
    stored = stored_classes(images) if images and not settings.per_folder else []
    own = stored or folders_of(names, settings.per_folder)
    if texts is None or (texts.listed and (own or not images or len(texts.listed) != len(names))):
        return own, False
    labels = texts.of(path, prefix, names, range(len(names)), len(names))
    return labels or own, labels is not None


def folders_of(names: Sequence[str], whole: bool) -> list[str]:
    """Return the ``whole`` folder of each image, or its class, as of torchvision's ``ImageFolder``;
    empty if unknown.

    The class is the first folder below those that all images share, or the last of these. No image
    may be beside them.
    """
    folders = [name.rpartition("/")[0] for name in names]
    groups = {each: each or "." for each in folders}
    if not any(groups):
        return []
    if not whole:
        start = len(
            split_common_folder([min(groups), max(groups)])[0]
        )  # what these two share, all share
        groups = {each: each[start:].partition("/")[0] for each in groups}
        if "" in groups.values() or all(map(_NO_CLASS.fullmatch, groups.values())):
            return []
    return [groups[each] for each in folders]


def stored_classes(images: ImageSet) -> list[str]:
    """Return the class of each image in the ``.npz`` of a set, integers or strings; empty if it has
    none.
    """
    for name, array in arrays_in(images.files).items() if "array" in images.kind else ():
        if name in _NAMES and array.shape == (len(images.stored),) and array.dtype.kind in "iuU":
            return [f"{label}" for label in array.read(images.files).tolist()]
    return []


def rows_of_groups(sets: Iterable[tuple[Content, Statistics]], seed: int) -> Groups:
    """Return the rows of the images of each group in the features of two sets; none if the groups
    are not known.

    They are in the canonical order of a set that has no other images, by which subsets are drawn,
    if the stored order is that of names and no image was skipped.
    """
    sides = list[dict[str, NDArray[np.int64]]]()
    for content, measured in sets:
        groups, order, rows = content.groups, measured.order, defaultdict[str, list[int]](list)
        if not groups:
            return {}
        if content.images is not None:
            order = content.images.without(measured.skipped).numbers()
            groups = [groups[number] for number in order.tolist()]
        for row in range(len(groups)) if order is None else np.argsort(order).tolist():
            rows[groups[row]].append(row)
        sides.append(
            {
                name: np.array(found)[canonical_order(len(found), seed)]
                for name, found in rows.items()
            }
        )
    names = sorted({*sides[0], *sides[1]})
    return {name: [side.get(name, np.zeros(0, dtype=np.int64)) for side in sides] for name in names}
