"""A network ready to run under a protocol on a device: pixels in, feature vectors out."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import torch
from torch import nn

from fidtool.distributed.in_sync import named_tensors
from fidtool.errors import InputError, RunError
from fidtool.features.device import Device
from fidtool.features.lanes import Lanes
from fidtool.features.network import Network, load_network, module_digest
from fidtool.features.protocol import (
    INCEPTION,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    INCEPTION_INPUT_SIZE,
    Definition,
    Protocol,
    inception_normalization,
)
from fidtool.features.resize import network_input, resize
from fidtool.features.weights import Weights
from fidtool.images.decode import DECODER

Item = TypeVar("Item")

_STOP_SECONDS = 0.1
"""How soon an early end is noticed."""
_LEAVING_SECONDS = 1.0
"""How long an exception waits for passes that are running: they may never end."""


class Extractor:
    """Turns batches of images into feature vectors.

    Attributes:
        definition: what defines the features' values.
        device: where they are computed.
    """

    def __init__(
        self,
        module: nn.Module,
        definition: Definition,
        protocol: Protocol,
        offset: tuple[float, ...],
        scale: tuple[float, ...],
        device: Device,
    ) -> None:
        self.definition = definition
        self.device = device
        self._protocol = protocol
        self._module = module.to(device.torch_device)
        self._offset = torch.tensor(offset, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)

    def on(self, device: Device) -> Extractor:
        """The same network on another device. It moves: this object is of no use any more."""
        offset, scale = (tuple(values.flatten().tolist()) for values in (self._offset, self._scale))
        return Extractor(self._module, self.definition, self._protocol, offset, scale, device)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The network's parameters and buffers by name."""
        return named_tensors(self._module)

    def features(self, images: list[torch.Tensor]) -> torch.Tensor:
        """Feature vectors of one batch.

        Args:
            images: uint8 tensors of shape (height, width, 3) on this extractor's device.

        Returns:
            float32 tensor of shape (len(images), dims) on the device.

        Raises:
            RunError: the network returned another shape.
        """
        with torch.inference_mode():
            size, method = self.definition.input_size, self._protocol.resize
            return self._vectors(network_input(images, size, method, self._offset, self._scale))

    def differentiable(self, images: torch.Tensor) -> torch.Tensor:
        """Feature vectors of images that need not be whole numbers, with their gradient.

        Args:
            images: float32 tensor of shape (n, 3, height, width), values in 0..255, on this extractor's device.

        Returns:
            float32 tensor of shape (n, dims) on the device.
        """
        resized = resize(images.permute(0, 2, 3, 1), self.definition.input_size, self._protocol.resize)
        return self._vectors((resized - self._offset) / self._scale)

    def _vectors(self, x: torch.Tensor) -> torch.Tensor:
        output = self._forward(x)
        if isinstance(output, torch.Tensor) and output.ndim == 4:
            output = output.mean((2, 3))
        expected = (len(x), self.definition.dims)
        if not isinstance(output, torch.Tensor) or output.shape != expected:
            shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise RunError(f"{self.definition.extractor} returned {shape} for {len(x)} images, not {expected}")
        return output.float()

    def _forward(self, x: torch.Tensor) -> Any:
        try:
            return self._module(x)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            hint = "; try a smaller --batch-size" if isinstance(error, torch.cuda.OutOfMemoryError) else ""
            what = f"{type(error).__name__}: {message}" if message else type(error).__name__
            failed = f"{self.definition.extractor} failed on a batch of {len(x)} images: {what}{hint}"
            raise RunError(failed) from error

    def probe(self, batch_size: int) -> str:
        """SHA-256 of the features of a fixed batch: equal on two ranks where both compute the same bits.

        Args:
            batch_size: images in the batch; kernels are chosen by shape, so on a GPU it should be the run's.
        """
        side = 64
        values = torch.arange(batch_size * side * side * 3, dtype=torch.int64, device="cpu")
        # A multiplicative hash of the position: noise that is the same wherever integers are.
        pixels = ((values * 2654435761) >> 16).bitwise_and(255).to(torch.uint8)
        images = list(pixels.view(batch_size, side, side, 3).to(self.device.torch_device))
        return hashlib.sha256(self.features(images).cpu().contiguous().numpy().tobytes()).hexdigest()

    def run(
        self, batches: Iterator[Item], images: Callable[[Item], list[torch.Tensor]], stop: Callable[[], bool]
    ) -> Iterator[tuple[Item, torch.Tensor | None]]:
        """Forward passes over a stream of batches, ``device.lanes`` of them side by side, results in their order.

        Args:
            batches: the stream; it is read in the calling thread, at most one batch ahead of the lanes.
            images: gives an item's images on this device; called in the lane.
            stop: whether to end early, soon and without waiting for the passes that are running.

        Yields:
            Each item with its features, None for an item without images.
        """

        def one(item: Item) -> tuple[Item, torch.Tensor | None]:
            pixels = images(item)
            return item, self.features(pixels) if pixels else None

        # One intra-op thread a lane: see strict_fp32.
        lanes = Lanes(self.device.lanes, one)
        waiting: deque[Future[tuple[Item, torch.Tensor | None]]] = deque()
        try:
            for item in batches:
                waiting.append(lanes.submit(item))
                while waiting and (len(waiting) > self.device.lanes or waiting[0].done()):
                    if _stopped_before(waiting[0], stop):
                        return
                    yield waiting.popleft().result()
            while waiting and not _stopped_before(waiting[0], stop):
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            lanes.close(0.0 if stop() else _LEAVING_SECONDS)


def _stopped_before(future: Future[Any], stop: Callable[[], bool]) -> bool:
    """Waits for ``future``, but no longer than until ``stop``."""
    while not stop():
        if wait([future], _STOP_SECONDS).done:
            return False
    return True


def inception_definition(protocol: Protocol, dims: int, weights_sha256: str) -> Definition:
    """What defines Inception's features under ``protocol``.

    Raises:
        InputError: Inception has no layer with that many channels.
    """
    if dims not in INCEPTION_DIMS:
        raise InputError(f"--dims {dims}: Inception has features of {', '.join(map(str, INCEPTION_DIMS))} dimensions")
    return Definition(
        extractor=INCEPTION,
        weights_sha256=weights_sha256,
        dims=dims,
        feature_step=INCEPTION_FEATURE_STEP,
        input_size=INCEPTION_INPUT_SIZE,
        normalization=inception_normalization(protocol),
        resize=protocol.resize,
        decoder=DECODER,
        ddof=protocol.ddof,
    )


def inception_extractor(protocol: Protocol, definition: Definition, weights: Weights, device: Device) -> Extractor:
    """The standard network under ``protocol``."""
    from fidtool.features.inception import (
        Inception,  # imports torchvision, which a cached run or another network needs not
    )

    module = Inception(weights.state, definition.dims)
    return Extractor(module, definition, protocol, (protocol.offset,), (protocol.scale,), device)


def custom_extractor(spec: str, protocol: Protocol, device: Device) -> Extractor:
    """The network behind ``--extractor FILE.py:FACTORY``; runs that file's code.

    Raises:
        InputError: see `fidtool.features.network.load_network`.
        RunError: the network fails on a probe image.
    """
    return network_extractor(*load_network(spec), protocol, device)


def network_extractor(network: Network, name: str, protocol: Protocol, device: Device) -> Extractor:
    """A network of the user's own; ``protocol`` gives the resize and the covariance's ddof, it gives everything else.

    Its module is put into evaluation mode and its parameters need no gradients any more.

    Raises:
        RunError: the network fails on a probe image.
    """
    network.module.eval().requires_grad_(False)
    offset = tuple(255.0 * value for value in network.mean)
    scale = tuple(255.0 * value for value in network.std)
    definition = Definition(
        extractor=name,
        weights_sha256=module_digest(network.module),
        dims=_output_dims(network, device),
        feature_step=network.feature_step,
        input_size=network.input_size,
        normalization=network.normalization,
        resize=protocol.resize,
        decoder=DECODER,
        ddof=protocol.ddof,
    )
    return Extractor(network.module, definition, protocol, offset, scale, device)


def _output_dims(network: Network, device: Device) -> int:
    """Runs one black image through the network to see how long its feature vectors are."""
    size = network.input_size
    black = torch.zeros(1, 3, size, size, dtype=torch.float32, device=device.torch_device)
    with torch.inference_mode():
        try:
            output = network.module.to(device.torch_device)(black)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            raise RunError(
                f"the network fails on a 1x3x{size}x{size} input: {type(error).__name__}: {message}"
            ) from error
    if not isinstance(output, torch.Tensor) or output.ndim not in (2, 4) or len(output) != 1:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RunError(f"the network returned {shape} for one image; it should return (1, D) or (1, D, h, w)")
    return int(output.shape[1])
