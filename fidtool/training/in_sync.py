"""Are the ranks' copies of a module still the same?"""

from __future__ import annotations

from torch import nn

from fidtool.distributed.in_sync import find_drift, fingerprints, named_tensors, summary
from fidtool.errors import RunError, on_every_rank
from fidtool.training.group import MEETING_SECONDS, Group, ranks_of, warn_if_alone

_PURPOSE = "assert_in_sync()"
_TOLD = 5


class OutOfSyncError(RunError):
    """Ranks hold different parameters or buffers."""


def assert_in_sync(module: nn.Module, group: Group = None, *, timeout: float = MEETING_SECONDS) -> None:
    """Checks that every rank holds the same parameters and buffers, to the bit. A collective.

    Names, shapes, dtypes and hashes of the values are compared; only where they differ does more travel. Ranks may
    hold entirely different lists of them.

    Args:
        module: on any device.
        group: process group; None is all ranks. Without one there is nothing to check.
        timeout: seconds that the other ranks may take to come.

    Raises:
        fidtool.training.OutOfSyncError: on every rank: the parameters' names, the ranks, and the largest |difference|.
        fidtool.training.AbsentRanksError: some ranks did not come in time.
    """
    ranks = ranks_of(group)
    if ranks.size == 1:
        warn_if_alone(_PURPOSE)
        return
    tensors = named_tensors(module)
    prints = fingerprints(tensors)
    words = ranks.meet(_PURPOSE, {"all": summary(prints)}, timeout, "every rank must check the module")
    if all(word == words[0] for word in words):
        return
    with ranks.world(_PURPOSE) as world:
        drift = find_drift(tensors, prints, world, ranks.ranks)
    if drift:
        told = "; ".join(drift[:_TOLD]) + (f"; and {len(drift) - _TOLD} more" if len(drift) > _TOLD else "")
        kind = type(module).__name__
        raise on_every_rank(OutOfSyncError(f"the ranks' copies of {kind} are not the same: {told}"))
