"""The form of the guide's pages, and their links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fidtool.metrics.registry import BUILT_IN
from fidtool.references.published import published_values
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


OLD_AND_NEW = {
    "pytorch-fid": ["sh", "python"],
    "torch-fidelity": ["sh", "python"],
    "clean-fid": ["sh", "python"],
    "EDM": ["sh", "python"],
    "ADM's evaluator": ["sh"],
    "StyleGAN": ["sh"],
    "dgm-eval": ["sh"],
    "piq": ["python"],
}
"""How the lines of each tool that comes before fidtool can be replaced."""


@pytest.mark.parametrize("tool", OLD_AND_NEW)
def test_migration_shows_what_replaces_the_lines_of_each_tool(tool: str) -> None:
    """The old lines and then the new ones, on the command line and in Python."""
    shown = blocks(_sections(PAGES[GUIDE / "migration.md"])[tool])
    assert [language for language, _ in shown[::2]] == ["text"] * len(OLD_AND_NEW[tool])
    assert [language for language, _ in shown[1::2]] == OLD_AND_NEW[tool]
    begins = {"sh": "fidtool ", "python": "fidtool."}
    for (_, old), (language, new) in zip(shown[::2], shown[1::2], strict=True):
        assert old
        assert "fidtool" not in old
        assert begins[language] in new


def test_migration_shows_the_program_that_replaces_torchmetrics() -> None:
    """Only the import differs, so it is one block."""
    ((_, program),) = blocks(_sections(PAGES[GUIDE / "migration.md"])["torchmetrics"])
    assert "from torchmetrics" in program
    assert "from fidtool.training" in program


def test_migration_links_each_tool() -> None:
    page = PAGES[GUIDE / "migration.md"]
    tools = [title for title in _sections(page) if title != "Old results and files"]
    assert {*tools} == {*OLD_AND_NEW, "torchmetrics"}
    linked = [anchor for path, anchor in links(page.partition("\n## ")[0]) if not path]
    assert linked == [re.sub("[^a-z-]", "", tool.lower().replace(" ", "-")) for tool in tools]


def _sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_protocols_page_says_what_published_values_use() -> None:
    """Which protocols and numbers of generated images `fidtool published` has."""
    values = published_values()
    assert {value.protocol for value in values} == {"tensorflow", "clean", "stylegan", ""}
    expected = {"coco-30k": 30_000, "clean-fid:cifar10-32-test": 10_000}
    for value in values:
        assert value.images in (None, expected.get(value.reference, 50_000))


def test_index_links_every_topic() -> None:
    listed = [path for path, _ in links(PAGES[INDEX])]
    pages = [topic.relative_to(GUIDE).as_posix() for topic in TOPICS]
    assert sorted({path for path in listed if path.endswith(".md")}) == sorted(pages)
