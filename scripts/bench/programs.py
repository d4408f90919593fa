"""What the hardware allows, beside which a run is measured: ``python bench_limits.py REAL FAKE``. Prints JSON.

The network alone on tensors that are there already, decoding alone on all cores, a large matrix product, copies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
import torch

from fidtool.distributed.launch import Launch
from fidtool.features.device import Device, available_cores, choose_device
from fidtool.features.extractor import ForwardThreads
from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import repeatable
from fidtool.images.batches import PlannedBatch, plan_batches
from fidtool.images.loader import DecodeOptions, WorkerWatch, load
from fidtool.sources.opening import open_images

_MATRIX = 4096
_SHORT = 1.0
"""Seconds under which nothing is worth a comparison, as in a trial run: the smallest pieces of work will do."""
_COPIED = 256 * 2**20
_DECODED = 100
"""Images of each folder for each of the seconds: more than there are, so that processes have begun."""


def _until(seconds: float, work: Callable[[], Any], finish: Callable[[], None]) -> float:
    """How often ``work`` is done in a second."""
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
    """Images/s of forward passes, as many side by side as fidtool runs, on tensors that are on the device."""
    with repeatable(precision == "tf32"), torch.inference_mode():
        state = load_weights(None, lambda line: None).state
        runner = Runner(Inception(state), device.torch_device, Arithmetic(precision, False, batch_size), True)
        x = torch.rand(batch_size, 3, 299, 299, device=device.torch_device).mul(2).sub(1)
        x = x.contiguous(memory_format=torch.channels_last)
        threads = ForwardThreads(device.forward_threads, runner)
        finish = _finisher(device)
        passes = device.forward_threads if seconds < _SHORT else 4 * device.forward_threads

        def work() -> None:
            for future in [threads.submit(x) for _ in range(passes)]:
                future.result()

        rate = _until(seconds, work, finish)
        threads.close(1.0)
    return rate * passes * batch_size


def decode_rate(folders: tuple[str, ...], least: int) -> float:
    """Images/s of reading and decoding on all cores, each process its share, and nothing else.

    Args:
        folders: of images.
        least: so many of each, some of them again and again.
    """
    count, seconds = 0, 0.0
    for folder in folders:
        images = open_images(folder).draw(None, 0)
        rounds = -(-least // len(images))
        batches = [PlannedBatch(number, part) for number, part in enumerate(list(plan_batches(images, 8)) * rounds)]
        started = time.perf_counter()
        loaded = load(images, batches, DecodeOptions(), available_cores(), False, 1, WorkerWatch(600.0), print)
        count += sum(len(batch.sizes) for batch in loaded)
        seconds += time.perf_counter() - started
    return count / seconds


def matmul_gflops(device: Device, seconds: float) -> float:
    """Of a float32 product of two large matrices, on all cores."""
    side = _MATRIX // 4 if seconds < _SHORT / 4 else _MATRIX
    a, b = (torch.rand(side, side, device=device.torch_device) for _ in range(2))
    return 2 * side**3 * _until(seconds, lambda: torch.mm(a, b), _finisher(device)) / 1e9


def copy_gigabytes(device: Device, seconds: float) -> dict[str, float]:
    """GB/s of copying within memory, and from page-locked memory to a GPU."""
    source, target = (torch.ones(_COPIED, dtype=torch.uint8) for _ in range(2))
    found = {"memory": _COPIED * _until(seconds, lambda: target.copy_(source), lambda: None) / 1e9}
    if device.torch_device.type == "cuda":
        pinned, there = source.pin_memory(), source.to(device.torch_device)
        copy = lambda: there.copy_(pinned, non_blocking=True)  # noqa: E731
        found["to the GPU"] = _COPIED * _until(seconds, copy, _finisher(device)) / 1e9
    return found


@click.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--device", "name", default="cpu")
@click.option("--precision", "precisions", multiple=True, default=("fp32",))
@click.option("--seconds", type=float, default=10.0, help="How long each is measured.")
def main(folders: tuple[str, ...], name: str, precisions: tuple[str, ...], seconds: float) -> None:
    """Prints the limits as JSON."""
    device = choose_device(name, Launch())
    size = device.default_batch_size
    limits = {
        "network": {precision: network_rate(device, precision, size, seconds) for precision in precisions},
        "decode": decode_rate(folders, 1 + int(_DECODED * seconds)),
        "matmul_gflops": matmul_gflops(device, seconds / 4),
        "copy_gigabytes": copy_gigabytes(device, seconds / 8),
    }
    print(json.dumps(limits))


if __name__ == "__main__":
    main()
