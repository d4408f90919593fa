"""Why a run ended: the first failure on any rank, as every rank reads it from the store. Imports no torch."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, NamedTuple

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, InputError, RunError, StoppedError

if TYPE_CHECKING:
    from torch.distributed import Store

_FAILURE_KEY = "failed"
_PRINTING_KEY = "printing"
_SIGNALLED = 128
"""Shells add a signal's number to this."""


class LostContactError(RunError):
    """A collective broke: a symptom, whose cause is elsewhere."""

    location = ""


class TooSlowError(LostContactError):
    """The other ranks are alive but did not come to a collective in time."""


class Failure(NamedTuple):
    """The first failure of a run.

    Attributes:
        rank: the rank that failed, was lost or received the signal.
        host: its machine.
        message: one line for the user, with the file, the rank and the host where they matter.
        exit_code: status with which every rank exits.
        lost: the rank is dead or frozen, and another rank reported it.
        setting: what it is about, see `fidtool.errors.FidtoolError`.
    """

    rank: int
    host: str
    message: str
    exit_code: int
    lost: bool = False
    setting: str | None = None

    @staticmethod
    def from_error(error: FidtoolError, rank: int) -> Failure:
        """An error on this rank."""
        return Failure(rank, socket.gethostname(), str(error), error.exit_code, setting=error.setting)

    @staticmethod
    def from_signal(number: int, rank: int, size: int) -> Failure:
        """A signal that this rank received."""
        host = socket.gethostname()
        where = f" on rank {rank} ({host})" if size > 1 else ""
        return Failure(rank, host, f"stopped by {signal.Signals(number).name}{where}", _SIGNALLED + number)

    @property
    def is_signal(self) -> bool:
        """Whether a signal stopped the run."""
        return self.exit_code > _SIGNALLED

    def to_error(self) -> FidtoolError:
        """The exception that every rank raises."""
        kind = InputError if self.exit_code == InputError.exit_code else RunError
        error = (
            StoppedError(self.message, self.exit_code) if self.is_signal else kind(self.message, setting=self.setting)
        )
        error.location = ""  # the message has it
        return error


def received_signal(rank: int, size: int) -> Failure | None:
    """The signal that this process received, as a failure."""
    number = signals.received()
    return None if number is None else Failure.from_signal(number, rank, size)


def stopped_error() -> StoppedError:
    """The exception for a signal received outside the ranks' work; SIGINT if none was recorded."""
    number = signals.received() or signal.SIGINT
    return StoppedError(f"stopped by {signal.Signals(number).name}", _SIGNALLED + number)


def add_location(error: FidtoolError, rank: int, size: int) -> FidtoolError:
    """Adds this rank and its host to ``error``, unless they do not matter or are there already."""
    if size == 1 or error.location is not None:
        return error
    return error.at(f" (rank {rank} on {socket.gethostname()})")


def post_failure(store: Store, failure: Failure) -> Failure:
    """Makes ``failure`` the run's unless there is one already, and returns the run's."""
    import json  # the command line answers a wrong option without it

    return _parse(store.compare_set(_FAILURE_KEY, "", json.dumps(failure._asdict())))


def read_failure(store: Store) -> Failure | None:
    """The run's failure, if there is one."""
    return _parse(store.get(_FAILURE_KEY)) if store.check([_FAILURE_KEY]) else None


def _parse(value: bytes | str) -> Failure:
    import json

    return Failure(**json.loads(value))


def claim_printing(store: Store) -> bool:
    """Whether this rank prints the failure: the first rank that asks does."""
    return store.add(_PRINTING_KEY, 1) == 1


def printing_claimed(store: Store) -> bool:
    """Whether some rank has printed the failure, or is about to."""
    return bool(store.check([_PRINTING_KEY]))
