"""What commands print, and where they may write."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fidtool.errors import InputError
from fidtool.redaction import redacted


def error_line(message: str) -> None:
    """Prints an error on one line of stderr; file names can hold anything, line breaks too, and addresses secrets."""
    click.echo(f"error: {redacted(' '.join(message.split()))}", err=True)


def print_whole(lines: Sequence[str], exact: bool = False) -> None:
    """Prints ``lines`` on stdout.

    A path may hold bytes that are no text: ``exact`` prints these as they are, for programs; else people see a sign in
    their place.

    With PYTHONUNBUFFERED, usual in containers, Python's own print does not look whether a full disk took all of it.

    Raises:
        OSError: stdout took a part or nothing.
    """
    raw = "".join(f"{line}\n" for line in lines)
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # closed by the shell, or replaced by a program
        click.echo(text, nl=False)
        return
    sys.stdout.flush()
    left = memoryview(os.fsencode(raw) if exact else text.encode(sys.stdout.encoding or "utf-8", "replace"))
    while left:
        written = binary.write(left)
        if not written:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left = left[written:]
    binary.flush()


def local_file(flag: str, name: str) -> Path:
    """The file that a flag names.

    Raises:
        InputError: it is an address.
    """
    if "://" in name:
        raise InputError(f"{flag} takes a file on this machine, and {name} is an address")
    return Path(name)
