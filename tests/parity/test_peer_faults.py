"""What bites people today, with the peer that bites, and the same program with fidtool, under torchrun.

The peers' programs hang: all are started at once, and looked at again when that has been given time to end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from support.command_line import Outcome
from support.processes import wait_until
from support.training_programs import Programs, Running

HANG_SECONDS = 12.0
"""A peer that has not gone on so long after all its ranks had come to the fault will not."""


@pytest.fixture(scope="module")
def hanging(programs: Programs) -> Iterator[dict[str, Running]]:
    """The peers' programs, started beside each other."""
    started = {}
    for case in ("rank-zero", "unequal"):
        started[case] = programs.start(2, "plain_faults.py", "torchmetrics", case)
    for case in ("validation-end", "global-zero", "early-stopping"):
        started[case] = programs.start(2, "lightning_faults.py", "torchmetrics", case)
    yield started
    for running in started.values():
        running.kill()


def finished(run: Outcome, ranks: int = 2) -> Outcome:
    """The program came to its end on every rank."""
    assert run.status == 0, run.stderr
    assert len(re.findall(r"^done \d", run.stdout, re.MULTILINE)) == ranks, run.stdout
    return run


def values_of(run: Outcome) -> set[str]:
    """What the ranks of a Lightning program say at their end."""
    return {line.split(maxsplit=2)[2] for line in run.stdout.splitlines() if line.startswith("done")}


def test_compute_on_rank_zero_only(programs: Programs) -> None:
    """(a) An error that names who is missing and both remedies, after the time-out, and training goes on."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "rank-zero"))
    (refusal,) = re.findall(r"^refused 0 after (\S+) s: (.*)$", run.stdout, re.MULTILINE)
    assert float(refusal[0]) >= 3.0
    assert "timed out after 3 s waiting for rank 1 of 2" in refusal[1]
    assert "call it on every rank" in refusal[1]
    assert "sync_on_compute=False" in refusal[1]


def test_compute_on_rank_zero_with_the_remedy(programs: Programs) -> None:
    """(a) The same program with sync_on_compute=False: rank zero's own value, labelled so."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "local"))
    peer = finished(programs.run(2, "plain_faults.py", "torchmetrics", "local"))
    values = [float(line.split()[2]) for each in (run, peer) for line in each.stdout.splitlines() if "value" in line]
    assert values[0] == pytest.approx(values[1], abs=2e-6)
    assert "this FID covers rank 0 of 2 alone (20 generated images)" in run.stderr


def test_compute_in_on_validation_end(programs: Programs) -> None:
    """(b) Under @rank_zero_only: the error, and the same with FIDCallback's value on every rank."""
    run = finished(programs.run(2, "lightning_faults.py", "fidtool", "validation-end"))
    refusal = r"refused: FrechetInceptionDistance.compute\(\) .* timed out after 3 s waiting for rank 1"
    assert len(re.findall(refusal, run.stdout)) == 3
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "validation-end")))
    assert re.fullmatch(r"after 3 epochs with \d\.\d+", value)


def test_unequal_numbers_of_updates(programs: Programs) -> None:
    """(c) A rank without new images has nothing to compute anew, and the others wait for it: not here."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "unequal"))
    first, second = (
        {line.split()[2] for line in run.stdout.splitlines() if line.startswith(word)} for word in ("first", "second")
    )
    assert len(first) == len(second) == 1
    assert first != second


def test_logging_on_rank_zero_only(programs: Programs) -> None:
    """(d) FIDCallback logs on every rank, the same."""
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "global-zero")))
    assert value.startswith("after 3 epochs with 1.")


def test_early_stopping_on_what_only_rank_zero_knows(programs: Programs) -> None:
    """(e) With FIDCallback all ranks stop at the same epoch."""
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "early-stopping")))
    assert value.startswith("after 2 epochs with 1.")


@pytest.mark.parametrize("sizes", ["3,5", "3,5,0,2"])
def test_a_metric_as_a_loss(programs: Programs, sizes: str) -> None:
    """(f) torchmetrics loses what the other ranks' rows contribute to the gradient; dist_sync_fn keeps it."""
    ranks = len(sizes.split(","))
    for library, ratio in (("torchmetrics", 1 / ranks), ("fidtool", 1.0)):
        run = programs.run(ranks, "metric_loss.py", library, sizes)
        assert run.status == 0, run.stderr
        found = re.findall(r"^gradient \d ratio (\S+) error (\S+)$", run.stdout, re.MULTILINE)
        assert len(found) == ranks
        for seen, error in found:
            assert float(seen) == pytest.approx(ratio, abs=1e-5)
            assert (float(error) < 1e-6) == (library == "fidtool")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rank-zero", "unequal", "validation-end", "global-zero", "early-stopping"])
def test_the_peer_hangs(hanging: dict[str, Running], case: str) -> None:
    """(a)-(e) Long after its ranks came to the fault the peer's program is still there, and has not gone on."""
    running = hanging[case]
    wait_until(lambda: "at the fault 0" in running.stdout, "the program has not come to the fault")
    # The clock is the program's: the test may have come late to it.
    came = float(re.findall(r"at the fault 0, (\S+)", running.stdout)[-1])
    time.sleep(max(0.0, came + HANG_SECONDS - time.time()))
    assert running.status(0.0) is None, f"it ended: {running.outcome()}"
    assert "done" not in running.stdout
