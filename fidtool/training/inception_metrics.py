"""FID, KID, MIFID, Inception Score, precision and recall for training loops, with the interfaces of
torchmetrics.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fidtool.diagnose.diagnosis import set_warnings
from fidtool.distances.exact import feature_settings
from fidtool.distances.parallel import fork_safe
from fidtool.distributed.world import World
from fidtool.errors import (
    InputError,
    ResultWarning,
    TooFewImagesError,
    merge_warnings,
    option,
    rename_setting,
)
from fidtool.features.models.inception import Weights
from fidtool.features.network import Network
from fidtool.features.protocol import FEATURES, INCEPTION_DIMS, ProtocolName
from fidtool.metrics.fid import FID
from fidtool.metrics.inception_score import InceptionScore as Scores
from fidtool.metrics.kid import KID
from fidtool.metrics.metric import FeatureSet, MetricContext, feature_set
from fidtool.metrics.mifid import MIFID
from fidtool.metrics.prdc import PRDC, Ties
from fidtool.result.values import Value, find_key
from fidtool.settings.settings import StatisticsSettings
from fidtool.statistics.set_statistics import MeasuredSet, Statistics
from fidtool.training.feature_extractor import (
    Feature,
    PathLike,
    features_of_network,
    inception_weights,
    shared_extractor,
)
from fidtool.training.group import DEFAULT_TIMEOUT, Group, no_autograd
from fidtool.training.inputs import check_images, parse_bool
from fidtool.training.real_statistics import load_real_set, warn_of_mismatch
from fidtool.training.rows import UNKNOWN
from fidtool.training.samples import Index, sample_numbers
from fidtool.training.state import MetricState, Result
from fidtool.training.sums import SIDES, ImageSums
from fidtool.training.synced_metric import SyncedMetric, Values
from fidtool.validation import find_settings, path_text

_LOGITS = "logits_unbiased"
_Pair = tuple[Tensor, Tensor]


class ImageMetric(SyncedMetric[Values, ImageSums]):
    """Base class of the metrics of images, which holds the network, the features, and what all
    ranks agree on.

    A subclass sets these before it calls ``__init__``, whose arguments are those of
    `FrechetInceptionDistance`.

    Attributes:
        _metric: see `SyncedMetric`.
        _classifier: weights of Inception's classifier, for a metric that needs it.
        _least: smallest number of images of a set, and a phrase for the setting that demands it.
    """

    _torchmetrics_names = re.compile(r"inception\.|(real|fake)_features|features$")
    _state_names = re.compile(r"(real|fake)_(?!features)|header$")
    _classifier: Any = None
    _least: tuple[int, str] = (2, "")
    higher_is_better = False

    @fork_safe
    def __init__(
        self,
        feature: int | str | Network | nn.Module = 2048,
        reset_real_features: bool = True,
        normalize: bool = False,
        input_img_size: tuple[int, int, int] = (3, 299, 299),
        feature_extractor_weights_path: PathLike | None = None,
        antialias: bool | None = None,
        *,
        protocol: ProtocolName | None = None,
        float_to_byte: str | None = None,
        weights: PathLike | None = None,
        feature_step: int | None = None,
        real_statistics: PathLike | Statistics | None = None,
        sync_on_compute: bool = True,
        sync_timeout: float = DEFAULT_TIMEOUT,
        process_group: Group = None,
        batch_size: int | None = None,
        name: str | None = None,
        compute_on_cpu: bool = False,
        compute_with_cache: bool = True,
        dist_sync_on_step: bool = False,
        dist_sync_fn: Callable[..., Any] | None = None,
        distributed_available_fn: Callable[[], bool] | None = None,
    ) -> None:
        find_settings(StatisticsSettings)["batch_size"].check(batch_size)
        theirs = dist_sync_on_step, dist_sync_fn, distributed_available_fn
        super().__init__(normalize, sync_on_compute, sync_timeout, process_group, name, theirs)
        self.reset_real_features = parse_bool("reset_real_features", reset_real_features)
        argument = "weights"
        if feature_extractor_weights_path is not None:
            if weights is not None:
                raise InputError(
                    "weights and feature_extractor_weights_path are two names of the same "
                    "argument:",
                    "pass only one of them",
                )
            argument = "feature_extractor_weights_path"
            weights = feature_extractor_weights_path
        if antialias is not None and float_to_byte is None:
            float_to_byte = "floor"  # torchmetrics, whose argument it is, truncates
        with no_autograd(), rename_setting("weights", argument):
            self._network = shared_extractor(feature, antialias, protocol, weights, feature_step)
            self._begin(real_statistics, float_to_byte, batch_size)

    def _begin(
        self,
        real_statistics: PathLike | Statistics | None,
        float_to_byte: str | None,
        batch_size: int | None,
    ) -> None:
        network = self._network
        per_image = self._metric.fake_features
        sides = {side: ImageSums(network, side, batch_size, per_image) for side in SIDES}
        doubts: list[ResultWarning] = []
        settings = {
            "definition": network.definition.to_json(),
            "real": "their own images",
            "float_to_byte": "",
            "own": repr(self._metric) if per_image else "",
        }
        self._real: MeasuredSet | None = None
        self._rounding = network.rounding(float_to_byte)
        if real_statistics is not None:
            del sides["real"]
            self._real = load_real_set(real_statistics, network, per_image)
            statistics = self._real.statistics
            stated = (statistics.config or {}).get("float_to_byte")
            self._rounding = network.rounding(float_to_byte or stated)
            doubts = warn_of_mismatch(self._real, network, stated, self._rounding)
            digest = hashlib.sha256(statistics.mu.tobytes() + statistics.sigma.tobytes())
            settings["real"] = f"statistics with SHA-256 {digest.hexdigest()[:12]}"
        if self._rounding != network.rounding(None):
            settings["float_to_byte"] = self._rounding
        saved = ("definition", "float_to_byte")
        self._sums = MetricState(sides, "images", settings, saved, doubts)
        self._sums.to(self.device)

    @property
    def _kept(self) -> Collection[str]:
        return () if self.reset_real_features else ("real",)

    def _count_of_real(self, sums: MetricState[ImageSums]) -> int | None:
        return sums.sides["real"].count if self._real is None else self._real.statistics.count

    def _measure(self, sums: MetricState[ImageSums], world: World) -> Result:
        metric = self._metric
        real_count = None
        if metric.frechet or metric.real_features:
            real_count = self._count_of_real(sums)
        fake_count = sums.evaluated_rows.count
        self._check_count("real", real_count)
        self._check_count("fake", fake_count)
        sets = [self._measure_set(side, sums, world) for side in SIDES]
        real, fake = (feature_set(images, FEATURES, metric.fake_features) for images in sets)
        settings = feature_settings(self._network.definition, self.device, world)
        context = MetricContext(settings, lambda: self._classifier)
        values = metric.compute(real, fake, context)
        warnings: list[ResultWarning] = []
        if metric.frechet:
            for images in sets:
                warnings += set_warnings(images.path, images.statistics)
        warnings += context.said
        values, warnings = world.broadcast((values, merge_warnings(warnings)))
        return Result(
            {name: values[name] for name in self._names if name in values},
            real_count,
            fake_count,
            warnings=tuple(warnings),
        )

    def _check_count(self, side: str, count: int | None) -> None:
        least, setting = self._least
        if count is None or count >= least:
            return
        remedy = f"add them with update(images, real={side == 'real'})"
        if side == "real":
            remedy += " (reset() discards them unless reset_real_features=False)"
        raise TooFewImagesError(
            f"{self._title} needs at least {least} {SIDES[side]}{setting}, but there are {count}:",
            remedy,
        )

    def _measure_set(self, side: str, sums: MetricState[ImageSums], world: World) -> MeasuredSet:
        """Return a set as metrics need it, with statistics on rank 0. A collective."""
        if side == "real" and self._real is not None:
            return self._real
        images = sums.sides[side]
        statistics = world.only_on_rank_zero(images.statistics) if self._metric.frechet else None
        features = {FEATURES: images.rows()} if self._metric.fake_features else {}
        return MeasuredSet(f"the set of {SIDES[side]}", statistics or Statistics({}), features)

    def _key(self, name: str) -> str:
        features = features_of_network(self._network.choice, self._network.definition.network)
        metric = self._metric
        return find_key([Value(metric.name, number, features) for number in metric.numbers], name)

    @property
    def reference_digest(self) -> str:
        """Fingerprint of the protocol and the fixed real statistics. Values with equal fingerprints
        are comparable.
        """
        unusual = sorted((name, value) for name, value in self._sums.settings.items() if value)
        return hashlib.sha256(repr(unusual).encode()).hexdigest()

    @property
    def float_to_byte(self) -> str:
        """How floats become bytes: ``round`` or ``floor``."""
        return self._rounding

    @property
    def real_features_num_samples(self) -> Tensor:
        """Number of real images that were added on this rank, or on all ranks while synced: int64
        scalar tensor.

        With ``real_statistics``, it is the number of their images, or -1 if that is unknown.
        """
        count = self._count_of_real(self._sums)
        return torch.tensor(-1 if count is None else count, device=self.device)

    @property
    def fake_features_num_samples(self) -> Tensor:
        """Number of generated images that were added on this rank, or while synced on all: int64
        scalar tensor.
        """
        return torch.tensor(self._sums.evaluated_rows.count, device=self.device)

    @fork_safe
    def update(self, imgs: Tensor, real: bool, index: Index | None = None) -> None:
        """Add a batch of images. This is not a collective: each rank may call it any number of
        times.

        Args:
            imgs: tensor of shape (n, 3, height, width), or (n, 1, height, width) for grayscale,
                uint8 or, with ``normalize``, floating-point in 0..1; on the CPU or on the metric's
                device. The image size may differ between calls. A plain module as ``feature`` gets
                the tensor as it is.
            real: whether the images are real (True) or generated (False).
            index: number of each image's sample in the dataset: integers, a tensor or list of shape
                (n,). Images of one sample count once until ``reset``. This holds for images that a
                rank adds again. It also holds for images that several ranks add, if they are among
                the latest 1,024 images on all of these ranks but one. So a sampler may repeat
                samples to give all ranks the same number. None counts each image. See `WithIndex`.

        Raises:
            fidtool.InputError: if the shape, dtype, range or device is wrong.
            fidtool.RunError: if a feature is not finite. An exception of a custom network is raised
                as it is.
        """
        real = parse_bool("real", real)
        if real and self._real is not None:
            raise InputError(
                f"the metric already has real statistics ({self._real.path}):",
                "call update() with generated images only",
            )
        self._refuse_while_synced("update()")
        with no_autograd():
            pixels = check_images(
                imgs, self.normalize, self.device, self._rounding, self._network.plain
            )
            samples = UNKNOWN if index is None else sample_numbers(index, len(pixels), "images")
            self._sums.sides["real" if real else "fake"].add(pixels, samples)
            self._warn(*self._sums.mixed_warnings())


class FrechetInceptionDistance(ImageMetric[Tensor]):
    """FID over the images of all ranks, with the interface of torchmetrics'
    ``FrechetInceptionDistance``.

    The value does not depend on the number of ranks, on how the images are distributed over the
    ranks, or on batches: it is bit-identical on one kind of device. ``compute`` cannot hang: if
    some ranks do not call it, the other ranks raise an error that names them. The class is a
    subclass of ``torchmetrics.Metric`` if torchmetrics is installed, which is optional.

    The accumulated statistics are part of ``state_dict`` after ``persistent(True)``, once the
    metric has seen images. Each rank's state has only the images of this rank: save the state of
    every rank, or a state taken within ``with metric.sync_context():``, which has the images of all
    ranks. Loading a ``state_dict`` without statistics leaves the metric unchanged; so does loading
    the state of torchmetrics' metric, with a warning. If the state was saved between ``compute``
    and ``reset``, the next ``update`` warns that the value would cover two evaluations.

    After a feature that is NaN, infinite or out of range, ``compute`` raises an error until
    ``reset``, because that image is missing from the statistics. If the network fails in
    ``update``, the images of that call are not added, and the call can be repeated.

    Metrics with the same network share one copy of it, and an image that several of them get passes
    through the network once.

    Args:
        feature: 64, 192, 768 or 2048 for a layer of Inception; the name of a network or
            ``FILE.py:NAME``, also with settings, as for ``--extractor``; a `fidtool.Network`, which
            is copied; or a plain module, which is copied. A plain module gets the images as they
            are, as in torchmetrics, and returns features of shape (n, D).
        reset_real_features: whether ``reset`` also discards the real images.
        normalize: whether images are floating-point in 0..1 instead of uint8.
        feature_extractor_weights_path: another name of ``weights``.
        antialias: for Inception, True is ``protocol="torchmetrics"``, torchmetrics' default, and
            False is ``protocol="tensorflow"``; both truncate floats, as torchmetrics does.
        protocol: name of a protocol; None is ``pytorch-fid``, as in ``fidtool compute``.
        float_to_byte: how floats become bytes: ``round``, or ``floor`` to truncate. None does what
            was done for ``real_statistics``, or else what the protocol's tool does: ``floor`` for
            ``torchmetrics``, ``round`` for all others.
        weights: file with the weights of Inception or of a named network; None finds or downloads
            the published weights.
        feature_step: the features of a plain module or a `fidtool.Network` are rounded to multiples
            of 2 ** -feature_step and must stay below 2 ** (23 - feature_step); None is 18, unless
            the network states one.
        real_statistics: a statistics file (.npz) or `fidtool.Statistics`, instead of real images.
            If they have several networks, the statistics of the metric's network are used.
        sync_on_compute: whether ``compute`` covers the images of all ranks. If False, it covers
            this rank only, ``result.scope`` says so, and a warning is issued once.
        sync_timeout: seconds that ``compute`` waits for the other ranks.
        process_group: process group; None is all ranks.
        batch_size: images per forward pass; None is the device's default.
        name: identifies the metric on all ranks. A name is needed if some ranks create more metrics
            than others; None numbers the metrics in the order in which the program creates them.
        input_img_size, compute_on_cpu, compute_with_cache: accepted for compatibility with
            torchmetrics, without effect.
        dist_sync_on_step, dist_sync_fn, distributed_available_fn: accepted only as False or None.

    Attributes:
        result: the `Result` of the last ``compute``; None before it.

    Raises:
        fidtool.InputError: if there is no such layer, protocol, weights file or statistics file.
    """

    _metric = FID()


class KernelInceptionDistance(ImageMetric[_Pair]):
    """KID, with the interface of torchmetrics' ``KernelInceptionDistance``.

    ``compute`` returns the mean and the population standard deviation over the subsets: two float64
    scalar tensors.

    Args:
        subsets, subset_size: number of pairs of random subsets, and number of images in each.
        degree, gamma, coef: the kernel (gamma <x, y> + coef) ** degree; a gamma of None is 1 / D.
        seed: seed of the subsets, as in ``fidtool compute``; torchmetrics draws from torch's global
            generator.
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
        self._metric = KID(
            subsets=subsets,
            subset_size=subset_size,
            seed=seed,
            degree=degree,
            gamma=gamma,
            coef=coef,
        )
        self._least = subset_size, f" for subset_size={subset_size}"
        super().__init__(feature, reset_real_features, normalize, **options)

    def _measure(self, sums: MetricState[ImageSums], world: World) -> Result:
        result = super()._measure(sums, world)
        spread = self._metric.numbers[0].spread
        deviation = result.values.get(spread, 0.0)  # omitted if each subset is the whole set
        return replace(result, values={**result.values, spread: deviation})


class MemorizationInformedFrechetInceptionDistance(ImageMetric[Tensor]):
    """MIFID (Bai et al. 2021), with the interface of torchmetrics' metric of this name.

    ``compute`` returns the FID, divided by the mean cosine distance of the real images to the
    nearest generated image if that is below ``cosine_distance_eps``.

    Args:
        cosine_distance_eps: a number above 0 and up to 1.
        feature, reset_real_features, normalize, options: see `FrechetInceptionDistance`.
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
    """The score with the sample standard deviation; without a classifier the features are its
    logits.
    """

    numbers = (replace(Scores.numbers[0], inception=False),)

    def compute(
        self, real: FeatureSet, fake: FeatureSet, context: MetricContext
    ) -> Mapping[str, float]:
        if not context.classifier():
            identity = torch.eye(fake.rows.shape[1], device="cpu")
            context = replace(context, classifier=lambda: Weights({"fc.weight": identity}, ""))
        values = dict(super().compute(real, fake, context))
        # The sample deviation, of which a single part has none.
        correction = math.sqrt(self.splits / (self.splits - 1)) if self.splits > 1 else math.nan
        values[self.numbers[0].spread] *= correction
        return values


class InceptionScore(ImageMetric[_Pair]):
    """The Inception Score of the generated images, with the interface of torchmetrics'
    ``InceptionScore``.

    ``compute`` returns the mean and the sample standard deviation over the splits (NaN for one
    split), as in torchmetrics: two float64 scalar tensors. ``fidtool compute`` returns the
    population standard deviation.

    Args:
        feature: ``logits_unbiased`` for Inception's classifier without its bias. The features of
            any other network are taken as logits.
        splits: number of random splits of the images to average over.
        real_statistics: without effect, because the score uses no real images; it is accepted so
            that all metrics can get the same arguments.
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
        self._metric = _Scores(splits=splits)
        self._least = splits, f" for splits={splits}"
        logits = feature == _LOGITS
        if logits:
            feature = max(INCEPTION_DIMS)
        super().__init__(feature, True, normalize, **options)
        if self._network.choice.tuned:
            raise InputError(
                "the Inception Score needs Inception's classifier, which "
                f"{option('feature', feature)} does not have:",
                f"omit {option('feature')}",
                setting="feature",
            )
        if logits:
            # The network may be that of another metric, which found its weights elsewhere.
            file = options.get("weights") or options.get("feature_extractor_weights_path")
            weights = inception_weights(path_text(file), classifier=True)
            self._classifier = Weights({"fc.weight": weights.state["fc.weight"]}, weights.origin)

    def update(self, imgs: Tensor, real: bool = False, index: Index | None = None) -> None:
        """Add generated images. Real images, which other metrics of a ``MetricCollection`` need,
        are ignored.
        """
        if not parse_bool("real", real):
            super().update(imgs, False, index)


class PrecisionRecallDensityCoverage(ImageMetric[dict[str, Tensor]]):
    """Precision, recall, density, coverage and F-score; ``compute`` returns a dictionary of float64
    scalar tensors.

    Args:
        nearest_k: a ball's radius is the distance to the k-th nearest neighbour.
        ties: whether an image on the surface of a ball is outside (``strict``) or inside
            (``inclusive``).
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
