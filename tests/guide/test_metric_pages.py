"""The guide's pages of metrics: their sections, and what is made from the metrics' classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fidtool.metrics.registry import BUILT_IN
from support.metric_pages import (
    OVERVIEW,
    SECTIONS,
    describe_all,
    describe_values_and_settings,
    page_of,
    replace_block,
)
from support.pages import blocks


def check_block(page: Path, mark: str, block: str, config: pytest.Config) -> None:
    """Compare a page with what is made from the code, or write that with ``--write-goldens``."""
    text = page.read_text("utf-8")
    wanted = replace_block(text, mark, block)
    if config.getoption("--write-goldens"):
        page.write_text(wanted, "utf-8")
    assert page.read_text("utf-8") == wanted, f"{page.name} differs: pass --write-goldens"


def test_overview_lists_every_metric(pytestconfig: pytest.Config) -> None:
    """The list and the table are generated from the registry with ``--write-goldens``."""
    check_block(OVERVIEW, "metrics", describe_all(), pytestconfig)


@pytest.mark.parametrize("name", BUILT_IN)
def test_page_has_every_value_and_setting(name: str, pytestconfig: pytest.Config) -> None:
    """They are generated from the class with ``--write-goldens``."""
    check_block(page_of(name), "settings", describe_values_and_settings(name), pytestconfig)


@pytest.mark.parametrize("name", BUILT_IN)
def test_page_has_the_sections_of_all(name: str) -> None:
    """The same sections in the same order; the example is run, and its output shown."""
    text = page_of(name).read_text("utf-8")
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == SECTIONS
    example = text.partition(f"## {SECTIONS[-1]}\n")[2]
    languages = [language for language, _ in blocks(example)]
    assert languages[0] in ("sh", "python")
    assert "text" in languages[1:]


def test_no_page_is_of_another_metric() -> None:
    assert sorted(path.stem for path in page_of("fid").parent.glob("*.md")) == sorted(BUILT_IN)
