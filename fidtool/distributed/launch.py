"""How this process was launched: its rank and the world size, and the CPUs that it may use.

Rank and world size are those of the calling program's process group, or of environment variables:
those of torchrun, also if set manually, or those of SLURM.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from fidtool.errors import LaunchError

_NO_STEP = (
    "in an sbatch script, start fidtool with srun, or set RANK=0 WORLD_SIZE=1 to run a single "
    "process"
)


class Launch(NamedTuple):
    """This process among the ranks of one run.

    Attributes:
        local_rank, local_world_size: among the run's processes on this machine.
        store: host and port of the rendezvous store, which torchrun or rank 0 serves; ``("",
            0)`` if none is known.
        hint: what to do if the other ranks never join; empty if the launcher is known to have
            started them.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    store: tuple[str, int] = ("", 0)
    hint: str = ""


def will_be_restarted() -> bool:
    """Whether torchrun (``--max-restarts``) restarts the ranks if they fail now."""
    try:
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        return restarts < int(os.environ["TORCHELASTIC_MAX_RESTARTS"])
    except (KeyError, ValueError):
        return False


def launcher_serves_store() -> bool:
    """Whether torchrun serves the rendezvous store; otherwise rank 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def lost_store(reason: str, cause: str) -> str:
    """Return the message about a rendezvous store that closed the connection."""
    return f"lost the connection to the rendezvous store ({reason}): {cause}"


def restart_count() -> str:
    """Number of times that torchrun has restarted the ranks."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def discover() -> Launch:
    """Detect how this process was launched.

    The process group of a calling program takes precedence over the variables, of which Lightning,
    for example, sets only some. RANK and WORLD_SIZE (torchrun's names) take precedence over SLURM's
    variables, so that torchrun inside a SLURM job works and so that ``RANK=0 WORLD_SIZE=1``
    disables SLURM's.
    """
    program: Any = sys.modules.get("torch.distributed")
    has_group = program is not None and program.is_available() and program.is_initialized()
    launch = Launch()
    try:
        if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
            launch = _from_torchrun()
        elif "SLURM_PROCID" in os.environ and (
            "SLURM_STEP_NUM_TASKS" in os.environ or "SLURM_NTASKS" in os.environ
        ):
            launch = _from_slurm()
    except LaunchError:
        if not has_group:
            raise
    if has_group:
        rank = int(program.get_rank())
        size = int(program.get_world_size())
        if (launch.rank, launch.world_size) != (rank, size):
            local_size = _integer("LOCAL_WORLD_SIZE", size)
            launch = Launch(rank, size, _integer("LOCAL_RANK", rank), local_size)
    if not 0 <= launch.rank < launch.world_size:
        raise LaunchError(
            f"rank {launch.rank} is out of range: with a world size of {launch.world_size}, ranks "
            f"are from 0 to {launch.world_size - 1}"
        )
    return launch if launch.world_size > 1 else Launch()


def discover_or_alone() -> Launch:
    """`discover`; a single process if the variables are invalid."""
    try:
        return discover()
    except LaunchError:
        return Launch()


def single_process() -> Launch:
    """This process as the only rank of a run, with the GPU and the share of the cores that it has
    in its program.
    """
    here = discover_or_alone()
    return Launch(local_rank=here.local_rank, local_world_size=here.local_world_size)


def _integer(name: str, default: int | None = None) -> int:
    if name not in os.environ and default is not None:
        return default
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        problem = (
            f"must be a number, not {os.environ[name]!r}" if name in os.environ else "is not set"
        )
        raise LaunchError(
            f"the environment variable {name} {problem}",
            "launch with torchrun",
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        ) from None


def _from_torchrun() -> Launch:
    world_size = _integer("WORLD_SIZE")
    rank = _integer("RANK")
    if world_size <= 1:
        return Launch(rank, world_size)
    if not ("MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ):
        raise LaunchError(
            f"WORLD_SIZE is {world_size} but MASTER_ADDR and MASTER_PORT are not both set",
            "set them to rank 0's host and a free port on it",
            "launch with torchrun",
        )
    # Users who set the variables manually often omit the local ones: assume that all ranks are on
    # one machine.
    local_rank = _integer("LOCAL_RANK", rank)
    local_world_size = _integer("LOCAL_WORLD_SIZE", world_size)
    store = os.environ["MASTER_ADDR"], _integer("MASTER_PORT")
    return Launch(rank, world_size, local_rank, local_world_size, store)


def _from_slurm() -> Launch:
    # In a batch script without srun, SLURM_NTASKS counts tasks that were never started. Only srun
    # sets the step's.
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in os.environ else "SLURM_NTASKS"
    world_size = _integer(name)
    rank = _integer("SLURM_PROCID")
    local_rank = _integer("SLURM_LOCALID", rank)
    node_count = _integer("SLURM_STEP_NUM_NODES", _integer("SLURM_NNODES", 1))
    local_world_size = -(-world_size // max(1, node_count))  # srun spreads them evenly
    address = os.environ.get("MASTER_ADDR", "")
    if not address and local_world_size < world_size:
        address = _first_node()
    # Every rank derives the same port from the job and step; two jobs on one node get different
    # ports.
    job = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    store = (
        address or "127.0.0.1",
        _integer("MASTER_PORT", 15000 + zlib.crc32(job.encode()) % 15000),
    )
    hint = "" if name == "SLURM_STEP_NUM_TASKS" else _NO_STEP
    return Launch(rank, world_size, local_rank, local_world_size, store, hint)


def _first_node() -> str:
    """Return the host of rank 0: the first of a list such as ``gpu[007-012,20],login1``."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        nodes = os.environ.get(name, "").strip()
        if nodes:
            # A prefix, the first number in brackets, and what follows them.
            pattern = r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\]([^,]*))?.*"
            return re.sub(pattern, r"\1\2\3", nodes, count=1)
    return ""


def process_age() -> float:
    """Return for how many seconds this process has existed; 0 where the system does not say, which
    only Linux does.
    """
    with contextlib.suppress(OSError):
        _, _, after_name = Path("/proc/self/stat").read_text().rpartition(")")
        # In hundredths of a second since the start of the machine.
        started = int(after_name.split()[19]) / 100
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return 0.0


def available_cores(ranks: int = 1) -> int:
    """Return the number of cores for each of ``ranks`` processes on this machine, at least 1.

    The scheduler's affinity (taskset, SLURM, cpusets) and the CPU quota of the container or service
    bound it.
    """
    cores = machine_cores()
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, cores // ranks)


def available_threads(ranks: int = 1) -> int:
    """Return the number of threads for each of ``ranks`` processes: one per core, at most
    OMP_NUM_THREADS.
    """
    cores = available_cores(ranks)
    # Further numbers are for nested regions.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if (
        first == "1"
        and "TORCHELASTIC_RUN_ID" in os.environ
        and os.environ.get("LOCAL_WORLD_SIZE") != "1"
    ):
        return cores  # torchrun sets 1 for several processes by itself
    if re.fullmatch(r"0*[1-9][0-9]*", first):
        return min(cores, int(first))
    return cores


def machine_cores(root: Path = Path("/")) -> int:
    """Return the number of cores of the machine or container, whatever the launcher and its
    options.

    The quotas of this process's control group, and of those that contain it, bound it. One of 1.5
    CPUs counts as 2 cores. ``root`` is the folder with ``proc`` and ``sys``.
    """
    cores = os.cpu_count() or 1
    mounted = root / "sys/fs/cgroup"
    version_1 = [mounted / "cpu/cpu.cfs_quota_us", mounted / "cpu/cpu.cfs_period_us"]
    limits = [version_1, [mounted / "cpu.max"]]
    with contextlib.suppress(OSError):  # other systems than Linux
        if own := re.search(r"^0::(/.+)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE):
            group = Path(own[1])
            # In a container the path may be that on the host, which it does not see: its own group
            # is the mounted one.
            for path in (group, *group.parents):
                limits.append([mounted / path.relative_to("/") / "cpu.max"])
    for files in limits:
        with contextlib.suppress(OSError):
            limit_and_period = " ".join(file.read_text().strip() for file in files)
            if quota := re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", limit_and_period):
                cores = min(cores, -(-int(quota[1]) // int(quota[2])))
    return cores


def machine_memory(root: Path = Path("/")) -> int:
    """Return the memory in bytes of the machine or container. ``root`` is the folder with ``proc``
    and ``sys``.
    """
    limits = [1 << 62]
    with contextlib.suppress(OSError):  # other systems than Linux
        limits.append(1024 * int((root / "proc/meminfo").read_text().split()[1]))
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no limit
            limits.append(int((root / "sys/fs/cgroup" / file).read_text()))
    return min(limits)
