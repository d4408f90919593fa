"""KID, MIFID, Inception Score, precision and recall as metrics in one process. See also
test_training_ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import (
    FrechetInceptionDistance,
    InceptionScore,
    KernelInceptionDistance,
    MemorizationInformedFrechetInceptionDistance,
    PrecisionRecallDensityCoverage,
)
from fidtool.training.feature_extractor import Feature, SharedExtractor, shared_extractor
from fidtool.training.inception_metrics import ImageMetric
from fidtool.training.inputs import image_hashes
from support.pictures import fill, pictures
from support.tiny_network import network


def several(**settings: Any) -> list[ImageMetric[Any]]:
    """Return one metric of each class, with the small network."""
    return [
        FrechetInceptionDistance(network(), **settings),
        KernelInceptionDistance(network(), subsets=5, subset_size=10, **settings),
        MemorizationInformedFrechetInceptionDistance(network(), **settings),
        PrecisionRecallDensityCoverage(network(), nearest_k=3, **settings),
        InceptionScore(network(), splits=3),
    ]


def values(metric: ImageMetric[Any]) -> dict[str, float]:
    metric.compute()
    assert metric.result is not None
    return dict(metric.result.values)


def test_values_equal_those_of_a_run(tmp_path: Path, environment: object) -> None:
    """KID's subsets are random, and so depend on the order of the images; here each is the whole
    set.
    """
    real, fake = pictures(20, 1), pictures(20, 2) // 2
    arrays = [images.permute(0, 2, 3, 1).numpy() for images in (real, fake)]
    feature = f"{Path(__file__).parents[2] / 'support' / 'tiny_network.py'}:network"
    metrics = [fidtool.KID(subset_size=20), fidtool.PRDC(nearest_k=3)]
    run = fidtool.compute(*arrays, metrics=metrics, extractor=feature, cache=False)
    kid, prdc = (
        KernelInceptionDistance(feature, subset_size=20),
        PrecisionRecallDensityCoverage(feature, nearest_k=3),
    )
    for metric in (kid, prdc):
        fill(metric)
    metrics_of_run = run.results[0].metrics
    of_kid = values(kid)
    name = next(iter(of_kid))
    assert metrics_of_run == {name: pytest.approx(of_kid[name], rel=1e-12), **values(prdc)}, (
        "the same names"
    )
    mean, std = kid.compute()
    assert (float(mean), float(std)) == (of_kid[name], 0.0)
    assert set(prdc.compute()) == {"precision", "recall", "density", "coverage", "f_score"}


def test_states_copies_and_merges() -> None:
    for metric in several():
        metric.persistent(True)
        fill(metric)
        value = values(metric)
        copied = metric.clone()
        assert values(pickle.loads(pickle.dumps(metric))) == values(copied) == value
        fill(copied, 9)
        assert copied.fake_features_num_samples == 2 * metric.fake_features_num_samples
        assert values(metric) == value, "a copy has its own sums"
        other, whole = several(), several()
        for left, right in zip(other, whole, strict=True):
            if type(left) is type(metric):
                left.load_state_dict(metric.state_dict())
                assert values(left) == value
                fill(right, 7)
                left.merge_state(right)
                fill(metric, 7)
                assert values(left) == values(metric)
        metric.reset()
        assert metric.state_dict() == {}


def test_the_order_of_the_images_does_not_matter() -> None:
    real, fake = pictures(20, 1), pictures(20, 2) // 2
    for metric in several():
        fill(metric)
        value = values(metric)
        metric.reset()
        for start in range(0, 20, 3):
            metric.update(fake.flip(0)[start : start + 3], real=False)
            metric.update(real.flip(0)[start : start + 3], real=True)
        assert values(metric) == value


def shared_network(feature: Feature) -> SharedExtractor:
    """The network that metrics of this feature share."""
    return shared_extractor(feature, None, None, None, None)


def test_one_network_and_one_pass_for_all() -> None:
    passed = []

    class Counting(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            passed.append(len(x))
            features: torch.Tensor = self.module(x)
            return features

    counting = Counting(network().module)
    shared = fidtool.Network(counting, input_size=32)
    metrics = [
        FrechetInceptionDistance(shared, batch_size=8),
        KernelInceptionDistance(shared, subset_size=10, batch_size=8),
        PrecisionRecallDensityCoverage(shared, batch_size=8),
    ]
    passed.clear()
    for images, real in ((pictures(20, 1), True), (pictures(20, 2), False)):
        for metric in metrics:
            metric.update(images, real=real)
    together = [values(metric) for metric in metrics]
    assert sum(passed) == 48, "20 and 20 images, in batches of 8"
    alone = FrechetInceptionDistance(network(), batch_size=8)
    alone.update(pictures(20, 1), real=True)
    alone.update(pictures(20, 2), real=False)
    assert [*values(alone).values()] == [*together[0].values()]
    before = shared_network(shared)
    with torch.no_grad():
        counting.module.convolution.weight.mul_(2.0)  # type: ignore[operator, union-attr]
    assert shared_network(shared) is not before, "it was trained in between"


def test_real_statistics_with_features(tmp_path: Path) -> None:
    rows = np.random.RandomState(0).rand(30, 16).astype(np.float32)
    mu, sigma = rows.mean(0).astype(np.float64), np.cov(rows.astype(np.float64), rowvar=False)
    with_features = fidtool.Statistics.of(mu, sigma, 30, features=rows)
    for metric in several(real_statistics=with_features)[1:4]:
        metric.update(pictures(20, 2), real=False)
        assert values(metric)
        assert metric.result is not None
        assert (metric.result.real, metric.result.fake) == (30, 20)
    for kind in (KernelInceptionDistance, PrecisionRecallDensityCoverage):
        with pytest.raises(
            fidtool.InputError, match=r"no per-image features.*stats REAL --metrics fid,kid"
        ):
            kind(network(), real_statistics=fidtool.Statistics.of(mu, sigma, 30))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: KernelInceptionDistance(network(), subsets=0), "subsets.* must be at least 1"),
        (lambda: KernelInceptionDistance(network(), subset_size=-1), "must be at least 2"),
        (lambda: KernelInceptionDistance(network(), degree=0), "degree"),
        (lambda: KernelInceptionDistance(network(), gamma=-1), "gamma"),
        (lambda: KernelInceptionDistance(network(), coef=0.0), "coef"),
        (lambda: KernelInceptionDistance("logits_unbiased"), "logits_unbiased"),
        (
            lambda: MemorizationInformedFrechetInceptionDistance(
                network(), cosine_distance_eps=1.1
            ),
            "from 1e-09 to 1, not 1.1",
        ),
        (lambda: InceptionScore(network(), splits=0), "splits"),
        (lambda: PrecisionRecallDensityCoverage(network(), ties="both"), "strict"),
        (
            lambda: FrechetInceptionDistance("2048"),
            "feature='2048' is a string, .*: pass feature=2048 for a layer",
        ),
        (
            lambda: FrechetInceptionDistance(None),
            "or 2048, the name of a network, such as 'dinov2' .* not NoneType",
        ),
    ],
)
def test_refused_settings(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_too_few_images() -> None:
    texts = [
        "FID needs at least 2 real images, but there are 1: add them .* unless "
        "reset_real_features=False",
        "KID needs at least 10 real images for subset_size=10, but there are 1",
        "MIFID needs at least 2 real images",
        "PRDC needs at least 4 real images for nearest_k=3",
        r"Score needs at least 3 generated images for splits=3, but there are 1: add them with update",
    ]
    for metric, text in zip(several(), texts, strict=True):
        metric.update(pictures(1, 1), real=True)
        metric.update(pictures(1, 2), real=False)
        with pytest.raises(fidtool.InputError, match=text) as raised:
            metric.compute()
        assert isinstance(raised.value, RuntimeError), (
            "as in torchmetrics, for fewer than two images"
        )


def test_a_refused_feature_of_each_image_is_an_error_until_reset() -> None:
    class Nans(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)) / (x.amax((2, 3)) > -1)  # 0 / 0 of black images

    metric = PrecisionRecallDensityCoverage(fidtool.Network(Nans(), input_size=8))
    fill(metric)
    metric.update(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), real=False)
    for _ in range(2):
        with pytest.raises(
            fidtool.RunError, match=r"lack some generated images; call reset\(\) before"
        ):
            metric.compute()
    metric.reset()
    fill(metric)
    assert values(metric)


class Plain(torch.nn.Module):
    """Mean and standard deviation of each row of pixels."""

    def __init__(self, dtype: torch.dtype = torch.uint8) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == self.dtype
        x = images.float() / 64
        return torch.cat([x.mean((1, 3)), x.std((1, 3))], 1)


def test_plain_modules_get_the_images_as_they_are() -> None:
    metric = FrechetInceptionDistance(Plain(), input_img_size=(3, 299, 299))  # which has no effect
    fill(metric)
    value = float(metric.compute())
    other, part = FrechetInceptionDistance(Plain()), FrechetInceptionDistance(Plain())
    for number in range(20):  # of one image at a time
        other.update(pictures(20, 1)[number : number + 1], real=True)
        other.update(pictures(20, 2)[number : number + 1] // 2, real=False)
    part.merge_state(other)
    part.merge_state(FrechetInceptionDistance(Plain()))
    other.reset()
    part.persistent(True)
    other.load_state_dict(part.state_dict())
    assert float(other.compute()) == float(part.compute()) == value
    floats = MemorizationInformedFrechetInceptionDistance(Plain(torch.float32), normalize=True)
    floats.update(torch.randn(5, 1, 7, 9), real=True)
    floats.update(torch.randn(5, 2, 7, 4), real=False)
    floats.update(torch.randn(5, 1, 7, 9), real=False)
    assert float(floats.compute()) > 0
    large = FrechetInceptionDistance(Plain(), feature_step=22)
    for call in (lambda: fill(large), large.compute):
        with pytest.raises(
            fidtool.RunError, match=r"pass feature_step=\d+.* lack some real images"
        ):
            call()


def test_a_plain_module_must_return_vectors() -> None:
    """As in torchmetrics; a `fidtool.Network` may return maps. The imaginary part of a vector is
    not dropped.
    """
    metric = FrechetInceptionDistance(torch.nn.MaxPool2d(2), batch_size=4)
    with pytest.raises(
        fidtool.RunError,
        match=r"returned \(4, 3, 10, 10\) for 4 images; it must return \(4, D\)$",
    ):
        metric.update(pictures(8, 1).float(), real=True)

    class Waves(Plain):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(super().forward(images))

    with pytest.raises(
        fidtool.RunError, match="returned complex numbers, which cannot be features"
    ):
        FrechetInceptionDistance(Waves(), batch_size=4).update(pictures(8, 1), real=True)


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_features_of_any_size(scale: float) -> None:
    """Small ones need another step, which the error names, and with it the values are those of
    usual ones.
    """

    class Scaled(Plain):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) * scale

    usual = PrecisionRecallDensityCoverage(Plain())
    fill(usual)
    for kind, settings in (
        (PrecisionRecallDensityCoverage, {}),
        (KernelInceptionDistance, {"subset_size": 20}),
    ):
        scaled = kind(Scaled(), **settings)
        fill(scaled)
        if scale < 1:
            with pytest.raises(
                fidtool.RunError, match=r"fewer than 14 bits .* pass feature_step=\d+$"
            ) as raised:
                scaled.compute()
            scaled = kind(
                Scaled(), feature_step=int(str(raised.value).rpartition("=")[2]), **settings
            )
            fill(scaled)
        scaled_values = values(scaled)
        assert kind is KernelInceptionDistance or [*scaled_values.values()] == [
            *values(usual).values()
        ]
    large = KernelInceptionDistance(
        Scaled(), subset_size=10, degree=99 if scale > 1 else 3, coef=1e110
    )
    fill(large)
    with pytest.raises(
        fidtool.RunError,
        match="fewer than 14 bits" if scale < 1 else "KID's kernel is too large: scale",
    ):
        large.compute()
    score = InceptionScore(Scaled(), splits=3)
    score.update(pictures(20, 1))
    assert next(iter(values(score).values())) > 0.999


def _tripled(module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return 3 * Plain.forward(module, images)  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a child": lambda module: setattr(module[1], "0", torch.nn.Sigmoid()),
    "an attribute of a child": lambda module: setattr(module[1][0], "max_val", 0.25),
    "a hook": lambda module: module[0].register_forward_hook(
        lambda module, images, features: features * 2
    ),
    "a method": lambda module: setattr(module[0], "forward", MethodType(_tripled, module[0])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_was_changed_in_between_is_another_one(change: str) -> None:
    module = torch.nn.Sequential(Plain(), torch.nn.Sequential(torch.nn.Hardtanh(0.0, 1.5)))
    first, shared = FrechetInceptionDistance(module), shared_network(module)
    assert shared_network(module) is shared
    CHANGES[change](module)
    second = FrechetInceptionDistance(module)
    assert shared_network(module) is not shared
    fill(first)
    fill(second)
    assert float(first.compute()) != float(second.compute())


@pytest.mark.parametrize(
    "as_script", [torch.jit.script, lambda module: torch.jit.trace(module, pictures(2, 1))]
)
def test_torchscript_modules(as_script: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    expected = FrechetInceptionDistance(Plain())
    metrics = [FrechetInceptionDistance(as_script(Plain())) for _ in range(2)]
    for metric in (expected, *metrics):
        fill(metric)
    assert [float(metric.compute()) for metric in metrics] == [float(expected.compute())] * 2
    scripted = FrechetInceptionDistance(
        fidtool.Network(torch.jit.script(network().module), input_size=32)
    )
    fill(scripted)
    assert float(scripted.compute()) > 0


def test_grayscale_and_numbers_of_images() -> None:
    grey, other = pictures(20, 1)[:, :1], FrechetInceptionDistance(network())
    other.update(imgs=grey, real=True)
    other.update(grey.expand(-1, 3, -1, -1), real=False)
    assert float(other.compute()) == 0.0
    assert (other.result.real, other.result.fake) == (20, 20)


def features_of(feature: Feature, images: torch.Tensor) -> torch.Tensor:
    extractor = shared_network(feature).extractor(torch.device("cpu"))
    return extractor.extract(list(images.permute(0, 2, 3, 1)))


@pytest.fixture
def classifier(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    from fidtool.features.models.inception import Weights
    from fidtool.training import inception_metrics

    weight = torch.randn(1008, 2048, generator=torch.Generator().manual_seed(0)) / 20
    made = Weights({"fc.weight": weight, "fc.bias": torch.zeros(1008)}, "")
    monkeypatch.setattr(inception_metrics, "inception_weights", lambda file, classifier: made)
    return weight


def test_the_inception_score_uses_the_classifier(
    classifier: torch.Tensor, environment: object
) -> None:
    metric = InceptionScore(splits=1)
    images = pictures(4, 3)
    metric.update(images)
    metric.update(images, real=True)  # as in a MetricCollection
    mean, std = metric.compute()
    features = features_of(2048, images)
    p = (features.double() @ classifier.double().T).softmax(1)
    expected = (p * (p.log() - p.mean(0).log())).sum(1).mean().exp()
    assert float(mean) == pytest.approx(float(expected), rel=1e-6)
    assert float(std) != float(std), "the sample deviation of one part, as in torchmetrics"
    assert metric.result is not None
    assert (metric.result.real, metric.result.fake) == (None, 4)


def test_deviations_are_those_of_torchmetrics() -> None:
    """A sample deviation of the Inception Score, the population's of KID; `fidtool compute` has the
    population's.
    """
    from fidtool.distances.inception_score import inception_score

    metric = InceptionScore(network(), splits=4)
    images = pictures(20, 2)
    metric.update(images)
    mean, std = metric.compute()
    features = features_of(network(), images)[image_hashes(images).argsort()].numpy()
    run, spread, *_ = inception_score(features, np.eye(16, dtype=np.float32), splits=4)
    assert (float(mean), float(std)) == (run, pytest.approx(spread * (4 / 3) ** 0.5, rel=1e-12))


def test_hints_name_the_setting() -> None:
    metric = PrecisionRecallDensityCoverage(network(), nearest_k=1)
    metric.update(torch.cat([pictures(4, 1)] * 2), real=True)
    metric.update(pictures(8, 2), real=False)
    with pytest.warns(fidtool.FidtoolWarning, match=r"a larger nearest_k of PRDC\(...\)"):
        metric.compute()
