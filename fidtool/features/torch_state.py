"""torch's settings: those of a run, in the place of the calling program's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

_AS_IT_IS = object()


@dataclass(frozen=True)
class _Switch:
    """A setting of torch: how to read and write it, and what it must be in a run."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    strict: Any = _AS_IT_IS


class TorchSettings:
    """torch's settings for a run, which can be left for a while; made by `repeatable`.

    Args:
        tf32: NVIDIA GPUs multiply in TF32.

    Attributes:
        held: what brings the program's settings back when it is closed.
    """

    def __init__(self, tf32: bool) -> None:
        self._tf32 = tf32
        self._gpu: torch.device | None = None
        self.held = contextlib.ExitStack()
        self._hold()

    def _hold(self) -> None:
        # Chosen each time: the program's code may have used other settings of torch's than before.
        self.held.enter_context(_strict([*_kernel_switches(), *_precision_switches(self._tf32)]))
        self.held.enter_context(_without_modes())
        if self._gpu is not None:
            self.held.enter_context(_on_default_stream(self._gpu))

    def use(self, device: torch.device) -> None:
        """From now on the calling thread launches work on this GPU's default stream, as a run's other threads do."""
        if device.type == "cuda":
            self._gpu = device
            self.held.enter_context(_on_default_stream(device))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The calling program's settings for the length of a ``with`` block, in which its own code runs.

        Some of the settings are those of all threads: no network may compute meanwhile. They are as the program's code
        left them the last time: a generator may be inside ``with torch.autocast(...)`` where it yields.
        """
        self.held.close()
        try:
            yield
        finally:
            self._hold()


@contextlib.contextmanager
def repeatable(tf32: bool = False) -> Iterator[TorchSettings]:
    """Full float32 and repeatable kernels for the length of a ``with`` block; the caller's settings come back after.

    TF32 and bfloat16 in the place of float32 are off, and so is autocast. cuDNN neither autotunes (the winner can
    differ from run to run) nor picks non-deterministic kernels. Each thread computes alone: with two intra-op threads a
    convolution on the CPU gives other bits than with one. oneDNN, attention, the default dtype, the default
    device, inference mode and ``torch.use_deterministic_algorithms`` are as in a new process (cuDNN's attention is off,
    whose default changed with torch's versions). torch's random numbers, which building a module uses up, come back.

    Args:
        tf32: NVIDIA GPUs multiply in TF32 all the same, because the user asked for it.
    """
    with _modes_come_back():
        settings = TorchSettings(tf32)
        with settings.held:
            yield settings


@contextlib.contextmanager
def _modes_come_back() -> Iterator[None]:
    """A generator that is not at its end may hold inference mode or autocast for longer than a run."""
    grad = torch.is_grad_enabled()
    with (
        _strict([replace(switch, strict=_AS_IT_IS) for switch in _autocast_switches()]),
        torch.inference_mode(torch.is_inference_mode_enabled()),
        torch.set_grad_enabled(grad),
    ):
        yield


@contextlib.contextmanager
def full_fp32() -> Iterator[None]:
    """Of `repeatable` the precision alone: for passes whose bits may vary, but not by TF32's thousandths."""
    with _strict(_precision_switches()):
        yield


@contextlib.contextmanager
def _strict(switches: list[_Switch]) -> Iterator[None]:
    before = [switch.read() for switch in switches]
    try:
        for switch in switches:
            if switch.strict is not _AS_IT_IS:
                switch.write(switch.strict)
        yield
    finally:
        # Backwards: the later ones change some of the earlier.
        for switch, value in reversed(list(zip(switches, before, strict=True))):
            switch.write(value)


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """Neither inference mode nor a default device, and the random numbers as they were."""
    random_state = torch.get_rng_state()
    plain = torch.empty(0).device.type == "cpu"
    try:
        with torch.inference_mode(False), contextlib.nullcontext() if plain else torch.device("cpu"):
            yield
    finally:
        torch.set_rng_state(random_state)


@contextlib.contextmanager
def _on_default_stream(device: torch.device) -> Iterator[None]:
    """GPU work begins after what the program has launched on a stream of its own, which then waits for it."""
    callers, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
    default.wait_stream(callers)
    with torch.cuda.stream(default):
        yield
    callers.wait_stream(default)


def _attribute(place: Any, name: str, strict: object) -> _Switch:
    return _Switch(partial(getattr, place, name), partial(setattr, place, name), strict)


def _kernel_switches() -> list[_Switch]:
    """The settings that select kernels, but for their precision."""
    backends: Any = torch.backends
    attention = {"flash": True, "mem_efficient": True, "math": True, "cudnn": False}  # its default changed
    return [
        _Switch(torch.get_num_threads, torch.set_num_threads, 1),
        _Switch(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _Switch(_deterministic, _set_deterministic, (False, False)),
        _attribute(backends.cudnn, "enabled", True),
        _attribute(backends.cudnn, "benchmark", False),
        _attribute(backends.cudnn, "deterministic", True),
        _attribute(backends.mkldnn, "enabled", True),
        *_autocast_switches(),
        _Switch(backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled, True),
        *(
            _Switch(getattr(backends.cuda, f"{name}_sdp_enabled"), getattr(backends.cuda, f"enable_{name}_sdp"), used)
            for name, used in attention.items()
        ),
        _Switch(_blas_library, _set_blas_library, "cublas"),
    ]


def _autocast_switches() -> list[_Switch]:
    return [
        _Switch(partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind), False)
        for kind in ("cpu", "cuda", "mps")
        if torch.amp.is_autocast_available(kind)
    ]


def _blas_library() -> str:
    return str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2].lower()


def _set_blas_library(name: str) -> None:
    if name != _blas_library():  # torch warns of the setting
        torch.backends.cuda.preferred_blas_library(name)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    if value != _deterministic():  # torch imports its compiler here, which takes seconds
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _precision_switches(tf32: bool = False) -> list[_Switch]:
    """The settings that trade float32's digits for speed; on NVIDIA GPUs ``tf32`` has them do so.

    torch 2.9 brought new ones and refuses to read the old ones in a program that has used the new: each program is
    answered in the language it speaks, since writing the other one would break its own later reads.
    """
    backends: Any = torch.backends
    try:
        switches = [
            *_newer_precisions(),  # which the writing of the older ones sets
            _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
            _attribute(backends.cuda.matmul, "allow_tf32", tf32),
            _attribute(backends.cudnn, "allow_tf32", tf32),
        ]
        for switch in switches:
            switch.read()
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
    if hasattr(backends.cuda, "allow_fp16_bf16_reduction_math_sdp"):
        allowed = backends.cuda.fp16_bf16_reduction_math_sdp_allowed
        switches.append(_Switch(allowed, backends.cuda.allow_fp16_bf16_reduction_math_sdp, False))
    sums = (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    matmul = backends.cuda.matmul
    return switches + [_attribute(matmul, name, False) for name in sums if hasattr(matmul, name)]


def _newer_precisions() -> list[_Switch]:
    """The settings of torch 2.9, to be left as they are found."""
    backends: Any = torch.backends
    parents = [backends, backends.cuda.matmul, backends.cudnn, backends.mkldnn]
    places = [*parents, *(getattr(parent, name, None) for parent in parents[2:] for name in ("conv", "rnn", "matmul"))]
    return [_remembered(place) for place in places if hasattr(place, "fp32_precision")]


def _remembered(place: Any) -> _Switch:
    def write(value: str) -> None:
        if place.fp32_precision != value:
            place.fp32_precision = value

    return _Switch(partial(getattr, place, "fp32_precision"), write)
