"""The check of a GPU, ``python scripts/bench gpu``, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from support.places import SCRIPTS
from support.processes import PATIENCE

PARTS = (
    "facts",
    "tests",
    "exact",
    "graph",
    "callers",
    "ranks",
    "numbers",
    "table",
    "speed",
    "sizes",
    "metrics",
    "peers",
)


def check(
    program: list[str], environment: dict[str, str], folder: Path
) -> tuple[int, str, dict[str, list[dict[str, Any]]]]:
    """Run the check and return its exit status, its stdout, and the lines of each part in its JSON."""
    command = [sys.executable, *program, "--device", "cpu", "--small", "--json", "gpu.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=folder)
    assert (folder / "gpu.json").is_file(), done.stderr
    document = json.loads((folder / "gpu.json").read_text())
    assert (document["schema"], document["benchmark"]) == (1, "gpu")
    assert {"python", "torch", "fidtool", "pillow"} <= set(document["machine"]["versions"])
    assert document["machine"]["device_name"] in done.stdout
    lines = {name: part["lines"] for name, part in document["results"]["parts"].items()}
    for line in (line for own in lines.values() for line in own):
        assert f"{line['status']:<8}  {line['check']}" in done.stdout
    return done.returncode, done.stdout, lines


def statuses(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {line["check"]: line["status"] for line in lines}


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(environment: dict[str, str], tmp_path: Path) -> None:
    status, stdout, parts = check([str(SCRIPTS / "bench"), "gpu"], environment, tmp_path)
    found = [line for lines in parts.values() for line in lines]
    assert [line for line in found if line["status"] == "FAIL"] == []
    assert status == 0
    assert tuple(parts) == ("weights", *PARTS)
    assert all(parts.values()), "each part reports something"
    assert {line["status"] for line in found} == {"pass", "skip", "measured"}
    assert all(line["detail"] for line in found if line["status"] == "skip"), "each says why"
    for part, check_, expected in (
        ("exact", "sums of 33000 x 8 integers, batches: uneven", "pass"),
        ("exact", "resize pillow-bicubic", "pass"),
        ("graph", "graph", "skip"),
        ("callers", "under torch.autocast", "pass"),
        ("callers", "on another stream", "skip"),
        ("ranks", "two ranks on one device, gloo", "pass"),
        ("ranks", "two ranks on two devices, nccl", "skip"),
        ("numbers", "cpu, fp32", "pass"),
        ("table", "NHWC fp32 batch 2", "measured"),
        ("table", "compiled fp32", "skip"),
        ("speed", "whole run, fp32", "measured"),
        ("sizes", "clean", "measured"),
        ("sizes", "clean, launches", "skip"),
        ("metrics", "fid,kid,prdc, 2 x 12 images", "measured"),
        ("peers", "fidtool", "measured"),
        ("peers", "torchmetrics", "skip" if find_spec("torchmetrics") is None else "measured"),
    ):
        assert statuses(parts[part])[check_] == expected, (part, check_)
    whole = next(line["values"] for line in parts["speed"] if line["check"] == "whole run, fp32")
    assert whole["share"] == whole["images_per_second"] / min(whole["decoding"], whole["network"])
    assert f", 0 FAIL, {sum(line['status'] == 'skip' for line in found)} skip" in stdout


BROKEN = """
import os, pathlib, signal, sys, time
sys.path[0] = sys.argv.pop(1)
import torch
main = os.getpid()

def asked(*_):
    assert os.getpid() != main, "a process that has used CUDA cannot fork parts that use it"
    return 0

torch.cuda.device_count = torch.cuda.is_available = torch.cuda.init = asked
import bench.gpu, bench.gpu_checks, bench.gpu_speed

def exact(situation, findings):
    findings.verdict("before", True)
    raise ValueError("broken on purpose")

def callers(situation, findings):
    findings.measured("so far", pathlib.Path("gpu.json").read_text())
    os.kill(os.getpid(), signal.SIGKILL)

def graph(situation, findings):
    findings.measured("not a number", "", value=float("nan"))
    time.sleep(1000)

bench.gpu_checks.exact, bench.gpu_checks.callers, bench.gpu_checks.graph = exact, callers, graph
bench.gpu_checks.places = lambda named: []  # no weights on this machine
bench.gpu._LIMIT_SECONDS = 20
bench.gpu.gpu()
"""


@pytest.mark.slow
def test_a_part_that_fails_does_not_stop_the_others(environment: dict[str, str], tmp_path: Path) -> None:
    """One raises, one crashes, one hangs. The weights are random, because the machine has none."""
    chosen = [word for part in ("exact", "callers", "graph", "numbers") for word in ("--part", part)]
    status, stdout, parts = check(["-c", BROKEN, str(SCRIPTS), *chosen], environment, tmp_path)
    assert status == 1
    assert "random" in parts["weights"][0]["detail"]
    assert statuses(parts["exact"]) == {"before": "pass", "exact": "FAIL"}
    assert parts["exact"][1]["detail"].startswith("ValueError: broken on purpose (")
    written, crashed = parts["callers"]
    assert list(json.loads(written["detail"])["results"]["parts"]) == ["weights", "exact"], "written after each part"
    assert (crashed["status"], crashed["detail"]) == ("FAIL", "the process of this part crashed: see stderr")
    undefined, late = parts["graph"]
    assert undefined["values"] == {"value": "NaN"}
    assert (late["status"], late["detail"]) == ("FAIL", "not finished after 20 s")
    assert statuses(parts["numbers"])["cpu, fp32"] == "pass"
    assert stdout.splitlines()[-3:] == ["FAIL: exact: exact", "FAIL: callers: process", "FAIL: graph: process"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_an_error_names_the_option(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench"), "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: torch finds no GPU")
    assert "--device cpu" in line


def test_the_parts_are_listed(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "bench"), "gpu", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path)
    assert done.returncode == 0
    assert tuple(line.split()[0] for line in done.stdout.splitlines()) == PARTS
