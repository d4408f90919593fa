"""Replaces SLURM's sbatch: runs an array's tasks in turn, or a command after an array that has
succeeded.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

JOB = 1234


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--array", "--ntasks", "--gpus", "--signal", "--dependency", "--wrap"):
        parser.add_argument(name)
    parser.add_argument("--parsable", action="store_true")
    parser.add_argument("script", nargs="?", type=Path)
    typed = parser.parse_args()
    if typed.wrap:
        condition, _, job = typed.dependency.partition(":")
        if condition != "afterok" or Path(f"{job}.failed").exists():
            sys.exit("DependencyNeverSatisfied")
        sys.exit(subprocess.run(["sh", "-c", typed.wrap]).returncode)
    text = typed.script.read_text()
    assert text.startswith("#!"), "sbatch refuses a script without an interpreter"
    written = " ".join(re.findall("^#SBATCH (.*)$", text, re.MULTILINE)).split()
    chosen = parser.parse_args([*written, *sys.argv[1:]])
    first, _, last = chosen.array.partition("-")
    numbers = range(int(first), int(last or first) + 1)
    Path(f"{JOB}.failed").unlink(missing_ok=True)
    for number in numbers:
        environment = {**os.environ, **variables(number, numbers, chosen.ntasks)}
        if subprocess.run(
            ["bash", str(typed.script)], env=environment, stdout=sys.stderr
        ).returncode:
            Path(f"{JOB}.failed").touch()
    print(JOB if typed.parsable else f"Submitted batch job {JOB}")


def variables(number: int, numbers: range, tasks: str) -> dict[str, str]:
    """Those of an array's task, in the script and not in a step of it."""
    array = {"JOB_ID": JOB, "TASK_ID": number, "TASK_COUNT": len(numbers), "TASK_MIN": min(numbers)}
    array |= {"TASK_MAX": max(numbers), "TASK_STEP": 1}
    job = {
        "JOB_ID": JOB + number,
        "NTASKS": tasks,
        "NPROCS": tasks,
        "TASKS_PER_NODE": tasks,
        "NNODES": 1,
    }
    job |= {"JOB_NUM_NODES": 1, "JOB_NODELIST": "localhost", "NODELIST": "localhost"}
    place = {"PROCID": 0, "LOCALID": 0, "NODEID": 0}
    named = {**{f"ARRAY_{name}": value for name, value in array.items()}, **job, **place}
    return {f"SLURM_{name}": str(value) for name, value in named.items()}


main()
