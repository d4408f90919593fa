"""The classes of a set's images: of the folders they are in, or in an array beside them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.arrays import array_headers
from fidtool.sources.contents import explained
from fidtool.sources.image_set import ImageSet, split_common_folder

_ARRAYS = ("labels", "label", "classes", "class", "y", "arr_1")
"""Names of an array of labels in a ``.npz``; the last is that of the samples of guided-diffusion."""
_NO_CLASSES = re.compile(r"\d{5,}|.*\.(tar|tgz|zip|tar\.\w+)")
"""Folders of the first images, of the next ones and so on, as StyleGAN's tool and img2dataset make them; archives."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of a set's images, such as their classes.

    Attributes:
        names: names of the groups, in the order in which they occur.
        codes: index in ``names`` of the group of each image, int64 array of shape (images,); -1 if it has none. Images
            are in stored order, those of a statistics file in the order of its rows.
    """

    names: tuple[str, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Iterable[str], places: NDArray[np.integer] | None = None, count: int = 0) -> Groups:
        """Return the groups of images by their labels, of all images or of those at some ``places`` among ``count``."""
        known: dict[str, int] = {}
        codes = np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
        if places is not None:
            found, codes = codes, np.full(count, -1)
            codes[places] = found
        return cls((*known,), codes)


def folders_of(names: Sequence[str]) -> Groups | None:
    """Return the groups of images by their whole folders; None if there are no folders."""
    folders = Groups.of(posixpath.dirname(name) or "." for name in names)
    return None if {*folders.names} <= {"."} else folders


def classes_of_folders(names: Sequence[str]) -> Groups | None:
    """Return the classes of images in folders of classes, torchvision's ``ImageFolder``; None if they are not.

    They are the first folders below the folder that all images share, or that folder if there are none. An image may
    not lie beside the folders. Numbers of five and more digits are no classes, nor are archives.
    """
    shared, _ = split_common_folder([min(names), max(names)])  # what these two share, all share
    if not shared and "/" not in names[0]:
        return None
    firsts = [name[len(shared) :].partition("/")[:2] for name in names]
    below = {between for _, between in firsts}
    if below == {""}:
        firsts = [(shared.split("/")[-2], "")] * len(names)
    elif "" in below:
        return None
    found = Groups.of(first for first, _ in firsts)
    return None if all(map(_NO_CLASSES.fullmatch, found.names)) else found


def stored_classes(images: ImageSet) -> Groups | None:
    """Return the classes in the ``.npz`` of a set, integers or strings; None if it has none."""
    if "array" not in images.kind or len(images.files.paths) != 1:
        return None
    for name, array in array_headers(images.files).items():
        if name in _ARRAYS and array.shape == (len(images.stored),) and array.dtype.kind in "iuU":
            with explained(images.path), images.files.open(0) as handle, np.load(handle) as arrays:
                return Groups.of(arrays[name].astype(str).tolist())
    return None
