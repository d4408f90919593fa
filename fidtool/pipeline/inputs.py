"""REAL and the FAKEs of a run: images from any source, or statistics files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fidtool.errors import InputError, on_every_rank, option
from fidtool.features.models.families import NETWORK_SETTINGS, NetworkChoice
from fidtool.features.protocol import FEATURES, Definition
from fidtool.images.lookup import ImageLookup
from fidtool.labels import Labels, labels_of
from fidtool.pipeline.agreement import Definitions, agree, complete_settings, roundings, settings_of_files
from fidtool.pipeline.needs import ImageCount, SetNeeds, check_counts, set_needs
from fidtool.pipeline.opened import (
    GivenStatistics,
    Messages,
    Opened,
    missing_error,
    names_statistics,
    open_set,
    require_exists,
    require_order,
)
from fidtool.pipeline.selection import Sets, select
from fidtool.record import overrides
from fidtool.settings import Settings
from fidtool.sources.array_files import array_headers
from fidtool.sources.contents import LocalFiles
from fidtool.sources.image_set import ImageSet, Sampling, real_path
from fidtool.sources.opening import split_key
from fidtool.sources.references import is_reference, named_reference
from fidtool.statistics.set_statistics import Statistics

if TYPE_CHECKING:  # it imports torch; `require_exists` must refuse a missing path before that
    from fidtool.pipeline.run import RunContext


class Inputs:
    """REAL and the FAKEs, opened on rank zero; the others know which have images. The constructor is a collective."""

    def __init__(self, run: RunContext, paths: Sequence[str], real: bool = True) -> None:
        self.run, self._real = run, real
        self.paths, self._warnings = run.world.on_rank_zero(
            lambda: (_spelled_once(paths, run.in_memory), _spellings(paths, run.in_memory))
        )
        self.needs = self._needs()
        self.taken: list[str] = []
        self.left_out: dict[str, str] = {}
        """The requested metrics that cannot be computed, with the reasons. On rank zero."""
        self.adapted: tuple[str, ...] = ()
        self._counts: dict[str, ImageCount] = {}
        self._opened: dict[str, Opened] = {}
        self.streams = {path: images for path, images in run.in_memory.items() if images.is_stream}
        if self.streams and run.settings.checkpoint is not None:
            name = next(iter(self.streams))
            problem = f"{option('checkpoint')} cannot resume in the middle of {name}, an iterable:"
            raise on_every_rank(InputError(problem, f"omit {option('checkpoint')}", setting="checkpoint"))
        for path, images in self.streams.items():
            if images.generates and self.sampling(path).num is None:
                setting = "num_fake" if path in self.paths[1:] else "num"
                problem = f"{path} is a function, which can generate any number of images:"
                raise on_every_rank(InputError(problem, f"pass {option(setting, ...)}", setting=setting))
        with run.clock("list"):
            self.has_images, self.has_both, settings = run.world.on_rank_zero(self._open)
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

    def _open(self) -> tuple[dict[str, bool], frozenset[str], Settings]:
        """Opens every path; statistics files first, so that a bad one is refused before a slow listing.

        Returns whether each path has images, the paths that have statistics as well, and the settings.
        """
        settings = self.settings
        for line in overrides(settings):
            self._note(line)
        require_exists([path for path in self.paths if path not in self.run.in_memory])
        if self._real:
            require_order(self.paths[0], [path for path in self.paths[1:] if path not in self.run.in_memory])
        listed = (path for path in self.needs if path not in self.streams)
        for path in sorted(listed, key=lambda path: not names_statistics(path)):
            self._opened[path] = opened = self._open_one(path)
            if path in self.paths[1:]:
                found = opened.images.found if opened.images else opened.file.count if opened.file else None
                _check_number(settings.expect, path, found)
                _check_records(settings.max_duplicates, path, opened)
            if opened.images is not None:
                self._check_missing(opened.images)
            if (count := _image_count(opened, settings)) is not None:
                self._counts[path] = count
        for path in self._beside:
            self._note(f"{path}: Fréchet distances use its mean and covariance, other metrics its images")
        has_images = {path: path in self.streams or self._opened[path].images is not None for path in self.needs}
        if self.paths[0] in self.paths[1:] and has_images[self.paths[0]]:
            _check_one_way(self.paths[0], settings, self.paths[0] in self.run.in_memory)
        self._complete_settings(any(has_images.values()))
        self._completed = self.settings
        self._select(any(has_images.values()))
        return has_images, frozenset(self._beside), self.settings

    def _select(self, images: bool, fit: bool = True) -> None:
        reals, fakes = (self.paths[:1], self.paths[1:]) if self._real else ((), self.paths)
        found = select(
            self._completed if fit else self.settings,
            Sets(self._files, self._counts, reals, fakes, images, self._beside),
            self.run.console.say,
            fit,
        )
        self._use(found.settings)
        for name, (said, reason) in found.left_out.items():
            self.left_out[name] = self.run.console.shown(reason)
            self._note(said, is_result=not self._real, warns=True)  # an evaluation has them, a file does not
        self.adapted = found.adapted if fit else self.adapted
        if self._real:
            check_counts(found.settings, self._counts, fakes)

    def _note(self, line: str, is_result: bool = False, warns: bool = False) -> None:
        line = self.run.console.shown(line)
        if line not in self.taken:
            self.taken.append(line)
            self.run.console.say(line, is_result, warns)

    def _complete_settings(self, has_images: bool) -> None:
        files, floats = self._files, self.settings.floats
        if has_images:
            settings, line = complete_settings(files, self.settings)
            self.run = replace(self.run, settings=settings)
        else:
            line = settings_of_files(files, self.settings)
        if line:
            self._note(line)
        before, self.needs = self.needs, self._needs()
        for path, opened in [*self._opened.items()]:
            shares = path in files and self.needs[path] != before[path]  # CMMD now shares the layer of FID's features
            scaled = opened.images is not None and self.settings.floats != floats
            if shares or scaled:  # the files' protocol now decides the rounding
                self._opened[path] = self._open_one(path)

    def _check_missing(self, source: ImageSet) -> None:
        if self.settings.on_error == "fail" and (missing := source.missing()):
            raise missing_error(source.path, missing, f"pass {option('on_error', 'skip')}")

    def _open_one(self, path: str) -> Opened:
        settings = self.settings
        messages = Messages(self.run.console.say, self._warnings.append)
        opened = open_set(path, self.run.in_memory.get(path), settings, self.needs[path], messages)
        if opened.images is None:
            return opened
        if opened.file is not None:  # its statistics are of these images as they are
            return opened._replace(images=opened.images.draw(Sampling(None, settings.seed)))
        drawn = opened.images.draw(self.sampling(path))
        return opened._replace(images=replace(drawn, framing=self.framing(path), floats=settings.floats))

    @property
    def _files(self) -> dict[str, Statistics]:
        return {path: opened.file for path, opened in self._opened.items() if opened.file is not None}

    @property
    def _beside(self) -> list[str]:
        """The paths of statistics files whose images give what their statistics lack."""
        return [path for path in self._files if self._opened[path].images is not None]

    @property
    def _image_sets(self) -> list[ImageSet]:
        return [opened.images for opened in self._opened.values() if opened.images is not None]

    def agree(self, measured: Mapping[str, Definition] | None) -> tuple[dict[str, Definition | None], list[str]]:
        """The definitions of the features, and warnings for all comparisons: see `fidtool.pipeline.agreement.agree`."""
        definitions, mismatches = agree(self._files, self.needs, self.settings, measured, self._beside)
        warnings = [*self._warnings, *mismatches, *self._order_warnings(), *self._settings_without_effect()]
        return definitions, warnings

    def _order_warnings(self) -> list[str]:
        """Statistics are usually those of REAL."""
        real, *fakes = dict.fromkeys(self.paths)
        pass_it = f"if it is of the real images, pass it as {option('real')}, which comes first"
        return [
            f"{path} is {self.kind_of(path)}, compared as {option('fake')} with the images of {real}: {pass_it}"
            for path in fakes
            if path in self._files and real not in self._files
        ]

    def _settings_without_effect(self) -> list[str]:
        settings, images, found = self.settings, self._image_sets, []
        if not self.any_images and (idle := _idle_with_files(settings)):
            have = "has" if len(idle) == 1 else "have"
            found.append(f"{' and '.join(idle)} {have} no effect on the values: only statistics are compared")
        found += [each.source.warning for each in images if each.source.warning]
        if not settings.recursive and (others := [each.path for each in images if "folder" not in each.source.kind]):
            found.append(f"{option('recursive', False)} has no effect on {', '.join(others)}: it only affects folders")
        if settings.features and not self._files:
            found.append(f"{option('features', True)} has no effect: no set is an array of two dimensions")
        scaled = self.streams or (settings.floats and any(each.scaled for each in images))
        if settings.value_range is not None and not scaled:
            found.append(f"{option('value_range')} has no effect: it only affects images of floats")
        if settings.float_to_byte is not None and not (scaled and settings.floats):
            found.append(f"{option('float_to_byte')} has no effect: it only affects images of floats")
        how = roundings(self._files) | ({} if settings.floats is None else {"this run": settings.rounding})
        if len({*how.values()}) > 1:
            each = ", ".join(f"{value} in {where}" for where, value in how.items())
            found.append(f"floats became bytes in different ways ({option('float_to_byte')}): {each}")
        for name, paths in (("crop", self.paths[:1]), ("crop_fake", self.paths[1:])):
            files = [path for path in dict.fromkeys(paths) if path in self._files and getattr(settings, name)]
            found += [f"{path} is {self.kind_of(path)}: {option(name)} does not apply to it" for path in files]
        for path, sampling in ((path, self.sampling(path)) for path in self._files):
            if sampling.num is not None:
                found.append(f"{path} is {self.kind_of(path)}: {option(sampling.setting)} does not apply to it")
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
        """The content of a statistics file; None for images alone, and on the other ranks."""
        return self._opened.get(path, Opened()).file

    def kind_of(self, path: str) -> str:
        """What a set that has statistics is, for messages."""
        given = self.run.in_memory.get(path)
        kind = "a fidtool.Statistics" if isinstance(given, GivenStatistics) else "an array of features"
        return "a statistics file" if given is None else kind

    def published(self, path: str) -> tuple[str, Mapping[str, str]]:
        """The name of the published reference that a path names, and the SHA-256s of its arrays. On rank zero."""
        opened = self._opened.get(path, Opened())
        return opened.reference, opened.sha256

    def images(self, path: str) -> ImageSet | None:
        """The images of a path in canonical order; None for statistics alone, and on the other ranks."""
        return self._opened.get(path, Opened()).images

    def framing(self, path: str) -> str | None:
        """How the images of a path are cropped and resized, see `fidtool.images.framing.Crop`; None if they are not."""
        return self.settings.crop if path == self.paths[0] else self.settings.crop_fake

    def sampling(self, path: str) -> Sampling:
        """Which images of a path are used."""
        own = "num_real" if path == self.paths[0] else "num_fake"
        return self.settings.sampling(own if self._real else "num")

    def lookup(self) -> ImageLookup:
        """Reads individual images again, for a report."""
        return ImageLookup(self._image_sets, self.streams, self.settings.floats)

    def check_stream(self, path: str, statistics: Statistics | None) -> None:
        """Checks what could not be checked before the images of an iterable had been counted. A collective."""
        self._use(self.run.world.on_rank_zero(lambda: self._checked_stream(path, statistics)))

    def _checked_stream(self, path: str, statistics: Statistics | None) -> Settings:
        assert statistics is not None
        assert statistics.count is not None
        if path in self.paths[1:]:
            _check_number(self.settings.expect, path, statistics.count + len(statistics.skipped))
        self._counts[path] = ImageCount(statistics.count)
        self._select(images=True, fit=path in self.paths[:2])  # later FAKEs are compared with the same settings
        return self.settings

    # --- on every rank -----------------------------------------------------------------------------------------------

    @property
    def any_images(self) -> bool:
        """Whether images go through the networks."""
        return any(self.has_images.values())

    @property
    def indexable(self) -> list[str]:
        """The paths with images that can be read again, without repetition, in processing order."""
        return [path for path in self.needs if self.has_images[path] and path not in self.streams]

    @property
    def needs_classifier(self) -> bool:
        """Whether the run computes the Inception Score, which needs Inception's classifier."""
        return self._real and self.settings.metric("is") is not None


def _spelled_once(paths: Sequence[str], in_memory: Collection[str]) -> list[str]:
    """Returns the paths, with REAL's spelling for every path of the same set."""
    real = paths[0]
    return [real if not {real, path} & {*in_memory} and identity(path) == identity(real) else path for path in paths]


def _spellings(paths: Sequence[str], in_memory: Collection[str]) -> list[str]:
    """Returns a warning about each set that was passed under several spellings."""
    sets: dict[str, dict[str, None]] = {}
    for path in paths:
        sets.setdefault(path if path in in_memory else identity(path), {})[path] = None
    several = [[*each] for each in sets.values() if len(each) > 1]
    return [f"{', '.join(each[:-1])} and {each[-1]} are the same set" for each in several]


def identity(path: str) -> str:
    """Returns the same string for all spellings of the path of a set."""
    if is_reference(path):
        reference, array = named_reference(path)
        return f"{reference.name}:{array}"
    path = path.removeprefix("file://")
    name, key = split_key(path)
    is_only = key and [*array_headers(LocalFiles([name]))] == [key]
    return real_path(name if is_only else path).rstrip("/")


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
    return [asked.named(name) for name in NETWORK_SETTINGS if getattr(asked, name) != getattr(usual, name)]


def _image_count(opened: Opened, settings: Settings) -> ImageCount | None:
    if opened.images is not None:
        return ImageCount(len(opened.images), settings.most_skipped(len(opened.images)))
    if opened.file is None:
        return None
    count = opened.file.count if opened.file.features is None else len(opened.file.features)
    return None if count is None else ImageCount(count)


def _check_one_way(path: str, settings: Settings, in_memory: bool) -> None:
    """Refuses a set that is both REAL and a FAKE, with two framings or samples: a run computes its statistics once."""
    crops = settings.crop, settings.crop_fake
    nums = tuple(settings.sampling(name).num for name in ("num_real", "num_fake"))
    for name, values, word, without in (
        ("crop", crops, "framed by", "not framed"),
        ("num", nums, "a sample of", "all images"),
    ):
        one, other = (f"{word} {value}" if value else without for value in values)
        if one == other:
            continue
        flag = f" with {option(name, values[0])}" if values[0] else ""
        file = f"first run `fidtool stats {path} -o real.npz`{flag}, and pass real.npz as REAL"
        raise InputError(
            f"{path} is REAL ({one}) and a FAKE ({other}), but a run processes each set in one way:",
            "wrap the images in two objects of type fidtool.Images" if in_memory else file,
            setting=f"{name}_fake",
        )


def _check_records(max_duplicates: float | None, path: str, opened: Opened) -> None:
    if max_duplicates is not None and opened.images is None and opened.file and opened.file.pictures is None:
        raise InputError(
            f"{option('max_duplicates')} needs records of the images, and {path} has none:",
            "pass the images instead",
            "create the file again with `fidtool stats`",
            setting="max_duplicates",
        )


def _check_number(expect: int | None, path: str, count: int | None) -> None:
    if expect is not None and count != expect:
        found = "an unknown number of images" if count is None else count
        raise InputError(f"{option('expect')} requires {expect} images but {path} has {found}", setting="expect")
