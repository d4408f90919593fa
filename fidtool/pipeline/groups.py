"""The groups of the images of REAL and the FAKEs, their classes or folders, as they are known before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.balance import listed
from fidtool.errors import InputError, option
from fidtool.pipeline.sets import Content, SetPlan
from fidtool.settings import Settings
from fidtool.sources.classes import Groups, classes_of_folders, folders_of, stored_classes
from fidtool.sources.image_set import Numbered, canonical_order
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import text_of

_COLUMNS = ("label", "labels", "class", "classname", "classid", "category", "target", "y")
"""Usual names of a column of classes, as `fidtool.names.folded`."""


def with_groups(drawn: Sequence[tuple[SetPlan, Content]], settings: Settings) -> list[tuple[SetPlan, Content]]:
    """Return REAL and the FAKEs with the groups of their images. No image is read.

    Raises:
        InputError: if the labels are of no set; if values of each group are requested, but the groups of a set are not
            known, or REAL and a FAKE have none in common.
    """
    place, used = text_of(settings.labels), list[str]()
    texts = None if place is None else read_texts(place, "labels", "class", _COLUMNS)
    known = {each: _groups_of(each.path, content, settings, texts, used) for each, content in dict(drawn).items()}
    if place is not None and not used:
        problem = f"{option('labels', place)} has no classes of the images in {' and '.join(one.path for one in known)}"
        raise InputError(problem, setting="labels")
    if settings.grouped_by:
        _check_common({each.path: groups for each, groups in known.items()}, settings.grouped_by)
    return [(each, content._replace(groups=known[each])) for each, content in drawn]


def _groups_of(path: str, content: Content, settings: Settings, texts: Texts | None, used: list[str]) -> Groups | None:
    """The groups of a set. Its path is added to ``used`` if it has them from ``texts``."""
    images, file = content.images, content.file
    if images is not None:
        prefix, names, places = images.prefix, images.stored, images.order
        numbers: Sequence[int] = places.tolist()
    elif file is not None and file.count:
        names = Numbered(file.count) if file.pictures is None else file.pictures.names
        prefix, places = path if file.pictures is None else file.pictures.prefix, np.arange(len(names))
        numbers = places.tolist() if file.order is None else file.order.tolist()
    else:
        return None
    if settings.per_folder:
        return folders_of(names)
    own = (images and stored_classes(images)) or classes_of_folders(names)
    if texts is None or (texts.listed and (own or len(texts.listed) != len(names))):
        return own  # a list without paths is of a set that has no classes of its own
    labels = texts.of(path, prefix, [names[place] for place in places], numbers, len(names))
    if labels is None:
        return own
    used.append(path)
    return Groups.of(labels, places, len(names))


def _check_common(known: Mapping[str, Groups | None], setting: str) -> None:
    """Refuse sets without groups, and a FAKE that has none in common with REAL, the first set."""
    what, named = ("class", "classes") if setting == "per_class" else ("subfolder", "subfolders"), option(setting, True)
    (real, first), *_ = known.items()
    for path, groups in known.items():
        if groups is None or first is None:
            remedies = ["pass folders with a subfolder for each"]
            remedies += [f"pass {option('labels', ...)}"] if setting == "per_class" else []
            problem = f"{named} needs the {what[1]} of the images, and {path} has none:"
            raise InputError(problem, *remedies, setting=setting)
        if not {*groups.names} & {*first.names}:
            both = f"{real} ({listed(sorted(first.names))}) and {path} ({listed(sorted(groups.names))})"
            raise InputError(f"{named} needs {what[1]} of the same names, and {both} have none", setting=setting)


class Group(NamedTuple):
    """A group of images, with their rows in the features of REAL and of a FAKE."""

    name: str
    real: NDArray[np.int64]
    fake: NDArray[np.int64]


def groups_of(contents: Sequence[Content], measured: Sequence[Statistics], settings: Settings) -> list[Group]:
    """Return the groups of REAL and a FAKE by name, also those in one of them; none if those of a set are not known."""
    pairs = [(content, content.groups, found) for content, found in zip(contents, measured, strict=True)]
    rows = [_rows_of(content, groups, found, settings.seed) for content, groups, found in pairs if groups]
    none = np.zeros(0, dtype=np.int64)
    names = sorted({*rows[0], *rows[1]}) if len(rows) == 2 else []
    return [Group(name, *(each.get(name, none) for each in rows)) for name in names]


def _rows_of(content: Content, groups: Groups, measured: Statistics, seed: int) -> dict[str, NDArray[np.int64]]:
    """The rows of each group, in the canonical order of a set that has no other images. Subsets are drawn from it."""
    codes, numbers = groups.codes, measured.order
    if content.images is not None:
        numbers = content.images.numbers(measured.skipped)
        codes = codes[numbers]
    rows = np.lexsort((np.arange(len(codes)) if numbers is None else numbers, codes))
    ends = np.searchsorted(codes[rows], np.arange(len(groups.names) + 1)).tolist()
    parts = zip(groups.names, pairwise(ends), strict=True)
    return {name: rows[start:end][canonical_order(end - start, seed)] for name, (start, end) in parts if start < end}
