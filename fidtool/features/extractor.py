"""A network on a device: pixels in, feature vectors out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from fidtool.errors import FidtoolError, ProgramError, RunError, option, summarize_error
from fidtool.features.device import Device, device_context
from fidtool.features.protocol import Definition
from fidtool.features.resize import ImageTensors, Preparation, prepare_images, resize
from fidtool.names import format_count

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LayerFeatures = dict[str, Tensor]
"""Feature vectors by layer: float32 tensors of shape (images, dims)."""


PROBE_SIZE = 64, 64
"""Usual height and width of `Extractor.probe_images`."""


@dataclass(eq=False)
class Extractor:
    """Computes feature vectors of batches of images.

    In half precision, Inception's weights and activations have 16 bits; sums within a layer and the
    final global average have 32 bits. Other networks run under torch's autocast, which selects the
    precision layer by layer.

    Args:
        module: returns one tensor of features, or a tuple with one tensor per definition if there
            are several.
        definitions: the definitions of the features by layer; the first is that of `extract`.
            ``dims`` is 0 if the length of a vector is not known yet. With an ``input_size`` of 0,
            the network gets images as they are.
        offset, scale: a pixel value x in 0..255 enters the network as (x - offset) / scale.
        precision: see `fidtool.settings.settings.Settings`. TF32 is switched on by
            `fidtool.features.device.deterministic_mode`.
        open_step: whether the network states no step of its features, so that the run chooses it.
        probe_size: height and width of the images of noise with which the network is tried.
    """

    module: nn.Module
    definitions: Mapping[str, Definition]
    preparation: Preparation
    offset: tuple[float, ...]
    scale: tuple[float, ...]
    device: Device
    precision: str = "fp32"
    open_step: bool = False
    probe_size: tuple[int, int] = PROBE_SIZE

    def __post_init__(self) -> None:
        self._standard = self.definition.standard
        half = HALVES.get(self.precision)
        self._dtype = half if self._standard else None
        self._autocast = None if self._standard else half
        self.to(self.device)

    @property
    def definition(self) -> Definition:
        """The definition of the features of the first layer."""
        return next(iter(self.definitions.values()))

    def define(self, **changed: Any) -> None:
        """Change the definition of the features of the only layer."""
        ((layer, definition),) = self.definitions.items()
        self.definitions = {layer: replace(definition, **changed)}

    def to(self, device: Device) -> None:
        self.device = device
        self.module.to(device.torch_device, self._dtype)
        self._offset = _per_channel(self.offset, device.torch_device)
        self._scale = _per_channel(self.scale, device.torch_device)

    def probe_images(self, count: int) -> Tensor:
        """Return different images of noise, uint8 of shape (count, *probe_size, 3), with the same
        values on every device.
        """
        shape = (count, *self.probe_size, 3)
        values = torch.arange(math.prod(shape), dtype=torch.int64, device="cpu")
        # A multiplicative hash of the position, because torch's random numbers are the program's.
        pixels = (values * 2654435761 >> 16) % 256
        return pixels.to(torch.uint8).view(shape).to(self.device.torch_device)

    def extract(self, images: ImageTensors) -> Tensor:
        """Return the feature vectors of one batch for the first layer, see `preprocess` and
        `forward_layers`.
        """
        return next(iter(self.forward_layers([self.preprocess(images)]).values()))

    def preprocess(self, images: ImageTensors) -> ImageTensors:
        """Return the network's input for images: cropped, resized and normalised.

        The images are uint8 and on this extractor's device. The result is a float32 tensor of shape
        (len(images), 3, input size, input size), channels-last in memory.
        """
        with torch.inference_mode(), self._explain_errors(len(images)):
            size = self.definition.input_size
            return prepare_images(images, size, self.preparation, self._offset, self._scale)

    def forward_layers(self, inputs: Sequence[ImageTensors]) -> LayerFeatures:
        """Return the feature vectors of a batch's parts by layer.

        Args:
            inputs: what `preprocess` returned of the parts.
        """
        with torch.inference_mode():
            parts = cast(Sequence[Tensor], inputs)
            return self._forward_layers(parts[0] if len(parts) == 1 else torch.cat(list(parts)))

    def extract_with_grad(self, images: Tensor) -> Tensor:
        """Return the feature vectors of images with floating-point values, with gradients.

        If the network's own preparation rounds to 8 bits (DINOv2, CLIP, timm), this method rounds
        as well, and the gradient passes straight through the rounding.

        Args:
            images: float32 tensor of shape (n, 3, height, width), values in 0..255, on this
                extractor's device.

        Returns:
            float32 tensor of shape (n, dims) on the device.
        """
        resized = resize(images.permute(0, 2, 3, 1), self.definition.input_size, self.preparation)
        return next(iter(self._forward_layers((resized - self._offset) / self._scale).values()))

    def _forward_layers(self, x: Tensor) -> LayerFeatures:
        count = len(x)
        with self._explain_errors(count):
            with device_context(self.device.torch_device, self._autocast):
                outputs = self.module(x if self._dtype is None else x.to(self._dtype))
            if len(self.definitions) == 1:
                outputs = (outputs,)
            vectors: LayerFeatures = {}
            for (layer, definition), output in zip(self.definitions.items(), outputs, strict=True):
                vectors[layer] = self._check(output, definition, count)
            return vectors

    def _check(self, output: Any, definition: Definition, count: int) -> Tensor:
        """Return the feature vectors in an output of the network, which must have one for each of
        ``count`` images.
        """
        is_tensor = isinstance(output, Tensor)
        wanted = f"({count}, {definition.dims or 'D'})"
        # A module that a training metric calls with images as they are must return vectors. Of
        # other networks, maps are averaged over their positions.
        if definition.input_size:
            wanted += f" or ({count}, {definition.dims or 'D'}, h, w), with the channels first"
            if is_tensor and output.ndim == 4 and not _ends_with_channels(output.shape):
                output = output.mean((2, 3))
        shape = tuple(output.shape) if is_tensor else type(output).__name__
        if shape != (count, definition.dims or shape[-1]):
            raise RunError(
                f"{definition.extractor} returned {shape} for {format_count(count, 'image')}; it "
                f"must return {wanted}"
            )
        if output.is_complex():
            raise RunError(
                f"{definition.extractor} returned complex numbers, which cannot be features:",
                "return their absolute values, or torch.view_as_real(output).flatten(1)",
            )
        # A custom network may write the next result into the same memory, while this one is being
        # copied.
        vectors: Tensor = output.to(torch.float32, copy=not self._standard)
        return vectors

    @contextlib.contextmanager
    def _explain_errors(self, count: int) -> Iterator[None]:
        """Context manager that names the network and the number of images in the error of its
        block.
        """
        try:
            yield
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:
            problem = (
                f"{self.definition.extractor} failed on a batch of {format_count(count, 'image')}: "
                f"{summarize_error(error)}"
            )
            kind = RunError if self._standard else ProgramError
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise kind(
                    problem, f"try a smaller {option('batch_size')}", setting="batch_size"
                ) from error
            raise kind(problem) from error


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


def _ends_with_channels(shape: torch.Size) -> bool:
    """Whether an output for square images seems to have shape (n, h, w, D), with h equal to w."""
    _, height, width, channels = shape
    return height == width != channels and height > 1
