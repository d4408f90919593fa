"""PSNR, SSIM, MS-SSIM and LPIPS of pairs of images for training loops, with the interfaces of
torchmetrics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fidtool.diagnose.order import SAMPLE, find_misplaced
from fidtool.distances.exact import feature_settings
from fidtool.distances.parallel import fork_safe
from fidtool.distributed.world import World
from fidtool.errors import (
    InputError,
    ResultWarning,
    RunError,
    TooFewImagesError,
    mark_agreed,
    prefix_errors,
    rename_setting,
)
from fidtool.features.device import deterministic_mode, device_context, make_device
from fidtool.features.hashes import hash_state_dict
from fidtool.features.models.inception import Weights
from fidtool.metrics.lpips import LPIPS
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.metrics.pairs import Compare, PairMetric
from fidtool.metrics.psnr import PSNR
from fidtool.metrics.ssim import SSIM, MultiScaleSSIM
from fidtool.reading.records import RECORD, thumbnails
from fidtool.system.background import DaemonThreads
from fidtool.system.cache_dir import lock_file
from fidtool.system.console import log_warning
from fidtool.training.feature_extractor import WEIGHTS_SECONDS, PathLike, SharedNetwork
from fidtool.training.group import DEFAULT_TIMEOUT, Group, no_autograd
from fidtool.training.inputs import check_images, image_hashes, parse_bool
from fidtool.training.rows import PADDED, UNKNOWN, Numbers, SampleRows, count_shared
from fidtool.training.samples import Index, sample_numbers
from fidtool.training.state import MetricState, Result
from fidtool.training.synced_metric import SyncedMetric

_THUMBNAIL = RECORD["thumb"]
# The thumbnails of a pair, by which the warning of pairs in different orders is decided.
_SAMPLE_DTYPE = np.dtype([("hash", np.uint64), ("real", _THUMBNAIL), ("fake", _THUMBNAIL)])
# Makes the hash of a pair depend on which of its images is which: the multiplier of Knuth's MMIX
# generator.
_HASH_FACTOR = 6364136223846793005


class _PairFunction(SharedNetwork):
    """A metric of pairs, and its network on one device.

    Attributes:
        title: the metric and its network, which must be the same on all ranks. It has not the path
            of the weights, which may differ between ranks.
    """

    def __init__(self, metric: PairMetric) -> None:
        self._arguments = (metric,)
        self.metric = metric
        with lock_file("weights", WEIGHTS_SECONDS), deterministic_mode():
            self._state = metric.fetch(log_warning)
        self.title = metric.name
        if self._state is not None:
            self.title += f" of SHA-256 {hash_state_dict(self._state.tensors)[:12]}"
        self._by_device: dict[torch.device, Compare] = {}

    def on_device(self, device: torch.device) -> Compare:
        if device not in self._by_device:
            self._by_device = {device: self.metric.on_device(self._state, device)}
        return self._by_device[device]


class PairValues(SampleRows):
    """The values of pairs of images, and hashes of the pairs and of their targets.

    Of the pairs of two ranks only the targets are compared, because reconstructions of a sample
    that a sampler gives to both may differ.
    """

    columns: ClassVar = {"value": np.float64, "target": np.int64, **SampleRows.columns}
    compared = "target"
    noun = "pairs"

    def __init__(self, metric: PairMetric) -> None:
        self.comparison = _PairFunction(metric)
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._sample = np.empty(0, _SAMPLE_DTYPE)

    def add(self, real: Tensor, fake: Tensor, samples: int | Numbers) -> list[float]:
        """Add pairs, uint8 tensors of shape (n, 3, height, width), and return their values.

        If a pair cannot be compared, none of them is added.
        """
        rows = self._blank(len(real))
        rows["sample"] = samples
        targets = image_hashes(real)
        rows["target"] = targets.numpy()
        rows["hash"] = (targets * _HASH_FACTOR + image_hashes(fake)).numpy()
        real = real.permute(0, 2, 3, 1).contiguous()
        fake = fake.permute(0, 2, 3, 1).contiguous()
        values = self._values(real, fake)
        rows["value"] = values
        if not np.isfinite(values).all():
            raise RunError(
                f"{self.comparison.metric.numbers[0].title} of a pair is NaN or infinite"
            )
        self._append(rows)
        self._add_to_sample(rows["hash"].view(np.uint64), real, fake)
        return values

    def _values(self, real: Tensor, fake: Tensor) -> list[float]:
        with deterministic_mode(), device_context(self._device):
            compare = self.comparison.on_device(self._device)
            pool = DaemonThreads(make_device(self._device).forward_threads, uses_torch=True)
            futures = [pool.submit(compare, *pair) for pair in zip(real, fake, strict=True)]
            try:
                return [future.result() for future in futures]
            except InputError as error:
                # Without its remedy, which is to omit a metric from a run.
                raise InputError(error.stated) from None
            finally:
                pool.close(1.0)

    def _add_to_sample(self, hashes: NDArray[np.uint64], real: Tensor, fake: Tensor) -> None:
        """Add the thumbnails of pairs that may be among those of the lowest hashes."""
        chosen = np.arange(len(hashes))
        if len(self._sample) == SAMPLE:
            chosen = np.flatnonzero(hashes < self._sample["hash"][-1])
        if len(chosen):
            added = np.empty(len(chosen), _SAMPLE_DTYPE)
            added["hash"] = hashes[chosen]
            added["real"] = thumbnails(real[chosen].cpu().numpy())
            added["fake"] = thumbnails(fake[chosen].cpu().numpy())
            self._sample = _merge_samples([self._sample, added])

    # Synchronisation of all ranks.

    def merge_ranks(self, world: World) -> PairValues:
        other = super().merge_ranks(world)
        other._sample = _merge_samples(world.gather(self._sample))
        return other

    def warnings(self, ranks: Sequence[int]) -> Iterator[ResultWarning]:
        yield from super().warnings(ranks)
        wrong, *_ = find_misplaced(self._sample["real"], self._sample["fake"])
        if len(wrong):
            yield ResultWarning(
                "",
                f"{len(wrong)} of {len(self._sample)} sampled preds fit the target of another pair "
                "better than their own: preds and target are probably in different orders, which "
                "makes the value meaningless. Take both from the same batch, and gather both from "
                "the ranks in the same way",
            )
        unnumbered = [rows[rows["sample"] == UNKNOWN] for rows in self.parts]
        shared, names = count_shared(unnumbered, ranks)
        if shared:
            yield ResultWarning(
                "",
                f"{shared} of {self.count} pairs are on more than one rank ({names}) and count "
                f"more than once. Probably {PADDED}",
            )

    def join(self, other: PairValues) -> None:
        super().join(other)
        self._sample = _merge_samples([self._sample, other._sample])


def _merge_samples(samples: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the pairs of lowest hashes of several samples, each once: the same on any number of
    ranks.
    """
    joined = np.concatenate(samples)
    _, first = np.unique(joined["hash"], return_index=True)
    return joined[first[:SAMPLE]]


class ReconstructionMetric(SyncedMetric[Tensor, PairValues]):
    """Base class of the metrics of pairs of images, whose arguments are those of
    `PeakSignalNoiseRatio`.

    A subclass sets ``_metric`` before it calls ``__init__``.
    """

    _metric: PairMetric
    _torchmetrics_names = re.compile(
        r"net\.|(sum_squared_error|total|data_range|similarity|all_scores)$"
    )
    _state_names = re.compile(r"pair_|header$")
    higher_is_better = True

    @fork_safe
    def __init__(
        self,
        data_range: float | None = None,
        *,
        normalize: bool = False,
        sync_on_compute: bool = True,
        sync_timeout: float = DEFAULT_TIMEOUT,
        process_group: Group = None,
        name: str | None = None,
        compute_on_cpu: bool = False,
        compute_with_cache: bool = True,
        dist_sync_on_step: bool = False,
        dist_sync_fn: Callable[..., Any] | None = None,
        distributed_available_fn: Callable[[], bool] | None = None,
    ) -> None:
        if data_range not in (None, 1) and (data_range != 255 or normalize):
            raise InputError(
                "data_range must be 1 for floats in 0..1, or 255 for uint8 images, not "
                f"{data_range!r}",
                setting="data_range",
            )
        normalize = parse_bool("normalize", normalize) or data_range == 1
        theirs = dist_sync_on_step, dist_sync_fn, distributed_available_fn
        super().__init__(normalize, sync_on_compute, sync_timeout, process_group, name, theirs)
        with no_autograd():
            pairs = PairValues(self._metric)
            settings = {"own": pairs.comparison.title}
            self._sums = MetricState({"pair": pairs}, "pairs", settings, saved_settings=("own",))
            self._sums.to(self.device)

    @fork_safe
    def update(self, preds: Tensor, target: Tensor, index: Index | None = None) -> None:
        """Add a batch of pairs. This is not a collective: each rank may call it any number of
        times, or never.

        Args:
            preds: the generated images or reconstructions, a tensor of shape (n, 3, height, width),
                or (n, 1, height, width) for grayscale, uint8 or, with ``normalize``, floating-point
                in 0..1, which are rounded to bytes; on the CPU or on the metric's device. The image
                size may differ between calls.
            target: the real images that they belong to, of the same shape.
            index: number of each pair's sample in the dataset: integers, a tensor or list of shape
                (n,). Pairs of one sample count once until ``reset``, whichever ranks add them. None
                counts each pair. See `WithIndex`.

        Raises:
            fidtool.InputError: if the shape, dtype, range, device or index is wrong, or if the
                images are too small.
            fidtool.RunError: if a value is not finite.
        """
        self._refuse_while_synced("update()")
        shapes = [tuple(getattr(images, "shape", ())) for images in (preds, target)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"preds and target must have the same shape, not {shapes[0]} and {shapes[1]}"
            )
        with no_autograd():
            with prefix_errors("preds"):
                fake = check_images(preds, self.normalize, self.device, "round")
            with prefix_errors("target"):
                real = check_images(target, self.normalize, self.device, "round")
            samples = UNKNOWN if index is None else sample_numbers(index, len(real), "pairs")
            values = self._sums.evaluated_rows.add(real, fake, samples)
            self._warn(*self._sums.mixed_warnings())
            mean = fmean(values) if values else math.nan
            # Lightning logs it with on_step=True.
            self._forward_cache = torch.tensor(mean, dtype=torch.float64, device=self.device)

    def compute(self) -> Tensor:
        """Return the mean over the pairs of all ranks. A collective, unless ``sync_on_compute`` is
        False.

        Returns:
            A float64 scalar tensor on the metric's device, the same on every rank.

        Raises:
            fidtool.training.AbsentRanksError: if some ranks did not call it within
                ``sync_timeout``; it names them.
            fidtool.InputError: if there are no pairs on any rank, or the ranks' settings differ.
            fidtool.RunError: if a rank was lost or failed.
        """
        return self._compute_by_name()[self._metric.numbers[0].name]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call ``update``, and return the mean of this rank's pairs of this batch; NaN if there
        are none.
        """
        self.update(*args, **kwargs)
        return self._forward_cache

    def _measure(self, sums: MetricState[PairValues], world: World) -> Result:
        values = sums.evaluated_rows.seen["value"]
        if not len(values):
            problem = f"{self._title} needs at least 1 pair of images, but there are 0:"
            raise mark_agreed(TooFewImagesError(problem, "add them with update(preds, target)"))
        real = FeatureSet("real images", None, None)
        fake = FeatureSet("generated images", None, None, pairs={self._metric.name: values})
        settings = feature_settings(None, self.device, world)
        context = MetricContext(settings, lambda: Weights({}, ""))
        means = self._metric.compute(real, fake, context)
        return Result(means, len(values), len(values), warnings=tuple(context.said))


class PeakSignalNoiseRatio(ReconstructionMetric):
    """PSNR of pairs of images in dB, with the interface of torchmetrics' ``PeakSignalNoiseRatio``.

    The value is the mean over the pairs of 10 log10(1 / MSE), with pixel values in 0..1, as papers
    on reconstructions report it. It has the same bits as the value of ``fidtool compute``, and at
    any number of ranks, however the pairs are distributed and batched. torchmetrics' metric pools
    the squared error over all images instead, which gives a lower value. Identical images count as
    100 dB.

    ``compute`` cannot hang: if some ranks do not call it, the other ranks raise an error that names
    them. The class is a subclass of ``torchmetrics.Metric`` if torchmetrics is installed, which is
    optional. The images get no gradient: use torchmetrics' functions for a loss. The values of the
    pairs are part of ``state_dict`` after ``persistent(True)``, as are the statistics of
    `FrechetInceptionDistance`.

    Args:
        data_range: 1 is ``normalize=True``, and 255 is ``normalize=False``, as in torchmetrics.
        normalize: whether images are floating-point in 0..1 instead of uint8.
        sync_on_compute, sync_timeout, process_group, name: see `FrechetInceptionDistance`.
        compute_on_cpu, compute_with_cache: accepted for compatibility with torchmetrics, without
            effect.
        dist_sync_on_step, dist_sync_fn, distributed_available_fn: accepted only as False or None.

    Attributes:
        result: the `Result` of the last ``compute``, with ``psnr`` and ``psnr_std``, the sample
            standard deviation, in ``values``, and the number of pairs as ``real`` and as ``fake``;
            None before it.

    Raises:
        fidtool.InputError: if a setting is out of range.
    """

    _metric = PSNR()


class StructuralSimilarityIndexMeasure(ReconstructionMetric):
    """SSIM (Wang et al. 2004) of pairs of images, with the interface of torchmetrics' metric of
    this name.

    The value is the mean over the pairs, in -1..1, with torchmetrics' default window (gaussian, 11
    pixels), computed in float64. Images must have at least 6x6 pixels. The values are ``ssim`` and
    ``ssim_std``. For the arguments, see `PeakSignalNoiseRatio`.
    """

    _metric = SSIM()
    plot_upper_bound = 1.0


class MultiScaleStructuralSimilarityIndexMeasure(ReconstructionMetric):
    """MS-SSIM (Wang et al. 2003) of pairs of images, with the interface of torchmetrics' metric of
    this name.

    The value is the mean over the pairs, in 0..1, from five scales with torchmetrics' default
    weights, computed in float64. Images must have at least 176x176 pixels. The values are
    ``ms_ssim`` and ``ms_ssim_std``. For the arguments, see `PeakSignalNoiseRatio`.
    """

    _metric = MultiScaleSSIM()
    plot_upper_bound = 1.0


class LearnedPerceptualImagePatchSimilarity(ReconstructionMetric):
    """LPIPS 0.1 (Zhang et al. 2018) of pairs of images, with the interface of torchmetrics' metric
    of this name.

    The value is the mean over the pairs, computed by the package lpips (``pip install
    'fidtool[lpips]'``). The network is neither in the parameters nor in the state_dict. The values
    are ``lpips`` and ``lpips_std``.

    Args:
        net_type: ``alex`` or ``vgg``.
        normalize: whether images are floating-point in 0..1 instead of uint8. Images in -1..1 are
            not accepted.
        weights: file with the weights of torchvision's alexnet or vgg16; None finds or downloads
            IMAGENET1K_V1.
        options: see `PeakSignalNoiseRatio`.

    Raises:
        fidtool.InputError: if there is no such network or weights file, or the package is missing.
        fidtool.RunError: if the weights cannot be downloaded.
    """

    higher_is_better = False
    plot_upper_bound = 1.0

    def __init__(
        self,
        net_type: Literal["alex", "vgg"] = "alex",
        *,
        normalize: bool = False,
        weights: PathLike | None = None,
        **options: Any,
    ) -> None:
        with rename_setting("net", "net_type"), rename_setting(LPIPS.named("weights"), "weights"):
            self._metric = LPIPS(net=net_type, weights=weights)
            super().__init__(normalize=normalize, **options)
