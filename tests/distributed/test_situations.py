"""Problems that people reported of other tools, reproduced with those tools and solved with
fidtool.

The values and gradients equal those of one process, on ranks with unequal shares of which one has
nothing.
"""

from __future__ import annotations

import re

import pytest

from support.command_line import Run


def said(programs: Run, situation: str, ranks: int) -> list[str]:
    """What the ranks print, all the same."""
    run = programs(ranks, "situations.py", situation)
    assert run.status == 0, run.stderr
    lines = [re.findall(rf"^{rank} (.*)$", run.stdout, re.MULTILINE) for rank in range(ranks)]
    assert lines.count(lines[0]) == ranks, lines
    return lines[0]


@pytest.mark.slow  # waits until the process group ends torchmetrics' synchronisation
def test_torchmetrics_waits_for_absent_ranks(programs: Run) -> None:
    run = programs(2, "situations.py", "hang_elsewhere")
    assert run.status == 1
    assert re.search("imed out|closed by peer|reset by peer", run.stderr)


def test_no_rank_waits_for_absent_ones(programs: Run) -> None:
    two, three = (said(programs, "hang", ranks) for ranks in (2, 3))
    assert len(two) == 2
    assert two == three


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_metric_as_a_loss(programs: Run, ranks: int) -> None:
    theirs, ours = said(programs, "loss", ranks)
    assert theirs == f"torchmetrics: {1 / ranks:.3f} of the gradient"
    assert ours == "fidtool: 1.000 of the gradient"


@pytest.mark.parametrize("ranks", [2, 3])
def test_outputs_of_a_whole_validation_set(programs: Run, ranks: int) -> None:
    (line,) = said(programs, "validation", ranks)
    theirs, right = re.findall(r"[\d.]+", line)
    assert float(theirs) < 0.98 * float(right)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_a_seed(programs: Run, ranks: int) -> None:
    shared, own = said(programs, "seeds", ranks)
    assert shared.endswith("warnings 1")
    assert own.endswith("fidtool 0.0022, warnings 0")


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_of_a_loss(programs: Run, ranks: int) -> None:
    assert said(programs, "parameters", ranks) == ["parameters: those of one process"]
