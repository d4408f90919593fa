"""The ranks of a training program: who they are, where they meet, and the groups that carry their tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from fidtool.distributed.deadlines import LostContactError
from fidtool.distributed.launch import Launch, discover
from fidtool.distributed.store import attempt, first_line, second_client
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError
from fidtool.training.meeting import Meeting

Group = Any
"""A ``torch.distributed.ProcessGroup``, or None for all ranks."""
MEETING_SECONDS = 60.0
"""How long ranks wait for each other where they are not told otherwise."""
_TRANSPORT_SECONDS = 300.0
"""Once all ranks are there, how long one of them may keep the others waiting inside a collective."""


class Ranks:
    """The ranks of a process group of torch's, or this process alone where there is none.

    Attributes:
        ranks: the group's ranks in the numbers of the whole run.
        place: this rank's place among them.
        calls: how often this rank has gathered; see `fidtool.training.gather`.
    """

    def __init__(self, group: Group) -> None:
        self.ranks: tuple[int, ...] = (0,)
        self.place = self.calls = 0
        self._meeting: Meeting | None = None
        self._gloo: Group = None
        if _initialized():
            self.ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            if dist.get_rank() not in self.ranks:
                raise InputError(f"rank {dist.get_rank()} is not in the process group of ranks {list(self.ranks)}")
            self.place = self.ranks.index(dist.get_rank())

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This rank, in the numbers of the whole run."""
        return self.ranks[self.place]

    def meet(self, purpose: str, word: dict[str, Any], seconds: float, remedy: str) -> list[dict[str, Any]]:
        """See `Meeting.hold`; alone, it is over at once."""
        if self.size == 1:
            return [word]
        if self._meeting is None:
            default = dist.distributed_c10d._get_default_store()
            name = f"fidtool-training/{attempt()}/{'-'.join(map(str, self.ranks))}"
            meeting = Meeting(PrefixStore(name, second_client(default) or default), self.ranks, self.place)
            meeting.go_on_from(_rounds.get(self.ranks, 0))
            self._meeting = meeting
        try:
            return self._meeting.hold(purpose, word, seconds, remedy)
        finally:
            _rounds[self.ranks] = self._meeting.round

    @contextlib.contextmanager
    def world(self, purpose: str, carrier: Group = None) -> Iterator[World]:
        """The ranks as the rest of fidtool knows them, for the length of a ``with`` block right after a meeting.

        Args:
            purpose: what to call it where a collective breaks.
            carrier: an NCCL group for tensors of GPUs; None is a gloo group that nobody else uses.

        Raises:
            RunError: a rank was lost.
        """
        if self.size == 1:
            yield World(Launch())
            return
        # Views must hold their base while gloo has them, which they do not in inference mode.
        with torch.inference_mode(False), torch.no_grad():
            if carrier is None and self._gloo is None:
                self._gloo = _gloo_group(self.ranks)
            # Made anew each time: a World that has seen a failure is of no use any more.
            world = World(Launch("env", self.place, self.size, self.place, self.size), group=carrier or self._gloo)
            world.backend = "gloo" if carrier is None else "nccl"
            try:
                yield world
            except LostContactError as error:
                lost = f"a rank was lost, or kept the others waiting for more than {_TRANSPORT_SECONDS:.0f} s"
                raise RunError(f"{purpose}: {lost} ({first_line(error.__cause__ or error)})") from error


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gloo_group(ranks: tuple[int, ...]) -> Group:
    """Carries tensors of the CPU, whatever the program's own groups can do."""
    seconds = timedelta(seconds=_TRANSPORT_SECONDS)
    return dist.new_group(list(ranks), timeout=seconds, backend="gloo", use_local_synchronization=True)


def nccl_carrier(tensor: torch.Tensor, group: Group) -> Group:
    """``group`` itself where ``tensor`` lives on a GPU and NCCL can carry it; else None."""
    if tensor.device.type != "cuda" or not _initialized():
        return None
    group = group or dist.group.WORLD
    return group if "cuda:nccl" in str(dist.get_backend_config(group)) else None


_rounds: dict[tuple[int, ...], int] = {}
"""How many meetings this process has had with which ranks, over all its process groups."""
_known: dict[tuple[int, ...], tuple[Group, Ranks]] = {}


def ranks_of(group: Group = None) -> Ranks:
    """The ranks of ``group``; the same object as long as the program keeps its process group.

    Raises:
        InputError: this process is not in the group.
    """
    made = Ranks(group)
    if made.size == 1:
        return made
    default, known = _known.get(made.ranks, (None, made))
    if default is not dist.group.WORLD:  # torch was given another process group since
        known = made
        _known[made.ranks] = (dist.group.WORLD, made)
    return known


def never_told() -> int:
    """How many processes the launcher has started, where torch has no process group all the same; else 0."""
    if _initialized():
        return 0
    with contextlib.suppress(InputError):
        size = discover().world_size
        return size if size > 1 else 0
    return 0
