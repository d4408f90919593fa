"""Why a run ended: the first failure anywhere, as every rank reads it, and the right to say so. Imports no torch."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, InputError, RunError, StoppedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_FAILED = "failed"
_CLAIMED = "claimed"
_SIGNALLED = 128
"""Shells add a signal's number to this."""


class LostContactError(RunError):
    """A collective broke: a symptom, the cause is elsewhere."""

    located = True


class TooSlowError(LostContactError):
    """The others did not come to a collective in time, though they live."""


@dataclass(frozen=True)
class Cause:
    """The first failure of a run.

    Attributes:
        rank: the rank that failed, fell silent or received the signal.
        host: its machine.
        message: one line for the user, with the file, the rank and the host where they matter.
        exit_code: status with which every rank ends.
        gone: the rank did not say so itself: it is dead or frozen.
    """

    rank: int
    host: str
    message: str
    exit_code: int
    gone: bool = False

    @staticmethod
    def of(error: FidtoolError, rank: int) -> Cause:
        """This rank's own failure."""
        return Cause(rank, socket.gethostname(), str(error), error.exit_code)

    @staticmethod
    def signalled(number: int, rank: int, size: int) -> Cause:
        """This rank received a signal."""
        host = socket.gethostname()
        where = f" on rank {rank} ({host})" if size > 1 else ""
        return Cause(rank, host, f"stopped by {signal.Signals(number).name}{where}", _SIGNALLED + number)

    @property
    def signal(self) -> bool:
        """Whether a signal asked for the end."""
        return self.exit_code > _SIGNALLED

    def error(self) -> FidtoolError:
        """The exception that every rank raises for it."""
        kind = InputError if self.exit_code == InputError.exit_code else RunError
        error = StoppedError(self.message, self.exit_code) if self.signal else kind(self.message)
        error.located = True
        return error


def stopped() -> StoppedError:
    """The exception for the signal that this process received outside the ranks' work; SIGINT where none was noted."""
    number = signals.received() or signal.SIGINT
    return StoppedError(f"stopped by {signal.Signals(number).name}", _SIGNALLED + number)


def located(error: FidtoolError, rank: int, size: int) -> FidtoolError:
    """``error`` with this rank and its host in the message, where they matter and are not there yet."""
    if size == 1 or error.agreed or error.located:
        return error
    error = error.noted(f" (rank {rank} on {socket.gethostname()})")
    error.located = True
    return error


def post(store: Store, cause: Cause) -> Cause:
    """Makes ``cause`` the run's, unless another was first; the run's cause."""
    return _parsed(store.compare_set(_FAILED, "", json.dumps(asdict(cause))))


def read(store: Store) -> Cause | None:
    """The run's cause, if it has failed."""
    return _parsed(store.get(_FAILED)) if store.check([_FAILED]) else None


def _parsed(value: bytes | str) -> Cause:
    return Cause(**json.loads(value))


def stopped_here(rank: int, size: int) -> Cause | None:
    """The signal that this process received, as a cause."""
    number = signals.received()
    return None if number is None else Cause.signalled(number, rank, size)


def claim(store: Store) -> bool:
    """Whether the caller may tell the user: the first of all ranks to ask."""
    return store.add(_CLAIMED, 1) == 1


def claimed(store: Store) -> bool:
    """Whether somebody has told the user, or is about to."""
    return bool(store.check([_CLAIMED]))
