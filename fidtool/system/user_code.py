"""Objects in user code, named by a spec: ``FILE.py:NAME`` or ``package.module:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fidtool.errors import InputError, format_message
from fidtool.system.local_files import check_file

Made = TypeVar("Made")
# The content of each file that was run, by the name of its module.
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_loaded_files: dict[str, bytes] = {}


def is_code_spec(spec: str) -> bool:
    """Whether ``spec`` has the form of a spec. Nothing is opened or imported."""
    path, _, name = spec.rpartition(":")
    return bool(name) and (Path(path).suffix == ".py" or _MODULE.fullmatch(spec) is not None)


def load_object(
    spec: str, make: Callable[[Any], Made], named: str, reuse: bool = False
) -> tuple[Made, str]:
    """Load the object that ``spec`` names and pass it to ``make``. This runs the file's code with
    the caller's rights.

    A module can also be in the current folder. Returned with what ``make`` returns is a name that
    changes with the code: file or module, object, and the start of the file's SHA-256. With
    ``reuse``, a file whose content has not changed is not run again, so that its objects are of one
    module; what it imports may have changed. An InputError says ``named``, the option with the
    spec.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    is_file = file.suffix == ".py"
    if is_file:
        check_file(path, named)
    try:
        if is_file:
            module = _load_module(file, reuse)
        else:
            # `python -m fidtool` can import from the current folder, but the installed command
            # cannot.
            _add_to_path(os.getcwd())
            module = importlib.import_module(path)
        if not hasattr(module, name):
            raise AttributeError(f"{path} has no {name}")
        made = make(getattr(module, name))
        source = Path(str(module.__file__)).read_bytes()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{named} failed: {type(error).__name__}: {format_message(error)}"
        ) from error
    import hashlib  # not needed for usage errors, which must be reported quickly

    digest = hashlib.sha256(source).hexdigest()
    return made, f"{file.name if is_file else path}:{name}@{digest[:12]}"


def _load_module(file: Path, reuse: bool) -> ModuleType:
    # The name includes the folders, so that two files with the same name are two modules.
    name = "fidtool_user" + re.sub(r"\W", "_", str(file.resolve()))
    content = file.read_bytes()
    if reuse and name in sys.modules and _loaded_files.get(name) == content:
        return sys.modules[name]
    spec: Any = importlib.util.spec_from_file_location(name, file)  # never None for a .py file
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as an import does: dataclasses and pickle look modules up by name.
    sys.modules[name] = module
    # The file can import its neighbours, as a script can.
    _add_to_path(str(file.resolve().parent))
    spec.loader.exec_module(module)
    _loaded_files[name] = content
    return module


def _add_to_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that it does not shadow other modules
