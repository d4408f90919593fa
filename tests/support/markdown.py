"""Markdown of the guide's pages that is made from code: at most 80 columns, plain in a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping

COLUMNS = 80
_MADE = "<!-- {}, made from code: pytest tests/guide --write-goldens -->\n\n"
_END = "\n<!-- end -->\n"


def fill(text: str, indent: str = "", first: str = "") -> str:
    """Return a paragraph; ``indent`` is before all lines but the ``first``.

    No line begins with an operator, which would be the mark of a list.
    """
    glued = re.sub(r" ([-+*]) ", "\0\\1\0", " ".join(text.split()))
    filled = textwrap.fill(
        glued,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")


def items(texts: Iterable[str], level: int = 0) -> str:
    """Return a list, whose items are indented by ``level`` lists around it."""
    outer = "  " * level
    return "\n".join(fill(text, f"{outer}  ", f"{outer}- ") for text in texts)


def block(lines: Iterable[str]) -> str:
    """Return text as it is, which is not run."""
    return "\n".join(["```text", *lines, "```"])


def join(*parts: str) -> str:
    """Return the parts that are not empty, with an empty line between two."""
    return "\n\n".join(part for part in parts if part)


def sentence(text: str) -> str:
    """Return a text with a capital letter, unless it begins with a name, and a full stop."""
    first = text.split(maxsplit=1)[0]
    if not re.search(r"[\d_`.]", first.rstrip(".,;:")):
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ".)")) else f"{text}."


def made(text: str) -> dict[str, str]:
    """Return what a page has between marks, by the names in them."""
    head = re.escape(_MADE).replace(re.escape("{}"), "(.+?)")
    return dict(re.findall(f"{head}(.*?){re.escape(_END)}", text, re.DOTALL))


def replace_made(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with other parts between its marks."""
    for name, part in parts.items():
        head = _MADE.format(name)
        before, found, rest = text.partition(head)
        _, ended, after = rest.partition(_END)
        assert found, f"the page has no line {head}"
        assert ended, f"there is no end after {head}"
        text = f"{before}{head}{part}\n{_END}{after}"
    return text
