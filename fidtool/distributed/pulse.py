"""What each rank writes into the store every second: that it lives, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fidtool.distributed.processes import Process

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def beat(store: Store, rank: int, number: int, collectives: int) -> None:
    """Writes this rank's sign of life, ``number``, with the number of collectives that it has come to."""
    store.set(f"beat/{rank}", f"{number} {collectives}")


def listen(store: Store, ranks: Sequence[int]) -> list[bytes]:
    """The last signs of life of ``ranks``, all of which must have written one."""
    return list(store.multi_get([f"beat/{rank}" for rank in ranks]))


def behind(store: Store, processes: Sequence[Process], collectives: int) -> str:
    """The ranks that have not come to collective number ``collectives`` yet, for a message."""
    come = [int(value.split()[1]) for value in listen(store, range(len(processes)))]
    late = [f"rank {rank} ({processes[rank]})" for rank, reached in enumerate(come) if reached < collectives]
    return ", ".join(late[:8]) or "the other ranks"
