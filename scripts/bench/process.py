"""Runs a command and takes its time and memory. Imports no torch, and must not: see `_masked`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import click

_SAMPLE_SECONDS = 0.05
_ASK_SECONDS = 1.0
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Measured:
    """What a command printed and what it cost.

    Attributes:
        stdout: its standard output.
        seconds: wall time from start to end.
        cpu_seconds: processor time of the process and the descendants that it waited for.
        others_busy_cores: cores that everything else on the machine kept busy meanwhile (or a hypervisor took away):
            near 0 where the time can be trusted. None where there is no /proc.
        peak_process_bytes: largest resident memory of one process (the main one, unless a worker outgrew it), from
            the kernel's own count.
        peak_tree_bytes: largest sum of resident memory over the process and its descendants, sampled every 50 ms;
            pages that they share count once for each. None where there is no /proc.
        peak_device_bytes: largest memory in use on the GPUs, of all processes, sampled every second through nvidia-smi;
            None where there is none.
    """

    stdout: str
    seconds: float
    cpu_seconds: float
    others_busy_cores: float | None
    peak_process_bytes: int
    peak_tree_bytes: int | None
    peak_device_bytes: int | None = None


def measure(command: Sequence[str], environment: dict[str, str] | None = None) -> Measured:
    """Runs ``command`` to its end.

    Args:
        command: program and arguments.
        environment: variables to add to this process's own.

    Raises:
        click.ClickException: it ended with another status than 0.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, busy_before = time.perf_counter(), _busy_seconds()
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **(environment or {})})
        tree = partial(_tree_memory, process.pid)
        with _Peak(_SAMPLE_SECONDS, tree) as memory, _Peak(_ASK_SECONDS, _device_memory) as device:
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                process.wait()
                raise
        seconds, busy_after = time.perf_counter() - started, _busy_seconds()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            tail = "".join(err.readlines()[-20:])
            raise click.ClickException(f"{' '.join(command)} ended with status {process.returncode}:\n{tail}")
        peak = usage.ru_maxrss * _MAXRSS_UNIT
        if _masked(peak):
            raise click.ClickException("the benchmark itself uses more memory than what it measures")
        cpu, others = usage.ru_utime + usage.ru_stime, None
        if busy_before is not None and busy_after is not None:
            others = max(0.0, (busy_after - busy_before - cpu) / seconds)
        return Measured(out.read(), seconds, cpu, others, peak, memory.peak, device.peak)


def _busy_seconds() -> float | None:
    """Processor time that the whole machine has spent so far, stolen time included, idle time and waiting not."""
    try:
        with open("/proc/stat") as handle:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, handle.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _masked(peak: int) -> bool:
    """True where a child's ru_maxrss says nothing: Linux counts this process's peak in before the child's exec."""
    try:
        with open("/proc/self/status") as handle:
            own = next(int(line.split()[1]) * 1024 for line in handle if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return False
    return peak <= own


class _Peak:
    """The most bytes that a function gives, asked again and again for the length of a ``with`` block."""

    def __init__(self, interval: float, ask: Callable[[], int]) -> None:
        self.peak: int | None = None
        self._interval = interval
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._over.wait(self._interval):
            if total := self._ask():
                self.peak = max(self.peak or 0, total)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _device_memory() -> int:
    """Bytes in use on the GPUs; 0 where there is no nvidia-smi to ask."""
    if not (program := shutil.which("nvidia-smi")):
        return 0
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    asked = subprocess.run(query, capture_output=True, text=True)
    return sum(int(line) * 2**20 for line in asked.stdout.split() if line.isdigit())


def _tree_memory(pid: int) -> int:
    """Bytes of a process and its descendants."""
    return sum(map(_resident, _tree(pid)))


def _tree(pid: int) -> Iterator[int]:
    """``pid`` and its descendants, as far as they are alive."""
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as handle:
                children = [int(child) for child in handle.read().split()]
        except OSError:
            continue
        for child in children:
            yield from _tree(child)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as handle:
            return int(handle.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
