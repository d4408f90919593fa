"""Commands that measure nothing: values of options, the guide, weights, references, verdicts on
results.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

import click

from fidtool.cli.options import OnceCommand, completing
from fidtool.cli.output import (
    as_flag,
    columns,
    document,
    note,
    on_terminal,
    paragraph,
    print_lines,
    shown,
)
from fidtool.errors import InputError, redacted
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    INCEPTION_INPUT_SIZE,
    INCEPTION_SHA256,
    PROTOCOLS,
)
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import BUILT_IN, metric_named
from fidtool.names import closest, counted, folded, unknown
from fidtool.references.catalogue import FEATURES, REFERENCES, Reference, named_reference
from fidtool.references.files import PublishedFile, fetch, folder, published_files
from fidtool.result.verify import NOT_KNOWN, YES, Verdict
from fidtool.result.verify import verify as verdicts_on
from fidtool.settings.presets import PRESETS, preset_named
from fidtool.system.download import megabytes
from fidtool.validation import declared

_PAGES = files("fidtool") / "guide"
_TOPICS = dict(
    re.findall(
        r"^- \[(\w+)\]\(\1\.md\): (.+)", (_PAGES / "index.md").read_text("utf-8"), re.MULTILINE
    )
)
"""The topics of the guide and their descriptions, from its index."""
_names = partial(click.argument, "names", metavar="[NAME]...", nargs=-1)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


@click.command(cls=OnceCommand)
@_names(shell_complete=completing(BUILT_IN, or_file=True))
@_JSON
def metrics(names: tuple[str, ...], as_json: bool) -> Iterator[str]:
    """List the metrics for --metrics; with NAMEs, only these, with their values and settings.

    NAME can be FILE.py:NAME for a custom metric, whose code is executed.
    """
    chosen = [metric_named(name).metric for name in names or BUILT_IN]
    if as_json:
        yield document(metrics=[_described(metric) for metric in chosen])
        return
    for metric in chosen:
        facts = _described(metric)
        yield f"{metric.name}: {facts['about']}"
        if names:
            for number in facts["numbers"]:
                yield (
                    f"  {number['title']} ({number['better'] or 'neither'} is better): "
                    f"{number['meaning']}"
                )
            for setting in facts["settings"]:
                default = "VALUE" if setting["default"] is None else setting["default"]
                yield f"  {as_flag(metric.named(setting['name']), default)}: {setting['help']}"


def _described(metric: Metric) -> dict[str, Any]:
    about = (inspect.getdoc(metric) or "").split("\n\n")[0]
    parts = ("name", "title", "better", "meaning")
    return {
        "name": metric.name,
        "about": " ".join(about.split()),
        "numbers": [
            {part: getattr(each, part) for part in parts}
            for each in (*metric.numbers, *metric.summary)
        ],
        "settings": [
            {"name": name, "default": getattr(metric, name), "help": each.described}
            for name, each in declared(type(metric)).items()
        ],
    }


@click.command(cls=OnceCommand)
@_names(shell_complete=completing(PRESETS))
@_JSON
def presets(names: tuple[str, ...], as_json: bool) -> Iterator[str]:
    """List the values of --preset; with NAMEs, show these with their settings and what a comparable
    value needs.
    """
    chosen = [preset_named(name) for name in names or PRESETS]
    if as_json:
        yield document(presets=[asdict(preset) for preset in chosen])
        return
    for preset in chosen:
        also = f" (also {', '.join(preset.other_names)})" if preset.other_names else ""
        yield paragraph(f"{preset.name}{also}: {preset.about}", "", "  ")
        fakes = (
            "as many images as in the paper" if preset.fakes is None else f"{preset.fakes:,} images"
        )
        flags = [
            as_flag(name, value) for name, value in preset.settings.items() if value is not False
        ]
        details = [
            ("settings", " ".join(flags)),
            ("REAL", preset.reference),
            (
                "crop",
                preset.crop
                and f"{as_flag('crop', f'{preset.crop}:SIZE')}, of a folder of original images",
            ),
            ("FAKE", f"{fakes}, lossless"),
            ("classes", preset.classes),
            *(("note", note) for note in preset.notes),
            ("source", preset.source),
        ]
        for label, text in details:
            if names and text:
                yield paragraph(text, f"  {label:11}", " " * 13)


@click.command(cls=OnceCommand)
def protocols() -> Iterator[str]:
    """List the protocols: how each prepares images, which tools it equals, and which papers use
    it.
    """
    for protocol in PROTOCOLS.values():
        default = " (default)" if protocol.name == DEFAULT_PROTOCOL else ""
        yield f"{', '.join([protocol.name, *protocol.other_names])}{default}"
        covariance = f"covariance / (n - {protocol.ddof})" if protocol.ddof else "covariance / n"
        size = f"{INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}"
        arithmetic = (
            f"{protocol.resize} to {size}; (x - {protocol.offset:g}) / {protocol.scale:g}; "
            f"{covariance}"
        )
        for label, text in (
            ("method", arithmetic),
            ("equals", protocol.equals),
            ("used by", protocol.used_by),
        ):
            yield paragraph(text, f"  {label:9}", " " * 11)
    click.echo("\nMore: fidtool guide protocols", err=True)


@click.command(cls=OnceCommand)
@click.argument("words", metavar="[TOPIC]", nargs=-1, shell_complete=completing(_TOPICS))
def guide(words: tuple[str, ...]) -> Iterator[str]:
    """List the topics of the guide, or show TOPIC.

    TOPIC may be shortened as long as it is unique. A terminal shows it in a pager ($PAGER, else
    less).
    """
    topic = "-".join(words)
    if topic in ("", "index"):
        yield from columns([*_TOPICS.items()])
        click.echo("\nfidtool guide TOPIC shows a topic, in a pager on a terminal.", err=True)
        return
    name = topic.lower().removesuffix(".md")
    begun = [name] if name in _TOPICS else [each for each in _TOPICS if each.startswith(name)]
    if len(begun) != 1:
        raise InputError(
            unknown("topic", topic, begun or closest(name, _TOPICS), ", ".join(_TOPICS))
        )
    os.environ.setdefault("LESS", "FRX")  # as git does: a page that fits the screen needs no key
    text = (_PAGES / f"{begun[0]}.md").read_text("utf-8").rstrip()
    if on_terminal():
        click.echo_via_pager(text)
    else:
        yield text


@click.command(cls=OnceCommand)
@click.option("--download", is_flag=True, help="Download the official file into the cache.")
@click.option("--verify", "verify_", is_flag=True, help="Check the SHA-256 of every file found.")
@click.option(
    "--weights",
    "explicit",
    metavar="FILE",
    help="File to search first, as with `compute --weights`.",
)
def weights(download: bool, verify_: bool, explicit: str | None) -> Iterator[str]:
    """List the locations that are searched for the Inception weights, in order."""
    from fidtool.features.models import inception

    if download:
        inception.keep(inception.download(note))
        click.echo(f"downloaded and verified; tensors' SHA-256 {INCEPTION_SHA256}", err=True)
    errors: list[str] = []
    used = False
    for place in inception.places(explicit):
        if place.there:
            state = "found" if used else "used"
        elif place.label == "download":
            state = "if needed" if used else "would be used"
        else:  # `compute` fails if a file that the user named is missing
            named = place.path and shown(place.label) in ("--weights", "FIDTOOL_WEIGHTS")
            state = "MISSING" if named else "not there"
        used = used or state != "not there"
        yield f"{state:14}{shown(place.label):18}{redacted(str(place.note or place.path))}"
        if verify_ and place.path and place.there:
            try:
                verdict = inception.verify(place.path)
            except InputError as error:
                errors += (
                    [error.text] if place.label != "torch hub" else []
                )  # a run does not use such a file
                verdict = "DAMAGED OR UNKNOWN"
            yield f"{'':32}{verdict}"
    if errors:
        raise InputError("; ".join(errors))


@click.command(cls=OnceCommand)
@click.argument("result", metavar="RESULT.json")
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=completing(PRESETS),
    help="Preset; by default that of the run, or else of its reference.",
)
@click.option(
    "--strict", is_flag=True, help="Exit status 3 also if a requirement is not known to be met."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(result: str, preset: str | None, strict: bool, as_json: bool) -> int:
    """Check whether a result is comparable with published values: yes, no or not known for each
    requirement.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Exit status: 0 no
    requirement is missed, 2 bad usage or input, 3 a requirement is missed.
    """
    verdicts = verdicts_on(result, preset)
    if as_json:
        print_lines([document(verdicts=[verdict.to_dict() for verdict in verdicts])])
    else:
        print_lines([line for verdict in verdicts for line in _lines_of(verdict)])
    missed = {False, None} if strict else {False}
    return (
        3 if any(verdict.comparable in missed for verdict in verdicts) else 0
    )  # like a missed gate


def _lines_of(verdict: Verdict) -> Iterator[str]:
    outcome = "not comparable" if verdict.comparable is False else "comparable"
    of_all = f"{len(verdict.named(NOT_KNOWN))} of {len(verdict.items)} not known"
    known = f", as far as is known ({of_all})" if verdict.comparable is None else ""
    yield f"{verdict.fake}: {outcome} with published values of {verdict.preset}{known}"
    indent = " " * 12
    for item in verdict.items:
        yield paragraph(f"{item.name}: {item.found}", f"  {item.verdict:10}", indent)
        if item.verdict != YES:
            yield paragraph(f"expected: {item.expected} ({item.source})", indent, indent)


@click.command(cls=OnceCommand)
@_names(shell_complete=completing(REFERENCES))
@_JSON
@click.option(
    "--download",
    metavar="NAME",
    shell_complete=completing(REFERENCES),
    help="Download the statistics of a reference into the cache; with NAME:arr_0 its images as "
    "well.",
)
def refs(names: tuple[str, ...], as_json: bool, download: str | None) -> Iterator[str]:
    """List the references: published statistics to compare with, for example `fidtool compute
    edm:cifar10 fake/`.

    NAME is a reference, of which everything is shown, or one of the projects that publish them,
    such as adm. They are downloaded at the first use. FIDTOOL_REFERENCES_URL is a mirror.
    """
    if download is not None and (names or as_json):
        raise InputError(
            f"{names[0] if names else '--json'} and --download cannot be combined:",
            "pass one of them",
        )
    if download is not None:
        reference, array = named_reference(download)
        arrays = {FEATURES} if array == FEATURES else {*reference.statistics, array} - {""}
        path, sha256 = fetch(reference, arrays, note)
        hashes = columns([(f"  {array}", f"SHA-256 {digest}") for array, digest in sha256.items()])
        yield from [str(path), *hashes]
        return
    projects = {
        name: [
            each for each in REFERENCES.values() if folded(each.project) == folded(name.rstrip(":"))
        ]
        for name in names
    }
    found = dict.fromkeys(
        each for name in names for each in projects[name] or [named_reference(name)[0]]
    )
    chosen = [*(found or REFERENCES.values())]
    if as_json:
        yield document(references=[*map(_as_dict, chosen)])
    elif names and not any(projects.values()):
        for each in chosen:
            yield from _details(each)
    else:
        yield from _table(chosen)


def _cached(reference: Reference) -> list[PublishedFile]:
    return [file for file in published_files(reference) if file.arrays]


def _as_dict(reference: Reference) -> dict[str, Any]:
    held = [
        {"path": str(each.path), "arrays": each.arrays, "bytes": each.size}
        for each in _cached(reference)
    ]
    facts = asdict(reference) | {
        "protocol": reference.protocol or None,
        "features_url": reference.features_url or None,
    }
    return {**facts, "cached": held}


def _table(chosen: Sequence[Reference]) -> list[str]:
    files: list[PublishedFile] = []
    rows = [("name", "protocol", "real images", "fakes", "size", "in the cache")]
    for each in chosen:
        cached = _cached(each)
        files += cached
        counts = str(each.real_images or "?"), str(each.fakes)
        rows.append(
            (each.name, each.protocol or "?", *counts, _size(each), "; ".join(map(str, cached)))
        )
    total = megabytes(sum(each.size for each in files))
    return [
        f"{folder()}: {counted(len(files), 'file')}, {total}",
        *(line.rstrip() for line in columns(rows)),
    ]


def _size(reference: Reference) -> str:
    return "?" if reference.shape is None else "{} x {}".format(*reference.shape)


def _details(reference: Reference) -> list[str]:
    """Return the name, and a line for each fact that the JSON has."""
    facts = asdict(reference) | {
        "arrays": ", ".join(reference.arrays),
        "shape": reference.shape and _size(reference),
    }
    rows = [
        (f"  {name.replace('_', ' ')}", f"{value}")
        for name, value in facts.items()
        if value and name != "name"
    ]
    rows += [("  in the cache", f"{file.path}: {file}") for file in _cached(reference)]
    return [reference.name, *columns(rows)]
