"""``fidtool guide`` shows pages, sections and the sections with given words as plain text."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fidtool.cli.guide import TOPICS, find_sections, read_page, read_sections, render
from support.command_line import Run
from support.pages import GUIDE, INDEX, PAGES, anchors, blocks, links, prose
from support.pages import TOPICS as FILES

COLUMNS = 80
NAMES = [file.stem for file in FILES]


def test_every_page_is_a_topic() -> None:
    assert sorted(TOPICS) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES), "a name in brackets must mean one page"
    assert {GUIDE / file for file in TOPICS.values()} == {*FILES}


def test_list_has_the_headings_of_the_index(here: Run) -> None:
    lines = here("guide").stdout.splitlines()
    headings = re.findall("^## (.+)$", PAGES[INDEX], re.MULTILINE)
    assert [line for line in lines if line and not line.startswith(" ")] == headings
    assert sorted(line.split()[0] for line in lines if line.startswith(" ")) == sorted(NAMES)
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("typed", ["caching.md", "cach", "Caching"])
def test_page(here: Run, typed: str) -> None:
    done = here("guide", typed)
    assert done.status == 0
    text = (GUIDE / "caching.md").read_text("utf-8")
    assert done.stdout.rstrip("\n") == render(text).rstrip("\n")
    assert done.stdout.startswith("# Caching\n")


@pytest.mark.parametrize("page", TOPICS)
def test_rendered_page_has_no_links_of_markdown(page: str) -> None:
    """Each link names what ``fidtool guide`` takes; code is as it was."""
    text = read_page(page)
    shown = render(text)
    assert not re.search(r"\]\(|<!--", re.sub("`[^`]*`", "", prose(shown)))
    assert blocks(shown) == blocks(text)
    for path, anchor in links(text):
        if path.endswith(".png") or path.endswith(".json"):
            continue
        name = Path(path).stem
        place = f"{name}#{anchor}" if anchor else name
        assert f"[{place}]" in shown
        section = place if path else f"{page}{place}"
        assert section in {known.name for known in read_sections(name or page)}


@pytest.mark.parametrize("page", TOPICS)
def test_rendered_page_fits_a_terminal(page: str) -> None:
    """No link is longer than in Markdown."""
    text = read_page(page)
    assert max(map(len, render(text).splitlines())) <= COLUMNS


@pytest.mark.parametrize("page", TOPICS)
def test_sections_are_those_of_github(page: str) -> None:
    """Together they are the page."""
    text = read_page(page)
    sections = read_sections(page)
    assert {section.anchor for section in sections} == anchors(text)
    joined = "\n\n".join(section.text for section in sections)
    assert re.sub(r"\n+", "\n", joined) == re.sub(r"\n+", "\n", text.rstrip())


@pytest.mark.parametrize("typed", [["sources#crops"], ["crops"], ["Crops"]])
def test_section(here: Run, typed: list[str]) -> None:
    """By page and heading, or by the heading alone if only one page has it."""
    done = here("guide", *typed)
    assert done.stdout.startswith("## Crops\n")
    assert len(re.findall("^## ", done.stdout, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    "typed",
    [
        ["sources.md#crops"],  # as in a link
        ["fidtool/guide/sources.md#crops"],
        ["https://host/blob/main/fidtool/guide/sources.md#crops"],
        ["[sources#crops]"],  # as pages show links
        ["#crops"],
        ["sources", "#crops"],
        ["sour#Crops"],
    ],
)
def test_section_in_other_spellings(here: Run, typed: list[str]) -> None:
    assert here("guide", *typed).stdout == here("guide", "sources#crops").stdout


@pytest.mark.parametrize(
    ("typed", "beginning"),
    [
        ("metrics/fid.md", "# FID ("),
        ("metrics/fid#formula", "## Formula\n"),
        ("metrics#", "# Metrics\n"),
        (" metrics ", "# Metrics\n"),
        ("sources#images in memory", "## Images in memory\n"),
        ("How do I get help, or report a wrong number?", "### How do I get help"),
        ("#", "Start\n"),
        ("index#choose", "Start\n"),
        ("", "Start\n"),
    ],
)
def test_other_spellings(here: Run, typed: str, beginning: str) -> None:
    assert here("guide", typed).stdout.startswith(beginning)


def test_section_is_named(here: Run) -> None:
    """If it was found by its heading or by words, stderr says where."""
    done = here("guide", "compute_fid")
    assert done.stdout.startswith("## clean-fid\n")
    assert done.stderr == "\nThis is the section migration#clean-fid.\n"
    assert not here("guide", "migration#clean-fid").stderr


def test_a_word_in_several_headings_is_listed(here: Run) -> None:
    """The word is the heading of one section, and in headings of others with another meaning."""
    lines = here("guide", "precision").stdout.splitlines()
    assert {"speed#precision", "prdc"} <= {*lines[:4]}
    assert here("guide", "speed#precision").stdout.startswith("## Precision\n")


def test_section_with_those_below_it(here: Run) -> None:
    shown = here("guide", "python#images-and-statistics").stdout
    headings = re.findall("^#+ .+$", shown, re.MULTILINE)
    assert headings[0] == "## Images and statistics"
    assert len(headings) > 1
    assert all(heading.startswith("### ") for heading in headings[1:])


def test_search(here: Run) -> None:
    """Headings come first, and every listed section has all of the words."""
    lines = here("guide", "SLURM").stdout.splitlines()
    assert {"distributed#slurm", "parts#slurm"} <= {*lines[:4]}
    lines = here("guide", "slurm", "sbatch").stdout.splitlines()
    assert lines
    for line in lines:
        page, _, anchor = line.partition("#")
        (text,) = [one.text for one in read_sections(page) if anchor in ("", one.anchor)][:1]
        assert re.search("slurm", text, re.IGNORECASE)
        assert re.search("sbatch", text)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("check", "commands#fidtool-check"), ("exit", "ci#exit-statuses"), ("crops", "## Crops")],
)
def test_keys_of_json_hide_no_other_heading(here: Run, word: str, wanted: str) -> None:
    """A word that is both a key and in other headings is searched for; exact words come first."""
    lines = here("guide", word).stdout.splitlines()
    assert any(line.startswith(wanted) for line in lines[:4])


def test_anchor_that_several_pages_have(here: Run) -> None:
    lines = here("guide", "#formula").stdout.splitlines()
    assert {"fid#formula", "kid#formula"} <= {*lines}


def test_search_for_an_option(here: Run) -> None:
    shown = here("guide", "--value-range").stdout
    assert "sources#values-of-arrays" in shown


def test_search_without_accents() -> None:
    assert find_sections(["frechet"]) == find_sections(["FRÉCHET"])
    assert "fid" in [section.name for section in find_sections(["frechet"])]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("exit code", "commands#exit-statuses"),
        ("exit codes", "commands#exit-statuses"),
        ("proxy", "environment#variables-of-other-programs"),  # of https_proxy
        ("faq", "questions"),
        ("memorization", "memorisation"),
        ("color", "diagnosis#findings"),
        ("normalize=True", "training#the-metric"),
    ],
)
def test_search_in_other_words(typed: str, name: str) -> None:
    assert name in [section.name for section in find_sections(typed.split())]


@pytest.mark.parametrize("typed", ["sources/crops", "sources:crops", "sources_crops"])
def test_marks_between_words(here: Run, typed: str) -> None:
    """If nothing has the text itself, they count as spaces."""
    assert here("guide", typed).stdout == here("guide", "sources", "crops").stdout


def test_comments_are_not_shown(here: Run) -> None:
    """Pages that are made from code have comments with the option ``--write-goldens``. A section
    may end with one.
    """
    found = [section.page for section in find_sections(["--write-goldens"])]
    assert {*found} == {"contributing"}
    shown = here("guide", "commands#gates").stdout
    assert "<!--" not in shown
    assert not shown.endswith("\n\n")


def test_search_by_page_and_heading(here: Run) -> None:
    """The name of the page counts for its headings, but not alone."""
    lines = here("guide", "sources", "crops").stdout.splitlines()
    assert lines[0] == "sources#crops"
    assert "sources#remote-stores" not in lines


def test_long_list_is_cut(here: Run) -> None:
    lines = here("guide", "image").stdout.splitlines()
    assert len(lines) == 21
    assert re.fullmatch(r"and \d+ more sections: add a word to narrow the search", lines[-1])


def test_unknown_topic(here: Run) -> None:
    done = here("guide", "cacheing")
    assert done.status == 2
    assert "did you mean caching" in done.error
    assert "`fidtool guide` lists" in done.error
    done = here("guide", "custom")
    assert done.status == 2
    assert "did you mean custom-networks, custom-metrics?" in done.error
    done = here("guide", "--expectt")
    assert "did you mean --expect?" in done.error
    done = here("guide", "x" * 9000)
    assert done.status == 2
    assert len(done.error) < 300
    done = here("guide", "sources#crop")
    assert done.status == 2
    assert "unknown section of sources 'crop'; did you mean crops? Choose from what-" in done.error
    done = here("guide", "glossary#rank")
    assert done.error == "error: glossary has no sections: run `fidtool guide glossary`"


def test_pager_on_a_terminal() -> None:
    main, terminal = pty.openpty()
    program = [sys.executable, "-m", "fidtool", "guide", "caching"]
    env = {**os.environ, "PAGER": "head -n 1", "TERM": "xterm"}
    with subprocess.Popen(program, stdin=terminal, stdout=terminal, env=env) as process:
        assert process.wait() == 0
        assert os.read(main, 4096) == b"# Caching\r\n"
    os.close(main)
    os.close(terminal)
