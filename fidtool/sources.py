"""What REAL and FAKE may be: a folder of images, or a statistics file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from fidtool.errors import InputError
from fidtool.images.source import ImageFolder, list_folder
from fidtool.statistics.store import Statistics, read_statistics


def open_source(path: str, recursive: bool, needed: Mapping[str, bool]) -> ImageFolder | Statistics:
    """Opens what the user named, without reading any image.

    Args:
        path: what was named.
        recursive: images in subfolders count.
        needed: of a statistics file, see `fidtool.metrics.needs.layers_needed`: no other features are read.

    Raises:
        InputError: nothing there, or nothing that images or statistics can come from.
    """
    if os.path.isdir(path):
        return list_folder(path, recursive)
    require_exists([path])
    if path.lower().endswith(".npz"):
        return read_statistics(path, [name for name, kept in needed.items() if kept])
    raise InputError(f"{path} is neither a folder of images nor a statistics file (.npz)")


def require_exists(paths: Sequence[str]) -> None:
    """Raises an InputError that names the first of ``paths`` that is not there."""
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(f"no such file or folder: {path}")
