"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidtool.errors import InputError
from fidtool.features.models.families import MODEL_FAMILIES, NetworkChoice, networks_of
from fidtool.features.protocol import FEATURES, INCEPTION, INCEPTION_DIMS
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.registry import BUILT_IN, METRIC_SETTINGS
from fidtool.references.catalogue import named_reference
from fidtool.result.evaluation import Comparison, Evaluation, SetResult, read_evaluation
from fidtool.settings.presets import PRESETS, preset_named

YES, NO, NOT_KNOWN = "yes", "no", "not known"
_LOSSLESS = frozenset({"PNG", "BMP", "PPM", "array"})
_LOSSY = frozenset({"JPEG", "MPO", "AVIF", "GIF"})
"""Formats that lose nothing and formats that do, by Pillow's names; others can be either."""


@dataclass(frozen=True)
class Item:
    """One requirement of a comparable value: met, missed or not known; ``source`` is where
    ``expected`` is from.
    """

    name: str
    verdict: str
    found: str
    expected: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """Whether the values of one FAKE are comparable with those of a preset, with one item per
    requirement.
    """

    fake: str
    preset: str
    items: tuple[Item, ...]

    def named(self, verdict: str) -> list[str]:
        """Return the names of the items with this verdict."""
        return [item.name for item in self.items if item.verdict == verdict]

    @property
    def comparable(self) -> bool | None:
        """Whether all requirements are met; None if none is missed, but some are unknown."""
        return False if self.named(NO) else None if self.named(NOT_KNOWN) else True

    @property
    def line(self) -> str:
        """The verdict as one sentence."""
        missed = [
            f"{item.name}: {item.found} instead of {item.expected}"
            for item in self.items
            if item.verdict == NO
        ]
        unknown = f"; not known: {', '.join(names)}" if (names := self.named(NOT_KNOWN)) else ""
        if missed:
            return (
                f"not comparable with published values of {self.preset}: "
                f"{'; '.join(missed)}{unknown}"
            )
        known = f", as far as is known{unknown}" if unknown else ""
        return f"comparable with published values of {self.preset}{known}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in the JSON of ``fidtool verify``."""
        items = [asdict(item) for item in self.items]
        return {
            "fake": self.fake,
            "preset": self.preset,
            "comparable": self.comparable,
            "items": items,
        }


def verify(
    result: Evaluation | Mapping[str, Any] | str | Path, preset: str | None = None
) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: an evaluation, the content of the result JSON, or the path of its file.
        preset: name of the preset, see ``fidtool presets``; None for that of the run, or else of
            its reference.

    Raises:
        InputError: if there is no such preset, there is none of the run and ``preset`` is None, or
            the result cannot be read, is incomplete or is that of a failed run.
    """
    if isinstance(result, (str, Path)):
        result = read_evaluation(result)
    elif not isinstance(result, Evaluation):
        result = Evaluation.from_dict(result)
    return [_Requirements(result, comparison, preset).verdict() for comparison in result.results]


class _Requirements:
    """The requirements of a comparable value, and whether one FAKE meets them by what the result
    states.
    """

    def __init__(self, evaluation: Evaluation, result: Comparison, preset: str | None) -> None:
        self.evaluation = evaluation
        self.result = result
        self.real = result.real
        self.fake = result.fake
        self.items: list[Item] = []
        self.published = named_reference(self.real.reference)[0] if self.real.reference else None
        """The reference that is REAL."""
        project = self.published and self.published.project
        name = (
            preset
            or evaluation.run.config.get("preset")
            or (project if project in PRESETS else None)
        )
        if name is None:
            raise InputError(
                "the run had no preset:", f"pass one of {', '.join(PRESETS)}", setting="preset"
            )
        self.preset = preset_named(str(name))
        stated = networks_of(self.preset.settings.get("extractor", "inception"))
        self.further: dict[str, str | None] = {
            network.full: network.protocol for network in stated if network.family in MODEL_FAMILIES
        }
        """Protocols of the preset's networks besides Inception."""

    def verdict(self) -> Verdict:
        self._numbers()
        self._network()
        self._settings()
        self._reference()
        self._crop()
        self._images()
        return Verdict(self.fake.name, self.preset.name, tuple(self.items))

    def _add(
        self, name: str, met: bool | None, found: object, expected: object, source: str = ""
    ) -> None:
        """Add an item. ``met`` is None if it is not known; the source is the preset's by
        default.
        """
        verdict = NOT_KNOWN if met is None else YES if met else NO
        self.items.append(
            Item(name, verdict, _shown(found), _shown(expected), source or self.preset.source)
        )

    def _equal(
        self, name: str, found: object, expected: object, source: str = "", doubt: str = ""
    ) -> None:
        """Add an item that is met by what is expected, unless there is a doubt about it."""
        if found == expected and doubt:
            self._add(name, None, f"{found}; {doubt}", expected, source)
        else:
            self._add(name, None if found is None else found == expected, found, expected, source)

    def _numbers(self) -> None:
        """Numbers of images: of FAKE, of REAL, and of REAL for precision and recall if these were
        computed.
        """
        published, count = self.published, self.real.count
        asked = published or self.preset
        if asked.fakes is None:
            self._add(
                "images of FAKE", None, self.fake.count, "the number in the paper", asked.source
            )
        else:
            # A file with statistics and images does not state of how many its statistics are.
            generated = self.fake.with_features if self.fake.count is None else self.fake.count
            self._equal("images of FAKE", generated, asked.fakes, asked.source)
        if published is not None and published.real_images is not None:
            expected = published.real_images
            self._equal(
                "images of REAL", expected if count is None else count, expected, published.source
            )
        else:
            whole = (
                "those of the published reference"
                if self.preset.prefix
                else "all images of the data set"
            )
            available = self.real.found
            unreadable = [file for file in self.result.skipped if file.set == self.real.name]
            if available is not None and count is not None and count + len(unreadable) < available:
                self._add("images of REAL", False, f"{count:,} of {available:,}", whole)
            else:
                self._add("images of REAL", None, count, whole)
        if self.preset.images_with_features is not None and PRDC.name in self.evaluation.settings:
            name = "images of REAL for precision and recall"
            self._equal(name, self.real.with_features, self.preset.images_with_features)

    def _network(self) -> None:
        definition = self.evaluation.definition
        unstated = " and ".join(name for name, one in self._sets().items() if not one.stated)
        note = f"not stated for {unstated}" if unstated else ""
        extractor = definition and definition.extractor
        found = definition and f"{definition.extractor} ({definition.dims} dimensions)"
        expected = (
            found
            if extractor in self.further
            else f"{INCEPTION} ({max(INCEPTION_DIMS)} dimensions)"
        )
        self._equal("network", found, expected, "the definition of the FID", note)
        wanted = self.further.get(extractor or "", self.preset.settings["protocol"])
        doubt = (
            "a mismatch was allowed" if self.evaluation.run.config.get("allow_mismatch") else note
        )
        self._equal("protocol", definition and definition.protocol_name, wanted, doubt=doubt)
        networks = {value.features.layer: value.features.network for value in self.result.values}
        for layer, definition in self.evaluation.definitions.items():
            if layer == FEATURES:
                continue
            named = NetworkChoice(
                networks.get(layer, "")
            )  # of a file that does not state its network
            extractor = definition and definition.extractor
            for network, wanted in self.further.items():
                if wanted and (network == extractor or named.made(network)):
                    self._equal(
                        f"protocol of {network}", definition and definition.protocol_name, wanted
                    )

    def _sets(self) -> dict[str, SetResult]:
        return {"REAL": self.real, "FAKE": self.fake}

    def _settings(self) -> None:
        """Those of the metrics if the preset has some for metrics that were computed, and what
        these require.
        """
        computed = self.evaluation.settings
        found, wanted = [], []
        for key, value in self.preset.settings.items():
            if key in METRIC_SETTINGS and METRIC_SETTINGS[key][0].name in computed:
                metric, setting = METRIC_SETTINGS[key]
                found.append(f"{key} {computed[metric.name].get(setting.name)}")
                wanted.append(f"{key} {value}")
        if wanted:
            self._equal("settings of metrics", ", ".join(found), ", ".join(wanted))
        for name, settings in computed.items():
            if name in BUILT_IN:
                for requirement in BUILT_IN[name].requirements(settings, self.result.metrics):
                    self._add(
                        requirement.name, requirement.met, requirement.found, requirement.expected
                    )

    def _reference(self) -> None:
        published, prefix, origin = self.published, self.preset.prefix, self.real.origin
        met = published.project == prefix if published and prefix else None
        given = f"{self.real.name}, a file of {origin}" if origin else self.real.name
        self._add("reference", met, published.name if published else given, self.preset.reference)

    def _crop(self) -> None:
        published, preset, crop = self.published, self.preset, self.real.framing
        size = _square(self.fake)
        expected = f"{preset.crop}:{size or 'SIZE'}" if preset.crop else "that of the paper"
        if published is not None:
            found = "as published" if crop is None else f"{crop}, of cropped images"
            self._add("crop of REAL", crop is None, found, "as published", published.source)
        elif crop is not None:
            if size is not None and crop.size != size:
                met: bool | None = False
            elif preset.crop and crop.name not in preset.further_crops:
                met = crop.name == preset.crop
            else:
                met = None
            self._add("crop of REAL", met, crop, expected)
        elif preset.crop and len(self.real.sizes or ()) > 1:
            self._add("crop of REAL", False, "none, and its images have several sizes", expected)
        elif preset.crop:
            self._add("crop of REAL", None, "none by fidtool", expected)

    def _images(self) -> None:
        """Size of the images of FAKE, if that of REAL is published, their format, and the precision
        of both sets.
        """
        published, sizes = self.published, self.fake.sizes
        if published is not None and published.shape is not None:
            height, width = published.shape
            shown = None if sizes is None else ", ".join(sizes)
            self._equal("size of FAKE", shown, f"{width}x{height}", published.source)
        formats = self.fake.formats or {}
        if _LOSSY & formats.keys():
            met: bool | None = False
        else:
            met = True if formats and formats.keys() <= _LOSSLESS else None
        shown = ", ".join(f"{name} ({number:,})" for name, number in formats.items()) or "unknown"
        self._add(
            "format of FAKE",
            met,
            shown,
            "a lossless format",
            "samples are stored as PNG files or arrays",
        )
        sets = (
            {"FAKE": self.fake} if published else self._sets()
        )  # that of a published reference is as published
        precisions = {name: one.precision for name, one in sets.items()}
        others = {*precisions.values()} - {"fp32"}
        met = None if others == {None} else not others
        shown = ", ".join(f"{name} {_shown(precision)}" for name, precision in precisions.items())
        self._add(
            "precision", met, shown, "fp32", "the reference implementations compute in float32"
        )


def _square(image_set: SetResult) -> int | None:
    """Return the size of the images of a set if they are squares of one size."""
    if image_set.sizes is None or len(image_set.sizes) != 1:
        return None
    width, _, height = next(iter(image_set.sizes)).partition("x")
    return int(width) if width == height else None


def _shown(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value}"
