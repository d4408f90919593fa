"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidtool.errors import InputError
from fidtool.features.protocol import INCEPTION, INCEPTION_DIMS
from fidtool.presets import PRESETS, Preset, preset_named
from fidtool.sources.references import Reference, is_reference, named_reference

YES, NO, NOT_KNOWN = "yes", "no", "not known"
_EITHER = frozenset({"HEIF", "JPEG2000", "WEBP"})
_LOSSY = frozenset({"JPEG", "MPO", "AVIF"})
"""Formats that can be lossless, and lossy ones, by Pillow's names."""
_SIGMAS = 5.0
"""Standard deviations by which the classes of labels that were drawn at random may differ from equal numbers."""
_FURTHER_NETWORKS = {"edm2": "dinov2:vitl14"}
"""Networks besides Inception by presets whose programs have them, with another resize by default."""
_CROPS_OF_SOME = {"edm": "resize"}
"""Crops besides their usual one that presets' programs use for some data sets, such as square images."""
_SETTINGS = {
    "is_part_size": ("is", "part_size"),
    "nearest_k": ("prdc", "nearest_k"),
    "ties": ("prdc", "ties"),
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
    def comparable(self) -> bool:
        """Whether no requirement is missed. Some may be unknown."""
        return not self.named(NO)

    @property
    def line(self) -> str:
        """The verdict as one sentence."""
        missed = [
            f"{item.name} is {item.found} instead of {item.expected}" for item in self.items if item.verdict == NO
        ]
        unknown = self.named(NOT_KNOWN)
        about = f"; not known: {', '.join(unknown)}" if unknown else ""
        if missed:
            return f"not comparable with published values of {self.preset}: {'; '.join(missed)}{about}"
        return f"comparable with published values of {self.preset}, as far as is known{about}"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in the JSON of ``fidtool verify``."""
        return {
            "fake": self.fake,
            "preset": self.preset,
            "comparable": self.comparable,
            "items": [asdict(item) for item in self.items],
        }


def verify(result: Mapping[str, Any] | str | Path, preset: str | None = None) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: content of the result JSON, as `Evaluation.to_dict` returns it; or the path of the file.
        preset: name of the preset, see ``fidtool presets``; None for that of the run.

    Returns:
        One verdict per FAKE.

    Raises:
        InputError: if there is no such preset, the run had none and ``preset`` is None, or the result cannot be read
            or is that of a failed run.
    """
    content = result if isinstance(result, Mapping) else _read(result)
    if not isinstance(content.get("results"), list) or not isinstance(content.get("run"), Mapping):
        raise InputError(
            "this is not the JSON of `fidtool compute`, which has results and run:", "pass -o FILE to compute"
        )
    if not content["results"]:
        reason = (content.get("exit") or {}).get("reason", "")
        raise InputError(f"the result has no values: the run failed ({reason})")
    name = preset or (content["run"].get("config") or {}).get("preset")
    if name is None:
        raise InputError("the run had no preset:", f"name one of {', '.join(PRESETS)}", setting="preset")
    known = preset_named(name)
    try:
        return [_verdict(content, each, known) for each in content["results"]]
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # it was edited, or is of a later version
        raise InputError(f"the result cannot be read ({type(error).__name__}: {error})") from None


def _read(file: str | Path) -> Mapping[str, Any]:
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise InputError(f"{file} cannot be read: {reason}") from None
    if not isinstance(content, Mapping):
        raise InputError(f"{file} is not the JSON of `fidtool compute`")
    return content


def _verdict(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Verdict:
    facts = result.get("sets") or {}
    real, fake = facts.get("real") or {}, facts.get("fake") or {}
    published = named_reference(result["real"])[0] if is_reference(result["real"]) else None
    fakes = result["count"]["fake"]
    items = [
        _equal(
            "images of FAKE",
            fake.get("with_features") if fakes is None else fakes,  # of a file with statistics and images
            published.fakes if published else preset.fakes,
            preset.source,
        ),
        _real_images(result, preset, published),
        _protocol(content.get("protocol") or {}, preset),
        _settings(content, preset),
        _reference(result, real, preset, published),
        _crop(result, preset, published),
        _size(fake, published),
        _formats(fake),
        _precision(content),
        _classes(fake, preset),
    ]
    return Verdict(str(result.get("fake")), preset.name, tuple(item for item in items if item is not None))


def _equal(name: str, found: Any, expected: Any, source: str) -> Item:
    verdict = NOT_KNOWN if found is None else YES if found == expected else NO
    return Item(name, verdict, "unknown" if found is None else f"{found}", f"{expected}", source)


def _protocol(found: Mapping[str, Any], preset: Preset) -> Item:
    name, network, dims = found.get("name"), found.get("extractor", INCEPTION), found.get("dims", max(INCEPTION_DIMS))
    expected = preset.settings["protocol"]
    if (network, dims) == (INCEPTION, max(INCEPTION_DIMS)):
        return _equal("protocol", name, expected, preset.source)
    verdict = NOT_KNOWN if network == _FURTHER_NETWORKS.get(preset.name) else NO
    shown = f"{f'{name}, ' if name else ''}{network}, {dims} dimensions"
    return Item("protocol", verdict, shown, f"{expected}, {INCEPTION}, {max(INCEPTION_DIMS)} dimensions", preset.source)


def _real_images(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item:
    count = result["count"]["real"]
    if published is not None and published.real_images is not None:
        expected = published.real_images
        return _equal("images of REAL", expected if count is None else count, expected, published.source)
    found = "unknown" if count is None else f"{count}"
    return Item("images of REAL", NOT_KNOWN, found, "those of the published reference", preset.source)


def _settings(content: Mapping[str, Any], preset: Preset) -> Item | None:
    """The settings of the metrics that were computed; None if the preset has none for them."""
    expected = {name: value for name, value in preset.settings.items() if name in _SETTINGS}
    found = {}
    for name in expected:
        metric, setting = _SETTINGS[name]
        if metric in content.get("settings", {}):
            found[name] = content["settings"][metric].get(setting)
    if not found:
        return None
    wanted = {name: expected[name] for name in found}
    return _equal("settings of metrics", _listed(found), _listed(wanted), preset.source)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _reference(result: Mapping[str, Any], real: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item:
    if published is None:
        found = f"{result.get('real')}" + (f", a file of {real['origin']}" if real.get("origin") else "")
        return Item("reference", NOT_KNOWN, found, preset.reference, preset.source)
    if not preset.prefix:
        return Item("reference", NOT_KNOWN, published.name, preset.reference, preset.source)
    verdict = YES if published.name.partition(":")[0] == preset.prefix else NO
    return Item("reference", verdict, published.name, preset.reference, preset.source)


def _crop(result: Mapping[str, Any], preset: Preset, published: Reference | None) -> Item | None:
    """How REAL was cropped; None if neither the preset nor the run has a crop."""
    framing = (result.get("framing") or {}).get("real")
    if published is not None:
        return Item("crop of REAL", YES, "as published", "as published", published.source)
    if framing is None and not preset.crop:
        return None
    size = _common_size(result)
    expected = f"{preset.crop}:{size or 'SIZE'}"
    if framing is not None and not preset.crop:
        return Item("crop of REAL", NOT_KNOWN, framing, "as the images of the paper", preset.source)
    if framing is not None:
        name, _, side = framing.partition(":")
        if size is not None and int(side) != size:
            verdict = NO
        elif name == _CROPS_OF_SOME.get(preset.name):
            verdict = NOT_KNOWN
        else:
            verdict = YES if name == preset.crop else NO
        return Item("crop of REAL", verdict, framing, expected, preset.source)
    sizes = ((result.get("sets") or {}).get("real") or {}).get("sizes")
    if sizes is not None and len(sizes) > 1:
        return Item("crop of REAL", NO, "none, and its images have several sizes", expected, preset.source)
    return Item("crop of REAL", NOT_KNOWN, "none by fidtool", expected, preset.source)


def _common_size(result: Mapping[str, Any]) -> int | None:
    """Side in pixels of the images of FAKE if they are square and of one size; else None."""
    sizes = ((result.get("sets") or {}).get("fake") or {}).get("sizes") or {}
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
    found = ", ".join(f"{name} ({number})" for name, number in formats.items()) or "unknown"
    unknown = not formats or _EITHER & formats.keys()
    verdict = NO if _LOSSY & formats.keys() else NOT_KNOWN if unknown else YES
    return Item("format of FAKE", verdict, found, "a lossless format", "samples are stored as PNG files or arrays")


def _precision(content: Mapping[str, Any]) -> Item:
    found = content["run"].get("precision") or None
    return _equal("precision", found, "fp32", "the reference implementations compute in float32")


def _classes(fake: Mapping[str, Any], preset: Preset) -> Item | None:
    """The balance of the classes of FAKE; None if the preset has none."""
    if not preset.classes:
        return None
    classes = fake.get("classes")
    if classes is None or classes["number"] < 2:
        return Item("classes of FAKE", NOT_KNOWN, "no folders name classes", preset.classes, preset.source)
    number, images = classes["number"], classes["images"]
    spread = number * classes["squares"] / images - images  # chi-squared against equal numbers
    random = spread <= number - 1 + _SIGMAS * (2 * (number - 1)) ** 0.5
    found = f"{number} classes with {classes['fewest']} to {classes['most']} images"
    return Item("classes of FAKE", YES if random else NO, found, preset.classes, preset.source)
