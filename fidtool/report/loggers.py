"""Metric values for experiment trackers: TensorBoard, Weights & Biases, MLflow and Trackio."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec

from fidtool.errors import InputError, format_message, missing_package, option, redact
from fidtool.names import find_sweep_numbers, short_names, suggest_name
from fidtool.result.evaluation import Comparison
from fidtool.settings.settings import Settings
from fidtool.system.background import call_with_timeout

LOG_SECONDS = 60.0
"""How long a logger may take, which may wait for a server or a login."""
Rows = Sequence[tuple[int | None, dict[str, float]]]
"""The rows of a run: a step, and the values at it."""


def _tensorboard(folder: str, name: str, rows: Rows) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(os.path.join(folder, name)) as writer:
        for step, values in rows:
            for key, value in values.items():
                writer.add_scalar(key, value, step)


def _wandb(place: str, name: str, rows: Rows) -> None:
    import wandb

    entity, _, project = place.rpartition("/")
    with wandb.init(
        entity=entity or None, project=project, name=name or None, reinit="create_new"
    ) as run:
        for step, values in rows:
            run.log(values, step=step)


def _mlflow(experiment: str, name: str, rows: Rows) -> None:
    import mlflow

    known = mlflow.get_experiment_by_name(experiment)
    number = known.experiment_id if known else mlflow.create_experiment(experiment)
    with mlflow.start_run(experiment_id=number, run_name=name or None, nested=True):
        for step, values in rows:
            mlflow.log_metrics(values, step=step)


def _trackio(project: str, name: str, rows: Rows) -> None:
    import trackio

    trackio.init(project=project, name=name or None, embed=False)
    for step, values in rows:
        trackio.log(values, step=step)
    trackio.finish()


LOGGERS: Mapping[str, tuple[Callable[[str, str, Rows], None], str]] = {
    "tensorboard": (_tensorboard, "check that the folder can be written"),
    "wandb": (_wandb, "run `wandb login`, or set WANDB_MODE=offline"),
    "mlflow": (_mlflow, "check MLFLOW_TRACKING_URI"),
    "trackio": (_trackio, "check TRACKIO_DIR"),
}
"""The trackers by the names of their packages: a function that logs a run, and what to try if it
fails. The functions take what follows the colon in the setting, the run's name, empty for the
tracker's default, and its rows.
"""


def check_loggers(places: Sequence[str]) -> None:
    """Check the setting ``log``, before any work is done."""
    for text in places:
        named = option("log", text)
        kind, _, place = text.partition(":")
        if kind not in LOGGERS or not place:
            known = ", ".join(LOGGERS)
            problem = f"{named} must be KIND:PLACE, where KIND is one of {known}"
            if kind not in LOGGERS:
                problem += suggest_name(kind, LOGGERS)
            raise InputError(problem)
        package = find_spec(kind)
        if package is None or package.origin is None:  # nothing, or a folder of logs
            raise missing_package(named, kind, kind)


def log_values(
    results: Sequence[Comparison], settings: Settings, warn: Callable[[str], None]
) -> None:
    """Log the values of each FAKE. A logger that fails is a warning."""
    for text in settings.log:
        kind, _, place = text.partition(":")
        log, remedy = LOGGERS[kind]
        try:
            for name, rows in split_runs(results, settings.step):
                call_with_timeout(partial(log, place, name, rows), LOG_SECONDS)
        except (Exception, SystemExit) as error:
            warn(
                f"{option('log', text)} failed, but the result is complete: "
                f"{format_message(error).rstrip('.')}; {remedy}"
            )


def split_runs(results: Sequence[Comparison], step: int | None) -> list[tuple[str, Rows]]:
    """Return the runs to log, each with its name: one if the names of the FAKEs have steps, else
    one per FAKE.
    """
    paths = [redact(result.fake.name) for result in results]
    values = [_collect_values(result) for result in results]
    if len(results) == 1:
        return [("", [(step, values[0])])]
    swept = None if step is not None else find_sweep_numbers(paths)
    if swept is not None and all(number.is_integer() for number in swept[0]):
        by_step = dict(zip(map(int, swept[0]), values, strict=True))
        return [("", sorted(by_step.items()))]
    # Without separators, because TensorBoard's runs are folders.
    names = [re.sub(r"[^\w.=-]+", "-", name).strip("-.") for name in short_names(paths)]
    if len({*names}) < len(names):  # a/b and a-b
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    return [(name, [(step, row)]) for name, row in zip(names, values, strict=True)]


def _collect_values(result: Comparison) -> dict[str, float]:
    """Return the values by their keys in the JSON, and the bias-corrected Fréchet distances with
    their intervals.
    """
    values = dict(result.metrics)
    for key, uncertainty in result.uncertainties.items():
        bar = uncertainty.corrected
        if bar is not None:
            values[f"{key}_corrected"] = bar.value
            values[f"{key}_corrected_low"] = bar.low
            values[f"{key}_corrected_high"] = bar.high
    return values
