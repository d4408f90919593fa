"""The classes that folders, or an array beside the images, name."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence

import numpy as np

from fidtool.sources.arrays import array_headers
from fidtool.sources.contents import explained
from fidtool.sources.image_set import ImageSet, split_common_folder

_ARRAYS = ("labels", "label", "classes", "class", "y", "arr_1")
"""Names of an array of labels in a ``.npz``; the last is that of the samples of guided-diffusion."""
_NO_CLASS = re.compile(r"\d{5,}|.*\.(tar|tgz|zip|tar\.\w+)")
"""Folders of the first images, of the next ones and so on, as StyleGAN's tool and img2dataset make them; archives."""


def folders_of(names: Sequence[str]) -> list[str] | None:
    """Return the whole folder of each image; None if there are no folders."""
    found = [sys.intern(posixpath.dirname(name) or ".") for name in names]
    return None if {*found} == {"."} else found


def classes_of_folders(names: Sequence[str]) -> list[str] | None:
    """Return the class of each image, as of torchvision's ``ImageFolder``; None if folders are no classes.

    It is the first folder below the folder that all images share, or the latter if there is none. No image may be
    beside the folders. Numbers of five and more digits, and archives, are no classes.
    """
    if "/" not in names[0]:
        return None
    shared, _ = split_common_folder([min(names), max(names)])  # what these two share, all share
    firsts = [name[len(shared) :].partition("/")[:2] for name in names]
    if len({between for _, between in firsts}) > 1:
        return None
    found = [sys.intern(first if between else shared.split("/")[-2]) for first, between in firsts]
    return None if all(map(_NO_CLASS.fullmatch, {*found})) else found


def stored_classes(images: ImageSet) -> list[str] | None:
    """Return the class of each image in the ``.npz`` of a set, integers or strings; None if it has none."""
    if "array" not in images.kind or len(images.files.paths) != 1:
        return None
    for name, array in array_headers(images.files).items():
        if name in _ARRAYS and array.shape == (len(images.stored),) and array.dtype.kind in "iuU":
            with explained(images.path), images.files.open(0) as handle, np.load(handle) as arrays:
                return [sys.intern(f"{label}") for label in arrays[name].tolist()]
    return None
