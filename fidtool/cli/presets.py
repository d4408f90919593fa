"""``fidtool presets``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from fidtool.cli.options import OnceCommand, as_flag
from fidtool.cli.output import paragraph
from fidtool.presets import PRESETS, Preset, preset_named

_EXAMPLES = (
    ("List the presets", "fidtool presets"),
    ("Show one: its settings and what a comparable value needs", "fidtool presets adm"),
    ("Compute ADM's five metrics", "fidtool compute real/ fake/ --preset adm"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def presets(names: tuple[str, ...], as_json: bool) -> None:
    """List the values of --preset; with NAMEs, show these with their settings and what a comparable value needs."""
    found = [preset_named(name) for name in names] or [*PRESETS.values()]
    if as_json:
        click.echo(json.dumps({"schema": 1, "presets": [asdict(preset) for preset in found]}, indent=2))
        return
    for preset in found:
        also = f" (also {', '.join(preset.other_names)})" if preset.other_names else ""
        paragraph(f"{preset.name}{also}: {preset.about}", "", "  ")
        for label, text in _details(preset) if names else ():
            paragraph(text, f"  {label:11}", " " * 13)


def _details(preset: Preset) -> list[tuple[str, str]]:
    details = [
        ("settings", " ".join(as_flag(name, value) for name, value in preset.settings.items() if value is not False)),
        ("REAL", preset.reference),
        ("crop", preset.crop and f"{as_flag('crop', f'{preset.crop}:SIZE')}, of a folder of original images"),
        (
            "FAKE",
            f"{'as many images as in the paper' if preset.fakes is None else f'{preset.fakes:,} images'}, lossless",
        ),
        ("classes", preset.classes),
        *(("note", note) for note in preset.notes),
        ("source", preset.source),
    ]
    return [(label, text) for label, text in details if text]
