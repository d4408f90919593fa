"""What a training loop hands over as images, as the 8-bit pixels that are measured."""

from __future__ import annotations

import torch

from fidtool.errors import InputError


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
    if scaled.numel():
        low, high = (float(value) for value in scaled.aminmax())
        if not (low > -1.0 and high < 256.0):  # NaN too
            raise InputError(
                f"with normalize=True values must lie in 0..1, and these run from {low / 255:g} to {high / 255:g}: "
                "(images + 1) / 2 rescales from -1..1, images.clamp(0, 1) cuts off what sticks out"
            )
    return scaled.byte()
