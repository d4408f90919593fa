"""``fidtool weights``."""

from __future__ import annotations

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import shown
from fidtool.errors import InputError
from fidtool.redaction import redacted

_EXAMPLES = (
    ("List the locations of the weights", "fidtool weights"),
    ("Check the files", "fidtool weights --verify"),
    ("Download before a run on a machine without internet access", "fidtool weights --download"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.option("--download", is_flag=True, help="Download the official file into the cache.")
@click.option("--verify", "verify_", is_flag=True, help="Check the SHA-256 of every file found.")
@click.option("--weights", "explicit", metavar="FILE", help="File to search first, as with `compute --weights`.")
def weights(download: bool, verify_: bool, explicit: str | None) -> None:
    """List the locations that are searched for the Inception weights, in order."""
    from fidtool.features.models import inception_weights

    if download:
        loaded = inception_weights.download(lambda line: click.echo(shown(line), err=True))
        inception_weights.keep(loaded)
        click.echo(f"downloaded and verified; tensors' SHA-256 {loaded.sha256}", err=True)
    errors: list[str] = []
    used = False
    for place in inception_weights.places(explicit):
        found = place.there or place.label == "download"
        state = "found" if place.there else "if needed"
        if not found:
            # `compute` fails if a file that the user named is missing.
            named = place.path and shown(place.label) in ("--weights", "FIDTOOL_WEIGHTS")
            state, found = ("MISSING", True) if named else ("not there", False)
        elif not used:
            state = "used" if place.there else "would be used"
        used = used or found
        click.echo(f"{state:14}{shown(place.label):18}{redacted(str(place.note or place.path))}")
        if verify_ and place.path and place.there:
            try:
                verdict = inception_weights.verify(place.path)
            except InputError as error:
                errors += [error.text] if place.label != "torch hub" else []  # a run does not use such a file
                verdict = "DAMAGED OR UNKNOWN"
            click.echo(f"{'':32}{verdict}")
    if errors:
        raise InputError("; ".join(errors))
