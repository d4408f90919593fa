"""An evaluation as one HTML page without scripts that loads nothing. Needs jinja2 and matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fidtool.errors import option
from fidtool.features.definition import Definition
from fidtool.features.protocol import FEATURES
from fidtool.images.lookup import ImageLookup
from fidtool.report.charts import Chart, sweep_chart, sweep_of
from fidtool.report.names import command_line, legible, short_names, short_title, shortened
from fidtool.report.sections import Section, Tile, interval_words, rounded, section_of
from fidtool.report.sheets import Thumbnail, files_of, quota_for, sheets_of, shown, thumbnail_of
from fidtool.report.text import differences_shown, number
from fidtool.results import Comparison, Evaluation, Exhibit, RunRecord, is_real

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_CHARTED = 60
"""FAKEs with charts of their own; of more only their common chart is drawn."""
_MOST_PAIRS = 12
_MOST_DIFFERENCES = 190
"""Of more differences only those to the best FAKE are shown, as their number grows with the square of the FAKEs'."""
_MOST_ALERTS = 6
"""Sets with warnings that are seen at once, as `_MOST_PAIRS` of differences; the others are behind a click."""
_LABELS = {"weights_sha256": "Weights, SHA-256", "dims": "Dimensions", "ddof": "Covariance by n less"}
_MOST_TILES = 6
"""FAKEs whose numbers stand above everything else; of more none does."""


@dataclass(frozen=True)
class WarningGroup:
    """Warnings, and the names of the FAKEs that they are about; empty if about all of them or about the run."""

    about: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class DifferenceRow:
    """Two FAKEs: their names, the difference of their distances with its interval, and the verdict."""

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
    """The page, which can be encoded as UTF-8; the same text for the same arguments and image files.

    The images that it shows are read once more. If one cannot be read any more, the page says so.

    Args:
        evaluation: with at least one result.
        exhibits: what there is to show, one per result; None if unknown.
        gallery: reads the images; None reads files only.

    Raises:
        ValueError: there is not one exhibit per result.
    """
    names, run = short_names([result.fake for result in evaluation.results]), evaluation.run
    several = len(names) > 1
    gallery = gallery or ImageLookup()
    sections = _sections(evaluation, exhibits, names, gallery)
    page: str = (
        _environment(python=isinstance(run.command, str))
        .get_template("report.html.j2")
        .render(
            title=_title(evaluation, sections),
            basis=evaluation.basis(sections[0].main),
            tiles=_score_tiles(sections) if several else sections[0].tiles,
            real=evaluation.results[0].real,
            sections=sections,
            several=several,
            gate=evaluation.exit_reason.removeprefix("gate missed: ") if evaluation.exit_code else "",
            alerts=_warning_groups(evaluation, names),
            most_pairs=_MOST_PAIRS,
            most_alerts=_MOST_ALERTS,
            charts=_sweep_charts(evaluation) if several else [],
            metrics=[(name, short_title(title)) for name, title in evaluation.results[0].titles.items()],
            contrasts=_difference_rows(evaluation, names),
            all_pairs=len(evaluation.differences) <= _MOST_DIFFERENCES,
            lowest=_lowest(evaluation),
            hints=list(_hints(evaluation, exhibits)),
            protocol=_protocol_rows(evaluation),
            run=_run_rows(run),
            command=_command_words(run),
            version=run.versions.get("fidtool", ""),
        )
    )
    return page


def _sections(
    evaluation: Evaluation, exhibits: Sequence[Exhibit | None], names: Sequence[str], gallery: ImageLookup
) -> list[Section]:
    pairs = list(zip(evaluation.results, exhibits, strict=True))
    quota = quota_for(len(names))
    if gallery.in_order:
        gallery.prefetch(file for each in pairs for file in files_of(sheets_of(*each, quota, Thumbnail)))
    thumbnail = cache(lambda file: thumbnail_of(file, gallery.read(file)))  # an image can be on several sheets
    return [
        section_of(
            result,
            exhibit,
            name,
            f"fake-{place}" if len(names) > 1 else "fake",
            sheets_of(result, exhibit, quota, thumbnail),
            charts=len(names) <= _MOST_CHARTED,
        )
        for place, ((result, exhibit), name) in enumerate(zip(pairs, names, strict=True), 1)
    ]


def _command_words(run: RunRecord) -> str:
    """The call, or the command line.

    Each argument of the line is redacted by itself: in the whole line it is unclear where an address ends.
    """
    from markupsafe import escape

    return run.command if isinstance(run.command, str) else escape(command_line(run.command))


def _environment(python: bool) -> Environment:
    """Everything is escaped, and undefined names are errors.

    Args:
        python: a program asked for the page, and not the command line.
    """
    import jinja2

    def source(name: str) -> str:
        return files("fidtool.report").joinpath(name).read_text(encoding="utf-8")

    def text(value: object) -> object:
        return legible(value) if type(value) is str else value  # not Markup, which the template itself made

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"rounded": rounded, "interval": interval_words, "shortened": shortened, "metric": number}
    environment.globals |= {"shown": shown, "python": python}
    return environment


# --- what stands above the single FAKEs ------------------------------------------------------------------------------


def _title(evaluation: Evaluation, sections: Sequence[Section]) -> str:
    first = sections[0]
    against = f"against {shortened(first.result.real)} ({evaluation.basis(first.main)})"
    if len(sections) == 1:
        return f"{first.title} {first.score}: {first.name} {against}"
    scores = ", ".join(section.score for section in sections[:_MOST_TILES])
    return f"{first.title} {scores}{', …' * (len(sections) > _MOST_TILES)} {against}"


def _score_tiles(sections: Sequence[Section]) -> list[Tile]:
    """The numbers of a few FAKEs; those of many are in the overview."""
    if len(sections) > _MOST_TILES:
        return []
    bars = [None if each.result.uncertainty is None else each.result.uncertainty.corrected for each in sections]
    remarks = ["" if bar is None else f"bias-corrected {rounded(bar.value, bar.error)}" for bar in bars]
    return [Tile(each.name, each.score, remark) for each, remark in zip(sections, remarks, strict=True)]


def _warning_groups(evaluation: Evaluation, names: Sequence[str]) -> list[WarningGroup]:
    """All warnings, each once, those about all FAKEs first."""
    about: dict[str, list[str]] = {text: [] for text in evaluation.run.warnings}
    for result, name in zip(evaluation.results, names, strict=True):
        for text in result.warnings:
            about.setdefault(text, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {(): []}
    for text, of in about.items():
        groups.setdefault(tuple(of) if len(of) < len(names) else (), []).append(text)
    return [WarningGroup(of, tuple(texts)) for of, texts in groups.items() if texts]


def _sweep_charts(evaluation: Evaluation) -> list[tuple[str, Chart]]:
    """One for wide windows and one for narrow ones, of which the page shows one; none without a Fréchet distance."""
    sweep = sweep_of(evaluation.results)
    if sweep is None:
        return []
    return [(kind, sweep_chart(sweep, f"sweep-{kind}", wide=kind == "wide")) for kind in ("wide", "narrow")]


def _lowest(evaluation: Evaluation) -> int | None:
    """Index of the FAKE with the lowest distance; None without distances, or if the FAKE is made of REAL's images."""
    results = evaluation.results
    distances = [distance for result in results if (distance := result.frechet_distance) is not None]
    if len(distances) < len(results):
        return None
    lowest = distances.index(min(distances))
    return None if is_real(results[lowest]) else lowest


def _difference_rows(evaluation: Evaluation, names: Sequence[str]) -> list[DifferenceRow]:
    """Of the differences that are shown, with short names."""
    named = dict(zip((result.fake for result in evaluation.results), names, strict=True))
    differences = differences_shown(evaluation, _MOST_DIFFERENCES)
    short = [replace(each, first=named[each.first], second=named[each.second]) for each in differences]
    return [
        DifferenceRow(
            each.first,
            each.second,
            f"{each.interval.value:+.4f}",
            f"{each.interval.low:+.4f} to {each.interval.high:+.4f}",
            each.verdict,
        )
        for each in short
    ]


def _hints(evaluation: Evaluation, exhibits: Sequence[Exhibit | None]) -> Iterator[str]:
    """What the page could show if asked for, and how to ask."""
    results, distance = evaluation.results, short_title(evaluation.labels.title("fid"))
    asked = results[0].frechet_distance is not None
    if asked and all(result.uncertainty is None for result in results):
        yield f"How sure the {distance} is: pass {option('uncertainty', True)}."
    if asked and all(result.influence is None for result in results):
        yield f"Which images raise the {distance}: pass {option('influence', True)}."
    if all(result.diagnosis is None for result in results):
        off = option("diagnose", False)
        yield f"Copies and faulty pictures: leave {off} out, and give folders, not other tools' statistics."
    seen = [exhibit for exhibit in exhibits if exhibit is not None and exhibit.random]
    if asked and seen and not any(exhibit.neighbours for exhibit in seen):
        yield (
            f"The nearest real image of generated ones, and the {distance} by the number of images: of a set from the "
            f"cache or a statistics file the features are not known; give folders and pass {option('cache', False)}."
        )
    if all(exhibit is None or not (exhibit.random or exhibit.fake) for exhibit in exhibits):
        yield "Images, and what the sets are made of: give folders of images rather than statistics files."


# --- how it was measured ---------------------------------------------------------------------------------------------


def _protocol_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    rows = []
    for layer, definition in evaluation.definitions.items():
        rows += _definition_rows("" if layer == FEATURES else f"{layer}: ", definition)
    for name, settings in evaluation.settings.items():
        words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
        title = evaluation.labels.title(name) if name in evaluation.labels.numbers else name
        rows.append((f"Settings of {title}", words))
    made = {path: config for each in evaluation.results for path, config in _made_with(each) if config}
    return rows + [(f"Settings of {shortened(path)}", _settings_words(config)) for path, config in made.items()]


def _made_with(result: Comparison) -> list[tuple[str, Mapping[str, Any] | None]]:
    return [(result.real, result.made_real), (result.fake, result.made_fake)]


def _definition_rows(prefix: str, definition: Definition | None) -> list[tuple[str, str]]:
    if definition is None:
        return [(f"{prefix}Protocol", "unknown: the statistics files do not say")]
    values: dict[str, Any] = {
        "Protocol": definition.protocol_name or "a network's own",
        "Fingerprint": definition.fingerprint,
        **{_LABELS.get(name, name.replace("_", " ").capitalize()): value for name, value in asdict(definition).items()},
    }
    return [(f"{prefix}{label}", str(value)) for label, value in values.items()]


def _run_rows(run: RunRecord) -> list[tuple[str, str]]:
    speed = "" if run.images_per_second is None else f", {run.images_per_second:.1f} a second"
    resumed = f", {run.images_resumed:,} from a checkpoint" if run.images_resumed else ""
    rows = {
        "Began": run.date.replace("T", " ").replace("Z", " UTC"),
        "Host": run.host,
        "Settings": "; ".join([_settings_words(run.config) or "the defaults", *run.notes]),
        "Device": run.device,
        "Precision": ", ".join(filter(None, (run.precision, run.kernels))),
        "Processes": f"{run.world_size} ({run.backend})" if run.world_size > 1 else str(run.world_size),
        "Images through the network": f"{run.images_computed:,} in {run.forward_passes:,} batches{speed}{resumed}",
        "Batch size": str(run.batch_size),
        "Decoding processes": f"{run.num_workers} a process" if run.num_workers else "none of their own",
        "Threads of the distance": str(run.linear_algebra_threads),
        "From the cache": ", ".join(run.cached) or "nothing",
        "Probe": run.probe or "none",
        "Seconds": ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in run.seconds.items()),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return list(rows.items())


def _settings_words(config: Mapping[str, Any]) -> str:
    """Settings as keyword arguments in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in config.items())
