"""A failure posted by one rank gives the same message, exception and exit status on all ranks."""

from __future__ import annotations

import signal

import pytest

from fidtool.cli.output import as_flag
from fidtool.distributed import signals
from fidtool.distributed.watchdog import Failure
from fidtool.errors import FidtoolError, InputError, LaunchError, RunError, StoppedError, option, rendered


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (InputError("no"), InputError, 2),
        (LaunchError("no"), InputError, 2),
        (RunError("no"), RunError, 1),
        (StoppedError("no", 143), StoppedError, 143),
    ],
)
def test_every_rank_raises_the_same(error: FidtoolError, kind: type[FidtoolError], status: int) -> None:
    found = Failure.from_error(error, 3).to_error()
    assert (type(found), str(found), found.exit_code, found.location) == (kind, "no", status, "")


def test_a_rank_that_prints_another_ranks_error_decides_how_its_settings_are_written() -> None:
    found = Failure.from_error(InputError("no", f"pass {option('num', 3)}"), 3).to_error()
    assert (str(found), rendered(found.text, as_flag)) == ("no; pass num=3", "no; pass --num 3")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_has_its_status(number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "received", [number])
    found = Failure.from_error(signals.stopped_error(), 0)
    assert (found.exit_code, str(found.to_error())) == (status, f"stopped by {number.name}")
