"""The section of a page about one FAKE: its text, tables and charts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import SEVERITIES, Finding
from fidtool.errors import option
from fidtool.names import short_title, shortened
from fidtool.pipeline.compare import Exhibit
from fidtool.report.charts import Chart, chart, draw_curve, draw_histogram
from fidtool.report.sheets import Card
from fidtool.report.text import number
from fidtool.results import Comparison, Uncertainty

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


@dataclass(frozen=True)
class Section:
    """One FAKE on the page.

    Attributes:
        name: short name of FAKE.
        sheets: contact sheets by name.
        missing: parts that need per-image features which are unknown: why, and what to do.
    """

    key: str
    name: str
    charts: bool
    result: Comparison
    exhibit: Exhibit | None
    sheets: Mapping[str, Sequence[Card]]
    missing: Mapping[str, str]

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


def missing_parts(result: Comparison, exhibit: Exhibit | None, cached: Collection[str]) -> dict[str, str]:
    """The parts that need features of sets whose features are unknown: why, and which setting gives them."""
    if exhibit is None or result.fake.name == result.real.name or not exhibit.without_features:
        return {}
    found = {"neighbours": _no_features(exhibit.without_features, cached)}
    if result.fake.name in exhibit.without_features and result.frechet_distance is not None:
        found["curve"] = _no_features([result.fake.name], cached)
    return found


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
