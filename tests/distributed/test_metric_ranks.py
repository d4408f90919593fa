"""The metrics beside FID have the same bits at any world size, in memory and on disk."""

from __future__ import annotations

import re
from pathlib import Path

from support.training_programs import Programs


def test_the_same_bits_at_any_world_size(programs: Programs, tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {}
    for ranks in (1, 2, 3, 4):
        run = programs.run(ranks, "metric_functions.py", tmp_path)
        assert run.status == 0, run.stderr
        lines = [re.fullmatch(r"\d ([^:]*): (.*)", line) for line in run.stdout.splitlines()]
        found = [match for match in lines if match]
        assert len(found) == 11 * ranks, run.stdout
        for match in found:
            seen.setdefault(match[1], set()).add(match[2])
    assert {what: len(values) for what, values in seen.items()} == dict.fromkeys(
        ("prdc strict", "prdc inclusive", "kid", "cmmd", "fid infinity", "refused"), 1
    ), seen
