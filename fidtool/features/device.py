"""The device of a rank, and torch's settings during a run, which replace those of the calling
program.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fidtool.distributed.launch import Launch, available_cores, available_threads, single_process
from fidtool.errors import InputError, option
from fidtool.validation import TorchDevice

# Measured on two cores: batches of 4, 8 and 16 images are equally fast, and small batches leave
# less idle time at the end of a set.
_CPU_BATCH = 8
_GPU_BATCH = 64
# Largest number of copies to a GPU that are pending.
_MAX_UPLOADS = 4
# Decoding and inspecting a photo takes 2 ms, its forward pass 80 ms of one thread. The main thread
# can therefore supply about 30 forward threads without workers.
_THREADS_PER_WORKER = 16


@dataclass(frozen=True)
class Device:
    """The device on which a rank runs forward passes, and what follows from it.

    Attributes:
        torch_device: for example ``cpu`` or ``cuda:1``.
        name: name of the hardware, for the record.
        default_batch_size, default_workers: images of a batch and decoding workers unless they are
            set. The workers are few on the CPU, which the network needs, else all but one of the
            rank's cores.
        forward_threads: number of threads that run forward passes, each on one batch at a time; 0
            on accelerators, for which the calling thread launches the passes. An accelerator works
            while the host goes on, so that a second thread would not save time. It would need the
            calling thread's device and stream.
    """

    torch_device: torch.device
    name: str
    default_batch_size: int
    default_workers: int
    forward_threads: int = 0


def choose_device(requested: str | TorchDevice | None, launch: Launch) -> Device:
    """Return the device of this rank, as ``--device`` requested it: ``cpu``, ``cuda`` or
    ``cuda:1``.

    None is CUDA if available, else the CPU. ``cuda`` without an index is the GPU whose index is the
    local rank.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    usable = ["cpu"]
    if gpus:
        usable += ["cuda", *(f"cuda:{index}" for index in range(gpus))]
    if requested is None:
        requested = "cuda" if gpus else "cpu"
    named = option("device", str(requested))
    remedy = f"use {' or '.join(usable)}"
    try:
        device = torch.device(str(requested))
    except RuntimeError:
        raise InputError(f"{named} is not the name of a device:", remedy) from None
    if str(device) not in ("cpu:0", *usable):
        raise InputError(f"{named}: this machine has no such device that fidtool supports", remedy)
    if device.type == "cuda" and device.index is None:
        # A program without a launcher has selected its device; one process per GPU is usual even
        # there.
        chosen = launch.local_world_size == 1 and torch.cuda.is_initialized()
        index = torch.cuda.current_device() if chosen else launch.local_rank % gpus
        device = torch.device("cuda", index)
    return make_device(device, launch)


def make_device(device: torch.device, launch: Launch | None = None) -> Device:
    """Return the `Device` for a torch device that the calling program has chosen; a ``launch`` of
    None is alone.
    """
    launch = launch or single_process()
    if device.type != "cpu":
        workers = max(1, min(16, available_cores(launch.local_world_size) - 1))
        return Device(device, torch.cuda.get_device_name(device), _GPU_BATCH, workers)
    # The instruction set selects the kernels, which round differently.
    name = f"{_cpu_model()} ({torch.backends.cpu.get_cpu_capability()})"
    threads = available_threads(launch.local_world_size)
    return Device(torch.device("cpu"), name, _CPU_BATCH, threads // _THREADS_PER_WORKER, threads)


class Uploads:
    """Copies tensors from the CPU to a device.

    A GPU copies them after its work so far. The host does not wait for that, unless many copies are
    pending: until they are made, they need pinned memory. On the CPU, nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending = deque[torch.cuda.Event]()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._device.type != "cuda":
            return tensor
        if len(self._pending) == _MAX_UPLOADS:
            self._pending.popleft().synchronize()
        try:
            pinned = tensor.pin_memory()
        except RuntimeError:  # it is limited on some systems
            return tensor.to(self._device)
        # torch keeps pinned memory until the copy has been made.
        copied = pinned.to(self._device, non_blocking=True)
        self._pending.append(_record_event(copied))
        return copied


class HostCopy:
    """A copy of a tensor in the memory of the CPU.

    A GPU makes it after its work so far, and the host only waits for it in `wait`. A tensor on the
    CPU is not copied.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        # torch allocates pinned memory for it.
        self._tensor = tensor.to("cpu", non_blocking=tensor.is_cuda)
        self._copied = _record_event(tensor) if tensor.is_cuda else None

    @property
    def is_ready(self) -> bool:
        return self._copied is None or self._copied.query()  # type: ignore[no-untyped-call]

    def wait(self) -> torch.Tensor:
        """Return the copy when it is ready."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensor


def _record_event(tensor: torch.Tensor) -> torch.cuda.Event:
    """Return an event that occurs after the work so far on the GPU of a tensor."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return event


class StreamTimer:
    """Measures how long a GPU works on what is launched in blocks of code, by events in its current
    stream, for which the host does not wait.
    """

    def __init__(self) -> None:
        # The start and the stop of blocks whose work may not have ended.
        self._blocks = deque[tuple[torch.cuda.Event, torch.cuda.Event]]()
        self._milliseconds = 0.0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        yield
        stop.record()
        self._blocks.append((start, stop))
        while self._blocks and self._blocks[0][1].query():  # type: ignore[no-untyped-call]
            self._read_oldest()

    def read_seconds(self) -> float:
        """Return the seconds of all blocks so far, once their work has ended."""
        while self._blocks:
            self._read_oldest()
        return self._milliseconds / 1000

    def _read_oldest(self) -> None:
        start, stop = self._blocks.popleft()
        stop.synchronize()
        self._milliseconds += start.elapsed_time(stop)


def nvidia_capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU; None for other devices. To torch AMD's are
    ``cuda``, too.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text()
        model = re.search(r"^model name\s*:\s*(.*\S)", facts, re.MULTILINE)
        if model:
            return model[1]
    return platform.processor() or platform.machine()


class _Switch(NamedTuple):
    """How to read and write a setting of torch, and its value during a run; with None, it is
    restored only.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    value: Any


@dataclass
class TorchSettings:
    """torch's settings during a run, created by `deterministic_mode`. They can be suspended."""

    tf32: bool
    device: torch.device | None = None
    stream: torch.cuda.Stream | None = None
    exit_stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def apply(self, device: torch.device | None = None) -> None:
        """Replace the calling program's settings until ``held`` is closed, and make a GPU current
        in this thread.
        """
        self.exit_stack.close()
        self.device = device
        hold = self.exit_stack.enter_context
        # Selected each time: the program's code may have switched between torch's old and new
        # precision settings.
        hold(_apply_switches(_kernel_switches() + _precision_switches(self.tf32)))
        hold(torch.random.fork_rng(devices=[]))  # restores the random state
        hold(torch.inference_mode(False))
        if torch.empty(0).device.type != "cpu":
            hold(torch.device("cpu"))
        if device is not None and device.type == "cuda":
            hold(torch.cuda.device(device))
            # A generator of the program may be inside ``with torch.cuda.stream(...)``.
            self.stream = self.stream or torch.cuda.current_stream(device)
            hold(torch.cuda.stream(self.stream))

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Restore the calling program's settings for a ``with`` block in which the program's code
        runs.

        Some settings apply to all threads, so no network may compute meanwhile. The settings are
        those that the program's code left the last time: a generator may be inside ``with
        torch.autocast(...)`` when it yields.
        """
        self.exit_stack.close()
        try:
            yield
        finally:
            self.apply(self.device)


@contextlib.contextmanager
def deterministic_mode(tf32: bool = False) -> Iterator[TorchSettings]:
    """Use full float32 precision and repeatable kernels in a ``with`` block; restore the caller's
    settings after it.

    TF32 (unless ``tf32``), bfloat16 in place of float32, and autocast are off. cuDNN neither
    autotunes (the fastest kernel can differ from run to run) nor selects non-deterministic kernels.
    The number of intra-op threads is 1, because a convolution on the CPU has different bits with
    two. oneDNN, attention, the default dtype, the default device, inference mode and
    ``torch.use_deterministic_algorithms`` are as in a new process, except that cuDNN's attention is
    off, because its default differs between versions of torch. The state of torch's random number
    generator, which building a module changes, is restored.
    """
    grad = torch.is_grad_enabled()  # before inference_mode, which changes it
    with (
        # An unfinished generator of the program may hold these modes for longer than a run.
        _apply_switches([switch._replace(value=None) for switch in _autocast_switches()]),
        torch.inference_mode(torch.is_inference_mode_enabled()),
        torch.set_grad_enabled(grad),
        (settings := TorchSettings(tf32)).exit_stack,
    ):
        settings.apply()
        yield settings


@contextlib.contextmanager
def device_context(device: torch.device, half: torch.dtype | None = None) -> Iterator[None]:
    """Make ``device`` the current one in a ``with`` block that calls a network, with autocast to
    ``half`` or without.

    The program's current stream of the device stays current, so that the network is ordered with
    the program's work.
    """
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, half, enabled=half is not None))
        yield


def full_fp32() -> contextlib.AbstractContextManager[None]:
    """Use full float32 precision in a ``with`` block, but not the other settings of
    `deterministic_mode`.
    """
    return _apply_switches(_precision_switches())


@contextlib.contextmanager
def _apply_switches(switches: list[_Switch]) -> Iterator[None]:
    before = [switch.read() for switch in switches]
    try:
        for switch in switches:
            if switch.value is not None:
                switch.write(switch.value)
        yield
    finally:
        # In reverse, because later settings change some of the earlier ones.
        for switch, value in zip(reversed(switches), reversed(before), strict=True):
            if switch.value is not None or switch.read() != value:
                switch.write(value)


def _attribute_switch(place: Any, name: str, during: object) -> _Switch:
    return _Switch(partial(getattr, place, name), partial(setattr, place, name), during)


def _kernel_switches() -> list[_Switch]:
    """The settings that select kernels, except those of precision."""
    backends: Any = torch.backends
    cuda = backends.cuda
    return [
        _Switch(torch.get_num_threads, torch.set_num_threads, 1),
        _Switch(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _Switch(_read_deterministic, _set_deterministic, (False, False)),
        _attribute_switch(backends.cudnn, "enabled", True),
        _attribute_switch(backends.cudnn, "benchmark", False),
        _attribute_switch(backends.cudnn, "deterministic", True),
        _attribute_switch(backends.mkldnn, "enabled", True),
        *_autocast_switches(),
        _Switch(backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled, True),
        _Switch(cuda.flash_sdp_enabled, cuda.enable_flash_sdp, True),
        _Switch(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, True),
        _Switch(cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
        # Its default differs between versions of torch.
        _Switch(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, False),
    ]


def _read_deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    # Only if it changes, because torch imports its compiler here, which takes seconds.
    if value != _read_deterministic():
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _autocast_switches() -> list[_Switch]:
    return [
        _Switch(
            partial(torch.is_autocast_enabled, kind),
            partial(torch.set_autocast_enabled, kind),
            False,
        )
        for kind in ("cpu", "cuda")
        if torch.amp.is_autocast_available(kind)
    ]


def _precision_switches(tf32: bool = False) -> list[_Switch]:
    """The settings that trade float32 precision for speed; ``tf32`` enables this on NVIDIA GPUs.

    torch 2.9 added new settings, and refuses to read the old ones in a program that has used the
    new ones. The settings that the program uses are therefore used here as well: writing the others
    would break the program's later reads.
    """
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    cudnn = backends.cudnn
    mkldnn = backends.mkldnn
    switches: list[_Switch] = []
    is_newer = hasattr(backends, "fp32_precision")
    if is_newer:
        # Restored only: writing the old settings changes these.
        places = [backends, matmul, cudnn, cudnn.conv, cudnn.rnn]
        places += [mkldnn, mkldnn.conv, mkldnn.rnn, mkldnn.matmul]
        switches = [_attribute_switch(place, "fp32_precision", None) for place in places]
    older = [
        _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        _attribute_switch(matmul, "allow_tf32", tf32),
        _attribute_switch(cudnn, "allow_tf32", tf32),
    ]
    try:
        for switch in older:
            switch.read()
        switches += older
        # This one has no old counterpart. Its default is full precision.
        if is_newer and mkldnn.conv.fp32_precision not in ("none", "ieee"):
            switches.append(_attribute_switch(mkldnn.conv, "fp32_precision", "ieee"))
    except RuntimeError:
        precision = "tf32" if tf32 else "ieee"
        switches += [
            _attribute_switch(matmul, "fp32_precision", precision),
            _attribute_switch(cudnn.conv, "fp32_precision", precision),
            _attribute_switch(mkldnn.conv, "fp32_precision", "ieee"),
            _attribute_switch(mkldnn.matmul, "fp32_precision", "ieee"),
        ]
    # In half precision, a GPU accumulates in 32 bits.
    for sums in (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ):
        if hasattr(matmul, sums):
            switches.append(_attribute_switch(matmul, sums, False))
    return switches
