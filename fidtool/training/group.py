"""The ranks of a training program, and the process groups that transfer their tensors."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fidtool.distributed.failure import LostContactError
from fidtool.distributed.launch import Launch, discover, restart_count
from fidtool.distributed.rendezvous import GroupRendezvous, connect_to_store_of
from fidtool.distributed.watchdog import first_line
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank, warn_program
from fidtool.torch_internals import default_store, new_gloo_group

Group = Any
"""A ``torch.distributed.ProcessGroup``, or None for all ranks."""
DEFAULT_TIMEOUT = 60.0
"""Default timeout in seconds for waiting for the other ranks."""
_TRANSPORT_SECONDS = 300.0
"""After the rendezvous, how long a rank may keep the others waiting inside a collective."""

_warned_without_group = False
_known: dict[tuple[int, ...], tuple[Group, Ranks]] = {}
"""For each set of ranks, torch's default group at their first rendezvous, and their `Ranks`."""


class Ranks:
    """The ranks of a torch process group, as global ranks, or only this process if there is none."""

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
        return self.ranks[self.group_rank]

    def calls(self, purpose: str) -> int:
        """Number of rendezvous for ``purpose``, including failed ones."""
        return self._calls.get(purpose, 0)

    def exchange(
        self, purpose: str, payload: dict[str, Any], seconds: float, remedy: str, counted: bool = True
    ) -> list[dict[str, Any]]:
        """`GroupRendezvous.exchange`; a single process gets its own payload back.

        If ``counted``, the ranks must agree on the number of calls with ``purpose``. A rank that is a call behind,
        because its program caught an error, would bring the payload of another call. All ranks then raise once, and
        their next calls match again.

        Raises:
            RunError: if a rank is a call behind; see also `GroupRendezvous.exchange`.
        """
        if self.size == 1:
            return [payload]
        rendezvous = self._rendezvous or self._begin()
        number = 0
        if counted:
            number = self._calls[purpose] = self.calls(purpose) + 1
        mine = {"call": number, "gloo": self._gloo is not None, "payload": payload}
        entries = rendezvous.exchange(purpose, mine, seconds, remedy)
        if not all(entry["gloo"] for entry in entries):
            self._gloo = None  # a rank has lost its group: all ranks create a new one
        latest = max(entry["call"] for entry in entries)
        for rank, entry in zip(self.ranks, entries, strict=True):
            if entry["call"] != latest:
                self._calls[purpose] = latest
                behind = f"rank {rank} is in call number {entry['call']} of {purpose} and the others in number {latest}"
                missed = "it missed a call that failed"
                raise on_every_rank(RunError(f"{behind}, because {missed}; no data was exchanged: make the call again"))
        return [entry["payload"] for entry in entries]

    def _begin(self) -> GroupRendezvous:
        default = default_store()
        if default is None:
            raise RunError(f"torch {torch.__version__} does not provide access to the store of its process group")
        name = f"fidtool-training/{restart_count()}/{'-'.join(map(str, self.ranks))}"
        store = dist.PrefixStore(name, connect_to_store_of(default) or default)
        # A program may destroy its process group and create another, whose store is empty or has the first one's keys.
        self._store = dist.PrefixStore(str(store.add(f"groups/{self.group_rank}", 1)), store)
        self._rendezvous = GroupRendezvous(self._store, self.ranks, self.group_rank)
        return self._rendezvous

    @contextlib.contextmanager
    def world(self, purpose: str) -> Iterator[World]:
        """The ranks as a `World`, for the duration of a ``with`` block immediately after a rendezvous."""
        if self.size == 1:
            yield World(Launch())
            return
        # A view must reference its base while gloo uses it; in inference mode it does not.
        with outside_autograd():
            try:
                if self._gloo is None:
                    self._gloo = self._new_gloo()
                # A new World each time: one that has seen a failure cannot be reused.
                launch = Launch("env", self.group_rank, self.size, self.group_rank, self.size)
                yield World(launch, group=self._gloo)
            except LostContactError as error:
                self._gloo = None
                lost = f"a rank was lost, or the other ranks waited for it for more than {_TRANSPORT_SECONDS:.0f} s"
                raise RunError(f"{purpose}: {lost} ({first_line(error.__cause__ or error)})") from error

    def _new_gloo(self) -> Any:
        assert self._rendezvous is not None
        try:  # under new keys: those of an earlier group refer to closed sockets
            store = dist.PrefixStore(f"gloo/{self._rendezvous.round}", self._store)
            return new_gloo_group(store, self.group_rank, self.size, _TRANSPORT_SECONDS)
        except RuntimeError as error:
            raise LostContactError(first_line(error)) from error


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Disables autograd, and inference mode, whose tensors cannot be changed in place afterwards."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def ranks_of(group: Group = None) -> Ranks:
    """The ranks of ``group``; the same object as long as the program's default process group is the same."""
    made = Ranks(group)
    if made.size == 1:
        return made
    default, known = _known.get(made.ranks, (None, made))
    if default is not dist.group.WORLD:  # the program has initialised torch.distributed again
        known = made
        _known[made.ranks] = (dist.group.WORLD, made)
    return known


def refuse_failed(payloads: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
    """Raises a RunError with the failure of the first rank whose payload reports one."""
    for rank, payload in zip(ranks, payloads, strict=True):
        if payload["failed"]:
            raise RunError(f"rank {rank} failed: {payload['failed']}")


def group_rank_and_size(group: Group) -> tuple[int, int]:
    """This process's rank in ``group`` and the group's size; ``(0, 1)`` if it is not in the group."""
    try:
        ranks = ranks_of(group)
    except InputError:
        return 0, 1
    return ranks.group_rank, ranks.size


@atexit.register
def _release_groups() -> None:
    """Destroys the groups: gloo's threads must end before the interpreter exits."""
    _known.clear()


def warn_without_group(what: str) -> None:
    """Warns once if the launcher started several processes and torch has no process group."""
    global _warned_without_group
    if not _warned_without_group and (size := launched_without_group()):
        _warned_without_group = True
        warn_program(f"{what} covers only one of {size} processes: call torch.distributed.init_process_group first")


def launched_without_group() -> int:
    """Number of processes that the launcher started, if more than one and torch has no process group; else 0."""
    if _initialized():
        return 0
    with contextlib.suppress(InputError):
        size = discover().world_size
        return size if size > 1 else 0
    return 0
