"""How a network's module is run: in which precision, compiled or not, in batches of one shape or as they come."""

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
_TALKATIVE = (*COMPILERS, "torch.utils.cpp_extension")
"""Loggers that warn of GPUs that nobody asked for, and how a network could be compiled better."""
_WARM_UP = 2
"""Passes before the recording, in which libraries allocate what they want and choose their kernels."""


@dataclass(frozen=True)
class Arithmetic:
    """Decisions that show in the digits of the features.

    Attributes:
        precision: see `fidtool.settings.Settings`; TF32 is a matter of `fidtool.features.torch_state.repeatable`.
        compiled: through torch.compile.
        batch_size: images in a full batch, where that is known. Where shapes are compiled in or recorded, all batches
            have this one.
    """

    precision: str = "fp32"
    compiled: bool = False
    batch_size: int | None = None


class Runner:
    """A module on a device, ready for batches.

    In half precision Inception's weights and maps have 16 bits, sums within a layer 32, and so has the average over
    the last maps; another network runs under torch's autocast, which decides that layer by layer.

    Args:
        module: the network.
        device: where it runs; it is moved there.
        arithmetic: how.
        standard: it is Inception, all of whose layers are known to bear half precision, and to be recorded.

    Attributes:
        module: as given, for gradients: what `__call__` runs may be another.
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
        """What the module gives for a batch, without gradients.

        Args:
            x: float32 tensor of shape (n, 3, height, width), channels-last, on the device.
        """
        with torch.inference_mode():
            return self._run(x)

    @property
    def unrecorded(self) -> str:
        """Why CUDA could not record the pass, as was seen on the first batch; empty if it could or was not asked to."""
        return self._graphed.failed if self._graphed is not None else ""

    def on(self, device: torch.device) -> Runner:
        """The same on another device; this object is of no use any more."""
        return Runner(self.module, device, self._arithmetic, self._standard)


def kernels(device: torch.device, arithmetic: Arithmetic, standard: bool) -> str:
    """Whose convolutions run, for the record: torch's, those that it compiles, or oneDNN's as Inception calls them."""
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
    """Runs batches of exactly ``size`` images: smaller ones are filled up with zeros, larger ones cut."""

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
    """A function of a batch through inductor; on the CPU the network's weights are constants to it.

    Args:
        run: gives a tensor, or a tuple of them, for a tensor that always has the same shape.
        device: of both.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run: Run = torch.compile(_with_own_code(run), dynamic=False)
        self._freezing, self._ready = device.type == "cpu", False

    def __call__(self, x: torch.Tensor) -> Any:
        """What the function gives; the first call compiles it.

        Raises:
            RunError: torch cannot compile it.
        """
        if self._ready:
            return self._run(x)
        with _kept(), _settings(self._freezing):
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
    return RunError(problem, f"leave {named} out to go without", setting="compiled")


def _with_own_code(run: Run) -> Run:
    """The same with code of its own: torch counts compilations by code, and after eight runs what is new uncompiled."""

    def forward(x: torch.Tensor) -> Any:
        return run(x)

    code, closure = forward.__code__.replace(), forward.__closure__
    return types.FunctionType(code, forward.__globals__, forward.__name__, None, closure)


@contextlib.contextmanager
def _settings(freezing: bool) -> Iterator[None]:
    """torch's while it compiles, and its loggers quiet."""
    with contextlib.ExitStack() as held:
        held.enter_context(compiler_settings(freezing))
        for name in _TALKATIVE:
            held.enter_context(_silent(logging.getLogger(name)))
        yield


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """But for errors."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Has torch keep what it makes in fidtool's cache, unless the user chose a folder or it cannot be written."""
    before, folder = os.environ.get(_FOLDER), compiled_dir()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    # torch writes its own choice there as well.
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
    """A function of a batch, whose two hundred kernels are launched at once where its first call could be recorded.

    The replayed kernels are those of the first call: the same bits.

    Args:
        run: gives a tensor, or a tuple of them, for a tensor that always has the same shape and strides.
        device: the CUDA device of both.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._input = self._output = torch.empty(0)
        self.failed = ""
        """Why it could not be recorded; the function is then called each time."""

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
        # Other threads, such as the one that pins memory, may go on meanwhile.
        with torch.cuda.device(self._device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._output = self._run(self._input)
        self._graph = graph
