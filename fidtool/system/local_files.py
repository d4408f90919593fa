"""Reading of files on this machine, without waiting forever for a pipe's writer or for storage that
is gone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

from fidtool.errors import InputError, RunError, option
from fidtool.system.background import call_with_timeout
from fidtool.system.cache_dir import open_descriptor

T = TypeVar("T")
StrPath = str | os.PathLike[str]

READ_SECONDS = 1800.0
"""Time in which a file must be read, the default of ``timeout``: a command before a pipe may need
long.
"""
# The files that `read_file` reads at the moment, for messages.
_reading: dict[str, None] = {}
UNUSED_SECONDS = 20.0
"""How long a named pipe may wait for the program that writes to it."""
# Largest content of a pipe.
_MAX_BYTES = 1 << 30
# Without this flag, opening a pipe would wait for a process at its other end.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
# Bytes of a file that are hashed at a time.
_HASHED_BYTES = 1 << 20


def sha256_of(handle: IO[bytes]) -> str:
    """Return the SHA-256 of what is left of a file."""
    digest = hashlib.sha256()
    while block := handle.read(_HASHED_BYTES):
        digest.update(block)
    return digest.hexdigest()


def check_file(path: str, origin: str, kind: str = "file") -> None:
    """Refuse a path, which ``origin`` names, at which there is no file."""
    if not os.path.isfile(path):
        raise InputError(f"no {kind} {path} (from {origin})")


def open_regular(path: StrPath) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: also if it is a pipe, a device, or a folder, or its name cannot be that of a file.
    """
    handle = _open_nonblocking(path)
    mode = os.fstat(handle.fileno()).st_mode
    if not stat.S_ISREG(mode):
        handle.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return handle


def read_file(path: StrPath, seconds: float = READ_SECONDS) -> bytes:
    """Return the content of a file, or of a pipe such as a shell's ``<(command)``, for which it
    waits this long.

    Raises:
        OSError: if it cannot be read, or not in time.
    """
    name = os.fspath(path)
    _reading[name] = None
    try:
        return call_with_timeout(partial(_read, path, seconds), seconds)
    except TimeoutError:
        raise OSError(errno.EIO, f"the storage did not respond within {seconds:g} s") from None
    finally:
        _reading.pop(name, None)


def read_with_timeout(what: str, work: Callable[[], T], seconds: float) -> T:
    """Return what ``work`` returns, which reads ``what``. It continues in the background if it
    takes too long.

    Raises:
        RunError: if it takes longer than these seconds.
    """
    try:
        return call_with_timeout(work, seconds)
    except TimeoutError:
        what = " and ".join(_reading) or what
        raise RunError(
            f"{what} could not be read within {seconds:g} s ({option('timeout')}): no response "
            "from the storage, or from a pipe's writer"
        ) from None


def _read(path: StrPath, seconds: float) -> bytes:
    number = open_descriptor(Path(path))
    named = number is None
    with _open_nonblocking(path) if number is None else open(os.dup(number), "rb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
        if stat.S_ISREG(mode):
            return handle.read()
        if named and not stat.S_ISFIFO(mode) and os.fspath(path) != os.devnull:
            raise OSError(errno.EINVAL, "it is not a regular file")
        return _drain_pipe(handle.fileno(), min(seconds, UNUSED_SECONDS) if named else seconds)


def _drain_pipe(descriptor: int, seconds: float) -> bytes:
    """Return what is written to a pipe. ``seconds`` is how long the first bytes may take."""
    content = bytearray()
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while ready.poll(None if content else 1000 * seconds):
        data = os.read(descriptor, 1 << 20)
        if not data:
            return bytes(content)
        content += data
        if len(content) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES} bytes")
    raise OSError(errno.EIO, f"it is a pipe to which nothing was written for {seconds:g} s")


def _open_nonblocking(path: StrPath) -> BinaryIO:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT))
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no file can have this name ({error})") from None
