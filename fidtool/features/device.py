"""Which device a rank computes on, and the arithmetic that is allowed there."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    torch.cuda.set_device(index)
    return Device(torch.device("cuda", index), torch.cuda.get_device_name(index), 1, shared=ranks_per_device > 1)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as handle:
            model = next(line.split(":", 1)[1].strip() for line in handle if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    # The instruction set decides which kernels run, and they round differently.
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"


class Strictness:
    """What `repeatable` has changed, so that a program's own code can run in between as it is used to.

    Args:
        switches: the settings.
        threads: the number of intra-op threads before.
    """

    def __init__(self, switches: list[_Switch], threads: int) -> None:
        self._switches, self._threads = switches, threads
        self.random_state = torch.get_rng_state()
        """Of torch's generator on the CPU, as the program left it."""
        self.used = False
        """Whether any of the program's code has run."""

    @contextlib.contextmanager
    def paused(self, precision: bool) -> Iterator[None]:
        """The program's settings and random numbers for the length of a ``with`` block.

        Args:
            precision: those that trade digits for speed too: not while other threads compute.
        """
        switches = self._switches if precision else []
        strict_state = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        self.used = True
        torch.set_num_threads(self._threads)
        try:
            for switch in switches:
                switch.write(switch.before)
            yield
        finally:
            for switch in switches:
                switch.write(switch.strict)
            torch.set_num_threads(1)
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(strict_state)


@contextlib.contextmanager
def repeatable(tf32: bool = False) -> Iterator[Strictness]:
    """Full float32 and repeatable kernels for the length of a ``with`` block; the caller's settings come back after.

    TF32 and bfloat16 in the place of float32 are off, cuDNN neither autotunes (the winner can differ from run to run)
    nor picks non-deterministic kernels, and each thread computes alone: with two intra-op threads a convolution on the
    CPU gives other bits than with one. torch's random numbers, which building a module uses up, come back too.

    Args:
        tf32: NVIDIA GPUs multiply in TF32 all the same, because the user asked for it.
    """
    cudnn = torch.backends.cudnn
    threads = torch.get_num_threads()
    switches = [
        _attribute(cudnn, "benchmark", False),
        _attribute(cudnn, "deterministic", True),
        *_precision_switches(tf32),
    ]
    strictness = Strictness(switches, threads)
    with _strict(switches):
        try:
            torch.set_num_threads(1)
            with torch.random.fork_rng(devices=[]):
                yield strictness
        finally:
            torch.set_num_threads(threads)
            if strictness.used:
                torch.set_rng_state(strictness.random_state)


@contextlib.contextmanager
def full_fp32() -> Iterator[None]:
    """Of `repeatable` the precision alone: for passes whose bits may vary, but not by TF32's thousandths."""
    with _strict(_precision_switches()):
        yield


@dataclass(frozen=True)
class _Switch:
    """A global setting of torch: how to write it, what it was, what it must be."""

    write: Callable[[Any], None]
    before: Any
    strict: Any


@contextlib.contextmanager
def _strict(switches: list[_Switch]) -> Iterator[None]:
    try:
        for switch in switches:
            switch.write(switch.strict)
        yield
    finally:
        for switch in switches:
            switch.write(switch.before)


def _attribute(place: Any, name: str, strict: object) -> _Switch:
    return _Switch(partial(setattr, place, name), getattr(place, name), strict)


def _precision_switches(tf32: bool = False) -> list[_Switch]:
    """The settings that trade float32's digits for speed; on NVIDIA GPUs ``tf32`` has them do so.

    torch 2.9 brought new ones and refuses to read the old ones in a program that has used the new: each program is
    answered in the language it speaks, since writing the other one would break its own later reads.
    """
    backends: Any = torch.backends
    try:
        switches = [
            _Switch(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "highest"),
            _attribute(backends.cuda.matmul, "allow_tf32", tf32),
            _attribute(backends.cudnn, "allow_tf32", tf32),
        ]
        # It has no old counterpart; untouched, it is strict.
        places = [backends.mkldnn.conv] if hasattr(backends.mkldnn, "conv") else []
        places = [place for place in places if place.fp32_precision not in ("none", "ieee")]
    except RuntimeError:
        nvidia = "tf32" if tf32 else "ieee"
        switches = [
            _attribute(place, "fp32_precision", nvidia) for place in (backends.cuda.matmul, backends.cudnn.conv)
        ]
        places = [backends.mkldnn.conv, backends.mkldnn.matmul]
    switches += [_attribute(place, "fp32_precision", "ieee") for place in places]
    # In half precision a GPU's sums have 32 bits all the way.
    sums = (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    matmul = backends.cuda.matmul
    return switches + [_attribute(matmul, name, False) for name in sums if hasattr(matmul, name)]
