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
from fidtool.statistics.statistics_file import Statistics
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
    """What is used of ``torchmetrics.Metric``, for programs without it.

    As a ``torchmetrics.Metric`` the metric can stand in a ``MetricCollection`` and be moved, copied and logged like the
    others. Its states are not torchmetrics' and are not synchronized by it.

    Args:
        sync_on_compute: whether ``compute`` is about all ranks.
        process_group: whose ranks; None is all.
        compute_with_cache: as torchmetrics has it, of no effect here.
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
        """Nothing to reset."""

    def clone(self) -> PlainMetric:
        """A copy."""
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
"""Numbers of metrics without a name: equal on all ranks that make their metrics in the same order."""
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or make the metric with sync_on_compute=False "
    "to have this rank's own value"
)


class FrechetInceptionDistance(Base):
    """FID of the images that all ranks have seen, with the interface of torchmetrics' metric of that name.

    The value depends neither on how many ranks there are, nor on how the images were dealt to them, nor on batches:
    the same bits on one kind of device. ``compute`` cannot hang: ranks that never call it are named by the others.
    It is a ``torchmetrics.Metric`` where torchmetrics is installed, and does not need it.

    Between a checkpoint's writing and reading the sums are kept in ``state_dict`` (while there are any). Each rank's
    hold its own images: save every rank's, or one taken inside ``with metric.sync_context():``, which holds all. A
    ``state_dict`` without any leaves a metric as it is.

    A feature that is NaN, infinite or out of range is an error in ``compute`` until ``reset``, since its image is
    missing. Where the network itself fails in ``update``, that call's images were not taken in and may be given again.

    Args:
        feature: 64, 192, 768 or 2048 dimensions of Inception, ``path/to/file.py:factory`` as ``--extractor`` takes it,
            or a `fidtool.Network`, which is copied as it is now.
        reset_real_features: whether ``reset`` forgets the real images too.
        normalize: images are floating-point numbers in 0..1 (cut to 8 bits as torchmetrics does) instead of uint8.
        protocol: name of a protocol; None is ``pytorch-fid``, as in ``fidtool compute``. ``tensorflow`` gives
            torchmetrics' value with ``antialias=False``.
        weights: file of Inception weights; None searches.
        real_statistics: a statistics file (.npz) or `fidtool.Statistics` in the place of real images.
        sync_on_compute: whether ``compute`` is about the images of all ranks; else it is this rank's own value, says
            so in ``result.scope`` and warns once.
        sync_timeout: seconds that the other ranks may take to come to ``compute``.
        process_group: whose ranks; None is all.
        batch_size: images in a forward pass; None is the device's default.
        name: by which ranks tell metrics apart; needed where some rank makes more of them than others. None goes by
            the order in which a program makes them.

    Attributes:
        result: a `Result`, once ``compute`` was called.

    Raises:
        fidtool.InputError: no such layer, protocol, weights or statistics.
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
            sums = MetricSums(SharedExtractor(feature, protocol, weights), real_statistics, batch_size)
        super().__init__(sync_on_compute=sync_on_compute, process_group=process_group, compute_with_cache=False)
        if not (isinstance(sync_timeout, (int, float)) and 0 < sync_timeout <= LONGEST_SECONDS):
            limits = f"above 0, {LONGEST_SECONDS:g} at most"
            raise InputError(f"sync_timeout must be a number of seconds {limits}, not {sync_timeout!r}")
        self._to_sync = False  # torchmetrics must not synchronize in compute()
        self.sync_timeout = sync_timeout
        self._name, self._label = name, name or _numbered_label(sync_on_compute)
        self._sums = sums
        self._own: MetricSums | None = None  # while `_sums` are those of all ranks
        self._updates = 0
        self._removed_real = False  # by reset()
        self.reset_real_features, self.normalize = reset_real_features, normalize
        self.result: Result | None = None
        self._saved = True
        self._warned: set[str] = set()
        self._warned_of_shared_images = False
        with outside_autograd():
            self._move()

    @property
    def reference_digest(self) -> str:
        """Fingerprint of the protocol and of the fixed real statistics: values of equal ones compare."""
        return hashlib.sha256(repr(sorted(self._sums.settings().items())).encode()).hexdigest()

    @property
    def update_called(self) -> bool:
        """Whether anything was given to ``update`` since the last ``reset``."""
        return self._updates > 0

    @property
    def update_count(self) -> int:
        """How often ``update`` has taken images in since the last ``reset``."""
        return self._updates

    def update(self, images: torch.Tensor, real: bool) -> None:
        """Takes a batch of images in. No collective: ranks may call it as often as they like, or not at all.

        Args:
            images: shape (n, 3, height, width); uint8, or with ``normalize`` floating-point in 0..1. Any size, and
                sizes may change from call to call; on the CPU or on the metric's device.
            real: whether they are real or generated.

        Raises:
            fidtool.InputError: another shape, dtype, range or device.
            fidtool.RunError: the network failed, or a feature is not finite.
        """
        if real and self._sums.fixed_name:
            raise InputError(f"the real images are those of {self._sums.fixed_name}:", "update this with fakes only")
        self._refuse_while_synced("update()")
        with outside_autograd():
            self._sums.add(pixels_of(images, self.normalize, self.device), real)
        self._updates += 1

    def compute(self) -> torch.Tensor:
        """The distance. A collective, unless ``sync_on_compute`` is off.

        Returns:
            float64 tensor without dimensions on the metric's device (float32 on Apple's), the same on every rank.

        Raises:
            fidtool.training.AbsentRanksError: some ranks did not come within ``sync_timeout``; it names them.
            fidtool.InputError: fewer than two real or generated images, or ranks with different settings.
            fidtool.RunError: a rank was lost or failed.
        """
        ranks = ranks_of(self.process_group)
        with outside_autograd():
            together = self.sync_on_compute and self._own is None and ranks.size > 1
            self.result = self._compute_together(ranks) if together else self._compute_alone(ranks)
            dtype = torch.float32 if self.device.type == "mps" else torch.float64
            return torch.tensor(self.result.fid, dtype=dtype, device=self.device)

    def abandon(self, reason: str) -> None:
        """What a rank calls instead of ``compute`` when it cannot: the others raise an error with ``reason`` at once.

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
        """The same as ``update``: the FID of a single batch would mean nothing."""
        self.update(images, real)

    def reset(self) -> None:
        """Forgets the images seen; with ``reset_real_features=False`` it keeps the real ones."""
        self.unsync()
        super().reset()
        self._updates = 0
        with outside_autograd():
            self._sums.forget(self.reset_real_features)
        self._removed_real = self.reset_real_features

    def merge_state(self, incoming_state: object) -> None:
        """Adds another metric's images to this one's.

        Raises:
            fidtool.InputError: it is no metric of this kind, or has another network, protocol or real statistics.
        """
        self._refuse_while_synced("merge_state()")
        if not isinstance(incoming_state, FrechetInceptionDistance):
            raise InputError("merge_state takes another fidtool.training.FrechetInceptionDistance")
        with outside_autograd():
            self._sums.absorb(incoming_state._sums)
        self._updates += incoming_state._updates

    def _refuse_while_synced(self, call: str) -> None:
        if self._own is not None:
            raise InputError(f"{call} between sync() and unsync() would be forgotten")

    # All ranks together.

    def sync(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        distributed_available: object = None,
    ) -> None:
        """Puts the images of all ranks in the place of this one's until ``unsync``. A collective like ``compute``.

        Args:
            dist_sync_fn, process_group, distributed_available: as torchmetrics has them, of no effect here.
            should_sync: False does nothing.
        """
        ranks = ranks_of(self.process_group)
        if not should_sync or ranks.size == 1:
            return
        if self._own is not None:
            raise InputError("the metric is synced already: unsync() comes first")
        with outside_autograd():
            purpose = self._purpose("sync()")
            self._wait_for_all(ranks, purpose)
            with ranks.world(purpose) as world:
                self._own, self._sums = self._sums, self._sums.merged(world)

    def unsync(self, should_unsync: bool = True) -> None:
        """Back to this rank's own images."""
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
        """``sync`` for the length of a ``with`` block: a ``state_dict`` taken in it holds the images of all ranks."""
        self.sync(should_sync=should_sync)
        try:
            yield
        finally:
            self.unsync(should_sync and should_unsync)

    def _purpose(self, method: str) -> str:
        """What the ranks meet for; it tells metrics apart."""
        return f"FrechetInceptionDistance.{method} of metric {self._label}"

    def _wait_for_all(self, ranks: Ranks, purpose: str) -> bool:
        """Waits for the other ranks; each has flushed its sums, and all have the same settings.

        Returns:
            Whether a rank lost images when a checkpoint was read.
        """
        failure: Exception | None = None
        try:
            self._sums.flush()
        except Exception as error:  # of any kind, such as out of memory: the others must hear of it
            failure = error
        failed = "" if failure is None else str(as_fidtool_error(failure))
        payload = {**self._sums.settings(), "failed": failed, "lost": self._sums.lost}
        payloads = ranks.exchange(purpose, payload, self.sync_timeout, _REMEDY)
        if failure is not None:
            raise failure
        refuse_failed(payloads, ranks.ranks)
        check_same_settings(payloads, [f"rank {rank}" for rank in ranks.ranks])
        return any(payload["lost"] for payload in payloads)

    def _compute_together(self, ranks: Ranks) -> Result:
        purpose = self._purpose("compute()")
        lost = self._wait_for_all(ranks, purpose)
        with ranks.world(purpose) as world:
            merged = self._sums.merged(world)
            result = world.on_rank_zero(lambda: self._distance(merged))
        if ranks.group_rank == 0:
            if not self._warned_of_shared_images and (shared := merged.shared_images_warning(ranks.ranks)):
                self._warned_of_shared_images = True  # the numbers in it change from epoch to epoch
                self._warn(shared)
            self._warn(*result.warnings)
            self._warn("images that ranks had seen before the checkpoint are missing from this FID" if lost else "")
        return replace(result, scope=f"all {ranks.size} ranks")

    def _distance(self, sums: MetricSums) -> Result:
        try:
            return sums.distance()
        except InputError as error:
            if not self._removed_real or sums.has_real_images:
                raise
            remedy = "make the metric with reset_real_features=False to keep them"
            raise error.noted(f". reset() removes the real images: {remedy}") from None

    def _compute_alone(self, ranks: Ranks) -> Result:
        self._sums.flush()
        result = self._distance(self._sums)
        if self._own is not None:
            result = replace(result, scope=f"all {ranks.size} ranks")
        elif ranks.size > 1:
            result = replace(result, scope=f"rank {ranks.rank} of {ranks.size} alone")
            fid = f"this is the FID of {result.scope}, of its own {result.fake} fakes"
            self._warn(f"sync_on_compute is off: {fid}")
        elif size := launched_without_group():
            result = replace(result, scope=f"one process of {size} alone")
            remedy = "call torch.distributed.init_process_group before compute()"
            self._warn(f"this is the FID of {result.scope}: {remedy}")
        self._warn(*result.warnings)
        return result

    def _warn(self, *lines: str) -> None:
        for line in lines:
            if line and line not in self._warned:
                self._warned.add(line)
                warn_program(line)

    # Copies, devices and checkpoints.

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy gets a number of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._label = self._name or _numbered_label(self.sync_on_compute)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, recurse: bool = True
    ) -> FrechetInceptionDistance:
        super()._apply(fn, *args)  # there is nothing to recurse into
        with outside_autograd():
            self._move()
        return self

    def _move(self) -> None:
        if self.device.type == "meta":  # for a while, as modules are that get their values later
            return
        for sums in (self._sums, self._own):
            if sums is not None:
                sums.to(self.device)

    def persistent(self, mode: bool = False) -> None:
        """Whether the sums stand in ``state_dict``; they do unless this turned it off."""
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
        if not state:  # none was saved
            return
        self.unsync()
        with outside_autograd():
            self._warn(self._sums.restore(state, *group_rank_and_size(self.process_group)))


def _numbered_label(synced: bool) -> str:
    """Metrics that one rank alone may make are counted apart, so that they do not shift the numbers of the others."""
    return str(next(_made)) if synced else f"{next(_made_local)} of those made with sync_on_compute=False"
