"""Linters, the direction of imports, and the list of promises."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT, TESTS

PACKAGE = ROOT / "fidtool"

ORDER = [
    "errors",
    "names",
    "validation",
    "system",
    "distributed",
    "sources",
    "references",
    "reading",
    "features",
    "statistics",
    "distances",
    "metrics",
    "settings",
    "diagnose",
    "result",
    "run",
    "report",
    "api",
    "training",
    "cli",
    "__main__",
]
"""The layers from the bottom up. Each imports only from itself and from earlier ones."""


def layer(module: str) -> str:
    """Return the layer of a module: that of ``fidtool.reading.batches`` is ``reading``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, including imports inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module or ".")
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


PUBLIC = PACKAGE / "__init__.py"
"""Imports public names from all layers on first use."""


def test_imports_point_one_way() -> None:
    for file in {*PACKAGE.rglob("*.py")} - {PUBLIC}:
        own = layer(".".join(["fidtool", *file.relative_to(PACKAGE).with_suffix("").parts]))
        modules = {"fidtool.errors" if module == "fidtool" else module for module in imported(file)}
        for module in (module for module in modules if module.startswith("fidtool")):
            assert ORDER.index(layer(module)) <= ORDER.index(own), (
                f"{file} imports {module}, of a later layer"
            )


def test_no_test_imports_another() -> None:
    """Code shared by tests is in ``tests/support`` or ``tests/conftest.py``."""
    for file in TESTS.rglob("*.py"):
        names = {part for module in imported(file) for part in module.split(".")}
        assert not [name for name in names if name.startswith(("test_", "conftest"))], file


OWN = ("self", "cls", "os")
"""Owners of private names that tests may use."""
OF_OWNER = re.compile(r"(\w+)\.(_\w+)")
"""A private name and its owner, in a text."""


def private_names(file: Path) -> set[str]:
    """Return the private names that a file defines."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if re.fullmatch(r"_[A-Za-z]\w*(?<!_)", name)}


def used_names(file: Path) -> set[str]:
    """Return the names that a file imports, reads of objects, patches, or reads in a program that
    is a text.
    """
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in OWN:
            names.add(node.attr)
        if isinstance(node, ast.Call):
            names |= {part.value for part in node.args[:2] if isinstance(part, ast.Constant)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {name for owner, name in OF_OWNER.findall(node.value) if owner not in OWN}
    return names


def test_tests_use_public_names() -> None:
    """A test of a private name would fail at each change that users do not see."""
    private = set().union(*map(private_names, PACKAGE.rglob("*.py")))
    for file in TESTS.rglob("*.py"):
        used = used_names(file) & private
        assert not used, f"{file} uses {used}"


LINTERS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    pytest.param(["mypy"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("command", LINTERS)
def test_linters_report_nothing(command: list[str]) -> None:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"needs {command[0]}, from the extra 'dev'")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


CALLS = """
import fidtool
named: dict[str, fidtool.Images] = {"epoch 1": fidtool.Images([])}
distance: float | None = fidtool.compute("a", named).by_name["epoch 1"].fid
fidtool.compute("a", {"epoch 1": "b", "epoch 2": [b""], "epoch 3": lambda n: []})
mu = fidtool.compute_statistics("a").mu
fidtool.compute(fidtool.compute_statistics("a"), "b")
fidtool.compute(real="a", fake=["b"], num=3)
fidtool.compute("a", "b", numm=3)
fidtool.compute_statistics("a", since="b", per_class=True)
fidtool.check("a", "b", num="3")
"""


@pytest.mark.slow
def test_type_checkers_know_the_keywords(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="needs mypy, from the extra 'dev'")
    program = tmp_path / "program.py"
    program.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)], cwd=ROOT, capture_output=True, text=True
    )
    errors = [
        line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line
    ]
    assert [re.findall(r'"(\w+)"', error)[0] for error in errors] == ["numm", "per_class", "num"], (
        done.stdout
    )


OF_OTHERS = {"DataLoader", "Resampling", "WeightAveraging", "to_empty", *vars(builtins)}
"""Names of other libraries that docstrings and comments of the package refer to."""
OF_FILES = {"mu_s", "sigma_s", "_", "fd_dinov2"}
"""Names in files, which stand in backticks as well."""
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
"""A name in single backticks, which refers to code."""


def defined_names(file: Path) -> set[str]:
    """Return the names of a module's classes, functions, fields, attributes and constants, and of
    what it imports.
    """
    names = {*file.relative_to(ROOT).with_suffix("").parts}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for statement in node.body:
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def test_docstrings_refer_to_existing_names() -> None:
    files = [*PACKAGE.rglob("*.py")]
    known = set[str]().union(OF_OTHERS, OF_FILES, *map(defined_names, files))
    references = 0
    for file in files:
        for name in REFERENCE.findall(file.read_text()):
            first, *rest = name.split(".")
            if first in sys.stdlib_module_names or first in ("torch", "datasets", "Image"):
                continue
            references += 1
            unknown = {first, *rest} - known
            assert not unknown, f"{file} refers to {name}, of which {unknown} does not exist"
    assert references > 500


SHORT = {"d": "distributed", "i": "integration", "u": "unit", "us": "unit/statistics"}
"""Short names of folders in the list of promises."""


def test_the_promises_name_existing_tests() -> None:
    rows = [
        line for line in (TESTS / "promises.md").read_text().splitlines() if line.startswith("|")
    ]
    named = [
        name
        for row in rows
        for name in re.findall(r"[\w/]+\.py(?:::\w+)?|(?<=`)::\w+", row.split("|")[2])
    ]
    assert len(named) > 300
    for name in named:
        path, _, test = name.partition("::")
        if path:
            first, _, rest = path.partition("/")
            file = TESTS / SHORT.get(first, first) / rest
        assert file.is_file(), name
        assert not test or f"def {test}(" in file.read_text(), name
