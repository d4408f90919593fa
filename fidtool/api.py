"""Python API: the commands of the command line as functions."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast, get_type_hints

from fidtool.console import Console
from fidtool.diagnose.diagnosis import Checkup
from fidtool.distances.parallel import fork_safe
from fidtool.errors import InputError, warn_program
from fidtool.metrics.registry import METRIC_SETTINGS
from fidtool.names import suggestion
from fidtool.pipeline.check import check_sets
from fidtool.pipeline.evaluate import evaluate, measure_statistics
from fidtool.presets import with_preset
from fidtool.report.loggers import log_values
from fidtool.report.outputs import check_outputs, writers_of
from fidtool.result.evaluation import Evaluation
from fidtool.result.record import origin_of
from fidtool.settings import CheckSettings, Settings, StatisticsSettings
from fidtool.sources.memory import Images, several
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import declared

PathOrURL = str | os.PathLike[str]
Source: TypeAlias = PathOrURL | Images | Sequence[Any] | Iterable[Any] | Callable[..., Any] | Statistics
"""A path or URL; images in memory, or a function that generates them, see `fidtool.Images`; or statistics."""

_Fakes: TypeAlias = Source | Sequence[PathOrURL | Images | Statistics]
_Known: TypeAlias = PathOrURL | Statistics | None
P = ParamSpec("P")
T = TypeVar("T")


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


def _with_arguments_of(kind: Callable[P, CheckSettings]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorator that replaces a function's last argument, a `Settings`, by the settings of ``kind`` as keywords.

    Type checkers see the fields of ``kind`` as the arguments, and `inspect.signature` sees ``__signature__``. The
    docstring gets a description of each keyword.
    """
    types, settings = get_type_hints(kind), declared(cast(type, kind))

    def decorated(function: Callable[..., T]) -> Callable[P, T]:
        function = fork_safe(function)
        original = inspect.signature(function)
        *sets, _ = original.parameters.values()
        keywords = [
            each.replace(annotation=inspect.formatannotation(types[each.name]))
            for each in inspect.signature(kind).parameters.values()
            if each.name in settings
        ]
        signature = original.replace(parameters=[*sets, *keywords])

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}{_meant(kwargs, signature.parameters)}") from None
            chosen = with_preset({name: given.pop(name) for name in settings if name in given})
            return function(**given, settings=Settings(**chosen))

        called.__signature__ = signature  # type: ignore[attr-defined]
        lines = [f"        {name}: {each.described}" for name, each in settings.items()]
        called.__doc__ = "\n".join([f"{function.__doc__}", "    Settings:", *lines, ""])
        return called

    return decorated


def _meant(keywords: Mapping[str, Any], known: Collection[str]) -> str:
    """Returns what to write instead of unknown keywords: a metric with a setting, or similar keywords."""
    unknown = [name for name in keywords if name not in known]
    for name in unknown:
        if name in METRIC_SETTINGS and "metrics" in known:
            kind, own = METRIC_SETTINGS[name]
            return f"; write metrics=[fidtool.{kind.__name__}({own.name}=...)]"
        if name in (declared(Settings)["precision"].choices or ()):
            return f"; write precision={name!r}"
        for setting, each in declared(Settings).items():
            if each.kind is bool and name == f"no_{each.flag.strip('-').replace('-', '_')}":
                return f"; write {setting}=False"
    return "".join(suggestion(name, known, 0.75) for name in unknown)


@_with_arguments_of(_Compute)
def compute(real: Source, fake: Source | Sequence[PathOrURL | Images | Statistics], settings: Settings) -> Evaluation:
    """Computes FID, or the metrics in ``metrics``, of one or several sets of generated images against real images.

    Under torchrun or SLURM, or with RANK and WORLD_SIZE set, this is a collective: all ranks call it with the same
    arguments, and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics file (.npz); or images
            in memory (a list, array, ``Dataset`` or iterable), see `fidtool.Images`; or `fidtool.Statistics`.
        fake: the same, or a list of sets to evaluate against the same ``real``, which is then processed once: paths, or
            any sets with `fidtool.Images`, `fidtool.Statistics` or a function among them. A list of arrays is one set.
            Or a function that generates ``num_fake`` images, see `fidtool.Images`. The setting ``heldout`` is such a
            set as well.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` for several, ``.to_dict()`` for the content of the JSON. A
        different network or layer has a ``.frechet_distance`` instead of a FID, see `fidtool.result.values`. Warnings
        are in ``.results[i].warnings`` and ``.run.warnings``, and rank zero issues each as a `FidtoolWarning`, as it
        does for a metric that is left out and a value that is not comparable with those of ``preset``. If a report or
        plot cannot be written at the end, a `RuntimeWarning` is issued.

    Raises:
        fidtool.InputError: if the input cannot be evaluated; the message says why and what to do.
        fidtool.RunError: if the run failed.
        fidtool.StoppedError: if another rank received a signal to stop.
    """
    fakes = several(fake, Statistics)
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    sources = [(real, "real"), *((each, "fake") for each in fakes)]
    with _warning(Console(report=settings.progress)) as console:
        check = functools.partial(check_outputs, settings)
        evaluation, gallery = evaluate(sources, settings, console, origin_of(sys.argv[0]), check)
    if gallery is None:
        return evaluation
    for file, write in writers_of(evaluation, gallery, settings).items():
        try:
            write(file)
        except Exception as error:  # so that the evaluation is not lost
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warn_program(f"{file} could not be written: {reason}", RuntimeWarning)
    log_values(evaluation.results, settings, lambda line: warn_program(line, RuntimeWarning))
    return evaluation


@_with_arguments_of(_ComputeStatistics)
def compute_statistics(
    images: Source,
    known: PathOrURL | Statistics | None = None,
    part: str | None = None,
    since: PathOrURL | Statistics | None = None,
    *,
    settings: Settings,
) -> Statistics | None:
    """Computes the mean and covariance of the features of a set of images, which ``fidtool stats`` writes to a file.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`.
        known: statistics of the same images, or their file: only networks that they lack are computed.
        part: computes only a part of the images, such as ``"3/16"``, for `fidtool.merge_statistics`.
        since: earlier statistics of the set with the same settings, or their file: only images that are new go through
            the networks.

    Returns:
        On rank zero the statistics, with ``mu`` of shape (dims,) and ``sigma`` of shape (dims, dims), both float64, and
        their provenance; None on the other ranks.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    with _warning(Console(report=settings.progress)) as console:
        statistics, _ = measure_statistics([(images, "images")], settings, console, known=known, part=part, since=since)
    return statistics


@_with_arguments_of(_Check)
def check(images: Source, against: Source | None = None, *, settings: Settings) -> Checkup:
    """Inspects a set of images for problems, without a network.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`, but not an iterable.
        against: real images, or a statistics file written by fidtool, to compare ``images`` with; None inspects only
            ``images``.

    Returns:
        The findings: ``.images`` and ``.against`` (each a `fidtool.diagnose.diagnosis.Health` with ``findings``),
        ``.between`` and ``.to_dict()``; the same on every rank.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    sources = [(images, "images"), *([] if against is None else [(against, "real")])]
    with _warning(Console(report=settings.progress)) as console:
        return check_sets(sources, settings, console)


@contextlib.contextmanager
def _warning(console: Console) -> Iterator[Console]:
    """Context manager that issues a run's warnings at its end, when no rank waits for one that raises them."""
    yield console
    for line in console.warned:
        warn_program(line)
