"""Checks whether a result is comparable with the values that a preset's program gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fidtool.errors import InputError
from fidtool.features.protocol import INCEPTION, INCEPTION_DIMS
from fidtool.metrics.inception_score import SORTED
from fidtool.metrics.registry import metric_settings
from fidtool.presets import PRESETS, Preset, preset_named
from fidtool.sources.references import Reference, named_reference

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


def verify(result: Evaluation | Mapping[str, Any] | str | Path, preset: str | None = None) -> list[Verdict]:
    """Check whether the values of a result are comparable with those that a preset's program gives.

    Args:
        result: an evaluation, the content of the result JSON, or the path of its file.
        preset: name of the preset, see ``fidtool presets``; None for that of the run, or else of its reference.

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
    except InputError:
        raise
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:  # a file that was edited
        raise InputError(f"the result is incomplete or was changed ({type(error).__name__}: {error})") from None


def _content(result: Evaluation | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
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


class _Stated(NamedTuple):
    """What the JSON states about one FAKE; ``published`` is the reference that is REAL, or None."""

    content: Mapping[str, Any]
    result: Mapping[str, Any]
    real: Mapping[str, Any]
    fake: Mapping[str, Any]
    preset: Preset
    published: Reference | None


def _facts(result: Mapping[str, Any], of: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (result.get("sets") or {}).get(of) or {}
    return found


def _verdict(content: Mapping[str, Any], result: Mapping[str, Any], preset: Preset) -> Verdict:
    real, fake = _facts(result, "real"), _facts(result, "fake")
    name = real.get("reference")
    stated = _Stated(content, result, real, fake, preset, named_reference(name)[0] if name else None)
    items = [*_numbers(stated), *_definition(stated), *_reference(stated), *_crop(stated), *_of_fake(stated)]
    return Verdict(str(result.get("fake")), preset.name, (*items, _precision(stated)))


def _item(name: str, met: bool | None, found: Any, expected: Any, source: str) -> Item:
    """Return an item; ``met`` is None if it is not known."""
    return Item(name, {True: YES, False: NO, None: NOT_KNOWN}[met], _shown(found), _shown(expected), source)


def _equal(name: str, found: Any, expected: Any, source: str) -> Item:
    return _item(name, None if found is None else found == expected, found, expected, source)


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value}"


def _numbers(stated: _Stated) -> Iterator[Item]:
    """Numbers of images: of FAKE, of REAL, and of REAL for precision and recall if these were computed."""
    preset, published, counts = stated.preset, stated.published, stated.result["count"]
    asked = published or preset
    if reference := stated.fake.get("reference"):
        yield _item("images of FAKE", False, f"the reference {reference}", "generated images", asked.source)
    elif asked.fakes is None:
        yield _item("images of FAKE", None, counts["fake"], "the number in the paper", asked.source)
    else:
        # A file with statistics and images does not state of how many its statistics are.
        found = stated.fake.get("with_features") if counts["fake"] is None else counts["fake"]
        yield _equal("images of FAKE", found, asked.fakes, asked.source)
    if published is not None and published.real_images is not None:
        found = published.real_images if counts["real"] is None else counts["real"]
        yield _equal("images of REAL", found, published.real_images, published.source)
    else:
        expected = "those of the published reference" if preset.prefix else "all images of the data set"
        available = (stated.result.get("found") or {}).get("real")
        unreadable = [each for each in stated.result.get("skipped") or () if each["set"] == stated.result["real"]]
        some = None not in (available, counts["real"]) and counts["real"] + len(unreadable) < available
        found = f"{counts['real']:,} of {available:,}" if some else counts["real"]
        yield _item("images of REAL", False if some else None, found, expected, preset.source)
    if preset.images_with_features is not None and "prdc" in (stated.content.get("settings") or {}):
        name, found = "images of REAL for precision and recall", stated.real.get("with_features")
        yield _equal(name, found, preset.images_with_features, preset.source)


def _definition(stated: _Stated) -> Iterator[Item]:
    """Network, protocol, and the settings of the metrics if the preset has some for those that were computed."""
    preset, sets = stated.preset, {"REAL": stated.real, "FAKE": stated.fake}
    unstated = " and ".join(name for name, facts in sets.items() if not facts.get("stated", True))
    protocol, computed = stated.content.get("protocol") or {}, stated.content.get("settings") or {}
    extractor = protocol.get("extractor")
    found = None if extractor is None else f"{extractor} ({protocol.get('dims')} dimensions)"
    expected = f"{INCEPTION} ({max(INCEPTION_DIMS)} dimensions)"
    if extractor in preset.further_networks or (found == expected and unstated):
        known = f"{found}; not stated for {unstated}" if unstated else f"{found}"
        yield _item("network", None, known, expected, preset.source)
    else:
        yield _equal("network", found, expected, "the definition of the FID")

    named = _equal("protocol", protocol.get("name"), preset.settings["protocol"], preset.source)
    allowed = (stated.content["run"].get("config") or {}).get("allow_mismatch")
    reason = "a mismatch was allowed" if allowed else unstated and f"not stated for {unstated}"
    doubtful = reason and named.verdict == YES
    yield replace(named, verdict=NOT_KNOWN, found=f"{named.found}; {reason}") if doubtful else named

    owned = {key: (kind.name, each.name) for key, (kind, each) in metric_settings().items() if kind.name in computed}
    if wanted := {name: value for name, value in preset.settings.items() if name in owned}:
        values = {name: computed[owned[name][0]].get(owned[name][1]) for name in wanted}
        yield _equal("settings of metrics", _listed(values), _listed(wanted), preset.source)
    if (computed.get("is") or {}).get("part_size") is not None:
        order = (stated.result.get("metrics") or {}).get("is_order")
        shown = None if order is None else f"parts with {order:.2f} times the score of random parts"
        yield _item("order of FAKE", None if order is None else order >= SORTED, shown, "random", preset.source)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _reference(stated: _Stated) -> Iterator[Item]:
    preset, published, origin = stated.preset, stated.published, stated.real.get("origin")
    met = published.name.partition(":")[0] == preset.prefix if published and preset.prefix else None
    given = f"{stated.result.get('real')}, a file of {origin}" if origin else f"{stated.result.get('real')}"
    yield _item("reference", met, published.name if published else given, preset.reference, preset.source)


def _crop(stated: _Stated) -> Iterator[Item]:
    """How REAL was cropped, if the preset or the run has a crop."""
    preset, published = stated.preset, stated.published
    framing, sizes = (stated.result.get("framing") or {}).get("real"), stated.real.get("sizes")
    of_fake = stated.fake.get("sizes") or {}
    width, _, height = next(iter(of_fake), "").partition("x")
    size = int(width) if len(of_fake) == 1 and width == height else None  # of squares of one size
    expected = f"{preset.crop}:{size or 'SIZE'}" if preset.crop else "that of the paper"
    if published is not None:
        found = "as published" if framing is None else f"{framing}, of cropped images"
        yield _item("crop of REAL", framing is None, found, "as published", published.source)
    elif framing is not None:
        name, _, side = framing.partition(":")
        fits = size is None or int(side) == size
        known = preset.crop and name not in preset.further_crops
        met = False if not fits else name == preset.crop if known else None
        yield _item("crop of REAL", met, framing, expected, preset.source)
    elif preset.crop:
        several = sizes is not None and len(sizes) > 1
        found = "none, and its images have several sizes" if several else "none by fidtool"
        yield _item("crop of REAL", False if several else None, found, expected, preset.source)


def _of_fake(stated: _Stated) -> Iterator[Item]:
    """Size of the images of FAKE, if that of REAL is published, and their format."""
    published, sizes = stated.published, stated.fake.get("sizes")
    if published is not None and published.shape is not None:
        height, width = published.shape
        found = None if sizes is None else ", ".join(sizes)
        yield _equal("size of FAKE", found, f"{width}x{height}", published.source)
    formats: Mapping[str, int] = stated.fake.get("formats") or {}
    shown = ", ".join(f"{name} ({_shown(number)})" for name, number in formats.items()) or "unknown"
    unknown = not formats or not formats.keys() <= _LOSSLESS
    met = False if _LOSSY & formats.keys() else None if unknown else True
    yield _item("format of FAKE", met, shown, "a lossless format", "samples are stored as PNG files or arrays")


def _precision(stated: _Stated) -> Item:
    """The precision of both sets; that of a published reference is as published."""
    of_run = stated.content["run"].get("precision") or None
    sets = {"FAKE": stated.fake} if stated.published else {"REAL": stated.real, "FAKE": stated.fake}
    found = {name: facts.get("precision", of_run) for name, facts in sets.items()}
    other = [precision for precision in found.values() if precision not in (None, "fp32")]
    met = False if other else None if None in found.values() else True
    shown = ", ".join(f"{name} {_shown(precision)}" for name, precision in found.items())
    return _item("precision", met, shown, "fp32", "the reference implementations compute in float32")
