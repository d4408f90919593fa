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

from fidtool.diagnose.diagnosis import Diagnosis, Health, format_counts
from fidtool.diagnose.duplicates import describe_duplicates
from fidtool.diagnose.findings import Finding
from fidtool.errors import (
    SEVERITIES,
    InputError,
    Spelling,
    format_argument,
    format_reason,
    option,
    render,
)
from fidtool.names import (
    command_line,
    escape_text,
    format_count,
    format_image_counts,
    short_names,
    shorten,
)
from fidtool.reading.decode import DecodeOptions, decode
from fidtool.reading.lookup import ImageLookup
from fidtool.report.charts import make_title, page_charts, set_text
from fidtool.report.tables import (
    Column,
    class_rows,
    describe_marks,
    is_real,
    make_columns,
    rounded_text,
)
from fidtool.report.text import class_summaries, heldout_lines, select_differences
from fidtool.result.evaluation import Comparison, Evaluation
from fidtool.result.explanations import Exhibit
from fidtool.result.standing import Standing
from fidtool.result.values import Value
from fidtool.result.verify import find_expected_preset, verify
from fidtool.sources.contents import Read, ValueRange
from fidtool.sources.crops import Crop

# Maximum number of images in a sheet of one FAKE, and in such sheets of all FAKEs, but at least one
# of each.
_MAX_IMAGES = 24
_MAX_TOTAL_IMAGES = 96
# If there are more pairs of FAKEs, only those with the best FAKE are shown.
_MAX_PAIRS = 12
# Maximum number of FAKEs whose values are in the header.
_MAX_LEADING = 4
MAX_SIDE = 128
"""Limit of the long side of a thumbnail, in pixels."""
# Images up to this long side are stored losslessly.
_SMALL = 64
# Number of published values above the FID of each FAKE, and below it.
_NEAREST = 4
# What a page calls that which a finding is about.
_SET_LABELS = {"fake": "FAKE", "pair": "FAKE against REAL", "real": "REAL"}


class Thumbnail(NamedTuple):
    """A reduced image as ``data:image/…``, or the reason why there is none."""

    uri: str = ""
    problem: str = ""


def html_report(
    evaluation: Evaluation, gallery: ImageLookup | None = None, spelling: Spelling = format_argument
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
        return make_thumbnail(crop, images.read(file), images.floats)

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
        return value if hasattr(value, "__html__") else escape_text(render(str(value), spelling))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fidtool", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "class_bars": class_bars,
        "class_rows": class_rows,
        "class_summaries": class_summaries,
        "command_line": command_line,
        "set_text": set_text,
        "make_title": make_title,
        "list_duplicate_sentences": list_duplicate_sentences,
        "sort_findings": sort_findings,
        "rank_published": rank_published,
        "heldout_lines": heldout_lines,
        "format_count": format_count,
        "format_image_counts": format_image_counts,
        "option": option,
        "compare_properties": compare_properties,
        "rounded_text": rounded_text,
        "shorten": shorten,
    }
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
    columns = make_columns(evaluation)
    leading, verdict = _describe_best(evaluation, columns, names, main)
    return {
        "evaluation": evaluation,
        "results": results,
        "names": names,
        "main": main,
        "values": {value.key: value for value in evaluation.values},
        "leading": leading[:_MAX_LEADING],
        "verdict": verdict,
        "subject": make_title(evaluation, main),
        "alerts": evaluation.alerts,
        "charts": page_charts(evaluation),
        "standings": find_standings(evaluation),
        "columns": columns,
        "remarks": [*describe_marks(evaluation, columns), *evaluation.not_computed_lines],
        "differences": select_differences(
            evaluation, _MAX_PAIRS, dict(zip(paths, names, strict=True))
        ),
        "most": max(1, min(_MAX_IMAGES, _MAX_TOTAL_IMAGES // len(names))),
        "details": escape(_format_record(evaluation)),
    }


def _format_record(evaluation: Evaluation) -> str:
    """Return how the values were computed and all their digits, as JSON."""
    document = evaluation.to_dict()
    record = {name: document[name] for name in ("protocol", "layers", "settings", "run")}
    for name in ("metrics", "sets"):
        record[name] = {result["fake"]: result[name] for result in document["results"]}
    lines = json.dumps(record, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(escape_text, lines))


def _describe_best(
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
        alike = ", which cannot be distinguished" if column.better and rated > 1 else ""
        return [], f"{title} of {len(results)} sets{alike}"
    if len(best) > 1:
        return best, f"{len(best)} of {len(results)} sets are the best and cannot be distinguished"
    name = shorten(names[best[0]], 48)
    if is_known:
        return best, f"{name} is the best"
    extreme = "lowest" if column.better == "lower" else "highest"
    return best, f"{name} has the {extreme} {title}"


# --- what the template asks about a FAKE ----------------------------------------------------------


def make_thumbnail(crop: Crop | None, content: Read, floats: ValueRange | None = None) -> Thumbnail:
    """Return the thumbnail of an image, of the pixels that the network received.

    Never raises for an unreadable image: the page is written after hours of work. ``floats`` is how
    floats become bytes.
    """
    try:
        image = Image.fromarray(decode(content, DecodeOptions(crop=crop, floats=floats)).pixels)
        image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
        kind = "png" if max(image.size) <= _SMALL else "jpeg"
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, quality=85)
    except FileNotFoundError:
        return Thumbnail(problem="not found")
    except Exception as error:
        return Thumbnail(problem=format_reason(error))
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}")


def class_bars(result: Comparison) -> tuple[Value, list[float]]:
    """Return the value by which the classes are sorted, and the length of the bar of each class in
    percent of the longest; 0 for a negative value, or none.
    """
    assert result.classes is not None  # no other result has a table of them
    rated = [value for value in result.values if value.key in result.classes.mean]
    value, *_ = rated or result.values
    numbers = [part.metrics.get(value.key, 0.0) for part in result.classes.classes]
    longest = max(numbers)
    if longest <= 0:
        return value, [0.0] * len(numbers)
    return value, [max(0.0, 100 * number / longest) for number in numbers]


def sort_findings(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """Return the findings in FAKE, between the two and in REAL, each with the set or sets; the
    worst first.
    """
    findings = sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return [(_SET_LABELS[finding.set], finding) for finding in findings]


def find_standings(evaluation: Evaluation) -> list[Standing | None]:
    """Return where the FID of each FAKE lies among published values, see
    `fidtool.result.standing.find_standing`.
    """
    nowhere: list[Standing | None] = [None] * len(evaluation.results)
    if find_expected_preset(evaluation) is None:
        return nowhere
    try:
        return [verdict.standing for verdict in verify(evaluation)]
    except InputError:  # a saved result can name a preset or reference of another version
        return nowhere


class Rank(NamedTuple):
    """A row of the chart of published values; ``is_own`` is whether it is a FAKE's."""

    label: str
    fid: float
    is_own: bool


def rank_published(standings: Sequence[Standing | None], names: Sequence[str]) -> list[Rank]:
    """Return the FIDs of the FAKEs that have a standing, and the published values nearest to each;
    the lowest first.
    """
    published = dict[Rank, None]()
    own = []
    for standing, name in zip(standings, names, strict=True):
        if standing is not None:
            own.append(Rank(name, standing.fid, True))
            for value in (*standing.lower[-_NEAREST:], *standing.higher[:_NEAREST]):
                published[Rank(value.label, value.fid, False)] = None
    return sorted([*published, *own], key=lambda rank: rank.fid)


def list_duplicate_sentences(diagnosis: Diagnosis) -> list[str]:
    """Return the number and kinds of the duplicates, one sentence per set that has any, and one of
    those in both.
    """
    sentences = []
    for name, duplicates in (("FAKE", diagnosis.fake), ("REAL", diagnosis.real)):
        if duplicates is not None and duplicates.copies:
            more = "" if duplicates.complete else "; near duplicates were not searched for"
            sentences.append(f"{name}: {describe_duplicates(duplicates)}{more}.")
    if diagnosis.shared is not None and diagnosis.shared.count:
        shared = format_count(diagnosis.shared.count, "image")
        sentences.append(f"Pixel-identical to images in REAL: {shared} in FAKE.")
    return sentences


def compare_properties(exhibit: Exhibit) -> list[tuple[str, str, str]]:
    """Return rows of a label, REAL's value and FAKE's value; none if nothing is known about either
    set.
    """
    real = _describe_properties(exhibit.real)
    fake = _describe_properties(exhibit.fake)
    return [
        (label, real.get(label, "unknown"), fake.get(label, "unknown")) for label in real or fake
    ]


def _describe_properties(health: Health | None) -> dict[str, str]:
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
        "Formats": format_counts(health.formats),
        "Colour modes": format_counts(health.modes),
        "Sizes in pixels": format_counts(health.sizes),
        "Aspect ratio": ratio,
        "JPEG quality": quality,
        "Brightness (0 to 255)": f"{light:.1f} ± {deviation:.1f}",
        "Grayscale": f"{health.grayscale:.1%}",
        "Duplicates": f"{health.duplicates.share:.1%}",
        "Unreadable": f"{len(health.unreadable):,}",
    }
