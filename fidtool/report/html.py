"""An evaluation as a file: a self-contained HTML page without scripts, a plot, or lines of a history."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidtool.cache_dir import atomic_write, check_target
from fidtool.errors import InputError, Spelling, as_argument, option, rendered
from fidtool.history import append_history
from fidtool.images.loader import ImageLookup
from fidtool.names import command_line, legible, short_names, short_title, shortened
from fidtool.report.charts import described, images_of, page_charts, sweep_plot, title_of
from fidtool.report.details import Thumbnail, duplicates_of, findings_of, properties_of, thumbnail_of, without_features
from fidtool.report.tables import about_marks, best_of, columns_of, common_features, is_real, rounded
from fidtool.report.text import alerts_of, differences_shown
from fidtool.results import Evaluation

if TYPE_CHECKING:
    from jinja2 import Environment

_SUFFIXES = {"report": (".html", ".htm"), "plot": (".png",), "history": (".jsonl",)}
_MOST_IMAGES, _MOST_IMAGES_OF_ALL = 24, 96
"""Maximum number of images in a sheet of one FAKE, and in such sheets of all FAKEs, but at least one of each."""
_MOST_LEADING = 4
"""Maximum number of FAKEs that the verdict names; their values are in the header."""
_LONGEST_NAME = 48
_MOST_DIFFERENCES = 12
"""If there are more, only the differences to the best FAKE are shown: their number grows quadratically."""


def check_shown(shown: Mapping[str, Path]) -> None:
    """Check that the page, the plot and the history, by setting, can be written, before any work is done."""
    for setting, file in shown.items():
        if setting != "history" and importlib.util.find_spec("matplotlib") is None:  # not imported; torch has jinja2
            problem = f"{option(setting)} needs the package matplotlib:"
            raise InputError(problem, "pip install 'fidtool[report]'", setting=setting)
        if file.suffix.lower() not in _SUFFIXES[setting]:
            problem = f"{option(setting, str(file))}: the name must end in {_SUFFIXES[setting][0]}"
            raise InputError(problem, setting=setting)
        check_target(option(setting, str(file)), file)


def write_shown(
    evaluation: Evaluation, gallery: ImageLookup, setting: str, file: Path, spelling: Spelling = as_argument
) -> None:
    """Write the page or the plot atomically, see `html_report` and `sweep_plot`; or add to the history."""
    if setting == "history":
        append_history(evaluation, file)
        return
    if setting == "plot":  # its suffix is its format
        content = sweep_plot(evaluation, file.suffix[1:].lower())
    else:
        # A path may contain bytes that are not UTF-8.
        content = html_report(evaluation, gallery, spelling).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(content)


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
        return thumbnail_of(file, framing, images.read(file), images.floats)

    template, content = _environment(spelling).get_template("page.html.j2"), _content(evaluation)
    template.render(content, thumbnail=wish)  # so that a source is read in one pass
    images.prefetch(wanted)
    page: str = template.render(content, thumbnail=thumbnail)
    return page.lstrip()


def _environment(spelling: Spelling) -> Environment:
    """An environment that escapes everything and treats undefined names as errors."""
    import jinja2

    def text(value: object) -> object:
        # Markup comes from the template itself.
        plain = isinstance(value, str) and not hasattr(value, "__html__")
        return legible(rendered(str(value), spelling)) if plain else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fidtool", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    of_results = (described, duplicates_of, findings_of, images_of, properties_of, without_features)
    functions = (*of_results, option, rounded, short_title)
    environment.globals |= {function.__name__: function for function in functions}
    environment.filters |= {"shortened": shortened}
    return environment


def _content(evaluation: Evaluation) -> dict[str, Any]:
    """What the template shows besides what it reads from the evaluation and asks of its functions."""
    from markupsafe import escape

    results, command = evaluation.results, evaluation.run.command
    names = short_names([result.fake.name for result in results])
    main = "fid" if "fid" in results[0].titles else next(iter(results[0].titles))
    leading, verdict = _verdict(evaluation, names, main)
    features = common_features(evaluation)
    return {
        "evaluation": evaluation,
        "results": results,
        "names": names,
        "main": main,
        "leading": leading[:_MOST_LEADING],
        "verdict": verdict,
        "alerts": alerts_of(evaluation),
        "charts": page_charts(evaluation),
        "chart_title": title_of(evaluation)[0],
        "counts": images_of([result.fake.count for result in results]),
        "columns": columns_of(evaluation),
        "remarks": [*([f"Features of all values: {features}."] if features else []), *about_marks(evaluation)],
        "differences": differences_shown(evaluation, _MOST_DIFFERENCES, names),
        "most": max(1, min(_MOST_IMAGES, _MOST_IMAGES_OF_ALL // len(names))),
        "details": escape(_details(evaluation)),
        "command": command if isinstance(command, str) else escape(command_line(command)),
    }


def _verdict(evaluation: Evaluation, names: Sequence[str], main: str) -> tuple[list[int], str]:
    """The FAKEs whose values are in the header, by their places, and which of several is best by the main metric."""
    results, number, title = evaluation.results, evaluation.labels.numbers[main], evaluation.labels.title(main)
    if len(results) == 1:
        return [0], ""
    bars = [result.corrected for result in results]
    known, differences = main == "fid" and all(bars), evaluation.differences if main == "fid" else ()
    values = [bar.value for bar in bars if bar] if known else [result.value(main) for result in results]
    texts = [] if known else [rounded(main, result) for result in results]
    best = sorted(best_of(results, values, number.better, differences, texts))
    if not best:
        alike = sum(not is_real(result) for result in results) > 1
        return [], f"{short_title(title)} of {len(results)} sets{', which cannot be told apart' if alike else ''}"
    leading = [shortened(names[place], _LONGEST_NAME) for place in best]
    if len(best) > _MOST_LEADING:
        leading[_MOST_LEADING - 1 :] = [f"{len(best) - _MOST_LEADING + 1} others"]
    if len(best) > 1:
        return best, f"{', '.join(leading[:-1])} and {leading[-1]} cannot be told apart, and are the best"
    if known:
        return best, f"{leading[0]} is the best"
    return best, f"{leading[0]} has the {'lowest' if number.better == 'lower' else 'highest'} {short_title(title)}"


def _details(evaluation: Evaluation) -> str:
    """The record of how the values were computed, as in the JSON, in legible lines."""
    document = evaluation.to_dict()
    shown = {name: document[name] for name in ("protocol", "layers", "settings", "run")}
    shown["metrics"] = {each["fake"]: each["metrics"] for each in document["results"]}
    shown["made_with"] = {each["fake"]: each["made_with"] for each in document["results"]}
    return "\n".join(map(legible, json.dumps(shown, indent=2, ensure_ascii=False).split("\n")))
