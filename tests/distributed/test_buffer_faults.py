"""Feature buffers on a full disk of one rank: every rank ends, and the cause is reported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.arena import Arena, End, statuses
from support.processes import PATIENCE

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds left-over processes in /proc")

KID = ("--metrics", "kid", "--kid-subset-size", 9, "--timeout", 600)


def check(end: End, launcher: str, rank: int) -> None:
    assert end.statuses == statuses(launcher, 2), end
    assert end.recorded in ([], [1]), end
    assert end.left == [], end
    (said,) = end.causes
    assert "GiB of features cannot be stored in" in said
    assert "File too large): set FIDTOOL_CACHE to a folder with enough space, or omit the metrics" in said
    assert f"(rank {rank} on" in said
    assert "Traceback" not in end.own_words, end.stderr


@pytest.mark.parametrize(("launcher", "rank"), [("torchrun", 1), ("no launcher", 0)])
def test_a_full_disk_in_the_merge_ends_all(arena: Arena, launcher: str, rank: int) -> None:
    """The other ranks wait for this rank's next rows, which it still sends."""
    arguments = arena.arguments(*KID)
    variables = {"FAULT": "no room for features", "FAULT_RANK": str(rank), "FIDTOOL_FEATURE_BYTES": "0"}
    check(arena.begin(launcher, arguments, 2, **variables).end(), launcher, rank)
    (alone,) = arena.server.start(arguments, 1, arena.folder, FAULT_PACE="0")
    assert arena.server.wait([alone], PATIENCE) == [0], alone.stderr
    assert '"images_resumed": 40' in alone.stdout, "finished work is saved"
