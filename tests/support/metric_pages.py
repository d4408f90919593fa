"""What the guide's pages of metrics say of values and settings, made from the metrics' classes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from fidtool.metrics.metric import Metric, Number
from fidtool.metrics.pairs import PairMetric
from fidtool.metrics.registry import BUILT_IN
from fidtool.names import fold
from fidtool.validation import Setting, find_settings
from support.pages import GUIDE

OVERVIEW = GUIDE / "metrics.md"
SECTIONS = ("Formula", "Values and settings", "Requirements", "What changes the value", "Example")
"""The sections of each metric's page."""
_WIDTH = 80


def page_of(name: str) -> Path:
    """Return the page of a metric."""
    return GUIDE / "metrics" / f"{name}.md"


def replace_block(text: str, mark: str, block: str) -> str:
    """Return a page with ``block`` between its marks of this name."""
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
    above, rest = text.split(begin)
    _, below = rest.split(end)
    return f"{above}{begin}{block}\n{end}{below}"


def describe_values_and_settings(name: str) -> str:
    """Return each value and each setting of a built-in metric as Markdown."""
    kind = BUILT_IN[name]
    lines = ["Values:", ""]
    for number in (*kind.numbers, *kind.summary):
        lines += _item(_describe_number(number))
    for key in kind.further:
        lines += _item(f"`{key}`, in the JSON only: see below.")
    settings = find_settings(kind)
    if not settings:
        return "\n".join([*lines, "", "The metric has no settings."])
    lines += ["", *textwrap.wrap(f"Settings, fields of `fidtool.{kind.__name__}` in Python:"), ""]
    for setting in settings.values():
        lines += _item(_describe_setting(kind, setting))
    return "\n".join(lines)


def _describe_number(number: Number) -> str:
    better = f"{number.better} is better" if number.better else "neither is better"
    words = [f"`{number.name}`, {number.title} ({better}): {number.meaning}."]
    if number.spread:
        kind = {"s.d.": "The standard deviation", "s.e.": "The standard error"}
        words.append(f"{kind.get(number.spread_kind, 'The value after the ±')} is")
        words.append(f"`{number.spread}`.")
    if number.elsewhere:
        key, title = (number.elsewhere[name] for name in (number.name, number.title))
        words.append(
            f"With a network other than Inception, the key is `{key}_NAME` and the title {title}."
        )
    return " ".join(words)


def _describe_setting(kind: type[Metric], setting: Setting) -> str:
    metavar = setting.metavar or {int: "N", str: "NAME"}.get(setting.kind, "VALUE")
    flag = setting.flag if setting.kind is bool else f"{setting.flag} {metavar}"
    default = setting.shown or {"": "empty"}.get(setting.default, f"{setting.default}")
    if setting.default is None and not setting.shown:
        default = "none"
    if setting.kind is bool:
        default = "on" if setting.default else "off"
    notes = [setting.allowed.replace("e-0", "e-"), f"default {default}"]
    about = _without_owner(kind, setting.text)
    return f"`{flag}`, `{setting.name}` ({'; '.join(filter(None, notes))}): {about}"


def _without_owner(kind: type[Metric], text: str) -> str:
    """Return the text of a setting without the name of its metric, which the page has."""
    owner, colon, about = text.partition(": ")
    own = {fold(name) for name in (kind.name, *kind.other_names)}
    own |= {fold(number.title) for number in kind.numbers}
    if not colon or not {fold(name) for name in (owner, *owner.split(", "))} & own:
        return text
    return about[:1].upper() + about[1:]


def describe_all() -> str:
    """Return the list of the built-in metrics, and the table of their properties."""
    lines = []
    for name, kind in BUILT_IN.items():
        about = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        lines += _item(f"[{name}](metrics/{name}.md): {about}")
    lines += ["", "| metric | better | needs | `all` | gate |", "|---|---|---|---|---|"]
    for name, kind in BUILT_IN.items():
        better = kind.numbers[0].better or "neither"
        selected = "no" if kind.by_name else "yes"
        gate = "yes" if any(number.gated for number in kind.numbers) else "no"
        cells = (f"`{name}`", better, ", ".join(_needs(kind)), selected, gate)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _needs(kind: type[Metric]) -> Iterator[str]:
    if issubclass(kind, PairMetric):
        yield "pairs"
        return
    if not (kind.real_features or kind.fake_features):
        yield "mean and covariance"
        return
    whose = "" if kind.real_features else " of FAKE"
    yield f"CLIP features{whose}" if kind.usual_network else f"features{whose}"
    if kind.classifier:
        yield "classifier"
    if kind.captions:
        yield "captions"
    if kind.fewest > 1:
        yield f"{kind.fewest:,} images"


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        f"- {text}",
        _WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
