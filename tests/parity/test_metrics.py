"""The metrics other than FID against functions of other tools, for the same features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.distances import neighbors
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.inception_score import inception_score
from fidtool.distances.kernel import kid
from support.exact_sets import lattice
from support.feature_sets import Features, context_alone, feature_set, gaussian_of, mixture, normal

PAIRS = {
    "normal": (normal(300, 20, 1), normal(260, 20, 2, shift=0.2)),
    "mixture": (mixture(310, 12, 1), mixture(290, 12, 2)),
    "narrower": (normal(200, 6, 3), normal(330, 6, 4, spread=0.6)),
    "lattice": (lattice(150, 4, 1, side=5), lattice(170, 4, 2, side=4)),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("k", [1, 5])
def test_prdc_matches_prdc(pair: str, k: int) -> None:
    prdc = pytest.importorskip("prdc", reason="the package prdc 0.2 is not installed")
    real, fake = PAIRS[pair]
    theirs = prdc.compute_prdc(real.astype(np.float64), fake.astype(np.float64), k)
    ours, _ = neighbors.prdc(real, fake, FeatureSettings(18), k=k)
    assert round(ours["precision"] * len(fake)) == round(theirs["precision"] * len(fake))
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-14), name
    assert 0 < ours["precision"] < 1 or pair == "narrower", (
        "the test needs counts other than none and all"
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_precision_recall_and_f_score_match_torch_fidelity(pair: str) -> None:
    peer = pytest.importorskip(
        "torch_fidelity.metric_prc", reason="torch-fidelity is not installed"
    )
    real, fake = PAIRS[pair]
    settings_ = {
        "prc_neighborhood": 3,
        "prc_batch_size": 97,
        "save_cpu_ram": False,
        "verbose": False,
    }
    theirs = peer.prc_features_to_metric(
        torch.from_numpy(fake).double(), torch.from_numpy(real).double(), **settings_
    )
    ours, _ = neighbors.prdc(real, fake, FeatureSettings(18), k=3, ties="inclusive")
    assert round(ours["precision"] * len(fake)) == round(theirs["precision"] * len(fake))
    assert round(ours["recall"] * len(real)) == round(theirs["recall"] * len(real))
    assert ours["f_score"] == pytest.approx(theirs["f_score"], rel=1e-6)


def test_the_f_score_of_nothing_matches_torch_fidelity() -> None:
    peer = pytest.importorskip(
        "torch_fidelity.metric_prc", reason="torch-fidelity is not installed"
    )
    real, fake = normal(30, 4, 1), normal(30, 4, 2, shift=99.0)
    theirs = peer.prc_features_to_metric(
        torch.from_numpy(fake), torch.from_numpy(real), verbose=False
    )
    assert theirs["f_score"] == neighbors.prdc(real, fake, FeatureSettings(18))[0]["f_score"] == 0.0


FEATURES = np.abs(normal(530, 256, 1, spread=0.5))

WEIGHT, BIAS = normal(100, 256, 2, spread=0.3), normal(1, 100, 3, spread=0.3)[0]


def logits(bias: bool) -> torch.Tensor:
    plain = FEATURES.astype(np.float64) @ WEIGHT.T.astype(np.float64)
    return torch.from_numpy(plain + BIAS.astype(np.float64) if bias else plain)


@pytest.mark.parametrize("splits", [1, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_inception_score_matches_torch_fidelity(splits: int, bias: bool) -> None:
    peer = pytest.importorskip(
        "torch_fidelity.metric_isc", reason="torch-fidelity is not installed"
    )
    theirs = peer.isc_features_to_metric(logits(bias), splits, shuffle=False)
    mean, std, *_ = inception_score(FEATURES, WEIGHT, BIAS if bias else None, splits=splits)
    assert mean == pytest.approx(theirs["inception_score_mean"], rel=1e-6)
    assert std == pytest.approx(theirs["inception_score_std"], rel=1e-6)
    assert 1.5 < mean < 90, "the value must not be at the ends of the range"


REAL, FAKE = (
    mixture(400, 64, 1) / np.float32(4),
    mixture(350, 64, 2) / np.float32(4) + np.float32(0.1),
)


KERNELS: dict[str, tuple[dict[str, Any], tuple[int, float | None, float] | float]] = {
    "cubic": ({}, (3, None, 1.0)),
    "of degree 2": (
        {"kid_kernel_poly_degree": 2, "kid_kernel_poly_gamma": 0.5, "kid_kernel_poly_coef0": 2.0},
        (2, 0.5, 2.0),
    ),
    "rbf": ({"kid_kernel": "rbf"}, 10.0),
    "narrow rbf": ({"kid_kernel": "rbf", "kid_kernel_rbf_sigma": 2.5}, 2.5),
    "wide rbf": ({"kid_kernel": "rbf", "kid_kernel_rbf_sigma": 300}, 300.0),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kid_matches_torch_fidelity_on_the_same_subsets(kernel: str) -> None:
    peer = pytest.importorskip(
        "torch_fidelity.metric_kid", reason="torch-fidelity is not installed"
    )
    theirs = peer.kid_features_to_metric(
        torch.from_numpy(FAKE).double(),
        torch.from_numpy(REAL).double(),
        kid_subsets=20,
        kid_subset_size=100,
        rng_seed=2020,
        verbose=False,
        **KERNELS[kernel][0],
    )
    rng = np.random.RandomState(2020)
    drawn = [[rng.choice(len(x), 100, replace=False) for x in (FAKE, REAL)] for _ in range(20)]
    draws = [(of_real, of_fake) for of_fake, of_real in drawn]
    mean, std = kid(REAL, FAKE, FeatureSettings(18), draws=draws, kernel=KERNELS[kernel][1])
    assert mean == pytest.approx(theirs["kernel_inception_distance_mean"], rel=1e-6)
    assert std == pytest.approx(theirs["kernel_inception_distance_std"], rel=1e-6)


def test_kid_matches_clean_fid_on_the_same_subsets() -> None:
    peer = pytest.importorskip("cleanfid.fid", reason="clean-fid is not installed")
    np.random.seed(7)
    theirs = peer.kernel_distance(
        FAKE.astype(np.float64), REAL.astype(np.float64), num_subsets=10, max_subset_size=120
    )
    rng = np.random.RandomState(7)
    draws = [tuple(rng.choice(len(x), 120, replace=False) for x in (REAL, FAKE)) for _ in range(10)]
    assert kid(REAL, FAKE, FeatureSettings(18), draws=draws)[0] == pytest.approx(theirs, rel=1e-6)


def test_kid_matches_torchmetrics_on_one_subset() -> None:
    peer = pytest.importorskip("torchmetrics.image.kid", reason="torchmetrics is not installed")
    theirs = peer.poly_mmd(torch.from_numpy(REAL[:350]).double(), torch.from_numpy(FAKE).double())
    mean, std = kid(REAL, FAKE, FeatureSettings(18), draws=[(np.arange(350), np.arange(350))])
    assert mean == pytest.approx(float(theirs), rel=1e-6)
    assert std == 0


def with_zeros(features: Features) -> Features:
    """Return features of which two add up to 0, one of them because it is 0."""
    features = features.copy()
    features[3] = 0
    features[5, 1:] = 0
    features[5, 1] = -features[5, 0]
    return features


NEAR = REAL[:350] * np.float32(1.1) + normal(350, 64, 5, spread=0.2)
"""Fakes near reals."""


@pytest.mark.parametrize(
    ("fake", "eps", "penalised"),
    [
        (FAKE, 0.01, False),
        (FAKE, 1.0, True),
        (NEAR, 0.1, True),
        (NEAR, 1e-3, False),
        (with_zeros(NEAR), 0.1, True),
    ],
)
def test_mifid_matches_torchmetrics(fake: Features, eps: float, penalised: bool) -> None:
    peer = pytest.importorskip("torchmetrics.image.mifid", reason="torchmetrics is not installed")
    real, sets = with_zeros(REAL), []
    for rows in (real, fake):
        gaussian = gaussian_of(rows)
        sets += [
            torch.from_numpy(each)
            for each in (gaussian.mu, gaussian.sigma, rows.astype(np.float64))
        ]
    theirs = float(peer._mifid_compute(*sets, cosine_distance_eps=eps))
    metric = fidtool.MIFID(cosine_distance_eps=eps)
    found = metric.compute(feature_set("real", real), feature_set("fake", fake), context_alone())
    assert found["mifid"] == pytest.approx(theirs, rel=1e-6)
    fid = fidtool.FID().compute(
        feature_set("real", real), feature_set("fake", fake), context_alone()
    )["fid"]
    assert (found["mifid"] > fid) == penalised
    assert found["mifid"] == pytest.approx(
        fid / found["mifid_distance"] if penalised else fid, rel=1e-9
    )
