"""How a network's module is run: its precision, compilation, and batch shape."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fidtool.cache_dir import compiled_dir
from fidtool.errors import RunError, option
from fidtool.features.models.inception import packs
from fidtool.features.network import noise
from fidtool.features.torch_state import computing_on
from fidtool.torch_internals import COMPILERS, compiler_settings, end_failed_capture

Run = Callable[[torch.Tensor], Any]
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_VERBOSE = (*COMPILERS, "torch.utils.cpp_extension")
"""Loggers that warn about unused GPUs and about ways to compile a network better."""
_WARM_UP = 2
"""Passes before the recording, in which libraries allocate memory and select kernels."""


@dataclass(frozen=True)
class Arithmetic:
    """Settings that affect the digits of the features.

    Attributes:
        precision: see `fidtool.settings.Settings`. TF32 is switched on by `fidtool.features.torch_state.repeatable`.
        compiled: whether the network is compiled with torch.compile.
        batch_size: number of images in a full batch; None if unknown. All batches are padded to it if the network is
            compiled or recorded for a fixed shape.
    """

    precision: str = "fp32"
    compiled: bool = False
    batch_size: int | None = None


class Runner:
    """Runs a module on batches.

    In half precision, Inception's weights and activations have 16 bits; sums within a layer and the final global
    average have 32 bits. Other networks run under torch's autocast, which selects the precision layer by layer.

    Args:
        module: the network; it is moved to the device.
        device: the device on which it runs.
        arithmetic: precision, compilation and batch size.
        standard: whether it is Inception, all of whose layers support half precision and CUDA graphs.

    Attributes:
        module: as passed by the caller, for gradients. `__call__` may run a compiled or recorded version.
    """

    def __init__(self, module: nn.Module, device: torch.device, arithmetic: Arithmetic, standard: bool = False) -> None:
        self._device, self._arithmetic, self._standard = device, arithmetic, standard
        half = _HALVES.get(arithmetic.precision)
        self.module = module.to(device, half if standard else None)
        run: Run = self.module
        if half is not None:
            run = _to_half(run, half) if standard else _autocast(run, device.type, half)
        if arithmetic.compiled:
            run = Compiled(run, device)
        size = arithmetic.batch_size
        recorded = standard and device.type == "cuda" and size is not None
        self._graphed = Graphed(run, device) if recorded else None
        run = self._graphed or run
        self._run = _of_one_shape(run, size) if size is not None and (recorded or arithmetic.compiled) else run

    def __call__(self, x: torch.Tensor) -> Any:
        """Return the module's output for a batch, without gradients.

        Args:
            x: float32 tensor of shape (n, 3, height, width), channels-last, on the device.
        """
        with torch.inference_mode(), computing_on(self._device):
            return self._run(x)

    @property
    def unrecorded(self) -> str:
        """Why the network runs without a CUDA graph; empty if it runs with one or none was requested."""
        return self._graphed.failed if self._graphed is not None else ""

    def on(self, device: torch.device) -> Runner:
        """Move the module to another device and return its new runner. This object must not be used afterwards."""
        if self._graphed is not None:
            self._graphed.discard()  # it reads the weights where they were
        return Runner(self.module, device, self._arithmetic, self._standard)


def kernels(device: torch.device, arithmetic: Arithmetic, standard: bool) -> str:
    """Return which convolution kernels run, for the record: ``torch``, ``inductor`` or ``oneDNN, packed``."""
    if arithmetic.compiled:
        return "inductor"
    packed = standard and device.type == "cpu" and packs(_HALVES.get(arithmetic.precision, torch.float32))
    return "oneDNN, packed" if packed else "torch"


def _to_half(run: Run, dtype: torch.dtype) -> Run:
    return lambda x: run(x.to(dtype))


def _autocast(run: Run, kind: str, dtype: torch.dtype) -> Run:
    def lowered(x: torch.Tensor) -> Any:
        with torch.autocast(kind, dtype):
            return run(x)

    return lowered


def _of_one_shape(run: Run, size: int) -> Run:
    """Run batches of exactly ``size`` images: smaller batches are padded with zeros, larger ones are split."""

    def shaped(x: torch.Tensor) -> Any:
        outputs = [cut(run(filled), len(part)) for part in torch.split(x, size) for filled in [_filled(part, size)]]
        if len(outputs) == 1:
            return outputs[0]
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        return torch.cat(outputs)

    def cut(output: Any, count: int) -> Any:
        return tuple(part[:count] for part in output) if isinstance(output, tuple) else output[:count]

    return shaped


def _filled(x: torch.Tensor, size: int) -> torch.Tensor:
    if len(x) == size:
        return x
    whole = x.new_zeros(size, *x.shape[1:]).contiguous(memory_format=torch.channels_last)
    whole[: len(x)] = x
    return whole


class Compiled:
    """A function of a batch, compiled by inductor; on the CPU the weights are compiled in as constants.

    Args:
        run: maps a tensor whose shape never changes to a tensor or a tuple of tensors.
        device: the device of the tensors.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run: Run = torch.compile(_with_new_code(run), dynamic=False)
        self._freezing, self._ready = device.type == "cpu", False

    def __call__(self, x: torch.Tensor) -> Any:
        """Return the function's result. The first call compiles it.

        Raises:
            RunError: if torch cannot compile it.
        """
        if self._ready:
            return self._run(x)
        with _in_cache(), _settings(self._freezing):
            try:
                output = self._run(x)
            except Exception as error:
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                raise _uncompiled(error) from error
        self._ready = True
        return output


def _uncompiled(error: Exception) -> RunError:
    reason = " ".join(str(error).partition("\n\n")[0].partition("Set TORCH")[0].split())[:300]
    needs = ": it needs a C++ compiler (CXX, else g++)" if "compiler" in reason.lower() else ""
    named = option("compiled", True)
    problem = f"{named}: torch cannot compile the network ({reason}){needs}"
    return RunError(problem, f"omit {named} to run without compilation", setting="compiled")


def _with_new_code(run: Run) -> Run:
    """A copy with a new code object: torch counts compilations per code object and stops compiling after eight."""

    def forward(x: torch.Tensor) -> Any:
        return run(x)

    code, closure = forward.__code__.replace(), forward.__closure__
    return types.FunctionType(code, forward.__globals__, forward.__name__, None, closure)


@contextlib.contextmanager
def _settings(freezing: bool) -> Iterator[None]:
    """torch's settings during compilation, with its loggers silenced."""
    with contextlib.ExitStack() as held:
        held.enter_context(compiler_settings(freezing))
        for name in _VERBOSE:
            held.enter_context(_silent(logging.getLogger(name)))
        yield


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Silence a logger except for errors."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _in_cache() -> Iterator[None]:
    """Let torch store compiled code in fidtool's cache, unless the user chose a folder or it cannot be written."""
    before, folder = os.environ.get(_FOLDER), compiled_dir()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    # torch also sets the variable to its own default.
    chosen = before is not None and not before.startswith(os.path.join(tempfile.gettempdir(), "torchinductor_"))
    if chosen or not os.access(folder, os.W_OK):
        yield
        return
    os.environ[_FOLDER] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_FOLDER, None)
        if before is not None:
            os.environ[_FOLDER] = before


class Graphed:
    """A function of a batch as a CUDA graph, which launches its two hundred kernels at once.

    The graph replays the kernels of the first call, so the results have the same bits. This is checked on other
    batches. If the function cannot be recorded, it is called directly.

    Args:
        run: maps a tensor whose shape and strides never change to a tensor or a tuple of tensors.
        device: the CUDA device of the tensors. It must be the current one in each call, and all calls must use the same
            stream of it.

    Attributes:
        failed: why the function could not be recorded; empty if it could, or before the first call.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device, self.failed = run, device, ""
        self._recording: _Recording | None = None

    def __call__(self, x: torch.Tensor) -> Any:
        """Return the function's result. The first call records it."""
        if self._recording is None and not self.failed:
            self._record(x)
        return (self._recording or self._run)(x)

    def discard(self) -> None:
        """Release the graph and its memory. This object must not be used afterwards."""
        self._recording = None

    def _record(self, x: torch.Tensor) -> None:
        graph, pool, handled = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), sys.exc_info()[1]
        try:
            self._recording = self._checked(_Recording(self._run, x, self._device, graph, pool), x)
            return
        except RuntimeError as error:
            self.failed = _first_message(error, handled)
        # Only here, because the exception keeps the recorded tensors alive.
        release = partial(end_failed_capture, torch.cuda.current_device(), pool)
        for step in (partial(torch.cuda.synchronize, self._device), graph.reset, release, torch.cuda.empty_cache):
            with contextlib.suppress(RuntimeError):  # a failed GPU refuses this too
                step()

    def _checked(self, recording: _Recording, x: torch.Tensor) -> _Recording:
        """The recording. Raises a RuntimeError if its results differ from the function's in a single bit."""
        other = _noise_like(x)
        for batch in (other, -other, x):
            if not _same_bits(recording(batch), self._run(batch)):
                raise RuntimeError("the recording does not repeat the network's results")
        return recording


class _Recording:
    """A CUDA graph of a function, with the memory of its input and output."""

    def __init__(self, run: Run, x: torch.Tensor, device: torch.device, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        present = torch.cuda.current_stream(device)
        # Without a stream, torch would record on a stream of the first device on which the program recorded a graph.
        own: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graph, self._input = graph, x.clone(memory_format=torch.preserve_format)
        own.wait_stream(present)
        # Selected here as well, because a failed `torch.cuda.graph` leaves its stream selected.
        with torch.cuda.stream(own):
            for _ in range(_WARM_UP):
                run(self._input)
            # thread_local: other threads, such as the one that pins memory, may use CUDA meanwhile.
            mode = "thread_local"
            with _spare_generator(), torch.cuda.graph(graph, pool=pool, stream=own, capture_error_mode=mode):
                self._output = run(self._input)
        present.wait_stream(own)

    def __call__(self, x: torch.Tensor) -> Any:
        self._input.copy_(x)
        self._graph.replay()
        # The next replay overwrites the output.
        if isinstance(self._output, tuple):
            return tuple(part.clone() for part in self._output)
        return self._output.clone()


@contextlib.contextmanager
def _spare_generator() -> Iterator[None]:
    """Let a recording register a copy of the program's random state, which a failure makes unusable in older torch."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    programs = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(programs)


def _noise_like(x: torch.Tensor) -> torch.Tensor:
    """Noise in -1..1 with the shape and strides of ``x``."""
    return torch.empty_like(x).copy_(noise(x.numel(), x.device).view(x.shape)).div_(127.5).sub_(1.0)


def _same_bits(first: Any, second: Any) -> bool:
    """Whether two tensors, or tuples of tensors, are equal; a NaN equals a NaN of the same bits."""
    if isinstance(first, tuple):
        return all(map(_same_bits, first, second))
    return torch.equal(*(each.contiguous().view(torch.uint8) for each in (first, second)))


def _first_message(error: BaseException, handled: BaseException | None) -> str:
    """One line of the error that caused ``error``: the end of a failed recording raises another one.

    Args:
        error: the error.
        handled: the exception that the program was handling before.
    """
    while error.__context__ not in (None, handled):
        error = error.__context__
    return next(iter(str(error).splitlines()), "")[:300] or type(error).__name__
