"""What is found out about a network before any image goes through it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fidtool.errors import RunError
from fidtool.features.device import Device
from fidtool.features.network import Network, channels_last

_SIDE = 64
_REPEATS = 0.02
"""Features of one picture, alone and in a batch, may differ by so much of their length: in bfloat16, kernels do."""


def fixed_batch(count: int, device: torch.device) -> list[torch.Tensor]:
    """The same noise wherever integers are: uint8 tensors of shape (64, 64, 3), every one another."""
    values = torch.arange(count * _SIDE * _SIDE * 3, dtype=torch.int64, device="cpu")
    # A multiplicative hash of the position.
    pixels = ((values * 2654435761) >> 16).bitwise_and(255).to(torch.uint8)
    return list(pixels.view(count, _SIDE, _SIDE, 3).to(device))


def output_dims(network: Network, device: Device) -> int:
    """Runs one black image through the network to see how long its feature vectors are.

    Raises:
        RunError: the network fails, or gives another shape than `Network` allows.
    """
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
    if channels_last(output):
        raise RunError(
            f"the network returned {tuple(output.shape)} for one image, its channels last as it seems; it should "
            "return (1, D) or (1, D, h, w)"
        )
    return int(output.shape[1])


def check_repeatable(features: Callable[[list[torch.Tensor]], torch.Tensor], name: str, device: Device) -> None:
    """Refuses a network whose features of a picture depend on chance, or on the other pictures of its batch.

    Args:
        features: of a batch of images.
        name: the network's, for the message.
        device: where it runs.

    Raises:
        RunError: it is one.
    """
    first, second = fixed_batch(2, device.torch_device)
    # A darker neighbour: to batch norm in training mode, batches of the same noise would be much alike.
    together, alone = (features(images)[0].cpu().double() for images in ([first, second // 4], [first]))
    if not (together.isfinite().all() and alone.isfinite().all()):
        return  # said with the first batch of images
    if (together - alone).norm() > _REPEATS * torch.maximum(together.norm(), alone.norm()):
        raise RunError(
            f"{name} gives other features for the same picture in another batch or at another time, so its numbers "
            "would depend on more than the images: dropout or batch norm in training mode does so, and a program has "
            "to be exported or traced after model.eval()"
        )
