"""PSNR, SSIM, MS-SSIM and LPIPS of pairs of images for training loops, with the interfaces of torchmetrics."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.cache_dir import one_at_a_time
from fidtool.console import log_warning
from fidtool.diagnose.order import SAMPLE, misplaced
from fidtool.distances.exact import feature_settings
from fidtool.distances.parallel import fork_safe
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, TooFewImagesError, about, on_every_rank, renamed, rendered
from fidtool.features.device import computing_on, device_of, repeatable
from fidtool.features.models.inception import Weights
from fidtool.features.network import digest_of
from fidtool.images.records import RECORD, thumbnails
from fidtool.images.workers import DaemonThreads
from fidtool.metrics.lpips import LPIPS
from fidtool.metrics.metric import FeatureSet, MetricContext
from fidtool.metrics.pairs import Compare, PairMetric
from fidtool.metrics.psnr import PSNR
from fidtool.metrics.ssim import SSIM, MultiScaleSSIM
from fidtool.names import counted
from fidtool.training.feature_extractor import WEIGHTS_SECONDS, PathLike, flag, image_hashes, pixels_of
from fidtool.training.group import DEFAULT_TIMEOUT, Group, outside_autograd
from fidtool.training.samples import Index, sample_numbers
from fidtool.training.sums import (
    EVALUATED,
    PADDED,
    SHARE,
    UNKNOWN,
    MetricState,
    Result,
    State,
    added_again,
    check_same_settings,
    each_once,
    left_out,
    on_several,
)
from fidtool.training.synced_metric import SyncedMetric

_COLUMNS = {"value": np.float64, "hash": np.int64, "target": np.int64, "sample": np.int64}
"""What is known of each pair: its value, hashes of its images and of the target, its number in the data set."""
_ROW = np.dtype([*_COLUMNS.items(), ("restored", np.bool_)])
_IN_STATE = {name: f"pair_{name}" for name in _COLUMNS}
"""The keys of these in the state."""
_DIFFERENT, _SETTINGS = "pair_different", "pair_settings"
_THUMBNAIL = RECORD["thumb"]
_SAMPLED = np.dtype([("hash", np.uint64), ("real", _THUMBNAIL), ("fake", _THUMBNAIL)])
"""The thumbnails of a pair, by which the warning of pairs in different orders is decided."""
_HASH_FACTOR = 6364136223846793005
"""Makes the hash of a pair depend on which of its images is which: the multiplier of Knuth's MMIX generator."""


class _Comparison:
    """A metric of pairs, and its network on one device. Copies share it; unpickling loads it again.

    Attributes:
        title: the metric and its network, which must be the same on all ranks. It has not the path of the weights,
            which may differ between ranks.
    """

    def __init__(self, metric: PairMetric) -> None:
        self.metric = metric
        with one_at_a_time("weights", WEIGHTS_SECONDS), repeatable():
            self._state = metric.fetch(log_warning)
        self.title = metric.name
        if self._state is not None:
            self.title += f" of SHA-256 {digest_of(self._state.tensors)[:12]}"
        self._by_device: dict[torch.device, Compare] = {}

    def on(self, device: torch.device) -> Compare:
        if device not in self._by_device:
            self._by_device = {device: self.metric.on_device(self._state, device)}
        return self._by_device[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Comparison:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Comparison, (self.metric,)


class PairValues(MetricState):
    """The values of pairs of images.

    Attributes:
        left_out: number of pairs that were left out although another pair has their number. Of the pairs of two ranks
            only the targets are compared, because reconstructions of a sample that a sampler gives to both may differ.
        lost: pairs were lost when a checkpoint was loaded.
        of_ranks: the hashes of each rank's pairs after a merge.
    """

    names = frozenset([SHARE, EVALUATED, _SETTINGS, _DIFFERENT, *_IN_STATE.values()])
    noun = "pairs"

    def __init__(self, metric: PairMetric) -> None:
        self.comparison = _Comparison(metric)
        self._device = torch.device("cpu")
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._parts = [np.empty(0, _ROW)]
        self._sample = np.empty(0, _SAMPLED)
        self.left_out = 0
        self.lost = False
        self.of_ranks: list[NDArray[np.int64]] = []

    def emptied(self) -> PairValues:
        other = copy.copy(self)
        other.clear()
        return other

    def to(self, device: torch.device) -> None:
        if device.type != "meta":  # temporarily, before `to_empty`
            self._device = device

    @property
    def rows(self) -> NDArray[Any]:
        """A row for each pair, in the order in which they were added. Those that repeat a sample are left out here."""
        if len(self._parts) > 1:
            rows = np.concatenate(self._parts)
            (kept,), different = each_once([rows["sample"]], [rows["hash"]], [len(rows)])
            self.left_out += different
            self._parts = [rows[kept]]
        return self._parts[0]

    @property
    def counted(self) -> str:
        return counted(self.added, "pair")

    @property
    def added(self) -> int:
        return len(self.rows)

    def flush(self) -> None:
        """Does nothing: values are computed when pairs are added."""

    def add(self, real: torch.Tensor, fake: torch.Tensor, samples: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """Adds pairs, uint8 tensors of shape (n, 3, height, width), and returns their values.

        If a pair cannot be compared, none of them is added.
        """
        rows = np.zeros(len(real), _ROW)
        rows["sample"] = UNKNOWN if samples is None else samples
        targets = image_hashes(real)
        rows["target"] = targets.numpy()
        rows["hash"] = (targets * _HASH_FACTOR + image_hashes(fake)).numpy()
        real, fake = (images.permute(0, 2, 3, 1).contiguous() for images in (real, fake))
        rows["value"] = self._values(real, fake)
        if not np.isfinite(rows["value"]).all():
            raise RunError(f"{self.comparison.metric.numbers[0].title} of a pair is NaN or infinite")
        self._parts.append(rows)
        self._add_to_sample(rows["hash"].view(np.uint64), real, fake)
        return rows["value"]

    def _values(self, real: torch.Tensor, fake: torch.Tensor) -> list[float]:
        """Returns the values of pairs of images, of shape (n, height, width, 3)."""
        with repeatable(), computing_on(self._device):
            compare = self.comparison.on(self._device)
            pool = DaemonThreads(device_of(self._device).forward_threads)
            futures = [pool.submit(lambda pair: compare(*pair), pair) for pair in zip(real, fake, strict=True)]
            try:
                return [future.result() for future in futures]
            except InputError as error:
                raise InputError(error.stated) from None  # the remedy is to omit a metric from a run
            finally:
                pool.close(1.0)

    def _add_to_sample(self, hashes: NDArray[np.uint64], real: torch.Tensor, fake: torch.Tensor) -> None:
        """Adds the thumbnails of pairs that may be among those of the lowest hashes, of images as in `_values`."""
        limit = self._sample["hash"][-1] if len(self._sample) == SAMPLE else np.iinfo(np.uint64).max
        chosen = np.flatnonzero(hashes < limit)
        if len(chosen):
            added = np.empty(len(chosen), _SAMPLED)
            added["hash"] = hashes[chosen]
            added["real"] = thumbnails(real[chosen].cpu().numpy())
            added["fake"] = thumbnails(fake[chosen].cpu().numpy())
            self._sample = _first_of([self._sample, added])

    # Synchronisation of all ranks.

    def settings(self) -> dict[str, Any]:
        return {"own": self.comparison.title}

    def merged(self, world: World) -> PairValues:
        other = copy.copy(self)
        rows = self.rows
        every = world.gather((rows, self._sample, self.left_out, self.lost))
        of_rows, of_samples, of_left_out, of_lost = zip(*every, strict=True)
        numbers = [rows["sample"] for rows in of_rows]
        kept, different = each_once(numbers, [rows["target"] for rows in of_rows], [len(rows) for rows in of_rows])
        each_rank = [rows[own] for rows, own in zip(of_rows, kept, strict=True)]
        other._parts = [np.concatenate(each_rank)]
        other._sample = _first_of(of_samples)
        other.left_out = sum(of_left_out) + different
        other.lost = any(of_lost)
        other.of_ranks = [rows["hash"][rows["sample"] == UNKNOWN] for rows in each_rank]
        return other

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        rows = self.rows
        restored = rows["restored"]
        if self.lost:
            yield "pairs from before the checkpoint are missing from the value"
        if again := added_again(rows["hash"][~restored], rows["hash"][restored]):
            yield (
                f"{again} pairs that were added after a checkpoint was loaded are in it too and count twice: call "
                "reset() after loading it, or omit persistent(True)"
            )
        yield from left_out(self.left_out, self.noun)
        if wrong := len(misplaced(self._sample["real"], self._sample["fake"])[0]):
            yield (
                f"{wrong} of {len(self._sample)} sampled preds fit the target of another pair better than their own: "
                "the two are probably in different orders, and the value is then meaningless. Take both from the same "
                "batch, and gather both from the ranks in the same way"
            )
        shared, on = on_several(self.of_ranks, ranks)
        if shared:
            yield f"{shared} of {len(rows)} pairs are on more than one rank ({on}) and count again. Probably {PADDED}"

    def absorb(self, other: PairValues) -> None:
        check_same_settings([self.settings(), other.settings()], ("this metric", "the other metric"))
        self._parts.append(other.rows)
        self._sample = _first_of([self._sample, other._sample])
        self.left_out += other.left_out
        self.lost |= other.lost

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        rows = self.rows
        if not len(rows):
            return {}
        state = {key: torch.from_numpy(rows[name].copy()) for name, key in _IN_STATE.items()}
        state[_DIFFERENT] = torch.tensor(self.left_out, device="cpu")
        state[_SETTINGS] = torch.frombuffer(bytearray(self.comparison.title.encode()), dtype=torch.uint8)
        state[SHARE] = torch.tensor([group_rank, size], device="cpu")
        return state

    def _saved_settings(self, state: State) -> dict[str, Any]:
        return {"own": bytes(state[_SETTINGS].tolist()).decode()}

    def _lose(self, state: State) -> None:
        self.lost = True

    def _take(self, state: State) -> None:
        try:
            rows = np.zeros(len(state[_IN_STATE["value"]]), _ROW)
            for name, key in _IN_STATE.items():
                column = state[key].cpu().numpy()
                if column.shape != rows.shape or column.dtype != _COLUMNS[name] or not np.isfinite(column).all():
                    raise ValueError(f"{key} has {column.dtype} of shape {column.shape}")
                rows[name] = column
            self.left_out = int(state[_DIFFERENT])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint's values of pairs are not those of a metric: {error}") from None
        rows["restored"] = True
        self._parts.append(rows)


def _first_of(samples: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns the pairs of lowest hashes of several samples, each once: the same on any number of ranks."""
    joined = np.concatenate(samples)
    first = np.unique(joined["hash"], return_index=True)[1]
    return joined[first[:SAMPLE]]


class ReconstructionMetric(SyncedMetric[torch.Tensor, PairValues]):
    """Base class of the metrics of pairs of images, whose arguments are those of `PeakSignalNoiseRatio`.

    A subclass sets ``_metric`` before it calls ``__init__``.
    """

    _metric: PairMetric
    _theirs = re.compile(r"net\.|(sum_squared_error|total|data_range|similarity|all_scores)$")
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
                f"data_range must be 1 for floats in 0..1, or 255 for uint8 images, not {data_range!r}",
                setting="data_range",
            )
        scaled = flag("normalize", normalize) or data_range == 1
        theirs = dist_sync_on_step, dist_sync_fn, distributed_available_fn
        super().__init__(scaled, sync_on_compute, sync_timeout, process_group, name, theirs)
        with outside_autograd():
            self._sums = PairValues(self._metric)
            self._sums.to(self.device)

    @fork_safe
    def update(self, preds: torch.Tensor, target: torch.Tensor, index: Index | None = None) -> None:
        """Adds a batch of pairs. Not a collective: each rank may call it any number of times, also never.

        Args:
            preds: the generated images or reconstructions, a tensor of shape (n, 3, height, width), or
                (n, 1, height, width) for grayscale, uint8 or, with ``normalize``, floating-point in 0..1, which are
                rounded to bytes; on the CPU or on the metric's device. The image size may differ between calls.
            target: the real images that they belong to, of the same shape.
            index: number of each pair's sample in the data set: integers, a tensor or list of shape (n,). Pairs of one
                sample count once until ``reset``, whichever ranks add them. None counts each pair. See `WithIndex`.

        Raises:
            fidtool.InputError: if shape, dtype, range, device or index is wrong, or the images are too small.
            fidtool.RunError: if a value is not finite.
        """
        self._refuse_while_synced("update()")
        given, wanted = (tuple(getattr(images, "shape", ())) for images in (preds, target))
        if given != wanted:
            raise InputError(f"preds and target must have the same shape, not {given} and {wanted}")
        with outside_autograd():
            with about("preds"):
                fake = pixels_of(preds, self.normalize, self.device, "round")
            with about("target"):
                real = pixels_of(target, self.normalize, self.device, "round")
            samples = None if index is None else sample_numbers(index, len(real), "pairs")
            values = self._sums.add(real, fake, samples).tolist()
            self._warn(*self._sums.mixed())
            mean = fmean(values) if values else math.nan
            # Lightning logs it with on_step=True.
            self._forward_cache = torch.tensor(mean, dtype=torch.float64, device=self.device)

    def compute(self) -> torch.Tensor:
        """Returns the mean of all ranks' pairs. A collective, unless ``sync_on_compute`` is False.

        Returns:
            A float64 scalar tensor on the metric's device, the same on every rank.

        Raises:
            fidtool.training.AbsentRanksError: if some ranks did not call it within ``sync_timeout``; it names them.
            fidtool.InputError: if there are no pairs on any rank, or the ranks' settings differ.
            fidtool.RunError: if a rank was lost or failed.
        """
        return self._compute_by_name()[self._metric.numbers[0].name]

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Calls ``update``, and returns the mean of this rank's pairs of this batch; NaN if there are none."""
        self.update(*args, **kwargs)
        return self._forward_cache

    def reset(self) -> None:
        """Discards all pairs."""
        self.unsync()
        super().reset()
        self._sums.clear()

    def _measure(self, sums: PairValues, world: World) -> Result:
        values = sums.rows["value"]
        if not len(values):
            problem = f"{self._title} needs at least 1 pair of images, but there are 0:"
            raise on_every_rank(TooFewImagesError(problem, "add them with update(preds, target)"))
        real = FeatureSet("real images", None, None)
        fake = FeatureSet("generated images", None, None, pairs={self._metric.name: values})
        context = MetricContext(feature_settings(None, self.device, world), partial(Weights, {}, ""))
        found = self._metric.compute(real, fake, context)
        return Result(
            found, len(values), len(values), warnings=tuple(rendered(str(warning)) for warning in context.warnings)
        )


class PeakSignalNoiseRatio(ReconstructionMetric):
    """PSNR of pairs of images in dB, with the interface of torchmetrics' ``PeakSignalNoiseRatio``.

    The value is the mean over the pairs of 10 log10(1 / MSE), with values in 0..1, as papers on reconstructions report
    it, and has the same bits as that of ``fidtool compute`` and at any number of ranks, however the pairs are
    distributed and batched. torchmetrics' pools the squared error over all images instead, which is lower. Identical
    images count as 100 dB.

    ``compute`` cannot hang: if some ranks do not call it, the others raise an error that names them. A subclass of
    ``torchmetrics.Metric`` if torchmetrics is installed, which is optional. The images have no gradient: use
    torchmetrics' functions for a loss. The values of the pairs are part of ``state_dict`` after ``persistent(True)``,
    as are the statistics of `FrechetInceptionDistance`.

    Args:
        data_range: 1 is ``normalize=True``, and 255 is ``normalize=False``, as in torchmetrics.
        normalize: whether images are floating-point in 0..1 instead of uint8.
        sync_on_compute, sync_timeout, process_group, name: see `FrechetInceptionDistance`.
        compute_on_cpu, compute_with_cache: without effect, for torchmetrics' sake.
        dist_sync_on_step, dist_sync_fn, distributed_available_fn: refused unless False or None.

    Attributes:
        result: the `Result` of the last ``compute``, with ``psnr`` and ``psnr_std``, the sample standard deviation, in
            ``values``, and the number of pairs as ``real`` and as ``fake``; None before it.

    Raises:
        fidtool.InputError: if a setting is out of range.
    """

    _metric = PSNR()


class StructuralSimilarityIndexMeasure(ReconstructionMetric):
    """SSIM (Wang et al. 2004) of pairs of images, with the interface of torchmetrics' metric of this name.

    The mean over the pairs, in -1..1, with torchmetrics' default window, gaussian of 11 pixels; in float64. Images have
    at least 6x6 pixels. Values are ``ssim`` and ``ssim_std``; for the arguments see `PeakSignalNoiseRatio`.
    """

    _metric = SSIM()
    plot_upper_bound = 1.0


class MultiScaleStructuralSimilarityIndexMeasure(ReconstructionMetric):
    """MS-SSIM (Wang et al. 2003) of pairs of images, with the interface of torchmetrics' metric of this name.

    The mean over the pairs, in 0..1, of five scales with torchmetrics' default weights; in float64. Images have at
    least 176x176 pixels. Values are ``ms_ssim`` and ``ms_ssim_std``; for the arguments see `PeakSignalNoiseRatio`.
    """

    _metric = MultiScaleSSIM()
    plot_upper_bound = 1.0


class LearnedPerceptualImagePatchSimilarity(ReconstructionMetric):
    """LPIPS 0.1 (Zhang et al. 2018) of pairs of images, with the interface of torchmetrics' metric of this name.

    The mean over the pairs, by the package lpips (``pip install 'fidtool[lpips]'``). Its network is neither in the
    parameters nor in the state_dict. Values are ``lpips`` and ``lpips_std``.

    Args:
        net_type: ``alex`` or ``vgg``.
        normalize: whether images are floating-point in 0..1 instead of uint8; never in -1..1.
        weights: file with the weights of torchvision's alexnet or vgg16; None finds or downloads IMAGENET1K_V1.
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
        with renamed("net", "net_type"), renamed(LPIPS.named("weights"), "weights"):
            self._metric = LPIPS(net=net_type, weights=weights)
            super().__init__(normalize=normalize, **options)
