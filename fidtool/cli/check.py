"""``fidtool check``."""

from __future__ import annotations

from collections.abc import Callable

import click

from fidtool.cli.options import GATES, IMAGES, OUTPUT, QUIET, GroupedCommand, looking, option
from fidtool.cli.output import error_line, print_whole
from fidtool.config import Config
from fidtool.errors import FidtoolError, RunError


@click.command(cls=GroupedCommand, short_help="Look for what is wrong with a set of images.")
@click.argument("images")
@looking
@option("--against", group=IMAGES, metavar="REAL", help="Compare with these images: a folder, or a file of `stats`.")
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print everything as JSON.")
@QUIET
@option("--strict", group=GATES, is_flag=True, help="Exit with status 3 if there is a finding about IMAGES.")
def check(
    images: str,
    against: str | None,
    settings: Callable[..., Config],
    as_json: bool,
    quiet: bool,
    strict: bool,
) -> int:
    """What a folder of images is made of, and what may be wrong with it: no network, no FID.

    Copies, noise, constant and badly scaled pictures, odd sizes, strong compression, files that cannot be read; with
    --against REAL, what tells the two sets apart that no generator is meant to answer for.
    """
    from fidtool.distributed.launch import discover

    paths = [images] if against is None else [images, against]
    if discover().world_size == 1:
        from fidtool.inputs import require_exists

        require_exists(paths)  # a typo is answered before torch is imported
    from fidtool.checkup import check as check_images
    from fidtool.console import Console
    from fidtool.report.as_json import dumps
    from fidtool.report.as_text import checkup_lines

    console = Console(warnings=True, progress=not quiet, on_failure=_tell)
    checkup = check_images(images, against, settings(), console, strict)
    if discover().rank > 0:
        return 0
    try:
        print_whole([dumps(checkup.to_dict())] if as_json else checkup_lines(checkup))
    except OSError as error:
        raise RunError(f"the result could not be written to stdout ({error.strerror or error})") from None
    if checkup.exit_code:
        click.echo(checkup.exit_reason, err=True)
    return checkup.exit_code


def _tell(error: FidtoolError, aloud: bool) -> None:
    if aloud:
        error_line(str(error))
