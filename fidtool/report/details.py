"""What a page shows of one FAKE besides its values: findings, duplicates, properties of the sets, thumbnails."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from PIL import Image

from fidtool.diagnose.diagnosis import Health
from fidtool.diagnose.duplicates import Duplicates
from fidtool.diagnose.findings import Finding
from fidtool.errors import SEVERITIES, FidtoolError, option
from fidtool.images.decode import DecodeError, DecodeOptions, decode
from fidtool.images.framing import Crop
from fidtool.names import counted, shortened
from fidtool.results import Comparison
from fidtool.sources.contents import ContentError, Read, ValueRange

LONGEST_SIDE = 128
"""Limit of the long side of a thumbnail, in pixels."""
_SMALL = 64
"""Images up to this long side are stored losslessly."""
_QUALITY = 85
_MOST_KINDS = 4
"""Maximum number of formats, modes or sizes that are listed."""


class Thumbnail(NamedTuple):
    """A reduced image as ``data:image/…``, or the reason why there is none."""

    uri: str = ""
    width: int = 0
    height: int = 0
    problem: str = ""


def thumbnail_of(file: str, framing: str | None, content: Read, floats: ValueRange | None = None) -> Thumbnail:
    """Return the thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the page is written after hours of work. ``floats`` is how floats become
    bytes.
    """
    if not file:
        return Thumbnail(problem="no image file")
    try:
        crop = None if framing is None else Crop.parse(framing)
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= _SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=_QUALITY)
    except FileNotFoundError:
        return Thumbnail(problem="not found")
    except (OSError, ValueError, ContentError, FidtoolError, DecodeError, MemoryError) as error:
        return Thumbnail(problem=getattr(error, "strerror", None) or str(error) or type(error).__name__)
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", *image.size)


def findings_of(result: Comparison) -> list[tuple[str, Finding]]:
    """Return the findings in FAKE, in REAL and between the two, each once, with the set or sets; the worst first."""
    exhibit, diagnosis = result.exhibit, result.diagnosis
    own = None if exhibit is None else exhibit.fake
    sets = [] if exhibit is None else [("FAKE", exhibit.fake), ("REAL", exhibit.real)]
    known: list[tuple[str, Iterable[Finding]]] = [(name, each.findings) for name, each in sets if each is not None]
    if diagnosis is not None:
        # Without the properties of FAKE, its own findings are not distinguished from differences between the sets.
        known.append(("FAKE against REAL" if own is not None else "", diagnosis.findings))
        known.append(("REAL", diagnosis.real_findings))
    where: dict[Finding, str] = {}
    for name, findings in known:
        for each in findings:
            where.setdefault(each, name)
    return sorted(((name, each) for each, name in where.items()), key=lambda row: SEVERITIES.index(row[1].severity))


def duplicates_of(result: Comparison) -> list[str]:
    """Return the number and kinds of the duplicates, one sentence per set that has any, and one of those in both."""
    sets: dict[str, Duplicates | None] = {}
    if result.diagnosis is not None:
        sets = {"FAKE": result.diagnosis.fake, "REAL": result.diagnosis.real}
    sentences = [
        f"{name}: {found.copies:,} of {found.images:,} images ({_percent(found.share)}) are duplicates "
        f"({found.exact:,} pixel-identical, {found.near:,} near), so {found.unique:,} are different"
        f"{'' if found.complete else '; the set is too large to search it for near duplicates'}."
        for name, found in sets.items()
        if found is not None and found.copies
    ]
    if result.diagnosis is not None and (shared := result.diagnosis.shared) is not None and shared.count:
        sentences.append(f"Pixel-identical to images of REAL: {counted(shared.count, 'image')} of FAKE.")
    return sentences


def properties_of(result: Comparison) -> list[tuple[str, str, str]]:
    """Return rows of a label, REAL's value and FAKE's value; none if nothing is known about either set."""
    known = () if result.exhibit is None else (result.exhibit.real, result.exhibit.fake)
    real, fake = [{} if health is None else _properties(health) for health in known] or ({}, {})
    return [(label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake]


def without_features(result: Comparison, cached: Collection[str]) -> str:
    """Return why there are no nearest images, and what to do; empty if features are known or not needed."""
    unknown = () if result.exhibit is None else result.exhibit.without_features
    if result.fake.name == result.real.name:
        return ""
    of_cache = " and ".join(shortened(path) for path in unknown if path in cached)
    of_files = " and ".join(shortened(path) for path in unknown if path not in cached)
    sentences = [
        of_cache
        and f"The cache has no per-image features of {of_cache}. Pass {option('cache', False)} to compute them.",
        of_files and f"There are no per-image features in {of_files}. Pass the images instead of statistics.",
    ]
    return " ".join(filter(None, sentences))


def _properties(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    sizes = {name.replace("x", "×"): count for name, count in health.sizes.items()}
    return {
        "Images": f"{health.images:,}",
        "Formats": _shares(health.formats, health.images),
        "Colour modes": _shares(health.modes, health.images),
        "Sizes in pixels": _shares(sizes, health.images),
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


def _percent(share: float) -> str:
    """``12.3 %``, with a space that does not break."""
    return f"{100 * share:.1f}\u00a0%"
