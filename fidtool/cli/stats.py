"""``fidtool stats``."""

from __future__ import annotations

from pathlib import Path

import click

from fidtool.cli.options import OUTPUT, GroupedCommand, error_line, measuring, option, unwritable
from fidtool.config import Config
from fidtool.errors import FidtoolError, InputError, RunError


@click.command(cls=GroupedCommand, short_help="Keep the statistics of a folder in a file.")
@click.argument("images")
@measuring
@option("--output", "-o", group=OUTPUT, metavar="FILE.npz", required=True, help="Statistics file to write.")
@option("--force", group=OUTPUT, is_flag=True, help="Overwrite FILE.npz.")
def stats(
    images: str,
    protocol: str | None,
    extractor: str,
    dims: str | None,
    weights: str | None,
    num: int | None,
    seed: int,
    recursive: bool,
    on_error: str,
    max_skip: float,
    max_pixels: int,
    device: str | None,
    batch_size: int | None,
    num_workers: int | None,
    precision: str,
    no_cache: bool,
    quiet: bool,
    checkpoint: str | None,
    checkpoint_every: float,
    peer_timeout: float,
    timeout: float,
    output: str,
    force: bool,
) -> None:
    """Mean and covariance of a folder of images, written to a file that `compute` takes as REAL or FAKE.

    pytorch-fid reads the file too.
    """
    config = Config(
        protocol=protocol,
        extractor=extractor,
        dims=None if dims is None else int(dims),
        precision=precision,
        weights=weights,
        num=num,
        seed=seed,
        recursive=recursive,
        on_error=on_error,
        max_skip=max_skip,
        max_pixels=max_pixels,
        batch_size=batch_size,
        num_workers=num_workers,
        device=device,
        cache=not no_cache,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        peer_timeout=peer_timeout,
        timeout=timeout,
    )
    from fidtool.distributed.launch import discover

    target = Path(output)
    if discover().world_size == 1:
        from fidtool.sources import require_exists

        _check_target(target, force)  # a typo is answered before torch is imported
        require_exists([images])
    from fidtool.console import Console
    from fidtool.evaluate import statistics_of
    from fidtool.statistics.store import write_statistics

    console = Console(warnings=True, progress=not quiet, on_failure=_tell)
    statistics = statistics_of(images, config, console, before=lambda: _check_target(target, force))
    if statistics is None:
        return
    try:
        write_statistics(target, statistics)
    except OSError as error:
        raise RunError(f"the statistics could not be written to {target}: {error.strerror or error}") from None
    console.say(f"wrote {target}: {statistics.count} images, {statistics.dims} dimensions")


def _tell(error: FidtoolError, aloud: bool) -> None:
    if aloud:
        error_line(str(error))


def _check_target(target: Path, force: bool) -> None:
    """Refuses what could not be written or read back, before any work is done."""
    if target.suffix.lower() != ".npz":
        raise InputError(f"-o {target}: the name of a statistics file ends in .npz")
    if problem := unwritable(target) or ("it is a folder" if target.is_dir() else ""):
        raise InputError(f"-o {target} cannot be written: {problem}")
    if target.exists() and not force:
        raise InputError(f"{target} exists; pass --force to overwrite it")
