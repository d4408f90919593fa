"""PSNR, SSIM, MS-SSIM and LPIPS of pairs of images for training loops, with the interfaces of torchmetrics."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
    KnownSamples,
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
    """A metric of pairs, and its network on one device. Copies share it; unpickling loads it again."""

    def __init__(self, metric: PairMetric) -> None:
        self.metric, self._device = metric, torch.device("meta")
        self._compare: Compare = metric.of_pair
        with one_at_a_time("weights", WEIGHTS_SECONDS), repeatable():
            self._state = metric.fetch(log_warning)
        self.digest = "" if self._state is None else f" of SHA-256 {digest_of(self._state.tensors)[:12]}"

    def on(self, device: torch.device) -> Compare:
        if device != self._device:
            self._compare, self._device = self.metric.on_device(self._state, device), device
        return self._compare

    def __deepcopy__(self, memo: dict[int, Any]) -> _Comparison:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Comparison, (self.metric,)


class PairValues(MetricState):
    """The values of pairs of images.

    Attributes:
        lost: pairs were lost when a checkpoint was loaded.
        different: after a merge, how many were left out because another rank has another target with their number.
            The reconstructions of a sample that a sampler gives to several ranks may differ.
        of_ranks: the hashes of each rank's pairs after a merge.
    """

    names = frozenset([SHARE, EVALUATED, _SETTINGS, _DIFFERENT, *_IN_STATE.values()])
    noun = "pairs"

    def __init__(self, metric: PairMetric) -> None:
        self.comparison, self._device = _Comparison(metric), torch.device("cpu")
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._parts: list[NDArray[Any]] = []
        self._samples = KnownSamples()
        self._sample = np.empty(0, _SAMPLED)
        self.lost, self.different, self.of_ranks = False, 0, list[NDArray[np.int64]]()

    def emptied(self) -> PairValues:
        other = copy.copy(self)
        other.clear()
        return other

    def to(self, device: torch.device) -> None:
        if device.type != "meta":  # temporarily, before `to_empty`
            self._device = device

    @property
    def rows(self) -> NDArray[Any]:
        """A row for each pair, in the order in which they were added."""
        return np.concatenate([np.empty(0, _ROW), *self._parts])

    @property
    def counted(self) -> str:
        return counted(self.added, "pair")

    @property
    def added(self) -> int:
        return sum(map(len, self._parts))

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
        images = [each.permute(0, 2, 3, 1).contiguous() for each in (real, fake)]
        with repeatable(), computing_on(self._device):
            compare = self.comparison.on(self._device)
            pool = DaemonThreads(device_of(self._device).forward_threads)
            futures = [pool.submit(lambda pair: compare(*pair), pair) for pair in zip(*images, strict=True)]
            try:
                rows["value"] = [future.result() for future in futures]
            except InputError as error:
                raise InputError(error.stated) from None  # the remedy is to omit a metric from a run
            finally:
                pool.close(1.0)
        if not np.isfinite(rows["value"]).all():
            raise RunError(f"{self.comparison.metric.numbers[0].title} of a pair is NaN or infinite")
        self._append_new(rows)
        self._sample = _first_of([self._sample, self._sampled(rows["hash"].view(np.uint64), *images)])
        return rows["value"]

    def _sampled(self, hashes: NDArray[np.uint64], real: torch.Tensor, fake: torch.Tensor) -> NDArray[Any]:
        """Returns the thumbnails of pairs that may be in the sample, of images of shape (n, height, width, 3)."""
        highest = self._sample["hash"][-1] if len(self._sample) == SAMPLE else None
        chosen = np.flatnonzero(hashes < highest) if highest is not None else np.arange(len(hashes))
        found = np.empty(len(chosen), _SAMPLED)
        found["hash"] = hashes[chosen]
        if len(chosen):
            for name, images in (("real", real), ("fake", fake)):
                found[name] = thumbnails(images[chosen].cpu().numpy())
        return found

    def _append_new(self, rows: NDArray[Any], different: int = 0) -> None:
        """Adds pairs whose sample was not added before, and ``different`` that were left out earlier."""
        new, others = self._samples.find_new(rows["sample"], rows["hash"])
        rows = rows[new]
        self._parts.append(rows)
        self._samples.add(rows["sample"], rows["hash"], different + others)

    # Synchronisation of all ranks.

    def settings(self) -> dict[str, Any]:
        # Without the path of the weights, which may differ between ranks.
        return {"own": f"{self.comparison.metric.name}{self.comparison.digest}"}

    def merged(self, world: World) -> PairValues:
        other = copy.copy(self)
        own = self.lost, self._samples.different, self.rows, self._sample
        of_lost, of_different, of_rows, of_sample = zip(*world.gather(own), strict=True)
        samples, targets = ([rows[name] for rows in of_rows] for name in ("sample", "target"))
        kept, other.different = each_once(samples, targets, list(map(len, samples)))
        other._parts = [rows[own] for rows, own in zip(of_rows, kept, strict=True)]
        other.lost, other._sample = any(of_lost), _first_of(of_sample)
        other._samples = KnownSamples()
        other._samples.different = sum(of_different)
        other.of_ranks = [rows["hash"][rows["sample"] == UNKNOWN] for rows in other._parts]
        return other

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        rows = self.rows
        if self.lost:
            yield "pairs from before the checkpoint are missing from the value"
        if again := added_again(*(rows["hash"][rows["restored"] == old] for old in (False, True))):
            yield (
                f"{again} pairs that were added after a checkpoint was loaded are in it too and count twice: call "
                "reset() after loading it, or omit persistent(True)"
            )
        yield from left_out(self._samples.different + self.different, self.noun)
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
        self.lost |= other.lost
        self._sample = _first_of([self._sample, other._sample])
        self._append_new(other.rows, other._samples.different)

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        rows = self.rows
        if not len(rows):
            return {}
        state = {key: torch.from_numpy(rows[name].copy()) for name, key in _IN_STATE.items()}
        state[_DIFFERENT] = torch.tensor(self._samples.different, device="cpu")
        state[_SETTINGS] = torch.frombuffer(bytearray(self.settings()["own"].encode()), dtype=torch.uint8)
        return {**state, SHARE: torch.tensor([group_rank, size], device="cpu")}

    def _saved_settings(self, state: State) -> dict[str, Any]:
        return {"own": bytes(state[_SETTINGS].tolist()).decode()}

    def _lose(self, state: State) -> None:
        self.lost = True

    def _take(self, state: State) -> None:
        try:
            columns = {name: state[key].cpu().numpy() for name, key in _IN_STATE.items()}
            rows = np.zeros(len(columns["value"]), _ROW)
            for name, column in columns.items():
                if column.shape != rows.shape or column.dtype != rows[name].dtype or not np.isfinite(column).all():
                    raise ValueError(f"{_IN_STATE[name]} has {column.dtype} of shape {column.shape}")
                rows[name] = column
            different = int(state[_DIFFERENT])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint's values of pairs are not those of a metric: {error}") from None
        rows["restored"] = True
        self._append_new(rows, different)


def _first_of(samples: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns the pairs of lowest hashes of several samples, each once: the same on any number of ranks."""
    joined = np.concatenate(samples)
    first = np.unique(joined["hash"], return_index=True)[1]
    return joined[first[:SAMPLE]]


class ReconstructionMetric(SyncedMetric[torch.Tensor, PairValues]):
    """Base class of the metrics of pairs of images, whose arguments are those of `PeakSignalNoiseRatio`.

    A subclass sets ``_title`` and ``_metric`` before it calls ``__init__``.
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
            problem = f"data_range must be 1 for floats in 0..1, or 255 for uint8 images, not {data_range!r}"
            raise InputError(problem, setting="data_range")
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
        shapes = [tuple(getattr(images, "shape", ())) for images in (preds, target)]
        if shapes[0] != shapes[1]:
            raise InputError(f"preds and target must have the same shape, not {shapes[0]} and {shapes[1]}")
        with outside_autograd():
            with about("preds"):
                fake = pixels_of(preds, self.normalize, self.device, "round")
            with about("target"):
                real = pixels_of(target, self.normalize, self.device, "round")
            samples = None if index is None else sample_numbers(index, len(real), "pairs")
            values = self._sums.add(real, fake, samples)
            self._warn(*self._sums.mixed())
            mean = math.fsum(values.tolist()) / len(values) if len(values) else math.nan
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

    def _measure(self, sums: PairValues, world: World, scope: str) -> Result:
        values = sums.rows["value"]
        if not len(values):
            problem = f"{self._title} needs at least 1 pair of images, but there are 0:"
            raise on_every_rank(TooFewImagesError(problem, "add them with update(preds, target)"))
        context = MetricContext(world, feature_settings(None, self.device), partial(Weights, {}, ""))
        real, fake = FeatureSet("real images", None, None), FeatureSet("generated images", None, None)
        found = self._metric.compute(real, replace(fake, pairs={self._metric.name: values}), context)
        return Result(found, len(values), len(values), scope, tuple(map(rendered, context.warnings)))


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

    _title = "PSNR"
    _metric = PSNR()


class StructuralSimilarityIndexMeasure(ReconstructionMetric):
    """SSIM (Wang et al. 2004) of pairs of images, with the interface of torchmetrics' metric of this name.

    The mean over the pairs, in -1..1, with torchmetrics' default window, gaussian of 11 pixels; in float64. Images have
    at least 6x6 pixels. Values are ``ssim`` and ``ssim_std``; for the arguments see `PeakSignalNoiseRatio`.
    """

    _title = "SSIM"
    _metric = SSIM()
    plot_upper_bound = 1.0


class MultiScaleStructuralSimilarityIndexMeasure(ReconstructionMetric):
    """MS-SSIM (Wang et al. 2003) of pairs of images, with the interface of torchmetrics' metric of this name.

    The mean over the pairs, in 0..1, of five scales with torchmetrics' default weights; in float64. Images have at
    least 176x176 pixels. Values are ``ms_ssim`` and ``ms_ssim_std``; for the arguments see `PeakSignalNoiseRatio`.
    """

    _title = "MS-SSIM"
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

    _title = "LPIPS"
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
        with renamed("net", "net_type"), renamed("LPIPS(lpips.weights)", "weights"):
            self._metric = LPIPS(net=net_type, weights=weights)
            super().__init__(normalize=normalize, **options)
