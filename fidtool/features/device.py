"""Which device a rank computes on, and how pixels get there."""

from __future__ import annotations

import os
import platform
from collections import deque
from dataclasses import dataclass

import torch

from fidtool.distributed.launch import Launch
from fidtool.errors import InputError, option

_CPU_BATCH = 8
"""Measured on two cores: 8 images run as fast as 4 or 16, and the fewer there are, the sooner all is done."""
_GPU_BATCH = 64
_MOST_WORKERS = 16
_THREADS_PER_WORKER = 16
"""A photo takes 2 ms to decode and look at and 80 ms of a forward thread: the main one keeps up with some 30."""
_IN_FLIGHT = 2
"""Batches whose pixels are on the device at a time: one in the network, one on its way."""


@dataclass(frozen=True)
class Device:
    """Where a rank's forward passes run.

    Attributes:
        torch_device: e.g. ``cpu`` or ``cuda:1``.
        name: the hardware, for the record.
        forward_threads: threads that run forward passes, each a batch at a time (1 on accelerators).
        shared: several ranks of this machine use the same accelerator, which NCCL does not allow.
    """

    torch_device: torch.device
    name: str
    forward_threads: int
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
            return self.forward_threads // _THREADS_PER_WORKER
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
        named = option("device")
        raise InputError(f"unknown {named} {requested!r}", "use cpu, cuda, cuda:0 or mps", setting="device") from None
    if device.type == "cpu":
        return device_of(device, launch)
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            problem = f"{option('device', 'mps')}: there is no Apple GPU here"
            raise InputError(problem, f"leave {option('device')} out to use what there is", setting="device")
        return Device(device, "Apple GPU", 1, shared=launch.local_world_size > 1)
    if device.type != "cuda":
        problem = f"{option('device', requested)} is not supported"
        raise InputError(problem, "use cpu, cuda, cuda:0 or mps", setting="device")
    return _cuda_device(device, launch)


def device_of(device: torch.device, launch: Launch) -> Device:
    """What is to be known of a device that a program has chosen itself."""
    if device.type == "cpu":
        threads = max(1, available_cores() // launch.local_world_size)
        return Device(torch.device("cpu"), _cpu_name(), threads, shared=False)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Device(device, name, 1, shared=False)


def _cuda_device(device: torch.device, launch: Launch) -> Device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        problem = f"{option('device', 'cuda')}: torch sees no CUDA device here"
        raise InputError(problem, f"leave {option('device')} out to use the CPU", setting="device")
    if device.index is not None and device.index >= count:
        named = option("device", f"{device}")
        problem = f"{named}: there are only {count} CUDA devices here, cuda:0 to cuda:{count - 1}"
        raise InputError(problem, setting="device")
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


class Transfer:
    """Brings a batch's pixels, bytes as they are, to a device.

    Args:
        device: where they go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def await_room(self) -> None:
        """Waits until another batch may go there: for the network, that is, and not for the copy."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """The pixels on the device, for work on its current stream."""
        return pixels.to(self._device)


class StreamedTransfer(Transfer):
    """Copies beside the network's work, on a stream of their own, from page-locked memory.

    The thread that calls it launches the network's work on the current stream in between, and is held up before more
    than two batches are under way.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._launched: deque[torch.cuda.Event] = deque()

    def await_room(self) -> None:
        while len(self._launched) >= _IN_FLIGHT - 1:
            self._launched.popleft().synchronize()

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """The pixels on the device; they may still be on their way there, which work on its current stream awaits."""
        self.await_room()
        work = torch.cuda.current_stream(self._device)
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(work)
        self._launched.append(event)  # all the work of earlier calls is before it
        with torch.cuda.stream(self._stream):
            there = pixels.to(self._device, non_blocking=True)
        work.wait_stream(self._stream)
        there.record_stream(work)  # its memory is not another's before the work is done
        return there


def transfer_to(device: torch.device) -> Transfer:
    """What brings a batch's pixels to ``device``."""
    return StreamedTransfer(device) if device.type == "cuda" else Transfer(device)
