"""``fidtool protocols``."""

from __future__ import annotations

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import paragraph

_DIFFERENCES = (
    "EDM and EDM2 compute the FID as `tensorflow` does. EDM2's FD-DINOv2 resizes with torch's antialiased bicubic "
    "filter in float by default, and with Pillow, as dinov2 here, for resize_mode='pil'.",
    "ADM's evaluator (guided-diffusion) computes the FID as `tensorflow` does. Its other metrics differ from other "
    "tools: sFID uses the first 7 channels of mixed_6/conv (torchvision's Mixed_6d.branch1x1); the Inception Score "
    "omits the classifier's bias and averages over consecutive chunks of 5,000 images; precision and recall use k = 3, "
    "count ties as inside (<=), and compare distances that were squared in float16 if they are finite in it.",
    "A network with its own transform (torchvision, timm, dinov2, clip) takes no protocol; its covariance is divided "
    "by n - 1.",
)


_EXAMPLES = (
    ("List the protocols", "fidtool protocols"),
    ("Compute the FID as clean-fid does", "fidtool compute real/ fake/ --protocol clean"),
    ("Write statistics for this protocol", "fidtool stats real/ -o real-clean.npz --protocol clean"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
def protocols() -> None:
    """List the protocols: how each prepares images, which tools it equals, and which papers use it."""
    from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_INPUT_SIZE, PROTOCOLS

    for protocol in PROTOCOLS.values():
        default = " (default)" if protocol.name == DEFAULT_PROTOCOL else ""
        click.echo(f"{', '.join([protocol.name, *protocol.other_names])}{default}")
        covariance = f"covariance / (n - {protocol.ddof})" if protocol.ddof else "covariance / n"
        size = f"{INCEPTION_INPUT_SIZE} x {INCEPTION_INPUT_SIZE}"
        arithmetic = f"{protocol.resize} to {size}; (x - {protocol.offset:g}) / {protocol.scale:g}; {covariance}"
        for label, text in (("method", arithmetic), ("equals", protocol.equals), ("used by", protocol.used_by)):
            paragraph(text, f"  {label:9}", " " * 11)
    click.echo()
    for text in _DIFFERENCES:
        paragraph(text, "", "  ")
