"""Pixels on their way from memory to the device that runs the network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

Transfer = Callable[[torch.Tensor], torch.Tensor]

_IN_FLIGHT = 2
"""Batches whose pixels are on the device at a time: one in the network, one on its way."""


def transfer_to(device: torch.device) -> Transfer:
    """What brings a batch's pixels, bytes as they are, to ``device``."""
    return StreamedTransfer(device) if device.type == "cuda" else lambda pixels: pixels.to(device)


class StreamedTransfer:
    """Copies beside the network's work, on a stream of their own, from page-locked memory.

    The thread that calls it launches the network's work on the current stream in between, and is held up before more
    than two batches are under way.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._launched: deque[torch.cuda.Event] = deque()

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """The pixels on the device, for work on its current stream; it has begun to copy when this returns."""
        work = torch.cuda.current_stream(self._device)
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(work)
        self._launched.append(event)  # all the work of earlier calls is before it
        if len(self._launched) == _IN_FLIGHT:
            self._launched.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            there = pixels.to(self._device, non_blocking=True)
        work.wait_stream(self._stream)
        there.record_stream(work)  # its memory is not another's before the work is done
        return there
