"""The files of a run: the page and the plot."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fidtool.cache_dir import atomic_write, check_target
from fidtool.errors import InputError, Spelling, as_argument, option

if TYPE_CHECKING:
    from fidtool.images.loader import ImageLookup
    from fidtool.pipeline.compare import Exhibit
    from fidtool.results import Evaluation

_SUFFIXES = {"report": (".html", ".htm"), "plot": (".png",)}


def check_shown(files: Mapping[str, Path]) -> None:
    """Check that the page and the plot, by setting, can be written, before any work is done."""
    for setting, file in files.items():
        if importlib.util.find_spec("matplotlib") is None:  # not imported here; jinja2 comes with torch
            problem = f"{option(setting)} needs the package matplotlib:"
            raise InputError(problem, "pip install 'fidtool[report]'", setting=setting)
        if file.suffix.lower() not in _SUFFIXES[setting]:
            problem = f"{option(setting, str(file))}: the name must end in {_SUFFIXES[setting][0]}"
            raise InputError(problem, setting=setting)
        check_target(option(setting, str(file)), file)


def write_shown(
    evaluation: Evaluation,
    exhibits: Sequence[Exhibit | None],
    gallery: ImageLookup,
    setting: str,
    file: Path,
    spelling: Spelling = as_argument,
) -> None:
    """Write the page or the plot atomically; see `html_report` and `sweep_plot`. The plot's suffix is its format."""
    if setting == "plot":
        from fidtool.report.charts import sweep_plot

        content = sweep_plot(evaluation, file.suffix[1:].lower())
    else:
        from fidtool.report.html import html_report

        # A path may contain bytes that are not UTF-8.
        content = html_report(evaluation, exhibits, gallery, spelling).encode("utf-8", "replace")
    with atomic_write(file) as handle:
        handle.write(content)
