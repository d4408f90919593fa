"""Python API: the commands of the command line as functions."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

from fidtool.console import Console
from fidtool.diagnose.diagnosis import Checkup
from fidtool.distances.parallel import fork_safe
from fidtool.errors import InputError, warn_program
from fidtool.metrics.registry import is_name, metric_named, metric_settings
from fidtool.names import suggestion
from fidtool.pipeline.check import check as check_images
from fidtool.pipeline.check import refuse_same
from fidtool.pipeline.evaluate import compute_statistics as statistics_of
from fidtool.pipeline.evaluate import evaluate
from fidtool.pipeline.run import open_run
from fidtool.pipeline.sets import requested
from fidtool.presets import with_preset
from fidtool.report.text import check_shown, write_shown
from fidtool.results import Evaluation
from fidtool.settings import CheckSettings, Origin, Settings, StatisticsSettings
from fidtool.sources.memory import Images, several
from fidtool.statistics.set_statistics import Statistics
from fidtool.validation import declared

PathOrURL = str | os.PathLike[str]
Source: TypeAlias = "PathOrURL | Images | Sequence[Any] | Iterable[Any] | Callable[..., Any] | Statistics"
"""A path or URL; images in memory, or a function that generates them, see `fidtool.Images`; or statistics."""

_Fakes: TypeAlias = "Source | Sequence[PathOrURL | Images | Statistics]"
Sources = Sequence[tuple[object, str]]
P = ParamSpec("P")
_DEFAULTS = Settings()


class _Compute(Protocol[P]):
    def __call__(self, real: Source, fake: _Fakes, *args: P.args, **settings: P.kwargs) -> Evaluation: ...


class _ComputeStatistics(Protocol[P]):
    def __call__(self, images: Source, *args: P.args, **settings: P.kwargs) -> Statistics | None: ...


class _Check(Protocol[P]):
    def __call__(
        self, images: Source, against: Source | None = None, *args: P.args, **settings: P.kwargs
    ) -> Checkup: ...


class _with_keywords_of(Generic[P]):  # noqa: N801 (a decorator)
    """Decorator that replaces a function's last argument, a `Settings`, by the fields of ``kind`` as keywords.

    Type checkers see the keywords through the protocols above, and `inspect.signature` through ``__signature__``. The
    docstring gets a description of each keyword.
    """

    def __init__(self, kind: Callable[P, CheckSettings]) -> None:
        self._kind: Any = kind

    @overload
    def __call__(self, function: Callable[[Source, _Fakes, Settings], Evaluation]) -> _Compute[P]: ...
    @overload
    def __call__(self, function: Callable[[Source, Settings], Statistics | None]) -> _ComputeStatistics[P]: ...
    @overload
    def __call__(self, function: Callable[[Source, Source | None, Settings], Checkup]) -> _Check[P]: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        function = fork_safe(function)
        original, types = inspect.signature(function), get_type_hints(self._kind)
        *sets, _ = original.parameters.values()
        settings = declared(self._kind)
        keywords = [
            each.replace(annotation=inspect.formatannotation(types[each.name]))
            for each in inspect.signature(self._kind).parameters.values()
            if each.name in settings
        ]
        signature = original.replace(parameters=[*sets, *keywords])

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
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


def _meant(keywords: Mapping[str, Any], known: Iterable[str]) -> str:
    """Returns what to write instead of unknown keywords: the objects of metrics for their settings, or similar ones."""
    if "metric_options" in keywords:
        return "; pass metrics with settings as objects, such as metrics=[fidtool.KID(subset_size=100)]"
    of_metrics: dict[str, list[str]] = {}
    for name, (kind, each) in metric_settings().items():
        if name in keywords:
            of_metrics.setdefault(kind.__name__, []).append(f"{each.name}={keywords[name]!r}")
    if objects := [f"fidtool.{kind}({', '.join(values)})" for kind, values in of_metrics.items()]:
        asked = str(keywords.get("metrics", "")).split(",")
        others = [
            repr(name) for name in asked if is_name(name) and type(metric_named(name).metric).__name__ not in of_metrics
        ]
        return f"; write metrics=[{', '.join([*others, *objects])}]"
    return "".join(suggestion(name, known, 0.75) for name in keywords if name not in known)


@_with_keywords_of(Settings)
def compute(real: Source, fake: Source | Sequence[PathOrURL | Images | Statistics], settings: Settings) -> Evaluation:
    """Computes FID, or the metrics in ``metrics``, of one or several sets of generated images against real images.

    Under torchrun or SLURM, or with RANK and WORLD_SIZE set, this is a collective: all ranks call it with the same
    arguments, and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics file (.npz); or images
            in memory (a list, array, ``Dataset`` or iterable), see `fidtool.Images`; or `fidtool.Statistics`.
        fake: the same, or a list of sets to evaluate against the same ``real``, which is then processed once: paths, or
            any sets with `fidtool.Images`, `fidtool.Statistics` or a function among them. A list of arrays is one set.
            Or a function that generates ``num_fake`` images, see `fidtool.Images`.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` for several, ``.to_dict()`` for the content of the JSON. A
        different network or layer has a ``.frechet_distance`` instead of a FID, see `fidtool.labels`. Warnings are in
        ``.results[i].warnings`` and ``.run.warnings``, and rank zero issues each as a `FidtoolWarning`, as it does for
        a metric that is left out and a value that is not comparable with those of ``preset``. If a report or plot
        cannot be written at the end, a `RuntimeWarning` is issued.

    Raises:
        fidtool.InputError: if the input cannot be evaluated; the message says why and what to do.
        fidtool.RunError: if the run failed.
        fidtool.StoppedError: if another rank received a signal to stop.
    """
    fakes = several(fake, Statistics)
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    sources = [(real, "real"), *((each, "fake") for each in fakes)]
    files = {each: Path(file) for each in ("report", "plot") if (file := getattr(settings, each)) is not None}
    origin = Origin.here(sys.argv[0])
    with _warning(Console(report=settings.progress)) as console:
        evaluation, write = evaluated(sources, settings, console, origin, lambda: check_shown(files))
    for setting, file in files.items():
        if write is None:
            break
        try:
            write(setting, file)
        except Exception as error:  # so that the evaluation is not lost
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warn_program(f"{file} could not be written: {reason}", RuntimeWarning)
    return evaluation


def evaluated(
    sources: Sources, settings: Settings, console: Console, origin: Origin, check: Callable[[], None]
) -> tuple[Evaluation, Callable[[str, Path], None] | None]:
    """Compares the FAKEs with REAL, for `compute` and the command line. A collective.

    Args:
        sources: REAL and the FAKEs, each with a default name for it.
        check: called on rank zero before any work is done.

    Returns:
        The evaluation and, on rank zero, a function that writes a report or plot, given its setting and file.
    """
    sets = requested(*sources)
    with open_run(sets, settings, console) as run:
        run.world.on_rank_zero(check)
        evaluation, exhibits, lookup = evaluate(run, sets, settings, origin)
        write = functools.partial(write_shown, evaluation, exhibits, lookup, spelling=console.spelling)
        return evaluation, write if run.world.rank == 0 else None


@_with_keywords_of(StatisticsSettings)
def compute_statistics(images: Source, settings: Settings) -> Statistics | None:
    """Computes the mean and covariance of the features of a set of images, which ``fidtool stats`` writes to a file.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`.

    Returns:
        On rank zero the statistics, with ``mu`` of shape (dims,) and ``sigma`` of shape (dims, dims), both float64, and
        their provenance; None on the other ranks.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    with _warning(Console(report=settings.progress)) as console:
        statistics, _ = measured([(images, "images")], settings, console)
    return statistics


def measured(
    sources: Sources,
    settings: Settings,
    console: Console,
    check: Callable[[], None] = lambda: None,
    sampled: bool = False,
    stored: int | None = None,
) -> tuple[Statistics | None, NDArray[np.uint8] | None]:
    """Computes the statistics of a set, for `compute_statistics` and the command line. A collective.

    Args:
        check: called on rank zero before any work is done.
        sampled: whether to return a sample of ``stored`` images as well, for ADM's layout.
    """
    sets = requested(*sources)
    with open_run(sets, settings, console) as run:
        run.world.on_rank_zero(check)
        return statistics_of(run, sets, settings, sampled, stored)


@_with_keywords_of(CheckSettings)
def check(images: Source, against: Source | None = None, settings: Settings = _DEFAULTS) -> Checkup:
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
        return checked(sources, settings, console)


def checked(sources: Sources, settings: Settings, console: Console, strict: bool = False) -> Checkup:
    """Inspects a set, alone or against another, for `check` and the command line. A collective."""
    sets = requested(*sources)
    refuse_same(sets)
    with open_run(sets, settings, console) as run:
        return check_images(run, sets, settings, strict)


@contextlib.contextmanager
def _warning(console: Console) -> Iterator[Console]:
    """Context manager that issues a run's warnings at its end, when no rank waits for one that raises them."""
    yield console
    for line in console.warned:
        warn_program(line)
