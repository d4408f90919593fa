"""Detection of the launcher from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from unittest import mock

from fidtool.distributed import launch
from fidtool.distributed.launch import Launch
from support.goldens import Golden


def discover(environ: Mapping[str, str]) -> Launch:
    with mock.patch.dict(os.environ, environ, clear=True):
        return launch.discover()


def will_be_restarted(environ: Mapping[str, str]) -> bool:
    with mock.patch.dict(os.environ, environ, clear=True):
        return launch.will_be_restarted()


MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_alone() -> None:
    assert discover({}) == Launch()
    # Inside salloc, without srun.
    assert discover({"SLURM_JOB_ID": "5", "SLURM_NTASKS": "8"}) == Launch()


def test_torchrun_takes_precedence_inside_a_slurm_job() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", **MEETING, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert discover(env).world_size == 2
    assert (
        discover(
            {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
        ).world_size
        == 1
    )


def test_the_ranks_of_a_slurm_step_use_one_address() -> None:
    first = discover({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert first.store == discover(STEP).store


def test_slurm_without_srun_has_a_hint() -> None:
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert "RANK=0 WORLD_SIZE=1" in discover(env).hint, (
        "a batch script without srun looks like this"
    )
    assert discover({**env, "SLURM_STEP_NUM_TASKS": "2"}).hint == ""


def test_the_tasks_of_an_array_are_runs_of_their_own() -> None:
    """Also if each has several processes: SLURM counts those of the task alone, and its job has
    another number.
    """
    array = {
        "SLURM_ARRAY_JOB_ID": "1234",
        "SLURM_ARRAY_TASK_COUNT": "16",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
    }
    assert discover({**array, "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "1237"}) == Launch()
    third, fourth = (discover({**array, **STEP, "SLURM_JOB_ID": job}) for job in ("1237", "1238"))
    assert third.world_size == int(STEP["SLURM_STEP_NUM_TASKS"])
    assert third.store != fourth.store


STEP = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[012-013]",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
}
JOB = {"SLURM_PROCID": "2", "SLURM_NTASKS": "5", "SLURM_JOB_ID": "1234"}
LAUNCHES = {
    "nothing": {},
    "torchrun": {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        **MEETING,
    },
    "by hand": {"RANK": "1", "WORLD_SIZE": "2", **MEETING},
    "by hand, inside a step": {"RANK": "1", "WORLD_SIZE": "2", **MEETING, **STEP},
    "a step": STEP,
    "another step": {**STEP, "SLURM_STEP_ID": "1"},
    "another job": {**STEP, "SLURM_JOB_ID": "987654"},
    "a step with an address": {**STEP, "MASTER_ADDR": "10.0.0.1"},
    "a step with a port": {**STEP, "MASTER_PORT": "29500"},
    "a step beside the job's own numbers": {**STEP, "SLURM_NTASKS": "9", "SLURM_NNODES": "1"},
    "a job": {**JOB, "SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "a7,b8"},
    "a job of old": {**JOB, "SLURM_NNODES": "2", "SLURM_NODELIST": "n[3-4]"},
    "a job on one machine": {**JOB, "SLURM_JOB_NODELIST": "a7"},
}


def test_golden_launches(golden: Golden) -> None:
    """Ranks with different versions of fidtool must use the same address, or each waits for the
    other.
    """
    golden(
        "distributed/launches", {name: discover(env)._asdict() for name, env in LAUNCHES.items()}
    )


def test_torchrun_restarts_the_ranks_until_the_last_attempt() -> None:
    counts = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "1"}
    assert will_be_restarted(counts)
    assert not will_be_restarted({**counts, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert not will_be_restarted({})
