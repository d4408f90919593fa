"""Reads the launcher's environment: torchrun's, SLURM's, variables set by hand, or none. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from fidtool.errors import LaunchError

_NO_STEP = "inside an sbatch script start fidtool with srun, or set RANK=0 WORLD_SIZE=1 to run it alone"


class Launch(NamedTuple):
    """Place of this process among the ranks of one run.

    Attributes:
        launcher: ``alone``, ``env`` (torchrun, or the same variables set by hand) or ``slurm``.
        rank: 0 to world_size - 1.
        world_size: number of processes in the run.
        local_rank: rank among the processes of this machine.
        local_world_size: number of the run's processes on this machine.
        init_method: address of the rendezvous, as ``torch.distributed.init_process_group`` takes it.
        hint: what to do if the other ranks never come; empty where the launcher has surely started them.
    """

    launcher: str = "alone"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    init_method: str = ""
    hint: str = ""


def by_torchrun() -> bool:
    """Whether torchrun has started this process, rather than another launcher that sets RANK and WORLD_SIZE."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def will_be_restarted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun (``--max-restarts``) restarts the ranks if they fail now."""
    env = os.environ if environ is None else environ
    try:
        return int(env["TORCHELASTIC_RESTART_COUNT"]) < int(env["TORCHELASTIC_MAX_RESTARTS"])
    except (KeyError, ValueError):
        return False


def launcher_serves_store() -> bool:
    """Whether torchrun serves the store in which the ranks meet, and not rank zero."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def restart_count() -> str:
    """How often torchrun has restarted the ranks."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def describe_launcher() -> str:
    """The launcher and where it serves the store, for messages."""
    return f"the launcher at {os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"


def discover(environ: Mapping[str, str] | None = None) -> Launch:
    """Finds out how this process was launched.

    RANK and WORLD_SIZE (torchrun's names) win over SLURM's variables, so that torchrun inside a SLURM job works and
    so that ``RANK=0 WORLD_SIZE=1`` switches SLURM's off.

    Raises:
        LaunchError: variables contradict each other or are not numbers.
    """
    env = os.environ if environ is None else environ
    if "RANK" in env or "WORLD_SIZE" in env:
        return _from_torchrun(env)
    if "SLURM_PROCID" in env and ("SLURM_STEP_NUM_TASKS" in env or "SLURM_NTASKS" in env):
        return _from_slurm(env)
    return Launch()


def discover_here() -> Launch:
    """`discover` for a user's own program, whose process group takes precedence over the variables.

    Lightning, for example, sets only some of them.

    Raises:
        LaunchError: see `discover`; there is no process group.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return discover()
    rank, size = int(distributed.get_rank()), int(distributed.get_world_size())
    with contextlib.suppress(LaunchError):
        launch = discover()
        if (launch.rank, launch.world_size) == (rank, size):
            return launch
    local_rank = _integer(os.environ, "LOCAL_RANK", rank)
    return _checked(Launch("env", rank, size, local_rank, _integer(os.environ, "LOCAL_WORLD_SIZE", size)))


def _integer(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    if name not in env and default is not None:
        return default
    try:
        return int(env[name])
    except (KeyError, ValueError):
        raise LaunchError(
            f"the environment variable {name} should be a number but is {env.get(name, 'not set')!r}",
            "launch with torchrun",
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        ) from None


def _checked(launch: Launch) -> Launch:
    if not 0 <= launch.rank < launch.world_size:
        raise LaunchError(f"rank {launch.rank} is not among the {launch.world_size} ranks that the launcher announced")
    return launch if launch.world_size > 1 else Launch(launch.launcher)


def _from_torchrun(env: Mapping[str, str]) -> Launch:
    world_size = _integer(env, "WORLD_SIZE")
    rank = _integer(env, "RANK")
    if world_size > 1 and not ("MASTER_ADDR" in env and "MASTER_PORT" in env):
        raise LaunchError(
            f"WORLD_SIZE is {world_size} but MASTER_ADDR and MASTER_PORT are not both set",
            "set them to the host and a free port of rank 0",
            "launch with torchrun",
        )
    # Set by hand, the local variables are often left out: then all ranks are taken to share one machine.
    local_rank = _integer(env, "LOCAL_RANK", rank)
    local_world_size = _integer(env, "LOCAL_WORLD_SIZE", world_size)
    return _checked(Launch("env", rank, world_size, local_rank, local_world_size, "env://"))


def _from_slurm(env: Mapping[str, str]) -> Launch:
    # In a batch script without srun SLURM_NTASKS counts tasks that were never started; srun alone sets the step's own.
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    world_size = _integer(env, name)
    rank = _integer(env, "SLURM_PROCID")
    local_rank = _integer(env, "SLURM_LOCALID", rank)
    local_world_size = _tasks_on_this_node(env, world_size)
    address = env.get("MASTER_ADDR") or _slurm_master(env, single_node=local_world_size == world_size)
    # Every rank derives the same port from the job and step, so that two jobs on one node do not meet.
    job = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    port = env.get("MASTER_PORT") or str(15000 + zlib.crc32(job.encode()) % 15000)
    hint = "" if name == "SLURM_STEP_NUM_TASKS" else _NO_STEP
    return _checked(Launch("slurm", rank, world_size, local_rank, local_world_size, f"tcp://{address}:{port}", hint))


def _tasks_on_this_node(env: Mapping[str, str], world_size: int) -> int:
    """Reads SLURM's run-length list such as ``2(x3),1`` at this node's place."""
    counts: list[int] = []
    for part in re.split(r",\s*", env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = _integer(env, "SLURM_NODEID", 0)
    if node < len(counts):
        return min(counts[node], world_size)
    nodes = _integer(env, "SLURM_NNODES", 1)
    return -(-world_size // max(1, nodes))


def _slurm_master(env: Mapping[str, str], single_node: bool) -> str:
    """Host of rank 0: the first of the step's node list, loopback where the whole step is on this machine."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    return "127.0.0.1" if single_node else first_host(nodes) or "127.0.0.1"


def first_host(nodelist: str) -> str:
    """First host of a SLURM node list: ``gpu[007-012,20],login1`` gives ``gpu007``."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\]([^,]*))?", nodelist.strip())
    return "".join(part or "" for part in match.groups()) if match else ""
