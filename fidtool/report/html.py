"""An evaluation as a file: a self-contained HTML page without scripts, or a plot. Needs jinja2 and matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidtool.cache_dir import atomic_write, check_target
from fidtool.errors import InputError, Spelling, as_argument, option, rendered
from fidtool.features.protocol import FEATURES
from fidtool.images.loader import ImageLookup
from fidtool.metrics.registry import BUILT_IN
from fidtool.names import command_line, legible, short_names, short_title, shortened, split_title
from fidtool.report.charts import chart, draw_sweep, sweep_plot, title_of
from fidtool.report.sections import Card, Picture, Section, Thumbnail, thumbnail_of
from fidtool.report.tables import about_marks, columns_of, common_features
from fidtool.report.text import alerts_of, differences_shown, number
from fidtool.results import Evaluation, RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_SUFFIXES = {"report": (".html", ".htm"), "plot": (".png",)}
_MOST_CHARTED = 60
"""Maximum number of FAKEs for which each has its own charts."""
_MOST_DIFFERENCES = 12
"""If there are more, only the differences to the best FAKE are shown: their number grows quadratically."""
_LABELS = {
    "weights_sha256": "Weights, SHA-256",
    "dims": "Dimensions",
    "normalization": "Normalisation",
    "ddof": "Covariance, ddof",
}


def check_shown(shown: Mapping[str, Path]) -> None:
    """Check that the page and the plot, by setting, can be written, before any work is done."""
    for setting, file in shown.items():
        if importlib.util.find_spec("matplotlib") is None:  # not imported here; jinja2 comes with torch
            problem = f"{option(setting)} needs the package matplotlib:"
            raise InputError(problem, "pip install 'fidtool[report]'", setting=setting)
        if file.suffix.lower() not in _SUFFIXES[setting]:
            problem = f"{option(setting, str(file))}: the name must end in {_SUFFIXES[setting][0]}"
            raise InputError(problem, setting=setting)
        check_target(option(setting, str(file)), file)


def write_shown(
    evaluation: Evaluation,
    gallery: ImageLookup,
    setting: str,
    file: Path,
    spelling: Spelling = as_argument,
) -> None:
    """Write the page or the plot atomically; see `html_report` and `sweep_plot`. The plot's suffix is its format."""
    if setting == "plot":
        content = sweep_plot(evaluation, file.suffix[1:].lower())
    else:
        # A path may contain bytes that are not UTF-8.
        content = html_report(evaluation, gallery, spelling).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(content)


def html_report(
    evaluation: Evaluation,
    gallery: ImageLookup | None = None,
    spelling: Spelling = as_argument,
) -> str:
    """The page as text that can be encoded as UTF-8. Equal arguments and image files give equal pages.

    The images that it shows are read again. For an image that cannot be read, the page gives the reason.

    Args:
        gallery: reads the images; None reads them from files.
    """
    from markupsafe import escape

    results, run, images = evaluation.results, evaluation.run, gallery or ImageLookup()
    names = short_names([result.fake.name for result in results])
    several, charts = len(names) > 1, len(names) <= _MOST_CHARTED
    titles, swept = title_of(evaluation), several and results[0].frechet_distance is not None
    sections = [
        Section(
            key=f"fake-{place}" if several else "fake",
            name=shortened(name),
            charts=charts,
            result=result,
            exhibit=result.exhibit,
            cached=run.cached,
            fakes=len(names),
        )
        for place, (result, name) in enumerate(zip(results, names, strict=True), 1)
    ]
    random_real = next((each.exhibit.random_real for each in results if each.exhibit is not None), ())
    real = [Card((Picture(file, results[0].real.framing),)) for file in random_real]
    cards = [*real, *(card for each in sections for cards in each.sheets.values() for card in cards)]
    images.prefetch(picture.file for card in cards for picture in card.pictures)

    @cache  # an image can be on several sheets
    def thumbnail(picture: Picture) -> Thumbnail:
        return thumbnail_of(picture, images.read(picture.file), images.floats)

    page: str = (
        _environment(thumbnail, isinstance(run.command, str), spelling)
        .get_template("report.html.j2")
        .render(
            basis=evaluation.basis(sections[0].main),
            real=results[0].real.name,
            framing=results[0].real.framing,
            sections=sections,
            several=several,
            gate=evaluation.exit_reason.removeprefix("gate missed: ") if evaluation.exit_code else "",
            alerts=[(str(line), ()) for line in alerts_of(evaluation)],
            left_out=[*map(legible, evaluation.not_computed_lines)],
            chart=chart(titles[0], (640, 330), draw_sweep, results) if swept else None,
            chart_title=titles,
            columns=columns_of(evaluation),
            features=common_features(evaluation),
            marks=list(about_marks(evaluation)),
            contrasts=differences_shown(evaluation, _MOST_DIFFERENCES, names),
            all_pairs=len(evaluation.differences) <= _MOST_DIFFERENCES,
            real_images=real,
            hints=list(_hints(evaluation)),
            protocol=_protocol_rows(evaluation),
            run=_run_rows(run),
            command=run.command if isinstance(run.command, str) else escape(command_line(run.command)),
            version=run.versions.get("fidtool", ""),
        )
    )
    return page


def _environment(thumbnail: Callable[[Picture], Thumbnail], python: bool, spelling: Spelling) -> Environment:
    """An environment that escapes everything and treats undefined names as errors."""
    import jinja2

    def source(name: str) -> str:
        return files("fidtool.report").joinpath(name).read_text(encoding="utf-8")

    def text(value: object) -> object:
        # Markup comes from the template itself.
        return legible(rendered(value, spelling)) if type(value) is str else value

    def shown(cards: Sequence[Card]) -> int:
        """Number of images on a contact sheet that could be read."""
        return sum(not thumbnail(picture).problem for card in cards for picture in card.pictures)

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shortened": shortened, "without_features": lambda title: split_title(title)[0]}
    environment.globals |= {"thumbnail": thumbnail, "shown": shown, "python": python}
    environment.globals |= {"number": number, "short_title": short_title}
    return environment


# --- about all FAKEs -------------------------------------------------------------------------------------------------


def _hints(evaluation: Evaluation) -> Iterator[str]:
    """What else the page could show, and how to request it."""
    results, distance = evaluation.results, short_title(evaluation.labels.title("fid"))
    asked = results[0].frechet_distance is not None
    if asked and all(result.uncertainty is None for result in results):
        yield f"Error bars of the {distance}: pass {option('uncertainty', True)}."
    if asked and all(result.influence is None for result in results):
        yield f"The images that raise the {distance}: pass {option('influence', True)}."
    if all(result.diagnosis is None for result in results):
        off = option("diagnose", False)
        yield f"Duplicates and faulty images: do not pass {off}, and pass images rather than other tools' statistics."
    if all(each.exhibit is None or not (each.exhibit.random or each.exhibit.fake) for each in results):
        yield "Images, and the properties of the sets: pass images rather than statistics files."


# --- how it was computed ---------------------------------------------------------------------------------------------


def _protocol_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    rows = []
    for layer, definition in evaluation.definitions.items():
        prefix = "" if layer == FEATURES else f"{layer}: "
        if definition is None:
            rows.append((f"{prefix}Protocol", "unknown: not stated in the statistics files"))
            continue
        rows.append((f"{prefix}Protocol", definition.protocol_name or "the network's own"))
        rows.append((f"{prefix}Fingerprint", definition.fingerprint))
        for name, value in asdict(definition).items():
            rows.append((f"{prefix}{_LABELS.get(name, name.replace('_', ' ').capitalize())}", str(value)))
    for name, settings in evaluation.settings.items():
        values = [number.name for number in BUILT_IN[name].numbers] if name in BUILT_IN else []
        titles = ", ".join(split_title(evaluation.labels.title(value))[0] for value in values)
        rows.append((f"Settings of {titles or name}", _settings_text(settings)))
    sets = [each for result in evaluation.results for each in (result.real, result.fake)]
    made = {each.name: each.made_with for each in sets if each.made_with}
    return rows + [(f"Settings of {shortened(path)}", _settings_text(config)) for path, config in made.items()]


def _run_rows(run: RunRecord) -> list[tuple[str, str | tuple[str, ...]]]:
    speed = "" if run.images_per_second is None else f", {run.images_per_second:.1f} images/s"
    resumed = f", {run.images_resumed:,} from a checkpoint" if run.images_resumed else ""
    rows: dict[str, str | tuple[str, ...]] = {
        "Started": run.date.replace("T", " ").replace("Z", " UTC"),
        "Host": run.host,
        "Settings": _settings_text(run.config) or "defaults",
        **({"Notes": run.notes} if run.notes else {}),
        "Device": run.device,
        "Precision": ", ".join(filter(None, (run.precision, run.kernels))),
        "Processes": f"{run.world_size} ({run.backend})" if run.world_size > 1 else str(run.world_size),
        "Images processed": f"{run.images_computed:,} in {run.forward_passes:,} batches{speed}{resumed}",
        "Batch size": str(run.batch_size),
        "Decoding workers": f"{run.num_workers} per process" if run.num_workers else "none (in the main process)",
        "Linear algebra threads": str(run.linear_algebra_threads),
        "From the cache": ", ".join(run.cached) or "none",
        "Probe": run.probe or "none",
        "Seconds": ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in run.seconds.items()),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return list(rows.items())


def _settings_text(config: Mapping[str, Any]) -> str:
    """Names and values of settings, such as ``metrics: fid, kid; uncertainty: yes``."""
    return "; ".join(f"{name.replace('_', ' ')}: {_value_text(value)}" for name, value in config.items())


def _value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value_text(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
