"""What REAL and FAKE may be: images, wherever they live, or a statistics file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from fidtool.errors import InputError, RunError
from fidtool.settings import Settings
from fidtool.sources.contents import Files, LocalFiles, StoreError
from fidtool.sources.folder import STDIN, is_pattern
from fidtool.sources.image_set import ImageSet
from fidtool.sources.numpy_files import SAMPLES, STATISTICS, array_shapes
from fidtool.sources.opening import local_paths, open_images, split_key, suffix_of
from fidtool.sources.remote import remote_files
from fidtool.sources.store_requests import is_remote
from fidtool.statistics.statistics_file import Statistics, read_statistics


def open_source(
    path: str, config: Settings, features_of: Collection[str], say: Callable[[str], None]
) -> ImageSet | Statistics:
    """Opens what the user named, without reading any image.

    Args:
        path: what was named.
        config: ``recursive`` and ``value_range``.
        features_of: see `read_statistics`.
        say: takes a line where a file could be taken for two things.

    Raises:
        InputError: nothing there, or nothing that images or statistics can come from.
        RunError: a remote store does not answer.
    """
    require_exists([path])
    if not _may_be_statistics(path):
        return open_images(path, config.recursive, config.value_range)
    try:
        return _open_npz(path, config, features_of, say)
    except StoreError as error:
        raise RunError(str(error)) from None


def _open_npz(
    path: str, config: Settings, features_of: Collection[str], say: Callable[[str], None]
) -> ImageSet | Statistics:
    files: Files = remote_files(path) if is_remote(path) else LocalFiles([path])
    shapes = array_shapes(files)
    images = [name for name, shape in shapes.items() if name == SAMPLES or len(shape) in (3, 4)]
    if images and not STATISTICS & shapes.keys():
        return open_images(path, config.recursive, config.value_range)
    if images and shapes.keys() >= STATISTICS:
        say(
            f"{path} holds statistics (mu, sigma) and images ({images[0]}): the statistics are used; "
            f"{path}:{images[0]} means the images"
        )
    return read_statistics(path, features_of, files)


def _may_be_statistics(path: str) -> bool:
    name, key = split_key(path)
    return not key and suffix_of(name) == ".npz" and not is_pattern(name) and not os.path.isdir(name)


def require_exists(paths: Sequence[str]) -> None:
    """Raises an InputError that names the first of ``paths`` that is not there. Stores are not asked."""
    if list(paths).count(STDIN) > 1:
        raise InputError(f"{STDIN} means standard input, which can be one of the sets only")
    for path in paths:
        name, _ = split_key(path)
        if path != STDIN and not is_remote(name):
            local_paths(path)
