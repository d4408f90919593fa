"""Checks of a GPU: the command ``gpu``, its report, and how its parts are run.

Each part is a function in `bench.gpu_checks` or `bench.gpu_speed` and runs in a forked process of its own, so that a
part that crashes, hangs or leaves CUDA in an unusable state does not affect the others. The forking process imports
torch but does not initialise CUDA.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from bench.report import Machine, json_option, machine_facts, publish

PASS, FAIL, SKIP, MEASURED = "pass", "FAIL", "skip", "measured"
_LIMIT_SECONDS = 180.0
_GRACE_SECONDS = 5.0
_WEIGHTS = "weights"


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        part: name of the part.
        check: what was checked or measured.
        status: ``pass``, ``FAIL``, ``skip`` or ``measured``.
        detail: the result, or why it failed or was skipped.
        values: the numbers in ``detail``, for the JSON output.
    """

    part: str
    check: str
    status: str
    detail: str
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.status:<8}  {self.check}{': ' if self.detail else ''}{self.detail}"


class Skipped(Exception):  # noqa: N818 (not an error)
    """Raised by a check that cannot run here; the message says why."""


class Findings:
    """The results of one part. Each is sent as soon as it is known.

    Args:
        part: name of the part.
        send: called with each line.
    """

    def __init__(self, part: str, send: Callable[[Line], None]) -> None:
        self._part, self._send = part, send

    def verdict(self, check: str, passed: bool, detail: str = "", **values: Any) -> None:
        """Report a check that passed or failed."""
        self._send(Line(self._part, check, PASS if passed else FAIL, detail, values))

    def measured(self, check: str, detail: str, **values: Any) -> None:
        """Report a measurement, which cannot fail."""
        self._send(Line(self._part, check, MEASURED, detail, values))

    def skip(self, check: str, why: str) -> None:
        """Report a check that cannot run here."""
        self._send(Line(self._part, check, SKIP, why, {}))

    @contextlib.contextmanager
    def attempt(self, check: str) -> Iterator[None]:
        """Report an exception in the block as a failure of ``check``, and continue after the block."""
        try:
            yield
        except Skipped as reason:
            self.skip(check, str(reason))
        except Exception as error:
            self.verdict(check, False, reason_of(error))


def reason_of(error: BaseException) -> str:
    """Return an exception's type, message and the place where it was raised, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{place}"


@dataclass(frozen=True)
class Situation:
    """What the parts are run with.

    Attributes:
        device: name of the device, such as ``cuda:0``.
        small: use tiny amounts of work.
        images: images of the part ``speed``.
        folder: where the parts write their images; shared by all parts.
    """

    device: str
    small: bool
    images: int
    folder: Path

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.startswith("cuda")

    @property
    def cache(self) -> Path:
        """fidtool's cache during the check, which has the weights."""
        return self.folder / "cache"

    def need_cuda(self) -> None:
        """Raise `Skipped` unless the device is a CUDA device."""
        if not self.cuda:
            raise Skipped(f"needs a CUDA device, not {self.device}")


@dataclass(frozen=True)
class Part:
    """A part of the check: its module and what it does, for ``--list``. Its function has the name of the part."""

    module: str
    does: str


PARTS = {
    "facts": Part("gpu_checks", "versions, devices, memory and cores"),
    "tests": Part("gpu_checks", "the tests that need a GPU, if pytest is installed"),
    "exact": Part("gpu_checks", "exact sums and 8-bit resizes on the device, compared with integers on the host"),
    "graph": Part("gpu_checks", "CUDA graphs: bits compared with direct calls, failed capture, memory"),
    "callers": Part("gpu_checks", "the same bits under other streams, devices, threads, autocast and inference mode"),
    "ranks": Part("gpu_checks", "the same bits with two ranks, over gloo and NCCL, and on a second device"),
    "numbers": Part("gpu_checks", "FID on the device compared with the CPU, in each precision"),
    "table": Part("gpu_speed", "images/s of the network by layout, precision and batch size, and compiled"),
    "speed": Part("gpu_speed", "images/s of whole runs compared with decoding alone and with the network alone"),
    "sizes": Part("gpu_speed", "images/s and kernel launches for images of mixed sizes, in three protocols"),
    "metrics": Part("gpu_speed", "what KID and precision, recall etc. cost, and their values compared with the CPU"),
    "peers": Part("gpu_speed", "other FID tools on the same images and device, where installed"),
}


class Report:
    """The lines so far, printed as they arrive and written to a JSON file after every part.

    Args:
        file: the JSON file, if any.
        machine: the machine.
        settings: the settings of the command.
    """

    def __init__(self, file: Path | None, machine: Machine, settings: dict[str, Any]) -> None:
        self._file, self._machine, self._settings = file, machine, settings
        self._parts: dict[str, dict[str, Any]] = {}
        self._lines: list[Line] = []

    def add(self, line: Line) -> None:
        """Print and store a line."""
        self._lines.append(line)
        click.echo(str(line))
        sys.stdout.flush()

    def write(self, part: str, seconds: float) -> None:
        """Write the JSON file after a part that took ``seconds``."""
        own = [_as_json(asdict(line)) for line in self._lines if line.part == part]
        self._parts[part] = {"seconds": seconds, "lines": own}
        results = {"parts": self._parts, "failed": self.failed, "counts": self.counts()}
        publish(self._file, self._machine, "gpu", self._settings, results)

    def counts(self) -> dict[str, int]:
        """Return the number of lines with each status."""
        return {status: sum(line.status == status for line in self._lines) for status in (PASS, FAIL, SKIP, MEASURED)}

    @property
    def failed(self) -> list[str]:
        """The checks that failed, as ``part: check``."""
        return [f"{line.part}: {line.check}" for line in self._lines if line.status == FAIL]


def _as_json(values: dict[str, Any]) -> Any:
    """Return values with strings in place of what JSON cannot express, such as NaN."""
    return json.loads(json.dumps(values, default=str), parse_constant=str)


class _Sender(Protocol):
    """The writable end of a pipe. The type of multiprocessing's differs between versions of Python."""

    def send(self, line: Line | None, /) -> None: ...


class _Receiver(Protocol):
    """The readable end of a pipe."""

    def poll(self, seconds: float, /) -> bool: ...
    def recv(self) -> Line | None: ...


def _list_parts(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        width = max(map(len, PARTS))
        click.echo("\n".join(f"{name:<{width}}  {part.does}" for name, part in PARTS.items()))
        context.exit()


@click.command(epilog="Parts: " + "; ".join(f"{name}: {part.does}" for name, part in PARTS.items()) + ".")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_parts, help="List the parts.")
@click.option("--part", "parts", type=click.Choice(list(PARTS)), multiple=True, help="Run only this part. Repeatable.")
@click.option("--device", help="cuda, cuda:1 or cpu.  [default: the first CUDA device]")
@click.option("--small", is_flag=True, help="Tiny amounts of work, to try the command itself.")
@click.option("--images", type=click.IntRange(8), default=20000, help="Images of the part speed, at most.")
@json_option
def gpu(parts: tuple[str, ...], device: str | None, small: bool, images: int, json_file: Path | None) -> None:
    """Check on a GPU that fidtool is right, and measure how fast it is.

    Takes about ten minutes, and needs neither a download nor anything beyond fidtool's own dependencies. If the
    Inception weights are not on this machine, random weights are used. Send in the whole output, or the file of --json,
    which is written after every part. The exit status is 1 if a check failed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder is removed
    machine = machine_facts(device)
    if device is None and machine.device == "cpu":
        raise click.ClickException("torch finds no GPU on this machine: --device cpu runs the parts on the CPU")
    if not machine.device.startswith(("cpu", "cuda")):
        raise click.ClickException(f"--device {device} is not supported: use cuda, cuda:1 or cpu")
    click.echo("\n".join(machine.lines()))
    report = Report(json_file, machine, {"parts": list(parts or PARTS), "small": small, "images": images})
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as folder:
        situation = Situation(machine.device, small, images, Path(folder))
        run_parts(parts or tuple(PARTS), situation, report)
    counts = report.counts()
    click.echo("\n" + ", ".join(f"{number} {status}" for status, number in counts.items()))
    for failure in report.failed:
        click.echo(f"FAIL: {failure}")
    sys.exit(1 if report.failed else 0)


def run_parts(parts: Sequence[str], situation: Situation, report: Report) -> None:
    """Run the preparation and then the parts, each in its own process."""
    preparation = Part("gpu_checks", "finds or creates Inception weights")
    functions = {}
    for name, part in {_WEIGHTS: preparation, **{name: PARTS[name] for name in parts}}.items():
        functions[name] = getattr(importlib.import_module(f"bench.{part.module}"), name)
    for name, work in functions.items():
        click.echo(f"\n{name}")
        started = time.monotonic()
        _run_part(name, work, situation, report)
        report.write(name, time.monotonic() - started)
        os.environ["FIDTOOL_CACHE"] = str(situation.cache)
        os.environ.pop("FIDTOOL_WEIGHTS", None)  # from now on, the weights are in the cache


def _run_part(name: str, work: Callable[[Situation, Findings], None], situation: Situation, report: Report) -> None:
    """Run one part in a forked process. If the process ends early or takes too long, that is a failure."""
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    process = forking.Process(target=_in_child, args=(name, work, situation, sender))
    process.start()
    sender.close()
    assert process.pid is not None
    try:
        problem = _receive(receiver, process.is_alive, report)
    finally:
        # Processes that the part started may still run if it crashed or hangs.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join(_GRACE_SECONDS)
    if problem:
        report.add(Line(name, "process", FAIL, problem, {}))


def _in_child(name: str, work: Callable[[Situation, Findings], None], situation: Situation, sender: _Sender) -> None:
    os.setsid()
    os.dup2(2, 1)  # what libraries print is not part of the report
    findings = Findings(name, sender.send)
    with findings.attempt(name):
        work(situation, findings)
    sender.send(None)


def _receive(receiver: _Receiver, alive: Callable[[], bool], report: Report) -> str:
    """Report the lines of a part until it has finished. Returns why it did not finish; empty if it did."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        living = alive()  # asked before the last lines are read
        try:
            while receiver.poll(0.1):
                line = receiver.recv()
                if line is None:
                    return ""
                report.add(line)
        except EOFError:
            living = False
        if not living:
            return "the process of this part crashed: see stderr"
    return f"not finished after {_LIMIT_SECONDS:g} s"
