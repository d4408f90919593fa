"""The first failure of a run, which ends it. Every rank reads it from the store."""

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
"""Exit status of a process that a signal ended, minus the signal's number, as in a shell."""


class LostContactError(RunError):
    """A collective failed. This is a symptom: the cause is on another rank."""

    location = ""


class TooSlowError(LostContactError):
    """The other ranks are alive but did not enter a collective in time."""


class Failure(NamedTuple):
    """The first failure of a run.

    Attributes:
        rank, host: the rank that failed, was lost or received the signal, and its machine.
        message: one line for the user; names the file, the rank and the host where relevant.
        lost: whether the rank is dead or frozen, as reported by another rank.
        setting: see `fidtool.errors.FidtoolError`.
    """

    rank: int
    host: str
    message: str
    exit_code: int
    lost: bool = False
    setting: str | None = None

    @staticmethod
    def from_error(error: FidtoolError, rank: int) -> Failure:
        return Failure(rank, socket.gethostname(), error.text, error.exit_code, setting=error.setting)

    @property
    def is_signal(self) -> bool:
        return self.exit_code > _SIGNALLED

    def to_error(self) -> FidtoolError:
        """Returns the exception that every rank raises."""
        kind = InputError if self.exit_code == InputError.exit_code else RunError
        error = (
            StoppedError(self.message, self.exit_code) if self.is_signal else kind(self.message, setting=self.setting)
        )
        error.location = ""  # the message already contains it
        return error


def received_signal(rank: int, size: int) -> Failure | None:
    """The failure by the signal that this process received, if any."""
    if (number := signals.received()) is None:
        return None
    host = socket.gethostname()
    where = f" on rank {rank} ({host})" if size > 1 else ""
    return Failure(rank, host, f"stopped by {signal.Signals(number).name}{where}", _SIGNALLED + number)


def stopped_error() -> StoppedError:
    """Returns the exception for a signal received while no run is active; SIGINT if none was recorded."""
    number = signals.received() or signal.SIGINT
    return StoppedError(f"stopped by {signal.Signals(number).name}", _SIGNALLED + number)


def add_location(error: FidtoolError, rank: int, size: int) -> FidtoolError:
    """Adds this rank and its host to ``error``, unless there is one rank or ``error`` already has a location."""
    if size == 1 or error.location is not None:
        return error
    error.location = f" (rank {rank} on {socket.gethostname()})"
    return error


def post_failure(store: Store, failure: Failure) -> Failure:
    """Records ``failure`` unless the run already has one. Returns the run's failure."""
    import json  # deferred: a usage error on the command line does not need it

    return _parse(store.compare_set(_FAILURE_KEY, "", json.dumps(failure._asdict())))


def read_failure(store: Store) -> Failure | None:
    """Returns the run's failure; None if there is none."""
    return _parse(store.get(_FAILURE_KEY)) if store.check([_FAILURE_KEY]) else None


def _parse(value: bytes | str) -> Failure:
    import json

    return Failure(**json.loads(value))


def claim_printing(store: Store) -> bool:
    """Whether this rank must print the failure. True for the first rank that asks."""
    return store.add(_PRINTING_KEY, 1) == 1


def printing_claimed(store: Store) -> bool:
    """Whether a rank has printed the failure or is about to."""
    return bool(store.check([_PRINTING_KEY]))
