"""Common faults of distributed training: programs that hang with torchmetrics, and the same with fidtool.

The torchmetrics programs are all started at once, and checked after they have had time to end.
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
"""A peer's program that has not ended this long after all ranks reached the fault counts as hanging."""


@pytest.fixture(scope="module")
def hanging(programs: Programs) -> Iterator[dict[str, Running]]:
    """The peers' programs, running at the same time."""
    started = {}
    for case in ("rank-zero", "unequal"):
        started[case] = programs.start(2, "plain_faults.py", "torchmetrics", case)
    for case in ("validation-end", "global-zero", "early-stopping"):
        started[case] = programs.start(2, "lightning_faults.py", "torchmetrics", case)
    yield started
    for running in started.values():
        running.kill()


def finished(run: Outcome, ranks: int = 2) -> Outcome:
    """Check that the program ended on every rank."""
    assert run.status == 0, run.stderr
    assert len(re.findall(r"^done \d", run.stdout, re.MULTILINE)) == ranks, run.stdout
    return run


def values_of(run: Outcome) -> set[str]:
    """Return what the ranks of a Lightning program print at their end."""
    return {line.split(maxsplit=2)[2] for line in run.stdout.splitlines() if line.startswith("done")}


def test_compute_on_rank_zero_only(programs: Programs) -> None:
    """(a) After the time-out an error names the missing rank and two remedies. Training continues."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "rank-zero"))
    (refusal,) = re.findall(r"^refused 0 after (\S+) s: (.*)$", run.stdout, re.MULTILINE)
    assert float(refusal[0]) >= 3.0
    assert "timed out after 3 s waiting for rank 1 of 2" in refusal[1]
    assert "call it on every rank" in refusal[1]
    assert "sync_on_compute=False" in refusal[1]


def test_compute_on_rank_zero_with_the_remedy(programs: Programs) -> None:
    """(a) With sync_on_compute=False, the program gets rank zero's own value, with a warning."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "local"))
    peer = finished(programs.run(2, "plain_faults.py", "torchmetrics", "local"))
    values = [float(line.split()[2]) for each in (run, peer) for line in each.stdout.splitlines() if "value" in line]
    assert values[0] == pytest.approx(values[1], abs=2e-6)
    assert "this FID covers rank 0 of 2 alone (20 generated images)" in run.stderr


def test_compute_in_on_validation_end(programs: Programs) -> None:
    """(b) Under @rank_zero_only there is an error; FIDCallback gives the same value on every rank."""
    run = finished(programs.run(2, "lightning_faults.py", "fidtool", "validation-end"))
    refusal = r"refused: FrechetInceptionDistance.compute\(\) .* timed out after 3 s waiting for rank 1"
    assert len(re.findall(refusal, run.stdout)) == 3
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "validation-end")))
    assert re.fullmatch(r"after 3 epochs with \d\.\d+", value)


def test_unequal_numbers_of_updates(programs: Programs) -> None:
    """(c) With torchmetrics, a rank without new images does not compute again, and the others wait for it."""
    run = finished(programs.run(2, "plain_faults.py", "fidtool", "unequal"))
    first, second = (
        {line.split()[2] for line in run.stdout.splitlines() if line.startswith(word)} for word in ("first", "second")
    )
    assert len(first) == len(second) == 1
    assert first != second


def test_logging_on_rank_zero_only(programs: Programs) -> None:
    """(d) FIDCallback logs the same value on every rank."""
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "global-zero")))
    assert value.startswith("after 3 epochs with 1.")


def test_early_stopping_on_a_value_of_rank_zero(programs: Programs) -> None:
    """(e) With FIDCallback all ranks stop at the same epoch."""
    (value,) = values_of(finished(programs.run(2, "lightning_faults.py", "callback", "early-stopping")))
    assert value.startswith("after 2 epochs with 1.")


@pytest.mark.parametrize("sizes", ["3,5", "3,5,0,2"])
def test_a_metric_as_a_loss(programs: Programs, sizes: str) -> None:
    """(f) torchmetrics loses the gradients from other ranks' losses; dist_sync_fn preserves them."""
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
    """(a)-(e) Long after its ranks reached the fault, the peer's program is still running and has not continued."""
    running = hanging[case]
    wait_until(lambda: "at the fault 0" in running.stdout, "the program has not reached the fault")
    # The time is the program's own, because the test may have noticed the fault late.
    came = float(re.findall(r"at the fault 0, (\S+)", running.stdout)[-1])
    time.sleep(max(0.0, came + HANG_SECONDS - time.time()))
    assert running.status(0.0) is None, f"the program ended: {running.outcome()}"
    assert "done" not in running.stdout
