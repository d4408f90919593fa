"""An evaluation as an HTML page without scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jinja2
from markupsafe import escape

from fidtool.diagnose.diagnosis import Diagnosis
from fidtool.errors import Spelling, as_argument, option, rendered
from fidtool.images.loader import ImageLookup
from fidtool.names import command_line, images_of, legible, short_names, short_title, shortened
from fidtool.report.charts import described, page_charts, title_of
from fidtool.report.details import Thumbnail, duplicates_of, findings_of, properties_of, thumbnail_of
from fidtool.report.tables import Column, about_marks, class_rows, columns_of, is_real, rounded
from fidtool.report.text import class_summaries, differences_shown, heldout_lines
from fidtool.result.evaluation import Evaluation
from fidtool.result.explanations import Exhibit
from fidtool.result.values import Value

_MOST_IMAGES, _MOST_IMAGES_OF_ALL = 24, 96
"""Maximum number of images in a sheet of one FAKE, and in such sheets of all FAKEs, but at least one of each."""


def html_report(evaluation: Evaluation, gallery: ImageLookup | None = None, spelling: Spelling = as_argument) -> str:
    """The page as text that can be encoded as UTF-8. Equal arguments and image files give equal pages.

    The images that it shows are read again, by ``gallery``, or from files if it is None. For an image that cannot be
    read, the page gives the reason.
    """
    images = gallery or ImageLookup()
    wanted: dict[str, None] = {}

    def wish(file: str, framing: str | None) -> Thumbnail:
        wanted[file] = None
        return Thumbnail()

    @cache  # an image can be on several sheets
    def thumbnail(file: str, framing: str | None) -> Thumbnail:
        return thumbnail_of(framing, images.read(file), images.floats)

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
    of_results = (command_line, described, duplicates_of, findings_of, heldout_lines, images_of, properties_of)
    functions = (*of_results, class_rows, class_summaries, option, rounded, short_title, shortened)
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
    record |= {name: {each["fake"]: each[name] for each in document["results"]} for name in ("metrics", "sets")}
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


def _verdict(evaluation: Evaluation, columns: Sequence[Column], names: list[str], main: Value) -> tuple[list[int], str]:
    """The places of the FAKEs whose values are in the header, and which of several is best by the main metric."""
    results, title = evaluation.results, short_title(main.title)
    if len(results) == 1:
        return [0], title
    known = all(result.corrected_of(main) for result in results)
    column = next(column for column in columns if column.is_corrected == known)
    best = sorted(column.best)
    if not best:
        alike = column.better and sum(not is_real(result) for result in results) > 1
        return [], f"{title} of {len(results)} sets{', which cannot be told apart' if alike else ''}"
    if len(best) > 1:
        return best, f"{len(best)} of {len(results)} sets cannot be told apart, and are the best"
    name, extreme = shortened(names[best[0]], 48), "lowest" if column.better == "lower" else "highest"
    return best, f"{name} is the best" if known else f"{name} has the {extreme} {title}"
