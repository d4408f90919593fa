"""NCCL, with stubs instead of a GPU: tried first, only on request; every wait ends, and failures are explained."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fidtool import torch_internals
from fidtool.distributed import world as world_module
from fidtool.distributed.failure import LostContactError, TooSlowError
from fidtool.distributed.launch import Launch
from fidtool.distributed.rendezvous import first_line
from fidtool.distributed.watchdog import Deadlines, Watchdog
from fidtool.distributed.world import World
from fidtool.errors import RunError

PAIR = Launch("env", 0, 2, 0, 2)
ON_GPU: Any = SimpleNamespace(device=torch.device("cuda:0"))
"""Stands for a tensor on a GPU."""
LOST = """NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:77, remote process exited, NCCL version 2.26.2
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer node2<43210>
"""


class StubWork:
    """A collective on a GPU that ends after ``polls`` polls, if ever, and then raises ``error``, if any."""

    def __init__(self, polls: float = float("inf"), error: str = "") -> None:
        self.left, self.error, self.waited = polls, error, 0

    def is_completed(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, timeout: timedelta | None = None) -> None:
        assert timeout is None, "a wait that could block"
        self.waited += 1
        if self.error:
            raise dist.DistBackendError(self.error)


class Pair(World):
    """Rank 0 of two, of which rank 1 answers with ``theirs`` to each gather, or like rank 0 without any left."""

    theirs: tuple[Any, ...] = ()

    def gather(self, value: Any) -> list[Any]:
        (first, *self.theirs) = self.theirs or (value,)  # type: ignore[assignment]
        return [value, first]


def pair(collective: float = 60.0) -> Pair:
    world = Pair(PAIR, Watchdog(0, 2, Deadlines(collective=collective), None))
    world._nccl, world.backend = "the NCCL group", "nccl"
    return world


def test_a_collective_on_the_gpu_ends_and_is_checked() -> None:
    world, work, groups = pair(), StubWork(polls=3), []
    world._run_collective(lambda group: groups.append(group) or work, ON_GPU)
    assert groups == ["the NCCL group"]
    assert work.waited == 1, "raises the error of a collective that has failed"


def test_the_deadline_ends_the_wait() -> None:
    with pytest.raises(TooSlowError, match=r"rank 0 timed out after 0.05 s waiting for .* raise timeout"):
        pair(0.05)._run_collective(lambda group: StubWork(), ON_GPU)


def test_a_lost_rank_ends_the_wait() -> None:
    world = pair()
    world._watchdog._abandon_at = time.monotonic() + 0.05
    with pytest.raises(LostContactError, match="NCCL kept waiting for a lost rank"):
        world._run_collective(lambda group: StubWork(), ON_GPU)


def test_a_lost_rank_is_explained_by_the_cause() -> None:
    with pytest.raises(LostContactError, match=r"rank 0 lost the connection .*\(socketProgress: Connection closed"):
        pair()._run_collective(lambda group: StubWork(polls=1, error=LOST), ON_GPU)
    assert first_line(RuntimeError("NCCL error in: x\nLast error:\n")) == "NCCL error in: x"
    assert first_line(RuntimeError("")) == "RuntimeError"


def test_tensors_on_the_cpu_use_gloo() -> None:
    groups: list[Any] = []
    world = pair()
    world._group = "the gloo group"
    world._run_collective(lambda group: groups.append(group) or StubWork(polls=0), torch.zeros(1))
    assert groups == ["the gloo group"]


def test_in_the_group_of_a_training_program_only_the_stream_waits() -> None:
    world, work = World(PAIR, group="the program's group"), StubWork()
    world._run_collective(lambda group: work, ON_GPU)
    assert work.waited == 1


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of an attempt that succeeds, in the order in which they were made."""
    steps: list[str] = []
    monkeypatch.setattr(world_module, "_check_nccl", lambda device: steps.append("check"))
    monkeypatch.setattr(torch_internals, "new_nccl_group", lambda *_: steps.append("create") or "the group")
    monkeypatch.setattr(World, "_try_nccl", lambda world, device: steps.append("try"))
    return steps


def undecided() -> Pair:
    return Pair(PAIR, Watchdog(0, 2, Deadlines(), None))


def test_nccl_is_used_if_it_works_on_every_rank(attempt: list[str]) -> None:
    world = undecided()
    assert world.use_nccl(torch.device("cuda")) == ""
    assert (world.backend, world._nccl, attempt) == ("nccl", "the group", ["check", "create", "try"])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_all_ranks_use_gloo_if_one_cannot_use_nccl(attempt: list[str], failing: int) -> None:
    world = undecided()
    world.theirs = ("",) * failing + ("no driver",)
    assert world.use_nccl(torch.device("cuda")) == "no driver (rank 1)"
    assert (world.backend, world._nccl, world._watchdog.uses_nccl) == ("gloo", None, False)
    assert len(attempt) == failing + 1, "no rank enters NCCL alone"


def test_reasons_for_gloo(attempt: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert undecided().use_nccl(torch.device("cpu")) == "NCCL needs an NVIDIA GPU, not cpu (rank 0)"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert undecided().use_nccl(torch.device("cuda")) == "this build of torch has no NCCL (rank 0)"
    world = undecided()
    world._group = "the program's group"
    assert world.use_nccl(torch.device("cuda")) == "the calling program has created the process group"


def test_a_run_that_has_failed_does_not_fall_back(attempt: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank was lost while NCCL was tried: that is the error to raise."""

    def lost(world: World, device: torch.device) -> None:
        world._watchdog.report(RunError("rank 1 ended"))
        raise LostContactError("a symptom")

    monkeypatch.setattr(World, "_try_nccl", lost)
    with pytest.raises(LostContactError):
        undecided().use_nccl(torch.device("cuda"))


@pytest.fixture
def running() -> Iterator[Callable[[float], Watchdog]]:
    """Starts the guard thread of a watchdog."""
    started: list[Watchdog] = []

    def start(seconds: float) -> Watchdog:
        watchdog = Watchdog(0, 1, Deadlines(collective=seconds), None)
        watchdog.start([])
        started.append(watchdog)
        return watchdog

    yield start
    for watchdog in started:
        watchdog.stop()


def test_a_call_that_does_not_return_ends_the_run(running: Callable[[float], Watchdog]) -> None:
    """NCCL creates its communicator in a call that cannot be interrupted: the guard thread knows its deadline."""
    watchdog = running(60.0)
    with watchdog.limited(0.1, RunError("stuck", "omit it", setting="backend")):
        error = watchdog.first_error(seconds=10.0)
    assert str(error) == "stuck; omit it"
    assert error is not None
    assert error.setting == "backend"
    assert watchdog._exit_at < float("inf"), "then the process is ended by force"


def test_a_call_that_returns_does_not_end_the_run(running: Callable[[float], Watchdog]) -> None:
    watchdog = running(60.0)
    with watchdog.limited(0.1, RunError("stuck")):
        pass
    assert watchdog.first_error(seconds=0.6) is None


def test_a_stuck_attempt_names_the_flag(running: Callable[[float], Watchdog]) -> None:
    world = World(PAIR, running(0.2))
    world._nccl = SimpleNamespace(allreduce=lambda tensors: time.sleep(1.0))
    world._run_collective = lambda begin, *tensors: begin(world._nccl)  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="wrong sum"):
        world._try_nccl(torch.device("cpu"))
    expected = "NCCL did not finish its first collective within 0.1 s: omit backend='nccl' to use gloo"
    assert str(world._watchdog.first_error(0.0)).startswith(expected)


def test_a_later_call_that_does_not_return_ends_the_run(running: Callable[[float], Watchdog]) -> None:
    """NCCL may also connect to the other ranks at the first use of an algorithm."""
    world = World(PAIR, running(0.1))
    world._nccl = "the NCCL group"
    world._run_collective(lambda group: time.sleep(1.0) or StubWork(polls=0), ON_GPU)
    error = world._watchdog.first_error(0.0)
    assert str(error).startswith("NCCL did not start a collective within 0.1 s: raise timeout")


def test_the_earlier_of_two_limits_counts(running: Callable[[float], Watchdog]) -> None:
    watchdog = running(60.0)
    with watchdog.limited(0.1, RunError("outer")):
        with watchdog.limited(60.0, RunError("inner")):
            pass
        with watchdog.limited(60.0, RunError("inner")):
            assert str(watchdog.first_error(10.0)) == "outer"


def test_a_lost_rank_is_not_only_blamed_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(0, 2, Deadlines(), None)
    ended = SimpleNamespace(host="node1", has_ended=lambda: True, is_visible_to=lambda other: True)
    watchdog._processes = [ended, ended]  # type: ignore[list-item]
    monkeypatch.setattr(watchdog, "_has_left", lambda rank: False)
    for uses_nccl, guess in ((False, "(out of memory?)"), (True, "(out of memory, or an error in NCCL?)")):
        watchdog.uses_nccl = uses_nccl
        failure = watchdog._detect(time.monotonic())
        assert failure is not None
        assert failure.message.endswith(guess)


def test_errors_of_nccl_are_raised_and_do_not_abort_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads the variable when the group is made; the calling program's groups are not affected."""
    name = "TORCH_NCCL_BLOCKING_WAIT"
    made: list[tuple[Any, ...]] = []

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> str:
        made.append((rank, size, timeout.total_seconds(), os.environ.get(name)))
        return "the group"

    monkeypatch.setattr(dist, "ProcessGroupNCCL", make, raising=False)
    monkeypatch.setattr(torch_internals, "default_store", dist.HashStore)
    for before in (None, "0"):
        if before is not None:
            monkeypatch.setenv(name, before)
        assert torch_internals.new_nccl_group(1, 2, 3600.0) == "the group"
        assert os.environ.get(name) == before
    assert made == [(1, 2, 3600.0, "1")] * 2


def test_the_communicator_is_released_after_a_run() -> None:
    ended: list[str] = []
    for name in ("shutdown", "_shutdown"):  # torch 2.4 has the latter
        world = pair()
        world._nccl = SimpleNamespace(**{name: lambda name=name: ended.append(name)})
        world.release()
    assert ended == ["shutdown", "_shutdown"]
