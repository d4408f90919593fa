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
from fidtool.names import shorten
from fidtool.run.sets import FAKE, SetContent, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.array_files import read_arrays
from fidtool.sources.image_set import ImageSet, canonical_order, split_common_folder
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import path_text

# Usual names of a column, or an array in a ``.npz``, of classes; the last is that of
# guided-diffusion's samples.
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
# A folder of the first images, of the next ones and so on, as StyleGAN's tool makes them; an
# archive.
_NO_CLASS = re.compile(r"\d{5,}|.+\.(tar|tgz|zip)(\.\w+)?")

Rows = NDArray[np.int64]
Groups = Mapping[str, Sequence[Rows]]
"""Rows of the images of each group in the features of REAL and a FAKE."""


def add_groups(
    contents: Mapping[SetPlan, SetContent], settings: Settings
) -> dict[SetPlan, SetContent]:
    """Return REAL and the FAKEs with the groups of their images. No image is read.

    Raises:
        InputError: if the labels are of no set; if values of each group are requested, but REAL and
            a FAKE have none in common.
    """
    place = None if settings.per_folder else path_text(settings.labels)
    texts = None if place is None else read_texts(place, "labels", "class", _NAMES)
    grouped = {}
    is_labelled = False
    for set_plan, content in contents.items():
        groups, has_labels = _find_groups(set_plan.path, content, settings, texts)
        is_labelled |= has_labels
        grouped[set_plan] = content._replace(groups=groups)
    if texts and not is_labelled:
        paths = " or ".join(set_plan.path for set_plan in contents)
        raise InputError(f"{option('labels', place)} is not of the images in {paths}")
    real = next(iter(grouped))
    for fake, content in grouped.items():
        known = grouped[real].groups
        if settings.grouped_by and FAKE in fake.roles and {*content.groups}.isdisjoint(known):
            setting = f"per_{settings.grouped_by}"
            refused = InputError(
                f"{option(setting, True)} compares folders of one name, or labels, but "
                f"{real.path} has {_shorten(known)}, and {fake.path} has "
                f"{_shorten(content.groups)}:",
                f"put the images of each {settings.grouped_by} into folders of one name in both "
                "sets",
            )
            if settings.per_class and place is None:
                refused.advise(f"pass {option('labels', ...)}")
            raise refused
    return grouped


def _shorten(groups: Sequence[str]) -> str:
    return shorten(", ".join(sorted({*groups}))) or "none"


def _find_groups(
    path: str, content: SetContent, settings: Settings, texts: Texts | None
) -> tuple[Sequence[str], bool]:
    """The groups of a set, as in `SetContent`, and whether ``texts`` has them; without paths, if
    nothing else has.
    """
    images = content.images
    if images is not None:
        prefix = images.prefix
        names = images.stored
    elif content.file is not None and content.file.pictures is not None:
        prefix = content.file.pictures.prefix
        names = content.file.pictures.names
    else:
        return [], False
    groups = []
    if images is not None and not settings.per_folder:
        groups = read_stored_classes(images)
    groups = groups or list_folders(names, settings.per_folder)
    if texts is None:
        return groups, False
    if texts.listed and (groups or images is None or len(texts.listed) != len(names)):
        return groups, False
    labels = texts.for_images(path, prefix, names, range(len(names)), len(names))
    return labels or groups, labels is not None


def list_folders(names: Sequence[str], whole: bool) -> list[str]:
    """Return the ``whole`` folder of each image, or its class, as of torchvision's
    ``ImageFolder``; empty if unknown.

    The class is the first folder below those that all images share, or the last of these. No image
    may be beside them.
    """
    folders = [name.rpartition("/")[0] for name in names]
    distinct = {*folders}
    if not any(distinct):
        return []
    if whole:
        return [folder or "." for folder in folders]
    # What the first and the last share, all share.
    shared, _ = split_common_folder([min(distinct), max(distinct)])
    classes = {folder: folder[len(shared) :].partition("/")[0] for folder in distinct}
    if "" in classes.values() or all(map(_NO_CLASS.fullmatch, classes.values())):
        return []
    return [classes[folder] for folder in folders]


def read_stored_classes(images: ImageSet) -> list[str]:
    """Return the class of each image in the ``.npz`` of a set, integers or strings; empty if it
    has none.
    """
    if "array" not in images.kind:
        return []
    for name, array in read_arrays(images.files).items():
        if name in _NAMES and array.shape == (len(images.stored),) and array.dtype.kind in "iuU":
            return [*map(str, array.read(images.files).tolist())]
    return []


def group_rows(sets: Iterable[tuple[SetContent, Statistics]], seed: int) -> Groups:
    """Return the rows of the images of each group in the features of two sets; none if the groups
    are not known.

    They are in the canonical order of a set that has no other images, by which subsets are drawn,
    if the stored order is that of names and no image was skipped.
    """
    sides = []
    for content, measured in sets:
        groups = content.groups
        order = measured.order
        if not groups:
            return {}
        if content.images is not None:
            order = content.images.drop_skipped(measured.skipped).numbers()
            groups = [groups[number] for number in order.tolist()]
        in_stored_order = range(len(groups)) if order is None else np.argsort(order).tolist()
        rows = defaultdict[str, list[int]](list)
        for row in in_stored_order:
            rows[groups[row]].append(row)
        side = {}
        for name, own in rows.items():
            side[name] = np.array(own)[canonical_order(len(own), seed)]
        sides.append(side)
    nothing = np.zeros(0, dtype=np.int64)
    names = sorted({*sides[0], *sides[1]})
    return {name: [side.get(name, nothing) for side in sides] for name in names}
