"""Rendezvous before a collective: exchanged values, late ranks, a lost store. Each rank is a
thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from fidtool.distributed.rendezvous import AbsentRanksError, GroupRendezvous
from fidtool.errors import RunError
from support.processes import PATIENCE, wait_until

REMEDY = "call it everywhere"


def meetings(size: int, store: dist.Store | None = None) -> list[GroupRendezvous]:
    """Return one rendezvous per rank. The ranks are numbered 10, 11, …"""
    store = store or dist.HashStore()
    return [GroupRendezvous(store, range(10, 10 + size), place) for place in range(size)]


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run the calls concurrently, and return their results or exceptions."""
    outcomes: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            outcomes[number] = calls[number]()
        except RunError as error:
            outcomes[number] = error

    # Daemons, so that a rank that waits forever fails the test and does not keep the process.
    threads = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a rank waits forever"
    return outcomes


def come(
    meeting: GroupRendezvous, word: int, seconds: float = 60.0, purpose: str = "count()"
) -> Callable[[], Any]:
    return lambda: meeting.exchange(purpose, {"word": word}, seconds, REMEDY)


def test_all_ranks_receive_all_values() -> None:
    ranks = meetings(5)
    for turn in range(3):
        heard = together([come(meeting, 10 * turn + place) for place, meeting in enumerate(ranks)])
        assert heard == [[{"word": 10 * turn + place} for place in range(5)]] * 5


def test_ranks_that_time_out_agree_on_the_missing_ones() -> None:
    store = dist.HashStore()
    ranks = meetings(4, store)

    def after_the_other() -> Any:
        wait_until(lambda: store.check(["here/2"]), "the other rank has not arrived")
        return come(ranks[0], 0, 0.4)()

    first, second = together([after_the_other, come(ranks[2], 2)])
    for error in (first, second):
        assert isinstance(error, AbsentRanksError)
        assert error.missing == (11, 13)
        assert "for ranks 11, 13 of 4" in str(error)
        assert REMEDY in str(error)
    assert "(reported by rank 10)" in str(second)
    heard = together([come(meeting, place) for place, meeting in enumerate(ranks)])
    assert heard == [[{"word": place} for place in range(4)]] * 4, "the next rendezvous works"


def test_a_late_rank_does_not_proceed_alone() -> None:
    """If it arrives just as the others time out, either all proceed or none."""
    for delay in (0.28, 0.3, 0.32):
        early, late = meetings(2)

        def after(seconds: float, meeting: GroupRendezvous) -> Any:
            time.sleep(seconds)
            return come(meeting, 1, 0.2)()

        outcomes = together([come(early, 0, 0.3), lambda: after(delay, late)])  # noqa: B023
        both_went = [isinstance(outcome, list) for outcome in outcomes]
        assert both_went in ([True, True], [False, False]), outcomes


def test_different_purposes_are_refused_at_once() -> None:
    """Otherwise the ranks would wait until the timeout."""
    ranks = meetings(3)
    purposes = ["add()", "add()", "sort()"]
    outcomes = together(
        [come(rank, place, purpose=purposes[place]) for place, rank in enumerate(ranks)]
    )
    for error in outcomes:
        assert "ranks 10, 11 in add(), rank 12 in sort()" in str(error)


def test_a_store_that_is_lost_or_does_not_respond() -> None:
    class Gone:
        def set(self, *_: Any) -> None:
            raise dist.DistNetworkError("Connection reset by peer\nframe #0: noise")

    class Silent:
        def set(self, *_: Any) -> None:
            time.sleep(3600)

    lost = r"count\(\): lost the connection to the rendezvous store \(Connection reset by peer\)"
    with pytest.raises(RunError, match=lost):
        come(GroupRendezvous(Gone(), range(2), 0), 0)()  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fidtool.distributed.rendezvous.ANSWER_SECONDS", 0.2)
        with pytest.raises(RunError, match="does not respond"):
            come(GroupRendezvous(Silent(), range(2), 0), 0, 0.2)()  # type: ignore[arg-type]


def test_keys_do_not_accumulate() -> None:
    """A training of a million steps must not fill the store."""
    store = dist.HashStore()
    ranks = meetings(2, store)
    counts = []
    for _ in range(30):
        together([come(meeting, place) for place, meeting in enumerate(ranks)])
        counts.append(store.num_keys())
    assert max(counts[2:]) == min(counts[2:]) <= 8
