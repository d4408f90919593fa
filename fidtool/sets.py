"""REAL and the FAKEs of a run, from what the user named to measured sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from fidtool.agreement import (
    common_definition,
    inception_of,
    require_layer,
    told_from,
    unusual_networks,
    with_settings_of,
)
from fidtool.errors import InputError, on_every_rank
from fidtool.features.protocol import FEATURES, Definition, NetworkChoice
from fidtool.images.lookup import ImageLookup
from fidtool.inputs import open_source, require_exists
from fidtool.labels import Labels, labels_of
from fidtool.measure import Measurer
from fidtool.metrics.registry import in_order
from fidtool.needs import Count, SetNeeds, check_counts, layer_of, networks_of, set_needs
from fidtool.session import Session
from fidtool.settings import Settings
from fidtool.sources.census import PassedOver
from fidtool.sources.folder import split_by_the_shell
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.statistics_file import MeasuredSet, Statistics, spread_features


class Sets:
    """REAL and the FAKEs, opened. Rank zero holds them; the others know which have images. Made by a collective.

    Args:
        session: the run; its settings are completed by what the statistics files say.
        paths: what was given, the first of them as REAL if ``real``.
        real: whether there is a REAL.

    Attributes:
        needed: what is needed of each path.
        taken: what the settings were completed by, a sentence each; on rank zero.
    """

    def __init__(self, session: Session, paths: Sequence[str], real: bool = True) -> None:
        self._world, self._config, self._given = session.world, session.config, session.given
        self._paths, self._real = paths, real
        self.needed = self._needs()
        self._opened: dict[str, ImageSet | Statistics] = {}
        self._streams = {path: given for path, given in session.given.items() if given.is_stream}
        if self._streams and session.config.checkpoint is not None:
            name = next(iter(self._streams))
            raise on_every_rank(
                InputError(f"--checkpoint cannot go on in the middle of {name}, an iterable: leave it out")
            )
        self._notes: list[str] = []
        self.taken: list[str] = []
        with session.clock("list"):
            self._has_images, self._config = session.world.on_rank_zero(lambda: self._open(session))
        self.needed, session.config = self._needs(), self._config

    def _needs(self) -> dict[str, SetNeeds]:
        reals, fakes = (self._paths[:1], self._paths[1:]) if self._real else ((), self._paths)
        return {path: set_needs(self._config, path in reals, path in fakes) for path in dict.fromkeys(self._paths)}

    def _open(self, session: Session) -> tuple[dict[str, bool], Settings]:
        """Opens every path; statistics files come first, so that a bad one is refused before a long listing.

        Returns:
            Which paths have images, and the settings.
        """
        config = self._config
        require_exists([path for path in self._paths if path not in self._given])
        for path in sorted(self.needed.keys() - self._streams, key=self._urgency):
            source = self._open_one(path)
            if path in self._paths[1:]:
                _check_expected(config.expect, path, source.found if isinstance(source, ImageSet) else source.count)
                _check_inspected(config.max_duplicates, path, source)
            if isinstance(source, ImageSet) and source.source.kind == "list of files":
                self._check_missing(source)
            self._opened[path] = source.draw(config.num, config.seed) if isinstance(source, ImageSet) else source
        if self._real:
            counts = {path: _count(source, config) for path, source in self._opened.items()}
            known = {path: count for path, count in counts.items() if count is not None}
            check_counts(config, known, self._paths[1:])
        have_images = {path: not isinstance(self._opened.get(path), Statistics) for path in self.needed}
        self._complete(session, any(have_images.values()))
        return have_images, self._config

    def _complete(self, session: Session, have_images: bool) -> None:
        """Takes from the statistics files what nobody has asked for otherwise; without images it is said alone."""
        files = {path: source for path, source in self._opened.items() if isinstance(source, Statistics)}
        if have_images:
            self._config, line = with_settings_of(files, self._config)
        else:
            taken = inception_of(files, self._config)
            line = told_from(files, taken) if taken else ""
        if line:
            self.taken.append(line)
            session.console.say(line)
        before, self.needed = self.needed, self._needs()
        for path in before:
            if path in files and self.needed[path] != before[path]:  # CMMD's features are in another layer now
                self._opened[path] = self._open_one(path)

    def _check_missing(self, source: ImageSet) -> None:
        if self._config.on_error == "fail" and (missing := source.missing()):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{source.path} names {missing[0]}{more}, and there is no such file: mend the list, or pass --on-error "
                "skip"
            )

    def _urgency(self, path: str) -> tuple[bool, int]:
        return not path.lower().endswith(".npz"), self._paths.index(path)

    def _open_one(self, path: str) -> ImageSet | Statistics:
        if path in self._given:
            return self._given[path].image_set(self._config.value_range)
        return open_source(path, self._config, self.needed[path].kept, self._notes.append)

    def measurer(self, session: Session) -> Measurer | None:
        """What measures images, if there are any. A collective."""
        if not any(self._has_images.values()):
            return None
        classifier = self._real and session.config.metric("is") is not None
        measurer = Measurer(session, classifier)
        session.kept = measurer.keeping.words
        paths = [path for path in self.needed if self._has_images[path] and path not in self._streams]
        opened = (self._opened.get(path) for path in paths)
        found = [images for images in opened if isinstance(images, ImageSet)]
        measurer.open_checkpoint(found, [self.needed[path] for path in paths])
        return measurer

    def agree(self, measurer: Measurer | None) -> tuple[dict[str, Definition | None], list[str]]:
        """What all sets agree on, layer by layer: see `common_definition`. On rank zero alone."""
        config = self._config
        files = {path: source for path, source in self._opened.items() if isinstance(source, Statistics)}
        definitions: dict[str, Definition | None] = {}
        doubts = [line for line in (*self._notes, split_by_the_shell(self._paths)) if line]
        for layer in dict.fromkeys(layer for needed in self.needed.values() for layer in needed.layers):
            parts = {path: require_layer(path, files[path], layer, self.needed[path]) for path in files}
            measured = measurer.assembly.definitions[layer] if measurer else None
            dims = config.dims if layer == FEATURES else None
            # A metric's own network knows no protocol, and is not what --extractor asks for.
            asked = replace(config, protocol=None, extractor=None) if layer in networks_of(config) else config
            definitions[layer], mismatches = common_definition(parts, measured, asked, dims)
            of_layer, file = (measured.dims, "") if measured else (next(iter(parts.values())).dims, next(iter(parts)))
            for metric in in_order(config.chosen):
                if layer_of(metric, config) == layer:
                    metric.check_features(definitions[layer], of_layer, file)
            doubts += [line for line in mismatches if line not in doubts]
        doubts += unusual_networks(config, definitions)
        if measurer is None and (idle := _idle_with_files(config)):
            have = "has" if len(idle) == 1 else "have"
            doubts.append(f"{' and '.join(idle)} {have} no effect on the numbers: statistics files alone are compared")
        images = [source for source in self._opened.values() if isinstance(source, ImageSet)]
        doubts += [each.source.doubt for each in images if each.source.doubt]
        if not config.recursive and (others := [each.path for each in images if "folder" not in each.source.kind]):
            doubts.append(f"--no-recursive has no effect on {', '.join(others)}: it is for folders")
        scaled = self._streams or any(each.source.reader.scaled for each in images)
        if config.value_range is not None and not scaled:
            doubts.append("--value-range has no effect: no set is an array of floats")
        if config.num is not None:
            doubts += [f"{path} is a statistics file: --num does not apply to it" for path in files]
        return definitions, doubts

    def labels(self, definitions: Mapping[str, Definition | None], measurer: Measurer | None) -> Labels:
        """What the numbers are called, given what all sets agree on. On rank zero alone."""
        files = [source for source in self._opened.values() if isinstance(source, Statistics)]
        definition = definitions[FEATURES]
        dims = files[0].dims if definition is None else definition.dims
        found = {layer: [source.layers.get(layer) for source in files] for layer in definitions}
        said = {layer: [one.definition for one in parts if one and one.definition] for layer, parts in found.items()}
        return labels_of(definitions, self._config, measurer is not None, dims, said)

    def measured(self, measurer: Measurer | None) -> Iterator[MeasuredSet]:
        """Each path's set, REAL's first, measured when it is asked for. Each step is a collective.

        A path given twice is measured once, and kept from its first time to its last; others can be let go of.
        """
        known: dict[str, MeasuredSet] = {}
        numbers = itertools.count()
        for position, path in enumerate(self._paths):
            found = known.pop(path, None) or self._measure(path, measurer, numbers)
            if path in self._paths[position + 1 :]:
                known[path] = found
            yield found
            del found

    def images(self, path: str) -> ImageSet | None:
        """The images of a path, in canonical order, on rank zero; None elsewhere and of a statistics file."""
        source = self._opened.get(path)
        return source if isinstance(source, ImageSet) else None

    def passed_over(self, path: str) -> PassedOver | None:
        """What the source holds beside its images, on rank zero; None of a statistics file and of an iterable."""
        images = self.images(path)
        return None if images is None else images.source.passed_over

    def gallery(self) -> ImageLookup:
        """What gets single images again, on rank zero."""
        return ImageLookup([each for each in self._opened.values() if isinstance(each, ImageSet)], self._streams)

    def can_be_read_again(self, path: str) -> bool:
        """Whether a path is of images, and not of an iterable; known on every rank."""
        return self._has_images[path] and path not in self._streams

    def _measure(self, path: str, measurer: Measurer | None, numbers: Iterator[int]) -> MeasuredSet:
        source, needed = self._opened.get(path), self.needed[path]
        if path in self._streams and measurer is not None:
            measured = measurer.measure_stream(self._streams[path], needed)
            self._world.on_rank_zero(lambda: self._check_count(path, measured))
            return measured
        if self._has_images[path] and measurer is not None:
            return measurer.measure(next(numbers), path, self.images(path), needed)
        statistics = source if isinstance(source, Statistics) else None
        return spread_features(path, statistics, needed.kept, self._world)

    def _check_count(self, path: str, measured: MeasuredSet) -> None:
        """What could not be checked before the images of an iterable had been counted."""
        assert measured.statistics is not None
        count, config = measured.statistics.count, self._config
        assert count is not None
        skipped = len(measured.statistics.skipped)
        if path in self._paths[1:]:
            _check_expected(config.expect, path, count + skipped)
        if self._real:
            check_counts(config, {path: Count(count)}, self._paths[1:])


def _idle_with_files(config: Settings) -> list[str]:
    """Flags that were given and do nothing where no image is read."""
    idle = _changed_flags("--", config.network, Settings().network)
    for metric in config.chosen:
        if (own := metric.network()) is None:
            continue
        if own == config.network:
            return []  # together they say in which layer the metric's features are
        usual = type(metric)().network()
        assert usual is not None
        idle += _changed_flags(f"--{metric.name}-", own, usual)
    if config.metric("is") is not None:  # the classifier is in them
        idle = [flag for flag in idle if flag != "--weights"]
    return idle if config.checkpoint is None else [*idle, "--checkpoint"]


def _changed_flags(prefix: str, asked: NetworkChoice, usual: NetworkChoice) -> list[str]:
    """The flags of a network that are not at their defaults."""
    names = [each.name for each in fields(asked) if getattr(asked, each.name) != getattr(usual, each.name)]
    return [f"{prefix}{name.replace('_', '-')}" for name in names]


def _count(source: ImageSet | Statistics, config: Settings) -> Count | None:
    if isinstance(source, ImageSet):
        return Count(len(source), config.most_skipped(len(source)))
    return None if source.count is None else Count(source.count)


def _check_inspected(max_duplicates: float | None, path: str, source: ImageSet | Statistics) -> None:
    if max_duplicates is not None and isinstance(source, Statistics) and source.pictures is None:
        raise InputError(
            f"--max-duplicates needs to know the images of {path}, and that file does not: give the images, or make "
            "it anew with `fidtool stats`"
        )


def _check_expected(expect: int | None, path: str, count: int | None) -> None:
    if expect is not None and count != expect:
        found = "an unknown number of" if count is None else count
        raise InputError(f"--expect asks for {expect} images but {path} has {found}")
