"""``fidtool verify``."""

from __future__ import annotations

import json

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import paragraph
from fidtool.comparability import NOT_KNOWN
from fidtool.comparability import verify as verdicts_on

_INDENT = " " * 12
_EXAMPLES = (
    ("Write a result", "fidtool compute real/ fake/ --preset adm -o fid.json"),
    ("Check whether its values are comparable with those of papers", "fidtool verify fid.json"),
    ("The same for other papers, for a script", "fidtool verify fid.json --preset edm --json"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("result", metavar="RESULT.json")
@click.option("--preset", metavar="NAME", help="Preset; by default that of the run, or else of its reference.")
@click.option("--strict", is_flag=True, help="Exit status 3 also if a requirement is not known to be met.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(result: str, preset: str | None, strict: bool, as_json: bool) -> int:
    """Check whether a result is comparable with published values: yes, no or not known for each requirement.

    RESULT.json is what `compute -o` or `compute --json` wrote, or - for stdin. Exit status: 0 no requirement is missed,
    2 bad usage or input, 3 a requirement is missed.
    """
    found = verdicts_on("/dev/stdin" if result == "-" else result, preset)
    if as_json:
        click.echo(json.dumps({"schema": 1, "verdicts": [verdict.to_dict() for verdict in found]}, indent=2))
    for verdict in () if as_json else found:
        outcome = "not comparable" if verdict.comparable is False else "comparable"
        of_all = f"{len(verdict.named(NOT_KNOWN))} of {len(verdict.items)} not known"
        known = f", as far as is known ({of_all})" if verdict.comparable is None else ""
        click.echo(f"{verdict.fake}: {outcome} with published values of {verdict.preset}{known}")
        for item in verdict.items:
            paragraph(f"{item.name}: {item.found}", f"  {item.verdict:10}", _INDENT)
            if item.verdict != "yes":
                paragraph(f"expected: {item.expected} ({item.source})", _INDENT, _INDENT)
    missed = [verdict for verdict in found if verdict.comparable is False or (strict and verdict.comparable is None)]
    return 3 if missed else 0  # like a missed gate
