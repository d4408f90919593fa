"""A statistics cache that several tests share: what they only compare with is computed once."""

from __future__ import annotations

from pathlib import Path


def share_statistics(environment: dict[str, str], folder: Path) -> None:
    """Lets the test's own cache keep its statistics in ``folder``, where earlier tests have kept theirs."""
    folder.mkdir(exist_ok=True)
    (Path(environment["FIDTOOL_CACHE"]) / "statistics").symlink_to(folder)
