"""Pixels on their way from memory to the device that runs the network."""

from __future__ import annotations

from collections import deque

import torch

_IN_FLIGHT = 2
"""Batches whose pixels are on the device at a time: one in the network, one on its way."""


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
