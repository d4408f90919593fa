"""``fidtool guide``: the pages of the guide, their sections, and the sections with given words."""

from __future__ import annotations

import os
import re
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
from fidtool.cli.output import align_columns, is_terminal
from fidtool.errors import InputError
from fidtool.names import find_similar, format_count, unknown_name_error

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
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
# Inline code is matched first, so that brackets in it are no link.
_CODE_OR_LINK = re.compile(r"`[^`]*`|\[([^\]]+)\]\(([^)\s]+)\)")


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


@cache
def read_sections(page: str) -> tuple[Section, ...]:
    """Return the sections of a page in their order."""
    text = (_FOLDER / TOPICS[page]).read_text("utf-8")
    # A comment in a code block may look like a heading.
    masked = _CODE_BLOCK.sub(lambda block: " " * len(block[0]), text)
    headings = [*_HEADING.finditer(masked)]
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    seen = Counter[str]()
    sections = []
    for heading, end in zip(headings, ends, strict=True):
        marks, title = heading.groups()
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        number = seen[anchor]
        seen[anchor] += 1
        if number:
            anchor += f"-{number}"
        body = text[heading.start() : end].rstrip()
        sections.append(Section(page, len(marks), title, anchor, body))
    return tuple(sections)


def render(page: str, text: str) -> str:
    """Return Markdown as text for a terminal: links as ``words [page#anchor]``, no comments."""

    def show(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target is None:
            return match[0]
        if "://" in target:
            return f"{words} <{target}>"
        path, mark, anchor = target.partition("#")
        name = PurePosixPath(path).stem if path else page
        place = f"{name}{mark}{anchor}"
        return f"[{place}]" if words.strip("`") == place else f"{words} [{place}]"

    parts = _CODE_BLOCK.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = _CODE_OR_LINK.sub(show, _COMMENT.sub("", parts[number]))
    return "".join(parts)


def find_sections(words: Sequence[str]) -> list[Section]:
    """Return the sections with words that begin with each of ``words``: first those whose headings
    have the words themselves, then those whose headings have longer words, then all others.
    """
    headings = _find_headings(words)
    begun = _begin_with(words)
    in_text = [
        section
        for page in TOPICS
        for section in read_sections(page)
        if section not in headings and all(pattern.search(section.text) for pattern in begun)
    ]
    return headings + in_text


def _find_headings(words: Sequence[str]) -> list[Section]:
    """Return the sections whose headings have words that begin with each of ``words``, those with
    the words themselves first.
    """
    begun = _begin_with(words)
    whole = [re.compile(rf"{pattern.pattern}(?!\w)", re.IGNORECASE) for pattern in begun]
    found = [
        section
        for page in TOPICS
        for section in read_sections(page)
        if all(pattern.search(section.title) for pattern in begun)
    ]
    return sorted(found, key=lambda section: not all(word.search(section.title) for word in whole))


def _begin_with(words: Sequence[str]) -> list[re.Pattern[str]]:
    return [re.compile(rf"(?<!\w){re.escape(word)}", re.IGNORECASE) for word in words]


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
    typed = " ".join(words).lower().removesuffix(".md")
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
    if len(matches) == 1:
        sections = _with_subsections(matches[0].page, matches[0].anchor)
    if sections:
        yield from _show(sections)
    elif matches:
        yield from _list_sections(matches)
    else:
        names = [*TOPICS, *(section.anchor for page in TOPICS for section in read_sections(page))]
        raise _unknown_topic_error(typed, find_similar(typed, names))


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

    A heading of the third level, such as ``check`` for the keys of a JSON document, hides no other
    heading with these words, such as that of the command.

    Raises:
        InputError: several pages begin like this, or the page has no such section.
    """
    page, mark, anchor = typed.partition("#")
    if mark and page in TOPICS:
        return _with_subsections(page, anchor)
    slug = typed.replace(" ", "-")
    if slug in TOPICS:
        return [*read_sections(slug)]
    named = [
        section for name in TOPICS for section in read_sections(name) if section.anchor == slug
    ]
    if len(named) == 1 and (named[0].level <= 2 or len(_find_headings(typed.split())) == 1):
        return _with_subsections(named[0].page, slug)
    begun = [name for name in TOPICS if name.startswith(slug)]
    if len(begun) > 1 and not named:
        raise _unknown_topic_error(typed, begun)
    return [*read_sections(begun[0])] if begun and not named else []


def _with_subsections(page: str, anchor: str) -> list[Section]:
    """Return a section and those below it.

    Raises:
        InputError: the page has no such section.
    """
    sections = read_sections(page)
    anchors = [section.anchor for section in sections]
    if anchor not in anchors:
        raise unknown_name_error(f"section of {page}", anchor, anchors)
    first, *rest = sections[anchors.index(anchor) :]
    below = takewhile(lambda section: section.level > first.level, rest)
    return [first, *below]


def _unknown_topic_error(typed: str, close: Sequence[str]) -> InputError:
    return unknown_name_error(
        "topic", typed, TOPICS, "the topics that `fidtool guide` lists", close=close
    )


def _show(sections: Sequence[Section]) -> Iterator[str]:
    """Yield sections of one page, or show them in a pager on a terminal."""
    page = sections[0].page
    text = render(page, "\n\n".join(section.text for section in sections))
    if not is_terminal():
        yield text
        return
    # As git does: a page that fits the screen needs no key.
    os.environ.setdefault("LESS", "FRX")
    click.echo_via_pager(text)


def _list_sections(sections: Sequence[Section]) -> Iterator[str]:
    rows = [(section.name, section.title) for section in sections[:LONGEST_LIST]]
    yield from align_columns(rows)
    if len(sections) > LONGEST_LIST:
        rest = format_count(len(sections) - LONGEST_LIST, "more section")
        yield f"and {rest}: add a word to narrow the search"
    click.echo("\nfidtool guide TOPIC#SECTION shows a section.", err=True)
