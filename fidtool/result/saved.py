"""Files of results: what `fidtool compute` wrote, read and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidtool.errors import InputError
from fidtool.local_files import read_file


def saved_result(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the result JSON that ``fidtool compute -o`` wrote to a file; ``-`` is stdin.

    Raises:
        InputError: if the file cannot be read, is not a result, or is that of a failed run.
    """
    try:
        content = json.loads(read_file("/dev/stdin" if file == "-" else file).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON ({error})"
        raise InputError(f"{file} cannot be read: {reason}") from None
    check_result(content, f"{file} ")
    return dict(content)


def is_replaceable(file: Path) -> bool:
    """Whether the JSON of a failed run may take the place of a file: only that of another one, or none, is lost."""
    return not os.path.isfile(file) or file.stat().st_size == 0 or b'"results": []' in file.read_bytes()


def check_result(content: Any, named: str = "") -> None:
    """Check that ``content`` is a result with values; ``named`` precedes the problem.

    Raises:
        InputError: if it is not.
    """
    if not isinstance(content, Mapping) or not {"results", "run"} <= content.keys():
        raise InputError(
            f"{named or 'this '}is not the JSON of `fidtool compute`, which has results and run:",
            "pass the file that its option -o wrote",
        )
    if not content["results"]:
        reason = (content.get("exit") or {}).get("reason", "")
        raise InputError(f"{named or 'the result '}has no values: the run failed ({reason})")
