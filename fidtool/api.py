"""Python API: the commands of the command line as functions."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fidtool.diagnose.diagnosis import Checkup
from fidtool.distances.parallel import fork_safe
from fidtool.errors import InputError, warn_program
from fidtool.report.loggers import log_values
from fidtool.report.outputs import check_outputs, make_writers
from fidtool.result.evaluation import Evaluation
from fidtool.run.check import check_sets
from fidtool.run.evaluate import evaluate, measure_statistics
from fidtool.settings.record import make_origin
from fidtool.settings.settings import CheckSettings, Settings, StatisticsSettings, with_arguments_of
from fidtool.sources.memory import Images, split_sets
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.console import Console

PathOrURL = str | os.PathLike[str]
Source: TypeAlias = (
    PathOrURL | Images | Sequence[Any] | Iterable[Any] | Callable[..., Any] | Statistics
)
"""A path or URL; images in memory, or a function that generates them, see `fidtool.Images`; or
statistics.
"""

_Fakes: TypeAlias = Source | Sequence[PathOrURL | Images | Statistics] | Mapping[str, Source]
_Known: TypeAlias = PathOrURL | Statistics | None

# The arguments of the functions, as type checkers see them: sets and settings.


@dataclass(frozen=True, eq=False, repr=False)
class _Compute(Settings):
    real: Source
    fake: _Fakes


@dataclass(frozen=True, eq=False, repr=False)
class _ComputeStatistics(StatisticsSettings):
    images: Source
    known: _Known = None
    part: str | None = None
    since: _Known = None


@dataclass(frozen=True, eq=False, repr=False)
class _Check(CheckSettings):
    images: Source
    against: Source | None = None


@with_arguments_of(_Compute)
@fork_safe
def compute(
    real: Source,
    fake: Source | Sequence[PathOrURL | Images | Statistics] | Mapping[str, Source],
    settings: Settings,
) -> Evaluation:
    """Compute the FID, or the metrics in ``metrics``, of one or several sets of generated images
    against real images.

    Under torchrun or SLURM, or with RANK and WORLD_SIZE set, this is a collective: all ranks call
    it with the same arguments, and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics
            file (.npz); or images in memory (a list, array, ``Dataset`` or iterable), see
            `fidtool.Images`; or `fidtool.Statistics`.
        fake: a set in the same forms, or several sets to compare with ``real``, which is then
            processed only once. Several sets are a list of paths, or a list that has
            `fidtool.Images`, `fidtool.Statistics` or a function among its sets; a list of arrays is
            one set. They can also be a dict of sets by the names that they have in results and
            messages, ``{"epoch 1": images, "epoch 2": "fake/"}``; a list in the dict is one set,
            and its name in the dict replaces that of `fidtool.Images`. A function generates
            ``num_fake`` images, see `fidtool.Images`. The setting ``heldout`` takes such a set as
            well.
        settings: the keywords below. ``extractor`` may also be a `fidtool.Network` or a
            `torch.nn.Module`, or a list with them. A module gets the images as they are: uint8 of
            shape (n, 3, height, width), with images of different sizes in separate batches, as in
            the metrics for training. It is in evaluation mode during the run, and in its previous
            mode afterwards.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` or ``.by_name`` for several, and
        ``.to_dict()`` for the content of the JSON. With another network or layer, the value is
        ``.frechet_distance`` instead of ``.fid``, see `fidtool.result.values`. Warnings are in
        ``.results[i].warnings`` and ``.run.warnings``. Rank 0 also issues each of them as a
        `FidtoolWarning`, and one for each metric that is left out and for each value that is not
        comparable with the published values of ``preset``. If a report or plot cannot be written at
        the end, a `RuntimeWarning` is issued.

    Raises:
        fidtool.InputError: if the input cannot be evaluated; the message says why and what to do.
        fidtool.RunError: if the run failed.
        fidtool.StoppedError: if another rank received a signal to stop.
    """
    fakes = split_sets(fake, Statistics)
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    sources = [(real, "real"), *((source, "fake") for source in fakes)]
    with _warn_at_end(Console(report=settings.progress)) as console:
        check = functools.partial(check_outputs, settings)
        evaluation, gallery = evaluate(sources, settings, console, make_origin(sys.argv[0]), check)
    if gallery is None:
        return evaluation
    for file, write in make_writers(evaluation, gallery, settings).items():
        try:
            write(file)
        except Exception as error:  # so that the evaluation is not lost
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warn_program(f"{file} could not be written: {reason}", RuntimeWarning)
    log_values(evaluation.results, settings, lambda line: warn_program(line, RuntimeWarning))
    return evaluation


@with_arguments_of(_ComputeStatistics)
@fork_safe
def compute_statistics(
    images: Source,
    known: PathOrURL | Statistics | None = None,
    part: str | None = None,
    since: PathOrURL | Statistics | None = None,
    *,
    settings: Settings,
) -> Statistics:
    """Compute the mean and covariance of the features of a set of images, as ``fidtool stats``
    writes them to a file.

    A collective like `compute`.

    Args:
        images: the same as ``real`` in `compute`.
        known: statistics of the same images, or a file with them: only networks that they lack are
            computed.
        part: part of the images to compute, such as ``"3/16"``, for `fidtool.merge_statistics`;
            None computes all images.
        since: earlier statistics of the set with the same settings, or a file with them: only new
            images go through the networks.
        settings: the keywords below, see `compute`.

    Returns:
        On rank 0, the statistics, with ``mu`` of shape (dims,) and ``sigma`` of shape (dims, dims),
        both float64, and their provenance. On the other ranks, a placeholder that is false in a
        boolean context: the functions of this module accept it, and reading it raises an error.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    with _warn_at_end(Console(report=settings.progress)) as console:
        statistics, _ = measure_statistics(
            [(images, "images")], settings, console, known=known, part=part, since=since
        )
    return statistics


@with_arguments_of(_Check)
@fork_safe
def check(images: Source, against: Source | None = None, *, settings: Settings) -> Checkup:
    """Inspect a set of images for problems, without a network.

    A collective like `compute`.

    Args:
        images: the same as ``real`` in `compute`, but not an iterable.
        against: real images, or a statistics file written by fidtool, to compare ``images`` with;
            None inspects only ``images``.

    Returns:
        The findings: ``.images`` and ``.against`` (each a `fidtool.diagnose.diagnosis.Health` with
            ``findings``),
        ``.between`` and ``.to_dict()``; the same on every rank.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    sources = [(images, "images"), *([] if against is None else [(against, "real")])]
    with _warn_at_end(Console(report=settings.progress)) as console:
        return check_sets(sources, settings, console)


@contextlib.contextmanager
def _warn_at_end(console: Console) -> Iterator[Console]:
    """Context manager that issues a run's warnings at its end, when no rank waits for one that
    raises them.
    """
    yield console
    for line in console.warned:
        warn_program(line)
