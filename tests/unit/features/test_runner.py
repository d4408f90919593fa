"""Execution of networks: TF32 and dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fidtool.features.device import repeatable
from fidtool.features.extractor import placed

CPU = torch.device("cpu")


def test_tf32_is_only_on_during_the_run() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with repeatable(tf32=True):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
        assert cudnn.deterministic
        assert not matmul.allow_bf16_reduced_precision_reduction, "half-precision sums are accumulated in 32 bits"
        assert not matmul.allow_fp16_reduced_precision_reduction
        with repeatable():
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
    inception, other = Watching(), Watching()
    placed(inception, CPU, precision, standard=True)(torch.ones(2, 3, 4, 4))
    placed(other, CPU, precision)(torch.ones(2, 3, 4, 4))
    assert inception.seen == [half, half, None]
    assert other.seen == [torch.float32, torch.float32, None if precision == "fp32" else half]
