"""The Python API: the command line's commands as functions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from fidtool.checkup import check as check_images
from fidtool.config import MAX_PIXELS, Config
from fidtool.console import Console
from fidtool.diagnose.health import Checkup
from fidtool.errors import InputError
from fidtool.evaluate import evaluate, statistics_of
from fidtool.images.gallery import Gallery
from fidtool.record import Origin, call_of
from fidtool.report.exhibits import Exhibit
from fidtool.report.files import check_shown, write_report
from fidtool.results import Evaluation
from fidtool.sources.given import Images, Named, several
from fidtool.statistics.store import Statistics

PathLike = str | os.PathLike[str]
Source: TypeAlias = "PathLike | Images | Sequence[Any] | Iterable[Any]"
"""A path or URL, or images that a program has: see `fidtool.Images`."""


def compute(
    real: Source,
    fake: Source | Sequence[PathLike | Images],
    *,
    metrics: str | Sequence[str] = "fid",
    kid_subset_size: int = 1000,
    kid_subsets: int = 100,
    kid_seed: int = 0,
    is_splits: int = 10,
    is_bias: bool = False,
    nearest_k: int = 5,
    ties: str = "strict",
    cmmd_extractor: str = "clip",
    cmmd_weights: PathLike | None = None,
    cmmd_input_size: int | None = None,
    cmmd_feature_step: int | None = None,
    protocol: str | None = None,
    extractor: str | None = None,
    dims: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    weights: PathLike | None = None,
    input_size: int | None = None,
    feature_step: int | None = None,
    num: int | None = None,
    seed: int = 0,
    expect: int | None = None,
    recursive: bool = True,
    value_range: tuple[float, float] | None = None,
    on_error: str = "fail",
    max_skip: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    batch_size: int | None = None,
    num_workers: int | None = None,
    device: str | None = None,
    cache: bool = True,
    diagnose: bool = True,
    allow_mismatch: bool = False,
    fail_above: float | None = None,
    max_duplicates: float | None = None,
    uncertainty: bool = False,
    influence: bool = False,
    report: PathLike | None = None,
    plot: PathLike | None = None,
    checkpoint: PathLike | None = None,
    checkpoint_every: float = 15.0,
    peer_timeout: float = 20.0,
    timeout: float = 1800.0,
) -> Evaluation:
    """FID, or what else ``metrics`` asks for, of one or several sets of generated images against a set of real ones.

    Run under torchrun, SLURM or with RANK and WORLD_SIZE set, it is a collective: all ranks call it with the same
    arguments and all return the same evaluation.

    Args:
        real: path or URL of images (a folder, archive, array, table or list) or of a statistics file (.npz); or images
            that are in no file, see `fidtool.Images`: a list, an array, a ``Dataset``, an iterable.
        fake: the same, or a list of paths and `fidtool.Images`; REAL is then computed once.
        report: file for the page with numbers, charts and pictures, see ``fidtool compute --report``.
        plot: file for the curve of the FAKEs' Fréchet distances.
        extractor: see the field of that name in `fidtool.config.Config`; None is what the statistics files have, where
            that is a published network, or ``inception``.
        metrics and all others: see the field of that name in `fidtool.config.Config`.

    Returns:
        The evaluation: ``.fid`` for one FAKE, ``.results`` for several, ``.to_dict()`` for the JSON's content. With
        another network or other dimensions there is no FID but a ``.frechet_distance``, see `fidtool.labels`.
        Doubts about the number are in ``.results[i].warnings`` and ``.run.warnings``; nothing is printed. A report or
        plot that cannot be written at the end is a `RuntimeWarning`.

    Raises:
        fidtool.InputError: what was given cannot be evaluated; the message says why and what to do.
        fidtool.RunError: the run failed.
        fidtool.StoppedError: another rank was told to stop.
    """
    fakes = several(fake)
    named = Named(real, *fakes)
    real_name, fake_names = named.of(real, "real"), [named.of(each, "fake") for each in fakes]
    config = Config(
        metrics=_names(metrics),
        kid_subset_size=kid_subset_size,
        kid_subsets=kid_subsets,
        kid_seed=kid_seed,
        is_splits=is_splits,
        is_bias=is_bias,
        nearest_k=nearest_k,
        ties=ties,
        cmmd_extractor=cmmd_extractor,
        cmmd_weights=None if cmmd_weights is None else os.fspath(cmmd_weights),
        cmmd_input_size=cmmd_input_size,
        cmmd_feature_step=cmmd_feature_step,
        protocol=protocol,
        extractor=Config.extractor if extractor is None else extractor,
        inception_named=extractor == Config.extractor,
        dims=dims,
        precision=precision,
        compiled=compiled,
        weights=None if weights is None else os.fspath(weights),
        input_size=input_size,
        feature_step=feature_step,
        num=num,
        seed=seed,
        expect=expect,
        recursive=recursive,
        value_range=value_range,
        on_error=on_error,
        max_skip=max_skip,
        max_pixels=max_pixels,
        batch_size=batch_size,
        num_workers=num_workers,
        device=device,
        cache=cache,
        diagnose=diagnose,
        allow_mismatch=allow_mismatch,
        fail_above=fail_above,
        max_duplicates=max_duplicates,
        uncertainty=uncertainty,
        influence=influence,
        exhibits=report is not None,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        checkpoint_every=checkpoint_every,
        peer_timeout=peer_timeout,
        timeout=timeout,
    )
    shown = {flag: Path(file) for flag, file in (("--report", report), ("--plot", plot)) if file is not None}
    if "--plot" in shown and "fid" not in config.metrics:
        raise InputError("plot draws the metric fid, which is not among those asked for")
    check = partial(_check_shown, shown)
    kinds = {name: images.kind for name, images in named.given.items()}
    origin = Origin.here(call_of(real_name, fake_names, kinds, config, {"report": report, "plot": plot}))
    return evaluate(real_name, fake_names, config, None, check, partial(_show, shown), named.given, origin)


def _check_shown(files: Mapping[str, Path]) -> None:
    for flag, file in files.items():
        check_shown(flag, file)


def _show(
    files: Mapping[str, Path], evaluation: Evaluation, exhibits: Sequence[Exhibit | None], gallery: Gallery
) -> None:
    """Writes what was asked for, on rank zero. A page that fails takes no number along: that is a warning."""
    from fidtool.report.plot import write_plot

    writers: dict[str, Callable[[Path], None]] = {
        "--report": lambda file: write_report(evaluation, exhibits, gallery, file),
        "--plot": lambda file: write_plot(evaluation, file),
    }
    for flag, file in files.items():
        try:
            writers[flag](file)
        except Exception as error:
            reason = (isinstance(error, OSError) and error.strerror) or repr(error)
            warnings.warn(f"{file} could not be written: {reason}", RuntimeWarning, stacklevel=2)


def compute_statistics(
    images: Source,
    *,
    metrics: str | Sequence[str] = "fid",
    cmmd_extractor: str = "clip",
    cmmd_weights: PathLike | None = None,
    cmmd_input_size: int | None = None,
    cmmd_feature_step: int | None = None,
    protocol: str | None = None,
    extractor: str = "inception",
    dims: int | None = None,
    precision: str = "fp32",
    compiled: bool = False,
    weights: PathLike | None = None,
    input_size: int | None = None,
    feature_step: int | None = None,
    num: int | None = None,
    seed: int = 0,
    recursive: bool = True,
    value_range: tuple[float, float] | None = None,
    on_error: str = "fail",
    max_skip: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    batch_size: int | None = None,
    num_workers: int | None = None,
    device: str | None = None,
    cache: bool = True,
    diagnose: bool = True,
    checkpoint: PathLike | None = None,
    checkpoint_every: float = 15.0,
    peer_timeout: float = 20.0,
    timeout: float = 1800.0,
) -> Statistics | None:
    """Mean and covariance of the features of a set of images; what ``fidtool stats`` writes to a file.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`.
        metrics and all others: see the field of that name in `fidtool.config.Config`; what metrics need is kept.

    Returns:
        ``mu`` of shape (dims,), ``sigma`` of shape (dims, dims), both float64, and what is known of their origin, on
        rank zero; None on the other ranks.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    config = Config(
        metrics=_names(metrics),
        cmmd_extractor=cmmd_extractor,
        cmmd_weights=None if cmmd_weights is None else os.fspath(cmmd_weights),
        cmmd_input_size=cmmd_input_size,
        cmmd_feature_step=cmmd_feature_step,
        protocol=protocol,
        extractor=extractor,
        dims=dims,
        precision=precision,
        compiled=compiled,
        weights=None if weights is None else os.fspath(weights),
        input_size=input_size,
        feature_step=feature_step,
        num=num,
        seed=seed,
        recursive=recursive,
        value_range=value_range,
        on_error=on_error,
        max_skip=max_skip,
        max_pixels=max_pixels,
        batch_size=batch_size,
        num_workers=num_workers,
        device=device,
        cache=cache,
        diagnose=diagnose,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        checkpoint_every=checkpoint_every,
        peer_timeout=peer_timeout,
        timeout=timeout,
    )
    named = Named(images)
    return statistics_of(named.of(images, "images"), config, given=named.given)


def check(
    images: Source,
    against: Source | None = None,
    *,
    num: int | None = None,
    seed: int = 0,
    recursive: bool = True,
    value_range: tuple[float, float] | None = None,
    max_pixels: int = MAX_PIXELS,
    num_workers: int | None = None,
    peer_timeout: float = 20.0,
    timeout: float = 1800.0,
) -> Checkup:
    """What a set of images is made of, and what may be wrong with it; no network is needed.

    A collective like `compute`.

    Args:
        images: as ``real`` of `compute`, but no iterable.
        against: others, REAL, or a statistics file of fidtool's; None looks at one set alone.
        num and all others: see the field of that name in `fidtool.config.Config`.

    Returns:
        What was found: ``.images`` and ``.against`` (each a `fidtool.diagnose.health.Health` with its ``findings``),
        ``.between``, ``.to_dict()``; the same on every rank.

    Raises:
        fidtool.InputError, fidtool.RunError: see `compute`.
    """
    config = Config(
        num=num,
        seed=seed,
        recursive=recursive,
        value_range=value_range,
        max_pixels=max_pixels,
        num_workers=num_workers,
        peer_timeout=peer_timeout,
        timeout=timeout,
    )
    named = Named(images, against)
    names = named.of(images, "images"), None if against is None else named.of(against, "real")
    return check_images(*names, config, Console(), given=named.given)


def _names(metrics: str | Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(metrics.split(",") if isinstance(metrics, str) else metrics)
    except TypeError:
        raise InputError(f"metrics must be names of metrics, not {metrics!r}") from None
