"""The metric in one process: torchmetrics' interface, errors, copies, checkpoints. See also
test_training_ranks.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import (
    FeatureExtractor,
    FrechetInceptionDistance,
    FrechetLoss,
    KernelInceptionDistance,
    PeakSignalNoiseRatio,
)
from fidtool.training.feature_extractor import shared_extractor
from fidtool.training.inception_metrics import ImageMetric
from support.pictures import fill, pictures
from support.tiny_network import network

REAL = pictures(20, 90)


def test_the_metric_is_not_trained_or_saved_with_the_model(
    metric: FrechetInceptionDistance,
) -> None:
    module = torch.nn.Module()
    module.fid, module.features = metric, FeatureExtractor(network())
    assert list(module.parameters()) == []
    metric.persistent(True)
    assert module.state_dict() == {}, "no network, and no sums before the first image"
    fill(metric)
    names = set(module.state_dict())
    assert names >= {"fid.real_low", "fid.fake_sum", "fid.header", "fid.fake_hash"}
    metric.persistent(False)
    assert module.state_dict() == {}


def test_checkpoint(metric: FrechetInceptionDistance) -> None:
    """The state is loaded from a file, strictly, as part of a model, and into a metric that has
    seen other images.
    """
    metric.persistent(True)
    fill(metric)
    file = io.BytesIO()
    torch.save(torch.nn.ModuleDict({"fid": metric}).state_dict(), file)
    file.seek(0)
    other = FrechetInceptionDistance(network())
    fill(other, 7)
    torch.nn.ModuleDict({"fid": other}).load_state_dict(torch.load(file, weights_only=True))
    assert other.compute() == metric.compute()
    for either in (metric, other):
        either.update(pictures(9, 30), real=False)
    assert other.compute() == metric.compute()
    empty = torch.nn.ModuleDict({"fid": FrechetInceptionDistance(network())})
    empty.load_state_dict({})
    with pytest.raises(fidtool.InputError, match="do not belong to this metric"):
        other.load_state_dict(
            {**metric.state_dict(), "real_low": torch.zeros(3, dtype=torch.int64)}
        )


@pytest.mark.parametrize(
    "make", [FrechetInceptionDistance, partial(KernelInceptionDistance, subset_size=9)]
)
def test_images_of_a_checkpoint_that_are_added_again(make: Callable[..., ImageMetric[Any]]) -> None:
    """As by a program without persistent sums; but neither new images nor a few duplicates are a
    warning.
    """
    saved = make(network(), reset_real_features=False)
    saved.persistent(True)
    saved.update(pictures(20, 1), real=True)
    state = saved.state_dict()

    def resumed(state: dict[str, Any], again: int) -> ImageMetric[Any]:
        metric = make(network(), reset_real_features=False)
        metric.load_state_dict(state)
        metric.update(torch.cat([pictures(20, 1)[:again], pictures(20 - again, 3)]), real=True)
        metric.update(pictures(40, 2), real=False)
        return metric

    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        for metric in (resumed(state, 0), resumed(state, 5)):
            metric.compute()
        few = make(network())
        few.persistent(True)
        few.update(torch.cat([pictures(3, 5)] * 7), real=False)  # of a collapsed generator
        few.load_state_dict(few.state_dict())
        few.update(torch.cat([pictures(3, 5)] * 7), real=False)
        few.update(pictures(20, 1), real=True)
        few.compute()
    metric = resumed(state, 12)
    metric.persistent(True)
    copied = make(network(), reset_real_features=False)
    copied.load_state_dict(metric.state_dict())
    text = r"^12 real images that were added .* count twice: call reset\(\) of a metric made with .* persistent"
    with pytest.warns(fidtool.FidtoolWarning, match=text):
        metric.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        metric.compute()
        copied.compute()  # it is not known of which of its images
        copied.update(pictures(9, 5), real=False)
        copied.compute()


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, PeakSignalNoiseRatio])
def test_a_state_that_was_saved_after_its_evaluation(kind: Any) -> None:
    """It is not part of the next evaluation, unless the program says so. One saved within an
    evaluation is.
    """

    def added(metric: Any, seed: int) -> Any:
        metric.update(
            pictures(20, seed),
            **({"real": False} if kind is FrechetInceptionDistance else {"target": REAL}),
        )
        return metric

    def loaded(state: dict[str, Any]) -> Any:
        metric = new()
        metric.load_state_dict(state)
        metric.persistent(True)
        return metric

    def new() -> Any:
        arguments = (network(), False) if kind is FrechetInceptionDistance else ()
        metric = kind(*arguments)
        if kind is FrechetInceptionDistance:
            metric.update(REAL, real=True)
        return metric

    first = added(new(), 1)
    first.compute()
    assert first.state_dict() == {}, "as torchmetrics'"
    first.persistent(True)
    evaluated = first.state_dict()
    within = added(first, 2).state_dict()
    first.compute()
    later = loaded(within)
    assert added(added(later, 3), 4).compute() == added(added(first, 3), 4).compute()
    assert later.result.warnings == first.result.warnings == ()
    saved_again = loaded(evaluated).state_dict()
    for state in (evaluated, saved_again):
        later = loaded(state)
        with pytest.warns(
            fidtool.FidtoolWarning,
            match="also covers 20 .* which had been evaluated .*: call reset",
        ):
            added(later, 2)
        later.compute()
        assert "call reset() after loading it" in later.result.warnings[0].text
    merged = new()
    merged.reset()
    merged.merge_state(loaded(evaluated))
    with pytest.warns(fidtool.FidtoolWarning, match="also covers 20 .* which had been evaluated"):
        added(merged, 2)
    later.reset()
    added(added(later, 2), 3).compute()
    assert later.result.warnings == (), "the remedy"
    later.reset()
    within = added(later, 4).state_dict()
    later = loaded(within)
    added(later, 2).compute()
    assert later.result.warnings == (), "an earlier evaluation was of other images"


def test_precision_of_the_enclosing_model(metric: FrechetInceptionDistance) -> None:
    """half(), double(), bfloat16() and autocast do not change the value."""
    fill(metric)
    value = metric.compute()
    for change in ("half", "double", "bfloat16"):
        other = FrechetInceptionDistance(network())
        getattr(torch.nn.ModuleList([other]), change)()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fill(other)
        assert other.compute() == value


@pytest.mark.parametrize("kind", [FeatureExtractor, FrechetInceptionDistance, FrechetLoss])
@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.half(),
        lambda module: module.double(),
        lambda module: module.type(torch.float64),
        lambda module: module.to(torch.float16),
        lambda module: module.to("cpu", torch.float64),
        lambda module: torch.nn.ModuleList([module]).bfloat16(),
    ],
)
def test_a_dtype_that_has_no_effect_is_said(
    kind: Any, change: Callable[[torch.nn.Module], object]
) -> None:
    real = fidtool.Statistics.of(np.zeros(3), np.eye(3), 9)
    module = kind(real if kind is FrechetLoss else network())
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        module.to("cpu").float()
    with pytest.warns(
        fidtool.FidtoolWarning, match=f"no effect on {kind.__name__}: its precision is fixed"
    ):
        change(module)


def test_differentiable_features_equal_those_of_the_metric() -> None:
    """The same values, with a gradient, also under half precision and autocast."""
    for protocol in ("pytorch-fid", "tensorflow"):
        extractor = FeatureExtractor(network(), protocol=protocol)
        images = pictures(6, 1, 24)
        shared = shared_extractor(network(), None, protocol, None, None)
        measured = shared.extractor(torch.device("cpu")).extract(list(images.permute(0, 2, 3, 1)))
        floats = (images.float() / 255).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = extractor.half()(floats)
        # Tolerance for float32 rounding: 255 * (x / 255), and a convolution with a different number
        # of threads.
        torch.testing.assert_close(features, measured, rtol=1e-5, atol=1e-6)
        features.sum().backward()
        assert floats.grad is not None
        assert float(floats.grad.abs().sum()) > 0
    with pytest.raises(fidtool.InputError, match="floating-point tensor of shape"):
        extractor(images)
