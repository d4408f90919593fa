"""What commands print, and where they may write."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fidtool.cache_dir import open_descriptor


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
