"""The files of an evaluation: a page, a plot, lines of a history, a table of single images. None is
written half.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from fidtool.errors import InputError, Spelling, format_argument, missing_package, option
from fidtool.reading.lookup import ImageLookup
from fidtool.report.loggers import check_loggers
from fidtool.result.changes import append_history
from fidtool.result.evaluation import Evaluation
from fidtool.settings.settings import Settings
from fidtool.system.cache_dir import atomic_write, check_target

_SUFFIXES = {
    "report": (".html", ".htm"),
    "plot": (".png",),
    "history": (".jsonl",),
    "pairs_output": (".csv",),
}


def output_files(settings: Settings) -> dict[str, Path]:
    """Return the files that a run writes, by setting."""
    files = {}
    for setting in _SUFFIXES:
        file = getattr(settings, setting)
        if file is not None:
            files[setting] = Path(file)
    return files


def check_outputs(settings: Settings, inputs: Collection[object] = ()) -> None:
    """Check that the files of a run can be written and its loggers used, before any work is done;
    see `check_report_files`.
    """
    check_report_files(output_files(settings), inputs)
    check_loggers(settings.log)


def make_writers(
    evaluation: Evaluation,
    gallery: ImageLookup,
    settings: Settings,
    spelling: Spelling = format_argument,
) -> dict[Path, Callable[[Path], None]]:
    """Return the files of a run, each with the function that writes it."""
    return {
        file: partial(write_report_file, evaluation, gallery, setting, spelling=spelling)
        for setting, file in output_files(settings).items()
    }


def check_report_files(shown: Mapping[str, Path], inputs: Collection[object] = ()) -> None:
    """Check that the page, the plot and the history, by setting, can be written, before any work is
    done.

    None may be one of the paths that the run reads, ``inputs``; a history may, which is only added
    to.
    """
    for setting, file in shown.items():
        named = option(setting, str(file))
        needs_charts = setting in ("report", "plot")
        # It is not imported. jinja2 is there, as torch needs it.
        if needs_charts and importlib.util.find_spec("matplotlib") is None:
            raise missing_package(option(setting), "matplotlib", "report")
        if file.suffix.lower() not in _SUFFIXES[setting]:
            raise InputError(f"{named}: the name must end in {_SUFFIXES[setting][0]}")
        check_target(named, file, () if setting == "history" else inputs)
        if setting == "history" and file.exists() and not file.is_file():
            raise InputError(f"{named} must be a regular file, which lines can be added to")


def write_report_file(
    evaluation: Evaluation,
    gallery: ImageLookup,
    setting: str,
    file: Path,
    spelling: Spelling = format_argument,
) -> None:
    """Write the page, the plot or the values of single images atomically; or add to the history."""
    if setting == "history":
        append_history(evaluation, file)
        return
    # Few runs need these modules.
    if setting == "pairs_output":
        from fidtool.report.tables import image_lines

        text = "".join(f"{line}\n" for line in image_lines(evaluation))
        content = text.encode("utf-8", "surrogateescape")
    elif setting == "plot":
        from fidtool.report.charts import sweep_plot

        content = sweep_plot(evaluation, file.suffix[1:].lower())
    else:
        from fidtool.report.html import html_report

        # A path may contain bytes that are not UTF-8.
        content = html_report(evaluation, gallery, spelling).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(content)
