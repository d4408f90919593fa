"""The result JSON as text, and that of a run that failed. What is in it: `fidtool.results.Evaluation.to_dict`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fidtool.errors import FidtoolError
from fidtool.record import Origin, changed_settings
from fidtool.redaction import without_secrets
from fidtool.results import SCHEMA, protocol_to_dict
from fidtool.settings import Settings


def failure_to_dict(error: FidtoolError, origin: Origin, config: Settings | None) -> dict[str, Any]:
    """The same shape for a run that ended in an error: no results, and why.

    Args:
        error: what ended it.
        origin: who asked for it, where and when.
        config: its settings; None where these are what was wrong.
    """
    found = {
        "schema": SCHEMA,
        "protocol": protocol_to_dict(None),
        "results": [],
        "run": {**asdict(origin), "config": None if config is None else changed_settings(config)},
        "exit": {"code": error.exit_code, "reason": str(error)},
    }
    return without_secrets(found)


def dumps(result: dict[str, Any]) -> str:
    """JSON text in ASCII, so that any file name can be printed; NaN is refused rather than written."""
    return json.dumps(result, indent=2, allow_nan=False)
