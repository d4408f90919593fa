"""Charts as SVG that stands inside a page and takes its colours from it. Needs matplotlib, which it imports late."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from fidtool.annexes import Uncertainty
from fidtool.report.drawing import Palette, draw_curve, draw_histogram, draw_sweep
from fidtool.report.names import legible
from fidtool.report.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLACEHOLDERS = Palette("#010101", "#010102", "#010103", "#010104", "#010105")
"""Colours that stand for the page's custom properties, in the order of the next."""
_PROPERTIES = dict(
    zip(
        ("#010101", "#010102", "#010103", "#010104", "#010105"),
        ("--ink", "--muted", "--line", "--accent", "--second"),
        strict=True,
    )
)
_REFERENCE = re.compile(r"#([A-Za-z_][\w.-]*)")
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_LONG_FRACTION = re.compile(r"(\.\d\d)\d+")


@dataclass(frozen=True)
class Chart:
    """A chart of a page.

    Attributes:
        svg: the element ``svg`` as text, safe to stand in a page as it is.
        width: its natural width in CSS pixels.
    """

    svg: str
    width: int


def sweep_chart(sweep: Sweep, key: str, *, wide: bool) -> Chart:
    """The Fréchet distances of several FAKEs.

    Args:
        sweep: what to draw.
        key: start of the ids inside it, another one for each chart of a page.
        wide: for a desk rather than for a hand.
    """
    size = (860, 340) if wide else (380, 300)
    words = "; ".join(
        f"{point.name}: {point.distance:.4f}"
        + ("" if point.corrected is None else f", bias-corrected {point.corrected.value:.4f}")
        for point in sweep.points
    )
    title = f"{sweep.title} of each set"
    return _chart(key, size, title, words, lambda axes, palette: draw_sweep(axes, palette, sweep, wide))


def curve_chart(uncertainty: Uncertainty | None, distance: str, name: str, key: str) -> Chart | None:
    """The distance against the number of images, and the bias-corrected one; None where there is no curve.

    Args:
        uncertainty: of the distance.
        distance: what that is called.
        name: of the FAKE.
        key: start of the ids inside it.
    """
    if uncertainty is None or not uncertainty.curve:
        return None
    words = "; ".join(f"{images} images: {value:.4f}" for images, value in uncertainty.curve)
    if uncertainty.corrected is not None:
        interval = uncertainty.corrected
        words += f"; bias-corrected: {interval.value:.4f}, 95 % from {interval.low:.4f} to {interval.high:.4f}"
    title = f"{distance} of {name} against the number of its images"
    return _chart(key, (380, 270), title, words, lambda axes, palette: draw_curve(axes, palette, uncertainty, distance))


def histogram_chart(real: Sequence[float] | None, fake: Sequence[float] | None, name: str, key: str) -> Chart | None:
    """How often the pixel values are, of REAL and of FAKE; None where nobody knows.

    Args:
        real, fake: shares of 16 ranges of values, see `fidtool.diagnose.diagnosis.Health`; None where not known.
        name: of the FAKE.
        key: start of the ids inside it.
    """
    if real is None and fake is None:
        return None
    words = "; ".join(
        f"{set_name} from dark to light in %: {', '.join(f'{100 * share:.1f}' for share in shares)}"
        for set_name, shares in (("REAL", real), ("FAKE", fake))
        if shares is not None
    )
    title = f"Pixel values of {name} and of REAL"
    return _chart(key, (380, 270), title, words, lambda axes, palette: draw_histogram(axes, palette, real, fake))


def _chart(key: str, size: tuple[int, int], title: str, words: str, draw: Callable[[Axes, Palette], None]) -> Chart:
    with plain_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")  # 72: a unit is a pixel
        draw(figure.subplots(), _PLACEHOLDERS)
        buffer = io.StringIO()
        without_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=without_metadata)
    return Chart(_inline(buffer.getvalue(), key, title, words), size[0])


@contextmanager
def plain_style() -> Iterator[None]:
    """matplotlib as it comes, whatever the user's matplotlibrc says, and the same bytes each time."""
    with warnings.catch_warnings():
        # Of letters that its own font lacks, which the page's fonts may have.
        warnings.simplefilter("ignore")
        from matplotlib import style

        settings: dict[str, Any] = {
            "svg.fonttype": "none",
            "svg.hashsalt": "fidtool",
            "font.size": 13,
            "lines.linewidth": 2,
            "axes.formatter.useoffset": False,
            "axes.formatter.limits": (-4, 7),
        }
        with style.context(["default", settings]):
            yield


def _inline(svg: str, key: str, title: str, words: str) -> str:
    """A file of matplotlib's as an element of a page: named for those who cannot see it, in the page's colours."""
    builder = ElementTree.TreeBuilder()
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=builder))
    used = {name for element in root.iter() for value in element.attrib.values() for name in _REFERENCE.findall(value)}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = _attributes(element.attrib, key, used)
        element.tail = None
        if element.tag != "text":
            element.text = None
    for parent in root.iter():
        for child in list(parent):
            if child.tag in ("style", "metadata") or (child.tag in ("g", "defs") and not len(child)):
                parent.remove(child)  # a style sheet inside would be one for the whole page
    del root.attrib["width"], root.attrib["height"]  # the page's to say
    _name(root, key, title, words)
    return ElementTree.tostring(root, encoding="unicode", method="html")


def _attributes(attributes: dict[str, str], key: str, used: set[str]) -> dict[str, str]:
    """An element's, with ids that no other chart of the page has."""
    found = {}
    for name, value in attributes.items():
        name = name.rpartition("}")[2]
        if name == "version" or (name == "id" and value not in used):
            continue
        if name == "transform" and value.startswith("rotate(-0"):
            continue
        if name == "id":
            value = f"{key}-{value}"
        elif name in ("href", "clip-path"):
            value = value.replace("#", f"#{key}-")
        elif name == "style":
            value = _FAMILY.sub("", value)
            for colour, custom in _PROPERTIES.items():
                value = value.replace(colour, f"var({custom})")
        elif name == "d":
            value = " ".join(_LONG_FRACTION.sub(r"\1", value).split())
        found[name] = value
    return found


def _name(root: ElementTree.Element, key: str, title: str, words: str) -> None:
    root.attrib |= {"role": "img", "aria-labelledby": f"{key}-title", "aria-describedby": f"{key}-words"}
    for place, (tag, text) in enumerate((("title", title), ("desc", words))):
        element = ElementTree.Element(tag, {"id": f"{key}-{'words' if place else 'title'}"})
        element.text = legible(text)
        root.insert(place, element)
