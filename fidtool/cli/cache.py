"""``fidtool cache``."""

from __future__ import annotations

import time

import click


@click.command(short_help="What is in the cache; empty it.")
@click.option("--clear", is_flag=True, help="Delete the cached statistics (the weights stay).")
def cache(clear: bool) -> None:
    """The cache of statistics: what is in it, and how to empty it.

    It lies in FIDTOOL_CACHE, else $XDG_CACHE_HOME/fidtool, else ~/.cache/fidtool, and keeps at most FIDTOOL_CACHE_BYTES
    (default 2 GiB), the least recently used going first.
    """
    from fidtool.cache_dir import cache_dir
    from fidtool.errors import RunError
    from fidtool.statistics.cache import StatisticsCache, limit_bytes

    statistics = StatisticsCache(lambda line: click.echo(line, err=True))
    if clear:
        try:
            click.echo(f"deleted {statistics.clear()} entries from {cache_dir()}")
        except OSError as error:
            raise RunError(f"the cache {cache_dir()} could not be emptied: {error}") from None
        return
    entries = statistics.entries()
    total = sum(entry.size for entry in entries)
    click.echo(f"{cache_dir()}: {len(entries)} entries, {total / 2**20:.1f} of {limit_bytes() / 2**20:.0f} MiB")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(f"  last used {used}  {entry.size / 2**20:7.1f} MiB  {entry.path.stem[:16]}")
