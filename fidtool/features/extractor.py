"""A network ready to run under a protocol on a device: pixels in, feature vectors out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from fidtool.distributed.in_sync import named_tensors
from fidtool.errors import InputError, RunError
from fidtool.features.catalogue import Choice, build_network
from fidtool.features.device import Device
from fidtool.features.inception import Inception, SpatialInception
from fidtool.features.network import Network, module_digest
from fidtool.features.passes import side_by_side
from fidtool.features.preparation import Preparation
from fidtool.features.probes import check_repeatable, fixed_batch, output_dims
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    INCEPTION,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    INCEPTION_INPUT_SIZE,
    SPATIAL_DIMS,
    SPATIAL_EXTRACTOR,
    Definition,
    Protocol,
    inception_normalization,
    protocol_named,
)
from fidtool.features.published import State
from fidtool.features.resize import network_input, resize
from fidtool.features.weights import Weights
from fidtool.images.decode import DECODER

Item = TypeVar("Item")


class Extractor:
    """Turns batches of images into feature vectors.

    Args:
        module: gives one tensor of features, or a tuple of one for each definition.
        definition: what defines the features' values.
        preparation: how the images become squares.
        offset, scale: a pixel value x in 0..255 enters the network as (x - offset) / scale.
        device: where it runs.
        further: what defines the features that the module gives beside those.

    Attributes:
        definition, further, device: as given.
    """

    def __init__(
        self,
        module: nn.Module,
        definition: Definition,
        preparation: Preparation,
        offset: tuple[float, ...],
        scale: tuple[float, ...],
        device: Device,
        further: tuple[Definition, ...] = (),
    ) -> None:
        self.definition, self.further = definition, further
        self.device = device
        self._preparation = preparation
        self._module = module.to(device.torch_device)
        self._offset = torch.tensor(offset, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)

    def on(self, device: Device) -> Extractor:
        """The same network on another device. It moves: this object is of no use any more."""
        offset, scale = (tuple(values.flatten().tolist()) for values in (self._offset, self._scale))
        return Extractor(self._module, self.definition, self._preparation, offset, scale, device, self.further)

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
        return self.all_features(images)[0]

    def all_features(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
        """The same, followed by the batch's further features."""
        with torch.inference_mode():
            size = self.definition.input_size
            return self._vectors(network_input(images, size, self._preparation, self._offset, self._scale))

    def differentiable(self, images: torch.Tensor) -> torch.Tensor:
        """Feature vectors of images that need not be whole numbers, with their gradient.

        Where the network's own preparation rounds to 8 bits (DINOv2, CLIP, torchvision, timm), this one rounds as
        well, and the gradient passes straight through, as if it did not.

        Args:
            images: float32 tensor of shape (n, 3, height, width), values in 0..255, on this extractor's device.

        Returns:
            float32 tensor of shape (n, dims) on the device.
        """
        resized = resize(images.permute(0, 2, 3, 1), self.definition.input_size, self._preparation)
        return self._vectors((resized - self._offset) / self._scale)[0]

    def _vectors(self, x: torch.Tensor) -> list[torch.Tensor]:
        output = self._forward(x)
        outputs = output if self.further else (output,)
        definitions = (self.definition, *self.further)
        return [_vectors_of(part, len(x), each) for part, each in zip(outputs, definitions, strict=True)]

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
        sha = hashlib.sha256()
        for features in self.all_features(fixed_batch(batch_size, self.device.torch_device)):
            sha.update(features.cpu().contiguous().numpy().tobytes())
        return sha.hexdigest()

    def run(
        self, batches: Iterator[Item], images: Callable[[Item], list[torch.Tensor]], stop: Callable[[], bool]
    ) -> Iterator[tuple[Item, torch.Tensor | None]]:
        """Forward passes over a stream of batches, in their order; see `fidtool.features.passes.side_by_side`."""
        return side_by_side(batches, images, self.features, self.device.lanes, stop)


def _vectors_of(output: Any, count: int, definition: Definition) -> torch.Tensor:
    """What a network gave for ``count`` images, as vectors: maps are averaged."""
    if isinstance(output, torch.Tensor) and output.ndim == 4:
        output = output.mean((2, 3))
    expected = (count, definition.dims)
    if not isinstance(output, torch.Tensor) or output.shape != expected:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RunError(f"{definition.extractor} returned {shape} for {count} images, not {expected}")
    return output.float()


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


def spatial_definition(inception: Definition) -> Definition:
    """What defines the spatial features beside those that ``inception`` defines.

    Raises:
        InputError: the network ends before their layer.
    """
    if inception.dims < 768:
        raise InputError(f"sFID needs Inception up to Mixed_6d: --dims 768 or 2048, not {inception.dims}")
    return replace(inception, extractor=SPATIAL_EXTRACTOR, dims=SPATIAL_DIMS)


def inception_extractor(
    protocol: Protocol, definition: Definition, weights: Weights, device: Device, spatial: bool = False
) -> Extractor:
    """The standard network under ``protocol``, with the ``spatial`` features of sFID beside its own if need be."""
    module = (SpatialInception if spatial else Inception)(weights.state, definition.dims)
    further = (spatial_definition(definition),) if spatial else ()
    return Extractor(module, definition, protocol.preparation, (protocol.offset,), (protocol.scale,), device, further)


def custom_extractor(choice: Choice, state: State | None, protocol: Protocol | None, device: Device) -> Extractor:
    """The network behind ``--extractor``, if it is not Inception; a factory's file is run.

    Args:
        choice: the network.
        state: what `fidtool.features.catalogue.fetch_state` gave on rank zero.
        protocol: the one that was asked for, if any.
        device: where it runs.

    Raises:
        InputError: see `fidtool.features.catalogue.build_network` and `network_extractor`.
        RunError: the network fails on a probe image.
    """
    return network_extractor(*build_network(choice, state), protocol, device)


def network_extractor(network: Network, name: str, protocol: Protocol | None, device: Device) -> Extractor:
    """A network other than Inception.

    Its module is put into evaluation mode and its parameters need no gradients any more.

    Args:
        network: the network, with everything but the resize and the covariance's ddof; if it has a preparation of its
            own, that is its resize, and ddof is 1.
        name: for the fingerprint.
        protocol: gives those two otherwise; None is the default protocol.
        device: where it runs.

    Raises:
        InputError: a protocol was asked for, and the network has a preparation of its own.
        RunError: the network fails on a probe image, or gives other features for it each time.
    """
    if network.preparation is not None and protocol is not None:
        raise InputError(
            f"--protocol {protocol.name} does not go with --extractor {name}, whose own transform prepares the images "
            f"({network.preparation.describe(network.input_size)}): leave --protocol out"
        )
    standard = protocol or protocol_named(DEFAULT_PROTOCOL)
    preparation = network.preparation or standard.preparation
    network.module.eval().requires_grad_(False)
    offset = tuple(255.0 * value for value in network.mean)
    scale = tuple(255.0 * value for value in network.std)
    definition = Definition(
        extractor=name,
        weights_sha256=module_digest(network.module),
        dims=output_dims(network, device),
        feature_step=network.feature_step,
        input_size=network.input_size,
        normalization=network.normalization,
        resize=preparation.describe(network.input_size),
        decoder=DECODER,
        ddof=1 if network.preparation else standard.ddof,
    )
    extractor = Extractor(network.module, definition, preparation, offset, scale, device)
    check_repeatable(extractor.features, name, device)
    return extractor
