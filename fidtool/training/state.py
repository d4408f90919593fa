"""The state of a metric: merged over ranks, saved and restored; and the metric's result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch

from fidtool.distributed.world import World
from fidtool.errors import InputError, ResultWarning, mark_agreed
from fidtool.features.protocol import Definition
from fidtool.training.group import Ranks
from fidtool.training.rows import Rows, State

# Key of a JSON in a state: the settings, of which rank it is, and whether `compute` covered all
# images or pairs.
HEADER = "header"
# In place of a rank: the images are those of all ranks.
ALL = -1
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or create the metric with "
    "sync_on_compute=False to compute the value of this rank only"
)


@dataclass(frozen=True)
class Result:
    """Result of a metric's ``compute``.

    ``values`` holds the metric's values by the names that they have in the results of ``fidtool
    compute``, such as ``kid`` and ``kid_std``, or ``fid_64`` for the feature 64. ``real`` and
    ``fake`` are numbers of images; ``real`` is None if it is unknown, or if the metric does not use
    real images. ``scope`` is ``all 4 ranks``, or ``rank 1 of 4 alone`` if ``sync_on_compute`` is
    False. ``warnings`` holds the warnings about the value, the same on every rank that the value
    covers; rank 0 also issues them.
    """

    values: Mapping[str, float]
    real: int | None
    fake: int
    scope: str = "this process"
    warnings: tuple[ResultWarning, ...] = ()

    @property
    def fid(self) -> float | None:
        """The FID; None if this is another metric's result, or the features are not Inception's
        2048.
        """
        return self.values.get("fid")


@dataclass(eq=False)
class MetricState(Generic[Rows]):
    """The state of one metric, on one rank or merged over all ranks.

    Attributes:
        sides: the sets of images, or the pairs, by the prefix of their keys in `state`. The last
            are those to evaluate.
        noun: what all of these are.
        settings: what must be the same on every rank; an empty text is as usual.
        saved: names of the settings that a state has.
        doubts: warnings about what the metric was made with.
        evaluated: how many of those to evaluate the last ``compute`` covered.
        stale: how many of these come from a checkpoint that was saved after their ``compute``.
    """

    sides: dict[str, Rows]
    noun: str
    settings: dict[str, str]
    saved_settings: tuple[str, ...]
    doubts: Sequence[ResultWarning] = ()
    evaluated: int = 0
    stale: int = 0

    @property
    def evaluated_rows(self) -> Rows:
        """The generated images, or the pairs."""
        *_, main = self.sides.values()
        return main

    def empty_copy(self, kept: Collection[str] = ()) -> MetricState[Rows]:
        """Return a state with the same settings, and what was added to the sides that are
        ``kept``.
        """
        sides = dict(self.sides)
        for side in sides.keys() - kept:
            sides[side] = sides[side].empty_copy()
        return replace(self, sides=sides, evaluated=0, stale=0)

    def to(self, device: torch.device) -> None:
        if device.type != "meta":  # temporarily, before `to_empty`
            for rows in self.sides.values():
                rows.to(device)

    def flush(self) -> None:
        for rows in self.sides.values():
            rows.flush()

    # Synchronisation of all ranks.

    def warnings(self, ranks: Sequence[int]) -> Iterator[ResultWarning]:
        """Warnings about what is doubtful, missing, counts twice, or is on several of the
        ``ranks``.
        """
        yield from self.mixed_warnings()
        yield from self.doubts
        for rows in self.sides.values():
            yield from rows.warnings(ranks)

    def mixed_warnings(self) -> Iterator[ResultWarning]:
        """Warn if one evaluation was saved and another is added to it."""
        if 0 < self.stale < self.evaluated_rows.count:
            yield ResultWarning(
                "",
                f"the value also covers {self.stale} {self.noun} from the checkpoint that was "
                "loaded, which had been evaluated before it was saved: call reset() after "
                "loading it",
            )

    @contextlib.contextmanager
    def merge_ranks(
        self, ranks: Ranks, purpose: str, seconds: float
    ) -> Iterator[tuple[MetricState[Rows], World]]:
        """The state of all ranks, once all have flushed theirs and their settings are the same. A
        collective.
        """
        with ranks.before_exchange(purpose, seconds):
            self.flush()
        own = {"settings": self.settings, "evaluated": self.evaluated, "stale": self.stale}
        payloads = ranks.exchange(purpose, own, seconds, _REMEDY)
        check_same_settings(
            {
                f"the metric of rank {rank}": payload["settings"]
                for rank, payload in zip(ranks.ranks, payloads, strict=True)
            }
        )
        with ranks.world(purpose) as world:
            whole = replace(
                self,
                sides={side: rows.merge_ranks(world) for side, rows in self.sides.items()},
                evaluated=sum(payload["evaluated"] for payload in payloads),
                stale=sum(payload["stale"] for payload in payloads),
            )
            yield whole, world

    def absorb(self, other: MetricState[Rows]) -> None:
        """Add the state of another metric, whose settings must be the same."""
        check_same_settings({"this metric": self.settings, "the other metric": other.settings})
        self.flush()
        other.flush()
        for side, rows in self.sides.items():
            rows.join(other.sides[side])
        self.stale += other.stale

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        """Return the state as CPU tensors; empty if nothing was added. ``group_rank`` is `ALL`
        after a merge.
        """
        self.flush()
        state: State = {}
        for side, rows in self.sides.items():
            if rows.count:
                state |= {f"{side}_{name}": values for name, values in rows.totals().items()}
        if not state:
            return {}
        header = {
            "settings": self._saved_settings(),
            "rank": group_rank,
            "size": size,
            "evaluated": self.evaluated >= self.evaluated_rows.count > 0,
        }
        state[HEADER] = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        return state

    def _saved_settings(self) -> dict[str, str]:
        return {name: self.settings[name] for name in self.saved_settings}

    def from_state(
        self, state: State, group_rank: int, size: int
    ) -> tuple[MetricState[Rows], list[ResultWarning]]:
        """Return what `state` returned, on any rank and with any number of ranks, with the
        settings of this state.

        Each image is restored on one rank only. Also returns warnings if this rank's images are not
        restored.
        """
        header, saved_rank, saved_size = self._read_header(state)
        restored = self.empty_copy()
        of_all_ranks = saved_rank == ALL or saved_size == 1
        if of_all_ranks and group_rank > 0:
            return restored, []  # the first rank restores them
        own = of_all_ranks or (saved_rank, saved_size) == (group_rank, size)
        for side, rows in restored.sides.items():
            prefix = f"{side}_"
            totals = {
                key.removeprefix(prefix): values
                for key, values in state.items()
                if key.startswith(prefix)
            }
            if not own:
                rows.lost = bool(totals)
            elif totals:
                try:
                    rows.absorb(totals, restored=True)
                except ValueError as error:
                    raise InputError(
                        f"the statistics to add do not belong to this metric: {error}"
                    ) from None
        if not own:
            text = (
                f"rank {group_rank} of {size} loaded the state of rank {saved_rank} of "
                f"{saved_size}, whose {self.noun} belong to another rank and were not restored: "
                "save the metric within `with metric.sync_context():`, or save the state of every "
                "rank"
            )
            return restored, [ResultWarning("", text)]
        if header.get("evaluated"):
            restored.stale = restored.evaluated_rows.count
            restored.evaluated = restored.stale  # also when saved before the next update
        return restored, []

    def _read_header(self, state: State) -> tuple[dict[str, Any], Any, Any]:
        """Return the header of a state, with the rank that saved it and the number of ranks."""
        try:
            header: dict[str, Any] = json.loads(bytes(state[HEADER].tolist()))
            check_same_settings(
                {"the checkpoint": header["settings"], "this metric": self._saved_settings()}
            )
            return header, header["rank"], header["size"]
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                "the checkpoint has no valid definition of its features: this metric did not "
                "save it"
            ) from error


def check_same_settings(settings: Mapping[str, Mapping[str, str]]) -> None:
    """Check that `MetricState.settings`, here by their owner, are the same everywhere."""
    (first_owner, first), *others = settings.items()
    for owner, other in others:
        differences = []
        for name, mine in first.items():
            theirs = other[name]
            if name == "definition":
                differences += Definition.from_json(mine).differences(Definition.from_json(theirs))
            elif mine != theirs:
                differences.append(
                    f"{name}: {mine or 'the default'} against {theirs or 'the default'}"
                )
        if differences:
            problem = f"{first_owner} and {owner} differ ({', '.join(differences)}):"
            raise mark_agreed(InputError(problem, "make them with the same arguments"))
