"""``fidtool check``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import click

from fidtool.cli.options import QUIET, Command, option
from fidtool.cli.output import check_paths_early, make_console, note, print_lines, to_json_text
from fidtool.distributed.launch import discover
from fidtool.errors import InputError, redact
from fidtool.names import escape_text, format_count
from fidtool.settings.settings import GATES, IMAGES, OUTPUT, CheckSettings, Settings

_EXAMPLES = (
    ("Look for duplicates and faulty images", "fidtool check fake/"),
    ("Compare with the real images as well", "fidtool check fake/ --against real/"),
    (
        "CI gate: exit status 3 if there is a finding about fake/",
        "fidtool check fake/ --strict --json",
    ),
)


@click.command(cls=Command, settings=CheckSettings, examples=_EXAMPLES)
@click.argument("images")
@option(
    "--against",
    group=IMAGES,
    metavar="REAL",
    help="Compare with these real images, or with a statistics file written by `stats`.",
)
@option(
    "--list",
    "only_list",
    group=OUTPUT,
    is_flag=True,
    help="Print only the paths of the images, without reading them.",
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print the result as JSON.")
@QUIET
@option(
    "--strict", group=GATES, is_flag=True, help="Exit status 3 if there is a finding about IMAGES."
)
def check(
    images: str,
    against: str | None,
    only_list: bool,
    settings: Callable[[], Settings],
    as_json: bool,
    quiet: bool,
    strict: bool,
) -> int:
    """Describe a set of images and report what may be wrong with it. No features are extracted.

    IMAGES is a set of images in any form that `compute` accepts. Findings are duplicates, noise,
    constant or badly scaled images, unusual sizes, strong compression and unreadable files. With
    --against REAL, they are also differences between the two sets that have nothing to do with the
    generator, such as different file formats.
    """
    paths = [images] if against is None else [images, against]
    check_paths_early(paths)
    if only_list:
        if against is not None or strict:
            raise InputError("--list cannot be combined with --against or --strict:", "omit them")
        if discover().rank == 0:
            _list(images, settings(), as_json, quiet)
        return 0
    from fidtool.report.text import checkup_lines, dumps
    from fidtool.run.check import check_sets

    checkup = check_sets([(path, "") for path in paths], settings(), make_console(quiet), strict)
    if discover().rank > 0:
        return 0
    if as_json:
        print_lines([dumps(checkup.to_dict())])
    else:
        print_lines([escape_text(line) for line in checkup_lines(checkup)])
    if checkup.exit_code:
        note(checkup.exit_reason)
    return checkup.exit_code


def _list(path: str, settings: Settings, as_json: bool, quiet: bool) -> None:
    """Print the paths of the images that would be read. Secrets in URLs are removed."""
    from fidtool.run.opening import open_set
    from fidtool.run.sets import IMAGES, RequestedSet

    opened = open_set(RequestedSet(path), settings, IMAGES, note)
    if opened.warning:
        note(f"warning: {opened.warning}")
    source = opened.images
    if source is None:
        raise InputError(f"{path} is a statistics file, which has no images")
    if settings.num is not None:
        source = source.draw(settings.sampling())
    count = len(source)
    files = (redact(source.file(index)) for index in range(count))
    found = len(source.stored)
    in_order = source.reader.in_order
    ignored = source.passed_over.words
    if as_json:
        text = to_json_text(
            source=redact(source.path),
            kind=source.kind,
            count=count,
            found=found,
            in_order=in_order,
            passed_over=ignored,
            files=[*files],
        )
        print_lines([text])
        return
    if not quiet:
        number = format_count(found, "image")
        if count != found:
            number = f"{count} of {number}"
        access = "sequentially" if in_order else "in any order"
        passed_over = f"; ignored: {ignored}" if ignored else ""
        note(f"{path}: {source.kind}, {number}, read {access}{passed_over}")
    while block := [*islice(files, 1000)]:  # a large set has gigabytes of paths
        print_lines(block)
