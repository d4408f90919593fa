"""The form of the guide's pages, and their links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fidtool.metrics.registry import BUILT_IN
from support.pages import GUIDE, INDEX, PAGES, TOPICS, blocks, fault_of, links
from support.places import ROOT

COLUMNS = 80


@pytest.mark.parametrize("page", [INDEX, *TOPICS], ids=lambda page: page.stem)
def test_page_is_readable_as_plain_text(page: Path) -> None:
    """A title, a one-line summary, and no line wider than a terminal."""
    title, empty, summary, below, *_ = lines = PAGES[page].splitlines()
    assert re.fullmatch(r"# \S.*", title)
    assert (empty, below) == ("", "")
    assert summary.endswith(".")
    assert not [line for line in lines if len(line) > COLUMNS], (
        f"lines of more than {COLUMNS} columns"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_blocks(page: Path) -> None:
    text = PAGES[page]
    faults = [fault for link in links(text) if (fault := fault_of(page, *link))]
    assert not faults
    assert text.count("```") == 2 * len(blocks(text))
    assert {language for language, _ in blocks(text)} <= {"sh", "python", "text", "toml", "yaml"}, (
        "blocks must be commands, programs, output or settings"
    )


def test_list_of_gates_is_complete() -> None:
    listed = re.search(
        r"`--fail-above X` applies to the first of (.*?) among", PAGES[GUIDE / "ci.md"], re.DOTALL
    )
    assert listed
    gated = [
        name for name, kind in BUILT_IN.items() if any(number.gated for number in kind.numbers)
    ]
    assert sorted(re.findall(r"`([\w-]+)`", listed[1])) == sorted(gated)


def test_readme_is_short() -> None:
    """The README can be read in five minutes. Details are in the guide."""
    assert len(PAGES[ROOT / "README.md"].encode()) <= 12_000


def test_readme_says_what_the_offline_weights_lack() -> None:
    (line,) = [
        line for line in PAGES[ROOT / "README.md"].splitlines() if line.startswith("| `offline` |")
    ]
    assert "except the classifier that `is` needs" in line


def test_readme_lists_all_extras() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    _, _, table = PAGES[ROOT / "README.md"].partition("| extra | for |\n|---|---|\n")
    cells = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()]
    assert {name for cell in cells for name in re.findall("`(.+?)`", cell)} == set(extras) - {
        "test",
        "dev",
    }


def test_migration_shows_what_replaces_the_lines_of_each_tool() -> None:
    """The old lines and then the new ones; torchmetrics' program is one block."""
    sections = re.split(r"^## (.+)\n", PAGES[GUIDE / "migration.md"], flags=re.MULTILINE)
    shown = dict(zip(sections[1::2], sections[2::2], strict=True))
    for tool in ("pytorch-fid", "torch-fidelity", "clean-fid", "EDM"):
        (_, old), (language, new) = blocks(shown[tool])
        assert old
        assert (language, "fidtool " in new) == ("sh", True)
    assert "fidtool.training" in blocks(shown["torchmetrics"])[0][1]


def test_index_links_every_topic() -> None:
    listed = [path for path, _ in links(PAGES[INDEX])]
    pages = [topic.relative_to(GUIDE).as_posix() for topic in TOPICS]
    assert sorted({path for path in listed if path.endswith(".md")}) == sorted(pages)
