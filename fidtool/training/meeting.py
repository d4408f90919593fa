"""Before ranks of a training program enter a collective they meet in its key-value store, where waiting can end.

A collective that some rank never enters cannot be left by the others. So each rank first writes into the store what it
has come for. The last to come finds all there and says "go"; a rank that has waited too long says "given up". Whoever
speaks first decides for all, so that either every rank enters the collective or none does.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fidtool.distributed.store import NoAnswerError, bounded, first_line
from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.validation import LONGEST_SECONDS

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_LONGEST_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 10.0
_LEAVING_SECONDS = 1.0
_NAMED = 8


class AbsentRanksError(RunError):
    """Some ranks did not come to a collective in time.

    Attributes:
        missing: the ranks that did not come, in the numbers of the whole run.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


@dataclass
class _Visit:
    """One rank's coming to meetings until one is settled.

    Attributes:
        word: what it brings.
        deadline: on the monotonic clock.
        seconds: how long that was from the beginning.
        settled: there is a verdict.
        over: this rank was interrupted: its thread must not go on.
    """

    word: dict[str, Any]
    deadline: float
    seconds: float
    settled: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class Meeting:
    """The meeting point of the ranks of one process group.

    Args:
        store: a client for this object alone, with keys that no other group uses.
        ranks: the group's ranks in the numbers of the whole run.
        place: this rank's place among them.

    Attributes:
        round: number of the next meeting.
    """

    def __init__(self, store: Store, ranks: Sequence[int], place: int) -> None:
        self._store, self._ranks, self._place = store, tuple(ranks), place
        self.round = 0
        self._one_at_a_time = threading.Lock()

    def go_on_from(self, earlier: int) -> None:
        """Counts on from an earlier process group's meetings where this store has seen them, too.

        A program may give up its process group and make another, which finds the first one's keys, or an empty store.
        """
        marker = f"used/{self._place}"
        self.round = earlier if self._store.check([marker]) else 0
        self._store.set(marker, "1")

    def hold(self, purpose: str, word: dict[str, Any], seconds: float, remedy: str) -> list[dict[str, Any]]:
        """Waits until every rank has come, and hands out what each brought. A collective that cannot hang.

        Args:
            purpose: what this rank has come for, as it is told to people; all must have come for the same.
            word: what it lets the others know, JSON.
            seconds: how long the others may take.
            remedy: what to do where they do not come.

        Returns:
            Every rank's word, in the group's order.

        Raises:
            InputError: ``seconds`` is no time.
            AbsentRanksError: some did not come in time.
            RunError: they came for different things, or the store does not answer.
        """
        if not 0 < seconds <= LONGEST_SECONDS:
            raise InputError(f"a time-out is a number of seconds from 0 to {LONGEST_SECONDS:g}, not {seconds}")
        with self._one_at_a_time:
            visit = _Visit({"purpose": purpose, "word": word}, time.monotonic() + seconds, seconds)
            try:
                self.round, verdict = bounded(lambda: self._settle(self.round, visit), seconds + _ANSWER_SECONDS)
            except NoAnswerError:
                raise RunError(f"{purpose}: the ranks' meeting point does not answer: is rank 0 alive?") from None
            except RuntimeError as error:
                gone = f"the ranks' meeting point is gone ({first_line(error)}): did rank 0 or the launcher end?"
                raise RunError(f"{purpose}: {gone}") from None
            finally:
                self._leave(visit)
        if "missing" in verdict:
            raise self._absent(purpose, verdict, remedy)
        came = verdict["came"]
        self._check_purposes(came)
        return [entry["word"] for entry in came]

    def _leave(self, visit: _Visit) -> None:
        """Whoever is interrupted while waiting is not there any more."""
        if not visit.settled:
            visit.over.set()
            with contextlib.suppress(NoAnswerError, RuntimeError):
                bounded(lambda: self._store.set(f"here/{self._place}", json.dumps({"round": -1})), _LEAVING_SECONDS)

    def _settle(self, number: int, visit: _Visit) -> tuple[int, dict[str, Any]]:
        """The number of the round after the first that this rank was in time for, and that one's verdict."""
        while True:
            verdict = self._attend(number, visit)
            number += 1
            if "came" in verdict or self._place in verdict["here"]:
                visit.settled = True
                return number, verdict
            # That round had been given up before this rank came: the others may be in a later one.

    def _attend(self, number: int, visit: _Visit) -> dict[str, Any]:
        key, size = f"verdict/{number}", len(self._ranks)
        self._store.set(f"here/{self._place}", json.dumps({**visit.word, "round": number}))
        if len(self._present(number)) == size or not self._spoken(key, visit):
            return self._pronounce(number, visit)
        return self._heard(self._store.get(key))

    def _spoken(self, key: str, visit: _Visit) -> bool:
        """Whether ``key`` appears before the deadline. The store's own way of waiting fills the log with warnings."""
        began = time.monotonic()
        while not self._store.check([key]):
            now = time.monotonic()
            if visit.over.is_set():
                raise RunError("interrupted")
            if now >= visit.deadline:
                return False
            # Ranks that are in step meet within milliseconds; a longer wait may be noticed a tenth later.
            time.sleep(min(_LONGEST_POLL_SECONDS, 0.0002 + 0.1 * (now - began), visit.deadline - now))
        return True

    def _present(self, number: int) -> dict[int, dict[str, Any]]:
        """What those who have come to this round brought."""
        keys = [f"here/{place}" for place in range(len(self._ranks))]
        if self._store.check(keys) and self._store.has_extended_api():  # type: ignore[attr-defined]
            values = dict(enumerate(self._store.multi_get(keys)))
        else:
            values = {place: self._store.get(key) for place, key in enumerate(keys) if self._store.check([key])}
        entries = {place: self._heard(value) for place, value in values.items()}
        return {place: entry for place, entry in entries.items() if entry["round"] == number}

    def _pronounce(self, number: int, visit: _Visit) -> dict[str, Any]:
        """Makes what this rank sees the round's verdict, unless another was first."""
        came = self._present(number)
        missing = [place for place in range(len(self._ranks)) if place not in came]
        verdict: dict[str, Any] = {"came": [came[place] for place in sorted(came)]}
        if missing:
            verdict = {"here": sorted(came), "missing": missing, "by": self._place, "seconds": visit.seconds}
        spoken = self._heard(self._store.compare_set(f"verdict/{number}", "", json.dumps(verdict)))
        if "came" in spoken and number:  # everybody has read the last one
            with contextlib.suppress(RuntimeError):  # stores of files cannot delete
                self._store.delete_key(f"verdict/{number - 1}")
        return spoken

    @staticmethod
    def _heard(value: bytes | str) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(value)
        return parsed

    def _absent(self, purpose: str, verdict: dict[str, Any], remedy: str) -> AbsentRanksError:
        missing = [self._ranks[place] for place in verdict["missing"]]
        by = "" if verdict["by"] == self._place else f", says rank {self._ranks[verdict['by']]}"
        waited = f"waited {verdict['seconds']:g} s in vain for {_listed(missing)} of {len(self._ranks)}{by}"
        return AbsentRanksError(f"{purpose} {waited}: {remedy}", missing)

    def _check_purposes(self, came: Sequence[dict[str, Any]]) -> None:
        wanted: dict[str, list[int]] = {}
        for place, entry in enumerate(came):
            wanted.setdefault(entry["purpose"], []).append(self._ranks[place])
        if len(wanted) > 1:
            parts = [f"{_listed(ranks)} came to {purpose}" for purpose, ranks in wanted.items()]
            advice = "every rank must make the same calls in the same order"
            raise on_every_rank(RunError(f"the ranks are at different points: {', '.join(parts)}; {advice}"))


def _listed(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} others" if len(ranks) > _NAMED else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"
