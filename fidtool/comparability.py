"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from fidtool.errors import InputError
from fidtool.features.protocol import INCEPTION, INCEPTION_DIMS
from fidtool.names import counted
from fidtool.presets import PRESETS, Preset, preset_named
from fidtool.sources.references import Reference, named_reference

YES, NO, NOT_KNOWN = "yes", "no", "not known"
_LOSSLESS = frozenset({"PNG", "BMP", "PPM", "array"})
_LOSSY = frozenset({"JPEG", "MPO", "AVIF", "GIF"})
"""Formats that lose nothing and formats that do, by Pillow's names; others can be either."""
_SIGMAS = 5.0
"""Standard deviations by which the classes of labels that were drawn at random may differ from equal numbers."""
_SETTINGS = {
    "is_part_size": ("is", "part_size"),
    "nearest_k": ("prdc", "nearest_k"),
    "ties": ("prdc", "ties"),
    "is_bias": ("is", "bias"),
}
"""Settings of metrics by their names in presets: metric and setting, as in the JSON."""


@dataclass(frozen=True)
class Item:
    """One requirement of a comparable value.

    Attributes:
        name: what is checked.
        verdict: ``yes``, ``no`` or ``not known``.
        found: the value in the result.
        expected: the value that is required.
        source: where the required value is from.
    """

    name: str
    verdict: str
    found: str
    expected: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """Whether the values of one FAKE are comparable with those of a preset.

    Attributes:
        fake: path of the FAKE.
        preset: name of the preset.
        items: the requirements.
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
        missed = [f"{item.name}: {item.found} instead of {item.expected}" for item in self.items if item.verdict == NO]
        unknown = ", ".join(self.named(NOT_KNOWN))
        if missed:
            rest = f"; not known: {unknown}" if unknown else ""
            return f"not comparable with published values of {self.preset}: {'; '.join(missed)}{rest}"
        rest = f", as far as is known; not known: {unknown}" if unknown else ""
        return f"comparable with published values of {self.preset}{rest}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in the JSON of ``fidtool verify``."""
        return {
            "fake": self.fake,
            "preset": self.preset,
            "comparable": self.comparable,
            "items": [asdict(item) for item in self.items],
        }


class Result(Protocol):
    """An evaluation, as `fidtool.compute` returns it."""

    def to_dict(self) -> Mapping[str, Any]:
        """Return the content of the result JSON."""


def verify(result: Result | Mapping[str, Any] | str | Path, preset: str | None = None) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: an evaluation, the content of the result JSON, or the path of its file.
        preset: name of the preset, see ``fidtool presets``; None for that of the run, or else of its reference.

    Returns:
        One verdict per FAKE.

    Raises:
        InputError: if there is no such preset, there is none of the run and ``preset`` is None, or the result cannot be
            read, is incomplete or is that of a failed run.
    """
    content = _content(result)
    if not isinstance(content.get("results"), list) or not isinstance(content.get("run"), Mapping):
        problem = "this is not the JSON of `fidtool compute`, which has results and run:"
        raise InputError(problem, "pass the file that its option -o wrote")
    try:
        if not content["results"]:
            reason = (content.get("exit") or {}).get("reason", "")
            raise InputError(f"the result has no values: the run failed ({reason})")
        return [_verdict(content, each, _chosen(preset, content, each)) for each in content["results"]]
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:  # a file that was edited
        raise InputError(f"the result is incomplete or was changed ({type(error).__name__}: {error})") from None


def _content(result: Result | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    if not isinstance(result, (str, Path)):
        return result.to_dict()
    try:
        content = json.loads(Path(result).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise InputError(f"{result} cannot be read: {reason}") from None
    if not isinstance(content, Mapping):
        raise InputError(f"{result} is not the JSON of `fidtool compute`")
    return content


def _chosen(preset: str | None, content: Mapping[str, Any], result: Mapping[str, Any]) -> Preset:
    name = preset or (content["run"].get("config") or {}).get("preset")
    project = _facts(result, "real").get("reference", "").partition(":")[0]
    if name is None and project not in PRESETS:
        raise InputError("the run had no preset:", f"pass one of {', '.join(PRESETS)}", setting="preset")
    return preset_named(str(name or project))


def _facts(result: Mapping[str, Any], of: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (result.get("sets") or {}).get(of) or {}
    return found


def _verdict(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Verdict:
    fake, name = _facts(result, "fake"), _facts(result, "real").get("reference")
    published = named_reference(name)[0] if name else None
    items = [
        _fake_images(result, preset, published),
        _real_images(result, preset, published),
        _images_with_features(content, result, preset),
        _network(content, result, preset),
        _protocol(content, result, preset),
        _settings(content, preset),
        _reference(result, preset, published),
        _crop(result, preset, published),
        _crop_of_fake(result, preset),
        _size(fake, published),
        _formats(fake),
        _precision(content, result, published),
        _classes(result, preset, published),
    ]
    return Verdict(str(result.get("fake")), preset.name, tuple(item for item in items if item is not None))


def _equal(name: str, found: Any, expected: Any, source: str) -> Item:
    verdict = NOT_KNOWN if found is None else YES if found == expected else NO
    return Item(name, verdict, _shown(found), _shown(expected), source)


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value}"


def _fake_images(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item:
    expected, source = (published.fakes, published.source) if published else (preset.fakes, preset.source)
    count, facts = result["count"]["fake"], _facts(result, "fake")
    if reference := facts.get("reference"):
        return Item("images of FAKE", NO, f"the reference {reference}", "generated images", source)
    if expected is None:
        return Item("images of FAKE", NOT_KNOWN, _shown(count), "the number in the paper", source)
    # A file with statistics and images does not state of how many its statistics are.
    return _equal("images of FAKE", facts.get("with_features") if count is None else count, expected, source)


def _real_images(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item:
    count = result["count"]["real"]
    if published is not None and published.real_images is not None:
        number = published.real_images
        return _equal("images of REAL", number if count is None else count, number, published.source)
    expected = "those of the published reference" if preset.prefix else "all images of the data set"
    return Item("images of REAL", NOT_KNOWN, _shown(count), expected, preset.source)


def _images_with_features(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Item | None:
    """The images of REAL for precision and recall; None if the preset or the run has none."""
    if preset.images_with_features is None or "prdc" not in (content.get("settings") or {}):
        return None
    found = _facts(result, "real").get("with_features")
    return _equal("images of REAL for precision and recall", found, preset.images_with_features, preset.source)


def _unstated(result: Mapping[str, Any]) -> str:
    """The sets whose statistics do not state their protocol, as text; empty if all do."""
    return " and ".join(of.upper() for of in ("real", "fake") if not _facts(result, of).get("stated", True))


def _network(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Item:
    protocol = content.get("protocol") or {}
    extractor, dims = protocol.get("extractor"), protocol.get("dims")
    found = None if extractor is None else f"{extractor} ({dims} dimensions)"
    expected = f"{INCEPTION} ({max(INCEPTION_DIMS)} dimensions)"
    if extractor in preset.further_networks or (found == expected and _unstated(result)):
        stated = f"{found}; not stated for {_unstated(result)}" if _unstated(result) else f"{found}"
        return Item("network", NOT_KNOWN, stated, expected, preset.source)
    return _equal("network", found, expected, "the definition of the FID")


def _protocol(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Item:
    found = _equal("protocol", (content.get("protocol") or {}).get("name"), preset.settings["protocol"], preset.source)
    allowed = (content["run"].get("config") or {}).get("allow_mismatch")
    reason = "a mismatch was allowed" if allowed else _unstated(result) and f"not stated for {_unstated(result)}"
    if reason and found.verdict == YES:
        return Item("protocol", NOT_KNOWN, f"{found.found}; {reason}", found.expected, found.source)
    return found


def _settings(content: Mapping[str, Any], preset: Preset) -> Item | None:
    """The settings of the metrics that were computed; None if the preset has none for them."""
    computed = content.get("settings") or {}
    names = [name for name in preset.settings if name in _SETTINGS and _SETTINGS[name][0] in computed]
    if not names:
        return None
    found = {name: computed[_SETTINGS[name][0]].get(_SETTINGS[name][1]) for name in names}
    wanted = {name: preset.settings[name] for name in names}
    return _equal("settings of metrics", _listed(found), _listed(wanted), preset.source)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _reference(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item:
    if published is None:
        origin = _facts(result, "real").get("origin")
        found = f"{result.get('real')}" + (f", a file of {origin}" if origin else "")
        return Item("reference", NOT_KNOWN, found, preset.reference, preset.source)
    if not preset.prefix:
        return Item("reference", NOT_KNOWN, published.name, preset.reference, preset.source)
    verdict = YES if published.name.partition(":")[0] == preset.prefix else NO
    return Item("reference", verdict, published.name, preset.reference, preset.source)


def _crop(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item | None:
    """How REAL was cropped; None if neither the preset nor the run has a crop."""
    framing = (result.get("framing") or {}).get("real")
    if published is not None:
        found = "as published" if framing is None else f"{framing}, of cropped images"
        return Item("crop of REAL", YES if framing is None else NO, found, "as published", published.source)
    if framing is None and not preset.crop:
        return None
    size = _common_size(_facts(result, "fake"))
    expected = f"{preset.crop}:{size or 'SIZE'}" if preset.crop else "that of the paper"
    if framing is not None:
        name, _, side = framing.partition(":")
        fits = size is None or int(side) == size
        known = preset.crop and name not in preset.further_crops
        verdict = NO if not fits else NOT_KNOWN if not known else YES if name == preset.crop else NO
        return Item("crop of REAL", verdict, framing, expected, preset.source)
    sizes = _facts(result, "real").get("sizes")
    if sizes is not None and len(sizes) > 1:
        return Item("crop of REAL", NO, "none, and its images have several sizes", expected, preset.source)
    return Item("crop of REAL", NOT_KNOWN, "none by fidtool", expected, preset.source)


def _crop_of_fake(result: Mapping[str, Any], preset: Preset) -> Item | None:
    """How FAKE was cropped; None if it was not."""
    framing = (result.get("framing") or {}).get("fake")
    return None if framing is None else Item("crop of FAKE", NO, framing, "none", preset.source)


def _common_size(fake: Mapping[str, Any]) -> int | None:
    """Side in pixels of the images of FAKE if they are square and of one size; else None."""
    sizes = fake.get("sizes") or {}
    width, _, height = next(iter(sizes), "").partition("x")
    return int(width) if len(sizes) == 1 and width == height else None


def _size(fake: Mapping[str, Any], published: Reference | None) -> Item | None:
    """The size of the images of FAKE; None if that of REAL is not published."""
    if published is None or published.shape is None:
        return None
    height, width = published.shape
    sizes = fake.get("sizes")
    found = None if sizes is None else ", ".join(sizes)
    return _equal("size of FAKE", found, f"{width}x{height}", published.source)


def _formats(fake: Mapping[str, Any]) -> Item:
    formats: Mapping[str, int] = fake.get("formats") or {}
    found = ", ".join(f"{name} ({_shown(number)})" for name, number in formats.items()) or "unknown"
    unknown = not formats or not formats.keys() <= _LOSSLESS
    verdict = NO if _LOSSY & formats.keys() else NOT_KNOWN if unknown else YES
    return Item("format of FAKE", verdict, found, "a lossless format", "samples are stored as PNG files or arrays")


def _precision(content: Mapping[str, Any], result: Mapping[str, Any], published: Reference | None) -> Item:
    """The precision of both sets; that of a published reference is as published."""
    of_run = content["run"].get("precision") or None
    sets = ("fake",) if published else ("real", "fake")
    found = {of: _facts(result, of).get("precision", of_run) for of in sets}
    other = [precision for precision in found.values() if precision not in (None, "fp32")]
    verdict = NO if other else NOT_KNOWN if None in found.values() else YES
    shown = ", ".join(f"{of.upper()} {_shown(precision)}" for of, precision in found.items())
    return Item("precision", verdict, shown, "fp32", "the reference implementations compute in float32")


def _classes(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item | None:
    """The balance of the classes of FAKE; None if the preset has none."""
    if not preset.classes or (published is not None and published.classes is None):
        return None
    classes = _facts(result, "fake").get("classes")
    if classes is None or classes["number"] < 2:
        return Item("classes of FAKE", NOT_KNOWN, "no folders name classes", preset.classes, preset.source)
    number, images, fewest, most = (classes[name] for name in ("number", "images", "fewest", "most"))
    each = f"{_shown(fewest)}" if fewest == most else f"{_shown(fewest)} to {_shown(most)}"
    found = f"{counted(number, 'class', 'classes')} with {each} images each"
    of_real = published.classes if published else (_facts(result, "real").get("classes") or {}).get("number")
    if of_real is not None and number != of_real:
        return Item("classes of FAKE", NO, found, counted(of_real, "class", "classes"), preset.source)
    spread = number * classes["squares"] / images - images  # chi-squared against equal numbers
    random = spread <= number - 1 + _SIGMAS * (2 * (number - 1)) ** 0.5
    verdict = NO if not random else NOT_KNOWN if of_real is None else YES
    return Item("classes of FAKE", verdict, found, preset.classes, preset.source)
