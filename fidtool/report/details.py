"""What a page shows of one FAKE besides its values: findings, duplicates, properties of the sets, thumbnails."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

from PIL import Image

from fidtool.diagnose.diagnosis import Diagnosis, Health, kinds_of
from fidtool.diagnose.duplicates import duplicates_text
from fidtool.diagnose.findings import Finding
from fidtool.errors import SEVERITIES, FidtoolError
from fidtool.images.decode import DecodeError, DecodeOptions, decode
from fidtool.images.framing import Crop
from fidtool.names import counted
from fidtool.result.explanations import Exhibit
from fidtool.sources.contents import ContentError, Read, ValueRange

LONGEST_SIDE = 128
"""Limit of the long side of a thumbnail, in pixels."""
_SMALL = 64
"""Images up to this long side are stored losslessly."""
_ABOUT = {"fake": "FAKE", "pair": "FAKE against REAL", "real": "REAL"}
"""What a page calls that which a finding is about."""


class Thumbnail(NamedTuple):
    """A reduced image as ``data:image/…``, or the reason why there is none."""

    uri: str = ""
    problem: str = ""


def thumbnail_of(framing: str | None, content: Read, floats: ValueRange | None = None) -> Thumbnail:
    """Return the thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the page is written after hours of work. ``floats`` is how floats become
    bytes.
    """
    try:
        crop = None if framing is None else Crop.parse(framing)
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= _SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=85)
    except FileNotFoundError:
        return Thumbnail(problem="not found")
    except (OSError, ValueError, ContentError, FidtoolError, DecodeError, MemoryError) as error:
        return Thumbnail(problem=getattr(error, "strerror", None) or str(error) or type(error).__name__)
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}")


def findings_of(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """Return the findings in FAKE, between the two and in REAL, each with the set or sets; the worst first."""
    found = sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return [(_ABOUT[finding.set], finding) for finding in found]


def duplicates_of(diagnosis: Diagnosis) -> list[str]:
    """Return the number and kinds of the duplicates, one sentence per set that has any, and one of those in both."""
    sentences = [
        f"{name}: {duplicates_text(found)}{'' if found.complete else '; near ones were not searched for'}."
        for name, found in (("FAKE", diagnosis.fake), ("REAL", diagnosis.real))
        if found is not None and found.copies
    ]
    if diagnosis.shared is not None and diagnosis.shared.count:
        sentences.append(f"Pixel-identical to images of REAL: {counted(diagnosis.shared.count, 'image')} of FAKE.")
    return sentences


def properties_of(exhibit: Exhibit) -> list[tuple[str, str, str]]:
    """Return rows of a label, REAL's value and FAKE's value; none if nothing is known about either set."""
    real, fake = ({} if health is None else _properties(health) for health in (exhibit.real, exhibit.fake))
    return [(label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake]


def _properties(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    return {
        "Images": f"{health.images:,}",
        "Formats": kinds_of(health.formats),
        "Colour modes": kinds_of(health.modes),
        "Sizes in pixels": kinds_of(health.sizes),
        "Aspect ratio": f"{median:.3g}" if least == most else f"{median:.3g} ({least:.3g} to {most:.3g})",
        "JPEG quality": "no JPEGs" if quality is None else f"{quality[1]} ({quality[0]} to {quality[2]})",
        "Brightness (0 to 255)": f"{health.brightness[0]:.1f} ± {health.brightness[1]:.1f}",
        "Grayscale": f"{health.grayscale:.1%}",
        "Duplicates": f"{health.duplicates.share:.1%}",
        "Unreadable": f"{len(health.unreadable):,}",
    }
