"""The ranks of a training program: who they are, and what carries their tensors."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fidtool.distributed.failure import LostContactError
from fidtool.distributed.launch import Launch, discover, restart_count
from fidtool.distributed.rendezvous import GroupRendezvous, connect_to_store_of, first_line
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank, warn_program
from fidtool.torch_internals import default_store, new_gloo_group

Group = Any
"""A ``torch.distributed.ProcessGroup``, or None for all ranks."""
DEFAULT_TIMEOUT = 60.0
"""Seconds that ranks wait for each other by default."""
_TRANSPORT_SECONDS = 300.0
"""Once all ranks are there, how long one of them may keep the others waiting inside a collective."""

_rounds: dict[tuple[int, ...], int] = {}
"""How many meetings this process has had with which ranks, over all its process groups."""
_warned_without_group = False
_known: dict[tuple[int, ...], tuple[Group, Ranks]] = {}
"""Of each group of ranks: torch's default group when they first met, and their `Ranks`."""


class Ranks:
    """The ranks of a process group of torch's, or this process alone where there is none.

    Attributes:
        ranks: the group's ranks in the numbers of the whole run.
        group_rank: this rank's place among them.
    """

    def __init__(self, group: Group) -> None:
        self.ranks: tuple[int, ...] = (0,)
        self.group_rank = 0
        self._rendezvous: GroupRendezvous | None = None
        self._store: Any = None
        self._gloo: Any = None
        self._calls: dict[str, int] = {}
        if _initialized():
            self.ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            if dist.get_rank() not in self.ranks:
                raise InputError(f"rank {dist.get_rank()} is not in the process group of ranks {list(self.ranks)}")
            self.group_rank = self.ranks.index(dist.get_rank())

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This rank, in the numbers of the whole run."""
        return self.ranks[self.group_rank]

    def calls(self, purpose: str) -> int:
        """How often the ranks have met, or were to meet, for ``purpose``."""
        return self._calls.get(purpose, 0)

    def exchange(
        self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str, counted: bool = True
    ) -> list[dict[str, Any]]:
        """See `GroupRendezvous.exchange`; a process alone gets its own payload back.

        Args:
            counted: ranks must agree on how often they have come to ``purpose``. One that is a call behind, after an
                error that its program has caught, would bring what belongs to another call: each rank then raises
                once, and the next call is the same one for all.

        Raises:
            RunError: ranks that are a call behind, besides what `GroupRendezvous.exchange` raises.
        """
        if self.size == 1:
            return [payload]
        rendezvous = self._rendezvous or self._begin()
        number = 0
        if counted:
            number = self._calls[purpose] = self.calls(purpose) + 1
        try:
            mine = {"call": number, "gloo": self._gloo is not None, "payload": payload}
            entries = rendezvous.exchange(purpose, mine, seconds, remedy)
        finally:
            _rounds[self.ranks] = rendezvous.round
        if not all(entry["gloo"] for entry in entries):
            self._gloo = None  # some rank has lost it: all make a new one
        latest = max(entry["call"] for entry in entries)
        for rank, entry in zip(self.ranks, entries, strict=True):
            if entry["call"] != latest:
                self._calls[purpose] = latest
                behind = f"rank {rank} comes to {purpose} for call number {entry['call']}, others for number {latest}"
                raise on_every_rank(RunError(f"{behind}: it missed one that failed; nothing was exchanged, call again"))
        return [entry["payload"] for entry in entries]

    def _begin(self) -> GroupRendezvous:
        default = default_store()
        if default is None:
            raise RunError(f"torch {torch.__version__} does not tell the store of its process group")
        name = f"fidtool-training/{restart_count()}/{'-'.join(map(str, self.ranks))}"
        self._store = dist.PrefixStore(name, connect_to_store_of(default) or default)
        self._rendezvous = GroupRendezvous(self._store, self.ranks, self.group_rank)
        self._rendezvous.continue_from(_rounds.get(self.ranks, 0))
        return self._rendezvous

    @contextlib.contextmanager
    def world(self, purpose: str, nccl: Group = None) -> Iterator[World]:
        """The ranks as the rest of fidtool knows them, for the length of a ``with`` block right after a rendezvous.

        Args:
            purpose: what to call it where a collective breaks.
            nccl: an NCCL group for tensors of GPUs; None is a gloo group that nobody else uses.

        Raises:
            RunError: a rank was lost.
        """
        if self.size == 1:
            yield World(Launch())
            return
        # Views must hold their base while gloo has them, which they do not in inference mode.
        with outside_autograd():
            try:
                if nccl is None and self._gloo is None:
                    self._gloo = self._new_gloo()
                # One for each time: a World that has seen a failure is of no use any more.
                launch = Launch("env", self.group_rank, self.size, self.group_rank, self.size)
                world = World(launch, group=self._gloo if nccl is None else nccl)
                world.backend = "gloo" if nccl is None else "nccl"
                yield world
            except LostContactError as error:
                self._gloo = None
                lost = f"a rank was lost, or kept the others waiting for more than {_TRANSPORT_SECONDS:.0f} s"
                raise RunError(f"{purpose}: {lost} ({first_line(error.__cause__ or error)})") from error

    def _new_gloo(self) -> Any:
        assert self._rendezvous is not None
        try:  # under keys of its own: those of an earlier one name sockets that are gone
            store = dist.PrefixStore(f"gloo/{self._rendezvous.round}", self._store)
            return new_gloo_group(store, self.group_rank, self.size, _TRANSPORT_SECONDS)
        except RuntimeError as error:
            raise LostContactError(first_line(error)) from error


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Neither autograd nor inference mode, whose tensors could not be changed in place later."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def nccl_group(tensor: torch.Tensor, group: Group) -> Group:
    """``group`` itself where ``tensor`` lives on a GPU and NCCL can carry it; else None."""
    if tensor.device.type != "cuda" or not _initialized():
        return None
    group = group or dist.group.WORLD
    return group if "cuda:nccl" in str(dist.get_backend_config(group)) else None


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


def refuse_failed(payloads: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
    """Raises a RunError with what went wrong on the first rank whose payload says that it cannot go on."""
    for rank, payload in zip(ranks, payloads, strict=True):
        if payload["failed"]:
            raise RunError(f"rank {rank} failed: {payload['failed']}")


def group_rank_and_size(group: Group) -> tuple[int, int]:
    """This rank's place in ``group`` and the group's size; ``(0, 1)`` for a rank outside, which has only itself."""
    try:
        ranks = ranks_of(group)
    except InputError:
        return 0, 1
    return ranks.group_rank, ranks.size


@atexit.register
def _let_go() -> None:
    """gloo's threads must have ended before the interpreter does."""
    _known.clear()


def warn_without_group(what: str) -> None:
    """Warns once where the launcher started several processes and torch has no process group."""
    global _warned_without_group
    if not _warned_without_group and (size := launched_without_group()):
        _warned_without_group = True
        warn_program(f"{what} is that of one process of {size}: call torch.distributed.init_process_group first")


def launched_without_group() -> int:
    """How many processes the launcher started, if several and torch has no process group; else 0."""
    if _initialized():
        return 0
    with contextlib.suppress(InputError):
        size = discover().world_size
        return size if size > 1 else 0
    return 0
