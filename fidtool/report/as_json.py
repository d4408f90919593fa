"""The result JSON, schema 1. Later versions add keys and never change these."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fidtool.errors import FidtoolError
from fidtool.features.protocol import Definition
from fidtool.results import Comparison, Evaluation

SCHEMA = 1


def evaluation_to_dict(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as plain dictionaries, lists, numbers and texts; floats at full precision."""
    run = asdict(evaluation.run)
    run["cached"], run["warnings"] = list(evaluation.run.cached), list(evaluation.run.warnings)
    return {
        "schema": SCHEMA,
        "protocol": _protocol(evaluation.definition),
        "results": [_comparison(result) for result in evaluation.results],
        "run": run,
        "exit": {"code": evaluation.exit_code, "reason": evaluation.exit_reason},
    }


def failure_to_dict(error: FidtoolError) -> dict[str, Any]:
    """The same shape for a run that ended in an error: no results, and why."""
    return {
        "schema": SCHEMA,
        "protocol": _protocol(None),
        "results": [],
        "run": {},
        "exit": {"code": error.exit_code, "reason": str(error)},
    }


def dumps(result: dict[str, Any]) -> str:
    """JSON text; NaN is refused rather than written."""
    return json.dumps(result, indent=2, allow_nan=False, ensure_ascii=False)


def _protocol(definition: Definition | None) -> dict[str, Any]:
    if definition is None:
        return {"name": None, "fingerprint": None}
    return {"name": definition.protocol_name, "fingerprint": definition.fingerprint, **asdict(definition)}


def _comparison(result: Comparison) -> dict[str, Any]:
    return {
        "real": result.real,
        "fake": result.fake,
        "metrics": {"fid": result.fid},
        "count": {"real": result.count_real, "fake": result.count_fake},
        "skipped": list(result.skipped),
        "warnings": list(result.warnings),
    }
