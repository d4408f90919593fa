"""The ranks of a training program: who they are, where they meet, and the groups that carry their tensors."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fidtool.distributed.carrier import bare_gloo
from fidtool.distributed.deadlines import LostContactError
from fidtool.distributed.launch import Launch, discover
from fidtool.distributed.store import attempt, first_line, second_client
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank, warn_program
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
    """

    def __init__(self, group: Group) -> None:
        self.ranks: tuple[int, ...] = (0,)
        self.place = 0
        self._meeting: Meeting | None = None
        self._store: Any = None
        self._gloo: Any = None
        self._calls: dict[str, int] = {}
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

    def calls(self, purpose: str) -> int:
        """How often the ranks have met, or were to meet, for ``purpose``."""
        return self._calls.get(purpose, 0)

    def meet(
        self, purpose: str, word: dict[str, Any], seconds: float, remedy: str, counted: bool = True
    ) -> list[dict[str, Any]]:
        """See `Meeting.hold`; alone, it is over at once.

        Args:
            counted: all ranks must come to ``purpose`` for the same time: one that is a call behind, after an error
                that its program has caught, would bring what belongs to another call. Each then raises once, and the
                next call is the same one for all.

        Raises:
            RunError: ranks that are a call behind, besides what `Meeting.hold` raises.
        """
        if self.size == 1:
            return [word]
        meeting = self._meeting or self._begin()
        number = self._calls[purpose] = self.calls(purpose) + 1 if counted else 0
        try:
            mine = {"call": number, "carrier": self._gloo is not None, "word": word}
            entries = meeting.hold(purpose, mine, seconds, remedy)
        finally:
            _rounds[self.ranks] = meeting.round
            if not counted:
                del self._calls[purpose]
        if not all(entry["carrier"] for entry in entries):
            self._gloo = None  # some rank has lost it: all make a new one
        latest = max(entry["call"] for entry in entries)
        for rank, entry in zip(self.ranks, entries, strict=True):
            if entry["call"] != latest:
                self._calls[purpose] = latest
                behind = f"rank {rank} comes to {purpose} for call number {entry['call']}, others for number {latest}"
                raise on_every_rank(RunError(f"{behind}: it missed one that failed; nothing was exchanged, call again"))
        return [entry["word"] for entry in entries]

    def _begin(self) -> Meeting:
        from torch._C._distributed_c10d import PrefixStore  # not in every build of torch

        default = dist.distributed_c10d._get_default_store()
        name = f"fidtool-training/{attempt()}/{'-'.join(map(str, self.ranks))}"
        self._store = PrefixStore(name, second_client(default) or default)
        self._meeting = Meeting(self._store, self.ranks, self.place)
        self._meeting.go_on_from(_rounds.get(self.ranks, 0))
        return self._meeting

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
            try:
                if carrier is None and self._gloo is None:
                    self._gloo = self._new_gloo()
                # Made anew each time: a World that has seen a failure is of no use any more.
                place = Launch("env", self.place, self.size, self.place, self.size)
                world = World(place, group=self._gloo if carrier is None else carrier)
                world.backend = "gloo" if carrier is None else "nccl"
                yield world
            except LostContactError as error:
                self._gloo = None
                lost = f"a rank was lost, or kept the others waiting for more than {_TRANSPORT_SECONDS:.0f} s"
                raise RunError(f"{purpose}: {lost} ({first_line(error.__cause__ or error)})") from error

    def _new_gloo(self) -> Any:
        from torch._C._distributed_c10d import PrefixStore

        assert self._meeting is not None
        try:  # under keys of its own: those of an earlier one name sockets that are gone
            store = PrefixStore(f"gloo/{self._meeting.round}", self._store)
            return bare_gloo(store, self.place, self.size, _TRANSPORT_SECONDS)
        except RuntimeError as error:
            raise LostContactError(first_line(error)) from error


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def nccl_carrier(tensor: torch.Tensor, group: Group) -> Group:
    """``group`` itself where ``tensor`` lives on a GPU and NCCL can carry it; else None."""
    if tensor.device.type != "cuda" or not _initialized():
        return None
    group = group or dist.group.WORLD
    return group if "cuda:nccl" in str(dist.get_backend_config(group)) else None


_rounds: dict[tuple[int, ...], int] = {}
"""How many meetings this process has had with which ranks, over all its process groups."""
_said_alone = False
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


def refuse_failed(words: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
    """Raises a RunError with what went wrong on the first rank whose word says that it cannot go on."""
    for rank, word in zip(ranks, words, strict=True):
        if word["failed"]:
            raise RunError(f"rank {rank} failed: {word['failed']}")


def place_in(group: Group) -> tuple[int, int]:
    """This rank's place in ``group`` and the group's size; ``(0, 1)`` for a rank outside, which has only itself."""
    try:
        ranks = ranks_of(group)
    except InputError:
        return 0, 1
    return ranks.place, ranks.size


@atexit.register
def _let_go() -> None:
    """gloo's threads must have ended before the interpreter does."""
    _known.clear()


def warn_if_alone(what: str) -> None:
    """Says once that a program which was started as several processes has not told torch so."""
    global _said_alone
    if not _said_alone and (size := never_told()):
        _said_alone = True
        warn_program(f"{what} is that of one process of {size}: call torch.distributed.init_process_group first")


def never_told() -> int:
    """How many processes the launcher has started, where torch has no process group all the same; else 0."""
    if _initialized():
        return 0
    with contextlib.suppress(InputError):
        size = discover().world_size
        return size if size > 1 else 0
    return 0
