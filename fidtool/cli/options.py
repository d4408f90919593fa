"""Options that commands share, and help that shows them in groups."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fidtool.cache_dir import open_descriptor
from fidtool.config import LONGEST_SECONDS, MAX_PIXELS

Function = TypeVar("Function", bound=Callable[..., Any])

MEASURE = "What to measure"
IMAGES = "Images"
MACHINE = "Machine"
KEEP = "Stop and resume"
RANKS = "Several processes"
OUTPUT = "Output"
GATES = "Gates"
_GROUPS = (MEASURE, IMAGES, MACHINE, KEEP, RANKS, OUTPUT, GATES)


class GroupedOption(click.Option):
    """An option that stands under a heading in ``--help``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose ``--help`` lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section a group; ``--help`` and whatever has no group come last."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in (*_GROUPS, "Help")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Recent versions of click list the arguments too; the text above the options explains them.
            if record is not None and isinstance(parameter, click.Option):
                sections[getattr(parameter, "group", "Help")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def error_line(message: str) -> None:
    """Prints an error on one line of stderr; file names can hold anything, line breaks too."""
    click.echo(f"error: {' '.join(message.split())}", err=True)


def print_whole(lines: Sequence[str]) -> None:
    """Prints ``lines`` on stdout.

    With PYTHONUNBUFFERED, usual in containers, Python's own print does not look whether a full disk took all of it.

    Raises:
        OSError: stdout took a part or nothing.
    """
    # A path may hold bytes that are no text.
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # closed by the shell, or replaced by a program
        click.echo(text, nl=False)
        return
    sys.stdout.flush()
    left = memoryview(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    while left:
        written = binary.write(left)
        if not written:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left = left[written:]
    binary.flush()


def unwritable(file: Path) -> str:
    """Why ``file`` cannot be written, as far as can be told beforehand; empty if it can."""
    if open_descriptor(file) is not None:
        return ""
    try:
        special = file.exists() and not file.is_file()
    except OSError as error:  # a name that is too long
        return error.strerror or str(error)
    if special:  # /dev/stdout, or a shell's >(command): written as it is, in a folder where nothing can be made
        return "" if os.access(file, os.W_OK) else "you may not write to it"
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        return f"{file.parent} must be a folder that you may write to"
    return ""


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """`click.option` under the heading ``group``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


_SETTINGS = (
    option(
        "--protocol",
        group=MEASURE,
        metavar="NAME",
        help="pytorch-fid (default) or tensorflow; see `fidtool protocols`.",
    ),
    option(
        "--extractor",
        group=MEASURE,
        metavar="NAME",
        default="inception",
        show_default=True,
        help="Network: inception, or path/to/file.py:factory for your own. The file's code is run.",
    ),
    option(
        "--dims",
        group=MEASURE,
        type=click.Choice(["64", "192", "768", "2048"]),
        help="Inception's layer. [default: 2048]",
    ),
    option("--weights", group=MEASURE, metavar="FILE", help="Inception weights; default: see `fidtool weights`."),
    # torchrun's parser takes --num, wherever it stands, for its own --numa-binding or --numa_binding and gives up.
    option(
        "--num",
        "--num-images",
        "num",
        group=IMAGES,
        type=click.IntRange(1),
        metavar="N",
        help="Take a reproducible random N from every image set (under torchrun write --num-images).",
    ),
    option(
        "--seed", group=IMAGES, type=int, default=0, show_default=True, help="Which random N, and the order of images."
    ),
    option(
        "--recursive/--no-recursive", group=IMAGES, default=True, help="Look into subfolders.  [default: recursive]"
    ),
    option(
        "--on-error",
        group=IMAGES,
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What to do about a file that cannot be read: end, or leave it out and name it.",
    ),
    option(
        "--max-skip",
        group=IMAGES,
        type=click.FloatRange(0, 1),
        metavar="FRACTION",
        default=0.01,
        show_default=True,
        help="The largest share of a set that --on-error skip may leave out.",
    ),
    option(
        "--max-pixels",
        group=IMAGES,
        type=click.IntRange(1),
        metavar="N",
        default=MAX_PIXELS,
        show_default=True,
        help="An image of more pixels counts as a decompression bomb and is not read.",
    ),
    option(
        "--device", group=MACHINE, metavar="NAME", help="cpu, cuda, cuda:0 or mps.  [default: cuda where there is one]"
    ),
    option(
        "--batch-size",
        group=MACHINE,
        type=click.IntRange(1),
        metavar="N",
        help="Images in a forward pass.  [default: 16 on the CPU, 64 on a GPU]",
    ),
    option(
        "--num-workers",
        group=MACHINE,
        type=click.IntRange(0),
        metavar="N",
        help="Decoding processes a rank; 0: none.  [default: 0 on the CPU, else its cores, at most 8]",
    ),
    option(
        "--precision", group=MACHINE, type=click.Choice(["fp32"]), default="fp32", show_default=True, help="Arithmetic."
    ),
    option("--no-cache", group=MACHINE, is_flag=True, help="Neither use nor fill the cache of statistics."),
    option(
        "--checkpoint",
        group=KEEP,
        metavar="DIR",
        help="Keep finished work in DIR: after a kill the same command, with any number of ranks, goes on from there.",
    ),
    option(
        "--checkpoint-every",
        group=KEEP,
        type=click.FloatRange(0, LONGEST_SECONDS),
        metavar="SECONDS",
        default=15.0,
        show_default=True,
        help="How often; so much work a kill can lose.",
    ),
    option(
        "--peer-timeout",
        group=RANKS,
        type=click.FloatRange(3, LONGEST_SECONDS),
        metavar="SECONDS",
        default=20.0,
        show_default=True,
        help="A rank that gives no sign of life for so long is lost, and the run ends.",
    ),
    option(
        "--timeout",
        group=RANKS,
        type=click.FloatRange(1, LONGEST_SECONDS),
        metavar="SECONDS",
        default=1800.0,
        show_default=True,
        help="How long ranks that live wait for the slowest one, or for their decoding processes; for all to start: "
        "the same, at most 120.",
    ),
    option("--quiet", group=OUTPUT, is_flag=True, help="No progress and no timings on stderr; warnings stay."),
)


def measuring(function: Function) -> Function:
    """Gives a command the options that every measurement has."""
    for decorate in reversed(_SETTINGS):
        function = decorate(function)
    return function
