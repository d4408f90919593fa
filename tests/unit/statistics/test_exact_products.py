"""Products of integers are exact on every device: checked before a run, and reported if they are
not.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from fidtool.errors import RunError
from fidtool.features.protocol import Definition
from fidtool.run.context import open_run
from fidtool.run.sets import name_sets
from fidtool.settings.settings import Settings
from fidtool.statistics.moments import ExactMoments, check_exact_products
from fidtool.system.console import Console
from fidtool.training.sums import ImageSums

DEFINITION = Definition("made up", "", 4, 18, 8, "", "bilinear", "pillow", 1)


@pytest.mark.parametrize("wrong", [0, 1], ids=["Gram matrix", "inner products"])
def test_one_wrong_product_is_reported(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    product, made = torch.Tensor.__matmul__, []

    def perturbed(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = product(one, other)
        if result.is_floating_point():
            made.append(1)
            result[5, 7] += len(made) == wrong + 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", perturbed)
    with pytest.raises(
        RunError, match=r"not exact.*unset CUBLAS_EMULATE_DOUBLE_PRECISION.*device='cpu'"
    ):
        check_exact_products(torch.device("cpu"))


@pytest.mark.parametrize("name", ["addmm", "bmm"])
def test_each_kind_of_product_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product = getattr(torch, name)

    def perturbed(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = product(*args, **kwargs)
        result.view(-1)[7] += 1
        return result

    monkeypatch.setattr(torch, name, perturbed)
    with pytest.raises(RunError, match="not exact"):
        check_exact_products(torch.device("cpu"))


@pytest.mark.skipif(
    torch.__version__ < "2.5", reason="fake tensors of torch 2.4 need a driver of CUDA"
)
def test_products_on_an_accelerator_are_as_large_as_those_of_a_run() -> None:
    """cuBLAS emulates only large ones."""

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(
            self, call: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if call is torch.ops.aten.mm.default and args[0].dtype == torch.float64:
                shapes.append((*args[0].shape, args[1].shape[1]))
            return call(*args, **kwargs or {})

    shapes: list[tuple[int, ...]] = []
    with FakeTensorMode(), Shapes(), pytest.raises(DataDependentOutputException):
        check_exact_products(torch.device("cuda"))
    assert shapes == [(2048, 128, 2048), (2048, 2048, 2048)]


def test_runs_and_metrics_check_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: torch.device) -> None:
        raise RunError(f"no exact products on {device}")

    monkeypatch.setattr("fidtool.run.context.check_exact_products", refused)
    with (
        pytest.raises(RunError, match="products on cpu"),
        open_run(name_sets(("a", ""), ("b", "")), Settings(), Console()),
    ):
        raise AssertionError("the run must not start")
    monkeypatch.setattr("fidtool.training.sums.check_exact_products", refused)
    sums = ImageSums(SimpleNamespace(definition=DEFINITION), "real", None)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="products on cuda:0"):
        sums.to(torch.device("cuda:0"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_same_bits_as_the_cpu() -> None:
    cuda = torch.device("cuda")
    check_exact_products(cuda)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(700, 64, generator=generator)
    here, there = ExactMoments(64, 18), ExactMoments(64, 18, cuda)
    for batch in features.split(50):
        here.add(batch)
        there.add(batch.to(cuda))
    ours, theirs = (
        {name: each.tolist() for name, each in sums.totals().items()} for sums in (here, there)
    )
    assert ours == theirs
