"""Which of torch's operations the network's time goes to."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fidtool.distributed.launch import Launch
from fidtool.features.device import choose_device
from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import repeatable

COLUMNS = ("operation", "share", "ms a batch", "calls a batch")
_SHOWN = 8


def operations(name: str, precision: str, compiled: bool, passes: int) -> dict[str, Any]:
    """Profiles forward passes of full batches, one after the other, on tensors that are on the device.

    Args:
        name: value of ``--device``.
        precision, compiled: as `fidtool.compute` has them.
        passes: how many are profiled, after two that are not.

    Returns:
        ``batch_size``, ``milliseconds`` a batch, and ``operations``: of each the milliseconds that it took itself and
        its calls, both a batch, the longest first. On a GPU these are kernels.
    """
    device = choose_device(name, Launch())
    place, size = device.torch_device, device.default_batch_size
    with repeatable(precision == "tf32"), torch.inference_mode():
        arithmetic = Arithmetic(precision, compiled, size)
        runner = Runner(Inception(load_weights(None, print).state), place, arithmetic, standard=True)
        x = torch.rand(size, 3, 299, 299, device=place).mul(2).sub(1).contiguous(memory_format=torch.channels_last)
        for _ in range(2):
            runner(x)
        cuda = place.type == "cuda"
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with profile(activities=kinds) as profiled:
            for _ in range(passes):
                runner(x)
            if cuda:
                torch.cuda.synchronize()
    own = "self_device_time_total" if cuda else "self_cpu_time_total"
    found = [
        {"operation": each.key, "milliseconds": getattr(each, own) / 1e3 / passes, "calls": each.count / passes}
        for each in profiled.key_averages()
    ]
    found.sort(key=lambda each: -each["milliseconds"])
    whole = sum(each["milliseconds"] for each in found)
    return {"batch_size": size, "milliseconds": whole, "operations": [each for each in found if each["milliseconds"]]}


def table_rows(results: dict[str, Any]) -> list[list[str]]:
    """The longest of them, for `bench_output.table`."""
    rows = []
    for each in results["operations"][:_SHOWN]:
        share = each["milliseconds"] / results["milliseconds"]
        rows.append([each["operation"], f"{share:.1%}", f"{each['milliseconds']:.2f}", f"{each['calls']:g}"])
    return rows
