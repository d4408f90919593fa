"""``fidtool metrics``, ``fidtool presets`` and ``fidtool protocols``: what the options of the same names accept."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import Any

import click

from fidtool.cli.options import OnceCommand, as_flag
from fidtool.cli.output import paragraph
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import ABOUT_ALL, BUILT_IN, metric_named
from fidtool.presets import PRESETS, preset_named
from fidtool.validation import declared

_OF_METRICS = (
    ("List the metrics", "fidtool metrics"),
    ("Show the values and settings of one metric", "fidtool metrics kid"),
    ("Print everything for a script", "fidtool metrics --json"),
)
_OF_PRESETS = (
    ("List the presets", "fidtool presets"),
    ("Show one: its settings and what a comparable value needs", "fidtool presets adm"),
    ("Compute ADM's five metrics", "fidtool compute real/ fake/ --preset adm"),
)
_OF_PROTOCOLS = (
    ("List the protocols", "fidtool protocols"),
    ("Compute the FID as clean-fid does", "fidtool compute real/ fake/ --protocol clean"),
    ("Write statistics for this protocol", "fidtool stats real/ -o real-clean.npz --protocol clean"),
)
_NAMES = click.argument("names", metavar="[NAME]...", nargs=-1)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


@click.command(cls=OnceCommand, examples=_OF_METRICS)
@_NAMES
@_JSON
def metrics(names: tuple[str, ...], as_json: bool) -> None:
    """List the metrics for --metrics; with NAMEs, only these, with their values and settings.

    NAME can be FILE.py:NAME for a custom metric, whose code is executed.
    """
    chosen = [metric_named(name).metric for name in names or BUILT_IN]
    found = [_described(metric) for metric in chosen]
    if as_json:
        click.echo(json.dumps({"schema": 1, "metrics": found}, indent=2))
        return
    if not names:
        click.echo(f"all: {ABOUT_ALL}")
    for each, metric in zip(chosen, found, strict=True):
        click.echo(f"{metric['name']}: {metric['about']}")
        for number in metric["numbers"] if names else ():
            click.echo(f"  {number['title']} ({number['better']} is better): {number['meaning']}")
        for setting in metric["settings"] if names else ():
            value = "VALUE" if setting["default"] is None else setting["default"]
            flag = as_flag(each.named(setting["name"]), value)
            click.echo(f"  {flag}: {setting['help']}")


def _described(metric: Metric) -> dict[str, Any]:
    about = " ".join((inspect.getdoc(metric) or "").split("\n\n")[0].split())
    shown, settings = ("name", "title", "better", "meaning"), declared(type(metric)).items()
    return {
        "name": metric.name,
        "about": about,
        "numbers": [{name: getattr(each, name) for name in shown} for each in metric.numbers],
        "settings": [
            {"name": name, "default": getattr(metric, name), "help": each.described} for name, each in settings
        ],
    }


@click.command(cls=OnceCommand, examples=_OF_PRESETS)
@_NAMES
@_JSON
def presets(names: tuple[str, ...], as_json: bool) -> None:
    """List the values of --preset; with NAMEs, show these with their settings and what a comparable value needs."""
    found = [preset_named(name) for name in names] or [*PRESETS.values()]
    if as_json:
        click.echo(json.dumps({"schema": 1, "presets": [asdict(preset) for preset in found]}, indent=2))
        return
    for preset in found:
        also = f" (also {', '.join(preset.other_names)})" if preset.other_names else ""
        paragraph(f"{preset.name}{also}: {preset.about}", "", "  ")
        fakes = "as many images as in the paper" if preset.fakes is None else f"{preset.fakes:,} images"
        flags = [as_flag(name, value) for name, value in preset.settings.items() if value is not False]
        details = [
            ("settings", " ".join(flags)),
            ("REAL", preset.reference),
            ("crop", preset.crop and f"{as_flag('crop', f'{preset.crop}:SIZE')}, of a folder of original images"),
            ("FAKE", f"{fakes}, lossless"),
            ("classes", preset.classes),
            *(("note", note) for note in preset.notes),
            ("source", preset.source),
        ]
        for label, text in details if names else ():
            if text:
                paragraph(text, f"  {label:11}", " " * 13)


@click.command(cls=OnceCommand, examples=_OF_PROTOCOLS)
def protocols() -> None:
    """List the protocols: how each prepares images, which tools it equals, and which papers use it."""
    from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_INPUT_SIZE, PROTOCOLS

    for protocol in PROTOCOLS.values():
        default = " (default)" if protocol.name == DEFAULT_PROTOCOL else ""
        click.echo(f"{', '.join([protocol.name, *protocol.other_names])}{default}")
        covariance = f"covariance / (n - {protocol.ddof})" if protocol.ddof else "covariance / n"
        size = f"{INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}"
        arithmetic = f"{protocol.resize} to {size}; (x - {protocol.offset:g}) / {protocol.scale:g}; {covariance}"
        for label, text in (("method", arithmetic), ("equals", protocol.equals), ("used by", protocol.used_by)):
            paragraph(text, f"  {label:9}", " " * 11)
    click.echo("\nMore: fidtool guide protocols", err=True)
