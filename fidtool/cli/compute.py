"""``fidtool compute``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fidtool.cli.options import (
    GATES,
    IMAGES,
    MEASURE,
    METRIC,
    OUTPUT,
    QUIET,
    Function,
    GroupedCommand,
    measuring,
    option,
    refuse_idle_flags,
)
from fidtool.cli.output import error_line, print_whole, unwritable
from fidtool.config import TIES, Config
from fidtool.distributed.cause import stopped
from fidtool.errors import FidtoolError, InputError, RunError, StoppedError


def _integer(name: str, least: int, default: int, text: str) -> Callable[[Function], Function]:
    kind = click.IntRange(least)
    return option(name, group=METRIC, type=kind, metavar="N", default=default, show_default=True, help=text)


@click.command(cls=GroupedCommand)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
@measuring
@option(
    "--expect",
    group=IMAGES,
    type=click.IntRange(1),
    metavar="N",
    help="Refuse a FAKE that has not exactly N images (before --num takes its share).",
)
@option(
    "--allow-mismatch", group=MEASURE, is_flag=True, help="Compare statistics of different protocols, with a warning."
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print the result as JSON.")
@option("--output", group=OUTPUT, metavar="FILE", help="Also write the JSON to FILE.")
@_integer("--kid-subset-size", 2, 1000, "KID: images in a subset; no set may have fewer.")
@_integer("--kid-subsets", 1, 100, "KID: number of pairs of random subsets, over which it is the mean.")
@option("--kid-seed", group=METRIC, type=int, default=0, show_default=True, help="KID: which random subsets.")
@_integer("--is-splits", 1, 10, "Inception Score: consecutive parts of a FAKE, over which it is the mean.")
@option("--is-bias", group=METRIC, is_flag=True, help="Inception Score: add the classifier's bias; nobody's default.")
@_integer("--nearest-k", 1, 5, "Precision, recall, density, coverage: neighbours that a ball reaches to.")
@option(
    "--ties",
    group=METRIC,
    type=click.Choice(list(TIES)),
    default="strict",
    show_default=True,
    help="Whether an image on the surface of a ball is outside (as prdc has it) or inside (as StyleGAN and ADM).",
)
@QUIET
@option(
    "--fail-above", group=GATES, type=click.FloatRange(0), metavar="X", help="Exit with status 3 if an FID is above X."
)
@option(
    "--max-duplicates",
    group=GATES,
    type=click.FloatRange(0, 1),
    metavar="FRACTION",
    help="Exit with status 3 if more than this fraction of a FAKE are copies of others in it.",
)
def compute(
    real: str,
    fakes: tuple[str, ...],
    settings: Callable[..., Config],
    expect: int | None,
    allow_mismatch: bool,
    as_json: bool,
    output: str | None,
    fail_above: float | None,
    max_duplicates: float | None,
    kid_subset_size: int,
    kid_subsets: int,
    kid_seed: int,
    is_splits: int,
    is_bias: bool,
    nearest_k: int,
    ties: str,
    quiet: bool,
) -> int:
    """FID and other distances of each FAKE to REAL.

    Which ones, --metrics says; all come from one pass over the images.

    REAL and FAKE are folders of images or statistics files (.npz). The numbers go to stdout, everything else to
    stderr. Exit status: 0 done, 1 failed, 2 bad usage or input, 3 a gate was missed,
    130 and 143 stopped by Ctrl-C or SIGTERM.
    """
    report = _Report(as_json, output)
    try:
        refuse_idle_flags(click.get_current_context())
        config = settings(
            expect=expect,
            allow_mismatch=allow_mismatch,
            fail_above=fail_above,
            max_duplicates=max_duplicates,
            kid_subset_size=kid_subset_size,
            kid_subsets=kid_subsets,
            kid_seed=kid_seed,
            is_splits=is_splits,
            is_bias=is_bias,
            nearest_k=nearest_k,
            ties=ties,
        )
        return _run(real, fakes, config, quiet, report)
    except FidtoolError as error:
        if not error.told and not error.agreed:
            report.failed(error, aloud=False)
        raise
    except KeyboardInterrupt:
        report.failed(stopped(), aloud=False)
        raise


def _run(real: str, fakes: tuple[str, ...], config: Config, quiet: bool, report: _Report) -> int:
    from fidtool.console import Console
    from fidtool.distributed.launch import discover

    if discover().world_size == 1:
        from fidtool.sources import require_exists

        require_exists([real, *fakes])  # a typo is answered before torch is imported
    from fidtool.evaluate import evaluate
    from fidtool.report.as_text import result_lines, timing_line

    console = Console(warnings=True, progress=not quiet, on_failure=report.failed)
    evaluation = evaluate(real, fakes, config, console, before=report.check)
    if discover().rank > 0:
        # The gate's status is rank zero's to give: launchers kill rank zero when another rank ends before it badly.
        return 0
    console.say(timing_line(evaluation))
    report.publish(evaluation.to_dict(), result_lines(evaluation))
    if evaluation.exit_code:
        click.echo(evaluation.exit_reason, err=True)
    return evaluation.exit_code


def _close_stdout() -> None:
    """Lets the interpreter end without another complaint about what it cannot flush."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


class _Report:
    """Puts the result where the user wants it."""

    def __init__(self, as_json: bool, output: str | None) -> None:
        self._as_json = as_json
        self._output = None if output is None else Path(output)
        self._published = False

    def check(self) -> None:
        """Refuses an --output that cannot be written before hours are spent. On rank zero."""
        if self._output is None:
            return
        if self._output.is_dir():
            raise InputError(f"--output {self._output} is a folder; name a file")
        if problem := unwritable(self._output):
            raise InputError(f"--output {self._output} cannot be written: {problem}")

    def publish(self, result: dict[str, Any], lines: list[str], on_stdout: bool = True) -> None:
        """Prints the result and writes it to --output: neither waits for the other's success.

        Raises:
            RunError: stdout or --output could not be written.
        """
        from fidtool.cache_dir import atomic_write
        from fidtool.report.as_json import dumps

        self._published = True
        json_text = dumps(result)
        problems = []
        try:
            if on_stdout:
                print_whole([json_text] if self._as_json else lines)
        except OSError as error:
            problems.append(f"stdout ({error.strerror or error})")
            _close_stdout()
        if self._output is not None:
            try:
                with atomic_write(self._output) as handle:
                    handle.write(json_text.encode() + b"\n")
            except OSError as error:
                problems.append(f"{self._output} ({error.strerror or error})")
        if problems:
            raise RunError(f"the result could not be written to {' and to '.join(problems)}")

    def failed(self, error: FidtoolError, aloud: bool) -> None:
        """The JSON of a run that failed, in the place of an earlier run's (rank zero); its line if ``aloud``."""
        from fidtool.distributed.launch import will_be_restarted
        from fidtool.report.as_json import failure_to_dict

        # A result that reached one of its two places is not taken back, and stdout takes one document: the last one's.
        # Whether torchrun restarts the ranks after a signal depends on who was sent it.
        again = will_be_restarted()
        if not self._published and _is_rank_zero() and (isinstance(error, StoppedError) or not again):
            with contextlib.suppress(RunError):
                self.publish(failure_to_dict(error), [], on_stdout=not again)
        if aloud:
            error_line(str(error))


def _is_rank_zero() -> bool:
    from fidtool.distributed.launch import discover

    try:
        return discover().rank == 0
    except FidtoolError:
        return True  # the launcher's variables are what is wrong
