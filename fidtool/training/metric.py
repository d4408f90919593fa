"""The common base of the metrics of sets of images for training loops."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fidtool.diagnose.diagnosis import set_warnings
from fidtool.distances.exact import feature_settings
from fidtool.distances.parallel import fork_safe
from fidtool.distributed.world import World
from fidtool.errors import InputError, TooFewImagesError, merged, renamed, rendered
from fidtool.features.network import Network
from fidtool.features.protocol import ProtocolName
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.settings import StatisticsSettings
from fidtool.statistics.moments import Gaussian
from fidtool.statistics.set_statistics import Statistics
from fidtool.training.feature_extractor import PathLike, flag, labels_of_network, pixels_of, shared_extractor
from fidtool.training.group import DEFAULT_TIMEOUT, Group, outside_autograd
from fidtool.training.samples import Index, sample_numbers
from fidtool.training.sums import SIDES, MetricSums, Result
from fidtool.training.synced_metric import SyncedMetric, Values
from fidtool.validation import declared


class ImageMetric(SyncedMetric[Values, MetricSums]):
    """Base class of the metrics of images, which holds the network, the features, and what all ranks agree on.

    A subclass sets these before it calls ``__init__``, whose arguments are those of `FrechetInceptionDistance`.

    Attributes:
        _metric: see `SyncedMetric`.
        _classifier: weights of Inception's classifier, for a metric that needs it.
        _least: smallest number of images of a set, and a phrase for the setting that demands it.
    """

    _theirs = re.compile(r"inception\.|(real|fake)_features|features$")
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
        declared(StatisticsSettings)["batch_size"].checked(batch_size)
        theirs = dist_sync_on_step, dist_sync_fn, distributed_available_fn
        super().__init__(normalize, sync_on_compute, sync_timeout, process_group, name, theirs)
        self.reset_real_features = flag("reset_real_features", reset_real_features)
        file = feature_extractor_weights_path
        if weights is not None and file is not None:
            raise InputError("weights and feature_extractor_weights_path are the same:", "pass one of them")
        with outside_autograd(), renamed("weights", "weights" if file is None else "feature_extractor_weights_path"):
            network = shared_extractor(feature, antialias, protocol, weights or file, feature_step)
            # antialias is an argument of torchmetrics, which truncates with either protocol.
            asked = float_to_byte if antialias is None else float_to_byte or "floor"
            self._sums = MetricSums(network, self._metric, real_statistics, batch_size, asked)
            self._sums.to(self.device)

    def _measure(self, sums: MetricSums, world: World) -> Result:
        metric = self._metric
        sides = list(SIDES) if metric.frechet or metric.real_features else ["fake"]
        counts = {side: sums.sides[side].count for side in sides}
        least, setting = self._least
        for side, count in counts.items():
            if count is not None and count < least:
                problem = f"{self._title} needs at least {least} {SIDES[side]}{setting}, but there are {count}"
                kept = ", which reset() discards unless reset_real_features=False" if side == "real" else ""
                raise TooFewImagesError(f"{problem}: add them with update(images, real={side == 'real'}){kept}")
        names = {"real": sums.fixed_name or "the set of real images", "fake": "the set of generated images"}
        statistics: dict[str, Statistics] = {}
        if metric.frechet:
            found = world.only_on_rank_zero(lambda: {names[side]: sums.sides[side].statistics() for side in sides})
            statistics = found or {}
        gaussians = {name: Gaussian(each.mu, each.sigma, each.count) for name, each in statistics.items()}
        rows = {names[side]: sums.sides[side].rows() for side in sides if metric.fake_features}
        real, fake = (FeatureSet(name, rows.get(name), gaussians.get(name)) for name in names.values())
        settings = feature_settings(sums.network.definition, self.device)
        context = MetricContext(world, settings, lambda: self._classifier)
        values = metric.compute(real, fake, context)
        warnings = merged([*set_warnings(statistics), *context.warnings], names.values())
        values, warnings = world.broadcast((values, warnings))
        values = {name: values[name] for name in self._names if name in values}
        return Result(values, counts.get("real"), counts["fake"] or 0, warnings=tuple(map(rendered, warnings)))

    def _key(self, name: str) -> str:
        return labels_of_network(self._sums.network.choice).key(name)

    @property
    def reference_digest(self) -> str:
        """Fingerprint of the protocol and the fixed real statistics. Values with equal fingerprints are comparable."""
        return hashlib.sha256(repr(sorted(self._sums.settings().items())).encode()).hexdigest()

    @property
    def float_to_byte(self) -> str:
        """How floats become bytes: ``round`` or ``floor``."""
        return self._sums.float_to_byte

    @property
    def real_features_num_samples(self) -> torch.Tensor:
        """Number of real images that were added on this rank, or while synced on all: int64 scalar tensor.

        If there are real statistics, that of their images; -1 if they do not have it.
        """
        count = self._sums.sides["real"].count
        return torch.tensor(-1 if count is None else count, device=self.device)

    @property
    def fake_features_num_samples(self) -> torch.Tensor:
        """Number of generated images that were added on this rank, or while synced on all: int64 scalar tensor."""
        return torch.tensor(self._sums.added, device=self.device)

    @fork_safe
    def update(self, imgs: torch.Tensor, real: bool, index: Index | None = None) -> None:
        """Adds a batch of images. Not a collective: each rank may call it any number of times.

        Args:
            imgs: tensor of shape (n, 3, height, width), or (n, 1, height, width) for grayscale, uint8 or, with
                ``normalize``, floating-point in 0..1; on the CPU or on the metric's device. The image size may differ
                between calls. A plain module as ``feature`` gets the tensor as it is.
            real: whether the images are real (True) or generated (False).
            index: number of each image's sample in the data set: integers, a tensor or list of shape (n,). Images of
                one sample count once until ``reset``: those that a rank adds again, and those that several ranks have,
                if they are among the latest 1,024 of all but one. So a sampler may repeat samples to give all ranks the
                same number. None counts each image. See `WithIndex`.

        Raises:
            fidtool.InputError: if the shape, dtype, range or device is wrong.
            fidtool.RunError: if a feature is not finite. An exception of a custom network is raised as it is.
        """
        real = flag("real", real)
        if real and self._sums.fixed_name:
            problem = f"the metric already has real statistics ({self._sums.fixed_name}):"
            raise InputError(problem, "call update() with generated images only")
        self._refuse_while_synced("update()")
        with outside_autograd():
            pixels = pixels_of(imgs, self.normalize, self.device, self.float_to_byte, self._sums.network.plain)
            samples = None if index is None else sample_numbers(index, len(pixels), "images")
            self._sums.sides["real" if real else "fake"].add(pixels, samples)
            self._warn(*self._sums.mixed())

    def reset(self) -> None:
        """Discards all images, except the real ones if ``reset_real_features`` is False."""
        self.unsync()
        super().reset()
        self._sums.clear(SIDES if self.reset_real_features else ("fake",))
