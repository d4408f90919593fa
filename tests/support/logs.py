"""What experiment trackers have stored, read back."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Logged = list[tuple[str, int, dict[str, float]]]
"""Name of the run, step, and values."""
_BLOCK, _HEADER = 1 << 15, 7


def tensorboard(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Logged = []
    for file in sorted(folder.rglob("events.*")):
        events = EventAccumulator(str(file.parent), size_guidance={"scalars": 0}).Reload()
        rows: dict[int, dict[str, float]] = {}
        for key in events.Tags()["scalars"]:
            for event in events.Scalars(key):
                rows.setdefault(event.step, {})[key] = event.value
        name = "" if file.parent == folder else file.parent.name
        found += [(name, step, values) for step, values in rows.items()]
    return found


def wandb(folder: Path) -> Logged:
    """Runs of ``WANDB_MODE=offline``: records of the package's own format, in LevelDB's log
    format.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    found: Logged = []
    for file in sorted(folder.rglob("*.wandb")):
        data, place, whole, name = file.read_bytes(), _HEADER, b"", ""
        while place < len(data):
            if (left := _BLOCK - place % _BLOCK) < _HEADER:
                place += left
                continue
            if place + _HEADER > len(data):
                break  # still being written
            _, size, kind = struct.unpack("<IHB", data[place : place + _HEADER])
            if place + _HEADER + size > len(data):
                break
            whole += data[place + _HEADER : place + _HEADER + size]
            place += _HEADER + size
            if kind in (1, 4):  # a whole record, or the end of one
                record, whole = Record.FromString(whole), b""
                name = record.run.display_name or name
                items = {
                    "/".join(each.nested_key) or each.key: each.value_json
                    for each in record.history.item
                }
                if items:
                    values = {
                        key: json.loads(text)
                        for key, text in items.items()
                        if not key.startswith("_")
                    }
                    found.append((name, record.history.step.num, values))
    return found


def mlflow(folder: Path) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient(str(folder / "mlruns"))
    found: Logged = []
    experiment = client.get_experiment_by_name("place")
    assert experiment is not None
    for run in sorted(
        client.search_runs([experiment.experiment_id]), key=lambda run: run.info.start_time
    ):
        assert run.info.status == "FINISHED"
        rows: dict[int, dict[str, float]] = {}
        for key in run.data.metrics:
            for each in client.get_metric_history(run.info.run_id, key):
                rows.setdefault(each.step, {})[key] = each.value
        found += [(run.info.run_name, step, values) for step, values in rows.items()]
    return found


def trackio(folder: Path) -> Logged:
    """In another process, because the package takes its folder from the environment when it is
    imported.
    """
    code = """if 1:
        import json
        from trackio.sqlite_storage import SQLiteStorage
        logs = {name: SQLiteStorage.get_logs("place", name) for name in SQLiteStorage.get_runs("place")}
        print(json.dumps(logs))
    """
    environment = {**os.environ, "TRACKIO_DIR": str(folder)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    logs: dict[str, list[dict[str, Any]]] = json.loads(run.stdout)
    return [
        (
            name,
            row["step"],
            {key: value for key, value in row.items() if key not in ("step", "timestamp")},
        )
        for name, rows in logs.items()
        for row in rows
    ]


READERS: dict[str, Callable[[Path], Logged]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}
