"""The ways of an image and of a setting in the guide's design page: a run passes their functions in
this order.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.command_line import Run
from support.pages import GUIDE
from support.pictures import make_pictures
from support.places import ROOT

PAGE = GUIDE / "design.md"
STEP = re.compile(r"^([\w/]+\.py) ([\w.]+)", re.MULTILINE)
"""A step of a way: file and qualified name of a function."""


def steps(title: str) -> list[tuple[str, str]]:
    """Return file and name of each function that the section ``title`` lists."""
    _, section = PAGE.read_text("utf-8").split(f"## {title}\n")
    return STEP.findall(section.split("\n## ")[0])


def functions(file: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods of a file of the package, with their qualified names."""
    open_nodes: list[tuple[str, ast.AST]] = [
        ("", ast.parse((ROOT / "fidtool" / file).read_text("utf-8")))
    ]
    for prefix, outer in open_nodes:
        for node in ast.iter_child_nodes(outer):
            name = f"{prefix}.{getattr(node, 'name', '')}".strip(".")
            if isinstance(node, ast.FunctionDef):
                yield name, node
            open_nodes.append((name, node))


@contextmanager
def calls_recorded() -> Iterator[list[tuple[str, int]]]:
    """Record the calls of all threads as file and first line of the function, which is that of its
    first decorator.
    """
    called: list[tuple[str, int]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("title", "real", "options"),
    [
        ("The way of an image", "real.npz", ("--metrics", "fid")),
        ("The way of a setting", "real", ("--metrics", "kid", "--kid-subset-size", 5, "--json")),
    ],
)
def test_a_run_passes_the_functions_of_a_way_in_order(
    here: Run, title: str, real: str, options: tuple[object, ...]
) -> None:
    """The images of one set in one batch are measured, so that each step is passed once."""
    for seed, name in enumerate(("real", "fake")):
        make_pictures(Path(name), 8, seed)
    assert (
        here(
            "stats", "real", "-o", "real.npz", "--dims", 64, "--device", "cpu", "--no-cache"
        ).status
        == 0
    )
    with calls_recorded() as called:
        outcome = here(
            "compute", real, "fake", "--dims", 64, "--device", "cpu", "--no-cache", *options
        )
    assert outcome.status == 0, outcome.stderr
    listed = steps(title)
    assert len(listed) > 9
    rest = iter(called)
    for file, name in listed:
        node = dict(functions(file))[name]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        assert (str(ROOT / "fidtool" / file), first) in rest, (
            f"{file}: {name} is not passed, or not here"
        )


@pytest.mark.parametrize("page", ["design", "contributing"])
def test_names_on_the_page_exist(page: str) -> None:
    """A name in backticks is that of a file, a folder, or something in the code or its tests."""
    words = re.findall(r"`([^`\n]+)`", (GUIDE / f"{page}.md").read_text("utf-8"))
    roots = [ROOT / "fidtool", ROOT / "tests"]
    folders = [ROOT, *roots, *(folder for root in roots for folder in root.rglob("*/"))]
    sources = [file for root in roots for file in root.rglob("*.py")]
    code = "\n".join(file.read_text("utf-8") for file in sources)
    known = {*re.findall(r"\w+", code)}
    for word in words:
        if "NAME" in word:  # a placeholder
            continue
        if re.fullmatch(r"[\w./-]+\.(py|md|json|toml|yml|yaml)|[\w/]+/", word):
            assert any((folder / word).exists() for folder in folders), word
        elif re.fullmatch(r"[A-Za-z_][\w.]*", word):
            assert known.issuperset(word.split(".")), word
