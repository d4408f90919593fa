"""Forward passes over a stream of batches, several side by side, results in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from itertools import islice, takewhile
from typing import Any, TypeVar

import torch

from fidtool.features.lanes import Lanes

Item = TypeVar("Item")
Result = TypeVar("Result")

_STOP_SECONDS = 0.1
"""How soon an early end is noticed."""
_LEAVING_SECONDS = 1.0
"""How long an exception waits for passes that are running: they may never end."""


def side_by_side(
    items: Iterator[Item],
    images: Callable[[Item], list[torch.Tensor]],
    features: Callable[[list[torch.Tensor]], Result],
    lanes: int,
    stop: Callable[[], bool],
    in_turns: bool = False,
) -> Iterator[tuple[Item, Result | None]]:
    """Takes the features of a stream of items, ``lanes`` of them at a time.

    Args:
        items: the stream; it is read in the calling thread, at most one item ahead of the lanes.
        images: gives an item's images on the network's device; called in a lane, a thread with one intra-op thread of
            torch's: see `fidtool.features.torch_state.repeatable`.
        features: of these images, called there as well.
        lanes: how many work at once.
        stop: whether to end early, soon and without waiting for the work that is being done.
        in_turns: read the stream only while no lane works: it runs a program's own code, under the program's settings.

    Yields:
        Each item with its features, None for an item without images.
    """

    def one(item: Item) -> tuple[Item, Result | None]:
        pixels = images(item)
        return item, features(pixels) if pixels else None

    pool = Lanes(lanes, one)
    waiting: deque[Future[tuple[Item, Result | None]]] = deque()
    at_once, ahead = (lanes, 0) if in_turns else (1, lanes)
    wanted = takewhile(lambda _: not stop(), items)
    try:
        while some := list(islice(wanted, at_once)):
            waiting += map(pool.submit, some)
            while waiting and (len(waiting) > ahead or waiting[0].done()):
                if _stopped_before(waiting[0], stop):
                    return
                yield waiting.popleft().result()
        while waiting and not _stopped_before(waiting[0], stop):
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        pool.close(0.0 if stop() else _LEAVING_SECONDS)


def _stopped_before(future: Future[Any], stop: Callable[[], bool]) -> bool:
    """Waits for ``future``, but no longer than until ``stop``."""
    while not stop():
        if wait([future], _STOP_SECONDS).done:
            return False
    return True
