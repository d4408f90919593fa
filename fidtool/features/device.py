"""Which device a rank computes on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch

from fidtool.distributed.launch import Launch
from fidtool.errors import InputError

_CPU_BATCH = 8
"""Measured on two cores: 8 images run as fast as 4 or 16, and the fewer there are the sooner the last lane is done."""
_GPU_BATCH = 64
_MOST_WORKERS = 16
_LANES_PER_WORKER = 16
"""A photo takes 2 ms to decode and look at and 80 ms of a lane: the main thread keeps up with some 30 lanes."""


@dataclass(frozen=True)
class Device:
    """Where a rank's forward passes run.

    Attributes:
        torch_device: e.g. ``cpu`` or ``cuda:1``.
        name: the hardware, for the record.
        lanes: batches that run side by side, each on one thread (1 on accelerators).
        shared: several ranks of this machine use the same accelerator, which NCCL does not allow.
    """

    torch_device: torch.device
    name: str
    lanes: int
    shared: bool

    @property
    def exact_sums(self) -> torch.device:
        """Where the moments are summed: here, or on the CPU where the device has no float64."""
        return torch.device("cpu") if self.torch_device.type == "mps" else self.torch_device

    @property
    def use_nccl(self) -> bool:
        return self.torch_device.type == "cuda" and not self.shared

    @property
    def default_batch_size(self) -> int:
        return _CPU_BATCH if self.torch_device.type == "cpu" else _GPU_BATCH

    def default_workers(self, launch: Launch) -> int:
        """Decoding processes: few on the CPU, whose cores the network needs, else this rank's share but one core."""
        if self.torch_device.type == "cpu":
            return self.lanes // _LANES_PER_WORKER
        return max(1, min(_MOST_WORKERS, available_cores() // launch.local_world_size - 1))


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(requested: str | None, launch: Launch) -> Device:
    """Picks the device of this rank.

    Args:
        requested: value of ``--device``: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; None takes the best there is.
            ``cuda`` without a number means the GPU with the local rank's number.
        launch: this rank's place.

    Raises:
        InputError: a device that torch does not know or that is not there.
    """
    if requested is None:
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise InputError(f"unknown --device {requested!r}; use cpu, cuda, cuda:0 or mps") from None
    if device.type == "cpu":
        return device_of(device, launch)
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("--device mps: there is no Apple GPU here; leave --device out to use what there is")
        return Device(device, "Apple GPU", 1, shared=launch.local_world_size > 1)
    if device.type != "cuda":
        raise InputError(f"--device {requested} is not supported; use cpu, cuda, cuda:0 or mps")
    return _cuda_device(device, launch)


def device_of(device: torch.device, launch: Launch) -> Device:
    """What is to be known of a device that a program has chosen itself."""
    if device.type == "cpu":
        lanes = max(1, available_cores() // launch.local_world_size)
        return Device(torch.device("cpu"), _cpu_name(), lanes, shared=False)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Device(device, name, 1, shared=False)


def _cuda_device(device: torch.device, launch: Launch) -> Device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise InputError("--device cuda: torch sees no CUDA device here; leave --device out to use the CPU")
    if device.index is not None and device.index >= count:
        raise InputError(f"--device {device}: there are only {count} CUDA devices here, cuda:0 to cuda:{count - 1}")
    index = launch.local_rank % count if device.index is None else device.index
    ranks_per_device = launch.local_world_size if device.index is not None else -(-launch.local_world_size // count)
    return Device(torch.device("cuda", index), torch.cuda.get_device_name(index), 1, shared=ranks_per_device > 1)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as handle:
            model = next(line.split(":", 1)[1].strip() for line in handle if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    # The instruction set decides which kernels run, and they round differently.
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"
