"""Execution of networks: TF32 and dtypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fidtool.distributed.launch import Launch
from fidtool.features.device import deterministic_mode, make_device
from fidtool.features.extractor import Extractor
from fidtool.features.protocol import FEATURES
from fidtool.features.resize import Preparation
from support.inside import inception


def test_tf32_is_only_on_during_the_run() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with deterministic_mode(tf32=True):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
        assert cudnn.deterministic
        assert not matmul.allow_bf16_reduced_precision_reduction, (
            "half-precision sums are accumulated in 32 bits"
        )
        assert not matmul.allow_fp16_reduced_precision_reduction
        with deterministic_mode():
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


HALVES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Watching(nn.Module):
    """Records the dtypes of its input and its weight, and of autocast if it is enabled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[torch.dtype | None] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lowered = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        self.seen = [x.dtype, self.weight.dtype, lowered]
        return x.flatten(1)


@pytest.mark.parametrize("precision", HALVES)
def test_dtypes_of_each_precision(precision: str) -> None:
    """Inception is converted to the dtype; other networks run under autocast."""
    half = HALVES[precision]
    standard = replace(inception("tensorflow"), dims=48)
    cpu = make_device(torch.device("cpu"), Launch())
    seen = []
    for definition in (standard, replace(standard, extractor="another")):
        module = Watching()
        extractor = Extractor(
            module, {FEATURES: definition}, Preparation("bilinear"), (0.0,), (1.0,), cpu, precision
        )
        extractor.forward_layers([torch.ones(2, 3, 4, 4)])
        seen.append(module.seen)
    assert seen == [
        [half, half, None],
        [torch.float32, torch.float32, None if precision == "fp32" else half],
    ]
