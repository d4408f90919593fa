"""The ``fidtool`` command: its subcommands, its errors and its exit status."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click

from fidtool import __version__
from fidtool.cli.output import error_line
from fidtool.distributed import signals
from fidtool.distributed.failure import add_location, stopped_error
from fidtool.distributed.launch import Launch, discover, launcher_serves_store
from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, StoppedError, spelled_by

_LEAVING_SECONDS = 3.0
_TELLING_SECONDS = 8.0
"""How long a rank that fails before it meets the others tries to tell them: so long they may take to come."""
_STOPPING_SECONDS = 4.5
"""The same for one that was told to stop."""


_COMMANDS = {
    "cache": "What is in the cache; remove some or all of it.",
    "check": "Look for what is wrong with a set of images.",
    "compute": "FID and other distances of each FAKE to REAL.",
    "demo": "Try it: make pictures, compute their FID.",
    "guide": "Read the guide: list its topics, show one.",
    "metrics": "The metrics, what each is, and its settings.",
    "protocols": "What each protocol does, whose number it gives, and who uses it.",
    "stats": "Keep the statistics of images in a file.",
    "weights": "Where the weights are; verify or download them.",
}
"""What the help says of each command, which is in the module of `fidtool.cli` that has its name."""


class _Commands(click.Group):
    """A group that imports a command when it is used: what it lists are names and lines of help."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is None:
            return name, None, rest
        return name, getattr(importlib.import_module(f"fidtool.cli.{listed.name}"), str(listed.name)), rest


@click.group(
    cls=_Commands,
    commands=[click.Command(name, short_help=line) for name, line in _COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(__version__, prog_name="fidtool")
@click.pass_context
def cli(context: click.Context) -> None:
    """Fréchet Inception Distance: how far generated images are from real ones.

    \b
    fidtool compute real/ fake/                   one number
    torchrun --nproc-per-node=8 -m fidtool ...    the same number, on 8 GPUs
    fidtool compute real/ fake/ --fail-above 20   exit status 3 if it is above 20
    """
    if context.invoked_subcommand is None:  # by itself click shows the help, and some of its versions end with 0
        click.echo(context.get_help(), err=True)
        context.exit(InputError.exit_code)


def process() -> NoReturn:
    """The process that is the command line: its environment, its signals, its end."""
    # OpenMP threads that spin while they wait make the distance ten times slower beside another busy process. It must
    # be said before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A store that went away with its rank is ours to report, in a line and not in forty frames of C++.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    signals.take_over()
    try:
        main()
    except SystemExit as ended:
        _leave(ended)


def _leave(ended: SystemExit) -> NoReturn:
    """Ends the process without taking the interpreter down first, which with torch in it takes most of a second.

    What was to be done at exit is done, and what was printed is out. An exception instead of a status, or output that
    cannot be written, is Python's to tell.
    """
    status = ended.code or 0
    if not isinstance(status, int):
        raise ended
    if status:
        # A thread that is stuck in a network or a decoder would keep a failed process for ever.
        force = threading.Timer(_LEAVING_SECONDS, os._exit, (status,))
        force.daemon = True
        force.start()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        raise ended from None
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 done, 1 failed at run time, 2 bad usage or input, 3 a gate was missed.

    Stopped by a signal it is 128 and the signal's number.
    """
    with spelled_by(_as_flag):
        _main(arguments)


def _as_flag(name: str, value: object = None) -> str:
    from fidtool.cli.options import as_flag

    return as_flag(name, value)


def _main(arguments: Sequence[str] | None) -> NoReturn:
    try:
        typed = sys.argv[1:] if arguments is None else list(arguments)
        _import_torch_if_a_rank()
        status = cli.main(typed, prog_name="fidtool", standalone_mode=False, obj=tuple(typed))
        sys.exit(status if isinstance(status, int) else 0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fidtool"
        _complain(InputError(f"{error.format_message().rstrip('.')} (see `{command} --help`)"))
    except click.ClickException as error:
        _complain(RunError(error.format_message()))
    except FidtoolError as error:
        if error.printed:
            sys.exit(error.exit_code)
        _complain(error)
    except (click.Abort, KeyboardInterrupt):
        _complain(stopped_error())


def _import_torch_if_a_rank() -> None:
    """Imports torch on one of several ranks, undisturbed by signals.

    A rank that ends before it has met the others tells them through torch's store, and an import of torch that a signal
    has broken off cannot be repeated.
    """
    with contextlib.suppress(LaunchError):
        if discover().world_size > 1:
            with signals.deferred():
                import torch  # noqa: F401  (only imported)
            signals.raise_if_received()


def _complain(error: FidtoolError) -> NoReturn:
    """Ends the process, which has not met other ranks, with one line on stderr.

    Of several ranks another one may be going to wait for this one: it says why this one does not come. Under torchrun
    that is the only line; by hand each rank may have a terminal of its own, and says so there as well.
    """
    try:
        launch = discover()
    except LaunchError:
        launch = Launch()
    if launch.rank == 0 or isinstance(error, LaunchError):
        error_line(str(error))
        sys.exit(error.exit_code)
    from fidtool.distributed.rendezvous import report_absence

    under_torchrun, stopped_here = launcher_serves_store(), isinstance(error, StoppedError)
    if not under_torchrun:
        error_line(str(add_location(error, launch.rank, launch.world_size)))
    told = under_torchrun and stopped_here  # torchrun stops the others, too
    if not told:
        try:
            told = report_absence(error, _STOPPING_SECONDS if stopped_here else _TELLING_SECONDS)
        except KeyboardInterrupt:  # torchrun ends what remains: another rank has said why
            told = True
    if under_torchrun and not told:
        error_line(str(add_location(error, launch.rank, launch.world_size)))
    sys.exit(error.exit_code)
