"""Millions of images are planned and counted in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from support.processes import PATIENCE

PLAN = textwrap.dedent("""
    import pickle, sys
    import numpy as np
    from fidtool.reading.batches import deal, plan_batches
    from fidtool.sources.contents import Files
    from fidtool.sources.image_set import ImageSet, Names, Sampling

    count, ranks = int(sys.argv[1]), 7
    names = Names(f"{number:08}.png" for number in range(count))
    files = Files(names.with_prefix("set/"))
    found = ImageSet("set", "folder", names, "set/", files, np.arange(count, dtype=np.uint32))
    images = found.draw(Sampling(None, 3))
    images = pickle.loads(pickle.dumps(images))
    batches = plan_batches(images, 64)
    seen = np.zeros(count, dtype=np.uint8)
    for rank in range(ranks):
        for batch in deal(batches, rank, ranks):
            seen[images.order[batch.images]] += 1
    assert (seen == 1).all()
    place = int(np.flatnonzero(images.order == 7_654_321 % count)[0])
    assert images.file(place) == f"set/{7_654_321 % count:08}.png"
    assert "torch" not in sys.modules
""")

STONE = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak(*arguments: object) -> int:
    """Return the peak memory in bytes of Python with these arguments.

    On Linux the peak of a process includes that of the process that started it, so a small process
    starts it.
    """
    command = [sys.executable, "-I", "-S", "-c", STONE, sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024


def test_millions_of_names_are_planned_and_each_counts_once() -> None:
    assert peak("-c", PLAN, 1_000_000) < 400 << 20


def test_memory_hardly_grows_with_the_names(tmp_path: Path) -> None:
    """Each of the additional 20,000 files takes at most 300 bytes, which is 300 MB per million."""
    peaks = []
    for count in (20, 20_020):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:08}.bmp").touch()
        peaks.append(peak("-m", "fidtool", "check", folder, "--list"))
    assert peaks[1] - peaks[0] < 20_000 * 300 + (2 << 20), peaks
    assert max(peaks) < 1 << 30, "the peaks must not be those of the parent process"
