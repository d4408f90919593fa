"""FID as a metric for training loops, in torchmetrics' shape; see `FrechetInceptionDistance`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from fidtool.errors import InputError, warn_program
from fidtool.features.network import Network
from fidtool.statistics.store import Statistics
from fidtool.training.features import Features, PathLike
from fidtool.training.group import MEETING_SECONDS, Group, Ranks, never_told, place_in, ranks_of
from fidtool.training.pixels import pixels_of
from fidtool.training.sums import ALL, STATE_NAMES, Result, Sums
from fidtool.training.synced import SyncedMetric, aside


class FrechetInceptionDistance(SyncedMetric):
    """FID of the images that all ranks have seen, with the interface of torchmetrics' metric of that name.

    The value depends neither on how many ranks there are, nor on how the images were dealt to them, nor on batches:
    the same bits on one kind of device. ``compute`` cannot hang: ranks that never call it are named by the others.
    It is a ``torchmetrics.Metric`` where torchmetrics is installed, and needs it not.

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
        sync_timeout: float = MEETING_SECONDS,
        process_group: Group = None,
        batch_size: int | None = None,
        name: str | None = None,
    ) -> None:
        if batch_size is not None and (isinstance(batch_size, bool) or not batch_size >= 1):
            raise InputError(f"batch_size must be at least 1, not {batch_size!r}")
        with aside():
            sums = Sums(Features(feature, protocol, weights), real_statistics, batch_size)
        super().__init__(sums, sync_on_compute, sync_timeout, process_group, name)
        self.reset_real_features, self.normalize = reset_real_features, normalize
        self.result: Result | None = None
        self._saved = True
        self._warned: set[str] = set()
        self._said_alike = False
        with aside():
            self._move()

    @property
    def reference_digest(self) -> str:
        """Fingerprint of the protocol and of the fixed real statistics: values of equal ones compare."""
        return hashlib.sha256(repr(sorted(self._sums.word().items())).encode()).hexdigest()

    @property
    def update_called(self) -> bool:
        """Whether anything was given to ``update`` since the last ``reset``."""
        return self._updates > 0

    @property
    def update_count(self) -> int:
        """How often something was."""
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
            raise InputError(f"the real images are those of {self._sums.fixed_name}: update this with fakes only")
        self._refuse_while_synced("update()")
        with aside():
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
        with aside():
            together = self.sync_on_compute and self._own is None and ranks.size > 1
            self.result = self._of_all(ranks) if together else self._of_this(ranks)
            dtype = torch.float32 if self.device.type == "mps" else torch.float64
            return torch.tensor(self.result.fid, dtype=dtype, device=self.device)

    def forward(self, images: torch.Tensor, real: bool) -> None:
        """The same as ``update``: the FID of a single batch would mean nothing."""
        self.update(images, real)

    def reset(self) -> None:
        """Forgets the images seen, but the real ones with ``reset_real_features=False``."""
        self.unsync()
        super().reset()
        self._updates = 0
        with aside():
            self._sums.forget(self.reset_real_features)

    def _of_all(self, ranks: Ranks) -> Result:
        purpose = self._called("compute()")
        lost = self._meet(ranks, purpose)
        with ranks.world(purpose) as world:
            merged = self._sums.merged(world)
            found = world.on_rank_zero(merged.distance)
        if ranks.place == 0:
            alike = merged.alike(ranks.ranks)
            if alike is not None and not self._said_alike:
                self._said_alike = True  # the numbers in it change from epoch to epoch
                self._warn(str(alike))
            self._warn(*found.doubts)
            self._warn("images that ranks had seen before the checkpoint are missing from this FID" if lost else "")
        return Result(found.fid, found.real, found.fake, f"all {ranks.size} ranks")

    def _of_this(self, ranks: Ranks) -> Result:
        self._sums.flush()
        found = self._sums.distance()
        scope = "this process"
        if self._own is not None:
            scope = f"all {ranks.size} ranks"
        elif ranks.size > 1:
            scope = f"rank {ranks.rank} of {ranks.size} alone"
            self._warn(f"sync_on_compute is off: this is the FID of {scope}, of its own {found.fake} fakes")
        elif size := never_told():
            scope = f"one process of {size} alone"
            self._warn(f"this is the FID of {scope}: call torch.distributed.init_process_group before compute()")
        self._warn(*found.doubts)
        return Result(found.fid, found.real, found.fake, scope)

    def _warn(self, *lines: str) -> None:
        for line in lines:
            if line and line not in self._warned:
                self._warned.add(line)
                warn_program(line)

    # Where it lives.

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, recurse: bool = True
    ) -> FrechetInceptionDistance:
        super()._apply(fn, *args)  # there is nothing to recurse into
        with aside():
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
            place, size = place_in(self.process_group)
            with aside():
                state = self._sums.state(ALL if self._own is not None else place, size)
            destination.update({prefix + name: value for name, value in state.items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        names = [name for name in state_dict if name.startswith(prefix) and name.removeprefix(prefix) in STATE_NAMES]
        state = {name.removeprefix(prefix): state_dict.pop(name) for name in names}
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not state:  # the checkpoint says nothing of this metric
            return
        self.unsync()
        with aside():
            self._warn(self._sums.restore(state, *place_in(self.process_group)))
