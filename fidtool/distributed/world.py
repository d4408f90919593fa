"""The ranks of a run: process group, collectives, propagation of failures to every rank, comparison
of tensors.

The methods of `World` are collectives unless stated otherwise: all ranks must call them in the same
order. With one rank they do not communicate.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import pickle
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from fidtool.distributed import signals
from fidtool.distributed.launch import Launch
from fidtool.distributed.watchdog import (
    LostContactError,
    OnFailure,
    TooSlowError,
    Watchdog,
    add_location,
)
from fidtool.errors import FidtoolError, as_fidtool_error, mark_agreed, option

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Views of the tensors of the last collectives. gloo's threads release a tensor shortly after its
# collective ends. If no other C++ object references the tensor, releasing it needs the GIL
# (c10/util/intrusive_ptr.h: the PyObject is notified when the count falls to one): a deadlock if
# the group is being destroyed at that time (torch 2.4), an abort if the interpreter is shutting
# down (torch 2.15). A view's C++ object references its base, so views are made before a collective
# starts, held for the next few collectives, fewer if they are large, and leaked at exit.
_in_flight: deque[list[torch.Tensor]] = deque(maxlen=8)
_MIN_HELD = 2
_MAX_HELD_BYTES = 1 << 26
_never_destroy = ctypes.pythonapi.Py_IncRef
atexit.register(_never_destroy, ctypes.py_object(_in_flight))


def _bytes_held() -> int:
    return sum(tensor.nbytes for tensors in _in_flight for tensor in tensors)


def _pickle(value: object) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


class World:
    """The ranks of one run.

    Args:
        watchdog: this rank's watchdog; None creates one that is not connected to the other ranks.
        group: the process group; None is the default group.

    Attributes:
        backend: what transfers data between the ranks: ``gloo``, or ``none`` if there is one rank.
    """

    def __init__(self, launch: Launch, watchdog: Watchdog | None = None, group: Any = None) -> None:
        self.launch = launch
        self.rank = launch.rank
        self.size = launch.world_size
        self.backend = "none" if launch.world_size == 1 else "gloo"
        self._watchdog = watchdog or Watchdog(launch.rank, launch.world_size, math.inf, math.inf)
        self._connected = watchdog is not None
        self._group = group

    def gather(self, value: T) -> list[T]:
        """Return every rank's ``value`` (a small picklable object), in rank order, on every
        rank.
        """
        if self.size == 1:
            return [value]
        import torch

        mine = _pickle(value)
        sizes = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        sizes[self.rank] = len(mine)
        every = self.gather_bytes(mine, self.all_reduce_sum(sizes).tolist())
        return [pickle.loads(data.numpy().data) for data in every]

    def gather_bytes(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Return every rank's one-dimensional uint8 tensor, in rank order."""
        import torch

        padded = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        padded[: len(mine)] = mine
        outputs = [torch.empty_like(padded) for _ in sizes]
        self._run_collective(lambda group: group.allgather([outputs], [padded]), padded, *outputs)
        return [output[:size].to(mine.device) for output, size in zip(outputs, sizes, strict=True)]

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum ``tensor`` over the ranks, in place, on every rank. Exact for integers in any
        reduction order.

        A tensor on an accelerator is copied through host memory.
        """
        if self.size == 1:
            return tensor
        sent = tensor.cpu()
        self._run_collective(lambda group: group.allreduce([sent]), sent)
        return tensor if sent is tensor else tensor.copy_(sent)

    def broadcast(self, value: T) -> T:
        """Return rank 0's ``value`` (a picklable object) on every rank."""
        if self.size == 1:
            return value
        import torch

        data = torch.empty(0, dtype=torch.uint8, device="cpu")
        if self.rank == 0:
            data = _pickle(value)
        size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
        data.resize_(int(self.all_reduce_sum(size)))
        # From rank 0 by default.
        self._run_collective(lambda group: group.broadcast([data]), data)
        return value if self.rank == 0 else pickle.loads(data.numpy().data)

    def _run_collective(self, begin: Callable[[Any], Any], *tensors: torch.Tensor) -> None:
        """Start a collective on the process group and wait until it ends or must be abandoned.

        ``begin`` starts it and returns torch's handle; ``tensors`` are those that it reads and
        writes, all on the CPU.

        gloo does not always detect a lost rank. If it does, it does not notify every waiter: a send
        on a broken connection is queued, and the queue is dropped when the connection is closed
        (gloo's `Pair::signalException` only handles posted operations). An abandoned collective
        keeps waiting in a gloo thread, which the group's destructor would join, so neither it nor
        its group is ever destroyed.
        """
        import torch.distributed as dist

        group = dist.group.WORLD if self._group is None else self._group
        _in_flight.append([tensor.view_as(tensor) for tensor in tensors])
        while len(_in_flight) > _MIN_HELD and _bytes_held() > _MAX_HELD_BYTES:
            _in_flight.popleft()
        self._watchdog.collectives += 1
        try:
            work = begin(group)
            while not work.is_completed():
                # An error is a poll that timed out; the last wait raises that of a failed one.
                with contextlib.suppress(RuntimeError):
                    work.wait(timedelta(seconds=0.5))
                if time.monotonic() > self._watchdog.abandon_at and not work.is_completed():
                    _never_destroy(ctypes.py_object((group, work, tensors)))
                    raise RuntimeError("gloo kept waiting for a lost rank")
            work.wait()
        except RuntimeError as error:
            if not re.search("timed out|timeout", str(error), re.IGNORECASE):
                raise LostContactError.from_error(self.rank, error) from error
            raise TooSlowError(
                f"rank {self.rank} timed out after {self._watchdog.timeout:g} s waiting for "
                f"{self._watchdog.find_late_ranks()}, still alive but stuck or slower:",
                f"raise {option('timeout')} if more time is needed",
                setting="timeout",
            ) from error

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Call ``work`` on rank 0 only. Returns its value, or raises its error, on every
        rank.
        """
        return self.broadcast(self.only_on_rank_zero(work))  # type: ignore[return-value]

    def only_on_rank_zero(self, work: Callable[[], T]) -> T | None:
        """Call ``work`` on rank 0 only. Returns its value there and None elsewhere; all ranks
        raise its error.
        """
        result: T | None = None
        with self.together():
            if self.rank == 0:
                try:
                    result = work()
                except FidtoolError as error:
                    error.location = error.location or ""  # it is about what all ranks share
                    raise
        return result

    def must_stop(self) -> bool:
        """Whether a rank has failed or a signal was received. Not a collective; no communication.

        If true, the rank must stop its work and leave its `together` block, which then raises the
        cause.
        """
        return self._watchdog.failed.is_set() or bool(signals.received)

    def check_stop(self) -> None:
        """Raise the cause if a rank has failed or a signal was received, within a `together`
        block.

        Not a collective; no communication.
        """
        if self.must_stop():
            known = self._watchdog.first_error() if self._connected else None
            raise known or signals.stopped_error()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Context manager that raises any rank's failure on every rank. Its block must contain no
        collectives.

        All ranks raise the same error, the first of the run. An unexpected exception becomes a
        RunError that names the rank and the host; on that rank it is chained to the original. A
        signal that stopped the work is also a failure.
        """
        if self.size == 1:
            yield
            self.check_stop()
            return
        error: BaseException | None = None
        try:
            yield
        except (Exception, SystemExit) as caught:  # a custom network may call sys.exit
            error = caught
        mine: FidtoolError | None = None
        if error is not None:
            mine = add_location(as_fidtool_error(error), self.rank, self.size)
            self._watchdog.report(mine)
        every = self.gather(mine or self.must_stop())
        failures = [failure for failure in every if isinstance(failure, FidtoolError)]
        first = failures[0] if failures else None
        if self._connected and any(every) and len(failures) != 1:
            first = self._watchdog.first_error() or first
        if isinstance(error, SystemExit):
            raise error  # the calling program or a network asked for it
        if first is not None:
            raise mark_agreed(first) from error


@contextlib.contextmanager
def open_world(
    launch: Launch, peer_timeout: float, timeout: float, on_failure: OnFailure
) -> Iterator[World]:
    """Join the other ranks for the duration of a ``with`` block.

    If the calling program already has a process group, it is used and left open. If that group's
    store is neither a TCPStore nor a FileStore, there is no watchdog, and only the collectives' own
    timeout ends a wait. If the block fails on any rank, every rank raises the first failure. A rank
    that is stuck is ended by force, with the first failure on stderr, see
    `fidtool.distributed.watchdog`.

    Args:
        peer_timeout, timeout, on_failure: see `Watchdog`.

    Raises:
        RunError: if not all ranks joined in time, or a rank was lost.
        KeyboardInterrupt: if a signal was received during the join or as the block ended.
    """
    import torch

    watchdog = Watchdog(launch.rank, launch.world_size, peer_timeout, timeout, on_failure)
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as leaving:
        leaving.callback(watchdog.stop)
        try:
            # A view must reference its base; in inference mode it does not.
            with torch.inference_mode(False):
                group = None
                if launch.world_size > 1:
                    # Deferred: most runs have one rank.
                    from fidtool.distributed.rendezvous import join, leave

                    group = join(launch, watchdog)
                    leaving.callback(leave, group)
                elif signals.taken_over:
                    watchdog.start([])
                # A launcher that has lost one rank sends SIGTERM to the others, which must not
                # interrupt the search for the cause.
                stack.enter_context(signals.defer())
                yield World(launch, watchdog, group)
                if launch.world_size > 1:
                    watchdog.leave(succeeded=True)
        except BaseException as caught:
            error = watchdog.end_run(caught)
            if error is caught or not (isinstance(caught, Exception) or signals.taken_over):
                raise
            raise error from caught
    if signals.received:
        raise KeyboardInterrupt


# Number of differences that are named.
_MAX_NAMED = 5
_MISSING = ("missing", "")


def find_differences(
    hashes: Mapping[str, tuple[str, str]], world: World, ranks: Sequence[int] = ()
) -> list[str]:
    """Compare the tensors of all ranks with those of the first rank. A collective.

    Returns one phrase per difference, the same on every rank. ``ranks`` are the rank numbers in
    these, by default from 0 on.
    """
    first, *others = world.gather(dict(hashes))
    zero, *numbers = ranks or range(world.size)
    differing = defaultdict[str, list[str]](list)
    for rank, other in zip(numbers, others, strict=True):
        for name in {**first, **other}:
            here = first.get(name, _MISSING)
            there = other.get(name, _MISSING)
            if here == there:
                continue
            what = f"{name} differs from rank {zero}'s"
            if here[0] != there[0]:
                what = f"{name} is {here[0]} on rank {zero} and {there[0]}"
            differing[what].append(f"rank {rank}")
    phrases = [f"{what} on {', '.join(on)}" for what, on in differing.items()]
    if len(phrases) > _MAX_NAMED:
        phrases[_MAX_NAMED:] = [f"and {len(phrases) - _MAX_NAMED} more"]
    return phrases
