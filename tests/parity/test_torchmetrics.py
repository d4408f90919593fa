"""The metric for training in torchmetrics' collections: its interface, and the location of its
warnings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fidtool
from fidtool import training
from fidtool.training import FrechetInceptionDistance
from support.pictures import pictures
from support.places import ROOT
from support.reconstructions import write_backbone
from support.tiny_network import network

pytest.importorskip("torchmetrics")
from torchmetrics import MeanMetric, Metric, MetricCollection


def test_interface_of_torchmetrics() -> None:
    metric = FrechetInceptionDistance(network())
    assert isinstance(metric, Metric)
    assert not metric.update_called
    both = MetricCollection(
        {"fid": metric, "kept": FrechetInceptionDistance(network(), reset_real_features=False)}
    )
    assert isinstance(both["fid"], FrechetInceptionDistance)
    both.update(pictures(20, 1), real=True)
    both(pictures(20, 2) // 2, real=False)
    assert metric.update_called
    assert metric.update_count == 2
    first = both.compute()
    assert first["fid"] == first["kept"]
    both.reset()
    both["kept"].update(pictures(20, 2) // 2, real=False)
    assert both["kept"].compute() == first["kept"]
    both["fid"].update(pictures(20, 2) // 2, real=False)
    with pytest.raises(fidtool.InputError, match="at least 2 real images, but there are 0"):
        both["fid"].compute()
    copied = MetricCollection(
        {"fid": FrechetInceptionDistance(network()), "loss": MeanMetric()}
    ).clone(prefix="val_")
    assert set(copied) == {"val_fid", "val_loss"}


class Plain(nn.Module):
    """Features of uint8 images as they are passed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 12)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        features: torch.Tensor = self.layer(images.float().flatten(1) / 255)
        return features


def test_values_of_a_plain_module_equal_those_of_torchmetrics() -> None:
    """Subsets of the whole sets and one split, because torchmetrics' are random."""
    from torchmetrics import image as theirs

    module, size = Plain(), {"input_img_size": (3, 8, 8)}
    kid: dict[str, Any] = {"subsets": 2, "subset_size": 30}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("FrechetInceptionDistance", size),
        ("KernelInceptionDistance", kid),
        ("KernelInceptionDistance", {**kid, "degree": 2, "gamma": 0.5, "coef": 2.0}),
        ("MemorizationInformedFrechetInceptionDistance", {}),
        ("MemorizationInformedFrechetInceptionDistance", {"cosine_distance_eps": 1.0}),
        ("InceptionScore", {"splits": 1}),
    ]
    real, fake = pictures(30, 1, side=8), pictures(30, 2, side=8) // 2
    for name, settings in cases:
        peer, metric = (
            getattr(theirs, name)(module, **settings),
            getattr(training, name)(module, **settings),
        )
        both = MetricCollection({"peer": peer, "ours": metric}, compute_groups=False)
        if name != "InceptionScore":
            both.update(imgs=real, real=True)
            both.update(imgs=fake, real=False)
        else:  # torchmetrics' includes real images
            both.update(fake)
        computed = both.compute()
        first = (
            value[0] if isinstance(value, tuple) else value
            for value in (computed["ours"], computed["peer"])
        )
        ours, wanted = (float(value) for value in first)
        assert ours == pytest.approx(wanted, rel=2e-4, abs=1e-6), name


def test_values_of_pairs_equal_those_of_torchmetrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PSNR is the mean of torchmetrics' values of single images."""
    from torchmetrics import image as theirs
    from torchmetrics.functional.image import peak_signal_noise_ratio
    from torchmetrics.image import lpip

    pytest.importorskip("lpips", reason="has the linear layers of LPIPS")
    target = pictures(4, 1, side=184)
    preds = (target.int() + torch.randint(-40, 41, target.shape)).clamp(0, 255).byte()
    weights = write_backbone(tmp_path / "alexnet.pth")
    # Downloads nothing.
    monkeypatch.setattr(lpip, "_NoTrainLpips", partial(lpip._NoTrainLpips, pnet_rand=True))
    lpips = theirs.LearnedPerceptualImagePatchSimilarity(normalize=True)
    tensors = torch.load(weights, weights_only=True)
    for name, parameter in lpips.net.net.named_parameters():
        parameter.data.copy_(tensors[f"features.{name.split('.', 1)[1]}"])
    peers = {
        "StructuralSimilarityIndexMeasure": theirs.StructuralSimilarityIndexMeasure(data_range=1.0),
        "MultiScaleStructuralSimilarityIndexMeasure": theirs.MultiScaleStructuralSimilarityIndexMeasure(
            data_range=1.0
        ),
        "LearnedPerceptualImagePatchSimilarity": lpips,
    }
    for name, peer in peers.items():
        settings = {"weights": weights} if name.startswith("Learned") else {"data_range": 1.0}
        ours = getattr(training, name)(**{"normalize": True, **settings})
        for part in (slice(0, 3), slice(3, 4)):
            peer.update(preds[part].float() / 255, target[part].float() / 255)
            ours.update(preds[part].float() / 255, target[part].float() / 255)
        # Which is in float32.
        assert float(ours.compute()) == pytest.approx(float(peer.compute()), rel=1e-5), name
        assert (ours.higher_is_better, ours.plot_upper_bound) == (
            peer.higher_is_better,
            peer.plot_upper_bound,
        )
    psnr = training.PeakSignalNoiseRatio(255)
    psnr.update(preds, target)
    single = [
        float(peak_signal_noise_ratio(*(image[None].double() for image in pair), data_range=255.0))
        for pair in zip(preds, target, strict=True)
    ]
    assert float(psnr.compute()) == pytest.approx(sum(single) / len(single), rel=1e-6)


def test_a_checkpoint_of_torchmetrics_is_loaded() -> None:
    """Strictly, with a warning; the metric has no images then."""
    from torchmetrics.image import FrechetInceptionDistance as Theirs

    old = nn.ModuleDict(
        {"fid": Theirs(Plain(), input_img_size=(3, 8, 8)), "layer": nn.Linear(2, 2)}
    )
    old["fid"].persistent(True)  # type: ignore[operator]
    state = old.state_dict()
    assert {"fid.inception.layer.weight", "fid.real_features_cov_sum"} <= set(state)
    model = nn.ModuleDict({"fid": FrechetInceptionDistance(network()), "layer": nn.Linear(2, 2)})
    with pytest.warns(
        fidtool.FidtoolWarning, match="checkpoint comes from a metric of torchmetrics"
    ):
        model.load_state_dict(state, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)  # said once
        model.load_state_dict(state, strict=True)
    assert torch.equal(model["layer"].weight, old["layer"].weight)  # type: ignore[arg-type]
    assert int(model["fid"].real_features_num_samples) == 0  # type: ignore[arg-type]


def test_a_collection_passes_images_to_all() -> None:
    """Keywords reach ``update``; the Inception Score gets the generated images only."""
    kinds = {"fid": FrechetInceptionDistance, "kid": training.KernelInceptionDistance}
    made = {name: kind(network()) for name, kind in kinds.items()}
    both = MetricCollection({**made, "is": training.InceptionScore(network(), splits=2)})
    both.update(imgs=pictures(8, 1), real=True)
    both.update(imgs=pictures(6, 2), real=False)
    assert [int(metric.fake_features_num_samples) for metric in both.values()] == [6, 6, 6]
    assert int(both["is"].real_features_num_samples) == 0


@pytest.mark.parametrize("kept", [True, False])
def test_numbers_of_images(kept: bool) -> None:
    """After each update and reset they are torchmetrics', of its type."""
    from torchmetrics.image import FrechetInceptionDistance as Theirs

    ours = FrechetInceptionDistance(Plain(), reset_real_features=not kept)
    theirs = Theirs(Plain(), reset_real_features=not kept, input_img_size=(3, 8, 8))
    for count, real in ((5, True), (7, False), (2, False), (None, False), (3, False)):
        for metric in (ours, theirs):
            if count is None:
                metric.reset()
            else:
                metric.update(pictures(count, 1, 8), real=real)
        for name in ("real_features_num_samples", "fake_features_num_samples"):
            own, other = getattr(ours, name), getattr(theirs, name)
            assert (own, own.dtype, own.shape, own.device) == (
                other,
                other.dtype,
                other.shape,
                other.device,
            )
    statistics = fidtool.Statistics.of(np.zeros(16), np.eye(16), 99)
    assert (
        FrechetInceptionDistance(network(), real_statistics=statistics).real_features_num_samples
        == 99
    )


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"antialias": True}, {"protocol": "torchmetrics", "float_to_byte": "floor"}),
        ({"antialias": False}, {"protocol": "tensorflow", "float_to_byte": "floor"}),
        ({"antialias": False, "float_to_byte": "round"}, {"protocol": "tensorflow"}),
        ({}, {"protocol": "pytorch-fid", "float_to_byte": "round"}),
    ],
)
def test_antialias_selects_protocol_and_rounding(
    settings: dict[str, Any], meant: dict[str, Any]
) -> None:
    metric, named = (FrechetInceptionDistance(64, **options) for options in (settings, meant))
    assert metric.reference_digest == named.reference_digest
    assert metric.float_to_byte == named.float_to_byte


TYPED = """
from functools import partial

import lightning.pytorch
import pytorch_lightning
import torch
import torchmetrics

from fidtool.training import (
    FIDCallback,
    FrechetInceptionDistance,
    InceptionScore,
    KernelInceptionDistance,
    LearnedPerceptualImagePatchSimilarity,
    MemorizationInformedFrechetInceptionDistance,
    PeakSignalNoiseRatio,
    PrecisionRecallDensityCoverage,
)

fid = FrechetInceptionDistance(antialias=True)
metric: torchmetrics.Metric = fid
metrics = torchmetrics.MetricCollection({"fid": fid, "kid": KernelInceptionDistance(subset_size=50)})
metrics = torchmetrics.MetricCollection([fid, InceptionScore()])
value: torch.Tensor = fid.compute()
value = MemorizationInformedFrechetInceptionDistance().compute()
pair: tuple[torch.Tensor, torch.Tensor] = KernelInceptionDistance().compute()
pair = InceptionScore().compute()
named: dict[str, torch.Tensor] = PrecisionRecallDensityCoverage().compute()
fid.update(imgs=torch.zeros(1, 3, 8, 8), real=True)
psnr = PeakSignalNoiseRatio(data_range=1.0)
metrics = torchmetrics.MetricCollection([psnr, LearnedPerceptualImagePatchSimilarity("vgg")])
value = psnr(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8))
psnr.update(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8), index=[0])


class Model(lightning.pytorch.LightningModule):
    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("fid", fid)


callback = FIDCallback("generate", "real/", metrics=[FrechetInceptionDistance, partial(KernelInceptionDistance)])
lightning.pytorch.Trainer(callbacks=[callback])
pytorch_lightning.Trainer(callbacks=[callback])
wrong: int = fid  # E
wrong = callback  # E
wrong = KernelInceptionDistance().compute()  # E
wrong = PrecisionRecallDensityCoverage().compute()  # E
"""


@pytest.mark.slow
def test_type_checkers_accept_the_metrics_and_the_callback(tmp_path: Path) -> None:
    for package in ("mypy", "lightning", "pytorch_lightning"):
        pytest.importorskip(package)
    (tmp_path / "typed.py").write_text(TYPED)
    options = [
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        "--cache-dir",
        tmp_path / "cache",
    ]
    command = [sys.executable, "-m", "mypy", *options, "typed.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    errors = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    wrong = [
        str(number) for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# E")
    ]
    assert errors == wrong, done.stdout
