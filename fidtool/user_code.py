"""Objects in user code, named by a spec: ``FILE.py:NAME`` or ``package.module:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class NoSourceError(Exception):
    """The file or module does not exist, or does not define the object."""


def is_code_spec(spec: str) -> bool:
    """Whether ``spec`` has the form of a spec. Nothing is opened or imported."""
    path, _, name = spec.rpartition(":")
    return bool(name) and (Path(path).suffix == ".py" or _MODULE.fullmatch(spec) is not None)


def is_python_file(spec: str) -> bool:
    """Whether ``spec`` is the path of a Python file without the name of an object in it."""
    return Path(spec.removesuffix(":")).suffix == ".py"


def specs_of_factories(file: str) -> list[str]:
    """Return the specs of the functions in a file that may build a network. The file is parsed and not run.

    Returns:
        Public functions that can be called without arguments; if some are annotated to return a ``Network``, these
        alone. Empty if the file cannot be parsed.
    """
    import ast

    functions = [
        (each.name, [each.returns])
        for each in _definitions(file)
        if isinstance(each, ast.FunctionDef) and _takes_nothing(each.args)
    ]
    return _specs(file, functions, "Network")


def specs_of_metrics(file: str) -> list[str]:
    """Return the specs of the classes in a file that may be metrics. The file is parsed and not run.

    Returns:
        Public classes; if some have a base class whose name ends in ``Metric``, these alone. Empty if the file cannot
        be parsed.
    """
    import ast

    classes = [(each.name, each.bases) for each in _definitions(file) if isinstance(each, ast.ClassDef)]
    return _specs(file, classes, "Metric")


def _definitions(file: str) -> Sequence[ast.stmt]:
    import ast

    try:
        return ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ()


def _takes_nothing(arguments: ast.arguments) -> bool:
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return required == 0 and None not in arguments.kw_defaults


def _specs(file: str, found: Sequence[tuple[str, Sequence[ast.expr | None]]], wanted: str) -> list[str]:
    """The specs of public names, or of those among them with a type called ``…wanted``."""
    import ast

    public = [(name, kinds) for name, kinds in found if not name.startswith("_")]
    typed = [each for each in public if any(k and ast.unparse(k).strip("'").endswith(wanted) for k in each[1])]
    return [f"{file}:{name}" for name, _ in typed or public]


def load(spec: str) -> tuple[Any, str]:
    """Load the object that ``spec`` names. This runs the file's code with the caller's rights.

    Args:
        spec: ``FILE.py:NAME``, or ``package.module:NAME`` for a module that can be imported, also from the
            current folder.

    Returns:
        The object, and a name that changes with the code: file or module, object, and the start of the file's SHA-256.

    Raises:
        NoSourceError: if the file does not exist, does not define the name, or if the module has no file.
        Exception: any exception that the code raises when it is imported.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if file.suffix == ".py":
        if not file.is_file():
            raise NoSourceError(f"no file {path}")
        module = _module_of(file)
    else:
        # `python -m fidtool` can import from the current folder, but the installed command cannot.
        _let_import_from(os.getcwd())
        module = importlib.import_module(path)
    if not hasattr(module, name):
        raise NoSourceError(f"{path} has no {name}")
    source = Path(module.__file__ or "")
    if not source.is_file():
        raise NoSourceError(f"the module {path} has no file whose content could identify it")
    import hashlib  # not needed for usage errors, which must be reported quickly

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return getattr(module, name), f"{file.name if file.suffix == '.py' else path}:{name}@{digest[:12]}"


def _module_of(file: Path) -> ModuleType:
    # The name includes the folders, so that two files with the same name are two modules.
    name = "fidtool_user" + re.sub(r"\W", "_", str(file.resolve()))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import does: dataclasses and pickle look modules up by name.
    sys.modules[name] = module
    # The file can import its neighbours, as a script can.
    _let_import_from(str(file.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _let_import_from(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that it does not shadow other modules
