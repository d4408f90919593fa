"""``fidtool demo``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import click

from fidtool.cli.options import StrictCommand
from fidtool.cli.output import loading


@click.command(cls=StrictCommand)
@click.option("--folder", default="fidtool-demo", show_default=True, help="Where the pictures go.")
def demo(folder: str) -> None:
    """Make two small sets of pictures, compute their FID, and say what to type next."""
    from fidtool.console import Console
    from fidtool.demo import COUNT, SIDE, make_sets
    from fidtool.distributed.launch import discover
    from fidtool.errors import InputError
    from fidtool.settings import Settings

    if discover().world_size > 1:
        raise InputError(
            "the demo is a single process:", "run `fidtool demo` without a launcher", "set RANK=0 WORLD_SIZE=1"
        )
    started = time.monotonic()
    try:
        real, fake = make_sets(Path(folder))
    except OSError as error:
        raise InputError(f"cannot write pictures to {folder}: {error.strerror or error}", "pass --folder") from None
    click.echo(
        f"Made {COUNT} drawings ({SIDE} x {SIDE} pixels) in {real} and {COUNT} blurred, recoloured ones in {fake}."
    )

    with loading():
        from fidtool.pipeline.evaluate import evaluate
        from fidtool.pipeline.inputs import Inputs
        from fidtool.pipeline.run import open_run
        from fidtool.report.text import result_lines

    paths = [str(real), str(fake)]
    with open_run(paths, Settings(), Console(progress=True)) as run:
        evaluation, _ = evaluate(Inputs(run, paths))
    definition = evaluation.definition
    assert definition is not None
    for line in result_lines(evaluation):
        click.echo(line)
    click.echo(
        f"Each picture went through Inception as the protocol {definition.protocol_name} has it, which gave\n"
        f"{definition.dims} numbers a picture; the FID is the distance between the two clouds of numbers, 0 for equal\n"
        f"ones. It took {time.monotonic() - started:.0f} s. {COUNT} pictures are enough for a demonstration only:\n"
        "such small sets give far too high an FID, which `fidtool compute` says too."
    )
    here = _prefix()
    real_, fake_, kept = (shlex.quote(str(path)) for path in (real, fake, Path(folder) / "real.npz"))
    click.echo(
        "\nNext, the same with the warnings and the full record; the statistics of one set, to be used again; and the\n"
        "same number on two processes:\n"
        f"  {here}fidtool compute {real_} {fake_} --json\n"
        f"  {here}fidtool stats {real_} -o {kept}\n"
        f"  {here}torchrun --nproc-per-node=2 -m fidtool compute {real_} {fake_} --no-cache"
    )


def _prefix() -> str:
    """What must stand before ``fidtool`` for the shell to find this installation: nothing where it is on PATH."""
    scripts = Path(sys.executable).parent
    found = shutil.which("fidtool")
    if found and Path(found).parent == scripts:
        return ""
    path = str(scripts)
    return (path if path.startswith("..") else os.path.relpath(path) if Path.cwd() in scripts.parents else path) + "/"
