"""Two concurrent runs with the same checkpoint folder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fidtool as package
from fidtool.statistics.checkpoint import MANIFEST, Checkpoint


def test_only_one_of_two_concurrent_runs_gets_the_folder(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        barrier, outcomes = threading.Barrier(2), []

        def claim(name: str, folder: Path = folder, barrier: Any = barrier, outcomes: list[str] = outcomes) -> None:
            made = Checkpoint(str(folder), 0.0, 100, print)
            barrier.wait()
            try:
                made.claim({"definition": {"name": name}, "arithmetic": {}, "order": {}, "sets": []})
                outcomes.append("claimed")
            except package.InputError:
                outcomes.append("refused")

        threads = [threading.Thread(target=claim, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["claimed", "refused"]
        assert [file.name for file in folder.iterdir()] == [MANIFEST]
