"""torchvision's networks on two ranks: rank zero reads, both build."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from support.command_line import Run
from support.published_networks import make_place, make_resnet


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return make_resnet()


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path, resnet: nn.Module) -> Path:
    return make_place(environment, tmp_path, resnet)


def test_two_ranks_build_what_rank_zero_reads(fidtool: Run, place: Path) -> None:
    arguments = ("--extractor", "torchvision:resnet18", "--weights", "resnet18.pth", "--quiet", "--json")
    alone = fidtool("compute", "real", "fake", *arguments)
    together = fidtool("compute", "real", "fake", *arguments, "--no-cache", ranks=2)
    assert (alone.status, together.status) == (0, 0), together.stderr
    assert together.fid == alone.fid
    assert together.json["protocol"] == alone.json["protocol"]
