"""``fidtool cache``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from fidtool.cli.options import JSON, LocalRankZeroCommand
from fidtool.cli.output import align_columns, to_json_text
from fidtool.errors import InputError, RunError
from fidtool.names import escape_text, format_count
from fidtool.system.cache_dir import cache_dir
from fidtool.system.variables import CACHE_BYTES

if TYPE_CHECKING:
    from fidtool.statistics.cache import CacheEntry

# How many digits of an entry's name the list shows: enough to identify the entry.
_SHOWN_DIGITS = 12


@click.command(cls=LocalRankZeroCommand)
@JSON
@click.option(
    "--clear",
    is_flag=True,
    help="Delete all cached statistics and copies of remote files, but not weights or references.",
)
def cache(as_json: bool, clear: bool) -> Iterator[str]:
    """List the cached statistics, the most recently used first, or delete them.

    The cache is the folder that FIDTOOL_CACHE names, else $XDG_CACHE_HOME/fidtool, else
    ~/.cache/fidtool. If the statistics take more than FIDTOOL_CACHE_BYTES (default: 2 GiB), the
    least recently used ones are deleted. Weights and references are in the same folder, but do not
    count towards this limit.
    """
    if as_json and clear:
        raise InputError("--json and --clear cannot be combined:", "pass one of them")
    from fidtool.statistics.cache import cache_entries

    entries = cache_entries()
    if clear:
        yield _delete(entries)
    elif as_json:
        yield to_json_text(
            folder=str(cache_dir()),
            bytes=sum(entry.size for entry in entries),
            limit_bytes=CACHE_BYTES.byte_limit(),
            entries=[_as_dict(entry) for entry in entries],
        )
    else:
        yield from _table(entries)


def _delete(entries: Sequence[CacheEntry]) -> str:
    """Delete the statistics and the copies of remote files. Return what was done."""
    from fidtool.sources.remote import delete_copies
    from fidtool.statistics.cache import delete_temporary_files

    try:
        for entry in entries:
            entry.path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"the cache {cache_dir()} could not be changed: {error}") from None
    delete_temporary_files()
    delete_copies()
    return f"deleted {format_count(len(entries), 'entry')} from {cache_dir()}"


def _as_dict(entry: CacheEntry) -> dict[str, Any]:
    from fidtool.statistics.file import read_summary

    summary = read_summary(entry.path)
    definition = summary.definition
    return {
        "id": entry.path.stem,
        "path": summary.source or None,
        "images": summary.count,
        "found": summary.found,
        "network": definition and definition.extractor,
        "dims": definition and definition.dims,
        "protocol": definition and definition.protocol_name,
        "framing": summary.framing,
        "bytes": entry.size,
        "used": datetime.fromtimestamp(entry.used, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _table(entries: Sequence[CacheEntry]) -> Iterator[str]:
    count = format_count(len(entries), "entry")
    total = sum(entry.size for entry in entries) / 2**20
    limit = CACHE_BYTES.byte_limit() / 2**20
    yield f"{cache_dir()}: {count}, {total:.1f} of {limit:.0f} MiB"
    if entries:
        heading = ("ID", "images", "network (dims)", "protocol", "MiB", "last used", "path")
        yield from align_columns([heading, *(_row(_as_dict(entry)) for entry in entries)])


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    images = f"{facts['images'] or '?'}"
    if facts["images"] and facts["found"] not in (None, facts["images"]):
        images += f" of {facts['found']}"
    network = protocol = "?"
    if facts["network"]:
        network = f"{escape_text(facts['network'])} ({facts['dims']})"
        protocol = facts["protocol"] or "its own"
    path = escape_text(facts["path"] or "?")
    if facts["framing"]:
        path += f" (cropped by {facts['framing']})"
    size = f"{facts['bytes'] / 2**20:.1f}"
    return facts["id"][:_SHOWN_DIGITS], images, network, protocol, size, facts["used"], path
