"""Programs that the benchmarks run in subprocesses: ``python scripts/bench/programs.py NAME …``.

``limits`` measures what the hardware allows, and ``network`` the network alone: these print JSON.
``features`` writes a statistics file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch

from fidtool.distributed.launch import Launch, available_cores
from fidtool.features.device import Device, choose_device, deterministic_mode
from fidtool.features.models.inception import inception_extractor, load_weights
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    find_protocol,
    inception_definition,
)
from fidtool.reading.batches import Batch, plan_batches
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.loader import load_pieces
from fidtool.sources.image_set import Sampling
from fidtool.sources.listing import open_images
from fidtool.system.background import DaemonThreads

_MATRIX = 4096
_SHORT = 1.0
"""Seconds. A shorter measurement is only a trial run, for which the smallest amounts of work are
enough.
"""
_COPIED = 256 * 2**20
_DECODED = 100
"""Images to decode, per folder and per second of ``--seconds``: enough that the start of the
workers hardly counts.
"""


@click.group()
def cli() -> None:
    """Programs that the benchmarks run in subprocesses."""


@cli.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--device", "name", default="cpu")
@click.option("--precision", "precisions", multiple=True, default=("fp32",))
@click.option("--seconds", type=float, default=10.0, help="Duration of each measurement.")
def limits(
    folders: tuple[str, ...], name: str, precisions: tuple[str, ...], seconds: float
) -> None:
    """Measure the network alone, decoding alone, a large matrix product, and memory copies."""
    device = choose_device(name, Launch())
    size = device.default_batch_size
    found = {
        "network": {
            precision: network_rate(device, precision, size, seconds) for precision in precisions
        },
        "decode": decode_rate(folders, 1 + int(_DECODED * seconds)),
        "matmul_gflops": matmul_gflops(device, seconds / 4),
        "copy_gigabytes": copy_gigabytes(device, seconds / 8),
    }
    print(json.dumps(found))


@cli.command()
@click.option("--device", "name", default="cpu")
@click.option("--precision", default="fp32")
@click.option("--batch-size", type=int, default=8)
@click.option("--seconds", type=float, default=10.0)
def network(name: str, precision: str, batch_size: int, seconds: float) -> None:
    """Measure the network alone."""
    rate = network_rate(choose_device(name, Launch()), precision, batch_size, seconds)
    print(json.dumps({"images_per_second": rate}))


def _until(seconds: float, work: Callable[[], Any], finish: Callable[[], None]) -> float:
    """Return how many times per second ``work`` runs."""
    work()
    finish()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        work()
        finish()
        count += 1
    return count / (time.perf_counter() - started)


def _finisher(device: Device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.torch_device.type == "cuda" else lambda: None


def network_rate(device: Device, precision: str, batch_size: int, seconds: float) -> float:
    """Return the images/s of forward passes on tensors that are already on the device.

    As many passes run at once as in ``fidtool compute``.
    """
    with deterministic_mode(precision == "tf32"), torch.inference_mode():
        protocol, state = (
            find_protocol(DEFAULT_PROTOCOL),
            load_weights(None, lambda line: None).state,
        )
        definitions = {FEATURES: inception_definition(protocol, 2048)}
        network = inception_extractor(protocol, definitions, state, device, precision)
        x = torch.rand(batch_size, 3, 299, 299, device=device.torch_device).mul(2).sub(1)
        x = x.contiguous(memory_format=torch.channels_last)
        threads = DaemonThreads(device.forward_threads)
        finish = _finisher(device)
        passes = max(1, device.forward_threads) * (1 if seconds < _SHORT else 4)

        def work() -> None:
            for future in [threads.submit(network.forward_layers, [x]) for _ in range(passes)]:
                future.result()

        rate = _until(seconds, work, finish)
        threads.close(1.0)
    return rate * passes * batch_size


def decode_rate(folders: tuple[str, ...], least: int) -> float:
    """Return the images/s of reading and decoding on all cores, and nothing else.

    Args:
        folders: folders of images.
        least: minimum number of images to decode per folder; smaller folders are decoded
            repeatedly.
    """
    count, seconds = 0, 0.0
    for folder in folders:
        images = open_images(folder).draw(Sampling(None, 0))
        rounds = -(-least // len(images))
        batches = [
            Batch(number, part.images)
            for number, part in enumerate(plan_batches(images, 8) * rounds)
        ]
        started = time.perf_counter()
        loaded = load_pieces(images, batches, DecodeOptions(), available_cores())
        count += sum(batch.count for batch in loaded)
        seconds += time.perf_counter() - started
    return count / seconds


def matmul_gflops(device: Device, seconds: float) -> float:
    """Return the GFLOP/s of a float32 product of two large matrices, on all cores."""
    side = _MATRIX // 4 if seconds < _SHORT / 4 else _MATRIX
    a, b = (torch.rand(side, side, device=device.torch_device) for _ in range(2))
    return 2 * side**3 * _until(seconds, lambda: torch.mm(a, b), _finisher(device)) / 1e9


def copy_gigabytes(device: Device, seconds: float) -> dict[str, float]:
    """Return the GB/s of copies within main memory, and from it to a GPU."""
    source, target = (torch.ones(_COPIED, dtype=torch.uint8) for _ in range(2))
    found = {"memory": _COPIED * _until(seconds, lambda: target.copy_(source), lambda: None) / 1e9}
    if device.torch_device.type == "cuda":
        there = source.to(device.torch_device)
        found["to the GPU"] = (
            _COPIED * _until(seconds, lambda: there.copy_(source), _finisher(device)) / 1e9
        )
    return found


@cli.command()
@click.argument("file")
@click.argument("count", type=int)
@click.argument("dims", type=int)
@click.argument("seed", type=int)
def features(file: str, count: int, dims: int, seed: int) -> None:
    """Write a statistics file of COUNT random feature vectors of DIMS values.

    Like Inception's features, the values are at least 0, and of a similar size.
    """
    rows = np.abs(np.random.default_rng(seed).standard_normal((count, dims), dtype=np.float32)) / 2
    arrays = {"mu": rows.mean(0, dtype=np.float64), "sigma": np.cov(rows, rowvar=False)}
    np.savez(file, features=rows, count=np.int64(count), **arrays)


if __name__ == "__main__":
    cli()
