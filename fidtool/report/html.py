"""An evaluation as an HTML page without scripts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jinja2
from markupsafe import escape
from PIL import Image

from fidtool.diagnose.diagnosis import Diagnosis, Health, kinds_of
from fidtool.diagnose.duplicates import duplicates_text
from fidtool.diagnose.findings import Finding
from fidtool.errors import SEVERITIES, FidtoolError, Spelling, as_argument, option, rendered
from fidtool.names import command_line, counted, images_of, legible, short_names, shortened
from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from fidtool.reading.loader import ImageLookup
from fidtool.report.charts import described, page_charts, title_of
from fidtool.report.tables import Column, about_marks, class_rows, columns_of, is_real, rounded
from fidtool.report.text import class_summaries, differences_shown, heldout_lines
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Exhibit
from fidtool.result.values import Value
from fidtool.sources.contents import ContentError, Read, ValueRange
from fidtool.sources.crops import Crop

_MOST_IMAGES, _MOST_IMAGES_OF_ALL = 24, 96
"""Maximum number of images in a sheet of one FAKE, and in such sheets of all FAKEs, but at least
one of each.
"""
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


def html_report(
    evaluation: Evaluation, gallery: ImageLookup | None = None, spelling: Spelling = as_argument
) -> str:
    """The page as text that can be encoded as UTF-8. Equal arguments and image files give equal
    pages.

    The images that it shows are read again, by ``gallery``, or from files if it is None. For an
    image that cannot be read, the page gives the reason.
    """
    images = gallery or ImageLookup()
    wanted: dict[str, None] = {}

    def wish(file: str, crop: Crop | None) -> Thumbnail:
        wanted[file] = None
        return Thumbnail()

    @cache  # an image can be on several sheets
    def thumbnail(file: str, crop: Crop | None) -> Thumbnail:
        return thumbnail_of(crop, images.read(file), images.floats)

    template, content = _environment(spelling).get_template("page.html.j2"), _content(evaluation)
    template.render(content, thumbnail=wish)  # so that a source is read in one pass
    images.prefetch(wanted)
    page: str = template.render(content, thumbnail=thumbnail)
    return page.lstrip()


def _environment(spelling: Spelling) -> jinja2.Environment:
    """An environment that escapes everything and treats undefined names as errors."""

    def text(value: object) -> object:
        # Markup comes from the template itself.
        return value if hasattr(value, "__html__") else legible(rendered(str(value), spelling))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fidtool", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    of_results = (
        command_line,
        described,
        duplicates_of,
        findings_of,
        heldout_lines,
        images_of,
        properties_of,
    )
    functions = (*of_results, class_rows, class_summaries, option, rounded, shortened)
    environment.globals |= {function.__name__: function for function in functions}
    return environment


def _content(evaluation: Evaluation) -> dict[str, Any]:
    """What the template shows besides what it asks of its functions."""
    results = [
        replace(each, exhibit=each.exhibit or Exhibit(), diagnosis=each.diagnosis or Diagnosis())
        for each in evaluation.results
    ]
    paths = [result.fake.name for result in results]
    names = short_names(paths)
    # Of more differences, those to the best FAKE.
    differences = differences_shown(evaluation, 12, dict(zip(paths, names, strict=True)))
    main, columns = results[0].values[0], columns_of(evaluation)
    leading, verdict = _verdict(evaluation, columns, names, main)
    document = evaluation.to_dict()
    record = {name: document[name] for name in ("protocol", "layers", "settings", "run")}
    record |= {
        name: {each["fake"]: each[name] for each in document["results"]}
        for name in ("metrics", "sets")
    }
    details = map(legible, json.dumps(record, indent=2, ensure_ascii=False).split("\n"))
    return {
        "evaluation": evaluation,
        "results": results,
        "names": names,
        "main": main,
        "values": {value.key: value for value in evaluation.values},
        "leading": leading[:4],  # their values are in the header
        "verdict": verdict,
        "subject": title_of(evaluation, main),
        "alerts": evaluation.alerts,
        "charts": page_charts(evaluation),
        "columns": columns,
        "remarks": [*about_marks(evaluation, columns), *evaluation.not_computed_lines],
        "differences": differences,
        "most": max(1, min(_MOST_IMAGES, _MOST_IMAGES_OF_ALL // len(names))),
        "details": escape("\n".join(details)),
    }


def _verdict(
    evaluation: Evaluation, columns: Sequence[Column], names: list[str], main: Value
) -> tuple[list[int], str]:
    """The places of the FAKEs whose values are in the header, and which of several is best by the
    main metric.
    """
    results, title = evaluation.results, main.short_title
    if len(results) == 1:
        return [0], title
    known = all(result.corrected_of(main) for result in results)
    column = next(column for column in columns if column.is_corrected == known)
    best = sorted(column.best)
    if not best:
        alike = column.better and sum(not is_real(result) for result in results) > 1
        return (
            [],
            f"{title} of {len(results)} sets{', which cannot be told apart' if alike else ''}",
        )
    if len(best) > 1:
        return best, f"{len(best)} of {len(results)} sets cannot be told apart, and are the best"
    name, extreme = (
        shortened(names[best[0]], 48),
        "lowest" if column.better == "lower" else "highest",
    )
    return best, f"{name} is the best" if known else f"{name} has the {extreme} {title}"


# --- what the template asks about a FAKE ----------------------------------------------------------


def thumbnail_of(crop: Crop | None, content: Read, floats: ValueRange | None = None) -> Thumbnail:
    """Return the thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the page is written after hours of work. ``floats`` is how
    floats become bytes.
    """
    try:
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= _SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=85)
    except FileNotFoundError:
        return Thumbnail(problem="not found")
    except (OSError, ValueError, ContentError, FidtoolError, DecodeError, MemoryError) as error:
        return Thumbnail(
            problem=getattr(error, "strerror", None) or str(error) or type(error).__name__
        )
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}")


def findings_of(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """Return the findings in FAKE, between the two and in REAL, each with the set or sets; the
    worst first.
    """
    found = sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return [(_ABOUT[finding.set], finding) for finding in found]


def duplicates_of(diagnosis: Diagnosis) -> list[str]:
    """Return the number and kinds of the duplicates, one sentence per set that has any, and one of
    those in both.
    """
    sentences = [
        f"{name}: "
        f"{duplicates_text(found)}{'' if found.complete else '; near ones were not searched for'}."
        for name, found in (("FAKE", diagnosis.fake), ("REAL", diagnosis.real))
        if found is not None and found.copies
    ]
    if diagnosis.shared is not None and diagnosis.shared.count:
        sentences.append(
            f"Pixel-identical to images of REAL: {counted(diagnosis.shared.count, 'image')} of "
            "FAKE."
        )
    return sentences


def properties_of(exhibit: Exhibit) -> list[tuple[str, str, str]]:
    """Return rows of a label, REAL's value and FAKE's value; none if nothing is known about either
    set.
    """
    real, fake = (
        {} if health is None else _properties(health) for health in (exhibit.real, exhibit.fake)
    )
    return [
        (label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake
    ]


def _properties(health: Health) -> dict[str, str]:
    least, median, most = health.aspect_ratios
    quality = health.jpeg_quality
    return {
        "Images": f"{health.images:,}",
        "Formats": kinds_of(health.formats),
        "Colour modes": kinds_of(health.modes),
        "Sizes in pixels": kinds_of(health.sizes),
        "Aspect ratio": f"{median:.3g}"
        if least == most
        else f"{median:.3g} ({least:.3g} to {most:.3g})",
        "JPEG quality": "no JPEGs"
        if quality is None
        else f"{quality[1]} ({quality[0]} to {quality[2]})",
        "Brightness (0 to 255)": f"{health.brightness[0]:.1f} ± {health.brightness[1]:.1f}",
        "Grayscale": f"{health.grayscale:.1%}",
        "Duplicates": f"{health.duplicates.share:.1%}",
        "Unreadable": f"{len(health.unreadable):,}",
    }
