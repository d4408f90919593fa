"""The section of a page about one FAKE: its text, tables and charts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import SEVERITIES, Finding
from fidtool.distances.jackknife import Interval
from fidtool.errors import option
from fidtool.report.charts import Chart, curve_chart, histogram_chart
from fidtool.report.names import short_title, shortened
from fidtool.report.sheets import Card
from fidtool.results import Comparison, Exhibit, Influence, SkippedFile, Uncertainty

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
_MOST_DECIMALS = 4
"""Decimals of a value without a spread. All digits are in a collapsed block."""
_MOST_ROWS = 100
"""Maximum number of rows of a table of files; the JSON has all of them."""
_MOST_KINDS = 4
"""Maximum number of formats, modes or sizes that are listed."""
_MOST_TIMES = 4
"""Maximum number of multiplicities that are listed."""


@dataclass(frozen=True)
class Tile:
    """A key figure at the top of a section, and a remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class MetricValue:
    """A value as text.

    Attributes:
        value: the value, rounded to the digits that its spread supports, or without one to the metric's usual digits.
        spread: the spread with as many decimals; empty if there is none.
        exact: both in full precision.
    """

    value: str
    spread: str
    exact: str

    @property
    def text(self) -> str:
        """Value and spread, without a line break before the spread."""
        return f"{self.value} ±\u00a0{self.spread}" if self.spread else self.value


@dataclass(frozen=True)
class MetricRow:
    """A row of the table of metrics: title, value, ``lower`` or ``higher``, and what the metric is."""

    title: str
    value: MetricValue
    better: str
    meaning: str


@dataclass(frozen=True)
class LongTable:
    """The first rows of a table, and how many more there are."""

    rows: Sequence[tuple[str, ...]]
    more: int


@dataclass(frozen=True)
class Section:
    """One FAKE on the page.

    Attributes:
        key: prefix of the ids in the section.
        name, path: short name and path of FAKE.
        title, score: title and value of the main metric, as text.
        main: plain name of the main metric.
        distance: short title of the Fréchet distance.
        tiles: key figures next to the score.
        metrics: rows of the table of metrics.
        curve, histogram: charts; None if there is nothing to draw.
        curve_rows, histogram_rows: their data as text.
        sheets: contact sheets by name.
        copies: sentences about duplicates.
        result: the comparison.
        harmful: rows of rank, file and effect of the images that raise the distance.
        sampled: which generated images are shown with their nearest real ones, as a sentence; empty if all are.
        sets: rows of label, REAL's value, FAKE's value.
        findings: rows of severity, set or sets (empty if unknown), sentence, example.
        skipped: rows of file, reason.
        missing: parts that need per-image features which are unknown: why, and what to do.
    """

    key: str
    name: str
    path: str
    title: str
    score: str
    main: str
    distance: str
    tiles: Sequence[Tile]
    metrics: Sequence[MetricRow]
    curve: Chart | None
    curve_rows: Sequence[tuple[str, str]]
    histogram: Chart | None
    histogram_rows: Sequence[tuple[str, str, str]]
    sheets: Mapping[str, Sequence[Card]]
    copies: Sequence[str]
    result: Comparison
    harmful: LongTable
    sampled: str
    sets: Sequence[tuple[str, str, str]]
    findings: Sequence[tuple[str, str, str, str]]
    skipped: LongTable
    missing: Mapping[str, str]

    @property
    def parts(self) -> dict[str, str]:
        """The parts that have content, in the order of the page: suffix of the id to heading."""
        shared = None if self.result.diagnosis is None else self.result.diagnosis.shared
        content: dict[str, object] = {
            "metrics": self.metrics,
            "curve": self.curve_rows or self.missing.get("curve"),
            "sets": self.sets,
            "findings": self.findings,
            "copies": self.copies,
            "shared": shared is not None and shared.count,
            "harmful": self.result.influence is not None,
            "neighbours": self.sheets["neighbours"] or self.missing.get("neighbours"),
            "random": self.sheets["random"],
            "skipped": self.skipped.rows,
        }
        return {part: _HEADINGS[part].format(distance=self.distance) for part, there in content.items() if there}


def section_of(
    result: Comparison,
    exhibit: Exhibit | None,
    name: str,
    key: str,
    sheets: Mapping[str, Sequence[Card]],
    *,
    cached: Collection[str] = (),
    charts: bool = True,
) -> Section:
    """The section of one FAKE.

    Args:
        result: the comparison.
        exhibit: what the page can show of it; None if unknown.
        name: short name of the FAKE.
        key: prefix of the ids in the section.
        sheets: the contact sheets, by name.
        cached: paths of the sets whose statistics came from the cache.
        charts: whether to draw charts.
    """
    titles = {name: short_title(title) for name, title in result.titles.items()}
    main, distance = "fid" if "fid" in titles else next(iter(titles)), short_title(result.labels.title("fid"))
    real, fake = (None, None) if exhibit is None else (exhibit.real, exhibit.fake)
    short = shortened(name)
    uncertainty = result.uncertainty
    if uncertainty is None and exhibit is not None and exhibit.curve:
        uncertainty = Uncertainty(None, None, "", exhibit.curve)
    curve = () if uncertainty is None else uncertainty.curve
    values, fake_values = (None if health is None else health.histogram for health in (real, fake))
    return Section(
        key=key,
        name=short,
        path=result.fake.name,
        title=titles[main],
        score=metric_value(main, result).text,
        main=main,
        distance=distance,
        tiles=_tiles(result, distance),
        metrics=[_metric_row(each, title, result) for each, title in titles.items()],
        curve=curve_chart(uncertainty, distance, short, f"{key}-curve") if charts else None,
        curve_rows=[(f"{images:,}", f"{value:.4f}") for images, value in curve],
        histogram=histogram_chart(values, fake_values, short, f"{key}-values") if charts else None,
        histogram_rows=_histogram_rows(values, fake_values),
        sheets=sheets,
        copies=_duplicates_sentences(result),
        result=result,
        harmful=_harmful_rows(result.influence),
        sampled=_sample_sentence(
            len(sheets["neighbours"]), 0 if exhibit is None else len(exhibit.neighbours), result.fake.count
        ),
        sets=_set_rows(real, fake),
        findings=_finding_rows(result, real, fake),
        skipped=_skipped_rows(result.skipped),
        missing=_missing_parts(result, exhibit, cached),
    )


def _sample_sentence(shown: int, sampled: int, images: int | None) -> str:
    """Which generated images are shown with their nearest real ones; empty if all are.

    Args:
        shown: number of images on the page.
        sampled: number of images whose nearest real ones were searched.
        images: number of images in the set; None if unknown.
    """
    if shown == images:
        return ""
    sample = f"a random sample of {sampled}" + ("" if images is None else f" of the {images:,} images")
    if sampled == images:
        return f"Only the {shown} nearest pairs are shown."
    if shown == sampled:
        return f"The generated images are {sample}; the others may contain nearer pairs."
    return f"These are the {shown} nearest pairs of {sample}; the others may contain nearer pairs."


def _missing_parts(result: Comparison, exhibit: Exhibit | None, cached: Collection[str]) -> dict[str, str]:
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


# --- numbers ---------------------------------------------------------------------------------------------------------


def rounded(value: float, error: float) -> str:
    """``value`` with as many digits as its standard error ``error`` supports, at most 4 decimals."""
    return f"{value:.{_decimals(error, 4)}f}"


def _decimals(error: float, most: int) -> int:
    """Decimals that show two significant digits of ``error``, at most ``most``; ``most`` if it is zero or infinite."""
    return most if not 0.0 < error < math.inf else min(most, max(0, 1 - math.floor(math.log10(error))))


def interval_text(interval: Interval) -> str:
    """``95 %: 12.1 to 12.9``."""
    return f"95 %: {rounded(interval.low, interval.error)} to {rounded(interval.high, interval.error)}"


def metric_value(name: str, result: Comparison) -> MetricValue:
    """The value of a metric, by its plain name."""
    shown, metrics, key = result.labels.numbers[name], result.metrics, result.labels.key
    value = metrics[key(name)]
    spread = metrics.get(key(shown.spread)) if shown.spread else None
    if spread is None:
        return MetricValue(f"{value:.{min(shown.digits, _MOST_DECIMALS)}f}", "", repr(value))
    digits = _decimals(spread, shown.digits)
    return MetricValue(f"{value:.{digits}f}", f"{spread:.{digits}f}", f"{value!r} ± {spread!r}")


def _metric_row(name: str, title: str, result: Comparison) -> MetricRow:
    shown = result.labels.numbers[name]
    return MetricRow(title, metric_value(name, result), shown.better, shown.meaning)


def _tiles(result: Comparison, distance: str) -> list[Tile]:
    tiles = _uncertainty_tiles(result.uncertainty, distance)
    diagnosis, duplicates = result.diagnosis, result.duplicates
    if diagnosis is not None and diagnosis.distance_without_copies is not None:
        remark = "" if duplicates is None else f"of {duplicates.unique:,} different images"
        tiles.append(Tile(f"{distance} without duplicates", f"{diagnosis.distance_without_copies:.4f}", remark))
    if duplicates is not None and duplicates.copies:
        tiles.append(
            Tile("Duplicates", _percent(duplicates.share), f"{duplicates.copies:,} of {duplicates.images:,} images")
        )
    real, fake = _share(result.real.count, result.real.found), _share(result.fake.count, result.fake.found)
    tiles.append(Tile("Images", fake, f"against {real} real ones"))
    return tiles


def _share(count: int | None, found: int | None) -> str:
    """Number of images used, and the number available if that is larger."""
    if count is None:
        return "?"
    return f"{count:,}" if found in (None, count) else f"{count:,} of {found:,}"


def _uncertainty_tiles(uncertainty: Uncertainty | None, distance: str) -> list[Tile]:
    if uncertainty is None:
        return []
    corrected = uncertainty.corrected
    if corrected is None:
        return [Tile(f"Bias-corrected {distance}", "–", f"withheld: {uncertainty.withheld}")]
    return [Tile(f"Bias-corrected {distance}", rounded(corrected.value, corrected.error), interval_text(corrected))]


def _harmful_rows(influence: Influence | None) -> LongTable:
    images = () if influence is None else influence.raising
    rows = [(str(rank + 1), shortened(each.file), f"{each.effect:+.6g}") for rank, each in enumerate(images)]
    return _first_rows(rows)


def _skipped_rows(skipped: Sequence[SkippedFile]) -> LongTable:
    return _first_rows([(shortened(each.file), shortened(each.reason)) for each in skipped])


def _first_rows(rows: Sequence[tuple[str, ...]]) -> LongTable:
    return LongTable(rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS))


# --- properties of the sets ------------------------------------------------------------------------------------------


def _percent(share: float, digits: int = 1) -> str:
    """``12.3 %``, with a space that does not break."""
    return f"{100 * share:.{digits}f}\u00a0%"


def _duplicates_sentences(result: Comparison) -> list[str]:
    """The number and kinds of the duplicates, one sentence per set."""
    diagnosis = result.diagnosis
    if diagnosis is None:
        return []
    found = [("FAKE", diagnosis.fake), ("REAL", diagnosis.real)]
    return [_duplicates_sentence(name, copies) for name, copies in found if copies is not None and copies.copies]


def _duplicates_sentence(name: str, copies: Duplicates) -> str:
    kinds = [
        f"{copies.exact:,} pixel-identical" if copies.exact else "",
        f"{copies.near:,} near duplicate{'s' * (copies.near > 1)}" if copies.near else "",
    ]
    text = (
        f"{name}: {copies.copies:,} of {copies.images:,} images ({_percent(copies.share)}) "
        f"{'is a duplicate' if copies.copies == 1 else 'are duplicates'} ({', '.join(filter(None, kinds))}); "
        f"{copies.unique:,} different image{'s' * (copies.unique > 1)}"
    )
    often = [
        f"{images:,} {'occurs' if images == 1 else 'occur'} {times:,} times"
        for times, images in copies.multiplicities.items()
        if times > 1
    ]
    more = " and others more often" if len(often) > _MOST_TIMES else ""
    searched = "" if copies.complete else "; the set is too large to search it for near duplicates"
    return f"{text}; {', '.join(often[:_MOST_TIMES])}{more}{searched}."


def _set_rows(real: Health | None, fake: Health | None) -> list[tuple[str, str, str]]:
    """Rows of label, REAL's value, FAKE's value; none if nothing is known about either set."""
    if real is None and fake is None:
        return []
    facts = [None if health is None else _facts(health) for health in (real, fake)]
    labels = next(each for each in facts if each is not None)
    one, other = ({} if each is None else each for each in facts)
    return [(label, one.get(label, "unknown"), other.get(label, "unknown")) for label in labels]


def _facts(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    return {
        "Images": f"{health.images:,}",
        "Formats": _shares(health.formats, health.images),
        "Colour modes": _shares(health.modes, health.images),
        "Sizes in pixels": _shares({_size(name): count for name, count in health.sizes.items()}, health.images),
        "Aspect ratio": f"{median:.3g}" if least == most else f"{median:.3g} ({least:.3g} to {most:.3g})",
        "JPEG quality": "no JPEGs" if quality is None else f"{quality[1]} ({quality[0]} to {quality[2]})",
        "Brightness (0 to 255)": f"{health.brightness[0]:.1f} ± {health.brightness[1]:.1f}",
        "Grayscale": _percent(health.grayscale),
        "Duplicates": _percent(health.duplicates.share),
        "Unreadable": f"{len(health.unreadable):,}",
    }


def _size(name: str) -> str:
    """``256x256`` with a multiplication sign."""
    return name.replace("x", "×")


def _shares(counts: Mapping[str, int], images: int) -> str:
    """``JPEG``, or ``PNG 93.0 %, JPEG 7.0 %`` for several kinds; rare ones are summarised as ``and others``."""
    if len(counts) == 1 and sum(counts.values()) == images:
        return next(iter(counts))
    named = [f"{name} {_percent(count / images)}" for name, count in list(counts.items())[:_MOST_KINDS]]
    return ", ".join(named) + (", and others" if sum(list(counts.values())[:_MOST_KINDS]) < images else "")


def _histogram_rows(real: Sequence[float] | None, fake: Sequence[float] | None) -> list[tuple[str, str, str]]:
    """Rows of a range of pixel values, REAL's share, FAKE's share; none if both are unknown."""
    if real is None and fake is None:
        return []
    columns = [["unknown"] * 16 if each is None else [_percent(share, 2) for share in each] for each in (real, fake)]
    return [(f"{16 * place} to {16 * place + 15}", *pair) for place, pair in enumerate(zip(*columns, strict=True))]


def _finding_rows(result: Comparison, real: Health | None, fake: Health | None) -> list[tuple[str, str, str, str]]:
    """Findings in FAKE, in REAL, and between the two, without repetitions; no set if it is unknown."""
    known: list[tuple[str, Iterable[Finding]]] = [
        (name, health.findings) for name, health in (("FAKE", fake), ("REAL", real)) if health is not None
    ]
    if result.diagnosis is not None:
        # Without the properties of FAKE, its own findings are not distinguished from differences between the sets.
        known.append(("FAKE against REAL" if fake is not None else "", result.diagnosis.findings))
        known.append(("REAL", result.diagnosis.real_findings))
    seen: set[Finding] = set()
    rows = []
    for where, findings in known:
        new = [finding for finding in findings if finding not in seen]
        rows += [(each.severity, where, each.message, shortened(each.example)) for each in new]
        seen.update(new)
    return sorted(rows, key=lambda row: SEVERITIES.index(row[0]))
