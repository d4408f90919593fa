"""``fidtool cache``."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import click


@click.command(short_help="What is in the cache; empty it.")
@click.option("--clear", is_flag=True, help="Delete the cached statistics and what --compile made (the weights stay).")
def cache(clear: bool) -> None:
    """The cache: what is in it, and how to empty it.

    It lies in FIDTOOL_CACHE, else $XDG_CACHE_HOME/fidtool, else ~/.cache/fidtool, and keeps at most FIDTOOL_CACHE_BYTES
    (default 2 GiB) of statistics, the least recently used going first; beside them the weights and what --compile made.
    """
    from fidtool.cache_dir import cache_dir, compiled_dir
    from fidtool.errors import RunError
    from fidtool.statistics.cache import StatisticsCache, limit_bytes

    statistics = StatisticsCache(lambda line: click.echo(line, err=True))
    if clear:
        try:
            count = statistics.clear()
            compiled = _delete(compiled_dir())
        except OSError as error:
            raise RunError(f"the cache {cache_dir()} could not be emptied: {error}") from None
        click.echo(f"deleted {count} entries{' and what --compile made' if compiled else ''} from {cache_dir()}")
        return
    entries = statistics.entries()
    total = sum(entry.size for entry in entries)
    click.echo(f"{cache_dir()}: {len(entries)} entries, {total / 2**20:.1f} of {limit_bytes() / 2**20:.0f} MiB")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(f"  last used {used}  {entry.size / 2**20:7.1f} MiB  {entry.path.stem[:16]}")
    if compiled_dir().is_dir():
        click.echo(f"beside them {_bytes_in(compiled_dir()) / 2**20:.1f} MiB that --compile made")


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total


def _delete(folder: Path) -> bool:
    """Deletes a folder, if it is there; whether it was."""
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True
