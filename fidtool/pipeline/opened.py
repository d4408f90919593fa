"""What the path of a set holds: images, statistics, or both; in a file, a folder, a store or a published reference."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fidtool.errors import InputError, RunError, option
from fidtool.features.protocol import FEATURES
from fidtool.images.frames import with_frames
from fidtool.names import counted
from fidtool.pipeline.needs import SetNeeds
from fidtool.settings import Settings
from fidtool.sources.array_files import Header, StoredArray, array_headers, tensors_in
from fidtool.sources.arrays import has_floats
from fidtool.sources.census import IMAGE_SUFFIXES
from fidtool.sources.contents import Files, LocalFiles, StoreError, broken_link
from fidtool.sources.folder import STDIN, is_pattern
from fidtool.sources.image_set import ImageSet
from fidtool.sources.memory import Images
from fidtool.sources.opening import STATISTICS_SUFFIXES, local_paths, open_images, split_key, suffix_of
from fidtool.sources.reference_files import fetch
from fidtool.sources.references import FEATURES as PUBLISHED_FEATURES
from fidtool.sources.references import IMAGES as PUBLISHED_IMAGES
from fidtool.sources.references import is_reference, named_reference, reference_at, suggested_references
from fidtool.sources.remote import is_remote, remote_files
from fidtool.statistics.layouts import NPZ, PICKLE, FileLayout, known_layout, layout_of, with_protocol
from fidtool.statistics.set_statistics import Statistics, with_features
from fidtool.statistics.statistics_file import read_features_alone, read_statistics


class Opened(NamedTuple):
    """The images or the statistics of a path; with both, the images give what the statistics lack."""

    images: ImageSet | None = None
    file: Statistics | None = None
    reference: str = ""
    sha256: Mapping[str, str] = {}


class GivenStatistics(Images):
    """A set of which a program passes the statistics. On ranks other than zero they may be None."""

    def __init__(self, statistics: Statistics | None) -> None:
        self.name, self.is_stream, self.generates, self._statistics = "", False, False, statistics

    @property
    def kind(self) -> str:
        return "statistics"

    def opened(self) -> Opened:
        if self._statistics is None:
            raise InputError(f"{self.name} is None, which only ranks above zero may pass, in place of statistics")
        return Opened(file=self._statistics)


class Messages(NamedTuple):
    """Where messages go: ``say`` prints progress, ``warn`` takes warnings about the result."""

    say: Callable[[str], None]
    warn: Callable[[str], None]


def open_set(path: str, in_memory: Images | None, settings: Settings, needs: SetNeeds, messages: Messages) -> Opened:
    """Opens what a path names, or images in memory; see `open_source`."""
    if isinstance(in_memory, GivenStatistics):
        return in_memory.opened()
    if in_memory is not None and settings.features and (rows := in_memory.features()) is not None:
        return Opened(file=read_features_alone(path, rows, path, FEATURES in needs.collected))
    opened = Opened(in_memory.image_set(settings.floats)) if in_memory else open_source(path, settings, needs, messages)
    if opened.images is None or settings.frames == "first":
        return opened
    return opened._replace(images=with_frames(opened.images, settings.max_pixels))


def open_source(path: str, settings: Settings, needs: SetNeeds, messages: Messages) -> Opened:
    """Opens a set of images or a statistics file, without reading any image. A published reference is downloaded."""
    require_exists([path])
    if is_reference(path):
        return _open_reference(path, settings, needs, messages)
    try:
        files = _single_file(path, settings.features, messages.say)
        if files is not None and (found := _open_statistics(path, files, settings, needs, messages)) is not None:
            return found
    except StoreError as error:
        raise RunError(str(error)) from None
    return Opened(open_images(path, settings.recursive, settings.floats, messages.say))


def _open_reference(path: str, settings: Settings, needs: SetNeeds, messages: Messages) -> Opened:
    reference, array = named_reference(path)
    alone = array if array in (PUBLISHED_IMAGES, PUBLISHED_FEATURES) else ""
    if array and not alone and not reference.is_pickle:
        raise InputError(f"{array} alone is no set that can be compared:", f"pass {reference.name}")
    if not reference.protocol:
        messages.warn(f"{reference.name}: {reference.note}")
    lacking = {*reference.arrays} - {*reference.statistics} if needs.features and not alone else set()
    images = PUBLISHED_IMAGES in (alone, *lacking)
    wanted = [alone] if alone else [*reference.statistics, *([PUBLISHED_IMAGES] if images else [])]
    fetched = fetch(reference, wanted, messages.say)
    published = Opened(reference=reference.name, sha256=fetched.sha256)
    if images:
        found = open_images(f"{fetched.path}:{PUBLISHED_IMAGES}")
        source = replace(found.source, prefix=f"{reference.name}:{PUBLISHED_IMAGES}")
        published = published._replace(images=replace(found, source=source))
    if alone == PUBLISHED_IMAGES:
        return published
    entry = array if reference.is_pickle else ""
    file = read_statistics(fetched.path, needs.collected, extractor=settings.network.extractor, key=entry)
    if PUBLISHED_FEATURES in lacking:
        further = fetch(reference, [PUBLISHED_FEATURES], messages.say)
        file = with_features(file, read_statistics(further.path))
        published = published._replace(sha256={**fetched.sha256, **further.sha256})
    return published._replace(file=with_protocol(file, reference.protocol))


def _single_file(path: str, features: bool, say: Callable[[str], None]) -> Files | None:
    """The file that ``path`` names, which may hold statistics; None if there is none, or several."""
    name, _ = split_key(path)
    if is_pattern(name):
        return None
    if not is_remote(name):
        return LocalFiles([name]) if os.path.isfile(name) else None
    if names_statistics(name):
        return remote_files(name, say)
    if (suffix_of(name) and not features) or name.endswith("/"):
        return None
    try:
        return remote_files(name, say)
    except InputError:  # it is a folder, or does not exist
        return None


def _open_statistics(path: str, files: Files, settings: Settings, needs: SetNeeds, messages: Messages) -> Opened | None:
    """The statistics in a file; None if it has images instead, by its content or, if that says nothing, its name."""
    name, key = split_key(path)
    layout = layout_of(files)
    if (settings.features and (key or not layout.statistics)) or layout == FileLayout(kind=NPZ):
        found = _open_features(path, files, key, settings.features, FEATURES in needs.collected)
        if found is not None:
            return found
    expected = names_statistics(name) or (layout.kind and not suffix_of(name))
    if not (layout.statistics or (expected and not layout.images)) or (key and layout.kind != PICKLE):
        return None
    file = read_statistics(path, needs.collected, files, settings.network.extractor, key)
    if layout.images and not needs.met_by(file):
        return Opened(open_images(f"{path}:{layout.images}", settings.recursive, settings.floats), file)
    if layout.images:
        messages.warn(
            f"{path} has both statistics (mu, sigma) and images ({layout.images}): using the statistics; pass "
            f"{path}:{layout.images} to use the images"
        )
    return Opened(file=file)


def _open_features(path: str, files: Files, key: str, features: bool, wanted: bool) -> Opened | None:
    """The features, an array (N, D), that ``key`` names in a file, or its only ones; None if there are none."""
    stored: Mapping[str, Header | StoredArray] = array_headers(files) or tensors_in(files)
    if len(known_layout(stored)) > 1 and not key:
        return None  # a mean and a covariance
    rows = {name: each for name, each in stored.items() if len(each.shape) == 2 and key in ("", name)}
    floats = {name: each for name, each in rows.items() if has_floats(each.dtype)}
    if features and len(floats or rows) == 1:
        ((name, each),) = (floats or rows).items()
        source = each.read(files) if isinstance(each, StoredArray) else files
        return Opened(file=read_features_alone(path, source, name, wanted))
    if floats and not key:
        number = counted(len(floats), "array")
        problem = f"{path} has {number} that may be features of images, for `compute` with {option('features', True)}:"
        raise InputError(problem, *(f"pass {path}:{name}" for name in floats))
    return None


def names_statistics(path: str) -> bool:
    """Whether a path names statistics by its suffix or as a reference. They are read before slow listings."""
    name, _ = split_key(path)
    name = name.partition("?")[0] if is_remote(name) else name
    return is_reference(path) or name.lower().endswith(STATISTICS_SUFFIXES)


def require_order(real: str, fakes: Sequence[str]) -> None:
    """Raises an InputError if a FAKE is a published reference, which is of real images, and not REAL's own."""
    own = reference_at(real)
    published = [path for path in fakes if reference_at(path) not in (own, None)]
    if published:
        problem = f"{published[0]} is a published reference, of real images, and cannot be {option('fake')}:"
        remedy = "pass generated images" if own else f"pass it as {option('real')}, which comes first"
        raise InputError(problem, remedy, setting="fake")


def missing_error(path: str, missing: Sequence[str], *remedies: str) -> InputError:
    """Returns the error for a list of which these lines name files that do not exist, see `ImageSet.missing`."""
    line = missing[0].partition(": ")[2]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    kind, _, remedy = broken_link(line).partition(": ")
    seems, advice = f", which is {kind}" * bool(kind), [remedy or "fix the list"]
    written = os.path.relpath(line, os.path.dirname(path))
    if os.path.exists(written):
        seems = f", but {written} exists, and paths are relative to the folder of the list"
        advice = ["move the list here"]
    odd = re.search(r"(\.\w+)[\s,;|]+[^./]+$|^\d+[\s,;|]+\S+(\.\w+)$", written)
    if odd and f"{odd[1] or odd[2]}".lower() in IMAGE_SUFFIXES:
        seems = ", and the line seems to have a label beside the path"
        advice = ["remove the labels", "write a .csv file whose first line is path,label"]
    return InputError(f"{path} lists files that do not exist ({missing[0]}{more}){seems}:", *advice, *remedies)


def require_exists(paths: Sequence[str]) -> None:
    """Raises an InputError that names the first of ``paths`` that does not exist. URLs are not requested."""
    if list(paths).count(STDIN) > 1:
        raise InputError(f"{STDIN} is standard input, which can only be used for one of the sets")
    for path in paths:
        if is_reference(path):
            named_reference(path)
        elif path != STDIN and not is_remote(split_key(path)[0]):
            try:
                local_paths(path)
            except InputError as error:
                names = suggested_references(path)[:2]
                error.args += tuple(f"the published reference is {name}" for name in names)
                raise
