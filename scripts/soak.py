"""Kills a long run over and over and checks what is left: nothing counted twice, nothing lost, memory flat.

python scripts/soak.py --images 100000 --kills 5
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
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from PIL import Image

import fidtool

NETWORK = f"{Path(__file__).parent / 'small_network.py'}:network"
SIDE = 8
LARGEST_GROWTH = 1.05
"""Of a process's largest memory, from the first half of a run to the second."""
STARTING = 20
"""Seconds in which a process still grows by what it imports: shorter runs tell nothing of its memory."""
ENDING = 3
"""Seconds at the end that are left out: the records of all images are compared in them, which needs memory once."""


def make_images(folder: Path, count: int) -> None:
    """Noise of 8x8 pixels, 1,000 files a folder; what is there already stays."""
    rng = np.random.default_rng(0)
    with click.progressbar(range(count), label="making images", file=sys.stderr) as numbers:
        for number in numbers:
            file = folder / f"{number // 1000:04}" / f"{number:07}.png"
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)


def start(folder: Path, output: str, ranks: int, checkpoint: bool) -> list[subprocess.Popen[str]]:
    """`fidtool stats` as ``ranks`` processes that find each other by variables."""
    command = [sys.executable, "-m", "fidtool", "stats", "images", "-o", output, "--force", "--extractor", NETWORK]
    command += ["--no-cache", "--batch-size", "10"]
    if checkpoint:
        command += ["--checkpoint", "kept", "--checkpoint-every", "1"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **meeting, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]


def resident(pid: int) -> int:
    """MiB of memory that a process has now; 0 once it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0


def watch(processes: list[subprocess.Popen[str]], seconds: float) -> Iterator[int]:
    """The largest process's memory, each second, until all have ended or ``seconds`` are over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(1.0)
        yield max(resident(process.pid) for process in processes)


def report(processes: list[subprocess.Popen[str]], memory: list[int], text: str) -> str:
    """Waits for the processes and prints how the run went; rank zero's stderr."""
    errors = [process.communicate(timeout=60)[1] for process in processes]
    late = [size for size in memory[5:] if size] or memory
    statuses = [process.returncode for process in processes]
    click.echo(f"{text}: statuses {statuses}, memory from the 6th second on {min(late)} to {max(late)} MiB")
    working = memory[:-ENDING]
    first, second = (max(part, default=0) for part in (working[: len(working) // 2], working[len(working) // 2 :]))
    if len(memory) > STARTING and second > LARGEST_GROWTH * first > 0 and 0 in statuses:
        raise click.ClickException(f"memory grew from {first} to {second} MiB between the halves of the run")
    return errors[0]


@click.command(help=__doc__)
@click.option("--images", default=100_000, show_default=True)
@click.option("--kills", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("soak"), show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the kills' instants and the numbers of processes.")
def main(images: int, kills: int, folder: Path, seed: int) -> None:
    """See the module."""
    make_images(folder / "images", images)
    shutil.rmtree(folder / "kept", ignore_errors=True)
    chance = random.Random(seed)
    began = time.monotonic()
    whole = start(folder, "whole.npz", 1, checkpoint=False)
    report(whole, list(watch(whole, 3600)), "uninterrupted, 1 process")
    duration = time.monotonic() - began
    killed = 0
    while killed <= kills:
        ranks = chance.choice([1, 2, 3])
        processes = start(folder, "killed.npz", ranks, checkpoint=True)
        last = killed == kills
        memory = list(watch(processes, 3600 if last else 5 + chance.uniform(0.1, 0.6) * duration / kills))
        running = [process for process in processes if process.poll() is None]
        if not last and not running:
            raise click.ClickException("the run ended before it was killed: take more images")
        for process in running:
            process.send_signal(signal.SIGKILL)
        killed += 1
        said = report(processes, memory, f"{ranks} processes, {'to the end' if last else f'kill {killed}'}")
        click.echo("  " + (" ".join(re.findall(r"kept has .*", said)) or "began anew"))
    first, second = (fidtool.read_statistics(folder / name) for name in ("whole.npz", "killed.npz"))
    if (first.count, first.traits) != (second.count, second.traits) or first.count != images:
        raise click.ClickException(f"{second.count} images counted, {first.count} without kills, of {images}")
    if first.mu.tobytes() != second.mu.tobytes() or first.sigma.tobytes() != second.sigma.tobytes():
        raise click.ClickException("other bits than without kills")
    click.echo(f"{images} images, each counted once, to the same bits")


if __name__ == "__main__":
    main()
