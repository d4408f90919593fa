"""The device of a rank."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from fidtool.cpus import available_cores, available_threads
from fidtool.distributed.launch import Launch
from fidtool.errors import InputError, option
from fidtool.validation import TorchDevice

_CPU_BATCH = 8
"""Measured on two cores: batches of 4, 8 and 16 images are equally fast, and small batches leave less idle time at the
end of a set."""
_GPU_BATCH = 64
_MOST_WORKERS = 16
_THREADS_PER_WORKER = 16
"""Decoding and inspecting a photo takes 2 ms, its forward pass 80 ms of one thread. The main thread can therefore
supply about 30 forward threads without workers."""


@dataclass(frozen=True)
class Device:
    """The device on which a rank runs forward passes.

    Attributes:
        torch_device: for example ``cpu`` or ``cuda:1``.
        name: name of the hardware, for the record.
        forward_threads: number of threads that run forward passes, each on one batch at a time (1 on accelerators).
    """

    torch_device: torch.device
    name: str
    forward_threads: int

    @property
    def own_threads(self) -> int:
        """Number of threads that only run forward passes. On accelerators, the calling thread launches them.

        An accelerator works while the host goes on, so that a second thread would not save time. It would need the
        calling thread's device and stream, and Apple GPUs do not support work from two threads.
        """
        return self.forward_threads if self.torch_device.type == "cpu" else 0

    @property
    def exact_sums(self) -> torch.device:
        """The device on which moments are summed: this one, or the CPU if this one has no float64."""
        return torch.device("cpu") if self.torch_device.type == "mps" else self.torch_device

    @property
    def default_batch_size(self) -> int:
        return _CPU_BATCH if self.torch_device.type == "cpu" else _GPU_BATCH

    def default_workers(self, launch: Launch) -> int:
        """Return the number of decoding workers: few on the CPU, which the network needs, else all but one of the
        rank's cores.
        """
        if self.torch_device.type == "cpu":
            return self.forward_threads // _THREADS_PER_WORKER
        return max(1, min(_MOST_WORKERS, available_cores(launch.local_world_size) - 1))


def choose_device(requested: str | TorchDevice | None, launch: Launch) -> Device:
    """Return the device of this rank.

    Args:
        requested: value of ``--device``: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``; None selects CUDA if available, else
            the CPU. ``cuda`` without an index selects the GPU whose index is the local rank.
    """
    if requested is None:
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(str(requested))
    except RuntimeError:
        named = option("device")
        raise InputError(f"unknown {named} {requested!r}", "use cpu, cuda, cuda:0 or mps", setting="device") from None
    if device.type == "cpu":
        return device_of(device, launch)
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            problem = f"{option('device', 'mps')}: this machine has no Apple GPU"
            raise InputError(problem, f"omit {option('device')} to use the default device", setting="device")
        return Device(device, "Apple GPU", 1)
    if device.type != "cuda":
        problem = f"{option('device', requested)} is not supported"
        raise InputError(problem, "use cpu, cuda, cuda:0 or mps", setting="device")
    return _cuda_device(device, launch)


def device_of(device: torch.device, launch: Launch) -> Device:
    """Return the `Device` for a torch device that the calling program has chosen."""
    if device.type == "cpu":
        return Device(torch.device("cpu"), _cpu_name(), available_threads(launch.local_world_size))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Device(device, name, 1)


def _cuda_device(device: torch.device, launch: Launch) -> Device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        problem = f"{option('device', f'{device}')}: torch finds no CUDA device on this machine"
        raise InputError(problem, f"omit {option('device')} to use the CPU", setting="device")
    if device.index is not None and device.index >= count:
        named = option("device", f"{device}")
        problem = f"{named}: this machine has only {count} CUDA devices, cuda:0 to cuda:{count - 1}"
        raise InputError(problem, setting="device")
    index = device.index
    if index is None:
        # A program without a launcher has selected its device; one process per GPU is usual even there.
        chosen = launch.local_world_size == 1 and torch.cuda.is_initialized()
        index = torch.cuda.current_device() if chosen else launch.local_rank % count
    return Device(torch.device("cuda", index), torch.cuda.get_device_name(index), 1)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as handle:
            model = next(line.split(":", 1)[1].strip() for line in handle if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    # The instruction set selects the kernels, which round differently.
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"
