"""A convolution with batch norm and activation in it, as oneDNN runs it fastest on the CPU."""

from __future__ import annotations

import functools
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fidtool.features.inception_shapes import ConvolutionShape

_BATCH_NORM_EPS = 1e-3
_RELU, _LINEAR = "relu", "none"


class Convolution(nn.Module):
    """Convolution with batch norm folded in (in float64); the activation is the caller's to choose.

    On x86 processors, where no gradient is wanted, oneDNN gets the weight once in the layout of its own that it would
    otherwise bring it to in every pass, and applies the activation to its output while that is in the cache. That is
    what `torch.compile` makes of a frozen network, without its seconds of compilation. It moves an output by about 1e-7
    of its size, and makes its bits independent of the batch's size.

    Args:
        state: the network's tensors by torchvision's names.
        name: of the convolution among them.
        shape: its shape.
    """

    def __init__(self, state: dict[str, torch.Tensor], name: str, shape: ConvolutionShape) -> None:
        super().__init__()
        norm = {field: state[f"{name}.bn.{field}"].double() for field in ("weight", "bias")}
        mean, variance = (state[f"{name}.bn.running_{field}"].double() for field in ("mean", "var"))
        gain = norm["weight"] / torch.sqrt(variance + _BATCH_NORM_EPS)
        weight = state[f"{name}.conv.weight"].double() * gain[:, None, None, None]
        weight = weight.float().contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter((norm["bias"] - mean * gain).float(), requires_grad=False)
        self.stride, self.padding = (shape.stride, shape.stride), shape.padding
        self._packed: torch.Tensor | None = None

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """Without activation."""
        if self._can_pack(x):
            return self._fused(x, _LINEAR)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With the rectifier behind it."""
        if self._can_pack(x):
            return self._fused(x, _RELU)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding).relu_()

    def _can_pack(self, x: torch.Tensor) -> bool:
        cpu = x.device.type == "cpu"
        return cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling() and packs(x.dtype)

    def _fused(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        packed = self._packed
        if packed is None:  # two lanes may both do it, to the same effect
            packed = self._packed = _pack(self.weight, self.padding, self.stride, x.shape)
        return _convolve(x, packed, self.bias, self.padding, self.stride, activation)

    def _apply(self, fn: Any, recurse: bool = True) -> Convolution:
        self._packed = None  # of another device or dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators on this processor, and they compute what a convolution is.

    They are what inductor calls, and no part of torch's stable interface: tried before they are relied on. Measured on
    x86 only; elsewhere torch's own way is kept.
    """
    mkldnn: Any = torch.backends.mkldnn
    if platform.machine().lower() not in ("x86_64", "amd64") or not mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator, device="cpu") for size in ((2, 16, 9, 9), (16, 16, 3, 3)))
    x, weight = (each.to(dtype).contiguous(memory_format=torch.channels_last) for each in (x, weight))
    bias = weight[0, :, 0, 0].clone()
    try:
        with torch.no_grad():
            packed = _pack(weight, (1, 1), (1, 1), x.shape)
            found = _convolve(x, packed, bias, (1, 1), (1, 1), _RELU).double()
            expected = F.conv2d(x.double(), weight.double(), bias.double(), (1, 1), (1, 1)).relu_()
        return bool((found - expected).norm() < torch.finfo(dtype).eps * 16 * expected.norm())
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return False


def _pack(
    weight: torch.Tensor, padding: tuple[int, int], stride: tuple[int, int], input_shape: torch.Size
) -> torch.Tensor:
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    packed: torch.Tensor = reorder(weight.to_mkldnn(), padding, stride, (1, 1), 1, list(input_shape))
    return packed


def _convolve(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor,
    padding: tuple[int, int],
    stride: tuple[int, int],
    activation: str,
) -> torch.Tensor:
    convolve: Any = torch.ops.mkldnn._convolution_pointwise
    result: torch.Tensor = convolve(x, packed, bias, padding, stride, (1, 1), 1, activation, [], "")
    return result
