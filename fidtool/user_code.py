"""Objects in user code, named by a spec: ``FILE.py:NAME`` or ``package.module:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

_READ = "__fidtool_read__"
"""Name in a module of the content of the file that was run."""


class NoSourceError(Exception):
    """The file or module does not exist, or does not define the object."""


def is_code_spec(spec: str) -> bool:
    """Whether ``spec`` has the form of a spec. Nothing is opened or imported."""
    path, _, name = spec.rpartition(":")
    return bool(name) and (Path(path).suffix == ".py" or _MODULE.fullmatch(spec) is not None)


def is_python_file(spec: str) -> bool:
    """Whether ``spec`` is the path of a Python file without the name of an object in it."""
    return Path(spec.removesuffix(":")).suffix == ".py"


def load(spec: str, reuse: bool = False) -> tuple[Any, str]:
    """Load the object that ``spec`` names. This runs the file's code with the caller's rights.

    The spec is ``FILE.py:NAME``, or ``package.module:NAME`` for a module that can be imported, also from the current
    folder. Returned with the object is a name that changes with the code: file or module, object, and the start of the
    file's SHA-256. With ``reuse``, a file whose content has not changed is not run again, so that its objects are of
    one module; what it imports may have changed.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if file.suffix == ".py":
        if not file.is_file():
            raise NoSourceError(f"no file {path}")
        module = _module_of(file, reuse)
    else:
        # `python -m fidtool` can import from the current folder, but the installed command cannot.
        _let_import_from(os.getcwd())
        module = importlib.import_module(path)
    if not hasattr(module, name):
        raise NoSourceError(f"{path} has no {name}")
    source = Path(getattr(module, "__file__", None) or "")
    if not source.is_file():
        raise NoSourceError(f"the module {path} has no file whose content could identify it")
    import hashlib  # not needed for usage errors, which must be reported quickly

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return getattr(module, name), f"{file.name if file.suffix == '.py' else path}:{name}@{digest[:12]}"


def _module_of(file: Path, reuse: bool) -> ModuleType:
    # The name includes the folders, so that two files with the same name are two modules.
    name = "fidtool_user" + re.sub(r"\W", "_", str(file.resolve()))
    content = file.read_bytes()
    if reuse and name in sys.modules and vars(sys.modules[name]).get(_READ) == content:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import does: dataclasses and pickle look modules up by name.
    sys.modules[name] = module
    # The file can import its neighbours, as a script can.
    _let_import_from(str(file.resolve().parent))
    spec.loader.exec_module(module)
    vars(module)[_READ] = content
    return module


def _let_import_from(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that it does not shadow other modules
