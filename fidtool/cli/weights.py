"""``fidtool weights``."""

from __future__ import annotations

import click


@click.command()
@click.option("--download", is_flag=True, help="Download the official file into the cache.")
@click.option("--verify", "verify_", is_flag=True, help="Check every file found against its hash.")
@click.option("--weights", "explicit", metavar="FILE", help="A file to look at first, as `compute --weights` would.")
def weights(download: bool, verify_: bool, explicit: str | None) -> None:
    """Where the Inception weights are, in the order in which they are searched."""
    from fidtool.features.weights import fetch, places, verify

    if download:
        loaded = fetch(lambda line: click.echo(line, err=True))
        click.echo(f"downloaded and verified; tensors' SHA-256 {loaded.sha256}", err=True)
    used = False
    for place in places(explicit):
        state = "found" if place.path else "not there"
        if place.path and not used:
            state, used = "used", True
        if place.label == "download":
            state = "if needed" if used else "would be used"
        click.echo(f"{state:14}{place.label:18}{place.path or place.note}")
        if verify_ and place.path:
            click.echo(f"{'':14}{'':18}{verify(place.path)}")
