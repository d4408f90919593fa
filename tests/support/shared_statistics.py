"""A statistics cache that several tests share, so that reference statistics are computed once."""

from __future__ import annotations

from pathlib import Path


def share_statistics(environment: dict[str, str], folder: Path) -> None:
    """Make the test's cache store its statistics in ``folder``, which other tests share."""
    folder.mkdir(exist_ok=True)
    (Path(environment["FIDTOOL_CACHE"]) / "statistics").symlink_to(folder)
