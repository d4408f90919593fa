"""What a page says of one FAKE, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import SEVERITIES, Finding
from fidtool.distances.jackknife import Interval
from fidtool.report.charts import Chart, curve_chart, histogram_chart
from fidtool.report.names import short_title, shortened
from fidtool.report.sheets import Card
from fidtool.report.text import number
from fidtool.results import Comparison, Exhibit, Influence, SkippedFile, Uncertainty

_HEADINGS = {
    "metrics": "Metrics",
    "curve": "{distance} against the number of images",
    "sets": "What the sets are made of",
    "findings": "Findings",
    "copies": "Copies",
    "shared": "Images of REAL in this set",
    "harmful": "Images that raise the {distance}",
    "neighbours": "Nearest real images",
    "random": "Images at random",
    "skipped": "Files that were left out",
}
_MOST_ROWS = 100
"""Of a table of files; the others are in the JSON."""
_MOST_KINDS = 4
"""Formats, modes or sizes that are named."""
_MOST_TIMES = 4
"""Numbers of times for which it is said how many pictures occur so often."""


@dataclass(frozen=True)
class Tile:
    """A number among the first on the page, and a remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class LongTable:
    """The first rows of a table, and how many more there are."""

    rows: Sequence[tuple[str, ...]]
    more: int


@dataclass(frozen=True)
class Section:
    """One FAKE on the page.

    Attributes:
        key: prefix of its ids.
        name, path: short name and path of FAKE.
        title, score: of the main metric, as text.
        main: its plain name.
        distance: short title of the Fréchet distance.
        tiles: what stands beside the score.
        metrics: rows of title, value, which way is better, meaning.
        curve, histogram: charts; None if there is nothing to draw.
        curve_rows, histogram_rows: their numbers as text.
        sheets: contact sheets by name.
        copies: sentences about duplicates.
        result: the comparison, for everything else.
        harmful: rows of rank, file and effect of the images that raise the distance.
        sets: rows of label, REAL's value, FAKE's value.
        findings: rows of severity, set, sentence, example.
        skipped: rows of file, reason.
    """

    key: str
    name: str
    path: str
    title: str
    score: str
    main: str
    distance: str
    tiles: Sequence[Tile]
    metrics: Sequence[tuple[str, str, str, str]]
    curve: Chart | None
    curve_rows: Sequence[tuple[str, str]]
    histogram: Chart | None
    histogram_rows: Sequence[tuple[str, str, str]]
    sheets: Mapping[str, Sequence[Card]]
    copies: Sequence[str]
    result: Comparison
    harmful: LongTable
    sets: Sequence[tuple[str, str, str]]
    findings: Sequence[tuple[str, str, str, str]]
    skipped: LongTable

    @property
    def parts(self) -> dict[str, str]:
        """Its parts with content, in the order of the page: suffix of the id to heading."""
        content: dict[str, object] = {
            "metrics": self.metrics,
            "curve": self.curve_rows,
            "sets": self.sets,
            "findings": self.findings,
            "copies": self.copies,
            "shared": self.result.diagnosis and self.result.diagnosis.shared and self.result.diagnosis.shared.count,
            "harmful": self.harmful.rows,
            "neighbours": self.sheets["neighbours"],
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
    charts: bool = True,
) -> Section:
    """The section of one FAKE.

    Args:
        result: its numbers.
        exhibit: its images; None if unknown.
        name: its short name.
        key: prefix of the ids in it.
        sheets: its contact sheets, by name.
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
        path=result.fake,
        title=titles[main],
        score=number(main, result),
        main=main,
        distance=distance,
        tiles=_tiles(result, distance),
        metrics=[_metric_row(each, title, result) for each, title in titles.items()],
        curve=curve_chart(uncertainty, distance, short, f"{key}-curve") if charts else None,
        curve_rows=[(f"{images:,}", f"{value:.4f}") for images, value in curve],
        histogram=histogram_chart(values, fake_values, short, f"{key}-values") if charts else None,
        histogram_rows=_histogram_rows(values, fake_values),
        sheets=sheets,
        copies=_copies_sentences(result),
        result=result,
        harmful=_harmful_rows(result.influence),
        sets=_set_rows(real, fake),
        findings=_finding_rows(result, real, fake),
        skipped=_skipped_rows(result.skipped),
    )


# --- numbers ---------------------------------------------------------------------------------------------------------


def rounded(value: float, error: float) -> str:
    """``value`` to as many digits as its standard error ``error`` leaves."""
    digits = 4 if not 0.0 < error < math.inf else min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f}"


def interval_words(interval: Interval) -> str:
    """``95 %: 12.1 to 12.9``."""
    return f"95 %: {rounded(interval.low, interval.error)} to {rounded(interval.high, interval.error)}"


def _metric_row(name: str, title: str, result: Comparison) -> tuple[str, str, str, str]:
    """Title, value, which way is better, meaning."""
    shown = result.labels.numbers[name]
    return title, number(name, result).replace("± ", "±\u00a0"), shown.better, shown.meaning


def _tiles(result: Comparison, distance: str) -> list[Tile]:
    tiles = _uncertainty_tiles(result.uncertainty, distance)
    diagnosis, duplicates = result.diagnosis, result.duplicates
    if diagnosis is not None and diagnosis.distance_without_copies is not None:
        remark = "" if duplicates is None else f"of {duplicates.unique:,} different pictures"
        tiles.append(Tile(f"{distance} without the copies", f"{diagnosis.distance_without_copies:.4f}", remark))
    if duplicates is not None and duplicates.copies:
        tiles.append(
            Tile("Copies", _percent(duplicates.share), f"{duplicates.copies:,} of {duplicates.images:,} images")
        )
    real, fake = _share(result.count_real, result.found_real), _share(result.count_fake, result.found_fake)
    tiles.append(Tile("Images", fake, f"against {real} real ones"))
    return tiles


def _share(count: int | None, found: int | None) -> str:
    """How many images were used, and of how many if these are more."""
    if count is None:
        return "?"
    return f"{count:,}" if found in (None, count) else f"{count:,} of {found:,}"


def _uncertainty_tiles(uncertainty: Uncertainty | None, distance: str) -> list[Tile]:
    if uncertainty is None:
        return []
    corrected = uncertainty.corrected
    if corrected is None:
        return [Tile(f"Bias-corrected {distance}", "–", f"withheld: {uncertainty.withheld}")]
    return [Tile(f"Bias-corrected {distance}", rounded(corrected.value, corrected.error), interval_words(corrected))]


def _harmful_rows(influence: Influence | None) -> LongTable:
    images = () if influence is None else influence.most_harmful
    rows = [(str(rank + 1), shortened(each.file), f"{each.effect:+.6g}") for rank, each in enumerate(images)]
    return _first_rows(rows)


def _skipped_rows(skipped: Sequence[SkippedFile]) -> LongTable:
    return _first_rows([(shortened(each.file), shortened(each.reason)) for each in skipped])


def _first_rows(rows: Sequence[tuple[str, ...]]) -> LongTable:
    return LongTable(rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS))


# --- what REAL and FAKE are made of ----------------------------------------------------------------------------------


def _percent(share: float, digits: int = 1) -> str:
    """``12.3 %``, without a line break in it."""
    return f"{100 * share:.{digits}f}\u00a0%"


def _copies_sentences(result: Comparison) -> list[str]:
    """What there is to say about copies, a sentence per set."""
    diagnosis = result.diagnosis
    if diagnosis is None:
        return []
    found = [("FAKE", diagnosis.fake), ("REAL", diagnosis.real)]
    return [_copies_sentence(name, copies) for name, copies in found if copies is not None and copies.copies]


def _copies_sentence(name: str, copies: Duplicates) -> str:
    kinds = [
        f"{copies.exact:,} to the pixel" if copies.exact else "",
        f"{copies.near:,} re-encoded" if copies.near else "",
    ]
    words = (
        f"{name}: {copies.copies:,} of {copies.images:,} images ({_percent(copies.share)}) show a picture again "
        f"({', '.join(filter(None, kinds))}); {copies.unique:,} pictures are different"
    )
    often = [f"{pictures:,} come {times} times" for times, pictures in copies.multiplicities.items() if times > 1]
    more = " and others more often" if len(often) > _MOST_TIMES else ""
    looked = "" if copies.complete else "; so many pictures were looked through for exact copies alone"
    return f"{words}; {', '.join(often[:_MOST_TIMES])}{more}{looked}."


def _set_rows(real: Health | None, fake: Health | None) -> list[tuple[str, str, str]]:
    """Rows of label, REAL's value, FAKE's value; none if both sets are unknown."""
    if real is None and fake is None:
        return []
    facts = [None if health is None else _facts(health) for health in (real, fake)]
    labels = next(each for each in facts if each is not None)
    one, other = ({} if each is None else each for each in facts)
    return [(label, one.get(label, "not known"), other.get(label, "not known")) for label in labels]


def _facts(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    return {
        "Images": f"{health.images:,}",
        "Formats": _shares(health.formats, health.images),
        "Colour modes": _shares(health.modes, health.images),
        "Sizes in pixels": _shares({_size(name): count for name, count in health.sizes.items()}, health.images),
        "Width over height": f"{median:.3g}" if least == most else f"{median:.3g} ({least:.3g} to {most:.3g})",
        "JPEG quality": "no JPEGs" if quality is None else f"{quality[1]} ({quality[0]} to {quality[2]})",
        "Brightness (0 to 255)": f"{health.brightness[0]:.1f} ± {health.brightness[1]:.1f}",
        "Grayscale": _percent(health.grayscale),
        "Copies": _percent(health.duplicates.share),
        "Unreadable": f"{len(health.unreadable):,}",
    }


def _size(name: str) -> str:
    """``256x256`` with a multiplication sign."""
    return name.replace("x", "×")


def _shares(counts: Mapping[str, int], images: int) -> str:
    """``JPEG``, or ``PNG 93.0 %, JPEG 7.0 %`` and how many further kinds of few images there are."""
    if len(counts) == 1 and sum(counts.values()) == images:
        return next(iter(counts))
    named = [f"{name} {_percent(count / images)}" for name, count in list(counts.items())[:_MOST_KINDS]]
    return ", ".join(named) + (", and others" if sum(list(counts.values())[:_MOST_KINDS]) < images else "")


def _histogram_rows(real: Sequence[float] | None, fake: Sequence[float] | None) -> list[tuple[str, str, str]]:
    """Rows of a range of pixel values, REAL's share, FAKE's share; none if both are unknown."""
    if real is None and fake is None:
        return []
    columns = [["not known"] * 16 if each is None else [_percent(share, 2) for share in each] for each in (real, fake)]
    return [(f"{16 * place} to {16 * place + 15}", *pair) for place, pair in enumerate(zip(*columns, strict=True))]


def _finding_rows(result: Comparison, real: Health | None, fake: Health | None) -> list[tuple[str, str, str, str]]:
    """What was found in FAKE, in REAL, and between the two, each once; without `Health` it is unknown in which."""
    known: list[tuple[str, Iterable[Finding]]] = [
        (name, health.findings) for name, health in (("FAKE", fake), ("REAL", real)) if health is not None
    ]
    among = "both" if real is not None and fake is not None else "–"
    if result.diagnosis is not None:
        known.append((among, (*result.diagnosis.findings, *result.diagnosis.real_findings)))
    seen: set[Finding] = set()
    rows = []
    for where, findings in known:
        new = [finding for finding in findings if finding not in seen]
        rows += [(each.severity, where, each.message, shortened(each.example)) for each in new]
        seen.update(new)
    return sorted(rows, key=lambda row: SEVERITIES.index(row[0]))
