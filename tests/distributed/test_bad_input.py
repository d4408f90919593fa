"""Invalid input on several ranks is reported once, even if the ranks do not end together."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bad_sets import half, make_place
from support.command_line import Run
from support.places import TINY


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_place(environment, tmp_path)


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
