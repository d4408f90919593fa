"""``fidtool demo``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import click

from fidtool.cli.options import Command, as_flag

_EXAMPLES = (
    ("Make the images and compute their FID", "fidtool demo"),
    ("Put the images into another folder", "fidtool demo --folder demo"),
    ("Check the images of the demo", "fidtool check fidtool-demo/fake --against fidtool-demo/real"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "--folder", default="fidtool-demo", metavar="DIR", show_default=True, help="Folder to write the images to."
)
def demo(folder: str) -> None:
    """Make two small sets of images, compute their FID, and show what to run next."""
    from fidtool.console import Console
    from fidtool.demo import COUNT, SIDE, make_sets
    from fidtool.distributed.launch import discover
    from fidtool.errors import InputError
    from fidtool.settings import Origin, Settings

    if discover().world_size > 1:
        raise InputError(
            "the demo runs in a single process:", "run `fidtool demo` without a launcher", "set RANK=0 WORLD_SIZE=1"
        )
    started = time.monotonic()
    try:
        real, fake = make_sets(Path(folder))
    except OSError as error:
        raise InputError(f"cannot write images to {folder}: {error.strerror or error}", "pass --folder") from None
    click.echo(
        f"Made {COUNT} drawings ({SIDE} x {SIDE} pixels) in {real} and {COUNT} blurred, recoloured ones in {fake}."
    )

    from fidtool.api import evaluated
    from fidtool.pipeline.sets import requested
    from fidtool.report.text import result_lines

    sets = requested((real, ""), (fake, ""))
    console = Console(progress=True, spelling=as_flag)
    evaluation, _ = evaluated(sets, Settings(), console, Origin.here(("fidtool", "demo")), lambda: None)
    definition = evaluation.definition
    assert definition is not None
    for line in result_lines(evaluation):
        click.echo(line)
    click.echo(
        f"Inception computed {definition.dims} features of each image (protocol {definition.protocol_name}). The FID\n"
        "is the distance between the distributions of both sets' features; it is 0 for equal sets.\n"
        f"The demo took {time.monotonic() - started:.0f} s. {COUNT} images per set are too few for a meaningful\n"
        "FID: for small sets it is far too high, and `fidtool compute` prints a warning."
    )
    here = _prefix()
    real_, fake_, saved = (shlex.quote(str(path)) for path in (real, fake, Path(folder) / "real.npz"))
    click.echo(
        "\nNext, try these: the same result as JSON, with warnings and all details;\n"
        "statistics of one set for later use; and the same FID on two processes:\n"
        f"  {here}fidtool compute {real_} {fake_} --json\n"
        f"  {here}fidtool stats {real_} -o {saved}\n"
        f"  {here}torchrun --nproc-per-node=2 -m fidtool compute {real_} {fake_} --no-cache"
    )


def _prefix() -> str:
    """Return the path prefix with which a shell finds this ``fidtool``; empty if it is on PATH."""
    scripts = Path(sys.executable).parent
    found = shutil.which("fidtool")
    if found and Path(found).parent == scripts:
        return ""
    path = str(scripts)
    return (path if path.startswith("..") else os.path.relpath(path) if Path.cwd() in scripts.parents else path) + "/"
