"""Validation sets that the ranks do not divide: each sample counts once, whatever the sampler
repeats.
"""

from __future__ import annotations

import re

import pytest

from support.command_line import Run

COUNTS = (31, 37, 1)


def lines(programs: Run, loader: str, ranks: int) -> dict[str, set[str]]:
    """What the ranks print for each number of samples."""
    run = programs(ranks, "padded_samplers.py", loader, *COUNTS)
    assert run.status == 0, run.stderr
    found: dict[str, set[str]] = {}
    for _, what, said in re.findall(r"^(\d) (.*?): (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(what, set()).add(said)
    return found


@pytest.fixture(scope="module")
def alone(programs: Run) -> dict[str, set[str]]:
    return lines(programs, "plain", 1)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("loader", ["plain", "accelerate", "lightning"])
def test_counts_and_bits_of_one_process(
    programs: Run, alone: dict[str, set[str]], loader: str, ranks: int
) -> None:
    """Of FID, KID, Inception Score, mean loss and names; without an index, a warning names the
    sampler, then seeds.
    """
    found = lines(programs, loader, ranks)
    for count in COUNTS:
        (same,) = found[f"same {count}"]
        assert {same} == alone[f"same {count}"]
    assert "31+31 ()" in "".join(found["same 31"]), "no warnings"
    padded = {("plain", 2): 38, ("plain", 4): 40, ("accelerate", 2): 40, ("accelerate", 4): 48}
    (said,) = found["padded 37"]
    number = padded["plain" if loader == "lightning" else loader, ranks]
    assert said.startswith(f"{number}+{number} ")
    real, fake = re.findall(
        r"of \d+ (?:real|generated) images are on more than one rank .*?(?=\"|$)", said
    )
    assert "a sampler repeats samples" in real
    assert "seed" not in real
    assert 0 < fake.index("a sampler repeats samples") < fake.index("fidtool.sample_seed")
