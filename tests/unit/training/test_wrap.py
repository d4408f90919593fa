"""Wrapping of losses with parameters, and checks of their optimizer; in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pytorch_metric_learning.losses import ArcFaceLoss, ContrastiveLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fidtool
from fidtool.training import assert_in_sync, assert_optimized, wrap_trainable


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group with only this process."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def test_losses_are_wrapped_if_they_have_parameters(process_group: None) -> None:
    arcface = ArcFaceLoss(num_classes=3, embedding_size=4)
    wrapped = wrap_trainable(arcface)
    assert isinstance(wrapped, DistributedDataParallel)
    assert wrapped.module is arcface
    assert wrap_trainable(wrapped) is wrapped
    embeddings = torch.randn(6, 4, requires_grad=True)
    wrapped(embeddings, torch.arange(6) % 3).backward()
    assert arcface.W.grad is not None
    with pytest.raises(fidtool.InputError, match="no optimizer trains W of ArcFaceLoss:"):
        assert_optimized(wrapped, torch.optim.SGD([embeddings], 0.1))
    for loss in (
        ContrastiveLoss(),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        arcface.requires_grad_(False),
    ):
        assert wrap_trainable(loss) is loss


def test_without_a_process_group_nothing_is_wrapped(
    environment: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = ArcFaceLoss(num_classes=3, embedding_size=4)
    assert wrap_trainable(loss) is loss
    assert_in_sync(loss)
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        fidtool.InputError, match=r"started 2 processes: call torch.distributed.init_process_group"
    ):
        wrap_trainable(loss)
    assert wrap_trainable(nn.CrossEntropyLoss()) is not None


def test_parameters_without_an_optimizer() -> None:
    model, loss = nn.Linear(4, 4), ArcFaceLoss(num_classes=3, embedding_size=4)
    both = torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1)
    assert_optimized(loss, both)
    assert_optimized(model, both)
    assert_optimized(
        loss, [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(loss.parameters(), 0.1)]
    )
    assert_optimized(ContrastiveLoss(), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(
        fidtool.InputError,
        match=r"no optimizer trains W of ArcFaceLoss: move .* pass loss.parameters",
    ):
        assert_optimized(loss, torch.optim.SGD(model.parameters(), 0.1))
    loss.requires_grad_(False)
    assert_optimized(loss, torch.optim.SGD(model.parameters(), 0.1))
