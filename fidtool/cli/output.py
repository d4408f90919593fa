"""What commands print and write: stdout, stderr, --output, --report, --plot; and how they import torch."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, StoppedError, option
from fidtool.redaction import redacted

if TYPE_CHECKING:
    from fidtool.record import Origin
    from fidtool.settings import Settings


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For a ``with`` block of imports: without the garbage collector, which finds nothing among modules.

    It looked through them again and again, for an eighth of the time that importing torch takes; it leaves them alone
    afterwards, too.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()


def error_line(message: str) -> None:
    """Prints an error on one line of stderr; file names can hold anything, line breaks too, and addresses secrets."""
    click.echo(f"error: {redacted(' '.join(message.split()))}", err=True)


def print_failure(error: FidtoolError, aloud: bool) -> None:
    """Prints an error that ends a run, if ``aloud``; see `fidtool.console.Console`."""
    if aloud:
        error_line(str(error))


def print_lines(lines: Sequence[str], what: str, exact: bool = False) -> None:
    """Prints ``lines`` on stdout, see `print_whole`.

    Raises:
        RunError: stdout took a part or nothing; it says of ``what``.
    """
    try:
        print_whole(lines, exact)
    except OSError as error:
        raise RunError(f"{what} could not be written to stdout ({error.strerror or error})") from None


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


def _result_file(name: str, sets: Sequence[str]) -> Path:
    """The file that ``--output`` names, which is none of the files of the sets; an earlier result may lie there."""
    file, place = local_file("--output", name), os.path.realpath(name)
    if any(place == each or place.startswith(os.path.join(each, "")) for each in map(os.path.realpath, sets)):
        with contextlib.suppress(OSError), file.open("rb") as handle:
            if handle.read(1) not in (b"", b"{"):
                raise InputError(f"--output {file} is a file of the images:", "give it another name")
    return file


def command_of(typed: Sequence[str]) -> list[str]:
    """What repeats this run. Of the launchers torchrun alone tells how it was called, and is part of it.

    Args:
        typed: the arguments of ``fidtool``.
    """
    from fidtool.distributed.launch import Launch, by_torchrun, discover

    try:
        launch = discover()
    except LaunchError:
        launch = Launch()
    if launch.world_size == 1 or not by_torchrun():
        return ["fidtool", *typed]
    nodes = launch.world_size // launch.local_world_size
    several = [f"--nnodes={nodes}"] if nodes > 1 else []
    return ["torchrun", *several, f"--nproc-per-node={launch.local_world_size}", "-m", "fidtool", *typed]


def _write(file: Path, data: bytes) -> None:
    from fidtool.cache_dir import atomic_write

    with atomic_write(file) as handle:
        handle.write(data)


def _close_stdout() -> None:
    """Lets the interpreter end without another complaint about what it cannot flush."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


class Outlet:
    """Puts the result where the user wants it.

    Args:
        origin: who asked for it, where and when.
        as_json: JSON on stdout.
        output: file of ``--output``; None where it was not given.
        sets: the sets of the run, as given.

    Raises:
        InputError: ``output`` is an address, or a file of the sets.
    """

    def __init__(self, origin: Origin, as_json: bool, output: str | None, sets: Sequence[str]) -> None:
        self._origin, self._as_json = origin, as_json
        self._settings: Settings | None = None
        self._output = None if output is None else _result_file(output, sets)
        self._shown: dict[str, Path] = {}  # by setting
        self._published = False

    def use(self, settings: Settings) -> None:
        """Takes the run's settings, once they are known: two of its files are among them, and all go on record."""
        self._settings = settings
        named = {"report": settings.report, "plot": settings.plot}
        self._shown = {each: local_file(option(each), str(name)) for each, name in named.items() if name is not None}

    def check(self) -> None:
        """Refuses files that cannot be written before hours are spent. On rank zero."""
        from fidtool.cache_dir import check_target
        from fidtool.report.files import check_shown

        files = {option(setting): file for setting, file in self._shown.items()}
        if self._output is not None:
            check_target(f"--output {self._output}", self._output)
            files = {"--output": self._output, **files}
        for setting, file in self._shown.items():
            check_shown(setting, file)
        if len({os.path.realpath(file) for file in files.values()}) < len(files):
            raise InputError(f"{' and '.join(files)} name the same file")

    def publish(
        self,
        result: dict[str, Any],
        lines: list[str],
        writers: Mapping[str, Callable[[Path], None]] | None = None,
        on_stdout: bool = True,
    ) -> None:
        """Prints the result and writes the files: none waits for another's success.

        Args:
            result: the JSON's content.
            lines: the same for people.
            writers: what writes a page or a plot, by setting; None where there is nothing to show.
            on_stdout: print it, too.

        Raises:
            RunError: stdout or a file could not be written.
        """
        from fidtool.report.text import dumps

        self._published = True
        json_text = dumps(result)
        problems = []
        try:
            if on_stdout:
                print_whole([json_text] if self._as_json else lines)
        except OSError as error:
            problems.append(f"stdout ({error.strerror or error})")
            _close_stdout()
        files = [(file, writers[setting]) for setting, file in self._shown.items()] if writers else []
        if self._output is not None:
            files.insert(0, (self._output, lambda file: _write(file, json_text.encode() + b"\n")))
        for file, write in files:
            try:
                write(file)
            except OSError as error:
                problems.append(f"{file} ({error.strerror or error})")
        if problems:
            raise RunError(f"the result could not be written to {' and to '.join(problems)}")

    def failed(self, error: FidtoolError, aloud: bool) -> None:
        """The JSON of a run that failed, in the place of an earlier run's (rank zero); its line if ``aloud``."""
        from fidtool.distributed.launch import will_be_restarted
        from fidtool.report.text import failure_to_dict

        # A result that reached one of its two places is not taken back, and stdout takes one document: the last one's.
        # Whether torchrun restarts the ranks after a signal depends on who was sent it.
        again = will_be_restarted()
        if not self._published and _is_rank_zero() and (isinstance(error, StoppedError) or not again):
            with contextlib.suppress(RunError):
                self.publish(failure_to_dict(error, self._origin, self._settings), [], on_stdout=not again)
        print_failure(error, aloud)


def _is_rank_zero() -> bool:
    from fidtool.distributed.launch import discover

    try:
        return discover().rank == 0
    except FidtoolError:
        return True  # the launcher's variables are what is wrong
