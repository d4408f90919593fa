"""Kills and resumes a long run repeatedly, and checks that each image counts once and that memory
does not grow.

    python scripts/soak.py --images 100000 --kills 5

Compares the statistics bit by bit with those of a run that is not killed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
from PIL import Image

import fidtool

NETWORK = f"{Path(__file__).parent / 'bench' / 'networks.py'}:network"
CHECKPOINT = "checkpoint"
SIDE = 8
BATCH = 10
PARTS = 64
"""Largest number of parts of a checkpoint."""
LARGEST_GROWTH = 1.05
"""Largest ratio of the peak memory in the second half of a run to that in the first half."""
STARTING = 20
"""Seconds in which memory still grows because of imports. The memory of shorter runs is not
checked.
"""
ENDING = 3
"""Seconds at the end that are not checked: comparing the records of all images needs memory
once.
"""


def make_images(folder: Path, count: int) -> None:
    """Write images of noise, 8x8 pixels, 1,000 files per folder. Existing files are not changed."""
    rng = np.random.default_rng(0)
    with click.progressbar(range(count), label="writing images", file=sys.stderr) as numbers:
        for number in numbers:
            file = folder / f"{number // 1000:04}" / f"{number:07}.png"
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)


def start(folder: Path, output: str, ranks: int, checkpoint: bool) -> list[subprocess.Popen[str]]:
    """Start `fidtool stats` on ``ranks`` ranks, which find each other by environment variables."""
    command = [
        sys.executable,
        "-m",
        "fidtool",
        "stats",
        "images",
        "-o",
        output,
        "--force",
        "--extractor",
        NETWORK,
    ]
    command += ["--no-cache", "--batch-size", str(BATCH)]
    if checkpoint:
        command += ["--checkpoint", CHECKPOINT]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rendezvous = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(probe.getsockname()[1]),
            "WORLD_SIZE": str(ranks),
        }
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **rendezvous, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]


def resident(pid: int) -> int:
    """Return the resident memory of a process in MiB; 0 after it has exited."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0


def watch(processes: list[subprocess.Popen[str]], enough: Callable[[], bool]) -> Iterator[int]:
    """Yield the memory of the largest process each second, until all have exited, it is ``enough``,
    or an hour.
    """
    started = seen = time.monotonic()
    while (
        any(process.poll() is None for process in processes)
        and not enough()
        and seen < started + 3600
    ):
        time.sleep(0.05)
        if time.monotonic() >= seen + 1.0:
            seen = time.monotonic()
            yield max(resident(process.pid) for process in processes)


def report(processes: list[subprocess.Popen[str]], memory: list[int], text: str) -> str:
    """Wait for the processes, print their statuses and memory, and return rank zero's stderr."""
    errors = [process.communicate(timeout=60)[1] for process in processes]
    late = [size for size in memory[5:] if size] or memory or [0]
    statuses = [process.returncode for process in processes]
    click.echo(
        f"{text}: exit statuses {statuses}, memory after 5 s: {min(late)} to {max(late)} MiB"
    )
    working = memory[:-ENDING]
    first, second = (
        max(part, default=0)
        for part in (working[: len(working) // 2], working[len(working) // 2 :])
    )
    if len(memory) > STARTING and second > LARGEST_GROWTH * first > 0 and 0 in statuses:
        raise click.ClickException(
            f"peak memory grew from {first} MiB in the first half to {second} MiB in the second"
        )
    return errors[0]


def run_with_kills(folder: Path, images: int, kills: int, chance: random.Random) -> None:
    """Kill and resume ``fidtool stats`` ``kills`` times, on random numbers of ranks; then let it
    finish.

    A run is killed when it has saved some parts of its checkpoint, which leave parts for the later
    kills.

    Args:
        folder: folder with ``images`` images.
        chance: draws the numbers of parts and of ranks.
    """

    def saved() -> int:
        return len(list((folder / CHECKPOINT).glob("*.npz")))

    for number in range(1, kills + 2):
        ranks, last = chance.choice([1, 2, 3]), number > kills
        left = min(-(-images // BATCH), PARTS) - saved()
        target = saved() + chance.randint(1, max(1, left // (kills - number + 2)))
        processes = start(folder, "killed.npz", ranks, checkpoint=True)
        memory = list(watch(processes, lambda: not last and saved() >= target))  # noqa: B023
        running = [process for process in processes if process.poll() is None]
        if not last and not running:
            raise click.ClickException("the run finished before it was killed: use more --images")
        for process in running:
            process.send_signal(signal.SIGKILL)
        errors = report(
            processes, memory, f"{ranks} ranks, {'not killed' if last else f'kill {number}'}"
        )
        resumed = re.findall(r"^.*\bcheckpoint\b.*$", errors, re.MULTILINE)
        click.echo("  " + (" ".join(resumed) or "started from the beginning"))


@click.command(help=__doc__)
@click.option("--images", default=100_000, show_default=True, help="Number of images.")
@click.option("--kills", default=5, show_default=True, help="How often to kill the run.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("soak"),
    show_default=True,
    help="Folder for all files.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed for the kills and the numbers of ranks."
)
def main(images: int, kills: int, folder: Path, seed: int) -> None:
    """See the module."""
    make_images(folder / "images", images)
    shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    whole = start(folder, "whole.npz", 1, checkpoint=False)
    report(whole, list(watch(whole, lambda: False)), "not killed, 1 rank")
    run_with_kills(folder, images, kills, random.Random(seed))
    first, second = (fidtool.read_statistics(folder / name) for name in ("whole.npz", "killed.npz"))
    if (first.count, first.traits) != (second.count, second.traits) or first.count != images:
        raise click.ClickException(
            f"{second.count} of {images} images counted; without kills {first.count}"
        )
    if first.mu.tobytes() != second.mu.tobytes() or first.sigma.tobytes() != second.sigma.tobytes():
        raise click.ClickException("the statistics differ from those of the run without kills")
    click.echo(f"{images} images, each counted once; bitwise equal statistics")


if __name__ == "__main__":
    main()
