"""``fidtool check``."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import click

from fidtool.cli.options import QUIET, GroupedCommand, option, settings_options
from fidtool.cli.output import loading, print_failure, print_lines
from fidtool.errors import InputError
from fidtool.settings import GATES, IMAGES, OUTPUT, CheckSettings, Settings

_RESULT = "the result"


@click.command(cls=GroupedCommand)
@click.argument("images")
@settings_options(CheckSettings)
@option("--against", group=IMAGES, metavar="REAL", help="Compare with these images, or a file of `stats`.")
@option("--list", "only_list", group=OUTPUT, is_flag=True, help="Print the paths of the images that would be read.")
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print everything as JSON.")
@QUIET
@option("--strict", group=GATES, is_flag=True, help="Exit with status 3 if there is a finding about IMAGES.")
def check(
    images: str,
    against: str | None,
    only_list: bool,
    settings: Callable[[], Settings],
    as_json: bool,
    quiet: bool,
    strict: bool,
) -> int:
    """What a set of images is made of, and what may be wrong with it: no network, no FID.

    IMAGES are what FAKE may be for `compute`. Copies, noise, constant and badly scaled pictures, odd sizes, strong
    compression, files that cannot be read; with --against REAL, what tells the two sets apart that no generator is
    meant to answer for.
    """
    from fidtool.distributed.launch import discover

    paths = [images] if against is None else [images, against]
    if discover().world_size == 1:
        from fidtool.pipeline.inputs import require_exists

        require_exists(paths)  # a typo is answered before torch is imported
    if only_list:
        if against is not None or strict:
            raise InputError("--list looks at no image:", "leave out --against and --strict")
        return 0 if discover().rank > 0 else _list(images, settings(), as_json, quiet)
    with loading():
        from fidtool.console import Console
        from fidtool.pipeline.check import check as check_images
        from fidtool.pipeline.check import refuse_same
        from fidtool.pipeline.run import open_run
    from fidtool.report.text import checkup_lines, dumps

    console = Console(warnings=True, progress=not quiet, on_failure=print_failure)
    chosen = settings()
    refuse_same(images, against)
    with open_run(paths, chosen, console) as run:
        checkup = check_images(run, images, against, strict)
    if discover().rank > 0:
        return 0
    print_lines([dumps(checkup.to_dict())] if as_json else checkup_lines(checkup), _RESULT)
    if checkup.exit_code:
        click.echo(checkup.exit_reason, err=True)
    return checkup.exit_code


def _list(path: str, settings: Settings, as_json: bool, quiet: bool) -> int:
    """Prints what would be read; of addresses without what may be secret, as everything that is printed."""
    from fidtool.pipeline.inputs import open_source
    from fidtool.redaction import redacted, without_secrets
    from fidtool.report.text import dumps
    from fidtool.sources.image_set import ImageSet

    source = open_source(path, settings, {}, lambda line: click.echo(f"warning: {redacted(line)}", err=True))
    if not isinstance(source, ImageSet):
        raise InputError(f"{path} is a statistics file: no image of it is read")
    if settings.num is not None:
        source = source.draw(settings.num, settings.seed)
    files = (redacted(source.file(index)) for index in range(len(source)))
    if as_json:
        print_lines([dumps(without_secrets({"schema": 1, **source.summary(), "files": list(files)}))], _RESULT)
        return 0
    if not quiet:
        click.echo(redacted(f"{path}: {source.in_words()}"), err=True)
    while some := list(itertools.islice(files, 1000)):
        print_lines(some, _RESULT, exact=True)
    return 0
