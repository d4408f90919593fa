"""timm's networks on two ranks: rank zero reads, both build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.command_line import Run
from support.published_networks import make_sets, randomised

timm = pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path)
    return tmp_path


def test_two_ranks_build_what_rank_zero_reads(fidtool: Run, place: Path) -> None:
    torch.manual_seed(0)
    torch.save(randomised(timm.create_model("test_vit", pretrained=False)).state_dict(), place / "vit.pth")
    arguments = ("--extractor", "timm:test_vit", "--weights", "vit.pth", "--quiet", "--json", "--no-cache")
    alone = fidtool("compute", "real", "fake", *arguments)
    together = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert (alone.status, together.status) == (0, 0), together.stderr
    assert together.fid == alone.fid
