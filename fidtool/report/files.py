"""A run's page and plot as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fidtool.cache_dir import atomic_write, check_target
from fidtool.errors import InputError
from fidtool.report.files import require_report_extra

if TYPE_CHECKING:
    from fidtool.images.lookup import ImageLookup
    from fidtool.report.exhibits import Exhibit
    from fidtool.results import Evaluation

_SUFFIXES = {"--report": (".html", ".htm"), "--plot": (".png",)}


def check_shown(flag: str, file: Path) -> None:
    """Refuses what could not be written, before any work is done.

    Args:
        flag: ``--report`` or ``--plot``.
        file: its value.

    Raises:
        InputError: the extra is not installed, the name has another ending, or it cannot be written there.
    """
    require_report_extra(flag)
    if file.suffix.lower() not in _SUFFIXES[flag]:
        raise InputError(f"{flag} {file}: the name must end in {_SUFFIXES[flag][0]}")
    check_target(flag, file)


def write_report(evaluation: Evaluation, exhibits: Sequence[Exhibit | None], gallery: ImageLookup, file: Path) -> None:
    """Writes the page, atomically; see `fidtool.report.html.html_report`.

    Raises:
        OSError: the file cannot be written.
    """
    from fidtool.report.html import html_report

    # A path may hold bytes that are no text.
    page = html_report(evaluation, exhibits, gallery).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(page)
