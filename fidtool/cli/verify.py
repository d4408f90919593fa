"""``fidtool verify``."""

from __future__ import annotations

import json

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import paragraph
from fidtool.comparability import Verdict
from fidtool.comparability import verify as verdicts_on

_EXIT_CODE = 3
"""Exit status if a requirement is missed, like that of a missed gate."""
_INDENT = " " * 12
_EXAMPLES = (
    ("Write a result", "fidtool compute real/ fake/ --preset adm -o fid.json"),
    ("Check whether its values are comparable with those of papers", "fidtool verify fid.json"),
    ("The same for other papers, for a script", "fidtool verify fid.json --preset edm --json"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("result", metavar="RESULT.json")
@click.option("--preset", metavar="NAME", help="Preset; by default, that of the run. See `fidtool presets`.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(result: str, preset: str | None, as_json: bool) -> int:
    """Check whether a result is comparable with published values: yes, no or not known for each requirement.

    RESULT.json is what `compute -o` or `compute --json` wrote. Exit status: 0 nothing is missed, 2 bad usage or input,
    3 a requirement is missed.
    """
    found = verdicts_on(result, preset)
    if as_json:
        click.echo(json.dumps({"schema": 1, "verdicts": [verdict.to_dict() for verdict in found]}, indent=2))
    else:
        for verdict in found:
            _print(verdict)
    return 0 if all(verdict.comparable for verdict in found) else _EXIT_CODE


def _print(verdict: Verdict) -> None:
    click.echo(f"{verdict.fake}: {'comparable' if verdict.comparable else 'not comparable'} with {verdict.preset}")
    for item in verdict.items:
        paragraph(f"{item.name}: {item.found}", f"  {item.verdict:10}", _INDENT)
        if item.verdict != "yes":
            paragraph(f"expected: {item.expected} ({item.source})", _INDENT, _INDENT)
