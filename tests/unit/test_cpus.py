"""The number of cores: affinity, the quotas of control groups, and OMP_NUM_THREADS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from fidtool.distances import parallel
from fidtool.distances.parallel import linear_algebra_threads
from fidtool.distributed.launch import (
    Launch,
    available_cores,
    available_threads,
    machine_cores,
    machine_memory,
)
from fidtool.features.device import choose_device

POD = "kubepods/burstable/pod1"
V1 = {"cpu/cpu.cfs_quota_us": "350000", "cpu/cpu.cfs_period_us": "100000"}
SYSTEMS: dict[str, tuple[str, dict[str, str], int]] = {
    "no control groups": ("", {}, 64),
    "version 2 without a limit": ("0::/", {"cpu.max": "max 100000"}, 64),
    "version 2": ("0::/", {"cpu.max": "200000 100000"}, 2),
    "a part of a CPU": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "one and a half CPUs": ("0::/", {"cpu.max": "75000 50000"}, 2),
    "more than the machine has": ("0::/", {"cpu.max": "12800000 100000"}, 64),
    "nested in a service": (
        "0::/system.slice/train.service/app",
        {
            "system.slice/train.service/cpu.max": "300000 100000",
            "system.slice/cpu.max": "800000 100000",
        },
        3,
    ),
    "the inner group has the lower limit": (
        f"0::/{POD}/c",
        {f"{POD}/cpu.max": "8 1", f"{POD}/c/cpu.max": "5 1"},
        5,
    ),
    "a path of the host": (f"0::/{POD}/c", {"cpu.max": "400000 100000"}, 4),
    "a path outside of the namespace": (
        "0::/../../other",
        {"cpu.max": "400000 100000", "other/cpu.max": "6 1"},
        4,
    ),
    "version 1": ("4:cpu,cpuacct:/\n3:cpuset:/", V1, 4),
    "version 1 without a limit": (
        "1:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        64,
    ),
    "version 1 with a path of the host": ("4:cpu,cpuacct:/docker/7aa5", V1, 4),
    "both versions": (
        "1:cpu:/a\n0::/a",
        {"cpu/cpu.cfs_quota_us": "7", "cpu/cpu.cfs_period_us": "1"},
        7,
    ),
    "files that say nothing": ("0::/", {"cpu.max": ""}, 64),
}


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(64)}, raising=False)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_quota_of_control_groups(tmp_path: Path, system: str) -> None:
    groups, files, expected = SYSTEMS[system]
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{each}": files[each] for each in files},
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert machine_cores(tmp_path) == expected


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert machine_cores(tmp_path) == 64


def test_ranks_share_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the network, decoding workers and the threads of the distance."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("fidtool.distributed.launch.machine_cores", lambda: 6)
    monkeypatch.setattr(parallel, "machine_cores", lambda: 6)
    assert [available_cores(ranks) for ranks in (1, 2, 4, 8)] == [6, 3, 1, 1]
    assert choose_device("cpu", Launch(0, 2, 0, 2)).forward_threads == 3
    assert linear_algebra_threads() == 6
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_device("cpu", Launch()).forward_threads == 2


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environ", "ranks", "threads"),
    [
        ({}, 1, 64),
        ({"OMP_NUM_THREADS": "1"}, 1, 1),
        ({"OMP_NUM_THREADS": "4"}, 1, 4),
        ({"OMP_NUM_THREADS": "4,2"}, 1, 4),
        ({"OMP_NUM_THREADS": "4"}, 32, 2),
        *(({"OMP_NUM_THREADS": text}, 1, 64) for text in ("", "0", "many", "-3", "128")),
        ({"OMP_NUM_THREADS": "1", **TORCHRUN}, 8, 8),
        ({"OMP_NUM_THREADS": "3", **TORCHRUN}, 8, 3),
        ({"OMP_NUM_THREADS": "1", **TORCHRUN, "LOCAL_WORLD_SIZE": "1"}, 1, 1),
    ],
)
def test_omp_num_threads_limits_a_rank(
    environ: Mapping[str, str], ranks: int, threads: int
) -> None:
    """But not the 1 that torchrun sets by itself for several processes."""
    with mock.patch.dict(os.environ, environ, clear=True):
        assert available_threads(ranks) == threads


def test_the_threads_of_the_distance_do_not_depend_on_ranks_or_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = linear_algebra_threads()
    for name, value in {"OMP_NUM_THREADS": "1", **TORCHRUN}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert linear_algebra_threads() == expected


def test_the_memory_of_a_container(tmp_path: Path) -> None:
    for folder in ("proc", "sys/fs/cgroup"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       24696028 kB\nMemFree:        1000 kB\n")
    for limit, expected in {"max": 24_696_028 * 1024, "1000000": 1_000_000}.items():
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        assert machine_memory(tmp_path) == expected
