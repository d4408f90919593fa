"""REAL and the FAKEs of a run: images, wherever they live, or statistics files."""

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
from fidtool.sources.image_set import ImageSet
from fidtool.sources.numpy_files import SAMPLES, STATISTICS, array_shapes
from fidtool.sources.opening import local_paths, open_images, split_key, suffix_of
from fidtool.sources.remote import remote_files
from fidtool.sources.store_requests import is_remote
from fidtool.statistics.statistics_file import Statistics, read_statistics

if TYPE_CHECKING:  # it imports torch, and a path that is not there is refused before
    from fidtool.pipeline.run import RunContext


class Inputs:
    """REAL and the FAKEs, opened. Rank zero holds them; the other ranks know which have images. Made by a collective.

    Args:
        run: the run.
        paths: what was given, REAL first if ``real``.
        real: whether there is a REAL.

    Attributes:
        run: the run, its settings completed by what the statistics files say.
        paths: as given.
        needs: what is needed of each path, by path.
        taken: one sentence about each source that completed the settings, and about each metric that ``all`` leaves
            out; on rank zero.
        adapted: warnings about settings that were adapted to the number of images; on rank zero.
    """

    def __init__(self, run: RunContext, paths: Sequence[str], real: bool = True) -> None:
        self.run, self.paths, self._real = run, paths, real
        self.needs = self._needs()
        self.taken: list[str] = []
        self._warnings: list[str] = []
        self.adapted: tuple[str, ...] = ()
        self._counts: dict[str, ImageCount] = {}
        self._opened: dict[str, ImageSet | Statistics] = {}
        self.streams = {path: images for path, images in run.in_memory.items() if images.is_stream}
        if self.streams and run.settings.checkpoint is not None:
            name = next(iter(self.streams))
            problem = f"{option('checkpoint')} cannot go on in the middle of {name}, an iterable:"
            raise on_every_rank(InputError(problem, "leave it out", setting="checkpoint"))
        with run.clock("list"):
            self._has_images, settings = run.world.on_rank_zero(self._open)
        self._use(settings)

    def _use(self, settings: Settings) -> None:
        self.run = replace(self.run, settings=settings)
        self.needs = self._needs()

    @property
    def settings(self) -> Settings:
        """The run's, completed by what the statistics files say."""
        return self.run.settings

    def _needs(self) -> dict[str, SetNeeds]:
        reals, fakes = (self.paths[:1], self.paths[1:]) if self._real else ((), self.paths)
        return {path: set_needs(self.settings, path in reals, path in fakes) for path in dict.fromkeys(self.paths)}

    # --- on rank zero ------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[dict[str, bool], Settings]:
        """Opens every path; statistics files first, so that a bad one is refused before a long listing.

        Returns:
            Which paths have images, and the settings.
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
                self.run.console.warn(line)
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
            if path in files and self.needs[path] != before[path]:  # CMMD's features are in another layer now
                self._opened[path] = self._open_one(path)

    def _check_missing(self, source: ImageSet) -> None:
        if source.source.kind != "list of files" or self.settings.on_error != "fail":
            return
        if missing := source.missing():
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{source.path} names {missing[0]}{more}, and there is no such file:",
                "mend the list",
                f"pass {option('on_error', 'skip')}",
            )

    def _urgency(self, path: str) -> tuple[bool, int]:
        return not path.lower().endswith(".npz"), self.paths.index(path)

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
        """What defines the features, and the warnings of all comparisons: see `fidtool.pipeline.agreement.agree`."""
        definitions, mismatches = agree(self._files, self.needs, self.settings, measured)
        split = split_by_the_shell(self.paths)
        warnings = [*self._warnings, *([split] if split else []), *mismatches, *self._settings_without_effect()]
        return definitions, warnings

    def _settings_without_effect(self) -> list[str]:
        settings, images, found = self.settings, self._image_sets, []
        if not self.any_images and (idle := _idle_with_files(settings)):
            have = "has" if len(idle) == 1 else "have"
            found.append(f"{' and '.join(idle)} {have} no effect on the numbers: statistics files alone are compared")
        found += [each.source.warning for each in images if each.source.warning]
        if not settings.recursive and (others := [each.path for each in images if "folder" not in each.source.kind]):
            found.append(f"{option('recursive', False)} has no effect on {', '.join(others)}: it is for folders")
        scaled = self.streams or any(each.source.reader.scaled for each in images)
        if settings.value_range is not None and not scaled:
            found.append(f"{option('value_range')} has no effect: no set is an array of floats")
        if settings.num is not None:
            found += [f"{path} is a statistics file: {option('num')} does not apply to it" for path in self._files]
        return found

    def labels(self, definitions: Definitions) -> Labels:
        """What the numbers are called, given what defines the features."""
        files = list(self._files.values())
        definition = definitions[FEATURES]
        dims = files[0].dims if definition is None else definition.dims
        found = {layer: [file.layers.get(layer) for file in files] for layer in definitions}
        stated = {layer: [one.definition for one in parts if one and one.definition] for layer, parts in found.items()}
        return labels_of(definitions, self.settings, self.any_images, dims, stated)

    def statistics(self, path: str) -> Statistics | None:
        """What is in a statistics file; None of images, and on the other ranks."""
        source = self._opened.get(path)
        return source if isinstance(source, Statistics) else None

    def images(self, path: str) -> ImageSet | None:
        """The images of a path, in canonical order; None of a statistics file, and on the other ranks."""
        source = self._opened.get(path)
        return source if isinstance(source, ImageSet) else None

    def passed_over(self, path: str) -> PassedOver | None:
        """What the source holds beside its images; None of a statistics file and of an iterable."""
        images = self.images(path)
        return None if images is None else images.source.passed_over

    def lookup(self) -> ImageLookup:
        """What reads single images once more, for a report."""
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
        """Whether a path is of images, an iterable among them."""
        return self._has_images[path]

    @property
    def indexable(self) -> list[str]:
        """The paths of images that can be read again, each once, in the order in which they are measured."""
        return [path for path in self.needs if self._has_images[path] and path not in self.streams]

    @property
    def needs_classifier(self) -> bool:
        """Whether the Inception Score is computed."""
        return self._real and self.settings.metric("is") is not None


def open_source(
    path: str, settings: Settings, features_of: Collection[str], warn: Callable[[str], None]
) -> ImageSet | Statistics:
    """Opens what the user named, without reading any image.

    Args:
        path: what was named.
        settings: ``recursive`` and ``value_range``.
        features_of: see `read_statistics`.
        warn: takes a warning where a file could be taken for two things.

    Raises:
        InputError: nothing there, or nothing that images or statistics can come from.
        RunError: a remote store does not answer.
    """
    require_exists([path])
    name, key = split_key(path)
    if key or suffix_of(name) != ".npz" or is_pattern(name) or os.path.isdir(name):
        return open_images(path, settings.recursive, settings.value_range)
    try:
        return _open_npz(path, settings, features_of, warn)
    except StoreError as error:
        raise RunError(str(error)) from None


def _open_npz(
    path: str, settings: Settings, features_of: Collection[str], warn: Callable[[str], None]
) -> ImageSet | Statistics:
    files: Files = remote_files(path) if is_remote(path) else LocalFiles([path])
    shapes = array_shapes(files)
    images = [name for name, shape in shapes.items() if name == SAMPLES or len(shape) in (3, 4)]
    if images and not STATISTICS & shapes.keys():
        return open_images(path, settings.recursive, settings.value_range)
    if images and shapes.keys() >= STATISTICS:
        warn(
            f"{path} holds statistics (mu, sigma) and images ({images[0]}): the statistics are used; "
            f"{path}:{images[0]} means the images"
        )
    return read_statistics(path, features_of, files)


def require_exists(paths: Sequence[str]) -> None:
    """Raises an InputError that names the first of ``paths`` that is not there. Stores are not asked."""
    if list(paths).count(STDIN) > 1:
        raise InputError(f"{STDIN} means standard input, which can be one of the sets only")
    for path in paths:
        name, _ = split_key(path)
        if path != STDIN and not is_remote(name):
            local_paths(path)


def _idle_with_files(settings: Settings) -> list[str]:
    """Settings that were given and do nothing where no image is read, as messages name them."""
    idle = _changed_settings(settings.network, Settings().network)
    for metric in settings.chosen:
        if (own := metric.own_network) is None:
            continue
        if own == settings.network:
            return []  # together they say in which layer the metric's features are
        usual = type(metric)().network()
        assert usual is not None
        idle += _changed_settings(own, usual)
    if settings.metric("is") is not None:  # the classifier is in them
        idle = [name for name in idle if name != "weights"]
    return [option(name) for name in (idle if settings.checkpoint is None else [*idle, "checkpoint"])]


def _changed_settings(asked: NetworkChoice, usual: NetworkChoice) -> list[str]:
    """The settings of a network that are not at their defaults."""
    return [asked.named(name) for name in NETWORK_SETTINGS if getattr(asked, name) != getattr(usual, name)]


def _image_count(source: ImageSet | Statistics, settings: Settings) -> ImageCount | None:
    if isinstance(source, ImageSet):
        return ImageCount(len(source), settings.most_skipped(len(source)))
    return None if source.count is None else ImageCount(source.count)


def _check_records(max_duplicates: float | None, path: str, source: ImageSet | Statistics) -> None:
    if max_duplicates is not None and isinstance(source, Statistics) and source.pictures is None:
        raise InputError(
            f"{option('max_duplicates')} needs to know the images of {path}, and that file does not:",
            "give the images",
            "make it anew with `fidtool stats`",
            setting="max_duplicates",
        )


def _check_expected(expect: int | None, path: str, count: int | None) -> None:
    if expect is not None and count != expect:
        found = "an unknown number of" if count is None else count
        raise InputError(f"{option('expect')} asks for {expect} images but {path} has {found}", setting="expect")
