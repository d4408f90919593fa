"""Invalid input on several ranks: reported once, with the right exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bad_sets import SMALL, half, make_place
from support.command_line import Run
from support.places import TINY


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(environment, tmp_path)


def test_a_missed_gate_under_torchrun(fidtool: Run, place: Path) -> None:
    outcome = fidtool("compute", "real", "fake", *SMALL, "--json", "--fail-above", 0, "--quiet", ranks=2)
    assert outcome.status == 1  # torchrun's status, regardless of the ranks'
    assert outcome.json["exit"]["code"] == 3
    assert sum("gate missed" in line for line in outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize("ranks", [None, 2])
def test_an_unreadable_image_is_named_once_by_workers_and_ranks(fidtool: Run, place: Path, ranks: int | None) -> None:
    half(place / "fake" / "00011.png")
    arguments = ("--batch-size", 4, "--num-workers", 2, "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *SMALL, *arguments, ranks=ranks)
    assert outcome.status == (2 if ranks is None else 1)
    assert outcome.stderr.count("00011.png") == 1
    assert [line[:7] for line in outcome.stderr.splitlines() if "00011.png" in line] == ["error: "]
    assert outcome.json["exit"]["code"] == 2
    assert "fake/00011.png" in outcome.json["exit"]["reason"]


SLOW_END = f"""
import importlib.util, os, time
import torch.distributed
spec = importlib.util.spec_from_file_location("tiny", {TINY.rpartition(":")[0]!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
network, leave = tiny.network, torch.distributed.destroy_process_group
def slowly(*arguments):
    time.sleep(1.5 if os.environ["RANK"] == "0" else 0)
    leave(*arguments)
torch.distributed.destroy_process_group = slowly
"""


def test_the_cause_is_printed_even_if_rank_zero_exits_slowly(fidtool: Run, place: Path) -> None:
    """torchrun kills the other ranks as soon as one exits with an error: the cause must be printed before that."""
    half(place / "fake" / "00011.png")
    (place / "slow.py").write_text(SLOW_END)
    arguments = ("--extractor", "slow.py:network", "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.stderr.count("00011.png") == 1
    assert outcome.json["exit"]["code"] == 2
