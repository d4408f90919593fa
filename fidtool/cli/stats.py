"""``fidtool stats`` and ``fidtool merge``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fidtool.cli.options import QUIET, TYPED, Command, LocalRankZeroCommand, option
from fidtool.cli.output import check_paths_early, format_flag, make_console, parse_output_file
from fidtool.errors import InputError, RunError, format_reason
from fidtool.features.protocol import WRITTEN_LAYOUTS, find_protocol
from fidtool.settings.settings import OUTPUT, Settings, StatisticsSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fidtool.statistics.set_statistics import Statistics
    from fidtool.system.console import Console

_EXAMPLES = (
    ("Compute the statistics of the real images once", "fidtool stats real/ -o real.npz"),
    (
        "Store the features as well, which KID needs",
        "fidtool stats real/ -o real-kid.npz --metrics fid,kid",
    ),
    (
        "Make a reference for ADM's evaluator",
        "fidtool stats real/ -o REF.npz --layout adm --crop adm:256",
    ),
)
_OF_MERGE = (
    ("In one job", "fidtool stats fake/ --part 1/2 -o part1.npz"),
    ("In another", "fidtool stats fake/ --part 2/2 -o part2.npz"),
    ("When both are done", "fidtool merge part1.npz part2.npz -o fake.npz"),
)
_OUTPUT = option(
    "--output",
    "-o",
    group=OUTPUT,
    metavar="FILE.npz",
    required=True,
    help="Statistics file to write.",
)
_FORCE = option("--force", group=OUTPUT, is_flag=True, help="Overwrite FILE.npz.")


@click.command(cls=Command, settings=StatisticsSettings, examples=_EXAMPLES)
@click.argument("images")
@_OUTPUT
@option(
    "--layout",
    group=OUTPUT,
    type=click.Choice([*WRITTEN_LAYOUTS], case_sensitive=False),
    help="Write FILE.npz for another project's evaluator, with the protocol of that project. edm "
    "is for EDM2 as well. [default: fidtool's layout]",
)
@option(
    "--images",
    "stored",
    group=OUTPUT,
    metavar="N",
    type=int,
    help="With --layout adm, store a random sample of N images. [default: 10000, or all if there "
    "are fewer]",
)
@option(
    "--complete",
    group=OUTPUT,
    metavar="FILE.npz",
    help="Statistics file of the same images. Only networks that the file does not have are "
    "computed; the others are taken from it.",
)
@option(
    "--part",
    group=OUTPUT,
    metavar="K/N",
    help="Compute only part K of N of the set, in an independent job. `fidtool merge` merges the "
    "parts; the result has the bits of a single run.",
)
@option(
    "--since",
    group=OUTPUT,
    metavar="FILE.npz",
    help="Earlier statistics file of the set. Only images that the file does not have are "
    "computed.",
)
@QUIET
@_FORCE
def stats(
    images: str,
    settings: Callable[[], Settings],
    output: str,
    layout: str | None,
    stored: int | None,
    complete: str | None,
    part: str | None,
    since: str | None,
    force: bool,
    quiet: bool,
) -> None:
    """Write the mean and covariance of a set of images to a file, which `compute` accepts as REAL
    or FAKE.

    IMAGES is a set of images in any form that `compute` accepts.

    With --metrics kid, prdc or other metrics that use per-image features, the file holds these
    features as well. pytorch-fid can read the file.
    """
    chosen = settings()
    if layout is not None:
        chosen = _layout_settings(chosen, layout)
        if part is not None or since is not None:
            raise InputError("--layout cannot be combined with --part or --since:", "omit them")
    if stored is not None and layout != "adm":
        raise InputError("--images applies to --layout adm only")

    def check() -> None:
        _check_target(output, layout, force, [images])

    check_paths_early([images], check=check)
    from fidtool.run.evaluate import measure_statistics

    console = make_console(quiet)
    statistics, sample = measure_statistics(
        [(images, "")],
        chosen,
        console,
        check,
        layout == "adm",
        stored,
        known=complete,
        part=part,
        since=since,
    )
    if not statistics:
        return
    notes = []
    if layout is not None:
        notes.append(f"layout {layout}, protocol {chosen.network.protocol}")
    if statistics.part is not None:
        notes.append(f"part {statistics.part.name} of {statistics.part.total} images")
    if sample is not None:
        notes.append(f"{len(sample)} of them in arr_0")
    _write(output, statistics, force, console, notes, layout, sample)


@click.command(cls=LocalRankZeroCommand, examples=_OF_MERGE)
@click.argument("parts", metavar="PART.npz...", nargs=-1, required=True)
@_OUTPUT
@QUIET
@_FORCE
def merge(parts: tuple[str, ...], output: str, force: bool, quiet: bool) -> None:
    """Merge the statistics of the parts of a set into the statistics of the whole set, with the
    bits of a single run.

    Each PART.npz is a file that `stats --part` wrote; the order does not matter. The merge is
    refused if images are missing or in two files, or if the sets, protocols, versions or devices of
    the parts differ.
    """
    _check_target(output, None, force, parts)
    from fidtool.diagnose.diagnosis import warnings_about
    from fidtool.statistics.merging import merge_statistics

    console = make_console(quiet)
    statistics = merge_statistics(parts)
    for warning in warnings_about(output, statistics):
        console.warn(warning.message)
    _write(output, statistics, force, console, [f"{len(parts)} parts"])


def _write(
    target: str,
    statistics: Statistics,
    force: bool,
    console: Console,
    notes: Sequence[str],
    layout: str | None = None,
    images: NDArray[np.uint8] | None = None,
) -> None:
    """Write the file, and say so with further ``notes``."""
    from fidtool.statistics.file import write_statistics

    try:
        write_statistics(target, statistics, layout, images, overwrite=force)
    except OSError as error:
        raise RunError(
            f"the statistics could not be written to {target}: {format_reason(error)}"
        ) from None
    said = [f"{statistics.count} images", f"{statistics.dims} dimensions", *notes]
    console.say(f"wrote {target}: {', '.join(said)}")


def _layout_settings(settings: Settings, layout: str) -> Settings:
    """Return the settings with which a layout's project computes statistics."""
    protocol: Any = find_protocol(layout).name
    network = settings.network
    differing = {
        "preset" if settings.preset else "protocol": network.protocol not in (None, protocol),
        "extractor": network.extractor != "inception",
        "dims": network.dims not in (None, 2048),
        "metrics": click.get_current_context().get_parameter_source("metrics") == TYPED,
    }
    for name, differs in differing.items():
        if differs:
            raise InputError(
                f"--layout {layout} needs Inception's 2048 dimensions and the protocol {protocol}:",
                f"omit {format_flag(name)}, which follows from it",
                setting=name,
            )
    return replace(settings, protocol=protocol, metrics=WRITTEN_LAYOUTS[layout])


def _check_target(name: str, layout: str | None, force: bool, inputs: Sequence[str]) -> None:
    """Check that the file can be written and read back, before any work is done, and is none of
    ``inputs``.
    """
    from fidtool.statistics.file import features_file

    target = parse_output_file("-o", name, (".npz",), inputs)
    files = [target]
    if layout == "clean-fid":
        files.append(features_file(target))
    for file in files:
        if file.exists() and not force:
            raise InputError(f"{file} exists", "pass --force to overwrite it")
