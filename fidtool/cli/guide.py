"""``fidtool guide``."""

from __future__ import annotations

import os
import re
from importlib.resources import files

import click

from fidtool.cli.options import OnceCommand
from fidtool.errors import InputError
from fidtool.names import closest, unknown

_PAGES = files("fidtool") / "guide"
_LISTED = re.compile(r"- \[(\w+)\]\(\1\.md\): (.+)")
"""A line of the index: the topic's name, its file and its description."""
_EXAMPLES = (
    ("List the topics", "fidtool guide"),
    ("Short answers to common questions", "fidtool guide questions"),
    ("Match the numbers of a paper", "fidtool guide protocols"),
)


@click.command(cls=OnceCommand, examples=_EXAMPLES)
@click.argument("words", metavar="[TOPIC]", nargs=-1)
def guide(words: tuple[str, ...]) -> None:
    """List the topics of the guide, or show TOPIC.

    TOPIC may be shortened as long as it is unique. A terminal shows it in a pager ($PAGER, else less).
    """
    topic, lines = "-".join(words), (_PAGES / "index.md").read_text("utf-8").splitlines()
    topics = {found[1]: found[2] for line in lines if (found := _LISTED.fullmatch(line))}
    if topic in ("", "index"):
        width = max(map(len, topics))
        for name, about in topics.items():
            click.echo(f"{name:{width}}  {about}")
        click.echo("\nfidtool guide TOPIC shows a topic, in a pager on a terminal.", err=True)
        return
    os.environ.setdefault("LESS", "FRX")  # as git does: a page that fits the screen needs no key
    click.echo_via_pager((_PAGES / f"{_meant(topic, list(topics))}.md").read_text("utf-8"))


def _meant(typed: str, topics: list[str]) -> str:
    """Return the name of a topic from its name, its file name or the start of one, in any case."""
    name = typed.lower().removesuffix(".md")
    begun = [topic for topic in topics if topic.startswith(name)]
    if name in topics:
        return name
    if len(begun) == 1:
        return begun[0]
    raise InputError(unknown("topic", typed, begun or closest(name, topics), ", ".join(topics)))
