"""The network that the metric measures with, the same with gradients, and the check of the images it gets."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fidtool.cache_dir import one_at_a_time
from fidtool.distributed.launch import Launch, discover_here
from fidtool.errors import InputError
from fidtool.features.catalogue import (
    custom_extractor,
    fetch_state,
    inception_definition,
    inception_extractor,
    network_extractor,
)
from fidtool.features.definition import Definition
from fidtool.features.device import Device, device_of
from fidtool.features.extractor import Extractor
from fidtool.features.models.families import NetworkChoice
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.network import Network
from fidtool.features.protocol import DEFAULT_PROTOCOL, FEATURES, INCEPTION_DIMS, protocol_named
from fidtool.features.torch_state import full_fp32, repeatable

PathLike = str | os.PathLike[str]
_WEIGHTS_SECONDS = 1800.0
_NAMES = {"extractor": "feature", "input_size": "", "feature_step": ""}
"""What chooses a network here, for messages."""


class SharedExtractor:
    """One network under one protocol. Copies share it; a pickled one is loaded again where it is unpickled.

    Args:
        feature: 64, 192, 768 or 2048 dimensions of Inception, a network by name (what ``--extractor`` takes), or one of
            your own, which is copied as it is now: its later training does not change what is measured, nor this its
            training.
        protocol: name of a protocol; None is ``pytorch-fid``, or the network's own preparation.
        weights: file of Inception's or a named network's weights; None searches.

    Raises:
        InputError: no such layer, protocol or weights, a network that cannot be copied, or a protocol for one that
            prepares images in its own way.
        RunError: the network fails on a probe image.
    """

    def __init__(self, feature: int | str | Network, protocol: str | None, weights: PathLike | None) -> None:
        if isinstance(feature, Network):
            feature = replace(feature, module=_copied(feature.module))
        self._feature, self._weights = feature, None if weights is None else os.fspath(weights)
        self._protocol = None if protocol is None else protocol_named(protocol)
        self._extractor: Extractor | None = None
        self._loaded()

    @property
    def definition(self) -> Definition:
        """What defines the features."""
        return self._loaded().definition

    def extractor(self, device: torch.device) -> Extractor:
        """The network on ``device``; it leaves the one where it was."""
        extractor = self._loaded()
        if device != extractor.device.torch_device:
            self._extractor = extractor = extractor.on(device_here(device))
        return extractor

    def _loaded(self) -> Extractor:
        if self._extractor is None:
            with repeatable():
                self._extractor = self._load()
        return self._extractor

    def _load(self) -> Extractor:
        cpu = device_here(torch.device("cpu"))
        if isinstance(self._feature, Network) and self._weights is not None:
            problem = "weights is for Inception and named networks; your own network comes with its weights"
            raise InputError(problem, setting="weights")
        say = logging.getLogger("fidtool").warning
        if isinstance(self._feature, str):
            choice = NetworkChoice(self._feature, self._weights, names=_NAMES)
            with one_at_a_time("weights", _WEIGHTS_SECONDS):
                state = fetch_state(choice, say)
            if state is not None and state.warning:
                say(state.warning)
            return custom_extractor(choice, state, self._protocol, cpu)
        if isinstance(self._feature, Network):
            kind = type(self._feature.module)
            return network_extractor(
                self._feature, f"{kind.__module__}.{kind.__qualname__}", self._protocol, cpu, setting="feature"
            )
        if isinstance(self._feature, bool) or not isinstance(self._feature, int):
            raise InputError(
                f"feature must be one of {', '.join(map(str, INCEPTION_DIMS))} or a fidtool.Network, not "
                f"{type(self._feature).__name__}: fidtool.Network(module, input_size=…) says how your network is fed",
                setting="feature",
            )
        protocol = self._protocol or protocol_named(DEFAULT_PROTOCOL)
        inception_definition(
            protocol, self._feature, "", "feature"
        )  # a wrong number is said before anything is downloaded
        with one_at_a_time("weights", _WEIGHTS_SECONDS):
            weights = load_weights(self._weights, say, own="feature")
        definition = inception_definition(protocol, self._feature, weights.sha256)
        return inception_extractor(protocol, {FEATURES: definition}, weights, cpu)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedExtractor:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A network of the user's own travels with its device; everything else can be loaded again.
        return {**self.__dict__, "_extractor": None}


def _copied(module: nn.Module) -> nn.Module:
    if isinstance(module, DistributedDataParallel):
        module = module.module
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # whatever a module of the user's raises
        raise InputError(
            f"{type(module).__name__} cannot be copied ({' '.join(str(error).split())[:200]}), and the metric measures "
            "with a copy of its own:",
            "give it 'file.py:factory', which makes another",
        ) from error
    copied.zero_grad(set_to_none=True)
    return copied


def device_here(device: torch.device) -> Device:
    """``device`` of this process, however the program was launched."""
    launch = Launch()
    with contextlib.suppress(InputError):  # variables that make no sense: this process is alone
        launch = discover_here()
    return device_of(device, launch)


class FeatureExtractor(nn.Module):
    """Inception's features of generated images, with their gradient: what a generator is tuned through.

    The features are those that ``fidtool`` measures under the same protocol, but for the rounding to 8 bits. The
    network is frozen (a `fidtool.Network` is copied as it is now), stays in evaluation mode, computes in float32 (also
    under autocast and where TF32 is on), and appears neither among the parameters nor in the state_dict. A network
    whose own preparation rounds to 8 bits (DINOv2, CLIP, torchvision, timm) gets what it is measured with, rounded; the
    gradient passes straight through that rounding, as if there were none.

    Args:
        feature: 64, 192, 768 or 2048 dimensions of Inception, a network by name (what ``--extractor`` takes), or a
            `fidtool.Network`.
        protocol: name of a protocol; None is ``pytorch-fid``, or the network's own preparation.
        weights: file of Inception's or a named network's weights; None searches.

    Raises:
        fidtool.InputError: no such layer, protocol or weights.
    """

    def __init__(
        self, feature: int | str | Network = 2048, *, protocol: str | None = None, weights: PathLike | None = None
    ) -> None:
        super().__init__()
        self._features = SharedExtractor(feature, protocol, weights)
        self._anchor = torch.zeros(0, dtype=torch.uint8)

    @property
    def definition(self) -> Definition:
        """What defines the features; that of the real statistics must be the same."""
        return self._features.definition

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features of a batch.

        Args:
            images: floating-point tensor of shape (n, 3, height, width), values in 0..1, on this module's device.

        Returns:
            float32 tensor of shape (n, dims).

        Raises:
            fidtool.InputError: another shape or dtype.
        """
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            shape = f"{images.dtype} of shape {tuple(images.shape)}"
            raise InputError(f"images must be floating-point of shape (n, 3, height, width), not {shape}")
        with torch.amp.autocast(images.device.type, enabled=False), full_fp32():
            return self._features.extractor(self._anchor.device).differentiable(images.float() * 255.0)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> FeatureExtractor:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._anchor = fn(self._anchor)
        return self


def pixels_of(images: object, normalize: bool, device: torch.device) -> torch.Tensor:
    """Checks a batch and brings it to 8 bits.

    Args:
        images: what ``update`` was given.
        normalize: they should be floating-point numbers in 0..1; x becomes the whole part of 255 x. As in torchmetrics
            it is multiplied in its own dtype: multiples of 1 / 255 in float16 come back as the bytes they were.
        device: where they are wanted; from the CPU they are moved there.

    Returns:
        uint8 tensor of shape (n, 3, height, width) on ``device``.

    Raises:
        InputError: another shape, dtype, range or device.
    """
    if not isinstance(images, torch.Tensor):
        raise InputError(f"images must be a torch.Tensor, not {type(images).__name__}")
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        hint = "; grayscale: images.expand(-1, 3, -1, -1)" if images.ndim == 4 and images.shape[1] == 1 else ""
        raise InputError(f"images must have the shape (n, 3, height, width), not {tuple(images.shape)}{hint}")
    if device.type == "meta":
        raise InputError("the metric is on the meta device: metric.to_empty(device=…) puts it on a real one")
    if images.device.type != "cpu" and images.device != device:
        raise InputError(f"the images are on {images.device} and the metric on {device}: metric.to('{images.device}')")
    images = images.to(device)
    if not normalize:
        if images.dtype != torch.uint8:
            advice = "pass normalize=True for floats in 0..1" if images.is_floating_point() else "values are 0..255"
            raise InputError(f"images must be uint8, not {str(images.dtype).removeprefix('torch.')}; {advice}")
        return images
    if not images.is_floating_point():
        raise InputError(f"with normalize=True images are floats in 0..1, not {images.dtype}")
    scaled = images * 255
    _check_range(scaled)
    return scaled.byte()


def _check_range(scaled: torch.Tensor) -> None:
    """Refuses images, here times 255, that are not floats in 0..1."""
    low, high = (float(value) / 255 for value in scaled.aminmax()) if scaled.numel() else (0.0, 1.0)
    if math.isnan(low) or math.isnan(high):
        raise InputError("with normalize=True values must lie in 0..1, and some of these are NaN")
    if not (low > -1 / 255 and high < 256 / 255):
        advice = "(images + 1) / 2 rescales from -1..1, images.clamp(0, 1) cuts off what sticks out"
        if high > 2:
            advice = "images / 255 rescales from 0..255"
        problem = f"with normalize=True values must lie in 0..1, and these run from {low:g} to {high:g}"
        raise InputError(f"{problem}: {advice}")
