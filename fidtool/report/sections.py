"""The section of a page about one FAKE: its text, tables, charts, and contact sheets of images."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from PIL import Image

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import Finding
from fidtool.errors import SEVERITIES, FidtoolError, option
from fidtool.explanations import Exhibit, HarmfulImage, Uncertainty
from fidtool.images.decode import DecodeError, DecodeOptions, decode
from fidtool.images.framing import Crop
from fidtool.names import short_title, shortened
from fidtool.pipeline.compare import MOST_RANDOM
from fidtool.report.charts import Chart, chart, draw_curve, draw_histogram
from fidtool.report.text import number
from fidtool.results import Comparison
from fidtool.sources.contents import ContentError, Read, ValueRange

_HEADINGS = {
    "metrics": "Metrics",
    "curve": "{distance} against the number of images",
    "sets": "Properties of the sets",
    "findings": "Findings",
    "copies": "Duplicates",
    "shared": "Images that are also in REAL",
    "harmful": "Images that raise the {distance}",
    "neighbours": "Nearest real images",
    "random": "Random images",
    "skipped": "Skipped files",
}
_CHART_SIZE = (400, 280)
_MOST_KINDS = 4
"""Maximum number of formats, modes or sizes that are listed."""
_MOST_TIMES = 4
"""Maximum number of multiplicities that are listed."""
LONGEST_SIDE = 160
"""Limit of the long side of a thumbnail, in pixels."""
SMALL = 64
"""Images up to this long side are shown with visible pixels, and stored losslessly."""
_QUALITY = 85
_MOST_CARDS = 24
_MOST_CARDS_OF_ALL = 96
_MOST_GROUPS = 8
"""Maximum number of groups of duplicates, and of images per group."""


class Picture(NamedTuple):
    """An image file, which is empty if unknown, and how its set was cropped and resized; None if it was not."""

    file: str
    framing: str | None


class Card(NamedTuple):
    """Images that belong together, and a caption, which may be empty."""

    pictures: tuple[Picture, ...]
    caption: str = ""


@dataclass(frozen=True)
class Thumbnail:
    """A reduced image, or the reason why there is none.

    Attributes:
        uri: ``data:image/…``; empty if there is none.
        problem: why there is none; empty if there is one.
    """

    file: str
    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""

    @property
    def alt(self) -> str:
        """The text alternative: the image's path, and why it is not shown."""
        name = shortened(self.file) or "image of unknown name"
        return f"{name}: {self.problem}" if self.problem else name

    @property
    def small(self) -> bool:
        """Whether the image is so small that its pixels are shown as squares."""
        return max(self.width, self.height) <= SMALL


@dataclass(frozen=True)
class Section:
    """One FAKE on the page.

    Attributes:
        name: short name of FAKE.
        cached: paths of the sets whose statistics are from the cache.
        fakes: number of FAKEs on the page. If there are many, each has fewer images.
    """

    key: str
    name: str
    charts: bool
    result: Comparison
    exhibit: Exhibit | None
    cached: Collection[str]
    fakes: int

    @property
    def main(self) -> str:
        """Plain name of the main metric."""
        titles = self.result.titles
        return "fid" if "fid" in titles else next(iter(titles))

    @property
    def title(self) -> str:
        """Title of the main metric."""
        return short_title(self.result.titles[self.main])

    @property
    def score(self) -> str:
        """Value of the main metric, as text."""
        return number(self.main, self.result)

    @property
    def distance(self) -> str:
        """Title of the Fréchet distance."""
        return short_title(self.result.labels.title("fid"))

    @property
    def points(self) -> Sequence[tuple[int, float]]:
        """The distance as a function of the number of images; empty if unknown."""
        if self.result.uncertainty is not None:
            return self.result.uncertainty.curve
        return () if self.exhibit is None else self.exhibit.curve

    @cached_property
    def curve(self) -> Chart | None:
        """The chart of `points`."""
        if not (self.charts and self.points):
            return None
        uncertainty = self.result.uncertainty or Uncertainty(None, None, "", tuple(self.points))
        alt = f"{self.distance} of {self.name} against the number of images"
        return chart(alt, _CHART_SIZE, draw_curve, uncertainty, self.distance)

    @cached_property
    def histogram(self) -> Chart | None:
        """The chart of the pixel values."""
        if self.exhibit is None or not self.charts:
            return None
        real, fake = (None if each is None else each.histogram for each in (self.exhibit.real, self.exhibit.fake))
        return chart(f"Pixel values of {self.name} and of REAL", _CHART_SIZE, draw_histogram, real, fake)

    @property
    def sets(self) -> list[tuple[str, str, str]]:
        """Rows of a label, REAL's value, and FAKE's value; none if nothing is known about either set."""
        known = () if self.exhibit is None else (self.exhibit.real, self.exhibit.fake)
        real, fake = [{} if health is None else _facts(health) for health in known] or ({}, {})
        return [(label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake]

    @property
    def findings(self) -> list[tuple[str, str, Finding]]:
        """Findings in FAKE, in REAL, and between the two, without repetitions: severity, set or sets, finding."""
        result, exhibit = self.result, self.exhibit
        own = None if exhibit is None else exhibit.fake
        sets = [] if exhibit is None else [("FAKE", exhibit.fake), ("REAL", exhibit.real)]
        known: list[tuple[str, Iterable[Finding]]] = [(name, each.findings) for name, each in sets if each is not None]
        if result.diagnosis is not None:
            # Without the properties of FAKE, its own findings are not distinguished from differences between the sets.
            known.append(("FAKE against REAL" if own is not None else "", result.diagnosis.findings))
            known.append(("REAL", result.diagnosis.real_findings))
        where: dict[Finding, str] = {}
        for name, findings in known:
            for each in findings:
                where.setdefault(each, name)
        rows = [(each.severity, name, each) for each, name in where.items()]
        return sorted(rows, key=lambda row: SEVERITIES.index(row[0]))

    @property
    def copies(self) -> list[str]:
        """The number and kinds of the duplicates, one sentence per set."""
        diagnosis = self.result.diagnosis
        found = [] if diagnosis is None else [("FAKE", diagnosis.fake), ("REAL", diagnosis.real)]
        return [_duplicates_sentence(name, copies) for name, copies in found if copies is not None and copies.copies]

    @cached_property
    def sheets(self) -> dict[str, list[Card]]:
        """Contact sheets by the part that shows them."""
        exhibit, result = self.exhibit, self.result
        random, neighbours = ((), ()) if exhibit is None else (exhibit.random, exhibit.neighbours)
        harmful: Sequence[HarmfulImage] = () if result.influence is None else result.influence.raising
        groups = () if result.duplicates is None else result.duplicates.examples
        shared = () if result.diagnosis is None or result.diagnosis.shared is None else result.diagnosis.shared.examples
        nearest = sorted(neighbours, key=lambda each: each.distance)  # images that repeat a real one come first
        most = max(1, min(_MOST_CARDS, _MOST_CARDS_OF_ALL // self.fakes))
        few = min(most, _MOST_GROUPS)

        def of_fake(*files: str) -> tuple[Picture, ...]:
            return tuple(Picture(file, result.fake.framing) for file in files)

        def pair(fake: str, real: str) -> tuple[Picture, ...]:
            return (*of_fake(fake), Picture(real, result.real.framing))

        return {
            "random": [Card(of_fake(file)) for file in random[: min(MOST_RANDOM, 2 * most)]],
            "harmful": [Card(of_fake(each.file), f"{each.effect:+#.2g}".rstrip(".")) for each in harmful[:most]],
            "copies": [Card(of_fake(*group[:_MOST_GROUPS])) for group in groups[:few]],
            "shared": [Card(pair(*files)) for files in shared[:few]],
            "neighbours": [
                Card(pair(each.fake, each.real), f"distance {each.distance:.4g}") for each in nearest[:most]
            ],
        }

    @property
    def missing(self) -> dict[str, str]:
        """The parts that need features of sets whose features are unknown: why, and which setting gives them."""
        fake, unknown = self.result.fake.name, () if self.exhibit is None else self.exhibit.without_features
        if not unknown or fake == self.result.real.name:
            return {}
        found = {"neighbours": _no_features(unknown, self.cached)}
        if fake in unknown and self.result.frechet_distance is not None:
            found["curve"] = _no_features([fake], self.cached)
        return found

    @cached_property
    def parts(self) -> dict[str, str]:
        """The parts that have content, in the order of the page: suffix of the id to heading."""
        shared = None if self.result.diagnosis is None else self.result.diagnosis.shared
        content: dict[str, object] = {
            "metrics": True,
            "curve": self.points or self.missing.get("curve"),
            "sets": self.sets,
            "findings": self.findings,
            "copies": self.copies,
            "shared": shared is not None and shared.count,
            "harmful": self.result.influence is not None,
            "neighbours": self.sheets["neighbours"] or self.missing.get("neighbours"),
            "random": self.sheets["random"],
            "skipped": self.result.skipped,
        }
        return {part: _HEADINGS[part].format(distance=self.distance) for part, there in content.items() if there}

    @property
    def tiles(self) -> list[tuple[str, str, str]]:
        """Key figures next to the score: label, value, remark."""
        tiles = []
        if (uncertainty := self.result.uncertainty) is not None:
            value, remark = "–", f"withheld: {uncertainty.withheld}"
            if (corrected := uncertainty.corrected) is not None:
                value, remark = f"{corrected.value:.4f}", f"95 %: {corrected.low:.4f} to {corrected.high:.4f}"
            tiles.append((f"Bias-corrected {self.distance}", value, remark))
        if (duplicates := self.result.duplicates) is not None and duplicates.copies:
            remark = f"{duplicates.copies:,} of {duplicates.images:,} images"
            tiles.append(("Duplicates", _percent(duplicates.share), remark))
        real, fake = (_share(each.count, each.found) for each in (self.result.real, self.result.fake))
        return [*tiles, ("Images", fake, f"against {real} real ones")]


def _no_features(paths: Sequence[str], cached: Collection[str]) -> str:
    of_cache = " and ".join(shortened(path) for path in paths if path in cached)
    of_files = " and ".join(shortened(path) for path in paths if path not in cached)
    sentences = [
        of_cache
        and f"The cache has no per-image features of {of_cache}. Pass {option('cache', False)} to compute them.",
        of_files and f"There are no per-image features in {of_files}. Pass the images instead of statistics.",
    ]
    return " ".join(filter(None, sentences))


def _share(count: int | None, found: int | None) -> str:
    """Number of images used, and the number available if that is larger."""
    if count is None:
        return "?"
    return f"{count:,}" if found in (None, count) else f"{count:,} of {found:,}"


def _percent(share: float) -> str:
    """``12.3 %``, with a space that does not break."""
    return f"{100 * share:.1f}\u00a0%"


def _duplicates_sentence(name: str, copies: Duplicates) -> str:
    share, kinds = _percent(copies.share), f"{copies.exact:,} pixel-identical, {copies.near:,} near"
    often = [f"{images:,} of them {times:,} times" for times, images in copies.multiplicities.items() if times > 1]
    more = " and others more often" if len(often) > _MOST_TIMES else ""
    searched = "" if copies.complete else "; the set is too large to search it for near duplicates"
    return (
        f"{name}: {copies.copies:,} of {copies.images:,} images ({share}) are duplicates ({kinds}); "
        f"different images: {copies.unique:,}, {', '.join(often[:_MOST_TIMES])}{more}{searched}."
    )


def _facts(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    return {
        "Images": f"{health.images:,}",
        "Formats": _shares(health.formats, health.images),
        "Colour modes": _shares(health.modes, health.images),
        "Sizes in pixels": _shares(
            {name.replace("x", "×"): count for name, count in health.sizes.items()}, health.images
        ),
        "Aspect ratio": f"{median:.3g}" if least == most else f"{median:.3g} ({least:.3g} to {most:.3g})",
        "JPEG quality": "no JPEGs" if quality is None else f"{quality[1]} ({quality[0]} to {quality[2]})",
        "Brightness (0 to 255)": f"{health.brightness[0]:.1f} ± {health.brightness[1]:.1f}",
        "Grayscale": _percent(health.grayscale),
        "Duplicates": _percent(health.duplicates.share),
        "Unreadable": f"{len(health.unreadable):,}",
    }


def _shares(counts: Mapping[str, int], images: int) -> str:
    """``JPEG``, or ``PNG 93.0 %, JPEG 7.0 %`` for several kinds; rare ones are summarised as ``and others``."""
    if len(counts) == 1 and sum(counts.values()) == images:
        return next(iter(counts))
    named = [f"{name} {_percent(count / images)}" for name, count in list(counts.items())[:_MOST_KINDS]]
    return ", ".join(named) + (", and others" if sum(list(counts.values())[:_MOST_KINDS]) < images else "")


def thumbnail_of(picture: Picture, content: Read, floats: ValueRange | None = None) -> Thumbnail:
    """The thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the report is written after hours of work. ``floats`` is how floats become
    bytes.
    """
    file, framing = picture
    if not file:
        return Thumbnail("", problem="no image file")
    try:
        crop = None if framing is None else Crop.parse(framing)
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=_QUALITY)
    except FileNotFoundError:
        return Thumbnail(file, problem="not found")
    except (OSError, ValueError, ContentError, FidtoolError, DecodeError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Thumbnail(file, problem=reason)
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Thumbnail(file, uri, *image.size)
