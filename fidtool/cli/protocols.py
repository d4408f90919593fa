"""``fidtool protocols``."""

from __future__ import annotations

import click


@click.command(short_help="What each protocol does, and whose number it gives.")
def protocols() -> None:
    """The protocols: what each does to the pixels, and whose number it gives."""
    from fidtool.features.protocol import DEFAULT_PROTOCOL, PROTOCOLS

    for protocol in PROTOCOLS.values():
        default = " (default)" if protocol.name == DEFAULT_PROTOCOL else ""
        click.echo(f"{protocol.name}{default}")
        click.echo(f"    resize      {protocol.resize} to 299 x 299")
        click.echo(f"    pixels      (x - {protocol.offset:g}) / {protocol.scale:g}")
        click.echo(f"    covariance  divided by n - {protocol.ddof}")
        click.echo(f"    equals      {protocol.equals}")
