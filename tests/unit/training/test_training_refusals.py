"""The metric's errors and warnings, in one process."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import FrechetInceptionDistance, InceptionScore, KernelInceptionDistance
from support.pictures import fill, pictures
from support.places import TINY
from support.tiny_network import large as large_network
from support.tiny_network import network


@pytest.mark.parametrize(
    ("images", "normalize", "text"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), True, "floats in 0..1, not torch.uint8"),
        (
            torch.full((2, 3, 8, 8), 255.0),
            True,
            r"in 255\.\.255: images / 255 rescales from 0\.\.255",
        ),
        (torch.full((2, 3, 8, 8), float("nan")), True, "some are NaN"),
        (torch.zeros(2, 3, 8, 8) - 0.5, True, r"in -0\.5\.\.-0\.5: .*\(images \+ 1\) / 2"),
        (torch.zeros(2, 3, 8, 8) + 1.5, True, r"images.clamp\(0, 1\)"),
        (
            torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
            False,
            r"put the channels first with images.permute\(0, 3, 1, 2\)",
        ),
        (
            torch.zeros(2, 5, 3, 8, 8, dtype=torch.uint8),
            False,
            r"pass images.reshape\(-1, \*images.shape\[2:\]\)$",
        ),
        (torch.zeros(9, 5, 8, 8, dtype=torch.uint8), False, r"for grayscale, not \(9, 5, 8, 8\)$"),
        (
            torch.zeros(2, 4, 8, 8, dtype=torch.uint8),
            False,
            r"or \(n, 1, height, width\) for grayscale, not",
        ),
        (np.zeros((2, 3, 8, 8), np.uint8), False, "must be a torch.Tensor, not ndarray"),
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="meta"),
            False,
            "are on meta, but the metric is on cpu",
        ),
    ],
)
def test_invalid_images(images: Any, normalize: bool, text: str) -> None:
    metric = FrechetInceptionDistance(network(), normalize=normalize)
    with pytest.raises(fidtool.InputError, match=text):
        metric.update(images, real=True)
    assert metric.real_features_num_samples == 0


OTHER_DIMS = fidtool.Statistics.of(np.zeros(3), np.eye(3), 9)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"feature": 100}, "64, 192, 768, 2048"),
        ({"feature": "100"}, "unknown network '100'"),
        ({"feature": [64]}, "a fidtool.Network or a torch.nn.Module, not list"),
        (
            {"feature": torch.nn.Flatten(), "input_img_size": (3, 4, 4), "protocol": "clean"},
            "a plain module, which gets",
        ),
        ({"normalize": "yes"}, "normalize must be True or False, not 'yes'"),
        ({"antialias": "x"}, "antialias must be True or False, not 'x'"),
        ({"feature": 64, "feature_step": 12}, "feature_step applies to a plain module"),
        (
            {"feature": 64, "antialias": False, "protocol": "torchmetrics"},
            "antialias=False selects the protocol",
        ),
        (
            {"feature": "inception", "antialias": True, "protocol": "clean"},
            "antialias=True selects the protocol",
        ),
        (
            {"feature": "inception", "weights": "none.pt"},
            r"no weights file none.pt \(from weights\)",
        ),
        (
            {"feature": 64, "weights": "a", "feature_extractor_weights_path": "b"},
            "are two names of the same argument: pass only one of them",
        ),
        (
            {"feature": TINY, "dist_sync_on_step": True},
            "dist_sync_on_step, .* cannot be used, because the metric synchronises",
        ),
        ({"feature": TINY, "dist_sync_fn": print}, "dist_sync_fn and .* cannot be used"),
        ({"feature": "none.py:network"}, "none.py"),
        ({"feature": 64, "weights": "none.pt"}, r"no weights file none.pt \(from weights\)"),
        (
            {"feature": 64, "feature_extractor_weights_path": "none.pt"},
            r"\(from feature_extractor_weights_path\)",
        ),
        ({"feature": TINY, "weights": "none.pt"}, "weights applies to Inception"),
        ({"feature": f"{TINY},inception"}, "names several networks: pass one of them"),
        ({"feature": "nothing@step=3"}, "unknown network 'nothing'"),
        (
            {"feature": f"{TINY}@size=8"},
            rf"feature='{TINY}@size=...' applies to exported programs only",
        ),
        (
            {"feature": "inception@weights=none.pt"},
            r"no weights file none.pt \(from feature='inception@weights=none.pt'\)",
        ),
        (
            {"feature": "dinov2@weights=none.pt"},
            r"no weights file none.pt \(from feature='dinov2@weights=...'\)",
        ),
        (
            {"feature": "torchvision:resnet18"},
            "feature='torchvision:resnet18' is not a network: write a file that",
        ),
        (
            {"feature": "inception@weights=a.pt", "weights": "b.pt"},
            "weights='b.pt' contradicts feature='inception@",
        ),
        (
            {"feature": "inception@protocol=clean", "antialias": True},
            "protocol='torchmetrics' contradicts feature=",
        ),
        (
            {"feature": "dinov2@protocol=clean"},
            "feature='dinov2@protocol=clean' cannot be combined with dinov2",
        ),
        (
            {"feature": TINY, "real_statistics": OTHER_DIMS},
            r"3 dimensions, but the features of this metric have 16",
        ),
        ({"feature": TINY, "batch_size": 0}, "batch_size must be at least 1, not 0"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], text: str, environment: object) -> None:
    with pytest.raises(fidtool.InputError, match=text) as error:
        FrechetInceptionDistance(**settings)
    assert "extractor=" not in str(error.value)
    assert error.value.setting != "extractor"


def test_an_unknown_keyword_is_named() -> None:
    for kind, keyword in (
        (FrechetInceptionDistance, "fooo"),
        (KernelInceptionDistance, "subset_siz"),
        (InceptionScore, "antialas"),
    ):
        with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{keyword}'"):
            kind(network(), **{keyword: 1})  # type: ignore[arg-type]


def test_a_step_is_advised_where_it_can_be_set() -> None:
    large = TINY.replace(":network", ":large")
    for feature, remedy in (
        (large, rf"pass feature='{large}@step=\d+'"),
        (large_network(), "where the network is"),
    ):
        metric = FrechetInceptionDistance(feature)
        with pytest.raises(
            fidtool.RunError, match=f"outside the range of the exact sums.*{remedy}"
        ):
            metric.update(pictures(300, 1), real=True)


def test_flags_are_bools_or_as_good_as_these(metric: FrechetInceptionDistance) -> None:
    for real in ("fake", 2, torch.tensor([True, False]), 1.0):
        for strict in (metric, InceptionScore(network())):
            with pytest.raises(fidtool.InputError, match="real must be True or False, not "):
                strict.update(pictures(2, 1), real=real)  # type: ignore[arg-type]
    for real in (True, 1, np.bool_(True), torch.tensor(True), np.array(1)):
        metric.update(pictures(2, 1), real=real)  # type: ignore[arg-type]
    assert metric.real_features_num_samples == 10
    assert FrechetInceptionDistance(network(), normalize=np.bool_(False)).normalize is False  # type: ignore[arg-type]


def test_a_feature_of_another_type() -> None:
    with pytest.raises(
        fidtool.InputError, match=r"a fidtool\.Network or a torch\.nn\.Module, not list"
    ):
        FrechetInceptionDistance([1, 2])  # type: ignore[arg-type]


def test_merging_and_checkpoints_of_other_metrics(metric: FrechetInceptionDistance) -> None:
    whole, other = FrechetInceptionDistance(network()), FrechetInceptionDistance(network())
    for filled in (metric, whole):
        fill(filled)
    for filled in (other, whole):
        fill(filled, 9)
    metric.merge_state(other)
    assert metric.compute() == whole.compute()
    assert metric.update_count == 4
    with pytest.raises(fidtool.InputError, match=r"takes a fidtool.*, not dict"):
        metric.merge_state({"real_sum": torch.zeros(16)})
    with pytest.raises(fidtool.InputError, match=r"takes a fidtool.*, not KernelInceptionDistance"):
        metric.merge_state(KernelInceptionDistance(network()))
    with pytest.raises(fidtool.InputError, match="this metric and the other metric differ"):
        metric.merge_state(FrechetInceptionDistance(network(), protocol="tensorflow"))
    with pytest.raises(
        fidtool.InputError, match=r"this metric and the other metric differ \(own: KID\(.*degree=3"
    ):
        KernelInceptionDistance(network()).merge_state(KernelInceptionDistance(network(), degree=2))
    with pytest.raises(RuntimeError, match="mean_squared_error"):
        metric.load_state_dict({"mean_squared_error": torch.zeros(16)})
    assert metric.compute() == whole.compute()


def test_a_warning_is_issued_once() -> None:
    metric = FrechetInceptionDistance(network())
    metric.update(pictures(5, 1), real=True)
    metric.update(pictures(5, 2), real=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
        metric.compute()
    texts = [
        str(warning.message) for warning in caught if warning.category is fidtool.FidtoolWarning
    ]
    assert len(texts) == 1
    assert "(only 5 images): too few for 16 dimensions: " in texts[0]


def test_a_launcher_without_a_process_group(
    metric: FrechetInceptionDistance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WORLD_SIZE is 4 but init_process_group was not called: each process would compute its own
    value.
    """
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    fill(metric)
    with pytest.warns(
        fidtool.FidtoolWarning,
        match="one process of 4 alone: call torch.distributed.init_process_group",
    ):
        metric.compute()
