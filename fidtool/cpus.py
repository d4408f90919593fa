"""The number of CPUs that a process may use, and of the threads that it starts on them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


def available_cores(ranks: int = 1) -> int:
    """Return the number of cores for each of ``ranks`` processes on this machine, at least 1.

    The scheduler's affinity (taskset, SLURM, cpusets) and the CPU quota of the container or service bound it.
    """
    cores = machine_cores()
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, cores // ranks)


def available_threads(ranks: int = 1, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads for each of ``ranks`` processes: one per core, at most OMP_NUM_THREADS."""
    cores = available_cores(ranks)
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # further numbers are for nested regions
    if first == "1" and "TORCHELASTIC_RUN_ID" in environ and environ.get("LOCAL_WORLD_SIZE") != "1":
        return cores  # torchrun sets 1 for several processes by itself
    return min(cores, int(first)) if re.fullmatch(r"0*[1-9][0-9]*", first) else cores


def machine_cores(root: Path = Path("/")) -> int:
    """Return the number of cores of the machine or container, whatever the launcher and its options.

    A quota of 1.5 CPUs counts as 2 cores. ``root`` is the folder with ``proc`` and ``sys``.
    """
    groups = ["0::/"]
    with contextlib.suppress(OSError):  # other systems than Linux
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    quotas = (quota for group in groups for quota in _quotas(group, root / "sys/fs/cgroup"))
    return min((os.cpu_count() or 1, *quotas))


def _quotas(group: str, mounted: Path) -> Iterator[int]:
    """Yield the quotas of a control group and of those that contain it, in CPUs, rounded up.

    ``group`` is a line of /proc/self/cgroup: number, controllers (empty for version 2) and path.
    """
    controllers, _, path = group.partition(":")[2].partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return
    # The path may be that on the host, which the container does not see: its own group is then the mounted folder.
    names = [name for name in path.split("/") if name not in ("", "..")]
    for base in ("cpu", controllers) if controllers else (".", "unified"):
        for length in range(len(names) + 1):
            folder = mounted.joinpath(base, *names[:length])
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            with contextlib.suppress(OSError):
                limit_and_period = " ".join((folder / file).read_text().strip() for file in files)
                if found := re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", limit_and_period):
                    yield -(-int(found[1]) // int(found[2]))
