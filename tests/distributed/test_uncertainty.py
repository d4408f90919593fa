"""Error bars have the same bits on any ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.processes import PATIENCE, free_port
from support.ranks import RankServer

PROGRAM = """
import numpy as np
from fidtool.distributed.launch import discover
from fidtool.distributed.world import open_world
from fidtool.metrics.influence import Target
from fidtool.metrics.rows import FeatureSettings
from fidtool.metrics.uncertainty import error_bars
fake = np.load("fake.npy")
with open_world(discover()) as world:
    found = error_bars(Target(np.zeros(12), np.eye(12), None), fake, FeatureSettings(18), world)
    everywhere = world.gather(repr((found.corrected, found.parts.tobytes(), found.curve)))
    if world.rank == 0:
        print(world.size, sorted(set(everywhere)))
"""


def test_the_same_bits_on_any_ranks(rank_server: RankServer, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    np.save(tmp_path / "fake.npy", np.random.RandomState(9).randn(333, 12).astype(np.float32))
    found = set()
    for size in (1, 2, 3):
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        places = [{**environment, **place, "RANK": str(rank)} for rank in range(size)]
        ranks = [rank_server.launch("script", ["program.py"], own, tmp_path) for own in places]
        assert rank_server.wait(ranks, PATIENCE) == [0] * size, [rank.stderr for rank in ranks]
        said, results = ranks[0].stdout.split(" ", 1)
        assert (int(said), results.count("Interval")) == (size, 1), "every rank has the same"
        found.add(results)
    assert len(found) == 1
