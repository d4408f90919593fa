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
from fidtool.errors import SEVERITIES, Spelling, as_argument, option, reason_of, render
from fidtool.names import command_line, format_count, images_of, legible, short_names, shorten
from fidtool.reading.decode import DecodeOptions, decode
from fidtool.reading.lookup import ImageLookup
from fidtool.report.charts import page_charts, set_text, title_of
from fidtool.report.tables import Column, about_marks, class_rows, columns_of, is_real, rounded_text
from fidtool.report.text import class_summaries, differences_shown, heldout_lines
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Exhibit
from fidtool.result.values import Value
from fidtool.sources.contents import Read, ValueRange
from fidtool.sources.crops import Crop

# Maximum number of images in a sheet of one FAKE, and in such sheets of all FAKEs, but at least one
# of each.
_MOST_IMAGES = 24
_MOST_IMAGES_OF_ALL = 96
# If there are more pairs of FAKEs, only those with the best FAKE are shown.
_MOST_PAIRS = 12
# Maximum number of FAKEs whose values are in the header.
_MOST_LEADING = 4
LONGEST_SIDE = 128
"""Limit of the long side of a thumbnail, in pixels."""
# Images up to this long side are stored losslessly.
_SMALL = 64
# What a page calls that which a finding is about.
_ABOUT = {"fake": "FAKE", "pair": "FAKE against REAL", "real": "REAL"}


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

    template = _environment(spelling).get_template("page.html.j2")
    content = _content(evaluation)
    # The first page only shows which images are wanted, so that a source is read in one pass.
    template.render(content, thumbnail=wish)
    images.prefetch(wanted)
    page: str = template.render(content, thumbnail=thumbnail)
    return page.lstrip()


def _environment(spelling: Spelling) -> jinja2.Environment:
    """An environment that escapes everything and treats undefined names as errors."""

    def text(value: object) -> object:
        # Markup comes from the template itself.
        return value if hasattr(value, "__html__") else legible(render(str(value), spelling))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fidtool", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (
        class_rows,
        class_summaries,
        command_line,
        set_text,
        duplicates_of,
        findings_of,
        heldout_lines,
        images_of,
        option,
        properties_of,
        rounded_text,
        shorten,
    )
    environment.globals |= {function.__name__: function for function in functions}
    return environment


def _content(evaluation: Evaluation) -> dict[str, Any]:
    """What the template shows besides what it asks of its functions."""
    results = [
        replace(
            result,
            exhibit=result.exhibit or Exhibit(),
            diagnosis=result.diagnosis or Diagnosis(),
        )
        for result in evaluation.results
    ]
    paths = [result.fake.name for result in results]
    names = short_names(paths)
    main = results[0].values[0]
    columns = columns_of(evaluation)
    leading, verdict = _verdict(evaluation, columns, names, main)
    return {
        "evaluation": evaluation,
        "results": results,
        "names": names,
        "main": main,
        "values": {value.key: value for value in evaluation.values},
        "leading": leading[:_MOST_LEADING],
        "verdict": verdict,
        "subject": title_of(evaluation, main),
        "alerts": evaluation.alerts,
        "charts": page_charts(evaluation),
        "columns": columns,
        "remarks": [*about_marks(evaluation, columns), *evaluation.not_computed_lines],
        "differences": differences_shown(
            evaluation, _MOST_PAIRS, dict(zip(paths, names, strict=True))
        ),
        "most": max(1, min(_MOST_IMAGES, _MOST_IMAGES_OF_ALL // len(names))),
        "details": escape(_record(evaluation)),
    }


def _record(evaluation: Evaluation) -> str:
    """Return how the values were computed and all their digits, as JSON."""
    document = evaluation.to_dict()
    record = {name: document[name] for name in ("protocol", "layers", "settings", "run")}
    for name in ("metrics", "sets"):
        record[name] = {result["fake"]: result[name] for result in document["results"]}
    lines = json.dumps(record, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(legible, lines))


def _verdict(
    evaluation: Evaluation, columns: Sequence[Column], names: list[str], main: Value
) -> tuple[list[int], str]:
    """The places of the FAKEs whose values are in the header, and which of several is best by the
    main metric.
    """
    results = evaluation.results
    title = main.short_title
    if len(results) == 1:
        return [0], title
    is_known = all(result.corrected_of(main) for result in results)
    column = next(column for column in columns if column.is_corrected == is_known)
    best = sorted(column.best)
    if not best:
        rated = sum(not is_real(result) for result in results)
        alike = ", which cannot be told apart" if column.better and rated > 1 else ""
        return [], f"{title} of {len(results)} sets{alike}"
    if len(best) > 1:
        return best, f"{len(best)} of {len(results)} sets cannot be told apart, and are the best"
    name = shorten(names[best[0]], 48)
    if is_known:
        return best, f"{name} is the best"
    extreme = "lowest" if column.better == "lower" else "highest"
    return best, f"{name} has the {extreme} {title}"


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
    except Exception as error:
        return Thumbnail(problem=reason_of(error))
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}")


def findings_of(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """Return the findings in FAKE, between the two and in REAL, each with the set or sets; the
    worst first.
    """
    findings = sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return [(_ABOUT[finding.set], finding) for finding in findings]


def duplicates_of(diagnosis: Diagnosis) -> list[str]:
    """Return the number and kinds of the duplicates, one sentence per set that has any, and one of
    those in both.
    """
    sentences = []
    for name, duplicates in (("FAKE", diagnosis.fake), ("REAL", diagnosis.real)):
        if duplicates is not None and duplicates.copies:
            more = "" if duplicates.complete else "; near ones were not searched for"
            sentences.append(f"{name}: {duplicates_text(duplicates)}{more}.")
    if diagnosis.shared is not None and diagnosis.shared.count:
        shared = format_count(diagnosis.shared.count, "image")
        sentences.append(f"Pixel-identical to images of REAL: {shared} of FAKE.")
    return sentences


def properties_of(exhibit: Exhibit) -> list[tuple[str, str, str]]:
    """Return rows of a label, REAL's value and FAKE's value; none if nothing is known about either
    set.
    """
    real = _properties(exhibit.real)
    fake = _properties(exhibit.fake)
    return [
        (label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake
    ]


def _properties(health: Health | None) -> dict[str, str]:
    if health is None:
        return {}
    least, median, most = health.aspect_ratios
    ratio = f"{median:.3g}"
    if least != most:
        ratio += f" ({least:.3g} to {most:.3g})"
    quality = "no JPEGs"
    if health.jpeg_quality is not None:
        lowest, usual, highest = health.jpeg_quality
        quality = f"{usual} ({lowest} to {highest})"
    light, deviation = health.brightness
    return {
        "Images": f"{health.images:,}",
        "Formats": kinds_of(health.formats),
        "Colour modes": kinds_of(health.modes),
        "Sizes in pixels": kinds_of(health.sizes),
        "Aspect ratio": ratio,
        "JPEG quality": quality,
        "Brightness (0 to 255)": f"{light:.1f} ± {deviation:.1f}",
        "Grayscale": f"{health.grayscale:.1%}",
        "Duplicates": f"{health.duplicates.share:.1%}",
        "Unreadable": f"{len(health.unreadable):,}",
    }
