"""The metric and the loss in one process: half precision, defaults of torch, networks in training,
caught errors.
"""

from __future__ import annotations

import contextlib
import io
import math
import threading
import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import fidtool
from fidtool.training import (
    FeatureExtractor,
    FrechetInceptionDistance,
    FrechetLoss,
    InceptionScore,
    KernelInceptionDistance,
    PeakSignalNoiseRatio,
    PrecisionRecallDensityCoverage,
    assert_in_sync,
    gather_with_grad,
    group,
)
from support.pictures import fill, pictures
from support.places import TINY
from support.tiny_network import network

HALVES = (torch.float16, torch.bfloat16, torch.float64)


class Failing(nn.Module):
    """Means and standard deviations as features; a chosen forward pass can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.how = -1, ""
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> Failing:
        return self  # so that the test can change it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.left -= 1
            fails = self.left == 0
        features = torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)
        if fails and self.how == "raise":
            raise RuntimeError("out of memory")
        return features * float("nan") if fails else features


def failing(after: int, how: str) -> tuple[FrechetInceptionDistance, float]:
    """A metric that has seen real images and will fail later; and the value it should have."""
    module = Failing()
    metric = FrechetInceptionDistance(fidtool.Network(module, input_size=8), batch_size=4)
    fill(metric)
    right = float(metric.compute())
    metric.reset()
    metric.persistent(True)
    metric.update(pictures(20, 1), real=True)
    metric.state_dict()  # flushes the waiting images
    module.left, module.how = after, how
    return metric, right


def test_a_refused_feature_is_an_error_until_reset() -> None:
    """The rest of its batch is lost too, so any value would be that of different images."""
    metric, right = failing(3, "NaN")
    with contextlib.suppress(fidtool.RunError):  # here, or when the batch is processed
        metric.update(pictures(20, 2) // 2, real=False)
    for call in (
        metric.compute,
        metric.state_dict,
        lambda: metric.update(pictures(128, 3), real=False),
    ):
        with pytest.raises(
            fidtool.RunError, match=r"NaN.*lack some generated images; call reset\(\) before"
        ):
            call()
    metric.reset()
    fill(metric)
    assert float(metric.compute()) == right


def test_images_may_be_passed_again_after_a_failed_pass() -> None:
    metric, right = failing(2, "raise")
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        metric.update(pictures(20, 2) // 2, real=False)
    assert type(raised.value) is RuntimeError, "the network's own exception"
    metric.update(pictures(20, 2) // 2, real=False)
    assert float(metric.compute()) == right
    assert metric.result is not None
    assert metric.result.fake == 20


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_images_are_converted_exactly(dtype: torch.dtype) -> None:
    """Diffusion pipelines return float16. Converted before the product, half of its levels would be
    one lower.
    """
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(30, 3, -1, -1)
    real = every.flip(3).contiguous()
    wanted, metric = (
        FrechetInceptionDistance(network()),
        FrechetInceptionDistance(network(), normalize=True),
    )
    for images, is_real in ((real, True), (every, False)):
        wanted.update(images, real=is_real)
        metric.update((images.float() / 255).to(dtype), real=is_real)
    assert metric.compute() == wanted.compute()


def test_lost_real_images_are_said_until_they_are_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = FrechetInceptionDistance(network(), reset_real_features=False)
    metric.persistent(True)
    fill(metric)
    with monkeypatch.context() as patched:
        patched.setattr("fidtool.training.synced_metric.group_rank_and_size", lambda _: (0, 2))
        state = metric.state_dict()
        patched.setattr("fidtool.training.synced_metric.group_rank_and_size", lambda _: (1, 2))
        with pytest.warns(
            fidtool.FidtoolWarning, match="rank 1 of 2 loaded the state of rank 0 of 2"
        ):
            metric.load_state_dict(state)
    for reset_real, lost in ((False, True), (True, False)):
        metric.reset_real_features = reset_real
        metric.reset()
        fill(metric)
        metric.compute()
        assert metric.result is not None
        texts = [warning.text for warning in metric.result.warnings]
        said = "real images from before the checkpoint are missing from the value"
        assert (said in texts) == lost


@pytest.fixture
def default_dtype() -> Iterator[torch.dtype]:
    """A default dtype as Lightning's ``bf16-true`` sets it while a model is created."""
    torch.set_default_dtype(torch.bfloat16)
    yield torch.bfloat16
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def inception_value(environment: object) -> float:
    metric = FrechetInceptionDistance(64)
    fill(metric)
    return float(metric.compute())


@pytest.fixture
def tiny_value(metric: FrechetInceptionDistance) -> float:
    fill(metric)
    return float(metric.compute())


def test_torchs_default_dtype_has_no_effect(
    inception_value: float, tiny_value: float, default_dtype: torch.dtype
) -> None:
    for feature, wanted in ((64, inception_value), (TINY, tiny_value)):
        metric = FrechetInceptionDistance(feature)
        fill(metric)
        assert float(metric.compute()) == wanted
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    features = FeatureExtractor(TINY)(images)
    assert features.dtype == torch.float32
    features.sum().backward()
    assert images.grad is not None
    statistics = fidtool.Statistics.of(
        torch.zeros(16).double().numpy(), torch.eye(16).double().numpy(), 99
    )
    assert FrechetLoss(statistics, queue=4).queue.dtype == torch.float32
    assert torch.get_default_dtype() == default_dtype


def test_torchs_default_device_has_no_effect(tiny_value: float) -> None:
    """The meta device stands in for a GPU: fidtool must not create its own tensors there."""
    metric = FrechetInceptionDistance(network())
    loss = FrechetLoss(
        fidtool.Statistics.of(torch.zeros(16).double().numpy(), torch.eye(16).double().numpy(), 99)
    )
    features = torch.randn(8, 16, requires_grad=True)
    kept = [pictures(20, 1), pictures(20, 2) // 2]
    torch.set_default_device("meta")
    try:
        for images, real in zip(kept, (True, False), strict=True):
            metric.update(images, real=real)
        assert float(metric.compute()) == tiny_value
        metric.persistent(True)
        assert {entry.device.type for entry in metric.state_dict().values()} == {"cpu"}
        loss(features).backward()
        made_there = FrechetInceptionDistance(64)
        with pytest.raises(fidtool.InputError, match=r"on the meta device: .*metric\.to_empty"):
            made_there.update(kept[0], real=True)
    finally:
        torch.set_default_device(None)
        # Torch 2.4 leaves a None, on which torch.get_default_device fails.
        if torch.__version__.startswith("2.4."):
            del torch._GLOBAL_DEVICE_CONTEXT.device_context
    made_there.to_empty(device="cpu")
    fill(made_there)
    assert float(made_there.compute()) > 0


def test_a_network_in_training_is_copied() -> None:
    """The metric uses a copy of the network, and the program's training does not affect it or vice
    versa.
    """
    module = nn.Sequential(nn.Conv2d(3, 8, 5, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU())
    nn.init.normal_(module[0].weight, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    given = fidtool.Network(module.train(), input_size=32, feature_step=14)
    metric, extractor = FrechetInceptionDistance(given), FeatureExtractor(given)
    images = torch.rand(4, 3, 32, 32, requires_grad=True)
    before = extractor(images)
    before.sum().backward()
    assert module.training
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in module.parameters()
    )
    fill(metric)
    value = metric.compute()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.0)
    assert torch.equal(extractor(images), before)
    metric.reset()
    fill(metric)
    assert metric.compute() == value
    assert float(module[1].running_mean.abs().sum()) == 0.0  # type: ignore[operator, union-attr]
    assert FrechetInceptionDistance(given).reference_digest != metric.reference_digest


def test_a_network_that_cannot_be_copied() -> None:
    module = nn.Conv2d(3, 4, 3)
    module.stream = io.TextIOWrapper(io.BytesIO())  # type: ignore[assignment]
    words = r"cannot copy Conv2d \(TypeError: .*TextIOWrapper.*\): pass 'FILE.py:NAME'"
    for given in (module, fidtool.Network(module, input_size=8)):
        with pytest.raises(fidtool.InputError, match=words):
            FrechetInceptionDistance(given)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("convert", "words"),
    [
        (
            lambda x: x * 2 - 1,
            r"^values must be in 0..1, but these are in -1..1: .* \(images \+ 1\) / 2 from -1..1",
        ),
        (lambda x: x * 255, r"in 0..255: images / 255 rescales"),
        (lambda x: (x - 0.45) / 0.225, r"in -2..2.44\d*: .* images \* std \+ mean undoes"),
        (lambda x: x * 1.1, r"in 0..1.1: .* images.clamp\(0, 1\) clips"),
        (lambda x: (x * 2 - 1).half(), r"in -1..1: "),
        (lambda x: x * float("nan"), r"some are NaN"),
    ],
)
def test_features_with_gradient_are_those_of_images_in_0_to_1(
    convert: Any, words: str, autocast: bool
) -> None:
    extractor = FeatureExtractor(network())
    images = torch.linspace(0, 1, 192).view(1, 3, 8, 8).requires_grad_()
    with torch.autocast("cpu", enabled=autocast):
        with pytest.raises(fidtool.InputError, match=words):
            extractor(convert(images))
        extractor(images).sum().backward()
        extractor(images[:0])  # a rank without images
    assert images.grad is not None
    assert images.grad.any()


def test_features_with_gradient_are_computed_in_float32() -> None:
    """If a program trains with TF32, the features do not use it, and the program's setting is
    unchanged.
    """
    seen = []

    class Noting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_float32_matmul_precision())
            return x.mean((2, 3))

    extractor = FeatureExtractor(fidtool.Network(Noting(), input_size=8))
    torch.set_float32_matmul_precision("high")
    try:
        extractor(torch.rand(2, 3, 8, 8))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}


@pytest.mark.parametrize("call", [gather_with_grad, lambda tensor: assert_in_sync(nn.Linear(2, 2))])
def test_collectives_of_a_program_that_forgot_its_process_group(
    call: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    group.warn_without_group.cache_clear()
    with pytest.warns(
        fidtool.FidtoolWarning,
        match="only one of 4 processes: call torch.distributed.init_process_group",
    ):
        call(torch.ones(2, 2))  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(torch.ones(2, 2))  # type: ignore[operator]


def of_lightnings_trainer(function: Any) -> Any:
    """The same function, as if it were in the module of Lightning's Trainer."""
    names = {**function.__globals__, "__name__": "lightning.pytorch.trainer.trainer"}
    return FunctionType(function.__code__, names, closure=function.__closure__)


def test_few_images_in_lightnings_sanity_check() -> None:
    """Its values are NaN, instead of an error that would end the program."""
    metrics = KernelInceptionDistance(network()), InceptionScore(network()), PeakSignalNoiseRatio()

    def _run_sanity_check() -> None:
        for metric in metrics:
            values = metric.compute()
            assert torch.tensor(values).isnan().all()
            assert metric.result is not None
            assert all(map(math.isnan, metric.result.values.values()))

    for metric in metrics[:2]:
        metric.update(pictures(5, 2), real=False)
    of_lightnings_trainer(_run_sanity_check)()
    for metric in metrics:
        with pytest.raises(fidtool.InputError, match=r"at least (1000|10|1) "):
            metric.compute()


def test_no_warnings_in_lightnings_sanity_check() -> None:
    metric = FrechetInceptionDistance(network())
    metric.update(pictures(5, 1), real=True)
    metric.update(pictures(5, 2), real=False)

    def _run_sanity_check() -> torch.Tensor:
        return metric.compute()

    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        of_lightnings_trainer(_run_sanity_check)()
    with pytest.warns(fidtool.FidtoolWarning, match="only 5 images"):
        _run_sanity_check()  # a program's own


def test_plots_are_those_of_torchmetrics() -> None:
    pytest.importorskip("matplotlib", reason="draws the plots").use("Agg")
    pytest.importorskip("torchmetrics", reason="its plots are compared")
    for metric in (
        FrechetInceptionDistance(network()),
        KernelInceptionDistance(network(), subset_size=10),
        PrecisionRecallDensityCoverage(network()),
    ):
        fill(metric)
        for given in ((), (metric.compute(),)):
            _, axes = metric.plot(*given)
            assert axes.lines


def test_real_images_that_a_reset_removed_are_explained(metric: FrechetInceptionDistance) -> None:
    fill(metric)
    metric.reset()
    metric.update(pictures(20, 2), real=False)
    with pytest.raises(
        fidtool.InputError, match=r"there are 0: add them .* unless reset_real_features=False"
    ):
        metric.compute()
    metric.update(pictures(20, 1), real=True)
    assert float(metric.compute()) > 0
