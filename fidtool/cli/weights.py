"""``fidtool weights``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fidtool.cli.options import OnceCommand
from fidtool.errors import InputError
from fidtool.redaction import redacted

if TYPE_CHECKING:
    from fidtool.features.models.inception_weights import Place


@click.command(cls=OnceCommand)
@click.option("--download", is_flag=True, help="Download the official file into the cache.")
@click.option("--verify", "verify_", is_flag=True, help="Check every file found against its hash.")
@click.option("--weights", "explicit", metavar="FILE", help="A file to look at first, as `compute --weights` would.")
def weights(download: bool, verify_: bool, explicit: str | None) -> None:
    """Where the Inception weights are, in the order in which they are searched."""
    from fidtool.features.models.inception_weights import fetch, places, verify

    if download:
        loaded = fetch(lambda line: click.echo(line, err=True))
        click.echo(f"downloaded and verified; tensors' SHA-256 {loaded.sha256}", err=True)
    errors: list[str] = []
    used = False
    for place in places(explicit):
        state, used = _state(place, used)
        click.echo(f"{state:14}{place.label:18}{redacted(str(place.path or place.note))}")
        if verify_ and place.path:
            try:
                verdict = verify(place.path)
            except InputError as error:
                errors.append(str(error))
                verdict = "DAMAGED OR UNKNOWN"
            click.echo(f"{'':32}{verdict}")
    if errors:
        raise InputError("; ".join(errors))


def _state(place: Place, used: bool) -> tuple[str, bool]:
    """What a place's line says, and whether the search has ended there or before."""
    if place.label == "download":
        return ("if needed" if used else "would be used"), True
    if place.path:
        return ("found" if used else "used"), True
    if place.named:
        return "MISSING", True  # `compute` refuses a named file that is not there, and looks no further
    return "not there", used
