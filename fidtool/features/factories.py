"""People's own networks: ``path/to/file.py:factory`` and ``package.module:factory``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from fidtool.errors import InputError
from fidtool.features.network import Network
from fidtool.features.torch_state import repeatable

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_factory(spec: str) -> bool:
    """Whether ``spec`` is written like a factory's name."""
    path, _, factory = spec.rpartition(":")
    return bool(factory) and (Path(path).suffix == ".py" or _MODULE.fullmatch(spec) is not None)


def from_factory(spec: str) -> tuple[Network, str]:
    """Runs the factory that ``spec`` names.

    This runs the file's code with the caller's rights.

    Args:
        spec: ``path/to/file.py:factory``, or ``package.module:factory`` for a module that can be imported, also from
            the current folder; the factory takes no arguments and returns a `Network`.

    Returns:
        The network, in evaluation mode, and its name for the fingerprint: file or module, factory, and the start of
        the source file's SHA-256.

    Raises:
        InputError: no such file, module or factory, or a factory that returns something else or fails.
    """
    place, _, factory_name = spec.rpartition(":")
    of_file = Path(place).suffix == ".py"
    if of_file and not Path(place).is_file():
        raise InputError(f"no file {place} (from --extractor {spec})")
    try:
        with repeatable():
            module = _module_of_file(Path(place)) if of_file else _importable(place)
            network = getattr(module, factory_name)()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"--extractor {spec} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(network, Network):
        raise InputError(f"--extractor {spec} returned {type(network).__name__}; it must return a fidtool.Network")
    network.module.eval()
    source = Path(place) if of_file else Path(module.__file__ or "")
    if not source.is_file():
        raise InputError(f"--extractor {spec}: the module {place} has no file whose content could identify it")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return network, f"{source.name if of_file else place}:{factory_name}@{digest[:12]}"


def _module_of_file(path: Path) -> ModuleType:
    module_name = f"fidtool_extractor_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(module_spec)
    # Registered before it runs, as an import would: dataclasses and pickling look modules up by name.
    sys.modules[module_name] = module
    # Its neighbours can be imported, as from a script.
    _let_import_from(str(path.resolve().parent))
    module_spec.loader.exec_module(module)
    return module


def _importable(name: str) -> ModuleType:
    # `python -m fidtool` can import from the current folder, the installed command could not.
    _let_import_from(os.getcwd())
    return importlib.import_module(name)


def _let_import_from(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)  # last in line, so that it hides nothing
