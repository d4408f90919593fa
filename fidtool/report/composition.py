"""What REAL and FAKE are made of, as rows of a page's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import Finding
from fidtool.report.names import shortened
from fidtool.results import Comparison

_MOST_KINDS = 4
_MOST_TIMES = 4


def percent(share: float, digits: int = 1) -> str:
    """``12.3 %``, which does not break."""
    return f"{100 * share:.{digits}f}\u00a0%"


def copies_words(result: Comparison) -> list[str]:
    """What there is to say of copies, a sentence a set."""
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
        f"{name}: {copies.copies:,} of {copies.images:,} images ({percent(copies.share)}) show a picture again "
        f"({', '.join(filter(None, kinds))}); {copies.unique:,} pictures are different"
    )
    often = [f"{pictures:,} come {times} times" for times, pictures in copies.multiplicities.items() if times > 1]
    more = " and others more often" if len(often) > _MOST_TIMES else ""
    looked = "" if copies.complete else "; so many pictures were looked through for exact copies alone"
    return f"{words}; {', '.join(often[:_MOST_TIMES])}{more}{looked}."


def set_rows(real: Health | None, fake: Health | None) -> list[tuple[str, str, str]]:
    """What it is about, REAL's and FAKE's; none where neither set was looked at."""
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
        "Grayscale": percent(health.grayscale),
        "Copies": percent(health.duplicates.share),
        "Unreadable": f"{len(health.unreadable):,}",
    }


def _size(name: str) -> str:
    """``256x256`` with the proper sign."""
    return name.replace("x", "×")


def _shares(counts: Mapping[str, int], images: int) -> str:
    """``JPEG``, or ``PNG 93.0 %, JPEG 7.0 %`` and how many further kinds of few images there are."""
    if len(counts) == 1 and sum(counts.values()) == images:
        return next(iter(counts))
    named = [f"{name} {percent(count / images)}" for name, count in list(counts.items())[:_MOST_KINDS]]
    return ", ".join(named) + (", and others" if sum(list(counts.values())[:_MOST_KINDS]) < images else "")


def histogram_rows(real: Sequence[float] | None, fake: Sequence[float] | None) -> list[tuple[str, str, str]]:
    """Range of pixel values, REAL's share and FAKE's; none where neither is known."""
    if real is None and fake is None:
        return []
    columns = [["not known"] * 16 if each is None else [percent(share, 2) for share in each] for each in (real, fake)]
    return [(f"{16 * place} to {16 * place + 15}", *pair) for place, pair in enumerate(zip(*columns, strict=True))]


def finding_rows(result: Comparison, real: Health | None, fake: Health | None) -> list[tuple[str, str, str, str]]:
    """What was found in FAKE, in REAL, and between the two, each once; without Healths nobody knows in which."""
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
    return sorted(rows, key=lambda row: ("high", "medium", "low").index(row[0]))
