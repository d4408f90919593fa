"""Settings with which Sphinx builds the guide as a site.

The pages are those of ``fidtool guide``. In a clone, with ``pip install -e '.[dev]'``::

    sphinx-build -W -c scripts/site fidtool/guide site
"""

from __future__ import annotations

import re
from typing import Any

from fidtool import __version__

project = "fidtool"
html_title = f"fidtool {__version__}"
copyright = "The fidtool developers"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # links name headings as GitHub does
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["narrow.css"]
smartquotes = False  # as in the terminal


def _add_contents(_: Any, page: str, source: list[str]) -> None:
    """Add the contents of the site to its first page: one group per heading of the index."""
    if page != "index":
        return
    trees = []
    for heading, text in re.findall(r"^## (.+)\n((?:.|\n)*?)(?=^## |\Z)", source[0], re.MULTILINE):
        names = re.findall(r"^- \[[\w-]+\]\(([\w/-]+)\.md\)", text, re.MULTILINE)
        options = [":hidden:", f":caption: {heading}"]
        trees.append("\n".join(["```{toctree}", *options, "", *names, "```"]))
    source[0] += "\n\n" + "\n\n".join(trees) + "\n"


def setup(app: Any) -> None:
    app.connect("source-read", _add_contents)
