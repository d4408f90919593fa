"""The shape of the code: linters, one direction of imports."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT, TESTS

PACKAGE = ROOT / "fidtool"

ORDER = [
    "redaction",
    "errors",
    "cache_dir",
    "validation",
    "names",
    "user_code",
    "console",
    "torch_internals",
    "distributed",
    "seeds",
    "sources",
    "images",
    "features",
    "statistics",
    "distances",
    "metrics",
    "settings",
    "record",
    "labels",
    "diagnose",
    "results",
    "pipeline",
    "report",
    "api",
    "training",
    "demo",
    "cli",
    "__main__",
]
"""The rooms from the ground up; each imports only from those before it, or from itself."""


def room(module: str) -> str:
    """``fidtool.images.batches`` is in the room ``images``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(file: Path) -> set[str]:
    """Modules that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


FRONT_DOOR = PACKAGE / "__init__.py"
"""Opens every room, when asked."""


@pytest.mark.parametrize(
    "file", sorted({*PACKAGE.rglob("*.py")} - {FRONT_DOOR}), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_imports_point_one_way(file: Path) -> None:
    own = room(".".join(["fidtool", *file.relative_to(PACKAGE).with_suffix("").parts]))
    modules = {"fidtool.errors" if module == "fidtool" else module for module in imported(file)}
    for module in (module for module in modules if module.startswith("fidtool")):
        assert ORDER.index(room(module)) <= ORDER.index(own), f"{file.name} imports {module} from above"


def test_no_test_imports_another() -> None:
    """What several tests need stands in ``tests/support`` or ``tests/conftest.py``."""
    for file in TESTS.rglob("*.py"):
        names = {part for module in imported(file) for part in module.split(".")}
        assert not [name for name in names if name.startswith(("test_", "conftest"))], file


def test_every_test_stands_in_the_folder_of_its_kind() -> None:
    kinds = {file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")}
    assert kinds == {"unit", "integration", "distributed", "parity", "guide", "scripts"}


PEERS = {"pytorch_fid", "cleanfid", "torch_fidelity", "prdc", "clip_mmd"}
"""Packages that compute what fidtool computes. torchmetrics is one, and a library that fidtool works with."""
STARTS_RANKS = {"arena", "programs", "quick_torchrun", "torchrun", "start_each", "ranks="}
"""Fixtures, methods and keywords with which tests start several ranks."""


def peers(file: Path) -> set[str]:
    """Those that a file imports, by ``importorskip``, too."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    wanted = [ast.unparse(call.args[0]).strip("'") for call in calls if ast.unparse(call.func).endswith("importorskip")]
    return PEERS & {module.split(".")[0] for module in [*imported(file), *wanted]}


def starters(file: Path) -> set[str]:
    """Of `STARTS_RANKS` what a file calls, passes or asks for."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            found |= {f"{word.arg}=" for word in node.keywords}
            found |= {node.func.attr} if isinstance(node.func, ast.Attribute) else set()
        if isinstance(node, ast.arg):
            found.add(node.arg)
    return STARTS_RANKS & found


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_peers_and_ranks_have_folders_of_their_own(kind: str) -> None:
    for file in (TESTS / kind).rglob("test_*.py"):
        assert (peers(file), starters(file)) == (set(), set()), file


LINTERS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], pytest.param(["mypy"], marks=pytest.mark.slow)]


@pytest.mark.parametrize("command", LINTERS)
def test_linters_are_content(command: list[str]) -> None:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed; it comes with the extra 'dev'")
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
