"""Copies from an accelerator to host memory that arrive while the host and the accelerator continue to work."""

from __future__ import annotations

import functools
from typing import Any

import torch


class Readback:
    """The contents of a tensor in host memory, which may still be arriving. Created by `read_back`.

    Args:
        host: the tensor on the CPU.
        copied: recorded after the copy to ``host``; None if the copy is complete.
    """

    def __init__(self, host: torch.Tensor, copied: torch.cuda.Event | None = None) -> None:
        self._host, self._copied = host, copied

    def ready(self) -> bool:
        """Return whether the contents have arrived, so that `tensor` does not wait."""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def tensor(self) -> torch.Tensor:
        """Return the tensor on the CPU. Waits until its contents have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return self._host

    def __reduce__(self) -> tuple[Any, ...]:
        return Readback, (self.tensor(),)  # events can be neither copied nor pickled


def read_back(tensor: torch.Tensor) -> Readback:
    """Start to copy a tensor to host memory, and return without waiting for the accelerator.

    The copy contains the result of the work launched on the current stream so far, and later work on that stream does
    not wait for it. The tensor may be freed at once, but later work must not overwrite it. Only copies from CUDA
    devices are asynchronous. Elsewhere this function returns when the copy is complete; a tensor on the CPU is not
    copied.

    Args:
        tensor: a tensor on any device.
    """
    if tensor.device.type != "cuda":
        return Readback(tensor.detach().cpu())
    stream = _stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        # Freed page-locked memory is reused by later calls, after the copy.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor.detach(), non_blocking=True)
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        copied.record(stream)
    tensor.record_stream(stream)  # so that its memory is not reused before the copy is done
    return Readback(host, copied)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for copies from this device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
