"""``fidtool cache``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from fidtool.cli.options import OnceCommand
from fidtool.cli.output import columns, document
from fidtool.errors import InputError, RunError
from fidtool.names import counted, legible
from fidtool.sources.remote import delete_copies
from fidtool.statistics.cache import Entry, cache_entries, sweep
from fidtool.statistics.file import read_summary
from fidtool.system.cache_dir import byte_limit, cache_dir
from fidtool.system.json_fields import plain

_SHOWN_DIGITS = 12
"""Digits of an entry's name that the list shows; enough to identify the entry."""


@click.command(cls=OnceCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option(
    "--clear",
    is_flag=True,
    help="Delete all cached statistics and copies of remote files, not weights or references.",
)
def cache(as_json: bool, clear: bool) -> Iterator[str]:
    """List the cached statistics, the last used first, or delete them.

    The cache is the folder FIDTOOL_CACHE, else $XDG_CACHE_HOME/fidtool, else ~/.cache/fidtool. It
    holds at most FIDTOOL_CACHE_BYTES (default 2 GiB) of statistics; the least recently used are
    deleted first. The weights and the references are in the same folder.
    """
    if as_json and clear:
        raise InputError("--json and --clear cannot be combined:", "pass one of them")
    entries = cache_entries()
    if as_json:
        yield _json(entries)
    elif clear:
        yield _deleted(entries)
    else:
        yield from _table(entries)


def _deleted(entries: Sequence[Entry]) -> str:
    """Delete the statistics and the copies of remote files. Return what was done."""
    try:
        for entry in entries:
            entry.path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"the cache {cache_dir()} could not be changed: {error}") from None
    sweep()
    delete_copies()
    return f"deleted {counted(len(entries), 'entry', 'entries')} from {cache_dir()}"


def _json(entries: Sequence[Entry]) -> str:
    return document(
        folder=str(cache_dir()),
        bytes=sum(entry.size for entry in entries),
        limit_bytes=byte_limit("FIDTOOL_CACHE_BYTES"),
        entries=[_as_dict(entry) for entry in entries],
    )


def _as_dict(entry: Entry) -> dict[str, Any]:
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
        "framing": plain(summary.framing),
        "bytes": entry.size,
        "used": _date(entry),
    }


def _date(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.used, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _table(entries: Sequence[Entry]) -> list[str]:
    total = sum(entry.size for entry in entries)
    count = counted(len(entries), "entry", "entries")
    lines = [
        f"{cache_dir()}: {count}, {total / 2**20:.1f} of "
        f"{byte_limit('FIDTOOL_CACHE_BYTES') / 2**20:.0f} MiB"
    ]
    rows = [("ID", "images", "network (dims)", "protocol", "MiB", "last used", "path")]
    for entry in entries:
        summary = read_summary(entry.path)
        made = summary.definition
        sampled = (
            f" of {summary.found}"
            if summary.count and summary.found not in (None, summary.count)
            else ""
        )
        framing = f" (framed by {summary.framing})" if summary.framing else ""
        rows.append(
            (
                entry.path.stem[:_SHOWN_DIGITS],
                f"{summary.count or '?'}{sampled}",
                f"{legible(made.extractor)} ({made.dims})" if made else "?",
                (made.protocol_name or "its own") if made else "?",
                f"{entry.size / 2**20:.1f}",
                _date(entry),
                (legible(summary.source) or "?") + framing,
            )
        )
    return [*lines, *(columns(rows) if entries else [])]
