"""The guide's reference: what is made from code is as in the code, and the glossary is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fidtool.errors import EXIT_STATUSES
from fidtool.system.variables import VARIABLES
from support.inside import COMMANDS
from support.markdown import made, replace_made
from support.pages import GUIDE, PAGES, TOPICS, prose
from support.places import ROOT
from support.reference import EXTRA_USES, command_parts, commands_with, environment_parts

GLOSSARY = GUIDE / "glossary.md"
BANNED = {
    "exit code": "exit status",
    "rank zero": "rank 0",
    "data set": "dataset",
    "framed": "cropped",
    "color": "colour",
    "normalized": "normalised",
    "memorization(?!-informed)": "memorisation",
    "behavior": "behaviour",
}
"""Patterns of spellings that the guide, the README and the help texts do not use, and those that they use."""
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")


def check_page(name: str, parts: dict[str, str], config: pytest.Config) -> None:
    """Compare a page's parts that are made from code; ``--write-goldens`` replaces them."""
    page = GUIDE / f"{name}.md"
    text = page.read_text("utf-8")
    assert made(text).keys() == parts.keys()
    wanted = replace_made(text, parts)
    if config.getoption("--write-goldens"):
        page.write_text(wanted, "utf-8")
    assert page.read_text("utf-8") == wanted, f"{page.name} differs: pass --write-goldens"


def test_command_line(pytestconfig: pytest.Config) -> None:
    check_page("commands", command_parts(), pytestconfig)


def test_commands_with_json() -> None:
    """Each has a section of its keys, under its name."""
    named = re.findall(r"^`fidtool (\w+) --json`", PAGES[GUIDE / "json.md"], re.MULTILINE)
    assert commands_with("--json") == sorted(named)


def test_help_states_the_exit_statuses() -> None:
    _, _, stated = str(COMMANDS["compute"].help).partition("Exit status:")
    assert [int(number) for number in re.findall(r"\d+", stated)] == [*EXIT_STATUSES]


def test_environment(pytestconfig: pytest.Config) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert EXTRA_USES.keys() == project["optional-dependencies"].keys()
    check_page("environment", environment_parts(project), pytestconfig)


def test_variables_are_declared_and_used() -> None:
    """``_FIDTOOL_COMPLETE`` is click's."""
    names = {variable.name for variable in VARIABLES}
    declared = ROOT / "fidtool" / "system" / "variables.py"
    sources = [file for file in (ROOT / "fidtool").rglob("*.py") if file != declared]
    text = "\n".join(file.read_text("utf-8") for file in sources)
    assert {*re.findall(r"(?<!_)FIDTOOL_[A-Z0-9_]+", text)} <= names
    read = {*re.findall(r"\b([A-Z0-9_]+)\.(?:value|byte_limit)\b", text)}
    assert {name.removeprefix("FIDTOOL_") for name in names} <= read


@pytest.fixture
def api() -> Any:
    """The module that makes the reference of the Python API, which imports Lightning."""
    pytest.importorskip("lightning", reason="needs lightning, from the extra 'test'")
    import support.api_reference

    return support.api_reference


def test_python_api(api: Any, pytestconfig: pytest.Config) -> None:
    assert sorted(api.grouped()) == sorted(api.public())
    check_page("api", api.api_parts(), pytestconfig)


def test_public_functions_are_described(api: Any) -> None:
    """Each argument of a function, or of a class that programs create, has a description."""
    missing = [line for group in api.GROUPS for line in api.undescribed(group)]
    assert not missing


def entries() -> dict[str, str]:
    """Return the glossary's entries by the terms, which are in bold type; several share one."""
    found = re.findall(
        r"^- \*\*(.+?)\*\*:? (.+?)(?=\n- |\n\n|\Z)", PAGES[GLOSSARY], re.MULTILINE | re.DOTALL
    )
    return dict(found)


def test_glossary_is_sorted_and_linked() -> None:
    terms = [term.lower() for term in entries()]
    assert terms == sorted(terms)
    assert len(terms) > 40
    assert not [term for term, text in entries().items() if "](" not in text]


def test_terms_of_the_glossary_occur_in_the_guide() -> None:
    pages = [path for path in TOPICS if path != GLOSSARY]
    guide = " ".join(" ".join(PAGES[page].split()) for page in pages).lower().replace("-", " ")
    terms = [word.partition(" (")[0] for term in entries() for word in term.split(", ")]
    assert not [term for term in terms if term.lower().replace("-", " ") not in guide]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_spelling(page: Path) -> None:
    """Code and links may have other spellings."""
    text = " ".join(_CODE.sub("", prose(PAGES[page])).lower().split())
    assert not {word: used for word, used in BANNED.items() if re.search(rf"\b{word}\b", text)}
