"""The ranks of a run: process group, collectives, and failures that reach every rank.

Unless they say otherwise the methods of `World` are collectives: all ranks call them in the same order. With one rank
they cost nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from fidtool.distributed.launch import Launch
from fidtool.errors import FidtoolError, RunError, as_fidtool_error

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

RENDEZVOUS_SECONDS = 120.0
"""How long a rank waits for the others to start."""
COLLECTIVE_SECONDS = 1800.0
"""How long a rank waits in one collective, which includes waiting for the slowest rank's share."""
_FAILED_KEY = "fidtool/failed"
_stores: dict[str, Any] = {}
"""The store of each rendezvous: rank zero serves it for as long as the process lives."""
_runs = itertools.count()

# Views of the last tensors that travelled. gloo's threads let go of a tensor a moment after its collective has ended.
# Where no other C++ object holds it, they need the interpreter's lock to do so (c10/util/intrusive_ptr.h: the PyObject
# is told when the count falls to one): a deadlock where the group is being destroyed meanwhile (torch 2.4), an
# abort where the interpreter is shutting down (torch 2.15). A view's C++ side holds its base, so views are made before
# a collective begins, kept for a while, and given away for good when the process ends.
_travelling: deque[list[torch.Tensor]] = deque(maxlen=8)


def _hold(*tensors: torch.Tensor) -> None:
    _travelling.append([tensor.view_as(tensor) for tensor in tensors])


@atexit.register
def _give_away() -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_travelling))


_TOLD_KEY = "fidtool/told"
_TOLD_SECONDS = 10.0
_POLL_SECONDS = 1.0


class World:
    """The ranks of one run.

    Attributes:
        launch: place of this process among the ranks.
        backend: ``none``, ``gloo`` or ``nccl``: what moves the statistics.
    """

    def __init__(self, launch: Launch, store: Any = None, group: Any = None) -> None:
        self.launch = launch
        self.backend = "none" if launch.world_size == 1 else "gloo"
        self._store = store
        self._group = group
        self._next_poll = 0.0

    @property
    def rank(self) -> int:
        return self.launch.rank

    @property
    def size(self) -> int:
        return self.launch.world_size

    def use_nccl(self, possible: bool) -> None:
        """Moves CUDA tensors over NCCL from now on, if every rank finds it ``possible``. A collective."""
        if self.size > 1 and self._group is None and all(self.gather(possible)):
            self.backend = "nccl"

    def gather(self, value: T) -> list[T]:
        """Every rank's ``value`` (a small picklable object), in rank order, on every rank."""
        if self.size == 1:
            return [value]
        import torch
        import torch.distributed as dist

        mine = self._packed(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        own_size = torch.tensor([len(mine)], dtype=torch.int64)
        _hold(own_size, *sizes)
        with self._lost_peers():
            dist.all_gather(sizes, own_size, group=self._group)
            padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
            padded[: len(mine)] = mine
            boxes = [torch.empty_like(padded) for _ in range(self.size)]
            _hold(padded, *boxes)
            dist.all_gather(boxes, padded, group=self._group)
        return [pickle.loads(box[: int(size)].numpy().tobytes()) for box, size in zip(boxes, sizes, strict=True)]

    def _packed(self, value: object) -> torch.Tensor:
        import torch

        return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums ``tensor`` over the ranks, in place, on every rank. Exact for integers, whatever the reduction tree.

        Over gloo a tensor that lives on an accelerator makes the trip through host memory.
        """
        if self.size == 1:
            return tensor
        import torch.distributed as dist

        with self._lost_peers():
            if self.backend == "nccl":
                dist.all_reduce(tensor, group=self._group)
                return tensor
            host = tensor.cpu()
            _hold(host)
            dist.all_reduce(host, group=self._group)
        return tensor if host is tensor else tensor.copy_(host)

    def broadcast(self, value: T) -> T:
        """Rank zero's ``value`` (picklable) on every rank."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        data = self._packed(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(data)], dtype=torch.int64)
        _hold(size)
        with self._lost_peers():
            dist.broadcast(size, src=0, group=self._group)
            if self.rank > 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            _hold(data)
            dist.broadcast(data, src=0, group=self._group)
        return value if self.rank == 0 else pickle.loads(data.numpy().tobytes())

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Runs ``work`` on rank zero alone and gives its result, or raises its error, on every rank."""
        result: T | None = None
        with self.together():
            if self.rank == 0:
                result = work()
        return self.broadcast(result)  # type: ignore[return-value]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A stretch of work without collectives, after which any rank's failure is raised on every rank.

        The first failing rank's error is the one that all raise; unexpected exceptions become a RunError with the
        rank and the host in it, chained to the original where it happened.
        """
        error: BaseException | None = None
        try:
            yield
        except (Exception, SystemExit) as caught:  # a user's network may call sys.exit
            error = caught
            if self.size == 1:
                raise
            self._announce_failure()
        if self.size == 1:
            return
        mine = None if error is None else self._located(as_fidtool_error(error))
        first = next((failure for failure in self.gather(mine) if failure is not None), None)
        if first is not None:
            first.agreed = True
            raise first from error

    def _located(self, error: FidtoolError) -> FidtoolError:
        if self.rank == 0:
            return error
        return type(error)(f"{error} (rank {self.rank} on {socket.gethostname()})")

    def _announce_failure(self) -> None:
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.set(_FAILED_KEY, str(self.rank))

    def farewell(self) -> None:
        """Before a rank ends in failure: the others wait until rank zero has told the user why.

        Launchers kill the remaining ranks once one has ended, and the cause would go down with rank zero.
        """
        if self._store is None:
            return
        with contextlib.suppress(Exception):
            if self.rank == 0:
                self._store.set(_TOLD_KEY, "yes")
            else:
                self._store.wait([_TOLD_KEY], timedelta(seconds=_TOLD_SECONDS))

    def peer_failed(self) -> bool:
        """Whether another rank has announced a failure; looks at most once a second. Not a collective.

        A rank that sees one stops its share of the work early and leaves its `together` block, where the failure
        is raised.
        """
        if self._store is None or time.monotonic() < self._next_poll:
            return False
        self._next_poll = time.monotonic() + _POLL_SECONDS
        return bool(self._store.check([_FAILED_KEY]))

    @contextlib.contextmanager
    def _lost_peers(self) -> Iterator[None]:
        """Turns the transport's errors into one that a person can act on."""
        try:
            yield
        except RuntimeError as error:
            first_line = (str(error).strip().splitlines() or [""])[0][:200]
            raise RunError(
                f"rank {self.rank} lost contact with another rank, which probably died: read that rank's own error "
                f"above ({first_line})"
            ) from error


@contextlib.contextmanager
def open_world(launch: Launch) -> Iterator[World]:
    """Joins the ranks for the length of a ``with`` block.

    A process group that the caller's program has already made is used as it is and left open.

    Args:
        launch: what `fidtool.distributed.launch.discover` found.

    Raises:
        RunError: not every rank arrived within `RENDEZVOUS_SECONDS`.
    """
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        launch = replace(launch, rank=dist.get_rank(), world_size=dist.get_world_size())
    if launch.world_size == 1:
        yield World(launch)
        return
    if dist.is_initialized():
        # The caller's group may speak NCCL alone; control traffic goes over gloo on every machine.
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        world = World(launch, None, group)
    else:
        # NCCL's communicator is only made once a CUDA tensor travels.
        nccl = torch.cuda.is_available() and dist.is_nccl_available()
        world, group = World(launch, _join(launch, "cpu:gloo,cuda:nccl" if nccl else "gloo")), None
    try:
        with torch.inference_mode(False):  # where views would not hold their base
            yield world
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group(group)


def _join(launch: Launch, backend: str) -> Any:
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    deadline = timedelta(seconds=RENDEZVOUS_SECONDS)
    try:
        if launch.init_method not in _stores:
            store, _, _ = next(rendezvous(launch.init_method, launch.rank, launch.world_size, timeout=deadline))
            _stores[launch.init_method] = store
        # Keys of its own for each run: the second in a script must not read what the first left behind.
        store = dist.distributed_c10d.PrefixStore(f"fidtool/{next(_runs)}", _stores[launch.init_method])
        store.set_timeout(deadline)
        dist.init_process_group(
            backend,
            store=store,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
    except (RuntimeError, ValueError) as error:
        hint = f"; {launch.doubt}" if launch.doubt else ""
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        raise RunError(
            f"rank {launch.rank} of {launch.world_size} could not meet the other ranks at {launch.init_method} within "
            f"{RENDEZVOUS_SECONDS:.0f} s: are all of them started, and can they reach that address?{hint} "
            f"({first_line})"
        ) from error
    return store
