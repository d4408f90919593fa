"""Images that were added to a set after its statistics were computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fidtool.errors import InputError
from fidtool.names import format_count
from fidtool.sources.image_set import ImageSet, SetPart
from fidtool.statistics.merging import Facts, check_same_run, describe_statistics
from fidtool.statistics.set_statistics import Statistics

_COMPUTE_AGAIN = "compute the statistics of all images again"
# Number of images that are compared by their pixels although their files seem unchanged: the set
# may be another.
_CHECKED_IMAGES = 16


def locate_images(
    images: ImageSet, name: str, before: Statistics, facts: Facts
) -> tuple[Statistics, ImageSet, ImageSet]:
    """Find the images of the statistics ``before``, which messages call ``name``, in a set.

    Returns:
        The earlier statistics, as those of a part of the set as it is now; the images that may have
        changed, because their files have other sizes or mtimes or these are not known, and a few
        others; the images that are not in the statistics.

    Raises:
        InputError: if the ``facts`` of this run are others, or some of the images are no longer
            there.
    """
    check_same_run(name, describe_statistics(name, before.whole(name)), "this run", facts)
    pictures = before.pictures
    if pictures is None:
        raise InputError(f"{name} does not have the names of its images:", _COMPUTE_AGAIN)
    where = {images.stored[number]: place for place, number in enumerate(images.order.tolist())}
    gone = [image for image in pictures.names if image not in where]
    if gone:
        raise InputError(
            f"{images.path} no longer has {format_count(len(gone), 'image')} of {name} "
            f"({gone[0]}):",
            _COMPUTE_AGAIN,
        )
    places = np.array([where[image] for image in pictures.names], dtype=np.int64)
    doubtful = places
    stamps = images.stamps()
    if len(stamps):
        stamps = stamps[places]
        if stamps.shape == pictures.stamps.shape:
            differ = (stamps != pictures.stamps).any(axis=1)
            doubtful = np.union1d(places[differ], places[:_CHECKED_IMAGES])
    new = np.setdiff1d(np.arange(len(images)), places)
    part = SetPart("known", images.digest(), len(images), places)
    known = replace(
        before,
        part=part,
        skipped=(),  # they are tried again
        found=len(images.stored),
        pictures=replace(pictures, prefix=images.prefix, stamps=stamps),
        order=None if before.order is None else images.numbers()[places],
    )
    return (
        known,
        images.take_part(replace(part, name="doubtful", places=np.sort(doubtful))),
        images.take_part(replace(part, name="new", places=new)),
    )


def refuse_changed(path: str, before: Statistics, now: Statistics, name: str) -> None:
    """Raise an InputError if images ``now`` have other pixels than ``before``, or cannot be
    read.
    """
    known = _digests_by_name(before)
    changed = [image for image, digest in _digests_by_name(now).items() if known[image] != digest]
    changed += [bad_file.file for bad_file in now.skipped]
    if changed:
        raise InputError(
            f"{format_count(len(changed), 'image')} of {path} changed after {name} was computed "
            f"({changed[0]}):",
            _COMPUTE_AGAIN,
        )


def _digests_by_name(statistics: Statistics) -> dict[str, bytes]:
    pictures = statistics.pictures
    assert pictures is not None
    return dict(zip(pictures.names, pictures.records["digest"].tolist(), strict=True))
