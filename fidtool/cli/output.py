"""What all commands share: stdout and stderr, names of flags, files, and a first look at paths."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from fidtool.distributed.launch import discover
from fidtool.errors import (
    FidtoolError,
    InputError,
    MetricSetting,
    RunError,
    format_argument,
    format_reason,
    render,
)
from fidtool.names import escape_text
from fidtool.system.cache_dir import (
    atomic_write,
    check_target,
    moved_descriptors,
    open_descriptor,
)
from fidtool.system.json_fields import to_json_value
from fidtool.system.local_files import READ_SECONDS, read_with_timeout

if TYPE_CHECKING:
    from fidtool.system.console import Console


def render_message(text: str) -> str:
    """Return a message as the command line prints it: with flags, and without secrets in URLs."""
    return render(text, format_flag)


def format_flag(setting: str | MetricSetting, value: object = None) -> str:
    """Format a setting as a flag: ``--on-error skip``. See `fidtool.errors.option`."""
    from fidtool.metrics.registry import setting_key  # deferred: only messages need it
    from fidtool.settings.settings import ALL_SETTINGS

    name = setting if isinstance(setting, str) else setting_key(setting.metric, setting.name)
    if name in ("real", "fake"):
        return name.upper()
    field = ALL_SETTINGS.get(name)
    if field is None or not field.group:
        return format_argument(setting, value)
    flag = field.flag.split()[0]
    if value is None or value is True:
        return flag
    if value is False:
        return f"--no-{flag[2:]}"
    if value is ...:
        value = field.metavar
    elif isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"{flag} {value}"


class _LossyStream(TextIOWrapper):
    """A stream that loses what cannot be written, such as a log on a full disk."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def keep_running_without_stderr() -> None:
    """Replace stderr, so that no result is lost because its disk is full, nobody reads it any more,
    or it is closed.
    """
    stderr = sys.stderr
    if stderr is None:
        # A file that is opened later must not get its number, and then what libraries print.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    else:
        file = open(stderr.fileno(), "wb", closefd=False)  # noqa: SIM115
        sys.stderr = _LossyStream(file, stderr.encoding, stderr.errors, line_buffering=True)


# The stream of the result within `redirect_prints`.
_stdout: list[Any] = []


@contextlib.contextmanager
def redirect_prints() -> Iterator[None]:
    """Within the block, what other code writes to stdout goes to stderr, because stdout has the
    result only.

    Also what child processes and libraries in C write, such as NCCL's log.
    """
    with contextlib.ExitStack() as block:
        stdout = sys.stdout
        if _is_descriptor(stdout, 1) and _is_descriptor(sys.stderr, 2):
            stdout = block.enter_context(_redirect_stdout(stdout))
        _stdout.append(stdout)
        block.callback(_stdout.pop)
        block.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _is_descriptor(stream: Any, number: int) -> bool:
    """Return whether an open stream writes to the file descriptor."""
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):  # replaced by a program, or closed
        return False


@contextlib.contextmanager
def _redirect_stdout(stdout: TextIO) -> Iterator[TextIO]:
    """Context manager that points descriptor 1 at stderr, and returns an unbuffered stream of
    stdout's file.
    """
    stdout.flush()
    number = os.dup(1)
    os.dup2(2, 1)
    moved_descriptors[1] = number
    try:
        with open(number, "wb", buffering=0, closefd=False) as raw:
            yield TextIOWrapper(raw, stdout.encoding, stdout.errors, write_through=True)
    finally:
        del moved_descriptors[1]
        os.dup2(number, 1)
        os.close(number)


def _result_stream() -> Any:
    return _stdout[0] if _stdout else sys.stdout


def check_paths_early(
    paths: Sequence[str], *roles: str, check: Callable[[], None] = lambda: None
) -> None:
    """Report a typo before the slow import of torch. With several ranks, the run alone reports it.

    ``roles`` are REAL and the held-out set, if there are any.
    """
    if discover().world_size == 1:
        from fidtool.run.opening import check_paths

        check()
        read_with_timeout(" and ".join(paths), lambda: check_paths(paths, *roles), READ_SECONDS)


def make_console(quiet: bool) -> Console:
    """Return the console of a command that measures."""
    from fidtool.system.console import Console  # lazily, because it imports tqdm

    return Console(warnings=True, progress=not quiet, spelling=format_flag)


def note(line: str) -> None:
    """Print a line on stderr, with flags and as legible text."""
    click.echo(escape_text(render_message(line)), err=True)


def print_error(error: FidtoolError) -> None:
    """Print an error on one line of stderr. File names can contain line breaks."""
    click.echo(f"error: {' '.join(render_message(error.text).split())}", err=True)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, see `print_whole`, whose failure becomes a `RunError`."""
    try:
        print_whole(lines)
    except BrokenPipeError:
        raise  # the reader has enough: click exits in silence
    except OSError as error:
        reason = format_reason(error)
        raise RunError(f"the result could not be written to stdout ({reason})") from None


def to_json_text(**entries: object) -> str:
    """Return the JSON of a command, whose dataclasses are their fields."""
    return json.dumps(to_json_value({"schema": 1, **entries}), indent=2)


def paragraph(text: str, first: str, other: str) -> str:
    """Return a text with line breaks, its first line indented by ``first`` and the others by
    ``other``.
    """
    return textwrap.fill(
        text, 80, initial_indent=first, subsequent_indent=other, break_on_hyphens=False
    )


def format_labelled(label: str, text: str, width: int) -> str:
    """Return a text behind a label of this width, as lines that begin in the same column."""
    return paragraph(text, f"  {label:{width}}", " " * (width + 2))


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of equal length as lines with aligned columns, without spaces at their ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def print_whole(lines: Sequence[str]) -> None:
    """Print lines on stdout, names that are not valid text as their bytes; `OSError` if it cannot
    be written.
    """
    stdout = _result_stream()
    if stdout is None or stdout.closed:
        raise OSError(errno.EBADF, "it is closed")
    text = "".join(f"{line}\n" for line in lines)
    if not hasattr(stdout, "buffer"):  # a program has replaced it
        stdout.write(text)
        return
    stdout.flush()
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:  # the user's locale lacks a character
        data = text.encode(sys.getfilesystemencoding(), "replace")
    left = memoryview(data)
    while left:  # an unbuffered stream may take a part
        left = left[stdout.buffer.write(left) :]
    stdout.buffer.flush()


def parse_local_file(flag: str, name: str, suffixes: Sequence[str] = (), *remedies: str) -> Path:
    """Return the path that a flag names, which must not be a URL or a folder.

    If there are ``suffixes``, it must end in one; ``remedies`` are further ones than another name.
    """
    if not name or "://" in name or name.endswith("/"):
        raise InputError(f"{flag} must be a file on this machine, not {name or 'an empty name'}")
    file = Path(name)
    if suffixes and file.suffix.lower() not in suffixes:
        stem = str(file.with_suffix("")).removesuffix(suffixes[0])
        raise InputError(
            f"{flag} {file}: the name must end in {', '.join(suffixes)}:",
            f"choose {stem}{suffixes[0]}",
            *remedies,
        )
    return file


def parse_output_file(
    flag: str, name: str, suffixes: Sequence[str], inputs: Sequence[str] = ()
) -> Path:
    """Return the path that a flag names, see `parse_local_file`, of a file that can be written and
    is none of ``inputs``.
    """
    file = parse_local_file(flag, name, suffixes)
    check_target(f"{flag} {file}", file, inputs)
    return file


# Formats of results by the suffixes of their files, and how these files begin.
_FORMS = {
    ".json": ("json", (b"{",)),
    ".csv": ("csv", (b"real,fake,", b"set,class,metric,")),
    ".md": ("markdown", (b"<!-- fidtool",)),
    ".tex": ("latex", (b"% fidtool",)),
}


def parse_result_file(name: str) -> tuple[Path, str]:
    """Return the path of ``--output`` and its format, which is JSON if the name has no suffix.

    An existing file is only overwritten if it is empty or a result in this format, never an image
    or a paper.
    """
    suffix = Path(name).suffix.lower()
    if suffix[1:2].isalpha():
        remedy = "write pages with --report, plots with --plot and statistics with `fidtool stats`"
        file = parse_local_file("--output", name, [*_FORMS], remedy)
    else:  # what follows the dot of a name such as cfg1.5 is no suffix
        file = parse_local_file("--output", name)
        suffix = ".json"
    form, starts = _FORMS[suffix]
    if open_descriptor(file) is None and os.path.isfile(file):
        with file.open("rb") as handle:
            begin = handle.read(max(map(len, starts)))
            if begin and not begin.startswith(starts):
                what = "JSON" if form == "json" else "a table written by fidtool"
                raise InputError(
                    f"--output {file} exists and is not {what}:",
                    "choose another name",
                    "delete the file",
                )
    return file, form


def is_terminal() -> bool:
    stdout = _result_stream()
    return stdout is not None and not stdout.closed and bool(stdout.isatty())


def publish(printed: Sequence[str], files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Print the lines of a result, and write its files, each with its function. What fails does not
    stop the others.
    """
    problems = []

    def attempt(write: Callable[[Any], object], content: Any, place: object) -> None:
        try:
            write(content)
        except OSError as error:
            problems.append(f"{place} ({format_reason(error)})")

    attempt(print_whole, printed, "stdout")
    for file, write in files.items():
        attempt(write, file, file)
    if problems:
        raise RunError(f"the result could not be written to {' and to '.join(problems)}")


def write_lines(lines: Sequence[str], file: Path) -> None:
    with atomic_write(file) as handle:
        handle.write("".join(f"{line}\n" for line in lines).encode())
