"""The facts about a machine without which a time means nothing. Imports no torch: a subprocess asks it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

_PROBE = """
import json, sys
from fidtool.distributed.launch import discover
from fidtool.errors import FidtoolError
from fidtool.features.device import available_cores, choose_device
from fidtool.record import versions
try:
    device = choose_device(sys.argv[1] or None, discover())
except FidtoolError as error:
    sys.exit(str(error))
found = {"device": str(device.torch_device), "device_name": device.name, "cores": available_cores()}
print(json.dumps({**found, "versions": versions()}))
"""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Machine:
    """Where the numbers were made.

    Attributes:
        system: operating system and architecture.
        cpu: model of the processor.
        cores: cores that this process may use.
        memory_bytes: main memory; None where unknown.
        load: load average of the last minute before the benchmark: above 0.5 something else was running.
        device: torch's name of the device, for ``--device``.
        device_name: its hardware.
        environment: variables that set the number of threads, where they are set.
        versions: of Python and the libraries, the peer among them.
    """

    system: str
    cpu: str
    cores: int
    memory_bytes: int | None
    load: float
    device: str
    device_name: str
    environment: dict[str, str]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The facts for the JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The facts for people."""
        memory = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        found = [
            f"machine   {self.cpu}, {self.cores} cores{memory}, {self.system}",
            f"device    {self.device}: {self.device_name}",
            f"versions  {', '.join(f'{name} {number}' for name, number in self.versions.items())}",
            f"load      {self.load:.2f} before the start" + (" (not idle!)" if self.load > 0.5 else ""),
        ]
        if self.environment:
            found.append(f"set       {' '.join(f'{name}={value}' for name, value in self.environment.items())}")
        return found


def machine_facts(device: str | None) -> Machine:
    """Asks this machine, and fidtool which device it takes.

    Args:
        device: value of ``--device``; None lets fidtool choose.

    Raises:
        click.UsageError: there is no such device.
    """
    load = os.getloadavg()[0]
    asked = subprocess.run([sys.executable, "-c", _PROBE, device or ""], capture_output=True, text=True)
    if asked.returncode:
        raise click.UsageError((asked.stderr.strip().splitlines() or ["fidtool cannot be imported"])[-1])
    found = json.loads(asked.stdout)
    versions: dict[str, str] = found["versions"]
    for peer in ("pytorch-fid", "torch-fidelity", "torchmetrics", "clean-fid"):
        with contextlib.suppress(PackageNotFoundError):
            versions[peer] = version(peer)
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_model(),
        cores=found["cores"],
        memory_bytes=_memory(),
        load=load,
        device=found["device"],
        device_name=found["device_name"],
        environment={name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        versions=versions,
    )


def _cpu_model() -> str:
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as handle:
        return next(line.split(":", 1)[1].strip() for line in handle if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
