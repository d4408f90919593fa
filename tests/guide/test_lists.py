"""The lists of the README and the guide that are written by hand name all that the code has."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

import fidtool
from fidtool.diagnose import differences, findings
from fidtool.diagnose.duplicates import COPIES
from fidtool.diagnose.order import OTHER_ORDER
from fidtool.errors import EXIT_STATUSES, FidtoolError
from fidtool.features.protocol import NAMED_PROTOCOLS, OWN_PROTOCOLS, PROTOCOLS
from fidtool.metrics.metric import ALL
from fidtool.metrics.registry import BUILT_IN
from fidtool.reading.records import FLAGS
from fidtool.references.catalogue import REFERENCES
from fidtool.report.loggers import LOGGERS
from fidtool.sources.crops import CROPS
from support.pages import GUIDE, PAGES, prose
from support.places import ROOT, SCRIPTS

README = ROOT / "README.md"
GATED = [name for name, kind in BUILT_IN.items() if any(number.gated for number in kind.numbers)]
FINDINGS = {
    *findings.TEXTS,
    *differences.TEXTS,
    *FLAGS,
    findings.UNREADABLE,
    COPIES,
    "leak",
    OTHER_ORDER,
}
"""Codes of all findings."""


def guide(page: str) -> str:
    """Return a page of the guide without its code blocks."""
    return prose(PAGES[GUIDE / f"{page}.md"])


def code(text: str) -> list[str]:
    """Return what is in backticks, with one space between words."""
    return [" ".join(span.split()) for span in re.findall("`([^`]+)`", text)]


def first_column(head: str) -> list[str]:
    """Return the names in the first column of the table of the README with this heading."""
    _, found, table = PAGES[README].partition(f"| `{head}` |")
    assert found
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return code(" ".join(row.split("|")[1] for row in rows))


def test_metrics_in_the_readme() -> None:
    assert first_column("--metrics") == [*BUILT_IN, ALL]


def test_protocols_in_the_readme() -> None:
    assert sorted(first_column("--protocol")) == sorted(NAMED_PROTOCOLS)


def test_metrics_are_public() -> None:
    """Programs pass objects of their classes."""
    assert {kind.__name__ for kind in BUILT_IN.values()} <= {*fidtool.__all__}


def test_citations() -> None:
    """Of each metric, but for the one that no paper defines."""
    cited = re.findall(r"`([\w-]+)`:\s+[a-z]+\d{4}\b", guide("choose"))
    assert [name for name in BUILT_IN if name not in cited] == ["psnr"]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("protocols", {*PROTOCOLS, *NAMED_PROTOCOLS}),
        ("protocols", {own.name for each in OWN_PROTOCOLS.values() for own in each if own.name}),
        ("diagnosis", FINDINGS - {differences.NOT_COMPARED}),
        ("sources", CROPS.keys()),
        ("references", {f"{each.project}:" for each in REFERENCES.values()}),
        ("loggers", {f"--log {name}" for name in LOGGERS}),
    ],
)
def test_page_names_all(page: str, names: Collection[str]) -> None:
    listed = [re.sub(r"(?<=--log )(\w+):.*", r"\1", span) for span in code(guide(page))]
    assert not [name for name in names if name not in listed]


def statuses(error: type[FidtoolError]) -> set[int]:
    """Return the exit statuses of an error and of its subclasses."""
    return {error.exit_code}.union(*map(statuses, error.__subclasses__()))


def test_exit_statuses_of_all_errors_are_described() -> None:
    assert statuses(FidtoolError) <= EXIT_STATUSES.keys()


def test_exit_statuses_in_the_page_about_ci() -> None:
    listed = re.findall(r"^- ([\d, ]+):", guide("ci"), re.MULTILINE)
    assert [int(number) for item in listed for number in item.split(", ")] == [*EXIT_STATUSES]


def test_exit_statuses_in_the_readme() -> None:
    """Those of signals are in the guide."""
    (sentence,) = re.findall(r"The exit status is 0 .*?\.\s", PAGES[README], re.DOTALL)
    numbers = {int(number) for number in re.findall(r"(?<![\w-])\d+(?![\w-])", sentence)}
    assert numbers == {status for status in EXIT_STATUSES if status < 128}


def test_lists_of_gated_metrics_are_complete() -> None:
    """A sentence about ``--fail-above`` that names several of them names all of them. The test of
    ci.md is that of its list.
    """
    action = SCRIPTS / "examples" / "github-action" / "action.yml"
    sentences = [
        (page.name, " ".join(sentence.split()))
        for page, text in {**PAGES, action: action.read_text("utf-8")}.items()
        for sentence in re.split(r"(?<=[.!?])\s|\n\n|\n- ", text)
        if re.search(r"fail-above|is above this|limits? the first", sentence)
    ]
    lists = {
        (page, sentence): [name for name in GATED if re.search(rf"\b{name}\b", sentence)]
        for page, sentence in sentences
    }
    named = {place: names for place, names in lists.items() if len(names) > 2}
    assert {page for page, _ in named} >= {"README.md", "questions.md", "commands.md", "action.yml"}
    assert not [place for place, names in named.items() if names != GATED]
