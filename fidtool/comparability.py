"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidtool.errors import InputError
from fidtool.features.models.families import MODEL_FAMILIES, NetworkChoice, networks_of
from fidtool.features.protocol import INCEPTION, INCEPTION_DIMS
from fidtool.metrics.inception_score import SORTED
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.presets import PRESETS, preset_named
from fidtool.saved import check_result, saved_result
from fidtool.sources.references import named_reference

if TYPE_CHECKING:
    from fidtool.results import Evaluation

YES, NO, NOT_KNOWN = "yes", "no", "not known"
_LOSSLESS = frozenset({"PNG", "BMP", "PPM", "array"})
_LOSSY = frozenset({"JPEG", "MPO", "AVIF", "GIF"})
"""Formats that lose nothing and formats that do, by Pillow's names; others can be either."""


@dataclass(frozen=True)
class Item:
    """One requirement of a comparable value: met, missed or not known; ``source`` is where ``expected`` is from."""

    name: str
    verdict: str
    found: str
    expected: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """Whether the values of one FAKE are comparable with those of a preset, with one item per requirement."""

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
        missed = [f"{item.name}: {item.found} instead of {item.expected}" for item in self.items if item.verdict == NO]
        unknown = f"; not known: {', '.join(names)}" if (names := self.named(NOT_KNOWN)) else ""
        if missed:
            return f"not comparable with published values of {self.preset}: {'; '.join(missed)}{unknown}"
        known = f", as far as is known{unknown}" if unknown else ""
        return f"comparable with published values of {self.preset}{known}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in the JSON of ``fidtool verify``."""
        items = [asdict(item) for item in self.items]
        return {"fake": self.fake, "preset": self.preset, "comparable": self.comparable, "items": items}


def verify(result: Evaluation | Mapping[str, Any] | str | Path, preset: str | None = None) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: an evaluation, the content of the result JSON, or the path of its file.
        preset: name of the preset, see ``fidtool presets``; None for that of the run, or else of its reference.

    Raises:
        InputError: if there is no such preset, there is none of the run and ``preset`` is None, or the result cannot be
            read, is incomplete or is that of a failed run.
    """
    if isinstance(result, (str, Path)):
        content: Mapping[str, Any] = saved_result(result)
    else:
        content = result if isinstance(result, Mapping) else getattr(result, "to_dict", dict)()
        check_result(content)
    try:
        return [_Requirements(content, each, preset).verdict() for each in content["results"]]
    except InputError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:  # a file that was edited
        raise InputError(f"the result is incomplete or was changed ({type(error).__name__}: {error})") from None


class _Requirements:
    """The requirements of a comparable value, and whether one FAKE meets them by what the JSON states."""

    def __init__(self, content: Mapping[str, Any], result: Mapping[str, Any], preset: str | None) -> None:
        self.content, self.result, self.items = content, result, list[Item]()
        self.config: Mapping[str, Any] = content["run"].get("config") or {}
        self.settings: Mapping[str, Any] = content.get("settings") or {}
        sets = result.get("sets") or {}
        self.real, self.fake = (sets.get(of) or {} for of in ("real", "fake"))
        reference = self.real.get("reference", "")
        self.published = named_reference(reference)[0] if reference else None
        """The reference that is REAL."""
        project = reference.partition(":")[0]
        name = preset or self.config.get("preset") or (project if project in PRESETS else None)
        if name is None:
            raise InputError("the run had no preset:", f"pass one of {', '.join(PRESETS)}", setting="preset")
        self.preset = preset_named(str(name))
        stated = networks_of(self.preset.settings.get("extractor", "inception"))
        self.further: dict[Any, str | None] = {
            each.full: each.protocol for each in stated if each.family in MODEL_FAMILIES
        }
        """Protocols of the preset's networks besides Inception."""

    def verdict(self) -> Verdict:
        self._numbers()
        self._network()
        self._settings()
        self._real()
        self._images()
        return Verdict(str(self.result.get("fake")), self.preset.name, tuple(self.items))

    def _add(self, name: str, met: bool | None, found: object, expected: object, source: str = "") -> None:
        """Add an item. ``met`` is None if it is not known; the source is the preset's by default."""
        verdict = NOT_KNOWN if met is None else YES if met else NO
        self.items.append(Item(name, verdict, _shown(found), _shown(expected), source or self.preset.source))

    def _equal(self, name: str, found: object, expected: object, source: str = "", doubt: str = "") -> None:
        """Add an item that is met by what is expected, unless there is a doubt about it."""
        if found == expected and doubt:
            self._add(name, None, f"{found}; {doubt}", expected, source)
        else:
            self._add(name, None if found is None else found == expected, found, expected, source)

    def _numbers(self) -> None:
        """Numbers of images: of FAKE, of REAL, and of REAL for precision and recall if these were computed."""
        real, fake = (self.result["count"][of] for of in ("real", "fake"))
        asked = self.published or self.preset
        if asked.fakes is None:
            self._add("images of FAKE", None, fake, "the number in the paper", asked.source)
        else:
            # A file with statistics and images does not state of how many its statistics are.
            found = self.fake.get("with_features") if fake is None else fake
            self._equal("images of FAKE", found, asked.fakes, asked.source)
        if self.published is not None and self.published.real_images is not None:
            expected = self.published.real_images
            self._equal("images of REAL", expected if real is None else real, expected, self.published.source)
        else:
            whole = "those of the published reference" if self.preset.prefix else "all images of the data set"
            available = (self.result.get("found") or {}).get("real")
            unreadable = [each for each in self.result.get("skipped") or () if each["set"] == self.result["real"]]
            some = None not in (available, real) and real + len(unreadable) < available
            self._add("images of REAL", False if some else None, f"{real:,} of {available:,}" if some else real, whole)
        if self.preset.images_with_features is not None and "prdc" in self.settings:
            name = "images of REAL for precision and recall"
            self._equal(name, self.real.get("with_features"), self.preset.images_with_features)

    def _network(self) -> None:
        sets, protocol = {"REAL": self.real, "FAKE": self.fake}, self.content.get("protocol") or {}
        unstated = " and ".join(name for name, facts in sets.items() if not facts.get("stated", True))
        note = f"not stated for {unstated}" if unstated else ""
        extractor = protocol.get("extractor")
        found = None if extractor is None else f"{extractor} ({protocol.get('dims')} dimensions)"
        expected = found if extractor in self.further else f"{INCEPTION} ({max(INCEPTION_DIMS)} dimensions)"
        self._equal("network", found, expected, "the definition of the FID", note)
        name, wanted = protocol.get("name"), self.further.get(extractor, self.preset.settings["protocol"])
        doubt = "a mismatch was allowed" if self.config.get("allow_mismatch") else note
        self._equal("protocol", name, wanted, doubt=doubt)
        own = (self.content.get("labels") or {}).get("own_networks") or {}
        for layer, each in (self.content.get("layers") or {}).items():
            asked = NetworkChoice(own.get(layer, ""))  # of a file that does not state its network
            network = next((name for name in self.further if name == each.get("extractor") or asked.made(name)), "")
            if wanted := self.further.get(network):
                self._equal(f"protocol of {network}", each.get("name"), wanted)
        if "fdr" in self.settings:
            six = "fdr6" in (self.result.get("metrics") or {})
            self._add("networks of FDr6", six, "all six" if six else "not all six", "all six")

    def _settings(self) -> None:
        """Those of the metrics if the preset has some for metrics that were computed, and the order of FAKE."""
        found, wanted = [], []
        for key, value in self.preset.settings.items():
            if key in METRIC_SETTINGS and METRIC_SETTINGS[key][0].name in self.settings:
                kind, each = METRIC_SETTINGS[key]
                found.append(f"{key} {self.settings[kind.name].get(each.name)}")
                wanted.append(f"{key} {value}")
        if wanted:
            self._equal("settings of metrics", ", ".join(found), ", ".join(wanted))
        if (self.settings.get("is") or {}).get("part_size") is not None:
            order = (self.result.get("metrics") or {}).get("is_order")
            shown = None if order is None else f"parts with {order:.2f} times the score of random parts"
            self._add("order of FAKE", None if order is None else order >= SORTED, shown, "random")

    def _real(self) -> None:
        published, prefix, origin = self.published, self.preset.prefix, self.real.get("origin")
        met = published.name.partition(":")[0] == prefix if published and prefix else None
        given = f"{self.result.get('real')}{f', a file of {origin}' if origin else ''}"
        self._add("reference", met, published.name if published else given, self.preset.reference)
        preset, framing = self.preset, (self.result.get("framing") or {}).get("real")
        of_fake = self.fake.get("sizes") or {}
        width, _, height = next(iter(of_fake), "").partition("x")
        size = int(width) if len(of_fake) == 1 and width == height else None  # of squares of one size
        expected = f"{preset.crop}:{size or 'SIZE'}" if preset.crop else "that of the paper"
        if published is not None:
            found = "as published" if framing is None else f"{framing}, of cropped images"
            self._add("crop of REAL", framing is None, found, "as published", published.source)
        elif framing is not None:
            name, _, side = framing.partition(":")
            fits = size is None or int(side) == size
            known = preset.crop and name not in preset.further_crops
            self._add("crop of REAL", False if not fits else name == preset.crop if known else None, framing, expected)
        elif preset.crop:
            several = len(self.real.get("sizes") or ()) > 1
            found = "none, and its images have several sizes" if several else "none by fidtool"
            self._add("crop of REAL", False if several else None, found, expected)

    def _images(self) -> None:
        """Size of the images of FAKE, if that of REAL is published, their format, and the precision of both sets."""
        published, sizes = self.published, self.fake.get("sizes")
        if published is not None and published.shape is not None:
            height, width = published.shape
            found = None if sizes is None else ", ".join(sizes)
            self._equal("size of FAKE", found, f"{width}x{height}", published.source)
        formats: Mapping[str, int] = self.fake.get("formats") or {}
        shown = ", ".join(f"{name} ({_shown(number)})" for name, number in formats.items()) or "unknown"
        unknown = not formats or not formats.keys() <= _LOSSLESS
        met = False if _LOSSY & formats.keys() else None if unknown else True
        source = "samples are stored as PNG files or arrays"
        self._add("format of FAKE", met, shown, "a lossless format", source)
        # That of a published reference is as published.
        sets = {"FAKE": self.fake} if published else {"REAL": self.real, "FAKE": self.fake}
        of_run = self.content["run"].get("precision") or None
        precisions = {name: facts.get("precision", of_run) for name, facts in sets.items()}
        met = False if {*precisions.values()} - {None, "fp32"} else None if None in precisions.values() else True
        shown = ", ".join(f"{name} {_shown(precision)}" for name, precision in precisions.items())
        self._add("precision", met, shown, "fp32", "the reference implementations compute in float32")


def _shown(value: object) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value}"
