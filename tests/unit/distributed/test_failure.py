"""A failure posted by one rank gives the same message, exception and exit status on all ranks."""

from __future__ import annotations

import signal

import pytest
import torch.distributed as dist

from fidtool.cli.output import format_flag
from fidtool.distributed import signals
from fidtool.distributed.watchdog import Failure
from fidtool.errors import (
    FidtoolError,
    InputError,
    LaunchError,
    RunError,
    StoppedError,
    option,
    render,
)


def read_by_another_rank(error: FidtoolError) -> FidtoolError:
    store = dist.HashStore()
    Failure(3, error).post(store)
    failure = Failure.read(store)
    assert failure is not None
    return failure.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("no"), 2),
        (LaunchError("no"), 2),
        (RunError("no"), 1),
        (StoppedError("no", 143), 143),
    ],
)
def test_every_rank_raises_the_same(error: FidtoolError, status: int) -> None:
    error.location = " (rank 3 on host)"
    found = read_by_another_rank(error)
    assert (type(found), str(found), found.exit_code) == (
        type(error),
        "no (rank 3 on host)",
        status,
    )


def test_the_first_failure_is_that_of_the_run() -> None:
    store = dist.HashStore()
    assert Failure.read(store) is None
    first = Failure(1, RunError("first")).post(store)
    second = Failure(2, RunError("second"), lost=True).post(store)
    assert (second.rank, second.lost, str(second.error)) == (
        first.rank,
        first.lost,
        str(first.error),
    )


def test_a_rank_that_prints_another_ranks_error_decides_how_its_settings_are_written() -> None:
    found = read_by_another_rank(InputError("no", f"pass {option('num', 3)}", setting="num"))
    assert (str(found), render(found.text, format_flag)) == ("no; pass num=3", "no; pass --num 3")
    assert found.setting == "num"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_has_its_status(
    number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "received", [number])
    found = read_by_another_rank(signals.stopped_error())
    assert (found.exit_code, str(found)) == (status, f"stopped by {number.name}")
