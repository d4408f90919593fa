"""The result JSON as text, and that of a run that failed. What is in it: `fidtool.results.Evaluation.to_dict`."""

from __future__ import annotations

import json
from typing import Any

from fidtool.errors import FidtoolError
from fidtool.results import SCHEMA, protocol_to_dict


def failure_to_dict(error: FidtoolError) -> dict[str, Any]:
    """The same shape for a run that ended in an error: no results, and why."""
    return {
        "schema": SCHEMA,
        "protocol": protocol_to_dict(None),
        "results": [],
        "run": {},
        "exit": {"code": error.exit_code, "reason": str(error)},
    }


def dumps(result: dict[str, Any]) -> str:
    """JSON text in ASCII, so that any file name can be printed; NaN is refused rather than written."""
    return json.dumps(result, indent=2, allow_nan=False)
