"""Execution of networks: TF32, batches of one shape, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fidtool.features.runner import Arithmetic, Runner, _of_one_shape
from fidtool.features.torch_state import repeatable
from fidtool.torch_internals import compiler_settings, end_failed_capture

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


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("several", [False, True])
def test_padding_to_one_shape_loses_no_image(count: int, several: bool) -> None:
    seen = []

    def run(x: torch.Tensor) -> Any:
        seen.append(tuple(x.shape))
        assert x.is_contiguous(memory_format=torch.channels_last)
        sums = x.sum((2, 3))
        return (sums, 2 * sums) if several else sums

    x = torch.rand(count, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    found = _of_one_shape(run, 4)(x)
    assert set(seen) == {(4, 3, 5, 5)}
    parts = found if several else (found,)
    for factor, part in enumerate(parts, 1):
        assert torch.allclose(part, factor * x.sum((2, 3)))
    assert len(parts) == 1 + several


def test_features_can_be_converted_to_numpy() -> None:
    """NumPy has no bfloat16, so features are converted to float32 before they are stored."""
    runner = Runner(nn.Flatten(), CPU, Arithmetic("bf16"))
    assert np.isfinite(runner(torch.ones(2, 3, 4, 4)).float().numpy()).all()


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
    Runner(inception, CPU, Arithmetic(precision), standard=True)(torch.ones(2, 3, 4, 4))
    Runner(other, CPU, Arithmetic(precision))(torch.ones(2, 3, 4, 4))
    assert inception.seen == [half, half, None]
    assert other.seen == [torch.float32, torch.float32, None if precision == "fp32" else half]


def test_a_compiled_network_has_no_cuda_graphs_of_its_own() -> None:
    """They cannot be captured in a graph."""
    import torch._inductor.config as inductor

    with inductor.patch({"triton.cudagraphs": True}), compiler_settings(freezing=False):
        assert not inductor.triton.cudagraphs


@pytest.mark.parametrize("before_2_8", [False, True])
def test_the_pool_of_a_failed_capture_is_released_once(monkeypatch: pytest.MonkeyPatch, before_2_8: bool) -> None:
    capturing, released = {(0, 7)}, []

    def end(device: int, pool: tuple[int, int]) -> None:
        if pool not in capturing:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        capturing.remove(pool)

    for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool", "_cuda_releasePool"):
        monkeypatch.delattr(torch._C, name, raising=False)
    end_failed_capture(1, (0, 7))
    assert capturing, "this torch has no such function"
    name = "_cuda_endAllocateCurrentStreamToPool" if before_2_8 else "_cuda_endAllocateToPool"
    monkeypatch.setattr(torch._C, name, end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: released.append(pool), raising=False)
    for _ in range(2):
        end_failed_capture(1, (0, 7))
    assert (capturing, released) == (set(), [(0, 7)])
