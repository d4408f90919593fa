"""What a statistics file tells of the run that made it: taken only as far as it can be true. Imports no torch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fidtool.config import Config
from fidtool.redaction import redacted

_LONGEST_TEXT = 4096
"""Characters of a text in a file that go on record, which is as long as a path can be."""


def capped(value: object) -> str:
    text = str(value)
    # Half an address could no longer be told from other texts.
    return text if len(text) <= _LONGEST_TEXT else redacted(text)[:_LONGEST_TEXT]


def found_of(value: object, count: int | None) -> int | None:
    """The number of images there were, if it can be one."""
    if count is None or not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if count <= value <= np.iinfo(np.int64).max else None


def settings_of(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Those that go into other records: settings that this version has, with plain values or lists of them."""
    if config is None:
        return None
    plain = (str, int, float, type(None))
    known = {name: value for name, value in config.items() if name in Config.__dataclass_fields__}
    lists = {name: value if isinstance(value, list) else [value] for name, value in known.items()}
    kept = {name: known[name] for name, values in lists.items() if all(isinstance(each, plain) for each in values)}
    return {name: value for name, value in kept.items() if len(json.dumps(value, allow_nan=False)) <= _LONGEST_TEXT}
