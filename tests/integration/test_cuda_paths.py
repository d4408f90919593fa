"""Whole runs on a GPU, and the warning if a forward pass cannot be captured as a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fidtool
from fidtool.features.runner import Arithmetic, Runner
from fidtool.settings import PRECISIONS
from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return tuple(str(make_pictures(tmp_path / name, 9, seed)) for seed, name in enumerate(("real", "fake")))  # type: ignore[return-value]


def test_a_failed_graph_capture_is_reported(here: Run, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(nn.Identity(), torch.device("cuda"), Arithmetic(batch_size=4), standard=True)
    runner._graphed.failed = "not permitted when capturing"  # type: ignore[union-attr]
    monkeypatch.setattr(Runner, "unrecorded", runner.unrecorded)
    run = here("compute", *pair, "--extractor", TINY, "--json")
    assert run.status == 0
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("warning: rank 0 ")]
    assert "(not permitted when capturing)" in line
    assert "slower" in line


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_on_a_gpu(pair: tuple[str, str], precision: str) -> None:
    exact = fidtool.compute(*pair, device="cuda", cache=False)
    found = fidtool.compute(*pair, device="cuda", precision=precision, cache=False)
    again = fidtool.compute(*pair, device="cuda", precision=precision, num_workers=2, cache=False)
    assert found.fid == again.fid
    assert found.fid == pytest.approx(exact.fid, rel=0.05 if precision != "fp32" else 1e-12)
    assert (found.fid == exact.fid) is (precision == "fp32"), "reduced precision must change the value"
