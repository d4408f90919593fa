"""REAL and the FAKEs of a run: images from any source, or statistics files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fidtool.errors import InputError, RunError, on_every_rank, option
from fidtool.features.definition import Definition
from fidtool.features.models.families import NETWORK_SETTINGS, NetworkChoice
from fidtool.features.protocol import FEATURES
from fidtool.images.lookup import ImageLookup
from fidtool.labels import Labels, labels_of
from fidtool.pipeline.agreement import Definitions, agree, complete_settings, settings_of_files
from fidtool.pipeline.needs import ImageCount, SetNeeds, check_counts, set_needs
from fidtool.pipeline.selection import Sets, select
from fidtool.settings import Settings
from fidtool.sources.census import PassedOver
from fidtool.sources.contents import Files, LocalFiles, StoreError
from fidtool.sources.folder import STDIN, is_pattern, split_by_the_shell
from fidtool.sources.image_set import ImageSet, real_path
from fidtool.sources.opening import STATISTICS_SUFFIXES, local_paths, open_images, split_key, suffix_of
from fidtool.sources.remote import remote_files
from fidtool.sources.store_requests import is_remote
from fidtool.statistics.layouts import layout_of
from fidtool.statistics.named_arrays import PICKLE
from fidtool.statistics.set_statistics import Statistics
from fidtool.statistics.statistics_file import read_statistics

if TYPE_CHECKING:  # it imports torch; `require_exists` must refuse a missing path before that
    from fidtool.pipeline.run import RunContext


class Inputs:
    """REAL and the FAKEs, opened on rank zero; the other ranks know which have images. The constructor is a collective.

    Args:
        run: the run.
        paths: the paths as passed by the caller, REAL first if ``real``.
        real: whether there is a REAL.

    Attributes:
        run: the run, its settings completed from the statistics files.
        paths: as passed by the caller; a FAKE that is REAL has REAL's path.
        needs: what is needed of each set, by path.
        taken: one sentence per completed setting, with the file that it is from, and per metric that ``all`` leaves
            out; on rank zero.
        adapted: warnings about settings that were adapted to the number of images; on rank zero.
        streams: the iterables, by name.
    """

    def __init__(self, run: RunContext, paths: Sequence[str], real: bool = True) -> None:
        self.run, self._real = run, real
        self.paths = run.world.on_rank_zero(lambda: _spelled_once(paths, run.in_memory))
        self.needs = self._needs()
        self.taken: list[str] = []
        self._warnings: list[str] = []
        self.adapted: tuple[str, ...] = ()
        self._counts: dict[str, ImageCount] = {}
        self._opened: dict[str, ImageSet | Statistics] = {}
        self.streams = {path: images for path, images in run.in_memory.items() if images.is_stream}
        if self.streams and run.settings.checkpoint is not None:
            name = next(iter(self.streams))
            problem = f"{option('checkpoint')} cannot resume in the middle of {name}, an iterable:"
            raise on_every_rank(InputError(problem, f"omit {option('checkpoint')}", setting="checkpoint"))
        with run.clock("list"):
            self._has_images, settings = run.world.on_rank_zero(self._open)
        self._use(settings)

    def _use(self, settings: Settings) -> None:
        self.run = replace(self.run, settings=settings)
        self.needs = self._needs()

    @property
    def settings(self) -> Settings:
        """The run's settings, completed from the statistics files."""
        return self.run.settings

    def _needs(self) -> dict[str, SetNeeds]:
        reals, fakes = (self.paths[:1], self.paths[1:]) if self._real else ((), self.paths)
        return {path: set_needs(self.settings, path in reals, path in fakes) for path in dict.fromkeys(self.paths)}

    # --- on rank zero ------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[dict[str, bool], Settings]:
        """Opens every path; statistics files first, so that a bad one is refused before a slow listing.

        Returns:
            Whether each path has images, and the settings.
        """
        settings = self.settings
        require_exists([path for path in self.paths if path not in self.run.in_memory])
        for path in sorted(self.needs.keys() - self.streams, key=self._urgency):
            source = self._open_one(path)
            if path in self.paths[1:]:
                _check_expected(settings.expect, path, source.found if isinstance(source, ImageSet) else source.count)
                _check_records(settings.max_duplicates, path, source)
            if isinstance(source, ImageSet):
                self._check_missing(source)
                source = source.draw(settings.num, settings.seed)
            self._opened[path] = source
            if (count := _image_count(source, settings)) is not None:
                self._counts[path] = count
        has_images = {path: not isinstance(self._opened.get(path), Statistics) for path in self.needs}
        self._complete_settings(any(has_images.values()))
        self._completed = self.settings
        self._select(any(has_images.values()))
        return has_images, self.settings

    def _select(self, images: bool, fit: bool = True) -> None:
        """Decides which metrics are computed, see `select`, and refuses sets that are too small for them."""
        reals, fakes = (self.paths[:1], self.paths[1:]) if self._real else ((), self.paths)
        found = select(
            self._completed if fit else self.settings, Sets(self._files, self._counts, reals, fakes, images), fit
        )
        self._use(found.settings)
        for line in found.left_out:
            if line not in self.taken:
                self.taken.append(line)
                self.run.console.say(line)
        self.adapted = found.adapted if fit else self.adapted
        if self._real:
            check_counts(found.settings, self._counts, fakes)

    def _complete_settings(self, has_images: bool) -> None:
        files = self._files
        if has_images:
            settings, line = complete_settings(files, self.settings)
            self.run = replace(self.run, settings=settings)
        else:
            line = settings_of_files(files, self.settings)
        if line:
            self.taken.append(line)
            self.run.console.say(line)
        before, self.needs = self.needs, self._needs()
        for path in before:
            if path in files and self.needs[path] != before[path]:  # CMMD now shares the layer of FID's features
                self._opened[path] = self._open_one(path)

    def _check_missing(self, source: ImageSet) -> None:
        if source.source.kind != "list of files" or self.settings.on_error != "fail":
            return
        if missing := source.missing():
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{source.path} lists files that do not exist ({missing[0]}{more}):",
                "fix the list",
                f"pass {option('on_error', 'skip')}",
            )

    def _urgency(self, path: str) -> tuple[bool, int]:
        return not _named_statistics(split_key(path)[0]), self.paths.index(path)

    def _open_one(self, path: str) -> ImageSet | Statistics:
        if path in self.run.in_memory:
            return self.run.in_memory[path].image_set(self.settings.value_range)
        return open_source(path, self.settings, self.needs[path].collected, self._warnings.append)

    @property
    def _files(self) -> dict[str, Statistics]:
        return {path: source for path, source in self._opened.items() if isinstance(source, Statistics)}

    @property
    def _image_sets(self) -> list[ImageSet]:
        return [source for source in self._opened.values() if isinstance(source, ImageSet)]

    def agree(self, measured: Mapping[str, Definition] | None) -> tuple[dict[str, Definition | None], list[str]]:
        """The definitions of the features, and warnings for all comparisons: see `fidtool.pipeline.agreement.agree`."""
        definitions, mismatches = agree(self._files, self.needs, self.settings, measured)
        split = split_by_the_shell(self.paths)
        warnings = [*self._warnings, *([split] if split else []), *mismatches, *self._settings_without_effect()]
        return definitions, warnings

    def _settings_without_effect(self) -> list[str]:
        settings, images, found = self.settings, self._image_sets, []
        if not self.any_images and (idle := _idle_with_files(settings)):
            have = "has" if len(idle) == 1 else "have"
            found.append(f"{' and '.join(idle)} {have} no effect on the values: only statistics files are compared")
        found += [each.source.warning for each in images if each.source.warning]
        if not settings.recursive and (others := [each.path for each in images if "folder" not in each.source.kind]):
            found.append(f"{option('recursive', False)} has no effect on {', '.join(others)}: it only affects folders")
        scaled = self.streams or any(each.source.reader.scaled for each in images)
        if settings.value_range is not None and not scaled:
            found.append(f"{option('value_range')} has no effect: it only affects arrays of floats")
        if settings.num is not None:
            found += [f"{path} is a statistics file: {option('num')} does not apply to it" for path in self._files]
        return found

    def labels(self, definitions: Definitions) -> Labels:
        """The names of the metrics' values for these definitions of the features."""
        files = list(self._files.values())
        definition = definitions[FEATURES]
        dims = files[0].dims if definition is None else definition.dims
        found = {layer: [file.layers.get(layer) for file in files] for layer in definitions}
        stated = {layer: [one.definition for one in parts if one and one.definition] for layer, parts in found.items()}
        return labels_of(definitions, self.settings, self.any_images, dims, stated)

    def statistics(self, path: str) -> Statistics | None:
        """The content of a statistics file; None for images, and on the other ranks."""
        source = self._opened.get(path)
        return source if isinstance(source, Statistics) else None

    def images(self, path: str) -> ImageSet | None:
        """The images of a path in canonical order; None for a statistics file, and on the other ranks."""
        source = self._opened.get(path)
        return source if isinstance(source, ImageSet) else None

    def passed_over(self, path: str) -> PassedOver | None:
        """The files that a source ignores; None for a statistics file or an iterable."""
        images = self.images(path)
        return None if images is None else images.source.passed_over

    def lookup(self) -> ImageLookup:
        """Reads individual images again, for a report."""
        return ImageLookup(self._image_sets, self.streams)

    def check_stream(self, path: str, statistics: Statistics | None) -> None:
        """Checks what could not be checked before the images of an iterable had been counted. A collective.

        Args:
            path: the name of the iterable.
            statistics: its statistics, on rank zero.

        Raises:
            InputError: if it has too few images, or not as many as ``expect`` requires.
        """
        self._use(self.run.world.on_rank_zero(lambda: self._checked_stream(path, statistics)))

    def _checked_stream(self, path: str, statistics: Statistics | None) -> Settings:
        assert statistics is not None
        assert statistics.count is not None
        if path in self.paths[1:]:
            _check_expected(self.settings.expect, path, statistics.count + len(statistics.skipped))
        self._counts[path] = ImageCount(statistics.count)
        self._select(images=True, fit=path in self.paths[:2])  # later FAKEs are compared with the same settings
        return self.settings

    # --- on every rank -----------------------------------------------------------------------------------------------

    @property
    def any_images(self) -> bool:
        """Whether images go through the networks."""
        return any(self._has_images.values())

    def has_images(self, path: str) -> bool:
        """Whether a path has images; true for an iterable."""
        return self._has_images[path]

    @property
    def indexable(self) -> list[str]:
        """The paths with images that can be read again, without repetition, in processing order."""
        return [path for path in self.needs if self._has_images[path] and path not in self.streams]

    @property
    def needs_classifier(self) -> bool:
        """Whether the run computes the Inception Score, which needs Inception's classifier."""
        return self._real and self.settings.metric("is") is not None


def _spelled_once(paths: Sequence[str], in_memory: Collection[str]) -> list[str]:
    """Returns the paths, with REAL's spelling for every path of the same set."""
    real = paths[0]
    return [real if not {real, path} & {*in_memory} and real_path(path) == real_path(real) else path for path in paths]


def open_source(
    path: str, settings: Settings, features_of: Collection[str], warn: Callable[[str], None]
) -> ImageSet | Statistics:
    """Opens a set of images or a statistics file, without reading any image.

    Args:
        path: path or URL as passed by the caller.
        settings: settings, of which ``recursive`` and ``value_range`` are used.
        features_of: see `read_statistics`.
        warn: called with a warning if a file has both statistics and images.

    Raises:
        InputError: if the path does not exist, or has neither images nor statistics.
        RunError: if a remote store does not respond.
    """
    require_exists([path])
    try:
        files = _single_file(path)
        if files is not None and (found := _open_statistics(path, files, settings, features_of, warn)) is not None:
            return found
    except StoreError as error:
        raise RunError(str(error)) from None
    return open_images(path, settings.recursive, settings.value_range)


def _single_file(path: str) -> Files | None:
    """The file that ``path`` names, which may hold statistics; None if there is none, or several."""
    name, _ = split_key(path)
    if is_pattern(name):
        return None
    if not is_remote(name):
        return LocalFiles([name]) if os.path.isfile(name) else None
    if _named_statistics(name):
        return remote_files(name)
    if suffix_of(name) or name.endswith("/"):
        return None
    try:
        return remote_files(name)
    except InputError:  # it is a folder, or does not exist
        return None


def _open_statistics(
    path: str, files: Files, settings: Settings, features_of: Collection[str], warn: Callable[[str], None]
) -> Statistics | None:
    """The statistics in a file; None if it has images instead, by its content or, if that says nothing, its name."""
    name, key = split_key(path)
    layout = layout_of(files)
    expected = _named_statistics(name) or (layout.kind and not suffix_of(name))
    if not (layout.statistics or (expected and not layout.images)) or (key and layout.kind != PICKLE):
        return None
    if layout.images:
        warn(
            f"{path} has both statistics (mu, sigma) and images ({layout.images}): using the statistics; pass "
            f"{path}:{layout.images} to use the images"
        )
    return read_statistics(path, features_of, files, settings.network.extractor, key)


def _named_statistics(name: str) -> bool:
    path = name.partition("?")[0] if is_remote(name) else name
    return path.lower().endswith(STATISTICS_SUFFIXES)


def require_exists(paths: Sequence[str]) -> None:
    """Raises an InputError that names the first of ``paths`` that does not exist. URLs are not checked."""
    if list(paths).count(STDIN) > 1:
        raise InputError(f"{STDIN} is standard input, which can only be used for one of the sets")
    for path in paths:
        name, _ = split_key(path)
        if path != STDIN and not is_remote(name):
            local_paths(path)


def _idle_with_files(settings: Settings) -> list[str]:
    """Settings of the user that have no effect if no image is read, as named in messages."""
    idle = _changed_settings(settings.network, Settings().network)
    for metric in settings.chosen:
        if (own := metric.own_network) is None:
            continue
        if own == settings.network:
            return []  # the two settings together select the layer of the metric's features
        usual = type(metric)().network()
        assert usual is not None
        idle += _changed_settings(own, usual)
    if settings.metric("is") is not None:  # the weights include the classifier
        idle = [name for name in idle if name != "weights"]
    return [option(name) for name in (idle if settings.checkpoint is None else [*idle, "checkpoint"])]


def _changed_settings(asked: NetworkChoice, usual: NetworkChoice) -> list[str]:
    """The settings of ``asked`` that differ from ``usual``."""
    return [asked.named(name) for name in NETWORK_SETTINGS if getattr(asked, name) != getattr(usual, name)]


def _image_count(source: ImageSet | Statistics, settings: Settings) -> ImageCount | None:
    if isinstance(source, ImageSet):
        return ImageCount(len(source), settings.most_skipped(len(source)))
    return None if source.count is None else ImageCount(source.count)


def _check_records(max_duplicates: float | None, path: str, source: ImageSet | Statistics) -> None:
    if max_duplicates is not None and isinstance(source, Statistics) and source.pictures is None:
        raise InputError(
            f"{option('max_duplicates')} needs records of the images, and {path} has none:",
            "pass the images instead",
            "create the file again with `fidtool stats`",
            setting="max_duplicates",
        )


def _check_expected(expect: int | None, path: str, count: int | None) -> None:
    if expect is not None and count != expect:
        found = "an unknown number of images" if count is None else count
        raise InputError(f"{option('expect')} requires {expect} images but {path} has {found}", setting="expect")
