"""What a report needs beyond fidtool itself."""

from __future__ import annotations

import importlib.util

from fidtool.errors import InputError

_PACKAGES = {"--report": ("jinja2", "matplotlib"), "--plot": ("matplotlib",)}


def require_report_extra(flag: str) -> None:
    """Refuses a flag whose packages are not installed; imports none of them, so that it can be asked first.

    Args:
        flag: ``--report`` or ``--plot``.

    Raises:
        InputError: naming the extra that brings them.
    """
    missing = [package for package in _PACKAGES[flag] if importlib.util.find_spec(package) is None]
    if missing:
        packages = f"the package{'s' * (len(missing) > 1)} {' and '.join(missing)}"
        raise InputError(f"{flag} needs {packages}: pip install 'fidtool[report]'")
