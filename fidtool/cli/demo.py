"""``fidtool demo``, and its two small sets of synthetic images."""

from __future__ import annotations

import colorsys
import os
import random
import shlex
import shutil
import sys
import time
from pathlib import Path

import click
from PIL import Image, ImageDraw, ImageFilter

from fidtool.cli.options import Command
from fidtool.cli.output import format_flag
from fidtool.distributed.launch import discover
from fidtool.errors import InputError, format_reason
from fidtool.settings.record import make_origin
from fidtool.settings.settings import Settings

COUNT = 64
SIDE = 96

_EXAMPLES = (
    ("Make the images and compute their FID", "fidtool demo"),
    ("Put the images into another folder", "fidtool demo --folder demo"),
    ("Check the images of the demo", "fidtool check fidtool-demo/fake --against fidtool-demo/real"),
)


@click.command(cls=Command, examples=_EXAMPLES)
@click.option(
    "--folder",
    default="fidtool-demo",
    metavar="DIR",
    show_default=True,
    help="Folder to write the images to.",
)
def demo(folder: str) -> None:
    """Make two small sets of images, compute their FID, and show what to run next."""
    if discover().world_size > 1:
        raise InputError(
            "the demo runs in a single process:",
            "run `fidtool demo` without a launcher",
            "set RANK=0 WORLD_SIZE=1",
        )
    started = time.monotonic()
    try:
        real, fake = make_sets(Path(folder))
    except OSError as error:
        raise InputError(
            f"cannot write images to {folder}: {format_reason(error)}", "pass --folder"
        ) from None
    imitations = f"{COUNT} blurred, recoloured ones in {fake}"
    click.echo(f"Made {COUNT} drawings ({SIDE} x {SIDE} pixels) in {real} and {imitations}.")

    from fidtool.report.text import result_lines
    from fidtool.run.evaluate import evaluate
    from fidtool.system.console import Console

    evaluation, _ = evaluate(
        [(real, ""), (fake, "")],
        Settings(),
        Console(progress=True, spelling=format_flag),
        make_origin(("fidtool", "demo")),
        check=lambda _: None,
    )
    definition = evaluation.definition
    assert definition is not None
    for line in result_lines(evaluation):
        click.echo(line)
    click.echo(
        f"Inception computed {definition.dims} features of each image (protocol "
        f"{definition.protocol_name}). The FID\nis the distance between the distributions of both "
        f"sets' features; it is 0 for equal sets.\nThe demo took {time.monotonic() - started:.0f} "
        f"s. {COUNT} images per set are too few for a meaningful\nFID: for small sets it is far "
        "too high, and `fidtool compute` prints a warning."
    )
    here = _command_prefix()
    sets = f"{shlex.quote(str(real))} {shlex.quote(str(fake))}"
    file = shlex.quote(str(Path(folder) / "real.npz"))
    click.echo(
        "\nNext, try these: the same result as JSON, with warnings and all details;\n"
        "statistics of one set for later use; and the same FID on two processes:\n"
        f"  {here}fidtool compute {sets} --json\n"
        f"  {here}fidtool stats {shlex.quote(str(real))} -o {file}\n"
        f"  {here}torchrun --nproc-per-node=2 -m fidtool compute {sets} --no-cache"
    )


def _command_prefix() -> str:
    """Return the path prefix with which a shell finds this ``fidtool``; empty if it is on PATH."""
    scripts = Path(sys.executable).parent
    if Path(shutil.which("fidtool") or "").parent == scripts:
        return ""
    return f"{os.path.relpath(scripts) if Path.cwd() in scripts.parents else scripts}/"


def make_sets(folder: Path) -> tuple[Path, Path]:
    """Write `COUNT` drawings of simple shapes to ``folder/real`` and `COUNT` imitations to
    ``folder/fake``.

    The imitations are different drawings from the same distribution, blurred and with swapped
    colour channels, like the output of a partly trained generator. The images are the same for
    every call.
    """
    marker = folder / ".fidtool-demo"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise InputError(
            f"{folder} was not created by the demo, which would overwrite its files:",
            "pass another --folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()
    real = folder / "real"
    fake = folder / "fake"
    real.mkdir(exist_ok=True)
    fake.mkdir(exist_ok=True)
    for number in range(COUNT):
        name = f"{number:03}.png"
        _draw_image(random.Random(number)).save(real / name)
        red, green, blue = _draw_image(random.Random(COUNT + number)).split()
        swapped = Image.merge("RGB", (green, red, blue))
        swapped.filter(ImageFilter.GaussianBlur(1.5)).save(fake / name)
    return real, fake


def _draw_image(rng: random.Random) -> Image.Image:
    """A few overlapping shapes in related colours on a plain background."""
    hue = rng.random()

    def colour(value: float) -> tuple[int, int, int]:
        shade = (hue + rng.uniform(-0.15, 0.15)) % 1.0
        red, green, blue = colorsys.hsv_to_rgb(shade, rng.uniform(0.3, 0.9), value)
        return round(255 * red), round(255 * green), round(255 * blue)

    image = Image.new("RGB", (SIDE, SIDE), colour(rng.uniform(0.2, 0.9)))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(3, 9)):
        x, y, size = rng.randrange(SIDE), rng.randrange(SIDE), rng.randint(8, 40)
        box = (x - size // 2, y - size // 2, x + size // 2, y + size // 2)
        draw = rng.choice((pen.ellipse, pen.rectangle))
        draw(box, fill=colour(rng.uniform(0.3, 1.0)), outline=colour(0.1))
    return image
