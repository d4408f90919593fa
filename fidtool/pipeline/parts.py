"""Images that were added to a set after its statistics were computed."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fidtool.errors import InputError
from fidtool.names import counted
from fidtool.sources.image_set import ImageSet, SetPart
from fidtool.statistics.merging import Facts, known_facts, refuse_other
from fidtool.statistics.set_statistics import Statistics

_AGAIN = "compute the statistics of all images again"
_CHECKED = 16
"""Number of images that are compared by their pixels although their files seem unchanged: the set may be another."""


class Located(NamedTuple):
    """Earlier statistics of a set, as those of a part of the set as it is now.

    ``doubtful`` are the images that may have changed, because their files have other sizes or mtimes or these are not
    known, and a few others. ``new`` are those that are not in the statistics; None if there are none.
    """

    known: Statistics
    doubtful: ImageSet
    new: ImageSet | None


def located(images: ImageSet, name: str, before: Statistics, facts: Facts) -> Located:
    """Finds the images of the statistics ``before``, which messages call ``name``, in a set.

    An InputError if the ``facts`` of this run are others, or some of the images are no longer there.
    """
    refuse_other(name, known_facts(name, before.whole(name)), "this run", facts)
    if (pictures := before.pictures) is None:
        raise InputError(f"{name} does not have the names of its images:", _AGAIN)
    where = {images.stored[number]: place for place, number in enumerate(images.order.tolist())}
    if gone := [each for each in pictures.names if each not in where]:
        raise InputError(f"{images.path} no longer has {counted(len(gone), 'image')} of {name} ({gone[0]}):", _AGAIN)
    places = np.array([where[each] for each in pictures.names], dtype=np.int64)
    stamps, whole = images.stamps(), images.digest()
    stamps = stamps[places] if len(stamps) else stamps
    same = (stamps == pictures.stamps).all(axis=1) if stamps.shape == pictures.stamps.shape else slice(0)
    doubtful = np.union1d(np.setdiff1d(places, places[same]), places[:_CHECKED])
    new = np.setdiff1d(np.arange(len(images)), places)
    parts = [SetPart(name, whole, len(images), of) for name, of in (("doubtful", doubtful), ("new", new))]
    known = replace(
        before,
        part=SetPart("known", whole, len(images), places),
        skipped=(),  # they are tried again
        found=len(images.stored),
        pictures=replace(pictures, prefix=images.prefix, stamps=stamps),
        order=None if before.order is None else images.numbers()[places],
    )
    return Located(known, images.restricted(parts[0]), images.restricted(parts[1]) if len(new) else None)


def refuse_changed(path: str, before: Statistics, now: Statistics, name: str) -> None:
    """Raises an InputError if images ``now`` have other pixels than ``before``, or cannot be read."""
    assert before.pictures is not None
    assert now.pictures is not None
    known = dict(zip(before.pictures.names, before.pictures.records["digest"].tolist(), strict=True))
    pairs = zip(now.pictures.names, now.pictures.records["digest"].tolist(), strict=True)
    if changed := [each for each, digest in pairs if known[each] != digest] + [bad.file for bad in now.skipped]:
        raise InputError(
            f"{counted(len(changed), 'image')} of {path} changed after {name} was computed ({changed[0]}):", _AGAIN
        )
