"""Where fidtool keeps what it makes, and how files are put there. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fidtool.errors import InputError


def cache_dir() -> Path:
    """``FIDTOOL_CACHE``, else ``$XDG_CACHE_HOME/fidtool``, else ``~/.cache/fidtool``. It may not exist yet."""
    if chosen := os.environ.get("FIDTOOL_CACHE"):
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fidtool"


def compiled_dir() -> Path:
    """Where torch.compile keeps what it made for ``--compile``. It may not exist yet."""
    return cache_dir() / "compiled"


def open_descriptor(path: Path) -> int | None:
    """The number of this process's open file that ``path`` names, as /dev/stdout and /dev/fd/3 do; None for others."""
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(path))
    return int(numbered[1]) if numbered else {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


def unwritable(file: Path) -> str:
    """Why ``file`` cannot be written, as far as can be told beforehand; empty if it can."""
    if open_descriptor(file) is not None:
        return ""
    try:
        if file.is_dir():
            return "it is a folder; name a file"
        special = file.exists() and not file.is_file()
    except OSError as error:  # a name that is too long
        return error.strerror or str(error)
    if special:  # /dev/stdout, or a shell's >(command): written as it is, in a folder where nothing can be made
        return "" if os.access(file, os.W_OK) else "you may not write to it"
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        return f"{file.parent} must be a folder that you may write to"
    return ""


def check_target(named: str, file: Path) -> None:
    """Refuses a file that could not be written, before hours are spent.

    Args:
        named: how the user named it, such as ``-o FILE``.
        file: the file.

    Raises:
        InputError: it cannot be written.
    """
    if problem := unwritable(file):
        raise InputError(f"{named} cannot be written: {problem}")


@contextlib.contextmanager
def one_at_a_time(name: str, seconds: float) -> Iterator[None]:
    """Keeps this machine's processes from making the same file of the cache side by side.

    A process that has waited ``seconds``, or cannot lock here, goes on all the same: no more than work done twice.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            cache_dir().mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(open(cache_dir() / f".{name}.lock", "w"))
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
        yield


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside ``path`` and renames it into place when the block ends without an error.

    A reader sees the old file or the whole new one, never a part. Symbolic links are followed, and what is no regular
    file (a pipe, /dev/stdout) is written to as it is.

    Raises:
        OSError: the folder or the file cannot be written; nothing is left behind.
    """
    descriptor = open_descriptor(path)
    if descriptor is not None:  # opened by its name, a file would be written from its beginning on
        with os.fdopen(os.dup(descriptor), "wb") as opened:
            yield opened
        return
    if path.exists() and not path.is_file():  # asked before links are resolved: a pipe behind /dev/stdout has no name
        with open(path, "wb") as special:
            yield special
        return
    path = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        # mkstemp makes files that only the owner can read; a result is as readable as any other new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
