"""An evaluation as a self-contained HTML page without scripts. Needs jinja2 and matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fidtool.errors import option
from fidtool.features.definition import Definition
from fidtool.features.protocol import FEATURES
from fidtool.images.lookup import ImageLookup
from fidtool.labels import Labels
from fidtool.metrics.registry import BUILT_IN
from fidtool.report.charts import Chart, sweep_chart
from fidtool.report.names import command_line, legible, short_names, short_title, shortened, split_title
from fidtool.report.overview import overview_of
from fidtool.report.sections import Section, Tile, interval_text, rounded, section_of
from fidtool.report.sheets import Sheets, Thumbnail, ThumbnailSize, sheets_of, shown, thumbnail_of
from fidtool.report.sweep import sweep_of, title_of
from fidtool.report.text import differences_shown
from fidtool.results import Comparison, Evaluation, Exhibit, RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_CHARTED = 60
"""Maximum number of FAKEs for which each has its own charts."""
_MOST_PAIRS = 12
"""Number of differences shown initially; the others are in a collapsed block."""
_MOST_DIFFERENCES = 190
"""If there are more, only the differences to the best FAKE are shown: their number grows quadratically."""
_MOST_WARNINGS = 3
"""Maximum number of warnings shown initially; if there are more, all are in a collapsed block."""
_LABELS = {
    "weights_sha256": "Weights, SHA-256",
    "dims": "Dimensions",
    "normalization": "Normalisation",
    "ddof": "Covariance, ddof",
}
_MOST_TILES = 6
"""Maximum number of FAKEs whose scores are at the top of the page."""


@dataclass(frozen=True)
class WarningGroup:
    """Warnings, and the names of the FAKEs that they are about; no names if they are about all FAKEs or the run."""

    about: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class DifferenceRow:
    """The difference of two FAKEs' distances as text: their names, its value, its interval, and the verdict."""

    first: str
    second: str
    value: str
    interval: str
    verdict: str


def html_report(
    evaluation: Evaluation,
    exhibits: Sequence[Exhibit | None],
    gallery: ImageLookup | None = None,
) -> str:
    """The page as text that can be encoded as UTF-8. Equal arguments and image files give equal pages.

    The images that it shows are read again. For an image that cannot be read, the page gives the reason.

    Args:
        evaluation: an evaluation with at least one result.
        exhibits: what the page can show of each FAKE, one per result; None if unknown.
        gallery: reads the images; None reads them from files.

    Raises:
        ValueError: if there is not one exhibit per result.
    """
    names, run = short_names([result.fake.name for result in evaluation.results]), evaluation.run
    several = len(names) > 1
    sheets = _sheets(evaluation, exhibits, names, gallery or ImageLookup())
    sections = _sections(evaluation, exhibits, names, sheets)
    alerts = _warning_groups(evaluation, names)
    page: str = (
        _environment(python=isinstance(run.command, str))
        .get_template("report.html.j2")
        .render(
            title=_title(evaluation, sections),
            basis=evaluation.basis(sections[0].main),
            tiles=_score_tiles(sections) if several else sections[0].tiles,
            real=evaluation.results[0].real.name,
            framing=evaluation.results[0].real.framing,
            sections=sections,
            several=several,
            gate=evaluation.exit_reason.removeprefix("gate missed: ") if evaluation.exit_code else "",
            alerts=alerts,
            warnings=sum(len(group.texts) for group in alerts),
            most_warnings=_MOST_WARNINGS,
            most_pairs=_MOST_PAIRS,
            charts=_sweep_charts(evaluation) if several else [],
            chart_title=title_of(evaluation),
            overview=overview_of(evaluation),
            contrasts=_difference_rows(evaluation, names),
            all_pairs=len(evaluation.differences) <= _MOST_DIFFERENCES,
            real_images=sheets.real,
            same_names=sheets.same_names,
            hints=list(_hints(evaluation, exhibits)),
            protocol=_protocol_rows(evaluation),
            run=_run_rows(run),
            command=_command_text(run),
            version=run.versions.get("fidtool", ""),
        )
    )
    return page


def _sheets(
    evaluation: Evaluation, exhibits: Sequence[Exhibit | None], names: Sequence[str], gallery: ImageLookup
) -> Sheets:
    """The contact sheets, with thumbnails as large as their number allows."""
    wanted = sheets_of(evaluation.results, exhibits, names, Thumbnail).files
    if gallery.in_order:
        gallery.prefetch(wanted)
    size = ThumbnailSize.for_page(len(wanted))

    @cache  # an image can be on several sheets
    def thumbnail(file: str, framing: str | None) -> Thumbnail:
        return thumbnail_of(file, gallery.read(file), size, framing)

    return sheets_of(evaluation.results, exhibits, names, thumbnail)


def _sections(
    evaluation: Evaluation, exhibits: Sequence[Exhibit | None], names: Sequence[str], sheets: Sheets
) -> list[Section]:
    return [
        section_of(
            result,
            exhibit,
            name,
            f"fake-{place}" if len(names) > 1 else "fake",
            of_fake,
            cached=evaluation.run.cached,
            charts=len(names) <= _MOST_CHARTED,
        )
        for place, (result, exhibit, name, of_fake) in enumerate(
            zip(evaluation.results, exhibits, names, sheets.fakes, strict=True), 1
        )
    ]


def _command_text(run: RunRecord) -> str:
    """The command line, or the name of the Python program.

    Each argument is redacted separately: within the whole line, the end of a URL is ambiguous.
    """
    from markupsafe import escape

    return run.command if isinstance(run.command, str) else escape(command_line(run.command))


def _environment(python: bool) -> Environment:
    """An environment that escapes everything and treats undefined names as errors.

    Args:
        python: whether a Python program, not the command line, requested the page.
    """
    import jinja2

    def source(name: str) -> str:
        return files("fidtool.report").joinpath(name).read_text(encoding="utf-8")

    def text(value: object) -> object:
        return legible(value) if type(value) is str else value  # Markup comes from the template itself

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "rounded": rounded,
        "interval": interval_text,
        "shortened": shortened,
        "without_features": lambda title: split_title(title)[0],
    }
    environment.globals |= {"shown": shown, "python": python, "exact_rows": _exact_rows}
    return environment


def _exact_rows(section: Section) -> list[tuple[str, str]]:
    return [(row.title, row.value.exact) for row in section.metrics]


# --- about all FAKEs -------------------------------------------------------------------------------------------------


def _title(evaluation: Evaluation, sections: Sequence[Section]) -> str:
    first = sections[0]
    against = f"against {shortened(first.result.real.name)} ({evaluation.basis(first.main)})"
    if len(sections) == 1:
        return f"{first.title} {first.score}: {first.name} {against}"
    scores = ", ".join(section.score for section in sections[:_MOST_TILES])
    return f"{first.title} {scores}{', …' * (len(sections) > _MOST_TILES)} {against}"


def _score_tiles(sections: Sequence[Section]) -> list[Tile]:
    """The scores of the FAKEs; none if there are too many for the top of the page."""
    if len(sections) > _MOST_TILES:
        return []
    bars = [each.result.corrected for each in sections]
    remarks = ["" if bar is None else f"bias-corrected {rounded(bar.value, bar.error)}" for bar in bars]
    return [Tile(each.name, each.score, remark) for each, remark in zip(sections, remarks, strict=True)]


def _warning_groups(evaluation: Evaluation, names: Sequence[str]) -> list[WarningGroup]:
    """All warnings without repetitions, those about all FAKEs first."""
    about: dict[str, list[str]] = {text: [] for text in evaluation.run.warnings}
    for result, name in zip(evaluation.results, names, strict=True):
        for text in result.warnings:
            about.setdefault(text, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {(): []}
    for text, of in about.items():
        groups.setdefault(tuple(of) if len(of) < len(names) else (), []).append(text)
    return [WarningGroup(of, tuple(texts)) for of, texts in groups.items() if texts]


def _sweep_charts(evaluation: Evaluation) -> list[tuple[str, Chart]]:
    """The charts for wide and for narrow windows, of which the page shows one; none without a distance."""
    sweep = sweep_of(evaluation.results)
    if sweep is None:
        return []
    title = title_of(evaluation).text
    return [(kind, sweep_chart(sweep, title, f"sweep-{kind}", wide=kind == "wide")) for kind in ("wide", "narrow")]


def _difference_rows(evaluation: Evaluation, names: Sequence[str]) -> list[DifferenceRow]:
    """The differences to show, with short names."""
    return [
        DifferenceRow(
            each.first,
            each.second,
            f"{each.interval.value:+.4f}",
            f"{each.interval.low:+.4f} to {each.interval.high:+.4f}",
            each.verdict,
        )
        for each in differences_shown(evaluation, _MOST_DIFFERENCES, names)
    ]


def _hints(evaluation: Evaluation, exhibits: Sequence[Exhibit | None]) -> Iterator[str]:
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
    if all(exhibit is None or not (exhibit.random or exhibit.fake) for exhibit in exhibits):
        yield "Images, and the properties of the sets: pass images rather than statistics files."


# --- how it was computed ---------------------------------------------------------------------------------------------


def _protocol_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    rows = []
    for layer, definition in evaluation.definitions.items():
        rows += _definition_rows("" if layer == FEATURES else f"{layer}: ", definition)
    for name, settings in evaluation.settings.items():
        rows.append((f"Settings of {_metric_title(name, evaluation.labels)}", _settings_text(settings)))
    made = {path: config for each in evaluation.results for path, config in _made_with(each) if config}
    return rows + [(f"Settings of {shortened(path)}", _settings_text(config)) for path, config in made.items()]


def _metric_title(name: str, labels: Labels) -> str:
    """Titles of a metric's values, without the features that they are computed from."""
    values = [number.name for number in BUILT_IN[name].numbers] if name in BUILT_IN else []
    return ", ".join(split_title(labels.title(value))[0] for value in values) or name


def _made_with(result: Comparison) -> list[tuple[str, Mapping[str, Any] | None]]:
    return [(result.real.name, result.real.made_with), (result.fake.name, result.fake.made_with)]


def _definition_rows(prefix: str, definition: Definition | None) -> list[tuple[str, str]]:
    if definition is None:
        return [(f"{prefix}Protocol", "unknown: not stated in the statistics files")]
    values: dict[str, Any] = {
        "Protocol": definition.protocol_name or "the network's own",
        "Fingerprint": definition.fingerprint,
        **{_LABELS.get(name, name.replace("_", " ").capitalize()): value for name, value in asdict(definition).items()},
    }
    return [(f"{prefix}{label}", str(value)) for label, value in values.items()]


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
