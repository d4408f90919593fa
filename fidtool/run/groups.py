"""The groups of the images of REAL and the FAKEs, their classes or folders, as they are known
before a run.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, ResultWarning, option, prefix_errors
from fidtool.names import format_count, shorten
from fidtool.run.sets import FAKE, REAL, Contents, Role, SetContent, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import (
    Numbered,
    canonical_order,
    check_name_order,
    split_common_folder,
)
from fidtool.sources.labels import LABEL_NAMES, NO_LABELS, Labels, are_numbers
from fidtool.sources.texts import Texts, read_texts
from fidtool.statistics.set_statistics import Statistics

# A folder of the first images, of the next ones and so on, as StyleGAN's tool makes them; an
# archive.
_NO_CLASS = re.compile(r"\d{5,}|.+\.(tar|tgz|zip)(\.\w+)?")

Rows = NDArray[np.int64]
Groups = Mapping[str, Sequence[Rows]]
"""Rows of the images of each group in the features of REAL and a FAKE."""


class ClassMatch(NamedTuple):
    """REAL's name of each class of a FAKE that has another one, and what is assumed for this; empty
    if nothing is.
    """

    names: Mapping[str, str]
    assumed: str = ""


def add_groups(
    contents: Contents, settings: Settings
) -> tuple[dict[SetPlan, SetContent], list[ResultWarning]]:
    """Return REAL and the FAKEs with the groups of their images, and warnings about classes that
    were matched by number. Images are only read where their labels are in the same items.

    Raises:
        InputError: if the labels are of no set, or of another number of images; if values of each
            group are requested, but REAL and a FAKE have none in common.
    """
    given, shared = _read_settings(settings)
    labelled = {}
    are_named = False
    for set_plan, content in contents.items():
        if {REAL, FAKE}.isdisjoint(set_plan.roles):  # the held-out set has no groups
            labelled[set_plan] = NO_LABELS
            continue
        texts = given.get(REAL if REAL in set_plan.roles else FAKE)
        if texts is not None:
            labelled[set_plan] = _take_labels(texts, set_plan, content)
            continue
        labelled[set_plan] = _find_labels(content, settings)
        named = None
        if shared is not None and _may_name(shared, content, labelled[set_plan]):
            named = _match_texts(shared, set_plan, content)
        if named is not None:
            labelled[set_plan] = Labels(named)
            are_named = True
    if shared is not None and not are_named:
        paths = " or ".join(set_plan.path for set_plan in contents)
        raise InputError(f"{shared.named_setting} does not match the images in {paths}")
    return _match_groups(contents, labelled, settings, bool(given))


def _read_settings(settings: Settings) -> tuple[dict[Role, Texts], Texts | None]:
    """Return the labels that are passed for REAL and for the FAKEs, or else those of the sets
    whose images they name.
    """
    given: dict[Role, Texts] = {}
    if settings.per_folder:
        return given, None
    for role, setting in ((REAL, "labels"), (FAKE, "labels_fake")):
        value = getattr(settings, setting)
        if isinstance(value, (str, os.PathLike)):
            given[role] = read_texts(os.fspath(value), setting, "label", LABEL_NAMES)
        elif value is not None:
            given[role] = Texts("", setting, "label", {}, tuple(value))
    if REAL in given and given[REAL].place and FAKE not in given:
        return {}, given[REAL]
    return given, None


def _may_name(texts: Texts, content: SetContent, known: Labels) -> bool:
    """Whether a file may be of a set, for which it was not passed: one without paths only if the
    classes are not known otherwise, and it has as many lines as the set has images.
    """
    if not texts.listed:
        return True
    images = content.images
    return not known.of_images and images is not None and len(images.stored) == len(texts.listed)


def _take_labels(texts: Texts, set_plan: SetPlan, content: SetContent) -> Labels:
    """The labels that are passed for a set. An InputError if they are not of its images."""
    labels = _match_texts(texts, set_plan, content)
    if labels is not None:
        return Labels(labels)
    raise InputError(
        f"{texts.named_setting} does not match the images in {set_plan.path}:",
        "write the paths of the images relative to their folder",
        "write one label per line, in the order of the images",
    )


def _match_texts(texts: Texts, set_plan: SetPlan, content: SetContent) -> list[str] | None:
    """The label of each image in stored order, or of each row of a statistics file; None if they
    name none of the images.
    """
    path = set_plan.path
    images = content.images
    file = content.file
    if images is not None:
        count = len(images.stored)
        numbers = range(count)
        if texts.listed and images.lines is not None:  # a list is the user's own order
            numbers = np.argsort(np.argsort(images.lines)).tolist()
        elif texts.listed:
            check_name_order(
                f"{texts.named_setting} has no paths",
                path,
                images.stored,
                "pass a table with a column named path",
            )
        return texts.for_images(path, images.prefix, images.stored, numbers, count)
    if not texts.listed:
        if file is None or file.pictures is None:
            return None
        names = file.pictures.names
        return texts.for_images(path, file.pictures.prefix, names, range(len(names)), len(names))
    count = content.size or len(texts.listed)  # an iterable's is only known at its end
    rows = Numbered(count)
    if file is not None and file.order is not None:
        found = max(file.found or 0, int(file.order.max()) + 1)
        return texts.for_images(path, path, rows, file.order.tolist(), found)
    return texts.for_images(path, path, rows, range(count), count)


def _find_labels(content: SetContent, settings: Settings) -> Labels:
    """The labels that are stored with the images of a set, or else their folders."""
    images = content.images
    names: Sequence[str] = ()
    if images is not None:
        names = images.stored
    elif content.file is not None and content.file.pictures is not None:
        names = content.file.pictures.names
    if images is not None and not settings.per_folder:
        with prefix_errors(images.path):
            stored = images.reader.read_labels(images.numbers(), settings.per_class)
        if stored.of_images:
            return stored
    return Labels(list_folders(names, settings.per_folder))


def _match_groups(
    contents: Contents,
    labelled: Mapping[SetPlan, Labels],
    settings: Settings,
    are_passed: bool,
) -> tuple[dict[SetPlan, SetContent], list[ResultWarning]]:
    """The sets with the groups of their images by REAL's names, see `add_groups`."""
    real = next(iter(labelled))
    grouped = {}
    warnings = []
    for set_plan, labels in labelled.items():
        groups = labels.of_images
        if FAKE in set_plan.roles and (settings.grouped_by or are_passed):
            match = match_classes(labelled[real], labels, not settings.per_folder)
            if match is None and not settings.grouped_by:
                match = ClassMatch({})
            if match is None:
                raise _refuse_groups(real, labelled[real], set_plan, labels, settings)
            groups = [match.names.get(group, group) for group in groups]
            if match.assumed:
                warnings.append(ResultWarning(set_plan.path, match.assumed, "medium"))
        grouped[set_plan] = contents[set_plan]._replace(groups=groups)
    return grouped, warnings


def match_classes(real: Labels, fake: Labels, by_number: bool = True) -> ClassMatch | None:
    """Return how the classes of a FAKE are those of REAL; None if they have none in common.

    Integers are compared as numbers. With ``by_number``, integers of one set are the numbers of the
    names in the other: in the order that its source states, or in sorted order if both sets have
    the same number of classes and the integers begin at 0.
    """
    of_real = {*real.of_images} - {""}
    of_fake = {*fake.of_images} - {""}
    names: dict[str, str] = {}
    assumed = ""
    if not by_number or not of_real or not of_fake:
        pass
    elif are_numbers(of_real | of_fake):
        names = _match_integers(of_real, of_fake)
    elif of_real.isdisjoint(of_fake) and are_numbers(of_fake):
        names = _name_integers(of_fake, of_real, real.classes)
        assumed = _describe_match(names, real.classes)
    elif of_real.isdisjoint(of_fake) and are_numbers(of_real):
        numbered = _name_integers(of_real, of_fake, fake.classes)
        names = {name: number for number, name in numbered.items()}
        assumed = _describe_match(numbered, fake.classes)
    if of_real.isdisjoint(names.get(name, name) for name in of_fake):
        return None
    return ClassMatch(names, assumed)


def _match_integers(of_real: Collection[str], of_fake: Collection[str]) -> dict[str, str]:
    """REAL's spelling of each integer of a FAKE, such as 007 of 7; empty if one has two of them."""
    spelled = {int(name): name for name in of_real}
    if len(spelled) < len(of_real) or len({*map(int, of_fake)}) < len(of_fake):
        return {}
    return {name: spelled.get(int(name), name) for name in of_fake}


def _name_integers(
    numbers: Collection[str], names: Collection[str], stated: Sequence[str]
) -> dict[str, str]:
    """The name of each class by its number, see `match_classes`; empty if it is not known."""
    order = stated or sorted(names)
    used = {*map(int, numbers)}
    if max(used) >= len(order) or not (stated or len(used) == len(order)):
        return {}
    return {number: order[int(number)] for number in sorted(numbers, key=int)}


def _describe_match(names: Mapping[str, str], stated: Sequence[str]) -> str:
    pairs = [f"{number} is {name}" for number, name in names.items()]
    order = "the order that its dataset states" if stated else "sorted order"
    return (
        f"its classes and REAL's are matched by number, with the names in {order}: "
        f"{', '.join(dict.fromkeys(pairs[:1] + pairs[-1:]))}"
    )


def _refuse_groups(
    real: SetPlan, of_real: Labels, fake: SetPlan, of_fake: Labels, settings: Settings
) -> InputError:
    kind = settings.grouped_by
    refused = InputError(
        f"{option(f'per_{kind}', True)} compares images whose folder or label has the same name in "
        f"both sets, but {real.path} has {_describe(of_real, kind)}, and {fake.path} has "
        f"{_describe(of_fake, kind)}:",
        f"put the images of each {kind} into folders of the same name in both sets",
    )
    if settings.per_class:
        refused.advise(f"pass {option('labels_fake' if of_real.of_images else 'labels', ...)}")
    return refused


def _describe(labels: Labels, kind: str) -> str:
    names = sorted({*labels.of_images} - {""})
    if not names:
        return "none"
    return f"{shorten(', '.join(names))} ({format_count(len(names), kind)})"


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


def _check_stream(set_plan: SetPlan, measured: Statistics, labels: Sequence[str]) -> None:
    """Refuse labels of another number of images than an iterable turned out to have. With ``num``,
    the others are of images that were not drawn.
    """
    images = (measured.count or 0) + len(measured.skipped)
    drawn = set_plan.sampling.num
    expected = len(labels) if drawn is None else min(drawn, len(labels))
    if images != expected:
        setting = "labels" if REAL in set_plan.roles else "labels_fake"
        raise InputError(
            f"{option(setting)} has {format_count(len(labels), 'label')}, but {set_plan.path} has "
            f"{format_count(images, 'image')}"
        )


def group_rows(sets: Iterable[tuple[SetPlan, SetContent, Statistics]], seed: int) -> Groups:
    """Return the rows of the images of each group in the features of two sets; none if the groups
    are not known.

    They are in the canonical order of a set that has no other images, by which subsets are drawn,
    if the stored order is that of names and no image was skipped.
    """
    sides = []
    for set_plan, content, measured in sets:
        groups = content.groups
        order = measured.order
        if not groups:
            return {}
        if content.images is not None:
            order = content.images.drop_skipped(measured.skipped).numbers()
        if content.holds == "stream":
            _check_stream(set_plan, measured, groups)
            if order is None:
                return {}
        if order is not None and content.holds != "statistics":
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
