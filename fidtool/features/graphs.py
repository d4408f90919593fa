"""Passes that are recorded once and replayed: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UP = 2
"""Passes before the recording, in which libraries allocate what they want and choose their kernels."""


class Graphed:
    """A function of a batch, whose two hundred kernels are launched at once where its first call could be recorded.

    The replayed kernels are those of the first call: the same bits.

    Args:
        run: gives a tensor, or a tuple of them, for a tensor that always has the same shape and strides.
        device: the CUDA device of both.
    """

    def __init__(self, run: Callable[[torch.Tensor], Any], device: torch.device) -> None:
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
