"""``fidtool metrics``."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click

from fidtool.cli.options import OnceCommand
from fidtool.metrics.metric import Metric
from fidtool.metrics.registry import ABOUT_ALL, BUILT_IN, metric_named
from fidtool.validation import declared

_EXAMPLES = (
    ("List the metrics", "fidtool metrics"),
    ("Show the values and settings of one metric", "fidtool metrics kid"),
    ("Print everything for a script", "fidtool metrics --json"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def metrics(names: tuple[str, ...], as_json: bool) -> None:
    """List the metrics for --metrics; with NAMEs, only these, with their values and settings.

    NAME can be FILE.py:NAME for a custom metric, whose code is executed.
    """
    found = [_described(metric_named(name)) for name in names or BUILT_IN]
    if as_json:
        click.echo(json.dumps({"schema": 1, "metrics": found}, indent=2))
        return
    if not names:
        click.echo(f"all: {ABOUT_ALL}")
    for metric in found:
        click.echo(f"{metric['name']}: {metric['about']}")
        for number in metric["numbers"] if names else ():
            click.echo(f"  {number['title']} ({number['better']} is better): {number['meaning']}")
        for setting in metric["settings"] if names else ():
            value = "VALUE" if setting["default"] is None else setting["default"]
            click.echo(f"  --metric-option {metric['name']}.{setting['name']}={value}: {setting['help']}")


def _described(metric: Metric) -> dict[str, Any]:
    about = " ".join((inspect.getdoc(metric) or "").split("\n\n")[0].split())
    fields = declared(type(metric)).items()
    return {
        "name": metric.name,
        "about": about,
        "numbers": [
            {"name": each.name, "title": each.title, "better": each.better, "meaning": each.meaning}
            for each in metric.numbers
        ],
        "settings": [
            {"name": name, "default": getattr(metric, name), "help": field.described} for name, field in fields
        ],
    }
