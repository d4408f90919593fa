"""``fidtool compute``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fidtool.cli.options import QUIET, Command, GroupedOption, option, outputs_option
from fidtool.cli.output import (
    check_paths_early,
    format_flag,
    is_terminal,
    make_console,
    note,
    parse_result_file,
    publish,
    render_message,
    write_lines,
)
from fidtool.distributed.launch import discover_or_alone, process_age, will_be_restarted
from fidtool.distributed.signals import stopped_error
from fidtool.errors import FidtoolError, InputError, RunError, StoppedError, redact_json
from fidtool.metrics.registry import BUILT_IN
from fidtool.settings.record import Origin, changed_settings, make_origin
from fidtool.settings.settings import OUTPUT, Settings
from fidtool.system.background import call_with_timeout
from fidtool.system.cache_dir import check_target

if TYPE_CHECKING:
    from fidtool.reading.lookup import ImageLookup
    from fidtool.result.evaluation import Evaluation
    from fidtool.system.console import Console

_EXAMPLES = (
    ("Compute the FID of generated images", "fidtool compute real/ fake/"),
    (
        "Compute the same value on 8 GPUs",
        "torchrun --nproc-per-node=8 -m fidtool compute real/ fake/",
    ),
    (
        "CI gate: exit status 3 if the FID is above 20",
        "fidtool compute real/ fake/ --fail-above 20 -o fid.json",
    ),
)
# How long writing the result of a failed run may take.
_WRITING_SECONDS = 2.0


@click.command(cls=Command, settings=Settings, examples=_EXAMPLES)
@click.argument("real")
@click.argument("fakes", metavar="FAKE...", nargs=-1, required=True)
@option(
    "--format",
    "form",
    group=OUTPUT,
    type=click.Choice(("table", "lines", "csv", "markdown", "latex", "json")),
    help="How to print the result. [default: table on a terminal if there are several values, "
    "else lines]",
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Same as --format json.")
@option(
    "--value",
    group=OUTPUT,
    is_flag=True,
    help="Print only the first requested value of each FAKE, for shell scripts.",
)
@outputs_option(
    cls=GroupedOption,
    group=OUTPUT,
    help="Also write the result: FILE.json, .csv, .md or .tex. Can be repeated.",
)
@QUIET
def compute(
    real: str,
    fakes: tuple[str, ...],
    settings: Callable[[], Settings],
    form: str | None,
    as_json: bool,
    value: bool,
    outputs: tuple[str, ...],
    quiet: bool,
) -> int:
    """Compute the FID and other metrics of each FAKE against REAL.

    REAL and FAKE are sets of images, statistics files (.npz, .pkl) or published references such as
    adm:imagenet256, see `fidtool refs`. A set is a folder; a .zip or .tar archive, also a
    compressed one; an array (.npy, .npz, .pt, .safetensors); a .parquet or .arrow file, or a folder
    that save_to_disk wrote; a list of paths (.txt, or .csv, .tsv or .jsonl with a column of paths),
    or - to read such a list from stdin; or a URL of any of these (s3://, https://, hf://, ...).
    Braces and wildcards join several files into one set ('shards-{000..127}.tar'). Archives are
    read without unpacking them.

    Results are printed on stdout, everything else on stderr. Exit status: 0 success, 1 failure at
    run time or a requested metric that could not be computed, 2 bad usage or input, 3 missed gate,
    130 or 143 stopped by Ctrl-C or SIGTERM.
    """
    form = _format(form, as_json, value, outputs)
    origin = make_origin(("fidtool", *(click.get_current_context().obj or ())))
    tables = dict(parse_result_file(name) for name in outputs if name != "-")
    chosen: Settings | None = None

    def on_failure(error: FidtoolError) -> None:
        files = [file for file, written in tables.items() if written == "json"]
        _write_failure(error, origin, chosen, files, form == "json")

    try:
        chosen = settings()
        _check_sets(real, fakes, chosen, origin)
        from fidtool.run.evaluate import evaluate

        console = make_console(quiet)
        console.on_failure = on_failure
        evaluation, gallery = evaluate(
            [(path, "") for path in (real, *fakes)],
            chosen,
            console,
            origin,
            partial(_check_files, tables, chosen),
            began=time.perf_counter() - process_age(),
        )
    except (FidtoolError, KeyboardInterrupt) as error:
        failure = error if isinstance(error, FidtoolError) else stopped_error()
        if not failure.printed:
            on_failure(failure)
        raise
    if gallery is None:
        # Only rank 0 exits with the gate's status: a launcher kills rank 0 if another rank
        # exits first with an error.
        return 0
    from fidtool.report.text import timing_line

    console.say(timing_line(evaluation))
    if evaluation.run.advice:
        console.say(evaluation.run.advice)
    _write_result(evaluation, gallery, chosen, form, tables, console)
    return evaluation.exit_code


def _format(form: str | None, as_json: bool, value: bool, outputs: Collection[str]) -> str | None:
    """Return the format that the options ask for, which is ``value`` for a number alone; None if
    they ask for none.
    """
    flags = {}
    if value:
        flags["--value"] = "value"
    if as_json:
        flags["--json"] = "json"
    if form is not None:
        flags[f"--format {form}"] = form
    forms = {*flags.values()}
    if len(forms) > 1:
        raise InputError(f"{' and '.join(flags)} contradict each other:", "pass one of them")
    if not forms and "-" in outputs:
        return "json"  # on stdout, as in other programs
    return forms.pop() if forms else None


def _check_sets(real: str, fakes: Sequence[str], settings: Settings, origin: Origin) -> None:
    """Refuse sets that do not exist, before any slow import."""
    metrics = [path for path in (real, *fakes) if path in BUILT_IN and not Path(path).exists()]
    if metrics and "--" not in origin.command:
        joined = ",".join(
            [*(requested.spec for requested in settings.metrics_as_requested), *metrics]
        )
        raise InputError(
            f"no such file or folder: {metrics[0]}, which is a metric:",
            f"separate metrics by commas, {format_flag('metrics', joined)}",
            setting="metrics",
        )
    heldout = [] if settings.heldout is None else [settings.heldout]
    check_paths_early([real, *fakes, *heldout], real, *heldout)


def _check_files(files: Iterable[Path], settings: Settings, inputs: Sequence[object]) -> None:
    """Check that the files can be written, before any work is done, and are none of those that the
    run reads.
    """
    from fidtool.report.outputs import check_outputs

    for file in files:
        check_target(f"--output {file}", file, inputs)
    check_outputs(settings, inputs)


def _write_result(
    evaluation: Evaluation,
    gallery: ImageLookup,
    settings: Settings,
    form: str | None,
    tables: Mapping[Path, str],
    console: Console,
) -> None:
    """Print the result, and write its tables, by their formats, its page, plot and logs."""
    from fidtool.report.loggers import log_values
    from fidtool.report.outputs import make_writers
    from fidtool.report.tables import class_lines, format_lines
    from fidtool.report.text import crop_lines, influence_lines

    form = form or _default_format(evaluation)
    first = settings.metrics_as_requested[0].metric.numbers[0]
    values = [result.value(first.name) for result in evaluation.results]
    saved = {"": evaluation}
    try:
        for line in influence_lines(evaluation):
            note(line)
        if form not in ("table", "markdown", "latex"):  # which have them
            for line in (*crop_lines(evaluation), *class_lines(evaluation)):
                note(line)
        lines = [repr(nan if value is None else value) for value in values]
        if form != "value":
            lines = format_lines(form, saved)
        written = {file: partial(write_lines, format_lines(tables[file], saved)) for file in tables}
        publish(lines, {**written, **make_writers(evaluation, gallery, settings, format_flag)})
    finally:
        log_values(evaluation.results, settings, console.warn)
    if form in ("csv", "json", "value"):
        for line in evaluation.not_computed_lines:
            note(line)
    if evaluation.exit_code:
        note(evaluation.exit_reason)
    if form == "value" and None in values:
        raise RunError(f"the first requested value, {first.title}, was not computed")


def _default_format(evaluation: Evaluation) -> str:
    several = sum(len(result.values) for result in evaluation.results) > 1
    return "table" if several and is_terminal() else "lines"


def _is_replaceable(file: Path) -> bool:
    """Whether the JSON of a failed run may take the place of a file: only that of another one, or
    none, is lost.
    """
    return (
        not os.path.isfile(file)
        or file.stat().st_size == 0
        or b'"results": []' in file.read_bytes()
    )


def _write_failure(
    error: FidtoolError,
    origin: Origin,
    settings: Settings | None,
    outputs: Sequence[Path],
    as_json: bool,
) -> None:
    """Write the JSON of a failed run, which has no results, on rank 0, but never over a result
    with values.

    If torchrun restarts the ranks, only the last attempt prints it. After a signal a restart is
    uncertain, so that the file is written.
    """
    again = will_be_restarted()
    is_shown = outputs or as_json
    is_last = not again or isinstance(error, StoppedError)
    if not is_shown or not is_last or discover_or_alone().rank > 0:
        return
    from fidtool.report.text import dumps
    from fidtool.result.evaluation import SCHEMA, protocol_to_dict

    config = None if settings is None else changed_settings(settings)
    content = {
        "schema": SCHEMA,
        "protocol": protocol_to_dict(None),
        "results": [],
        "run": {**origin._asdict(), "config": config},
        "exit": {"code": error.exit_code, "reason": render_message(error.text)},
    }
    text = dumps(redact_json(content))

    def write() -> None:
        files = {}
        for file in outputs:
            if _is_replaceable(file):
                files[file] = partial(write_lines, [text])
            else:
                note(f"{file} keeps its earlier content, because this run has no values")
        publish([text] if as_json and not again else [], files)

    with contextlib.suppress(RunError, TimeoutError):
        call_with_timeout(write, _WRITING_SECONDS)
