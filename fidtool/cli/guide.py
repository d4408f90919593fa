"""``fidtool guide``: the pages of the guide, their sections, and the sections with given words."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile
from pathlib import PurePosixPath
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from fidtool.cli.options import LocalRankZeroCommand
from fidtool.cli.output import is_terminal
from fidtool.errors import InputError
from fidtool.names import find_similar, format_count, shorten, unknown_name_error

LONGEST_LIST = 20
"""Maximum number of sections that are listed for words."""
_FOLDER = files("fidtool") / "guide"
_INDEX = (_FOLDER / "index.md").read_text("utf-8")
_TOPIC = re.compile(r"^- \[([\w-]+)\]\(([\w/-]+\.md)\): (.+)$", re.MULTILINE)
_PURPOSE = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TOPICS = {name: file for name, file, _ in _TOPIC.findall(_INDEX)}
"""The file of each page by its name, in the order of the index."""
_CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n*", re.MULTILINE | re.DOTALL)
# Inline code is matched first, so that brackets in it are no link.
_CODE_OR_LINK = re.compile(r"`[^`]*`|\[([^\]]+)\]\(([^)\s]+)\)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
_SPELLINGS = (
    ("iz", "is"),
    ("yz", "ys"),
    ("color", "colour"),
    ("gray", "grey"),
    ("center", "centre"),
    ("behavior", "behaviour"),
    ("license", "licence"),
    ("exit codes", "exit statuses"),
    ("exit code", "exit status"),
    ("data set", "dataset"),
    ("faq", "questions"),
    ("quickstart", "start"),
    ("tutorial", "start"),
)
"""What counts as the same in a search: American spellings, and words that the guide avoids."""


class Section(NamedTuple):
    """A heading of a page and the text below it, up to the next heading.

    Attributes:
        level: 1 for the title of the page.
        anchor: the heading as GitHub writes it in addresses.
        text: Markdown, with the heading.
    """

    page: str
    level: int
    title: str
    anchor: str
    text: str

    @property
    def name(self) -> str:
        """What ``fidtool guide`` takes: ``sources#crops``, or ``sources`` for a whole page."""
        return self.page if self.level == 1 else f"{self.page}#{self.anchor}"


def read_page(page: str) -> str:
    """Return the Markdown of a page without its comments, which are for those who edit it."""
    return _COMMENT.sub("", (_FOLDER / TOPICS[page]).read_text("utf-8"))


@cache
def read_sections(page: str) -> tuple[Section, ...]:
    """Return the sections of a page in their order."""
    text = read_page(page)
    # A comment in a code block may look like a heading.
    masked = _CODE_BLOCK.sub(lambda block: " " * len(block[0]), text)
    headings = [*_HEADING.finditer(masked)]
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    seen = Counter[str]()
    sections = []
    for heading, end in zip(headings, ends, strict=True):
        marks, title = heading.groups()
        anchor = _make_anchor(title)
        number = seen[anchor]
        seen[anchor] += 1
        if number:
            anchor += f"-{number}"
        body = text[heading.start() : end].rstrip()
        sections.append(Section(page, len(marks), title, anchor, body))
    return tuple(sections)


def _make_anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def render(text: str) -> str:
    """Return Markdown as text for a terminal: links as ``words [page#anchor]``, and in the same
    page as ``words [#anchor]``.
    """

    def show(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target is None:
            return match[0]
        if "://" in target:
            return f"{words} <{target}>"
        path, mark, anchor = target.partition("#")
        place = f"{PurePosixPath(path).stem}{mark}{anchor}"
        return f"[{place}]" if words.strip("`") == place else f"{words} [{place}]"

    parts = _CODE_BLOCK.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = _CODE_OR_LINK.sub(show, parts[number])
    return "".join(parts)


def _find_headings(words: Sequence[str]) -> list[Section]:
    """Return the sections whose headings have exactly these words."""
    plain = _plain(" ".join(words)).split()
    patterns = [re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])") for word in plain]
    return [
        section
        for page in TOPICS
        for section in read_sections(page)
        if all(pattern.search(_plain(section.title)) for pattern in patterns)
    ]


def find_sections(words: Sequence[str]) -> list[Section]:
    """Return the sections with words that begin with each of ``words``, whatever their case,
    accents and spelling. Those come first whose headings have exactly these words, then those whose
    headings, or headings and page, have words that begin like them.
    """
    exact = _find_headings(words)
    found: list[list[Section]] = [[], [], []]
    # An underscore is between words: https_proxy has the word proxy.
    begun = [
        re.compile(rf"(?<![^\W_]){re.escape(word)}") for word in _plain(" ".join(words)).split()
    ]
    for page in TOPICS:
        for section in read_sections(page):
            title = _plain(section.title)
            if section in exact:
                continue
            if all(pattern.search(title) for pattern in begun):
                found[0].append(section)
            elif all(pattern.search(f"{page} {title}") for pattern in begun):
                found[1].append(section)
            elif all(pattern.search(_plain(section.text)) for pattern in begun):
                found[2].append(section)
    return [section for group in (exact, *found) for section in group]


def _plain(text: str) -> str:
    """Return text for a search: in lower case, without accents, in one spelling."""
    parts = unicodedata.normalize("NFKD", text)
    plain = "".join(part for part in parts if not unicodedata.combining(part)).lower()
    for spelling, same in _SPELLINGS:
        plain = plain.replace(spelling, same)
    return plain


def _complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    page, mark, _anchor = typed.partition("#")
    names = [*TOPICS]
    if mark and page in TOPICS:
        names = [section.name for section in read_sections(page)]
    return [CompletionItem(name) for name in names if name.startswith(typed)]


@click.command(
    cls=LocalRankZeroCommand,
    context_settings={"ignore_unknown_options": True},
    examples=[
        ("the page about sources of images", "fidtool guide sources"),
        ("its section about crops", "fidtool guide sources#crops"),
        ("the sections that mention an option", "fidtool guide --value-range"),
    ],
)
@click.argument("words", metavar="[TOPIC]", nargs=-1, shell_complete=_complete)
def guide(words: tuple[str, ...]) -> Iterator[str]:
    """List the topics of the guide, or show TOPIC.

    TOPIC is a page, a section such as sources#crops, or words to search for. The name of a page may
    be shortened as long as it is unique. A search lists the sections that contain all of the words,
    and shows the section if there is only one. A terminal shows pages in a pager ($PAGER, or else
    less).
    """
    typed = _tidy(words)
    if typed in ("", "index"):
        yield from _list_topics()
        click.echo(
            "\nfidtool guide TOPIC shows a page, TOPIC#SECTION a section of it, and fidtool guide "
            "WORD\nthe sections with that word. Pages are shown in a pager on a terminal.",
            err=True,
        )
        return
    sections = _find_named(typed)
    matches = [] if sections else find_sections(typed.split())
    spaced = re.sub(r"[\W_]+", " ", typed)  # such as an anchor that several pages have
    if not sections and not matches and spaced.strip():
        matches = find_sections(spaced.split())
    if len(matches) == 1:
        sections = _with_subsections(matches[0].page, matches[0].anchor)
    if sections:
        yield from _show(sections)
        if sections[0].name not in (typed, sections[0].page):
            click.echo(f"\nThis is the section {sections[0].name}.", err=True)
    elif matches:
        yield from _list_sections(matches)
    else:
        raise _unknown_topic_error(typed, find_similar(typed, _suggestions(typed)))


def _tidy(words: Sequence[str]) -> str:
    """Return what was typed as ``page``, ``page#anchor``, ``#anchor`` or words. A page can also be
    the path of its file, as in a link, or have brackets, as `render` shows links.
    """
    typed = " ".join(" ".join(words).split()).lower()
    if typed.startswith("[") and typed.endswith("]"):
        typed = typed[1:-1]
    path, mark, anchor = (part.strip() for part in typed.partition("#"))
    name = PurePosixPath(path).name.removesuffix(".md")
    if name in TOPICS or name == "index":
        path = name
    if path == "index" or not anchor:
        return path.removesuffix(".md")
    return f"{path}{mark}{anchor}"


def _suggestions(typed: str) -> Iterator[str]:
    """Yield what an unknown topic may have meant: options, or names of pages and sections."""
    sections = [section for page in TOPICS for section in read_sections(page)]
    if typed.startswith("-"):
        yield from dict.fromkeys(
            flag for section in sections for flag in _FLAG.findall(section.text)
        )
    else:
        yield from TOPICS
        yield from (section.anchor for section in sections)


def _list_topics() -> Iterator[str]:
    """Yield the headings of the index, and below each the pages and what they are about."""
    width = max(map(len, TOPICS))
    separator = ""
    for heading, text in _PURPOSE.findall(_INDEX):
        yield f"{separator}{heading}"
        separator = "\n"
        for name, _, about in _TOPIC.findall(text):
            yield f"  {name:{width}}  {about}"


def _find_named(typed: str) -> list[Section]:
    """Return the sections of the page, or of the part of a page, that has this name; an empty list
    if no single one has.

    Raises:
        InputError: several pages begin like this, or the page has no such section.
    """
    page, mark, anchor = typed.partition("#")
    begun = [name for name in TOPICS if name.startswith(page.replace(" ", "-"))]
    if page and mark and (page in TOPICS or len(begun) == 1):
        return _with_subsections(page if page in TOPICS else begun[0], _make_anchor(anchor))
    slug = typed.replace(" ", "-")
    if slug in TOPICS:
        return [*read_sections(slug)]
    slug = _make_anchor(typed)
    named = [
        section for name in TOPICS for section in read_sections(name) if section.anchor == slug
    ]
    # Other headings may have the same words: then all are listed.
    if len(named) == 1 and len(_find_headings(slug.split("-"))) == 1:
        return _with_subsections(named[0].page, slug)
    if named or mark or not begun:
        return []
    if len(begun) > 1:
        raise _unknown_topic_error(typed, begun)
    return [*read_sections(begun[0])]


def _with_subsections(page: str, anchor: str) -> list[Section]:
    """Return a section and those below it.

    Raises:
        InputError: the page has no such section.
    """
    sections = read_sections(page)
    anchors = [section.anchor for section in sections]
    if anchor not in anchors:
        if not anchors[1:]:
            raise InputError(f"{page} has no sections:", f"run `fidtool guide {page}`")
        raise unknown_name_error(f"section of {page}", anchor, anchors[1:])
    first, *rest = sections[anchors.index(anchor) :]
    below = takewhile(lambda section: section.level > first.level, rest)
    return [first, *below]


def _unknown_topic_error(typed: str, close: Sequence[str]) -> InputError:
    listed = "the topics that `fidtool guide` lists"
    return unknown_name_error("topic", shorten(typed), TOPICS, listed, close=close)


def _show(sections: Sequence[Section]) -> Iterator[str]:
    """Yield sections of one page, or show them in a pager on a terminal."""
    text = render("\n\n".join(section.text for section in sections)).rstrip()
    if not is_terminal():
        yield text
        return
    # As git does: a page that fits the screen needs no key.
    os.environ.setdefault("LESS", "FRX")
    click.echo_via_pager(text)


def _list_sections(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections[:LONGEST_LIST]:
        yield section.name
    if len(sections) > LONGEST_LIST:
        rest = format_count(len(sections) - LONGEST_LIST, "more section")
        yield f"and {rest}: add a word to narrow the search"
    click.echo("\nfidtool guide TOPIC#SECTION shows a section.", err=True)
