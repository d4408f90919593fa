"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fidtool.errors import InputError
from fidtool.features.choice import MODEL_FAMILIES, NetworkChoice, parse_networks
from fidtool.features.protocol import FEATURES, INCEPTION, INCEPTION_DIMS
from fidtool.metrics.prdc import PRDC
from fidtool.metrics.registry import BUILT_IN, METRIC_SETTINGS
from fidtool.references.catalogue import SPLITS, find_reference, find_reference_by_file
from fidtool.result.evaluation import Comparison, Evaluation, SetResult, read_evaluation
from fidtool.result.standing import Standing, find_standing
from fidtool.settings.presets import PRESETS, find_preset
from fidtool.system.json_fields import to_json_fields

YES, NO, NOT_KNOWN = "yes", "no", "not known"
# Formats that lose nothing and formats that do, by Pillow's names; others can be either.
_LOSSLESS = frozenset({"PNG", "BMP", "PPM", "array"})
_LOSSY = frozenset({"JPEG", "MPO", "AVIF", "GIF"})


@dataclass(frozen=True)
class VerdictItem:
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
    requirement; and if they are, or may be, where the FID lies among published ones.
    """

    fake: str
    preset: str
    items: tuple[VerdictItem, ...]
    standing: Standing | None = None

    DERIVED = ("comparable",)

    def names_with(self, verdict: str) -> list[str]:
        """Return the names of the items with this verdict."""
        return [item.name for item in self.items if item.verdict == verdict]

    @property
    def comparable(self) -> bool | None:
        """Whether all requirements are met; None if none is missed, but some are unknown."""
        if self.names_with(NO):
            return False
        return None if self.names_with(NOT_KNOWN) else True

    @property
    def outcome(self) -> str:
        """The verdict in a few words."""
        outcome = f"comparable with published values of {self.preset}"
        if self.comparable is False:
            return f"not {outcome}"
        return outcome if self.comparable else f"{outcome}, as far as is known"

    @property
    def line(self) -> str:
        """The verdict as one sentence."""
        missed = [
            f"{item.name}: {item.found} instead of {item.expected}"
            for item in self.items
            if item.verdict == NO
        ]
        line = f"{self.outcome}: {'; '.join(missed)}" if missed else self.outcome
        unknown = self.names_with(NOT_KNOWN)
        return f"{line}; not known: {', '.join(unknown)}" if unknown else line

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in the JSON of ``fidtool verify``."""
        return to_json_fields(self)


def verify(
    result: Evaluation | Mapping[str, Any] | str | Path, preset: str | None = None
) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: an evaluation, the content of the result JSON, or the path of its file.
        preset: name of the preset, see ``fidtool presets``; None for the preset of the run, or else
            of its reference.

    Returns:
        One verdict per FAKE, in the order of the results: ``comparable`` is True, False, or None if
        some requirements are not known, and ``items`` has one entry per requirement.

    Raises:
        InputError: if the preset is unknown, if ``preset`` is None and neither the run nor its
            reference has a preset, or if the result cannot be read, is incomplete or belongs to a
            failed run.
    """
    if isinstance(result, (str, Path)):
        result = read_evaluation(result)
    elif not isinstance(result, Evaluation):
        result = Evaluation.from_dict(result)
    return [_Requirements(result, comparison, preset).verdict() for comparison in result.results]


def find_expected_preset(evaluation: Evaluation) -> str | None:
    """Return the preset of the run, or else that of the project whose reference is REAL; None if
    there is neither.
    """
    named = evaluation.run.config.get("preset")
    if named is not None:
        return str(named)
    project = evaluation.results[0].real.reference.partition(":")[0]
    return project if project in PRESETS else None


class _Requirements:
    """The requirements of a comparable value, and whether one FAKE meets them by what the result
    states.
    """

    def __init__(self, evaluation: Evaluation, result: Comparison, preset: str | None) -> None:
        self.evaluation = evaluation
        self.result = result
        self.real = result.real
        self.fake = result.fake
        self.items: list[VerdictItem] = []
        # The reference that is REAL.
        self.published = find_reference(self.real.reference)[0] if self.real.reference else None
        name = preset or find_expected_preset(evaluation)
        if name is None:
            raise InputError(
                "the run had no preset:", f"pass one of {', '.join(PRESETS)}", setting="preset"
            )
        self.preset = find_preset(name)
        # Protocols of the preset's networks besides Inception.
        self.further = {
            network.full: network.protocol
            for network in parse_networks(self.preset.settings.get("extractor", "inception"))
            if network.family in MODEL_FAMILIES
        }

    def verdict(self) -> Verdict:
        has_network = self.preset.has_network
        self._check_fake_count()
        self._check_real_count()
        if has_network:
            self._check_network()
            self._check_other_networks()
        self._settings()
        self._reference()
        self._crop()
        self._size()
        self._format()
        if has_network:
            self._precision()
        verdict = Verdict(self.fake.name, self.preset.name, tuple(self.items))
        standing = find_standing(
            self.evaluation,
            self.result,
            self.real.reference or self.preset.published,
            verdict.comparable,
        )
        return replace(verdict, standing=standing)

    def _add(
        self, name: str, met: bool | None, found: object, expected: object, source: str = ""
    ) -> None:
        """Add an item. ``met`` is None if it is not known; the source is the preset's by
        default.
        """
        verdict = {True: YES, False: NO, None: NOT_KNOWN}[met]
        source = source or self.preset.source
        self.items.append(VerdictItem(name, verdict, _text(found), _text(expected), source))

    def _add_equal(
        self, name: str, found: object, expected: object, source: str = "", doubt: str = ""
    ) -> None:
        """Add an item that is met by what is expected, unless there is a doubt about it."""
        met = None if found is None else found == expected
        if met and doubt:
            met = None
            found = f"{found}; {doubt}"
        self._add(name, met, found, expected, source)

    def _check_fake_count(self) -> None:
        stated = self.published or self.preset
        if stated.fakes is None:
            self._add(
                "images of FAKE", None, self.fake.count, "the number in the paper", stated.source
            )
            return
        count = self.fake.count
        if count is None:
            # A file with statistics and images does not state of how many its statistics are.
            count = self.fake.with_features
        self._add_equal("images of FAKE", count, stated.fakes, stated.source)

    def _check_real_count(self) -> None:
        """Number of images of REAL, and of REAL for precision and recall if these were computed."""
        count = self.real.count
        if self.published is not None and self.published.real_images is not None:
            expected = self.published.real_images
            found = expected if count is None else count
            self._add_equal("images of REAL", found, expected, self.published.source)
        else:
            whole = "all images of the dataset"
            if self.preset.prefix:
                whole = "all images of the published reference"
            unreadable = [file for file in self.result.skipped if file.set == self.real.name]
            available = self.real.found
            if available is not None and count is not None and count + len(unreadable) < available:
                self._add("images of REAL", False, f"{count:,} of {available:,}", whole)
            else:
                self._add("images of REAL", None, count, whole)
        with_features = self.preset.images_with_features
        if with_features is not None and PRDC.name in self.evaluation.settings:
            self._add_equal(
                "images of REAL for precision and recall", self.real.with_features, with_features
            )

    def _check_network(self) -> None:
        unstated = [role for role, used in self._sets().items() if not used.stated]
        doubt = f"not stated for {' and '.join(unstated)}" if unstated else ""
        definition = self.evaluation.definition
        network = protocol = None
        expected = f"{INCEPTION} ({max(INCEPTION_DIMS)} dimensions)"
        expected_protocol = self.preset.settings["protocol"]
        if definition is not None:
            network = f"{definition.extractor} ({definition.dims} dimensions)"
            protocol = definition.protocol_name
            if definition.extractor in self.further:
                expected = network
                expected_protocol = self.further[definition.extractor]
        self._add_equal("network", network, expected, "the definition of the FID", doubt)
        if self.evaluation.run.config.get("allow_mismatch"):
            doubt = "a mismatch was allowed"
        self._add_equal("protocol", protocol, expected_protocol, doubt=doubt)

    def _check_other_networks(self) -> None:
        names = {value.features.layer: value.features.network for value in self.result.values}
        for layer, definition in self.evaluation.definitions.items():
            if layer == FEATURES:
                continue
            choice = NetworkChoice(names.get(layer, ""))  # of a file that does not state it
            extractor = protocol = None
            if definition is not None:
                extractor = definition.extractor
                protocol = definition.protocol_name
            for network, expected in self.further.items():
                if expected and (network == extractor or choice.made(network)):
                    self._add_equal(f"protocol of {network}", protocol, expected)

    def _sets(self) -> dict[str, SetResult]:
        return {"REAL": self.real, "FAKE": self.fake}

    def _settings(self) -> None:
        """Those of the metrics if the preset has some for metrics that were computed, and what
        these require. A preset without a network requires one of its metrics.
        """
        computed = self.evaluation.complete_settings
        metrics = self.preset.settings["metrics"].split(",")
        if not self.preset.has_network:
            met = not computed.keys().isdisjoint(metrics)
            self._add("metrics", met, ", ".join(computed), " or ".join(metrics))
        pairs = []
        for key, value in self.preset.settings.items():
            if key in METRIC_SETTINGS:
                metric, setting = METRIC_SETTINGS[key]
                if metric.name in computed:
                    pairs.append((f"{key} {computed[metric.name][setting.name]}", f"{key} {value}"))
        if pairs:
            differing = [pair for pair in pairs if pair[0] != pair[1]]
            texts = map(", ".join, zip(*(differing or pairs), strict=True))
            self._add_equal("settings of metrics", *texts)
        for name, settings in computed.items():
            if name in BUILT_IN:
                for required in BUILT_IN[name].requirements(settings, self.result.metrics):
                    self._add(required.name, required.met, required.found, required.expected)

    def _reference(self) -> None:
        found = self.real.name
        met = None
        if self.published is not None:
            found = self.published.name
            if self.preset.prefix:
                met = self.published.project == self.preset.prefix
        elif self.real.origin:
            found += f", a file of {self.real.origin}"
        split, reason = self._find_split()
        if split and self.preset.split not in ("", split):
            met = False
            found += f", {reason}"
        self._add("reference", met, found, self.preset.reference)

    def _find_split(self) -> tuple[str, str]:
        """Return the split of its dataset that REAL is, and the reason; both empty if it is not
        known.
        """
        named = self.published or find_reference_by_file(self.real.name)
        if named is not None:
            return named.split, f"statistics of the {named.split} set"
        # A sample of one split can have as many images as another split.
        count = self.real.count if self.real.found is None else self.real.found
        if count in SPLITS:
            data, split = SPLITS[count]
            return split, f"with as many images as {data}'s {split} set"
        return "", ""

    def _crop(self) -> None:
        name = "crop of REAL"
        crop = self.real.framing
        if self.published is not None:
            found = (
                "as published" if crop is None else (f"{crop}, of images that are cropped already")
            )
            self._add(name, crop is None, found, "as published", self.published.source)
            return
        usual = self.preset.crop
        side = _common_side(self.fake)
        expected = f"{usual}:{side or 'SIZE'}" if usual else "the crop in the paper"
        met = None
        if crop is not None:
            if side is not None and crop.size != side:
                met = False
            elif usual and crop.name not in self.preset.further_crops:
                met = crop.name == usual
            self._add(name, met, crop, expected)
        elif usual and len(self.real.sizes or ()) > 1:
            self._add(name, False, "none, and its images have several sizes", expected)
        elif usual:
            self._add(name, None, "none by fidtool", expected)

    def _size(self) -> None:
        """Size of the images of FAKE, if that of REAL is published."""
        if self.published is not None and self.published.shape is not None:
            height, width = self.published.shape
            found = None if self.fake.sizes is None else ", ".join(self.fake.sizes)
            self._add_equal("size of FAKE", found, f"{width}x{height}", self.published.source)

    def _format(self) -> None:
        formats = self.fake.formats or {}
        met = None
        if _LOSSY & formats.keys():
            met = False
        elif formats and formats.keys() <= _LOSSLESS:
            met = True
        found = ", ".join(f"{name} ({number:,})" for name, number in formats.items())
        self._add(
            "format of FAKE",
            met,
            found or None,
            "a lossless format",
            "samples are stored as PNG files or arrays",
        )

    def _precision(self) -> None:
        precisions = {role: used.precision for role, used in self._sets().items()}
        if self.published is not None:
            del precisions["REAL"]  # it is as published
        others = {*precisions.values()} - {"fp32"}
        met = None if others == {None} else not others
        found = ", ".join(f"{role} {_text(precision)}" for role, precision in precisions.items())
        self._add(
            "precision", met, found, "fp32", "a protocol gives the values of its tool in fp32"
        )


def _common_side(image_set: SetResult) -> int | None:
    """Return the side of the images of a set if they are squares of one size."""
    sizes = [*(image_set.sizes or ())]
    if len(sizes) != 1:
        return None
    width, height = sizes[0].split("x")
    return int(width) if width == height else None


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value}"
