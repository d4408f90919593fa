"""``fidtool protocols``."""

from __future__ import annotations

import textwrap

import click

_DIFFERENCES = (
    "EDM and EDM2: no difference in FID; it is `tensorflow`, covariance divided by n - 1. EDM2's FD-DINOv2 resizes by "
    "torch's antialiased bicubic in float by default, and by Pillow, as dinov2 here, with resize_mode='pil'.",
    "ADM's evaluator (guided-diffusion): its FID is `tensorflow`. Its other numbers go their own way: sFID takes the "
    "first 7 channels of mixed_6/conv (torchvision's Mixed_6d.branch1x1); the Inception Score leaves out the "
    "classifier's bias and averages over consecutive chunks of 5,000 images; precision and recall use k = 3, count "
    "ties as inside (<=), and compare distances that were squared in float16 where they are finite in it.",
    "A network that brings its own transform (torchvision, timm, dinov2, clip) takes no protocol; its covariance is "
    "divided by n - 1.",
)


@click.command(short_help="What each protocol does, whose number it gives, and who uses it.")
def protocols() -> None:
    """The protocols: what each does to the pixels, whose number it gives, and which papers use it."""
    from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_INPUT_SIZE, PROTOCOLS

    for protocol in PROTOCOLS.values():
        click.echo(protocol.name + (" (default)" if protocol.name == DEFAULT_PROTOCOL else ""))
        rows = {
            "other names": ", ".join(protocol.other_names) or "-",
            "resize": f"{protocol.resize} to {INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}",
            "pixels": f"(x - {protocol.offset:g}) / {protocol.scale:g}",
            "covariance": f"divided by n - {protocol.ddof}" if protocol.ddof else "divided by n",
            "equals": protocol.equals,
            "used by": protocol.used_by,
        }
        for name, text in rows.items():
            click.echo(textwrap.fill(text, 110, initial_indent=f"    {name:13}", subsequent_indent=" " * 17))
    click.echo()
    for text in _DIFFERENCES:
        click.echo(textwrap.fill(text, 110, subsequent_indent="  "))
