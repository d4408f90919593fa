"""A run's page and plot as files: what may be written where, and the writing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fidtool.cache_dir import atomic_write, check_target
from fidtool.errors import InputError, option

if TYPE_CHECKING:
    from fidtool.images.lookup import ImageLookup
    from fidtool.results import Evaluation, Exhibit

_PACKAGES = {"report": ("jinja2", "matplotlib"), "plot": ("matplotlib",)}
_SUFFIXES = {"report": (".html", ".htm"), "plot": (".png",)}


def check_shown(setting: str, file: Path) -> None:
    """Refuses a page or plot that could not be written, before any work is done.

    Args:
        setting: ``report`` or ``plot``.
        file: its value.

    Raises:
        InputError: the extra is not installed, the name has another ending, or it cannot be written there.
    """
    require_report_extra(setting)
    if file.suffix.lower() not in _SUFFIXES[setting]:
        problem = f"{option(setting, str(file))}: the name must end in {_SUFFIXES[setting][0]}"
        raise InputError(problem, setting=setting)
    check_target(option(setting, str(file)), file)


def require_report_extra(setting: str) -> None:
    """Refuses a setting whose packages are not installed. They are not imported.

    Args:
        setting: ``report`` or ``plot``.

    Raises:
        InputError: naming the extra that installs them.
    """
    missing = [package for package in _PACKAGES[setting] if importlib.util.find_spec(package) is None]
    if missing:
        packages = f"the package{'s' * (len(missing) > 1)} {' and '.join(missing)}"
        raise InputError(f"{option(setting)} needs {packages}:", "pip install 'fidtool[report]'", setting=setting)


def write_report(evaluation: Evaluation, exhibits: Sequence[Exhibit | None], gallery: ImageLookup, file: Path) -> None:
    """Writes the page, atomically; see `fidtool.report.html.html_report`.

    Raises:
        OSError: the file cannot be written; an older one is left as it was.
    """
    from fidtool.report.html import html_report

    # A path may hold bytes that are not UTF-8.
    page = html_report(evaluation, exhibits, gallery).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(page)


def write_plot(evaluation: Evaluation, file: Path) -> None:
    """Writes the plot, atomically; see `fidtool.report.charts.sweep_plot`.

    Args:
        evaluation: with at least one result.
        file: its suffix is the format, ``.png`` or another one that matplotlib knows.

    Raises:
        InputError: there is no Fréchet distance to draw.
        ValueError: matplotlib does not know the format.
        OSError: the file cannot be written; an older one is left as it was.
    """
    from fidtool.report.charts import sweep_plot

    picture = sweep_plot(evaluation, file.suffix[1:].lower() or "png")
    with atomic_write(file) as handle:
        handle.write(picture)
