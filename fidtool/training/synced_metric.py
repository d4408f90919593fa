"""The common base of all metrics for training loops, with the interface of torchmetrics: ranks,
copies, checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
import traceback
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from fidtool.distances.parallel import fork_safe
from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import InputError, ResultWarning, TooFewImagesError, warn_program
from fidtool.metrics.metric import Metric
from fidtool.names import format_count
from fidtool.training.group import (
    Group,
    Ranks,
    count_ungrouped_processes,
    explain_lost_ranks,
    group_rank_and_size,
    no_autograd,
    ranks_of,
)
from fidtool.training.inputs import Convert, parse_bool, warn_of_conversion
from fidtool.training.rows import Rows
from fidtool.training.state import ALL, MetricState, Result

_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
# Numbers of unnamed metrics, the same on all ranks. Unsynced ones, which may exist on one only, are
# counted apart.
_metric_numbers = itertools.count(1)
_local_metric_numbers = itertools.count(1)
# What ``compute`` returns: a tensor, a tuple of two, or a dictionary.
Values = TypeVar("Values")


class PlainMetric(nn.Module):
    """The parts of ``torchmetrics.Metric`` that are used here, for programs without torchmetrics.

    As a subclass of ``torchmetrics.Metric`` a metric can be in a ``MetricCollection`` and be logged
    like any other. Its state is not registered with torchmetrics, which does not synchronise it.
    """

    _anchor: Tensor  # follows the module to its device

    def __init__(self, sync_on_compute: bool, process_group: Any, compute_with_cache: bool) -> None:
        super().__init__()
        self.sync_on_compute = sync_on_compute
        self.process_group = process_group
        self._update_count = 0
        self.register_buffer("_anchor", torch.zeros(0, dtype=torch.uint8), persistent=False)

    @property
    def device(self) -> torch.device:
        return self._anchor.device

    def reset(self) -> None:
        """For ``super().reset()``."""

    def _plot(self, value: Any, ax: Any) -> Any:
        raise InputError("plot() needs torchmetrics:", "pip install 'torchmetrics[visual]'")

    def clone(self) -> PlainMetric:
        return copy.deepcopy(self)


if TYPE_CHECKING:
    from torchmetrics import Metric as Base
else:
    try:
        from torchmetrics import Metric as Base
    except ImportError:
        Base = PlainMetric


class SyncedMetric(Base, Generic[Values, Rows]):  # type: ignore[misc]
    """Base class of the metrics, which computes their values from the state of all ranks.

    A subclass sets ``_sums`` after it calls ``__init__``, and overrides ``update`` and `_measure`.

    Attributes:
        _metric: computes the values.
        _torchmetrics_names: matches the names in checkpoints of torchmetrics' metrics.
        _state_names: matches the names in `MetricState.state`.
        _sums: what was added on this rank, or while synced on all ranks.
    """

    _metric: Metric
    _torchmetrics_names: ClassVar[re.Pattern[str]]
    _state_names: ClassVar[re.Pattern[str]]
    _sums: MetricState[Rows]
    is_differentiable = False
    full_state_update = False
    plot_lower_bound = 0.0
    clone = fork_safe(Base.clone)
    # torchmetrics' do nothing, without a word.
    half = nn.Module.half
    double = nn.Module.double
    type = nn.Module.type

    def __init__(
        self,
        normalize: bool,
        sync_on_compute: bool,
        sync_timeout: float,
        process_group: Group,
        name: str | None,
        of_torchmetrics: Sequence[object],
    ) -> None:
        """``of_torchmetrics``: dist_sync_on_step, dist_sync_fn and distributed_available_fn, which
        are refused.
        """
        if any(of_torchmetrics):
            raise InputError(
                "dist_sync_on_step, dist_sync_fn and distributed_available_fn cannot be used, "
                "because the metric synchronises the ranks itself, in compute():",
                "omit them; see process_group and sync_on_compute",
            )
        super().__init__(
            sync_on_compute=sync_on_compute, process_group=process_group, compute_with_cache=False
        )
        self._to_sync = False  # torchmetrics must not synchronise in compute()
        explain_lost_ranks()
        self.normalize = parse_bool("normalize", normalize)
        self.sync_timeout = sync_timeout
        self._name = name
        self._label = name or _next_label(sync_on_compute)
        # This rank's, while `_sums` are those of all ranks.
        self._own: MetricState[Rows] | None = None
        self.result: Result | None = None
        self._saved = False
        self._warned: set[str] = set()

    @property
    def _title(self) -> str:
        """Name of the metric in messages."""
        return self._metric.numbers[0].title

    @abstractmethod
    def _measure(self, sums: MetricState[Rows], world: World) -> Result:
        """Compute the values, by their plain names. A collective; ``sums`` are the same on all
        ranks.
        """

    def compute(self) -> Values:
        """Return one value, two values, or a dictionary, see the class. A collective, unless
        ``sync_on_compute`` is False.

        Returns:
            float64 scalar tensors on the metric's device, the same on every rank.

        Raises:
            fidtool.training.AbsentRanksError: if some ranks did not call it within
                ``sync_timeout``; it names them.
            fidtool.InputError: if too few images were added, or the ranks' settings differ.
            fidtool.RunError: if a rank was lost or failed.
        """
        by_name = self._compute_by_name()
        values = tuple(by_name.values())
        returned: Any = by_name
        if len(values) == 1:
            returned = values[0]
        elif len(values) == 2:
            returned = values
        return cast(Values, returned)

    @fork_safe
    def _compute_by_name(self) -> dict[str, Tensor]:
        with no_autograd():
            result = self._result(ranks_of(self.process_group))
            values = {self._key(name): value for name, value in result.values.items()}
            self.result = replace(result, values=values)
            for sums in self._states():
                sums.evaluated = sums.evaluated_rows.count
            return {
                name: torch.tensor(value, dtype=torch.float64, device=self.device)
                for name, value in result.values.items()
            }

    def _states(self) -> list[MetricState[Rows]]:
        return [sums for sums in (self._sums, self._own) if sums is not None]

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot ``val``, or what ``compute`` returns (without the deviation), as in torchmetrics.
        Returns the figure and the axes.
        """
        values = self.compute() if val is None else val
        if isinstance(values, tuple):
            values = values[0]
        return self._plot(values, ax)

    def abandon(self, reason: str) -> None:
        """Call this in place of ``compute`` on a rank that failed: the others raise ``reason``
        immediately.
        """
        if self.sync_on_compute:
            ranks_of(self.process_group).abandon(
                self._purpose("compute()"), reason, self.sync_timeout
            )

    def reset(self) -> None:
        """Discard all images or pairs, except the real images if ``reset_real_features`` is
        False.
        """
        self.unsync()
        super().reset()
        self._sums = self._sums.empty_copy(self._kept)

    @property
    def _kept(self) -> Collection[str]:
        """Names of the sides that `reset` keeps."""
        return ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Same as ``update``. No value is returned, because the value of a single batch is
        meaningless.
        """
        self.update(*args, **kwargs)

    @fork_safe
    def merge_state(self, incoming_state: object) -> None:
        """Add what another metric has accumulated to this metric.

        Raises:
            fidtool.InputError: if it is not a metric of this class, or if its settings differ.
        """
        self._refuse_while_synced("merge_state()")
        if (
            not isinstance(incoming_state, SyncedMetric)
            or incoming_state._metric.name != self._metric.name
        ):
            kind = type(incoming_state).__name__
            raise InputError(
                f"merge_state() takes a fidtool.training.{type(self).__name__}, not {kind}"
            )
        with no_autograd():
            self._sums.absorb(incoming_state._sums)
            self._warn(*self._sums.mixed_warnings())
        self._update_count += incoming_state._update_count

    def _refuse_while_synced(self, call: str) -> None:
        if self._own is not None:
            raise InputError(
                f"the metric is synced, and unsync() would discard the effect of {call}:",
                "call unsync() first",
            )

    # Synchronisation of all ranks.

    @fork_safe
    def sync(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        distributed_available: object = None,
    ) -> None:
        """Replace the images of this rank by the images of all ranks until ``unsync``. A collective
        like ``compute``.

        Does nothing if ``should_sync`` is False. The other arguments are torchmetrics' and ignored.
        """
        ranks = ranks_of(self.process_group)
        if not should_sync or ranks.size == 1:
            return
        self._refuse_while_synced("sync()")
        with (
            no_autograd(),
            self._sums.merge_ranks(ranks, self._purpose("sync()"), self.sync_timeout) as (sums, _),
        ):
            self._own = self._sums
            self._sums = sums

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore this rank's own images after ``sync``."""
        if should_unsync and self._own is not None:
            self._sums = self._own
            self._own = None

    @contextlib.contextmanager
    def sync_context(
        self,
        dist_sync_fn: object = None,
        process_group: Group = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: object = None,
    ) -> Iterator[None]:
        """``sync`` for the duration of a ``with`` block. A ``state_dict`` taken within it has the
        images of all ranks.
        """
        self.sync(should_sync=should_sync)
        try:
            yield
        finally:
            self.unsync(should_sync and should_unsync)

    def _purpose(self, method: str) -> str:
        return f"{type(self).__name__}.{method} of metric {self._label}"

    def _result(self, ranks: Ranks) -> Result:
        """Return the result, whose values have the metric's own names for them."""
        covered = ranks if self.sync_on_compute else Ranks([ranks.rank])
        if self._own is None:
            purpose = self._purpose("compute()")
            with self._sums.merge_ranks(covered, purpose, self.sync_timeout) as (sums, world):
                result = self._measure_or_nan(sums, world)
        else:
            sums = self._sums
            result = self._measure_or_nan(sums, World(Launch()))
        scope = "this process"
        subject = f"this {self._title.removeprefix('the ')}"
        warnings = [*sums.warnings(ranks.ranks)]
        if ranks.size > 1 and covered.size == 1 and self._own is None:
            scope = f"rank {ranks.rank} of {ranks.size} alone"
            number = format_count(
                sums.evaluated_rows.count, sums.evaluated_rows.noun.removesuffix("s")
            )
            text = f"sync_on_compute is False: {subject} covers {scope} ({number})"
            warnings.append(ResultWarning("", text))
        elif ranks.size > 1:
            scope = f"all {ranks.size} ranks"
        elif size := count_ungrouped_processes():
            scope = f"one process of {size} alone"
            remedy = "call torch.distributed.init_process_group before compute()"
            warnings.append(ResultWarning("", f"{subject} covers {scope}: {remedy}"))
        warnings += [warning.shown() for warning in result.warnings]
        if covered.group_rank == 0:
            self._warn(*warnings)
        return replace(result, scope=scope, warnings=tuple(warnings))

    def _measure_or_nan(self, sums: MetricState[Rows], world: World) -> Result:
        try:
            return self._measure(sums, world)
        except TooFewImagesError:
            if not _in_sanity_check():
                raise
            return Result(dict.fromkeys(self._names, math.nan), None, 0)

    @property
    def _names(self) -> list[str]:
        """The plain names of the values."""
        names = []
        for number in self._metric.numbers:
            names += [number.name, number.spread]
        return [name for name in names if name]

    def _key(self, name: str) -> str:
        """Return the name of a value in a result: that in the results of ``fidtool compute``."""
        return name

    def _warn(self, *warnings: ResultWarning) -> None:
        """Issue each warning once, even if its numbers change between epochs."""
        for line in map(str, warnings):
            kind = re.sub(r"\d+", "", line)
            if kind not in self._warned and not _in_sanity_check():
                self._warned.add(kind)
                warn_program(line)

    # Copies, devices and checkpoints.

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy without a name a new number."""
        super().__setstate__(state)
        self._label = self._name or _next_label(self.sync_on_compute)

    def _apply(self, fn: Convert, *args: Any, recurse: bool = True) -> SyncedMetric[Any, Any]:
        warn_of_conversion(self, fn)
        super()._apply(fn, *args)  # there are no child modules
        with no_autograd():
            for sums in self._states():
                sums.to(self.device)
        return self

    def persistent(self, mode: bool = False) -> None:
        """Set whether the accumulated statistics are part of ``state_dict``. As in torchmetrics, by
        default they are not.

        A program that resumes within an evaluation needs them. A program that loads them after an
        evaluation must call ``reset``.
        """
        self._saved = mode

    @fork_safe
    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._saved:
            group_rank, size = group_rank_and_size(self.process_group)
            if self._own is not None:
                group_rank = ALL
            with no_autograd():
                for name, values in self._sums.state(group_rank, size).items():
                    destination[prefix + name] = values

    @fork_safe
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = {}
        theirs = False
        for name in [name for name in state_dict if name.startswith(prefix)]:
            short = name.removeprefix(prefix)
            if self._torchmetrics_names.match(short):
                theirs = True
                del state_dict[name]
            elif self._state_names.match(short):
                state[short] = state_dict.pop(name)
        if theirs:
            text = (
                "the checkpoint comes from a metric of torchmetrics: its network and images are "
                "not used"
            )
            self._warn(ResultWarning("", text))
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not state:  # saved without statistics
            return
        self.unsync()
        with no_autograd():
            self._sums, warnings = self._sums.from_state(
                state, *group_rank_and_size(self.process_group)
            )
        self._warn(*warnings)


def _in_sanity_check() -> bool:
    """Whether Lightning runs a few batches before the training. It discards their values, which are
    not results.

    The method's name is private to Lightning (2.6); without it, the metrics warn of too few images
    in this check, too.
    """
    return any(
        frame.f_code.co_name == "_run_sanity_check" and frame.f_globals["__name__"] in _TRAINERS
        for frame, _ in traceback.walk_stack(None)
    )


def _next_label(synced: bool) -> str:
    return (
        str(next(_metric_numbers))
        if synced
        else f"{next(_local_metric_numbers)} (sync_on_compute=False)"
    )
