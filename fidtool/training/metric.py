"""FID as a metric for training loops, with the interface of torchmetrics."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fidtool.errors import InputError, RunError, as_fidtool_error, warn_program
from fidtool.features.network import Network
from fidtool.statistics.set_statistics import Statistics
from fidtool.training.feature_extractor import PathLike, SharedExtractor, pixels_of
from fidtool.training.group import (
    DEFAULT_TIMEOUT,
    Group,
    Ranks,
    group_rank_and_size,
    launched_without_group,
    outside_autograd,
    ranks_of,
    refuse_failed,
)
from fidtool.training.sums import ALL, STATE_NAMES, MetricSums, Result, check_same_settings
from fidtool.validation import LONGEST_SECONDS


class PlainMetric(nn.Module):
    """The parts of ``torchmetrics.Metric`` that are used here, for programs without torchmetrics.

    As a subclass of ``torchmetrics.Metric`` the metric can be in a ``MetricCollection`` and be moved, copied and logged
    like any other. Its state is not registered with torchmetrics, which does not synchronise it.
    """

    def __init__(self, sync_on_compute: bool, process_group: Any, compute_with_cache: bool) -> None:
        super().__init__()
        self.sync_on_compute, self.process_group = sync_on_compute, process_group
        self._anchor = torch.zeros(0, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        """The device on which the network runs."""
        return self._anchor.device

    def reset(self) -> None:
        """For ``super().reset()``."""

    def clone(self) -> PlainMetric:
        return copy.deepcopy(self)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PlainMetric:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._anchor = fn(self._anchor)
        return self


if TYPE_CHECKING:
    Base = PlainMetric
else:
    try:
        from torchmetrics import Metric as Base
    except ImportError:
        Base = PlainMetric

_made, _made_local = itertools.count(1), itertools.count(1)
"""Numbers of unnamed metrics: the same on all ranks that create their metrics in the same order."""
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or create the metric with "
    "sync_on_compute=False to compute the value of this rank only"
)


class FrechetInceptionDistance(Base):
    """FID of the images of all ranks, with the interface of torchmetrics' ``FrechetInceptionDistance``.

    The value does not depend on the number of ranks, on how the images are distributed over them, or on batches: it is
    bit-identical on one kind of device. ``compute`` cannot hang: if some ranks do not call it, the others raise an
    error that names them. A subclass of ``torchmetrics.Metric`` if torchmetrics is installed, which is optional.

    The accumulated statistics are part of ``state_dict`` once the metric has seen images. Each rank's state has only
    its own images: save the state of every rank, or one taken within ``with metric.sync_context():``, which has those
    of all ranks. Loading a ``state_dict`` without statistics leaves the metric unchanged.

    After a feature that is NaN, infinite or out of range, ``compute`` raises until ``reset``, because that image is
    missing from the statistics. If the network fails in ``update``, the images of that call are not added, and the call
    can be repeated.

    Args:
        feature: 64, 192, 768 or 2048 for a layer of Inception, the name of a network or ``FILE.py:NAME`` (as
            for ``--extractor``), or a `fidtool.Network`, which is copied.
        reset_real_features: whether ``reset`` also discards the real images.
        normalize: whether images are floating-point in 0..1 instead of uint8.
        protocol: name of a protocol; None is ``pytorch-fid``, as in ``fidtool compute``. ``tensorflow`` gives
            the value of torchmetrics with ``antialias=False``, of floats with ``float_to_byte="floor"``.
        float_to_byte: how floats become bytes: ``round``, or ``floor`` to truncate; None is what the protocol's tool
            does, ``floor`` for ``torchmetrics`` and ``round`` for all others, as in ``fidtool compute``.
        weights: file with the weights of Inception or of a named network; None finds or downloads the published ones.
        real_statistics: a statistics file (.npz) or `fidtool.Statistics`, instead of real images.
        sync_on_compute: whether ``compute`` covers the images of all ranks. If False, it covers this rank only,
            ``result.scope`` says so, and a warning is issued once.
        sync_timeout: seconds that ``compute`` waits for the other ranks.
        process_group: process group; None is all ranks.
        batch_size: images per forward pass; None is the device's default.
        name: identifies the metric on all ranks. Needed if some ranks create more metrics than others; None numbers the
            metrics in the order in which the program creates them.

    Attributes:
        result: the `Result` of the last ``compute``; None before it.

    Raises:
        fidtool.InputError: if there is no such layer, protocol, weights file or statistics file.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    plot_lower_bound = 0.0

    def __init__(
        self,
        feature: int | str | Network = 2048,
        reset_real_features: bool = True,
        normalize: bool = False,
        *,
        protocol: str | None = None,
        float_to_byte: str | None = None,
        weights: PathLike | None = None,
        real_statistics: PathLike | Statistics | None = None,
        sync_on_compute: bool = True,
        sync_timeout: float = DEFAULT_TIMEOUT,
        process_group: Group = None,
        batch_size: int | None = None,
        name: str | None = None,
    ) -> None:
        if batch_size is not None and (isinstance(batch_size, bool) or not batch_size >= 1):
            raise InputError(f"batch_size must be at least 1, not {batch_size!r}")
        with outside_autograd():
            features = SharedExtractor(feature, protocol, weights)
            sums = MetricSums(features, real_statistics, batch_size, features.rounding(float_to_byte))
        super().__init__(sync_on_compute=sync_on_compute, process_group=process_group, compute_with_cache=False)
        if not (isinstance(sync_timeout, (int, float)) and 0 < sync_timeout <= LONGEST_SECONDS):
            limits = f"above 0 and at most {LONGEST_SECONDS:.10g}"
            raise InputError(f"sync_timeout must be a number of seconds {limits}, not {sync_timeout!r}")
        self._to_sync = False  # torchmetrics must not synchronise in compute()
        self.sync_timeout = sync_timeout
        self._name, self._label = name, name or _numbered_label(sync_on_compute)
        self._sums = sums
        self._own: MetricSums | None = None  # this rank's, while `_sums` are those of all ranks
        self._updates = 0
        self.reset_real_features, self.normalize = reset_real_features, normalize
        self.result: Result | None = None
        self._saved = True
        self._warned: set[str] = set()
        self._warned_of_shared_images = False
        with outside_autograd():
            self._move()

    @property
    def reference_digest(self) -> str:
        """Fingerprint of the protocol and the fixed real statistics. Values with equal fingerprints are comparable."""
        settings = self._sums.settings()
        del settings["float_to_byte"]  # it only matters for floats
        return hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()

    @property
    def float_to_byte(self) -> str:
        """How floats become bytes: ``round`` or ``floor``."""
        return self._sums.float_to_byte

    @property
    def update_called(self) -> bool:
        """Whether ``update`` was called since the last ``reset``."""
        return self._updates > 0

    @property
    def update_count(self) -> int:
        """Number of successful calls of ``update`` since the last ``reset``."""
        return self._updates

    def update(self, images: torch.Tensor, real: bool) -> None:
        """Adds a batch of images. Not a collective: each rank may call it any number of times.

        Args:
            images: tensor of shape (n, 3, height, width), uint8 or, with ``normalize``, floating-point in 0..1; on the
                CPU or on the metric's device. The image size may differ between calls.
            real: whether the images are real (True) or generated (False).

        Raises:
            fidtool.InputError: if the shape, dtype, range or device is wrong.
            fidtool.RunError: if a feature is not finite. An exception of a custom network is raised as it is.
        """
        if real and self._sums.fixed_name:
            problem = f"the metric already has real statistics ({self._sums.fixed_name}):"
            raise InputError(problem, "call update() with generated images only")
        self._refuse_while_synced("update()")
        with outside_autograd():
            pixels = pixels_of(images, self.normalize, self.device, self.float_to_byte)
            self._sums.add(pixels, real, self.normalize)
        self._updates += 1

    def compute(self) -> torch.Tensor:
        """Returns the FID. A collective, unless ``sync_on_compute`` is False.

        Returns:
            float64 scalar tensor on the metric's device (float32 on MPS), the same on every rank.

        Raises:
            fidtool.training.AbsentRanksError: if some ranks did not call it within ``sync_timeout``; it names them.
            fidtool.InputError: if there are fewer than two real or generated images, or the ranks' settings differ.
            fidtool.RunError: if a rank was lost or failed.
        """
        ranks = ranks_of(self.process_group)
        with outside_autograd():
            together = self.sync_on_compute and self._own is None and ranks.size > 1
            self.result = self._compute_together(ranks) if together else self._compute_alone(ranks)
            dtype = torch.float32 if self.device.type == "mps" else torch.float64
            return torch.tensor(self.result.fid, dtype=dtype, device=self.device)

    def abandon(self, reason: str) -> None:
        """Call this instead of ``compute`` on a rank that failed: the other ranks immediately raise with ``reason``.

        Args:
            reason: what went wrong on this rank.
        """
        ranks = ranks_of(self.process_group)
        if self.sync_on_compute:
            with contextlib.suppress(RunError):
                ranks.exchange(
                    self._purpose("compute()"),
                    {**self._sums.settings(), "failed": reason, "lost": False},
                    self.sync_timeout,
                    _REMEDY,
                )

    def forward(self, images: torch.Tensor, real: bool) -> None:
        """Same as ``update``. Returns no value, because the FID of a single batch is meaningless."""
        self.update(images, real)

    def reset(self) -> None:
        """Discards all images, except the real ones if ``reset_real_features`` is False."""
        self.unsync()
        super().reset()
        self._updates = 0
        with outside_autograd():
            self._sums.forget(self.reset_real_features)

    def merge_state(self, incoming_state: object) -> None:
        """Adds another metric's images to this one's.

        Raises:
            fidtool.InputError: if it is not a metric of this class, or its network, protocol or real statistics differ.
        """
        self._refuse_while_synced("merge_state()")
        if not isinstance(incoming_state, FrechetInceptionDistance):
            kind = type(incoming_state).__name__
            raise InputError(f"merge_state() takes a fidtool.training.FrechetInceptionDistance, not {kind}")
        with outside_autograd():
            self._sums.absorb(incoming_state._sums)
        self._updates += incoming_state._updates

    def _refuse_while_synced(self, call: str) -> None:
        if self._own is not None:
            raise InputError(
                f"the metric is synced, and unsync() would discard the effect of {call}:", "call unsync() first"
            )

    # Synchronisation of all ranks.

    def sync(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        distributed_available: object = None,
    ) -> None:
        """Replaces this rank's images by those of all ranks until ``unsync``. A collective like ``compute``.

        Args:
            dist_sync_fn, process_group, distributed_available: accepted for compatibility with torchmetrics; ignored.
            should_sync: if False, do nothing.
        """
        ranks = ranks_of(self.process_group)
        if not should_sync or ranks.size == 1:
            return
        if self._own is not None:
            raise InputError("the metric is already synced:", "call unsync() first")
        with outside_autograd():
            purpose = self._purpose("sync()")
            self._wait_for_all(ranks, purpose)
            with ranks.world(purpose) as world:
                self._own, self._sums = self._sums, self._sums.merged(world)

    def unsync(self, should_unsync: bool = True) -> None:
        """Restores this rank's own images after ``sync``."""
        if should_unsync and self._own is not None:
            self._sums, self._own = self._own, None

    @contextlib.contextmanager
    def sync_context(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: object = None,
    ) -> Iterator[None]:
        """``sync`` for the duration of a ``with`` block. A ``state_dict`` taken within it has all ranks' images."""
        self.sync(should_sync=should_sync)
        try:
            yield
        finally:
            self.unsync(should_sync and should_unsync)

    def _purpose(self, method: str) -> str:
        return f"FrechetInceptionDistance.{method} of metric {self._label}"

    def _wait_for_all(self, ranks: Ranks, purpose: str) -> bool:
        """Flushes the statistics, waits until all ranks have done so, and checks that their settings are the same.

        Returns:
            Whether a rank lost images when a checkpoint was loaded.
        """
        failure: Exception | None = None
        try:
            self._sums.flush()
        except Exception as error:  # any error, such as out of memory, must be reported to the other ranks
            failure = error
        failed = "" if failure is None else str(as_fidtool_error(failure))
        payload = {**self._sums.settings(), "failed": failed, "lost": bool(self._sums.lost)}
        payloads = ranks.exchange(purpose, payload, self.sync_timeout, _REMEDY)
        if failure is not None:
            raise failure
        refuse_failed(payloads, ranks.ranks)
        check_same_settings(payloads, [f"the metric of rank {rank}" for rank in ranks.ranks])
        return any(payload["lost"] for payload in payloads)

    def _compute_together(self, ranks: Ranks) -> Result:
        purpose = self._purpose("compute()")
        lost = self._wait_for_all(ranks, purpose)
        with ranks.world(purpose) as world:
            merged = self._sums.merged(world)
            result = world.on_rank_zero(merged.distance)
        if ranks.group_rank == 0:
            if not self._warned_of_shared_images and (shared := merged.shared_images_warning(ranks.ranks)):
                self._warned_of_shared_images = True  # not left to `_warn`, as its numbers change between epochs
                self._warn(shared)
            self._warn(*result.warnings)
            self._warn("images from before the checkpoint are missing from this FID" if lost else "")
        return replace(result, scope=f"all {ranks.size} ranks")

    def _compute_alone(self, ranks: Ranks) -> Result:
        self._sums.flush()
        result = self._sums.distance()
        if self._own is not None:
            result = replace(result, scope=f"all {ranks.size} ranks")
        elif ranks.size > 1:
            result = replace(result, scope=f"rank {ranks.rank} of {ranks.size} alone")
            covers = f"this FID covers {result.scope} ({result.fake} generated images)"
            self._warn(f"sync_on_compute is False: {covers}")
        elif size := launched_without_group():
            result = replace(result, scope=f"one process of {size} alone")
            remedy = "call torch.distributed.init_process_group before compute()"
            self._warn(f"this FID covers {result.scope}: {remedy}")
        self._warn(*result.warnings)
        return result

    def _warn(self, *lines: str) -> None:
        for line in lines:
            if line and line not in self._warned:
                self._warned.add(line)
                warn_program(line)

    # Copies, devices and checkpoints.

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Gives a copy without a name a new number."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._label = self._name or _numbered_label(self.sync_on_compute)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, recurse: bool = True
    ) -> FrechetInceptionDistance:
        super()._apply(fn, *args)  # there are no child modules
        with outside_autograd():
            self._move()
        return self

    def _move(self) -> None:
        if self.device.type == "meta":  # temporarily, before `to_empty`
            return
        for sums in (self._sums, self._own):
            if sums is not None:
                sums.to(self.device)

    def persistent(self, mode: bool = False) -> None:
        """Sets whether the accumulated statistics are part of ``state_dict``; by default they are."""
        self._saved = mode

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._saved:
            group_rank, size = group_rank_and_size(self.process_group)
            with outside_autograd():
                state = self._sums.state(ALL if self._own is not None else group_rank, size)
            destination.update({prefix + name: value for name, value in state.items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        names = [name for name in state_dict if name.startswith(prefix) and name.removeprefix(prefix) in STATE_NAMES]
        state = {name.removeprefix(prefix): state_dict.pop(name) for name in names}
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not state:  # saved without statistics
            return
        self.unsync()
        with outside_autograd():
            self._warn(self._sums.restore(state, *group_rank_and_size(self.process_group)))


def _numbered_label(synced: bool) -> str:
    """Label of an unnamed metric.

    Unsynced metrics, which may exist on one rank only, have a separate count, so that they do not shift the others'.
    """
    return str(next(_made)) if synced else f"{next(_made_local)} (sync_on_compute=False)"
