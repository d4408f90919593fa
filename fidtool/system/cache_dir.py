"""The cache folder, and atomic writing of files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from fidtool.errors import InputError, RunError, format_reason
from fidtool.system.variables import CACHE

UNREAD_SECONDS = 20.0
"""How long a pipe may wait for the program that reads it."""


def cache_dir() -> Path:
    """Return ``FIDTOOL_CACHE``, else ``$XDG_CACHE_HOME/fidtool``, else ``~/.cache/fidtool``. It
    may not exist yet.
    """
    if CACHE.value:
        return Path(CACHE.value)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fidtool"


moved_descriptors: dict[int, int] = {}
"""Where the file of a standard descriptor is, while another has its number."""


def open_descriptor(path: Path) -> int | None:
    """Return the file descriptor that a path such as /dev/stdout or /dev/fd/3 names; None for all
    other paths.
    """
    named = {"/dev/stdout": 1, "/dev/stderr": 2}
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(path))
    if numbered:
        number = int(numbered[1])
    elif str(path) in named:
        number = named[str(path)]
    else:
        return None
    return moved_descriptors.get(number, number)


def check_target(named: str, file: Path, inputs: Iterable[object] = ()) -> None:
    """Check that an output file can be written, before a run that may take hours; ``named`` is it
    as ``-o FILE``.

    Writing may still fail later. What the run reads must not be replaced: those of ``inputs`` that
    are paths.
    """
    if open_descriptor(file) is not None:
        return
    problem = ""
    try:
        if "\0" in str(file):
            problem = "its name contains a null byte"
        elif file.is_dir():
            problem = "it is a folder; name a file"
        elif file.is_file() and any(_is_same(file, path) for path in inputs):
            problem = "it would replace a file that this command reads; name another file"
        elif file.exists() and not file.is_file():
            # A device, or the pipe of a shell's >(command), in any folder.
            if not os.access(file, os.W_OK):
                problem = "you have no permission to write to it"
        elif not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
            problem = f"{file.parent} must be an existing folder with write permission"
    except OSError as error:  # for example, the name is too long
        problem = format_reason(error)
    if problem:
        raise InputError(f"{named} cannot be written: {problem}")


def _is_same(file: Path, path: object) -> bool:
    return isinstance(path, (str, Path)) and os.path.exists(path) and file.samefile(path)


def storage_error(what: str, error: OSError, *remedies: str) -> RunError:
    """Return the error that something does not fit into the cache, or cannot be written there."""
    return RunError(
        f"{what} cannot be stored in {cache_dir()} ({format_reason(error)}):",
        "set FIDTOOL_CACHE to a folder with enough space",
        *remedies,
    )


@contextlib.contextmanager
def lock_file(name: str, seconds: float) -> Iterator[None]:
    """Hold a lock file in the cache, so that only one process of this machine at a time makes a
    certain file.

    If the lock is not free within ``seconds``, or locking does not work here, the block runs
    without it: at worst, work is done twice.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            cache_dir().mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(open(cache_dir() / f".{name}.lock", "w"))
            for _ in _poll(seconds):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
        yield


def _poll(seconds: float) -> Iterator[None]:
    """Yield every 0.05 s for this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)


def _open_special(path: Path) -> IO[bytes]:
    """Open a pipe or a device for writing. An OSError if nobody reads the pipe within some
    seconds.
    """
    for _ in _poll(UNREAD_SECONDS):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
        else:
            os.set_blocking(descriptor, True)
            return open(descriptor, "wb")
    raise OSError(errno.ENXIO, f"it is a pipe that nothing has read for {UNREAD_SECONDS:g} s")


def _rename_new(file: Path, path: Path) -> None:
    """Rename a file to a name that must be new. With hard links, no other process can take it
    meanwhile.
    """
    try:
        os.link(file, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        if path.exists():
            raise FileExistsError(
                errno.EEXIST, os.strerror(errno.EEXIST), str(file), None, str(path)
            ) from None
        os.replace(file, path)
    else:
        os.unlink(file)


@contextlib.contextmanager
def atomic_write(path: Path, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file in the folder of ``path`` and rename it to ``path`` if the block ends
    without an error.

    If it must not ``overwrite``, a file that exists by then raises a `FileExistsError`, also that
    of another process. Readers see either the old file or the complete new one. Symbolic links are
    followed. The block can read what it has written, unless it is a special file (a pipe,
    /dev/stdout), which is written directly.
    """
    descriptor = open_descriptor(path)
    if descriptor is not None or (path.exists() and not path.is_file()):
        if descriptor is None:
            special = _open_special(path)
        else:
            # Opening it by name would overwrite a regular file from its beginning.
            special = os.fdopen(os.dup(descriptor), "wb")
        with special:
            yield special
        return
    path = Path(os.path.realpath(path))  # only now: a pipe behind /dev/stdout has no path
    temporary = path.with_name(f".fidtool-{secrets.token_hex(8)}.tmp")
    try:
        # Not by tempfile, whose files only the owner can read.
        with open(temporary, "x+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            _rename_new(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
