"""Linters, the pre-commit configuration, the direction of imports, and the folders of tests."""

from __future__ import annotations

import ast
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT, TESTS

PACKAGE = ROOT / "fidtool"

ORDER = [
    "names",
    "redaction",
    "errors",
    "cache_dir",
    "download",
    "validation",
    "names",
    "user_code",
    "console",
    "torch_internals",
    "safe_pickle",
    "distributed",
    "seeds",
    "sources",
    "images",
    "features",
    "statistics",
    "distances",
    "metrics",
    "presets",
    "settings",
    "record",
    "labels",
    "diagnose",
    "results",
    "comparability",
    "pipeline",
    "report",
    "api",
    "training",
    "demo",
    "cli",
    "__main__",
]
"""The layers from the bottom up. Each imports only from itself and from earlier ones."""


def layer(module: str) -> str:
    """Return the layer of a module: that of ``fidtool.images.batches`` is ``images``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, including imports inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


PUBLIC = PACKAGE / "__init__.py"
"""Imports public names from all layers on first use."""


@pytest.mark.parametrize(
    "file", sorted({*PACKAGE.rglob("*.py")} - {PUBLIC}), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_imports_point_one_way(file: Path) -> None:
    own = layer(".".join(["fidtool", *file.relative_to(PACKAGE).with_suffix("").parts]))
    modules = {"fidtool.errors" if module == "fidtool" else module for module in imported(file)}
    for module in (module for module in modules if module.startswith("fidtool")):
        assert ORDER.index(layer(module)) <= ORDER.index(own), f"{file.name} imports {module}, of a later layer"


def test_no_test_imports_another() -> None:
    """Code shared by tests is in ``tests/support`` or ``tests/conftest.py``."""
    for file in TESTS.rglob("*.py"):
        names = {part for module in imported(file) for part in module.split(".")}
        assert not [name for name in names if name.startswith(("test_", "conftest"))], file


def test_every_test_is_in_the_folder_of_its_kind() -> None:
    kinds = {file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")}
    assert kinds == {"unit", "integration", "distributed", "parity", "guide", "scripts"}


PEERS = {"pytorch_fid", "cleanfid", "torch_fidelity", "prdc", "clip_mmd"}
"""Other tools that compute FID and related metrics. torchmetrics is not listed: fidtool also works with it."""
STARTS_RANKS = {"arena", "programs", "quick_torchrun", "torchrun", "start_each", "ranks="}
"""Fixtures, methods and keyword arguments with which tests start several ranks."""


def peers(file: Path) -> set[str]:
    """Return the other tools that a file imports, also by ``importorskip``."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    wanted = [ast.unparse(call.args[0]).strip("'") for call in calls if ast.unparse(call.func).endswith("importorskip")]
    return PEERS & {module.split(".")[0] for module in [*imported(file), *wanted]}


def starters(file: Path) -> set[str]:
    """Return the names in `STARTS_RANKS` that a file calls, passes or requests as a fixture."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            found |= {f"{word.arg}=" for word in node.keywords}
            found |= {node.func.attr} if isinstance(node.func, ast.Attribute) else set()
        if isinstance(node, ast.arg):
            found.add(node.arg)
    return STARTS_RANKS & found


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_other_tools_and_ranks_have_separate_folders(kind: str) -> None:
    for file in (TESTS / kind).rglob("test_*.py"):
        assert (peers(file), starters(file)) == (set(), set()), file


def test_pre_commit_runs_the_linters_of_the_dev_extra() -> None:
    """Each hook is local and runs a module of the repository's environment, so that it works offline."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which packages of the extra 'test' install")
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    entries = [shlex.split(hook["entry"]) for hook in repository["hooks"]]
    commands = {(entry[0], entry[1], entry[2]) for entry in entries}
    assert commands == {(".venv/bin/python", "-m", linter) for linter in ("ruff", "mypy")}


LINTERS = [["ruff", "check", "."], ["ruff", "format", "--check", "."], pytest.param(["mypy"], marks=pytest.mark.slow)]


@pytest.mark.parametrize("command", LINTERS)
def test_linters_report_nothing(command: list[str]) -> None:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"needs {command[0]}, from the extra 'dev'")
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
