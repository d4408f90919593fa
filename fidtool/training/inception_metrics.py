"""FID, KID, MIFID, Inception Score, precision and recall for training loops, with the interfaces of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fidtool.distributed.world import World
from fidtool.features.models.inception import Weights
from fidtool.features.protocol import INCEPTION_DIMS
from fidtool.metrics.fid import FID
from fidtool.metrics.inception_score import InceptionScore as Scores
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.metrics.mifid import MIFID
from fidtool.metrics.prdc import PRDC, Ties
from fidtool.statistics.set_statistics import Statistics
from fidtool.training.feature_extractor import Feature, PathLike, flag, inception_weights
from fidtool.training.metric import ImageMetric
from fidtool.training.samples import Index
from fidtool.training.sums import MetricSums, Result
from fidtool.validation import text_of

_LOGITS = "logits_unbiased"
_Pair = tuple[torch.Tensor, torch.Tensor]


class FrechetInceptionDistance(ImageMetric[torch.Tensor]):
    """FID of the images of all ranks, with the interface of torchmetrics' ``FrechetInceptionDistance``.

    The value does not depend on the number of ranks, on how the images are distributed over them, or on batches: it is
    bit-identical on one kind of device. ``compute`` cannot hang: if some ranks do not call it, the others raise an
    error that names them. A subclass of ``torchmetrics.Metric`` if torchmetrics is installed, which is optional.

    The accumulated statistics are part of ``state_dict`` after ``persistent(True)``, once the metric has seen images.
    Each rank's state has only its own images: save the state of every rank, or one taken within
    ``with metric.sync_context():``, which has those of all ranks. Loading a ``state_dict`` without statistics leaves
    the metric unchanged, as does one of torchmetrics' metric, with a warning. If it was saved between ``compute`` and
    ``reset``, the next ``update`` warns that the value would cover two evaluations.

    After a feature that is NaN, infinite or out of range, ``compute`` raises until ``reset``, because that image is
    missing from the statistics. If the network fails in ``update``, the images of that call are not added, and the call
    can be repeated.

    Metrics with the same network have one copy of it, and an image that several of them get passes it once.

    Args:
        feature: 64, 192, 768 or 2048 for a layer of Inception, the name of a network or ``FILE.py:NAME``, also with
            settings, as for ``--extractor``, or a `fidtool.Network`, which is copied; or a plain module, which is
            copied and gets the images as they are, as in torchmetrics, and returns features of shape (n, D).
        reset_real_features: whether ``reset`` also discards the real images.
        normalize: whether images are floating-point in 0..1 instead of uint8.
        feature_extractor_weights_path: another name of ``weights``.
        antialias: for Inception, True is ``protocol="torchmetrics"``, torchmetrics' default, and False is
            ``protocol="tensorflow"``; both truncate floats, as torchmetrics does.
        protocol: name of a protocol; None is ``pytorch-fid``, as in ``fidtool compute``.
        float_to_byte: how floats become bytes: ``round``, or ``floor`` to truncate; None is as ``real_statistics``
            were made, or as the protocol's tool does: ``floor`` for ``torchmetrics``, ``round`` for all others.
        weights: file with the weights of Inception or of a named network; None finds or downloads the published ones.
        feature_step: the features of a plain module are rounded to multiples of 2 ** -feature_step and must stay below
            2 ** (23 - feature_step); None is 18.
        real_statistics: a statistics file (.npz) or `fidtool.Statistics`, instead of real images. Of several networks,
            those of the metric's are used.
        sync_on_compute: whether ``compute`` covers the images of all ranks. If False, it covers this rank only,
            ``result.scope`` says so, and a warning is issued once.
        sync_timeout: seconds that ``compute`` waits for the other ranks.
        process_group: process group; None is all ranks.
        batch_size: images per forward pass; None is the device's default.
        name: identifies the metric on all ranks. Needed if some ranks create more metrics than others; None numbers the
            metrics in the order in which the program creates them.
        input_img_size, compute_on_cpu, compute_with_cache: without effect, for torchmetrics' sake.
        dist_sync_on_step, dist_sync_fn, distributed_available_fn: refused unless False or None.

    Attributes:
        result: the `Result` of the last ``compute``; None before it.

    Raises:
        fidtool.InputError: if there is no such layer, protocol, weights file or statistics file.
    """

    _metric = FID()


class KernelInceptionDistance(ImageMetric[_Pair]):
    """KID, with the interface of torchmetrics' ``KernelInceptionDistance``.

    ``compute`` returns its mean and population standard deviation over the subsets: two float64 scalar tensors.

    Args:
        subsets, subset_size: number of pairs of random subsets, and number of images in each.
        degree, gamma, coef: the kernel (gamma <x, y> + coef) ** degree; a gamma of None is 1 / D.
        seed: seed of the subsets, as in ``fidtool compute``; torchmetrics draws from torch's global generator.
        feature, reset_real_features, normalize, options: see `FrechetInceptionDistance`.
    """

    def __init__(
        self,
        feature: Feature = 2048,
        subsets: int = 100,
        subset_size: int = KID.subset_size,
        degree: int = 3,
        gamma: float | None = None,
        coef: float = 1.0,
        reset_real_features: bool = True,
        normalize: bool = False,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._metric = KID(subsets=subsets, subset_size=subset_size, seed=seed, degree=degree, gamma=gamma, coef=coef)
        self._least = subset_size, f" for subset_size={subset_size}"
        super().__init__(feature, reset_real_features, normalize, **options)

    def _measure(self, sums: MetricSums, world: World) -> Result:
        result = super()._measure(sums, world)
        deviation = result.values.get("kid_std", 0.0)  # omitted if each subset is the whole set
        return replace(result, values={**result.values, "kid_std": deviation})


class MemorizationInformedFrechetInceptionDistance(ImageMetric[torch.Tensor]):
    """MIFID (Bai et al. 2021), with the interface of torchmetrics' metric of this name.

    The FID, divided by the mean cosine distance of the real images to the nearest generated image if that is below
    ``cosine_distance_eps``, a number above 0 and up to 1. Other arguments: see `FrechetInceptionDistance`.
    """

    def __init__(
        self,
        feature: Feature = 2048,
        reset_real_features: bool = True,
        normalize: bool = False,
        cosine_distance_eps: float = 0.1,
        **options: Any,
    ) -> None:
        self._metric = MIFID(cosine_distance_eps=cosine_distance_eps)
        super().__init__(feature, reset_real_features, normalize, **options)


class _Scores(Scores):
    """The score with the sample standard deviation; without a classifier the features are its logits."""

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        if not context.classifier():
            identity = torch.eye(fake.rows.shape[1], device="cpu")
            context = replace(context, classifier=lambda: Weights({"fc.weight": identity}, ""))
        found = super().compute(real, fake, context)
        sample = math.sqrt(self.splits / (self.splits - 1)) if self.splits > 1 else math.nan
        return {**found, "is_std": found["is_std"] * sample}


class InceptionScore(ImageMetric[_Pair]):
    """The Inception Score of the generated images, with the interface of torchmetrics' ``InceptionScore``.

    ``compute`` returns its mean and sample standard deviation over the splits (NaN of one), as in torchmetrics; that of
    ``fidtool compute`` is the population's. Two float64 scalar tensors.

    Args:
        feature: ``logits_unbiased`` for Inception's classifier without its bias. The features of any other network are
            taken as logits.
        splits: number of random parts of the images to average over.
        real_statistics: without effect, since the score uses no real images: all metrics may get the same arguments.
        normalize, options: see `FrechetInceptionDistance`.
    """

    _title = "the Inception Score"
    higher_is_better = True

    def __init__(
        self,
        feature: Feature = _LOGITS,
        splits: int = 10,
        normalize: bool = False,
        *,
        real_statistics: PathLike | Statistics | None = None,
        **options: Any,
    ) -> None:
        self._metric, self._least = _Scores(splits=splits), (splits, f" for splits={splits}")
        super().__init__(max(INCEPTION_DIMS) if feature == _LOGITS else feature, True, normalize, **options)
        if feature == _LOGITS:
            # The network may be that of another metric, which found its weights elsewhere.
            file = options.get("weights") or options.get("feature_extractor_weights_path")
            weights = inception_weights(text_of(file), classifier=True)
            self._classifier = Weights({"fc.weight": weights.state["fc.weight"]}, weights.origin)

    def update(self, imgs: torch.Tensor, real: bool = False, index: Index | None = None) -> None:
        """Adds generated images. Real ones, which other metrics of a ``MetricCollection`` need, are not added."""
        if not flag("real", real):
            super().update(imgs, False, index)


class PrecisionRecallDensityCoverage(ImageMetric[dict[str, torch.Tensor]]):
    """Precision, recall, density, coverage and F-score; ``compute`` returns a dictionary of float64 scalar tensors.

    Args:
        nearest_k: a ball's radius is the distance to the k-th nearest neighbour.
        ties: whether an image on the surface of a ball is outside (``strict``) or inside (``inclusive``).
        feature, reset_real_features, normalize, options: see `FrechetInceptionDistance`.
    """

    _title = "PRDC"
    higher_is_better = True

    def __init__(
        self,
        feature: Feature = 2048,
        nearest_k: int = PRDC.nearest_k,
        ties: Ties = PRDC.ties,
        reset_real_features: bool = True,
        normalize: bool = False,
        **options: Any,
    ) -> None:
        self._metric = PRDC(nearest_k=nearest_k, ties=ties)
        self._least = nearest_k + 1, f" for nearest_k={nearest_k}"
        super().__init__(feature, reset_real_features, normalize, **options)
