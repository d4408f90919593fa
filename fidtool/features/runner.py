"""How a network's module is run: its precision, compilation, and batch shape."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fidtool.cache_dir import compiled_dir
from fidtool.errors import RunError, option
from fidtool.features.models.inception import packs
from fidtool.torch_internals import COMPILERS, compiler_settings

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
        self._arithmetic, self._standard = arithmetic, standard
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
        with torch.inference_mode():
            return self._run(x)

    @property
    def unrecorded(self) -> str:
        """Why CUDA could not record the first pass; empty if it was recorded or no recording was requested."""
        return self._graphed.failed if self._graphed is not None else ""

    def on(self, device: torch.device) -> Runner:
        """Move the module to another device and return its new runner. This object must not be used afterwards."""
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

    The graph replays the kernels of the first call, so the results have the same bits.

    Args:
        run: maps a tensor whose shape and strides never change to a tensor or a tuple of tensors.
        device: the CUDA device of the tensors.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._input = self._output = torch.empty(0)
        self.failed = ""
        """Why it could not be recorded; empty if it could. The function is then called directly."""

    def __call__(self, x: torch.Tensor) -> Any:
        if self._graph is None and not self.failed:
            try:
                self._record(x)
            except RuntimeError as error:
                self.failed = str(error)
        if self._graph is None:
            return self._run(x)
        self._input.copy_(x)
        self._graph.replay()
        # The next replay overwrites the output.
        if isinstance(self._output, tuple):
            return tuple(part.clone() for part in self._output)
        return self._output.clone()

    def _record(self, x: torch.Tensor) -> None:
        present = torch.cuda.current_stream(self._device)
        beside: torch.cuda.Stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._input = x.clone(memory_format=torch.preserve_format)
        beside.wait_stream(present)
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._run(self._input)
        present.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads, such as the one that pins memory, may use CUDA meanwhile.
        with torch.cuda.device(self._device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._output = self._run(self._input)
        self._graph = graph
