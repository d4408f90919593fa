"""Before anything else: are all ranks here, once each, and of one mind about how many they are?"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from fidtool.distributed import cause
from fidtool.distributed.cause import Cause
from fidtool.distributed.processes import Process
from fidtool.distributed.store import stop_if_asked
from fidtool.errors import FidtoolError, LaunchError, RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_POLL_SECONDS = 0.05
_MARGIN_SECONDS = 5.0
"""Rank zero gives up this much earlier than the others, so that its word, which names the missing, is the first."""


def roll_call(store: Store, rank: int, size: int, seconds: float, doubt: str = "", board: str = "") -> RollCall:
    """Waits until every rank has come. A collective, the first one.

    Args:
        store: where they meet.
        rank, size: this rank's place.
        seconds: how long they may take.
        doubt: what to do should the others never come.
        board: path of a file with which rank's neighbours can share it; see `fidtool.distributed.cause.Board`.

    Raises:
        RunError: somebody did not come; rank zero knows who.
        LaunchError: a rank came twice, or ranks were told different world sizes.
        KeyboardInterrupt: a signal was noted meanwhile.
    """
    mine = {"process": asdict(Process.this()), "size": size, "board": board}
    if store.add(f"seat/{rank}", 1) > 1:
        raise _refused(store, LaunchError(f"rank {rank} was started twice: give every process a RANK of its own"), rank)
    store.set(f"here/{rank}", json.dumps(mine))
    if rank == 0:
        _gather(store, size, seconds, doubt)
    deadline = time.monotonic() + seconds + _MARGIN_SECONDS
    while not store.check(["all-here"]):
        if (known := cause.read(store)) is not None:
            raise _agreed(known)
        if time.monotonic() > deadline:
            raise RunError(f"rank {rank} of {size} waited {seconds:.0f} s for rank 0 to call the roll, in vain")
        stop_if_asked()
        time.sleep(_POLL_SECONDS)
    entries = [json.loads(entry) for entry in json.loads(store.get("all-here"))]
    if len(entries) != size:
        raise LaunchError(f"rank {rank} was told that there are {size} ranks, but there are {len(entries)}")
    return RollCall(entries)


class RollCall:
    """Who came, in rank order.

    Attributes:
        processes: the process of each rank.
        boards: see `roll_call`.
    """

    def __init__(self, entries: list[dict[str, object]]) -> None:
        self.processes = [Process(**entry["process"]) for entry in entries]  # type: ignore[arg-type]
        self.boards = [str(entry["board"]) for entry in entries]


def _gather(store: Store, size: int, seconds: float, doubt: str) -> None:
    deadline = time.monotonic() + seconds
    missing = list(range(1, size))
    while missing:
        missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
        if not missing:
            break
        if (known := cause.read(store)) is not None:
            raise _agreed(known)
        if time.monotonic() > deadline:
            raise _refused(store, RunError(_absent(missing, size, seconds, doubt)), 0)
        stop_if_asked()
        time.sleep(_POLL_SECONDS)
    entries = [store.get(f"here/{rank}").decode() for rank in range(size)]
    for rank, entry in enumerate(entries):
        other = json.loads(entry)["size"]
        if other != size:
            message = f"rank 0 was told that there are {size} ranks and rank {rank} that there are {other}"
            raise _refused(store, LaunchError(f"{message}: give all of them the same WORLD_SIZE"), 0)
    store.set("all-here", json.dumps(entries))


def _absent(missing: list[int], size: int, seconds: float, doubt: str) -> str:
    ranks = ", ".join(map(str, missing[:8])) + (" and others" if len(missing) > 8 else "")
    hint = f"; {doubt}" if doubt else ""
    verb = "rank" if len(missing) == 1 else "ranks"
    return (
        f"{verb} {ranks} of {size} did not come within {seconds:.0f} s: look whether they were started and what they "
        f"say; all must reach the address of rank 0{hint}"
    )


def _refused(store: Store, error: FidtoolError, rank: int) -> FidtoolError:
    """Tells the other ranks why nothing begins."""
    return _agreed(cause.post(store, Cause.of(error, rank)))


def _agreed(known: Cause) -> FidtoolError:
    error = known.error()
    error.agreed = True
    return error
