"""Commands that list what there is: metrics, presets, protocols, weights, references and
published values.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem

from fidtool.cli.options import JSON, LocalRankZeroCommand, make_completer
from fidtool.cli.output import (
    align_columns,
    format_flag,
    format_labelled,
    note,
    paragraph,
    render_message,
    to_json_text,
)
from fidtool.errors import InputError, redact
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    INCEPTION_INPUT_SIZE,
    INCEPTION_SHA256,
    OWN_PROTOCOLS,
    PROTOCOLS,
)
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import BUILT_IN, find_metric
from fidtool.names import fold, format_count
from fidtool.references.catalogue import FEATURES, REFERENCES, Reference, find_reference
from fidtool.references.files import PublishedFile, fetch, folder, published_files
from fidtool.references.published import PublishedValue, published_values
from fidtool.settings.presets import PRESETS, Preset, find_preset
from fidtool.system.download import megabytes
from fidtool.system.variables import WEIGHTS
from fidtool.validation import find_settings

# Where a filter's square comes from, by `fidtool.features.resize.Framing`.
_FRAMINGS = {
    "squash": "to a square, without keeping the aspect ratio",
    "shorter edge": "of the shorter edge to the square's side, then the centre square",
    "largest square": "of the largest centre square",
}
_names_argument = partial(click.argument, "names", metavar="[NAME]...", nargs=-1)


@click.command(cls=LocalRankZeroCommand)
@_names_argument(shell_complete=make_completer(BUILT_IN, or_file=True))
@JSON
def metrics(names: tuple[str, ...], as_json: bool) -> Iterator[str]:
    """List the values of --metrics. With NAMEs, show only these metrics, with their values and
    settings.

    NAME can be FILE.py:NAME for a custom metric, whose code is executed.
    """
    chosen = [find_metric(name).metric for name in names or BUILT_IN]
    if as_json:
        yield to_json_text(metrics=[_describe_metric(metric) for metric in chosen])
        return
    for metric in chosen:
        facts = _describe_metric(metric)
        yield f"{metric.name}: {facts['about']}"
        if not names:
            continue
        for number in facts["numbers"]:
            better = f"{number['better'] or 'neither'} is better"
            yield f"  {number['title']} ({better}): {number['meaning']}"
        for name, setting in find_settings(type(metric)).items():
            shown = getattr(metric, name)
            if setting.kind is bool:
                shown = True  # the flag, whatever it does by default
            elif shown in (None, ""):
                shown = setting.metavar or "VALUE"
            yield f"  {format_flag(metric.named(name), shown)}: {setting.described}"


def _describe_metric(metric: Metric) -> dict[str, Any]:
    about = (inspect.getdoc(metric) or "").split("\n\n")[0]
    parts = ("name", "title", "better", "meaning")
    return {
        "name": metric.name,
        "about": " ".join(about.split()),
        "numbers": [
            {part: getattr(number, part) for part in parts}
            for number in (*metric.numbers, *metric.summary)
        ],
        "settings": [
            {"name": name, "default": getattr(metric, name), "help": setting.described}
            for name, setting in find_settings(type(metric)).items()
        ],
    }


@click.command(cls=LocalRankZeroCommand)
@_names_argument(shell_complete=make_completer(PRESETS))
@JSON
def presets(names: tuple[str, ...], as_json: bool) -> Iterator[str]:
    """List the values of --preset. With NAMEs, show only these presets, with their settings and
    with what a comparable value needs.
    """
    chosen = [find_preset(name) for name in names or PRESETS]
    if as_json:
        yield to_json_text(presets=chosen)
        return
    for preset in chosen:
        also = f" (also {', '.join(preset.other_names)})" if preset.other_names else ""
        yield paragraph(f"{preset.name}{also}: {preset.about}", "", "  ")
        if names:
            for label, text in _describe_preset(preset):
                if text:
                    yield format_labelled(label, text, 11)


def _describe_preset(preset: Preset) -> Iterator[tuple[str, str]]:
    flags = []
    for name, value in preset.settings.items():
        if value is not False:
            typed = shlex.quote(value) if isinstance(value, str) else value
            flags.append(format_flag(name, typed))
    yield "settings", " ".join(flags)
    yield "REAL", preset.reference
    if preset.crop and "crop" not in preset.settings:
        crop = format_flag("crop", f"{preset.crop}:SIZE")
        yield "crop", f"{crop}, for a folder of original images"
    fakes = "as many images as in the paper"
    if preset.fakes is not None:
        fakes = f"{preset.fakes:,} images"
    yield "FAKE", f"{fakes}, lossless"
    yield "classes", preset.classes
    for text in preset.notes:
        yield "note", text
    yield "source", preset.source


@click.command(cls=LocalRankZeroCommand)
def protocols() -> Iterator[str]:
    """List the protocols: how each one prepares images, which tools it equals, and which papers
    use it. The protocols of DINOv2 and CLIP follow.
    """
    for protocol in PROTOCOLS.values():
        default = " (default)" if protocol.name == DEFAULT_PROTOCOL else ""
        yield f"{', '.join([protocol.name, *protocol.other_names])}{default}"
        covariance = f"covariance / (n - {protocol.ddof})" if protocol.ddof else "covariance / n"
        yield format_labelled(
            "method",
            f"{protocol.resize} to {INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}; "
            f"(x - {protocol.offset:g}) / {protocol.scale:g}; {covariance}",
            9,
        )
        yield format_labelled("equals", protocol.equals, 9)
        yield format_labelled("used by", protocol.used_by, 9)
    for family, own_protocols in OWN_PROTOCOLS.items():
        for own in own_protocols:
            default = ", default" if own is own_protocols[0] else ""
            yield f"{own.name or 'no name'} (--extractor {family}{default})"
            method = f"{own.resize} {_FRAMINGS[own.framing]}; covariance / (n - 1)"
            yield format_labelled("method", method, 9)
            yield format_labelled("equals", own.equals, 9)
    click.echo("\nMore: fidtool guide protocols", err=True)


@click.command(cls=LocalRankZeroCommand)
@click.option("--download", is_flag=True, help="Download the official file into the cache.")
@click.option("--verify", "verifies", is_flag=True, help="Check the SHA-256 of every file found.")
@click.option(
    "--weights",
    "explicit",
    metavar="FILE",
    help="File to search first, as with `compute --weights`.",
)
def weights(download: bool, verifies: bool, explicit: str | None) -> Iterator[str]:
    """List the locations that are searched for the Inception weights, in order."""
    from fidtool.features.models import inception

    if download:
        inception.cache_weights(inception.download(note))
        note(f"downloaded and verified; tensors' SHA-256 {INCEPTION_SHA256}")
    errors = []
    used = False
    for place in inception.list_locations(explicit):
        label = render_message(place.label)
        if place.exists:
            state = "found" if used else "used"
        elif place.label == "download":
            state = "if needed" if used else "would be used"
        elif place.path and label in ("--weights", WEIGHTS.name):
            state = "MISSING"  # `compute` fails if a file that the user named is missing
        else:
            state = "not there"
        used = used or state != "not there"
        yield f"{state:14}{label:18}{redact(str(place.note or place.path))}"
        if verifies and place.path and place.exists:
            try:
                verdict = inception.check_hash(place.path)
            except InputError as error:
                verdict = "DAMAGED OR UNKNOWN"
                if place.label != "torch hub":  # a run does not use such a file
                    errors.append(error.text)
            yield f"{'':32}{verdict}"
    if errors:
        raise InputError("; ".join(errors))


@click.command(cls=LocalRankZeroCommand)
@_names_argument(shell_complete=make_completer(REFERENCES))
@JSON
@click.option(
    "--download",
    metavar="NAME",
    shell_complete=make_completer(REFERENCES),
    help="Download the statistics of a reference into the cache; with NAME:arr_0, also download "
    "its images.",
)
def refs(names: tuple[str, ...], as_json: bool, download: str | None) -> Iterator[str]:
    """List the references: published statistics to compare with, for example `fidtool compute
    edm:cifar10 fake/`.

    NAME is a reference, for which all facts are shown, or a project that publishes references, such
    as adm. References are downloaded at their first use. FIDTOOL_REFERENCES_URL is the address of a
    mirror.
    """
    if download is not None:
        if names or as_json:
            other = names[0] if names else "--json"
            raise InputError(f"{other} and --download cannot be combined:", "pass one of them")
        yield from _download(download)
        return
    chosen = {}
    has_project = False
    for name in names:
        project = fold(name.rstrip(":"))
        members = [known for known in REFERENCES.values() if fold(known.project) == project]
        has_project = has_project or bool(members)
        for reference in members or [find_reference(name)[0]]:
            chosen[reference.name] = reference
    references = [*(chosen or REFERENCES).values()]
    if as_json:
        yield to_json_text(references=[_as_dict(reference) for reference in references])
    elif names and not has_project:
        for reference in references:
            yield from _describe_reference(reference)
    else:
        yield from _table(references)


def _download(name: str) -> Iterator[str]:
    reference, array = find_reference(name)
    arrays = {*reference.statistics, array} - {""}
    if array == FEATURES:
        arrays = {FEATURES}
    path, hashes = fetch(reference, arrays, note)
    yield str(path)
    yield from align_columns(
        [(f"  {array}", f"SHA-256 {digest}") for array, digest in hashes.items()]
    )


def _cached_files(reference: Reference) -> list[PublishedFile]:
    return [file for file in published_files(reference) if file.arrays]


def _as_dict(reference: Reference) -> dict[str, Any]:
    return {
        **asdict(reference),
        "protocol": reference.protocol or None,
        "features_url": reference.features_url or None,
        "cached": [
            {"path": str(file.path), "arrays": file.arrays, "bytes": file.size}
            for file in _cached_files(reference)
        ],
    }


def _table(references: Sequence[Reference]) -> list[str]:
    cached = []
    rows = [("name", "protocol", "real images", "fakes", "size", "in the cache")]
    for reference in references:
        files = _cached_files(reference)
        cached += files
        rows.append(
            (
                reference.name,
                reference.protocol or "?",
                str(reference.real_images or "?"),
                str(reference.fakes),
                _size(reference),
                "; ".join(map(str, files)),
            )
        )
    total = megabytes(sum(file.size for file in cached))
    return [f"{folder()}: {format_count(len(cached), 'file')}, {total}", *align_columns(rows)]


def _size(reference: Reference) -> str:
    return "?" if reference.shape is None else "{} x {}".format(*reference.shape)


def _describe_reference(reference: Reference) -> list[str]:
    """Return the name, and a line for each fact that the JSON has."""
    facts = asdict(reference) | {"arrays": ", ".join(reference.arrays)}
    if reference.shape is not None:
        facts["shape"] = _size(reference)
    del facts["name"]
    rows = [(f"  {name.replace('_', ' ')}", f"{facts[name]}") for name in facts if facts[name]]
    rows += [("  in the cache", f"{file.path}: {file}") for file in _cached_files(reference)]
    return [reference.name, *align_columns(rows)]


def _complete_published(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    names = dict.fromkeys(value.reference for value in published_values())
    return [CompletionItem(name) for name in names if name.startswith(typed)]


@click.command(cls=LocalRankZeroCommand)
@click.argument("reference", required=False, shell_complete=_complete_published)
@JSON
def published(reference: str | None, as_json: bool) -> Iterator[str]:
    """List published FIDs, each with the public file and the lines from which it was read. Without
    REFERENCE, list the references for which FIDs are known.

    REFERENCE is the name of a reference, a project that publishes several references, such as adm,
    or a part of their names, such as cifar10. The lowest FID comes first. A question mark stands
    for a fact that was not found in the file.
    """
    values = published_values(reference)
    if as_json:
        yield to_json_text(published=values)
        return
    groups = dict[str, list[PublishedValue]]()
    for value in values:
        groups.setdefault(value.reference, []).append(value)
    if reference is None:
        yield from align_columns([_SUMMARY, *map(_summary_row, groups.values())])
    else:
        for name, group in groups.items():
            yield f"{name}: {format_count(len(group), 'published value')}"
            yield from _published_table(group)
    repositories = ", ".join(sorted({value.repository for value in values}, key=str.lower))
    latest = max(value.read for value in values)
    yield paragraph(f"Sources on GitHub, last read on {latest}: {repositories}", "", "")


_SUMMARY = ("reference", "protocol", "values", "lowest", "highest")


def _summary_row(values: Sequence[PublishedValue]) -> tuple[str, ...]:
    protocols = dict.fromkeys(value.protocol or "?" for value in values)
    lowest, highest = (f"{value.fid:.2f}" for value in (values[0], values[-1]))
    return values[0].reference, ", ".join(protocols), str(len(values)), lowest, highest


def _published_table(values: Sequence[PublishedValue]) -> list[str]:
    """Return a heading and a line per value, without the columns of which nothing is known."""
    heading = (
        *("  FID", "model", "guidance", "IS", "precision", "recall", "images"),
        *("year", "protocol", "read in"),
    )
    columns = zip(heading, *map(_published_row, values), strict=True)
    known = [column for column in columns if {*column[1:]} != {"?"}]
    return align_columns([*zip(*known, strict=True)])


def _published_row(value: PublishedValue) -> tuple[str, ...]:
    return (
        f"  {value.fid:.2f}",
        value.model,
        value.guidance or "?",
        _format_known(value.inception_score, ".1f"),
        _format_known(value.precision, ".2f"),
        _format_known(value.recall, ".2f"),
        _format_known(value.images, ","),
        str(value.year),
        value.protocol or "?",
        f"{value.repository} {value.lines}",
    )


def _format_known(number: float | None, form: str) -> str:
    return "?" if number is None else format(number, form)
