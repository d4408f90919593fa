"""The Python API: the command line's commands as functions."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, get_type_hints, overload

from fidtool.console import Console
from fidtool.diagnose.diagnosis import Checkup
from fidtool.errors import InputError
from fidtool.images.lookup import ImageLookup
from fidtool.metrics.registry import refuse_given_twice
from fidtool.pipeline.check import check as check_images
from fidtool.pipeline.check import refuse_same
from fidtool.pipeline.evaluate import compute_statistics as statistics_of
from fidtool.pipeline.evaluate import evaluate
from fidtool.pipeline.inputs import Inputs
from fidtool.pipeline.run import open_run
from fidtool.record import Origin, call_of
from fidtool.report.files import check_shown, write_plot, write_report
from fidtool.results import Evaluation, Exhibit
from fidtool.settings import CheckSettings, Settings, StatisticsSettings
from fidtool.sources.memory import Images, Named, several
from fidtool.statistics.statistics_file import Statistics
from fidtool.validation import declared

PathOrURL = str | os.PathLike[str]
Source: TypeAlias = "PathOrURL | Images | Sequence[Any] | Iterable[Any]"
"""A path or URL, or images that a program has: see `fidtool.Images`."""

P = ParamSpec("P")
_DEFAULTS = Settings()


class _Compute(Protocol[P]):
    def __call__(
        self, real: Source, fake: Source | Sequence[PathOrURL | Images], *args: P.args, **settings: P.kwargs
    ) -> Evaluation: ...


class _ComputeStatistics(Protocol[P]):
    def __call__(self, images: Source, *args: P.args, **settings: P.kwargs) -> Statistics | None: ...


class _Check(Protocol[P]):
    def __call__(
        self, images: Source, against: Source | None = None, *args: P.args, **settings: P.kwargs
    ) -> Checkup: ...


class _with_keywords_of(Generic[P]):  # noqa: N801 (a decorator)
    """Puts the fields of ``kind`` as keywords in the place of a function's last argument, a `Settings`.

    Type checkers see each keyword by the types above, `inspect.signature` by ``__signature__``, and `help` tells what
    each is for.
    """

    def __init__(self, kind: Callable[P, CheckSettings]) -> None:
        self._kind: Any = kind

    @overload
    def __call__(
        self, function: Callable[[Source, Source | Sequence[PathOrURL | Images], Settings], Evaluation]
    ) -> _Compute[P]: ...
    @overload
    def __call__(self, function: Callable[[Source, Settings], Statistics | None]) -> _ComputeStatistics[P]: ...
    @overload
    def __call__(self, function: Callable[[Source, Source | None, Settings], Checkup]) -> _Check[P]: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        original, types = inspect.signature(function), get_type_hints(self._kind)
        *sets, _ = original.parameters.values()
        keywords = [
            each.replace(annotation=inspect.formatannotation(types[each.name]))
            for each in inspect.signature(self._kind).parameters.values()
        ]
        signature = original.replace(parameters=[*sets, *keywords])

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}{_meant(kwargs, signature)}") from None
            if isinstance(metrics := bound.arguments.get("metrics"), Iterable) and not isinstance(metrics, str):
                bound.arguments["metrics"] = [*metrics]  # it is looked at more than once
            refuse_given_twice(bound.arguments)
            bound.apply_defaults()
            return function(*bound.args, Settings(**bound.kwargs))

        called.__signature__ = signature  # type: ignore[attr-defined]
        words = [f"        {name}: {each.described}" for name, each in declared(self._kind).items()]
        called.__doc__ = "\n".join([f"{function.__doc__}", "    Settings:", *words, ""])
        return called


def _meant(keywords: Iterable[str], signature: inspect.Signature) -> str:
    """The keyword that was probably meant by a misspelt one, for a message."""
    from difflib import get_close_matches

    unknown = (name for name in keywords if name not in signature.parameters)
    close = [match for name in unknown for match in get_close_matches(name, signature.parameters, 1, 0.75)]
    return f". Did you mean '{close[0]}'?" if close else ""


@_with_keywords_of(Settings)
def compute(real: Source, fake: Source | Sequence[PathOrURL | Images], settings: Settings) -> Evaluation:
    """FID, or what else ``metrics`` asks for, of one or several sets of generated images against a set of real ones.

    Run under torchrun, SLURM or with RANK and WORLD_SIZE set, it is a collective: all ranks call it with the same
    arguments and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics file (.npz); or images
            that are in no file, see `fidtool.Images`: a list, an array, a ``Dataset``, an iterable.
        fake: the same, or a list of paths and `fidtool.Images`; REAL is then computed once.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` for several, ``.to_dict()`` for the JSON's content. With
        another network or other dimensions there is no FID but a ``.frechet_distance``, see `fidtool.labels`.
        Warnings about the number are in ``.results[i].warnings`` and ``.run.warnings``; nothing is printed. A report or
        plot that cannot be written at the end is a `RuntimeWarning`.

    Raises:
        fidtool.InputError: what was given cannot be evaluated; the message says why and what to do.
        fidtool.RunError: the run failed.
        fidtool.StoppedError: another rank was told to stop.
    """
    fakes = several(fake)
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    named = Named(real, *fakes)
    paths = [named.of(real, "real"), *(named.of(each, "fake") for each in fakes)]
    files = {"report": settings.report, "plot": settings.plot}
    shown = {setting: Path(file) for setting, file in files.items() if file is not None}
    kinds = {name: images.kind for name, images in named.in_memory.items()}
    origin = Origin.here(call_of(paths[0], paths[1:], kinds, settings))
    with open_run(paths, settings, Console(), named.in_memory) as run:
        run.world.on_rank_zero(lambda: _check_shown(shown))
        inputs = Inputs(run, paths)
        evaluation, exhibits = evaluate(inputs, origin)
        run.world.on_rank_zero(lambda: _show(shown, evaluation, exhibits, inputs.lookup()))
        return evaluation


@_with_keywords_of(StatisticsSettings)
def compute_statistics(images: Source, settings: Settings) -> Statistics | None:
    """Mean and covariance of the features of a set of images; what ``fidtool stats`` writes to a file.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`.

    Returns:
        ``mu`` of shape (dims,), ``sigma`` of shape (dims, dims), both float64, and what is known of their origin, on
        rank zero; None on the other ranks.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    named = Named(images)
    path = named.of(images, "images")
    with open_run([path], settings, Console(), named.in_memory) as run:
        return statistics_of(Inputs(run, [path], real=False))


@_with_keywords_of(CheckSettings)
def check(images: Source, against: Source | None = None, settings: Settings = _DEFAULTS) -> Checkup:
    """What a set of images is made of, and what may be wrong with it; no network is needed.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`, but no iterable.
        against: others, REAL, or a statistics file of fidtool's; None looks at one set alone.

    Returns:
        What was found: ``.images`` and ``.against`` (each a `fidtool.diagnose.diagnosis.Health` with its ``findings``),
        ``.between``, ``.to_dict()``; the same on every rank.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    named = Named(images, against)
    path, other = named.of(images, "images"), None if against is None else named.of(against, "real")
    refuse_same(path, other, in_memory=bool(named.in_memory))
    with open_run([path] if other is None else [path, other], settings, Console(), named.in_memory) as run:
        return check_images(run, path, other)


def _check_shown(files: Mapping[str, Path]) -> None:
    for setting, file in files.items():
        check_shown(setting, file)


def _show(
    files: Mapping[str, Path], evaluation: Evaluation, exhibits: Sequence[Exhibit | None], lookup: ImageLookup
) -> None:
    """Writes what was asked for, on rank zero. A page that fails takes no number along: that is a warning."""
    writers: dict[str, Callable[[Path], None]] = {
        "report": lambda file: write_report(evaluation, exhibits, lookup, file),
        "plot": lambda file: write_plot(evaluation, file),
    }
    for setting, file in files.items():
        try:
            writers[setting](file)
        except Exception as error:
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warnings.warn(f"{file} could not be written: {reason}", RuntimeWarning, stacklevel=2)
