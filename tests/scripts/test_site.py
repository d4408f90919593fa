"""The site of the guide, which Sphinx builds from the same pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import GUIDE, PAGES, anchors
from support.places import ROOT, SCRIPTS
from support.processes import PATIENCE

pytest.importorskip("myst_parser", reason="needs the extra 'dev'")
pytest.importorskip("furo", reason="needs the extra 'dev'")


@pytest.mark.slow  # builds every page
def test_site_has_every_page_and_a_search(tmp_path: Path) -> None:
    """Without a warning, such as one about a link or a page that is in no group."""
    program = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", SCRIPTS / "site", GUIDE, tmp_path]
    built = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert built.returncode == 0, built.stderr
    for page, text in PAGES.items():
        if GUIDE not in page.parents:
            continue
        html = tmp_path / page.relative_to(GUIDE).with_suffix(".html")
        shown = html.read_text("utf-8")
        assert all(f'id="{anchor}"' in shown for anchor in anchors(text)), page.stem
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', shown)
        assert loaded
        assert not [address for address in loaded if "//" in address], "no other server is asked"
    assert (tmp_path / "search.html").exists()
    assert "torchrun" in (tmp_path / "searchindex.js").read_text("utf-8")
