"""Objects in code of the user's own: ``path/to/file.py:NAME`` or ``package.module:NAME``."""

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


class NoSourceError(Exception):
    """There is no such code, or no file with it."""


def is_place_in_code(spec: str) -> bool:
    """Whether ``spec`` is written like one."""
    path, _, name = spec.rpartition(":")
    return bool(name) and (Path(path).suffix == ".py" or _MODULE.fullmatch(spec) is not None)


def load(spec: str) -> tuple[Any, str]:
    """The object that ``spec`` names. This runs the file's code with the caller's rights.

    Args:
        spec: ``path/to/file.py:NAME``, or ``package.module:NAME`` for a module that can be imported, also from the
            current folder.

    Returns:
        The object, and a name that changes with the code: file or module, object, and the start of the file's SHA-256.

    Raises:
        NoSourceError: no such file, nothing of that name in it, or a module without a file.
        Exception: whatever the code raises when it is imported.
    """
    place, _, name = spec.rpartition(":")
    file = Path(place)
    if file.suffix == ".py":
        if not file.is_file():
            raise NoSourceError(f"no file {place}")
        module = _module_of(file)
    else:
        # `python -m fidtool` can import from the current folder, the installed command could not.
        _let_import_from(os.getcwd())
        module = importlib.import_module(place)
    if not hasattr(module, name):
        raise NoSourceError(f"{place} has no {name}")
    source = Path(module.__file__ or "")
    if not source.is_file():
        raise NoSourceError(f"the module {place} has no file whose content could identify it")
    import hashlib  # the command line answers a wrong option without it

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return getattr(module, name), f"{file.name if file.suffix == '.py' else place}:{name}@{digest[:12]}"


def _module_of(file: Path) -> ModuleType:
    # With its folders: two files of one name are two modules.
    name = "fidtool_user" + re.sub(r"\W", "_", str(file.resolve()))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import would: dataclasses and pickling look modules up by name.
    sys.modules[name] = module
    # Its neighbours can be imported, as from a script.
    _let_import_from(str(file.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _let_import_from(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # last in line, so that it hides nothing
