"""Passes through torch.compile, which keeps what it makes in fidtool's cache."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fidtool.cache_dir import compiled_dir
from fidtool.errors import RunError

Run = Callable[[torch.Tensor], Any]
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_MAKERS = ("torch._dynamo", "torch._inductor")
"""Whose exceptions say that nothing was compiled; what the network itself raises is its own."""
_TALKATIVE = ("torch._dynamo", "torch._inductor", "torch.utils.cpp_extension")
"""They tell of GPUs that nobody asked for, and how a network could be compiled better."""


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
                if not type(error).__module__.startswith(_MAKERS):
                    raise
                raise RunError(_told(error)) from error
        self._ready = True
        return output


def _told(error: Exception) -> str:
    reason = " ".join(str(error).partition("\n\n")[0].partition("Set TORCH")[0].split())[:300]
    needs = ": it needs a C++ compiler (CXX, else g++)" if "compiler" in reason.lower() else ""
    return f"--compile: torch cannot compile the network ({reason}){needs}; leave --compile out to go without"


def _with_own_code(run: Run) -> Run:
    """The same with code of its own: torch counts compilations by code, and after eight runs what is new uncompiled."""

    def forward(x: torch.Tensor) -> Any:
        return run(x)

    code, closure = forward.__code__.replace(), forward.__closure__
    return types.FunctionType(code, forward.__globals__, forward.__name__, None, closure)


@contextlib.contextmanager
def _settings(freezing: bool) -> Iterator[None]:
    """torch's while it compiles, which the first call does; as options of torch.compile they would come too late."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    with contextlib.ExitStack() as held:
        held.enter_context(inductor.patch(freezing=freezing))
        if hasattr(dynamo, "fail_on_cache_limit_hit"):  # parts of a network that is compiled in parts
            held.enter_context(dynamo.patch(fail_on_cache_limit_hit=True))
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
