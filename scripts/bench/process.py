"""Runs a command and measures its time and memory.

This module and its callers must not import torch: the memory of the calling process would hide that
of the command (see `_masked`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

_MEMORY_INTERVAL = 0.05
_DEVICE_INTERVAL = 1.0
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Measured:
    """Output, time and memory of a command.

    Attributes:
        stdout: its standard output.
        seconds: wall time from start to end.
        cpu_seconds: processor time of the process and of the descendants that it waited for.
        others_busy_cores: number of cores that other processes kept busy during the run, or that a
            hypervisor took away; the time is reliable if it is near 0. None without /proc.
        peak_process_bytes: largest resident memory of a single process, from the kernel's count.
            Usually the main process has it.
        peak_tree_bytes: largest total resident memory of the process and its descendants, sampled
            every 50 ms. Shared pages count once per process. None without /proc.
        peak_device_bytes: largest memory in use on all GPUs, by all processes, sampled every second
            with nvidia-smi. None without a GPU.
        peak_used_bytes: largest memory that the process and its descendants allocated, sampled
            every 50 ms: anonymous and shared memory, including /dev/shm. Shared memory counts once,
            and program code does not count. None unless it was requested, or without /proc.
    """

    stdout: str
    seconds: float
    cpu_seconds: float
    others_busy_cores: float | None
    peak_process_bytes: int
    peak_tree_bytes: int | None
    peak_device_bytes: int | None = None
    peak_used_bytes: int | None = None


def other_version(path: Path, place: Path) -> dict[str, str]:
    """Return the environment variables with which a process imports another version of fidtool.

    Args:
        path: a folder that contains the package, such as a checkout, or a wheel.
        place: empty folder into which a wheel is unpacked.
    """
    if path.is_file():
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(place)
        path = place
    return {"PYTHONPATH": str(path.absolute())}


def measure(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    used: bool = False,
    folder: str | None = None,
) -> Measured:
    """Run ``command`` and wait until it exits.

    Args:
        command: program and arguments.
        environment: environment variables to add.
        used: sample ``peak_used_bytes``, which slows down processes with much memory a little.
        folder: current folder of the process.

    Raises:
        click.ClickException: if the command fails, or needs less memory than this process.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, busy_before = time.perf_counter(), _busy_seconds()
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, stdout=out, stderr=err, env=variables, cwd=folder)
        tree = partial(_tree_memory, process.pid)
        allocated = partial(_used_memory, process.pid) if used else lambda: 0
        with (
            _Peak(_MEMORY_INTERVAL, tree) as memory,
            _Peak(_MEMORY_INTERVAL, allocated) as own,
            _Peak(_DEVICE_INTERVAL, _device_memory) as device,
        ):
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
            raise click.ClickException(
                f"{' '.join(command)} exited with status {process.returncode}:\n{tail}"
            )
        peak = usage.ru_maxrss * _MAXRSS_UNIT
        if _masked(peak):
            raise click.ClickException(
                "the benchmark itself uses more memory than the command that it measures"
            )
        cpu, others = usage.ru_utime + usage.ru_stime, None
        if busy_before is not None and busy_after is not None:
            others = max(0.0, (busy_after - busy_before - cpu) / seconds)
        return Measured(out.read(), seconds, cpu, others, peak, memory.peak, device.peak, own.peak)


def _busy_seconds() -> float | None:
    """Return the processor time of the whole machine since boot, with stolen time, without idle and
    I/O wait time.
    """
    try:
        with open("/proc/stat") as handle:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(
                int, handle.readline().split()[1:9]
            )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _masked(peak: int) -> bool:
    """Return whether ru_maxrss is unusable: until its exec, Linux counts this process's memory as
    the child's.
    """
    try:
        with open("/proc/self/status") as handle:
            own = next(int(line.split()[1]) * 1024 for line in handle if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return False
    return peak <= own


class _Peak:
    """Samples a number of bytes in a thread during a ``with`` block and stores the maximum in
    ``peak``.
    """

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
    """Return the bytes in use on all GPUs; 0 without nvidia-smi."""
    if not (program := shutil.which("nvidia-smi")):
        return 0
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    asked = subprocess.run(query, capture_output=True, text=True)
    return sum(int(line) * 2**20 for line in asked.stdout.split() if line.isdigit())


def _tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    return sum(map(_resident, _tree(pid)))


def _tree(pid: int) -> Iterator[int]:
    """Yield ``pid`` and its living descendants."""
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


def _used_memory(pid: int) -> int:
    """Return the bytes of anonymous and of shared memory of a process and its descendants."""
    anonymous, mapped = 0, 0
    files: dict[str, int] = {}
    for each in _tree(pid):
        sizes = _rollup(each)
        anonymous += sizes.get("Pss_Anon", 0)
        mapped += sizes.get("Pss_Shmem", 0)
        files |= _shared_files(each)
    # Shared memory that was sent and that no process has touched since counts only as a file.
    return anonymous + max(mapped, sum(files.values()))


def _rollup(pid: int) -> dict[str, int]:
    """Return the sizes in bytes in ``smaps_rollup`` by name."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as handle:
            lines = [line.split() for line in handle if line.endswith(" kB\n")]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def _shared_files(pid: int) -> dict[str, int]:
    """Return the bytes of files in /dev/shm that a process has mapped, by inode."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as handle:
        for line in handle:
            if "/dev/shm/" in line:
                addresses, _, _, _, inode, *_ = line.split()
                first, last = (int(part, 16) for part in addresses.split("-"))
                found[inode] = found.get(inode, 0) + last - first
    return found
