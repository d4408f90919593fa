"""The metric in one process: torchmetrics' interface, errors, copies, checkpoints. See also test_training_ranks."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import FeatureExtractor, FrechetInceptionDistance
from fidtool.training.checks import image_hashes
from support.pictures import fill, pictures
from support.tiny_network import network


def test_floats_are_truncated_to_bytes_as_in_torchmetrics(metric: FrechetInceptionDistance) -> None:
    floats = FrechetInceptionDistance(network(), normalize=True)
    images = torch.rand(30, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    for real, part in ((True, images[:15]), (False, images[15:] / 2)):
        metric.update((part * 255).byte(), real=real)
        floats.update(part, real=real)
    assert floats.compute() == metric.compute()


def test_copies_and_pickles(metric: FrechetInceptionDistance) -> None:
    fill(metric)
    pickled = pickle.loads(pickle.dumps(metric))
    copied = copy.deepcopy(metric)
    value = metric.compute()
    assert copied.compute() == value
    assert pickled.compute() == value
    copied.update(pictures(5, 9), real=False)
    assert copied.compute() != value
    assert metric.compute() == value, "a copy has its own sums"


def test_the_metric_is_not_trained_or_saved_with_the_model(metric: FrechetInceptionDistance) -> None:
    module = torch.nn.Module()
    module.fid, module.features = metric, FeatureExtractor(network())
    assert list(module.parameters()) == []
    assert module.state_dict() == {}, "no network, and no sums before the first image"
    fill(metric)
    names = set(module.state_dict())
    assert names >= {"fid.real_low", "fid.fake_sum", "fid.share", "fid.fake_marks"}
    metric.persistent(False)
    assert module.state_dict() == {}


def test_checkpoint(metric: FrechetInceptionDistance) -> None:
    """The state is loaded from a file, strictly, as part of a model, and into a metric that has seen other images."""
    fill(metric)
    file = io.BytesIO()
    torch.save(torch.nn.ModuleDict({"fid": metric}).state_dict(), file)
    file.seek(0)
    other = FrechetInceptionDistance(network())
    fill(other, 7)
    torch.nn.ModuleDict({"fid": other}).load_state_dict(torch.load(file, weights_only=True))
    assert other.compute() == metric.compute()
    for each in (metric, other):
        each.update(pictures(9, 30), real=False)
    assert other.compute() == metric.compute()
    empty = torch.nn.ModuleDict({"fid": FrechetInceptionDistance(network())})
    empty.load_state_dict({})
    with pytest.raises(fidtool.InputError, match="not those of this metric"):
        other.load_state_dict({**metric.state_dict(), "real_low": torch.zeros(3, dtype=torch.int64)})


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


def test_real_statistics(metric: FrechetInceptionDistance, tmp_path: Path) -> None:
    with torch.no_grad():
        features = network().module((pictures(40, 1, 32).float() - 127.5) / 127.5).mean((2, 3)).double().numpy()
    real = fidtool.Statistics.of(features.mean(0), np.cov(features, rowvar=False), 40)
    fidtool.write_statistics(tmp_path / "real.npz", real)
    metric.update(pictures(40, 1, 32), real=True)
    metric.update(pictures(30, 2, 32) // 2, real=False)
    for given in (real, tmp_path / "real.npz", str(tmp_path / "real.npz")):
        fixed = FrechetInceptionDistance(network(), real_statistics=given)
        fixed.update(pictures(30, 2, 32) // 2, real=False)
        assert float(fixed.compute()) == pytest.approx(float(metric.compute()), rel=1e-6)
        with pytest.raises(fidtool.InputError, match=r"call update\(\) with generated images only"):
            fixed.update(pictures(3, 3), real=True)
        fixed.reset()
        assert not fixed.update_called
    with pytest.raises(fidtool.InputError, match=r"3 dimensions, but the metric's have 16"):
        FrechetInceptionDistance(network(), real_statistics=fidtool.Statistics.of(np.zeros(3), np.eye(3), 9))


def test_statistics_of_another_protocol_are_refused(metric: FrechetInceptionDistance) -> None:
    other = FrechetInceptionDistance(network(), protocol="tensorflow")._sums._features.definition
    statistics = fidtool.Statistics.of(np.zeros(16), np.eye(16), 99, other)
    with pytest.raises(fidtool.InputError, match=r"different protocols \(resize bilinear-tf1 against bilinear"):
        FrechetInceptionDistance(network(), real_statistics=statistics)


def test_marks_distinguish_images() -> None:
    images = pictures(50, 1)
    other = images.clone()
    other[:, 0, 0, 0] ^= 1
    marks = image_hashes(torch.cat([images, images, other]))
    assert torch.equal(marks[:50], marks[50:100])
    assert len(set(marks.tolist())) == 100
    assert image_hashes(images.transpose(2, 3).contiguous())[0] != marks[0]
    flat = torch.zeros(1, 3, 4, 8, dtype=torch.uint8)
    assert image_hashes(flat) != image_hashes(flat.view(1, 3, 8, 4)), "the same bytes with a different shape"
    assert len(image_hashes(images[:0])) == 0


def test_differentiable_features_equal_those_of_the_metric() -> None:
    """The same values, with a gradient, also under half precision and autocast."""
    for protocol in ("pytorch-fid", "tensorflow"):
        extractor = FeatureExtractor(network(), protocol=protocol)
        images = pictures(6, 1, 24)
        metric = FrechetInceptionDistance(network(), protocol=protocol)
        measured = metric._sums._features.extractor(torch.device("cpu")).features(list(images.permute(0, 2, 3, 1)))
        floats = (images.float() / 255).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = extractor.half()(floats)
        # Tolerance for float32 rounding: 255 * (x / 255), and a convolution with a different number of threads.
        torch.testing.assert_close(features, measured, rtol=1e-5, atol=1e-6)
        features.sum().backward()
        assert floats.grad is not None
        assert float(floats.grad.abs().sum()) > 0
    with pytest.raises(fidtool.InputError, match="floating-point tensor of shape"):
        extractor(images)
