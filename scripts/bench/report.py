"""How the benchmarks describe the machine, print tables and write JSON."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click

MIB = 2**20
AGAINST = (
    "Also measure another version of fidtool, alternately: a wheel, or the folder that contains "
    "its package."
)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
SMALL_NETWORK = f"{Path(__file__).with_name('networks.py')}:network"
"""Value of ``--extractor`` for a network that takes almost no time."""
VIT = f"{Path(__file__).with_name('networks.py')}:vit"
"""Value of ``--extractor`` for a ViT-S/16, whose forward pass takes about as long as
Inception's.
"""
LOAD_ALLOWED = 0.5
"""A higher load average before the benchmark means that the machine was not idle."""

_PROBE = """
import json, sys
from fidtool.cli.output import format_flag
from fidtool.distributed.launch import available_cores, discover
from fidtool.errors import FidtoolError, render
from fidtool.features.device import choose_device
from fidtool.settings.record import versions
try:
    device = choose_device(sys.argv[1] or None, discover())
except FidtoolError as error:
    sys.exit(render(error.text, format_flag))
found = {"device": str(device.torch_device), "device_name": device.name, "cores": available_cores()}
print(json.dumps({**found, "versions": versions()}))
"""
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)

Command = TypeVar("Command", bound=Callable[..., Any])


class TargetFile(click.Path):
    """A file to write. It is rejected before the benchmark starts if its folder is missing or
    read-only.
    """

    name = "file"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.absolute().parent, os.W_OK):
            self.fail(f"{path.absolute().parent} is not a writable folder", param, ctx)
        return path


def json_option(function: Command) -> Command:
    """The option ``--json FILE``."""
    return click.option(
        "--json", "json_file", type=TargetFile(), help="Also write all measurements as JSON."
    )(function)


@dataclass(frozen=True)
class Machine:
    """The machine on which a benchmark ran.

    Attributes:
        system: operating system and architecture.
        cpu: processor model.
        cores: number of cores that this process may use.
        memory_bytes: size of main memory; None if unknown.
        load: load average over the minute before the benchmark.
        device: name of the torch device, as for ``--device``.
        device_name: hardware name of the device.
        environment: environment variables that set the number of threads, if set.
        versions: versions of Python, the libraries and the other tools.
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
        """Return the attributes for the JSON output."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the lines of the printed header."""
        memory = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        found = [
            f"machine   {self.cpu}, {self.cores} cores{memory}, {self.system}",
            f"device    {self.device}: {self.device_name}",
            f"versions  {', '.join(f'{name} {number}' for name, number in self.versions.items())}",
            f"load      {self.load:.2f} before the start"
            + (" (not idle!)" if self.load > LOAD_ALLOWED else ""),
        ]
        if self.environment:
            found.append(
                "set       "
                f"{' '.join(f'{name}={value}' for name, value in self.environment.items())}"
            )
        return found


def machine_facts(device: str | None) -> Machine:
    """Collect the facts about this machine.

    Args:
        device: value of ``--device``; None lets fidtool choose.

    Raises:
        click.UsageError: if the device does not exist.
    """
    load = os.getloadavg()[0]
    asked = subprocess.run(
        [sys.executable, "-c", _PROBE, device or ""], capture_output=True, text=True
    )
    if asked.returncode:
        raise click.UsageError(
            (asked.stderr.strip().splitlines() or ["fidtool cannot be imported"])[-1]
        )
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
        return next(
            line.split(":", 1)[1].strip() for line in handle if line.startswith("model name")
        )
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def header(device: str | None, title: str) -> Machine:
    """Print the machine and the title of the benchmark."""
    machine = machine_facts(device)
    click.echo("\n".join([*machine.lines(), "", title, ""]))
    return machine


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for first, *others in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        click.echo("  ".join([first.ljust(widths[0]), *cells]))
    click.echo()


def publish(
    file: Path | None, machine: Machine, benchmark: str, settings: dict[str, Any], results: Any
) -> None:
    """Write the machine, the settings and the results as JSON to ``file``, if any."""
    if file is not None:
        document = {
            "schema": 1,
            "benchmark": benchmark,
            "machine": machine.to_dict(),
            "settings": settings,
        }
        document["results"] = results
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        if file.exists() and not file.is_file():  # such as /dev/stdout
            file.write_text(text)
            return
        # So that a killed benchmark leaves a whole file.
        draft = file.with_name(f"{file.name}.part")
        draft.write_text(text)
        draft.replace(file)


def mib(size: float | None) -> str:
    """Format a number of bytes in MiB."""
    return "?" if size is None else f"{size / MIB:,.0f}"


def relative_difference(value: float, reference: float) -> float:
    """Return ``|value - reference| / |reference|``; if the reference is 0, ``|value|``."""
    return abs(value - reference) / (abs(reference) or 1.0)
