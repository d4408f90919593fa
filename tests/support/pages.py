"""The README and the pages of the guide: their code blocks, commands, headings and links."""

from __future__ import annotations

import re
from pathlib import Path

from support.places import ROOT

GUIDE = ROOT / "fidtool" / "guide"
INDEX = GUIDE / "index.md"
TOPICS = sorted(path for path in GUIDE.rglob("*.md") if path != INDEX)
PAGES = {path: path.read_text("utf-8") for path in (ROOT / "README.md", INDEX, *TOPICS)}
"""The text of each page."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """The code blocks of a page: pairs of language and content."""
    return _BLOCK.findall(text)


def commands(text: str) -> list[str]:
    """The commands of a page, each as one line without continuations."""
    shell = "".join(content for language, content in blocks(text) if language == "sh")
    joined = re.sub(r"\s*\\\n\s*", " ", shell)
    return [line for line in joined.splitlines() if line]


def commands_in_text(text: str) -> list[str]:
    """The commands in the sentences of a page, as opposed to names of commands and flags: they name
    a set.
    """
    spans = re.findall(r"`((?:fidtool|torchrun) [^`]*)`", " ".join(prose(text).split()))
    return [span for span in spans if re.search(r" (real|fake)/| \S+\.npz", span)]


def programs(text: str) -> list[tuple[str, str]]:
    """The Python blocks of a page: pairs of file name, empty if the block names none, and
    content.
    """
    found = [content for language, content in blocks(text) if language == "python"]
    return [
        (name[1] if (name := re.match(r"# (\w+\.py)\n", content)) else "", content)
        for content in found
    ]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", text)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    return {
        name if i == 0 else f"{name}-{i}" for name, count in found.items() for i in range(count)
    }


def links(text: str) -> list[tuple[str, str]]:
    """The relative links of a page: pairs of path and anchor, either of which may be empty."""
    shown = re.sub(r"`[^`]*`", "", prose(text))
    targets = [*re.findall(r"\]\(([^)\s]+)\)", shown), *re.findall(r"<img src=\"([^\"]+)\"", shown)]
    return [
        (path, anchor)
        for path, _, anchor in (target.partition("#") for target in targets)
        if "://" not in path
    ]


def fault_of(page: Path, path: str, anchor: str) -> str:
    """What is wrong with a relative link of a page; empty if nothing is."""
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{page.name}: no file {path}"
    if anchor and anchor not in anchors(target.read_text("utf-8")):
        return f"{page.name}: no heading {path}#{anchor}"
    return ""
