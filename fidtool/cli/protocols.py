"""``fidtool protocols``."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

import click

from fidtool.cli.options import OnceCommand

_DIFFERENCES = (
    "EDM and EDM2: the FID is `tensorflow`, with the covariance divided by n - 1. EDM2's FD-DINOv2 resizes with "
    "torch's antialiased bicubic filter in float by default, and with Pillow, as dinov2 here, for resize_mode='pil'.",
    "ADM's evaluator (guided-diffusion): its FID is `tensorflow`. Its other metrics differ from other tools: sFID uses "
    "the first 7 channels of mixed_6/conv (torchvision's Mixed_6d.branch1x1); the Inception Score omits the "
    "classifier's bias and averages over consecutive chunks of 5,000 images; precision and recall use k = 3, count "
    "ties as inside (<=), and compare distances that were squared in float16 if they are finite in it.",
    "A network with its own transform (torchvision, timm, dinov2, clip) takes no protocol; its covariance is divided "
    "by n - 1.",
)


_WIDTHS = (13, 30, 30, 31)
_GAP = "  "
_LINE = sum(_WIDTHS) + len(_GAP) * (len(_WIDTHS) - 1)


_EXAMPLES = (
    ("List the protocols", "fidtool protocols"),
    ("Compute the FID of clean-fid", "fidtool compute real/ fake/ --protocol clean"),
    ("Write statistics that it can be computed with", "fidtool stats real/ -o real-clean.npz --protocol clean"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
def protocols() -> None:
    """List the protocols: how each prepares images, which tools it equals, and which papers use it."""
    from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_INPUT_SIZE, PROTOCOLS

    _row(("protocol", "what it does", "equals", "used by"))
    for protocol in PROTOCOLS.values():
        click.echo(_GAP.join("-" * width for width in _WIDTHS))
        also = [*(["(default)"] if protocol.name == DEFAULT_PROTOCOL else []), *protocol.other_names]
        resize = f"{protocol.resize} to {INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}"
        pixels = f"(x - {protocol.offset:g}) / {protocol.scale:g}"
        covariance = f"covariance divided by n - {protocol.ddof}" if protocol.ddof else "covariance divided by n"
        name, arithmetic = "\n".join([protocol.name, *also]), f"{resize}\n{pixels}\n{covariance}"
        _row((name, arithmetic, protocol.equals, protocol.used_by))
    click.echo()
    for text in _DIFFERENCES:
        click.echo(textwrap.fill(text, _LINE, subsequent_indent="  "))


def _row(cells: Sequence[str]) -> None:
    """Print a row, with each cell wrapped to the width of its column."""
    columns = [
        [part for line in cell.splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False)]
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    for parts in itertools.zip_longest(*columns, fillvalue=""):
        click.echo(_GAP.join(f"{part:{width}}" for part, width in zip(parts, _WIDTHS, strict=True)).rstrip())
