"""The groups of a set's images: the classes that folders or an array beside the images name, or their folders."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.arrays import array_headers
from fidtool.sources.contents import explained
from fidtool.sources.image_set import ImageSet, split_common_folder

_ARRAYS = ("labels", "label", "classes", "class", "y", "arr_1")
"""Names of an array of labels in a ``.npz``; the last is that of the samples of guided-diffusion."""
_NO_CLASS = re.compile(r"\d{5,}|.*\.(tar|tgz|zip|tar\.\w+)")
"""Folders of the first images, of the next ones and so on, as StyleGAN's tool and img2dataset make them; archives."""


class Groups(NamedTuple):
    """Names of groups, and the index of each image's group in them, int64 array of shape (images,)."""

    names: Sequence[str]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, labels: Iterable[str]) -> Groups:
        """Return the groups of images with the same label."""
        known: dict[str, int] = {}
        codes = [known.setdefault(label, len(known)) for label in labels]
        return cls([*known], np.array(codes, dtype=np.int64))


def folders_of(names: Sequence[str]) -> Groups | None:
    """Return the groups of images in the same folder; None if there are no folders."""
    found = Groups.of(posixpath.dirname(name) or "." for name in names)
    return None if found.names == ["."] else found


def classes_of_folders(names: Sequence[str]) -> Groups | None:
    """Return the classes of images in a folder for each, as torchvision's ``ImageFolder``; None if they are not.

    They are the first folders below the folder that all images share, or the latter if there are none. No image may
    be beside the folders. Numbers of five and more digits, and archives, are no classes.
    """
    if "/" not in names[0]:
        return None
    shared, _ = split_common_folder([min(names), max(names)])  # what these two share, all share
    firsts = [name[len(shared) :].partition("/")[:2] for name in names]
    below = {between for _, between in firsts}
    if len(below) > 1:
        return None
    found = Groups.of(first if between else shared.split("/")[-2] for first, between in firsts)
    return None if all(map(_NO_CLASS.fullmatch, found.names)) else found


def stored_classes(images: ImageSet) -> Groups | None:
    """Return the classes in the ``.npz`` of a set, integers or strings; None if it has none."""
    if "array" not in images.kind or len(images.files.paths) != 1:
        return None
    for name, array in array_headers(images.files).items():
        if name in _ARRAYS and array.shape == (len(images.stored),) and array.dtype.kind in "iuU":
            with explained(images.path), images.files.open(0) as handle, np.load(handle) as arrays:
                return Groups.of(map(str, arrays[name].tolist()))
    return None
