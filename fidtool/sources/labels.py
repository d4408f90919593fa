"""Labels of images, which name their classes: integers and strings, in a list or with the data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fidtool.errors import InputError, option, short_repr
from fidtool.names import fold

# Usual names of labels in a table, a dict or a file of arrays, as `fold` returns them; the last is
# that of guided-diffusion's samples.
LABEL_NAMES = (
    "label",
    "labels",
    "class",
    "classes",
    "classname",
    "classid",
    "category",
    "target",
    "cls",
    "y",
    "arr_1",
)


@dataclass(frozen=True)
class Labels:
    """The labels of a source.

    Attributes:
        of_images: the label of each image in stored order; empty for an image whose label was not
            read.
        classes: the names of all classes in the order of their numbers, if the source states it.
    """

    of_images: Sequence[str] = ()
    classes: Sequence[str] = ()

    @classmethod
    def of(cls, values: Iterable[object], classes: object = None) -> Labels:
        """Return the labels of all images, by the names of their classes; none if no image has one.

        Args:
            values: integers, of which -1 is none where there are names, or strings.
            classes: the names of the classes by number; anything else is passed over.

        Raises:
            InputError: if some images have a label, but not all.
        """
        names = tuple(classes) if isinstance(classes, (list, tuple)) else ()
        by_number = {f"{number}": name for number, name in enumerate(names)}
        none = "-1" if by_number else ""
        labels = ["" if text == none else text for text in map(label_text, values)]
        if not any(labels):
            return NO_LABELS
        if not all(labels):
            raise InputError(
                f"image {labels.index('')} has no label, but other images have one:",
                "leave out images without a label",
                "give them a class of their own",
            )
        are_names = all(isinstance(name, str) and name for name in names)
        if not are_names or len({*names}) < len(names) or not by_number.keys() >= {*labels}:
            return cls(labels)
        return cls([by_number[label] for label in labels], names)


NO_LABELS = Labels()


def label_text(value: Any) -> str:
    """Return a label as text: an integer, also a scalar of NumPy or torch, or a string; empty for
    anything else.
    """
    if hasattr(value, "item"):
        with suppress(ValueError, RuntimeError):  # arrays and tensors of several elements
            value = value.item()
    if isinstance(value, int):
        return f"{int(value)}"
    return value.strip() if isinstance(value, str) else ""


def are_numbers(labels: Iterable[str]) -> bool:
    """Whether all labels are decimal integers from 0 on."""
    return all(label.isdecimal() for label in labels)


def find_label_name(names: Iterable[object]) -> Any:
    """Return which of these names is the usual one of labels; None if none is."""
    folded: dict[str, object] = {}
    for name in names:
        folded.setdefault(fold(f"{name}"), name)
    return next((folded[name] for name in LABEL_NAMES if name in folded), None)


def check_labels(labels: Any, setting: str) -> Any:
    """Return the value of a setting of labels: a file, or the label of each image as a tuple of
    strings.

    Raises:
        InputError: if it is neither a path nor one integer or string for each image.
    """
    if isinstance(labels, str | os.PathLike):
        return labels
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    if not isinstance(values, Iterable) or isinstance(values, (Mapping, Set)):
        raise InputError(
            f"{option(setting)} must be a file, or a list, array or tensor of one label per image, "
            f"not {short_repr(labels)}:",
            "pass labels with their images, as a list of pairs (image, label)",
        )
    texts = []
    for number, value in enumerate(values):
        texts.append(label_text(value))
        if not texts[-1]:
            refused = InputError(
                f"{option(setting)} must have an integer or a string for each image, but its entry "
                f"{number} is {short_repr(value)}"
            )
            if isinstance(value, list) and len(value) == 1:
                refused.advise("flatten the array, labels.ravel()")
            elif isinstance(value, list):
                refused.advise("pass the class numbers of one-hot rows, labels.argmax(1)")
            elif isinstance(value, float):
                refused.advise("convert the array to integers, labels.astype(int)")
            raise refused
    if not texts:
        raise InputError(f"{option(setting)} is empty:", "pass one label per image")
    return tuple(texts)
