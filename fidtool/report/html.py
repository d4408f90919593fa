"""An evaluation as one page that needs nothing beside itself: no network, no scripts. Needs jinja2 and matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fidtool.annexes import Difference
from fidtool.diagnose.duplicates import NOTABLE_SHARE
from fidtool.features.protocol import FEATURES, Definition
from fidtool.images.gallery import Gallery
from fidtool.report.charts import Chart, sweep_chart, sweep_of
from fidtool.report.exhibits import Exhibit
from fidtool.report.names import command_line, legible, short_names, short_title, shortened
from fidtool.report.sections import Section, Tile, interval_words, rounded, section_of
from fidtool.report.sheets import Thumbnail, files_of, quota_for, sheets_of, shown, thumbnail_of
from fidtool.report.text import number
from fidtool.results import Comparison, Evaluation, RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_CHARTED = 60
"""FAKEs on a page beyond which only their common chart is drawn."""
_MOST_PAIRS = 12
_MOST_CONTRASTS = 190
"""Differences: of more, those to the best FAKE alone are shown, as their number grows with the square."""
_MOST_ALERTS = 6
"""Differences, and sets with warnings, that are seen at once; the others are behind a click."""
_LABELS = {"weights_sha256": "Weights, SHA-256", "dims": "Dimensions", "ddof": "Covariance by n less"}
_MOST_TILES = 6
"""FAKEs whose numbers stand above everything else."""


@dataclass(frozen=True)
class Alerts:
    """Warnings, and the FAKEs that they are about; none where it is about all of them or about the run."""

    about: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Contrast:
    """Two FAKEs beside each other: their names, the difference with its interval, and what can be said."""

    first: str
    second: str
    value: str
    interval: str
    verdict: str


def html_report(
    evaluation: Evaluation,
    exhibits: Sequence[Exhibit | None],
    gallery: Gallery | None = None,
) -> str:
    """The page, fit for UTF-8 whatever the file names hold; the same text for the same arguments and image files.

    Images are read once more, those that are shown. One that has gone is said to have.

    Args:
        evaluation: with at least one result.
        exhibits: for each result what there is to be seen of it.
        gallery: gets the images; None opens files alone.

    Raises:
        ValueError: the exhibits are not one a result.
    """
    names, run = short_names([result.fake for result in evaluation.results]), evaluation.run
    several = len(names) > 1
    gallery = gallery or Gallery()
    sections = _sections(evaluation, exhibits, names, gallery)
    page: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=_title(evaluation, sections),
            basis=evaluation.basis(sections[0].main),
            tiles=_score_tiles(sections) if several else sections[0].tiles,
            real=evaluation.results[0].real,
            sections=sections,
            several=several,
            gate=evaluation.exit_reason.removeprefix("gate missed: ") if evaluation.exit_code else "",
            alerts=_alerts(evaluation, names),
            most_pairs=_MOST_PAIRS,
            most_alerts=_MOST_ALERTS,
            charts=_sweep_charts(evaluation) if several else [],
            metrics=[(name, short_title(title)) for name, title in evaluation.results[0].titles.items()],
            contrasts=_contrasts(
                _shown_differences(evaluation), dict(zip((each.path for each in sections), names, strict=True))
            ),
            all_pairs=len(evaluation.differences) <= _MOST_CONTRASTS,
            lowest=_lowest(evaluation),
            hints=list(_hints(evaluation, exhibits)),
            protocol=_protocol_rows(evaluation),
            run=_run_rows(run),
            command=_command_words(run),
            python=isinstance(run.command, str),
            version=run.versions.get("fidtool", ""),
        )
    )
    return page


def _sections(
    evaluation: Evaluation, exhibits: Sequence[Exhibit | None], names: Sequence[str], gallery: Gallery
) -> list[Section]:
    pairs = list(zip(evaluation.results, exhibits, strict=True))
    quota = quota_for(len(names))
    if gallery.in_order:
        gallery.keep(file for each in pairs for file in files_of(sheets_of(*each, quota, Thumbnail)))
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
    """The call, or the command line: each of its arguments is redacted by itself, for in a whole line it is in doubt
    where an address ends."""
    from markupsafe import escape

    return run.command if isinstance(run.command, str) else escape(command_line(run.command))


def _environment() -> Environment:
    """Everything is escaped, and undefined names are errors: a misspelt one would be an empty place."""
    import jinja2

    def source(name: str) -> str:
        return files("fidtool.report").joinpath(name).read_text(encoding="utf-8")

    def text(value: object) -> object:
        return legible(value) if type(value) is str else value  # and not Markup, which is the template's own

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"rounded": rounded, "interval": interval_words, "shortened": shortened, "metric": number}
    environment.globals["shown"] = shown
    return environment


# --- what stands above the single FAKEs ------------------------------------------------------------------------------


def _title(evaluation: Evaluation, sections: Sequence[Section]) -> str:
    first = sections[0]
    against = f"against {shortened(first.real)} ({evaluation.basis(first.main)})"
    if len(sections) == 1:
        return f"{first.title} {first.score}: {first.name} {against}"
    scores = ", ".join(section.score for section in sections[:_MOST_TILES])
    return f"{first.title} {scores}{', …' * (len(sections) > _MOST_TILES)} {against}"


def _score_tiles(sections: Sequence[Section]) -> list[Tile]:
    """The numbers of a few FAKEs; of many the overview tells."""
    if len(sections) > _MOST_TILES:
        return []
    bars = [None if each.result.uncertainty is None else each.result.uncertainty.corrected for each in sections]
    remarks = ["" if bar is None else f"bias-corrected {rounded(bar.value, bar.error)}" for bar in bars]
    return [Tile(each.name, each.score, remark) for each, remark in zip(sections, remarks, strict=True)]


def _alerts(evaluation: Evaluation, names: Sequence[str]) -> list[Alerts]:
    """All warnings, each once, those of all FAKEs first."""
    about: dict[str, list[str]] = {text: [] for text in evaluation.run.warnings}
    for result, name in zip(evaluation.results, names, strict=True):
        for text in result.warnings:
            about.setdefault(text, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {(): []}
    for text, of in about.items():
        groups.setdefault(tuple(of) if len(of) < len(names) else (), []).append(text)
    return [Alerts(of, tuple(texts)) for of, texts in groups.items() if texts]


def _sweep_charts(evaluation: Evaluation) -> list[tuple[str, Chart]]:
    """One for wide windows and one for narrow ones; the page shows one of them."""
    sweep = sweep_of(evaluation.results)
    if sweep is None:
        return []
    return [(kind, sweep_chart(sweep, f"sweep-{kind}", wide=kind == "wide")) for kind in ("wide", "narrow")]


def _lowest(evaluation: Evaluation) -> int | None:
    """Place of the FAKE with the lowest distance; None where nobody asked for it, or it was not earned."""
    found = [(result.frechet_distance, place) for place, result in enumerate(evaluation.results)]
    distances = [(distance, place) for distance, place in found if distance is not None]
    if len(distances) < len(found):
        return None
    _, lowest = min(distances)
    return None if _unearned(evaluation.results[lowest]) else lowest


def _unearned(result: Comparison) -> bool:
    """So many images of REAL are in it that it is not measured, or it is REAL."""
    shared = None if result.diagnosis is None else result.diagnosis.shared
    return result.fake == result.real or (
        shared is not None and shared.count >= NOTABLE_SHARE * (result.count_fake or 1)
    )


def _shown_differences(evaluation: Evaluation) -> Sequence[Difference]:
    """All, or of many those to the best."""
    few = len(evaluation.differences) <= _MOST_CONTRASTS
    return evaluation.differences if few else evaluation.differences_to_best


def _contrasts(differences: Sequence[Difference], names: Mapping[str, str]) -> list[Contrast]:
    short = [replace(each, first=names[each.first], second=names[each.second]) for each in differences]
    return [
        Contrast(
            each.first,
            each.second,
            f"{each.interval.value:+.4f}",
            f"{each.interval.low:+.4f} to {each.interval.high:+.4f}",
            each.verdict,
        )
        for each in short
    ]


def _hints(evaluation: Evaluation, exhibits: Sequence[Exhibit | None]) -> Iterator[str]:
    """What the page could show and does not, and how to get it."""
    results, distance = evaluation.results, short_title(evaluation.labels.title("fid"))
    asked = results[0].frechet_distance is not None
    if asked and all(result.uncertainty is None for result in results):
        yield f"How sure the {distance} is: pass --uncertainty."
    if asked and all(result.influence is None for result in results):
        yield f"Which images raise the {distance}: pass --influence."
    if all(result.diagnosis is None for result in results):
        yield "Copies and faulty pictures: leave --no-diagnosis out, and give folders, not other tools' statistics."
    seen = [exhibit for exhibit in exhibits if exhibit is not None and exhibit.random]
    if asked and seen and not any(exhibit.neighbours for exhibit in seen):
        yield (
            f"The nearest real image of generated ones, and the {distance} by the number of images: of a set from the "
            "cache or a statistics file the features are not known; give folders and pass --no-cache."
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
    """As Python's arguments have them."""
    return ", ".join(f"{name}={value!r}" for name, value in config.items())
