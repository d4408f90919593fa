"""The Inception network of 2015-12-05, as FID uses it.

The graph is torchvision's ``Inception3`` with four differences, as in the TensorFlow graph: 1008 classes; batch norm
with eps 1e-3 and no learned scale; average pools in the mixed blocks that exclude padding; and a max pool in place of
the last block's average pool.

Three optimisations change a feature by a relative 1e-7: batch norm is folded into the convolutions; the pooling
branches project before they pool, which is the same linear map with up to ten times less data to pool; and convolutions
use packed weights, see `Convolution`.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.protocol import FEATURES, SPATIAL, SPATIAL_CHANNELS, Definition, Protocol
from fidtool.features.resize import Preparation
from fidtool.torch_internals import pack_convolution_weight, packed_convolution

_BATCH_NORM_EPS = 1e-3
_RELU, _LINEAR = "relu", "none"
_STEM_IMAGES = 2
"""Number of images per call of the layers with large maps on the CPU. Larger allocations are returned to the kernel
after each layer and mapped again page by page, which took 5 % of the time on two cores."""


_UNPADDED = {
    "Conv2d_1a_3x3": 2,
    "Conv2d_2a_3x3": 1,
    "Conv2d_4a_3x3": 1,
    "Mixed_6a.branch3x3": 2,
    "Mixed_6a.branch3x3dbl_3": 2,
    "Mixed_7a.branch3x3_2": 2,
    "Mixed_7a.branch7x7x3_4": 2,
}
"""The strides of the convolutions without padding. All others keep the resolution."""


class Convolution(nn.Module):
    """Convolution with batch norm folded in (in float64), with or without a ReLU.

    On x86 processors without gradients, the weight is converted once to oneDNN's packed layout, which oneDNN would
    otherwise do in every pass, and the activation is fused. This changes an output by a relative 1e-7, and makes its
    bits independent of the batch size.
    """

    def __init__(self, state: dict[str, torch.Tensor], name: str) -> None:
        super().__init__()
        norm = {field: state[f"{name}.bn.{field}"].double() for field in ("weight", "bias")}
        mean, variance = (state[f"{name}.bn.running_{field}"].double() for field in ("mean", "var"))
        gain = norm["weight"] / torch.sqrt(variance + _BATCH_NORM_EPS)
        weight = state[f"{name}.conv.weight"].double() * gain[:, None, None, None]
        weight = weight.float().contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter((norm["bias"] - mean * gain).float(), requires_grad=False)
        self.stride = (_UNPADDED.get(name, 1),) * 2
        height, width = weight.shape[2:]
        self.padding = (0, 0) if name in _UNPADDED else (height // 2, width // 2)
        self._packed: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, activation: str = _RELU) -> torch.Tensor:
        cpu = x.device.type == "cpu"
        if not cpu or torch.is_grad_enabled() or torch.compiler.is_compiling() or not packs(x.dtype):
            found = F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
            return found.relu_() if activation == _RELU else found
        packed = self._packed
        if packed is None or packed.dtype != x.dtype:  # two threads may do this at the same time, with the same result
            packed = self._packed = pack_convolution_weight(self.weight, self.padding, self.stride, x.shape)
        return packed_convolution(x, packed, self.bias, self.padding, self.stride, activation)


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether torch has working operators for packed convolutions on this processor.

    Inductor calls these operators, but they are not part of torch's stable interface, so they are tested first. They
    are used on x86 only, where they were measured.
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
            packed = pack_convolution_weight(weight, (1, 1), (1, 1), x.shape)
            found = packed_convolution(x, packed, bias, (1, 1), (1, 1), _RELU).double()
            expected = F.conv2d(x.double(), weight.double(), bias.double(), (1, 1), (1, 1)).relu_()
        return bool((found - expected).norm() < torch.finfo(dtype).eps * 16 * expected.norm())
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return False


class _Block(nn.Module):
    """A mixed block: parallel branches over one input, concatenated along the channels.

    Args:
        chains: the convolutions of each branch in order. A comma separates last convolutions with the same input.
    """

    def __init__(self, state: dict[str, torch.Tensor], name: str, chains: tuple[str, ...]) -> None:
        super().__init__()
        self._chains, self._name = [chain.split() for chain in chains], name
        for branch in dict.fromkeys(key.split(".")[1] for key in state if key.startswith(f"{name}.")):
            self.add_module(branch, Convolution(state, f"{name}.{branch}"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, projection = [], getattr(self, "branch_pool", None)
        for *steps, last in self._chains:
            inner = x
            for name in steps:
                inner = getattr(self, name)(inner)
            outputs += [getattr(self, name)(inner) for name in last.split(",")]
        if projection is None:
            outputs.append(F.max_pool2d(x, 3, stride=2))
        elif self._name == "Mixed_7c":  # as in the 2015 graph, unlike the paper and other Inception networks
            outputs.append(projection(F.max_pool2d(x, 3, stride=1, padding=1)))
        else:  # the projection and an average pool commute
            average = F.avg_pool2d(projection(x, _LINEAR), 3, stride=1, padding=1, count_include_pad=False)
            outputs.append(average.relu_())
        return torch.cat(outputs, 1)


_A = ("branch1x1", "branch5x5_1 branch5x5_2", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3")
_B = ("branch3x3", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3")
_C = (
    "branch1x1",
    "branch7x7_1 branch7x7_2 branch7x7_3",
    "branch7x7dbl_1 branch7x7dbl_2 branch7x7dbl_3 branch7x7dbl_4 branch7x7dbl_5",
)
_D = ("branch3x3_1 branch3x3_2", "branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4")
_E = (
    "branch1x1",
    "branch3x3_1 branch3x3_2a,branch3x3_2b",
    "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a,branch3x3dbl_3b",
)
_BLOCKS = {
    **dict.fromkeys(("Mixed_5b", "Mixed_5c", "Mixed_5d"), _A),
    "Mixed_6a": _B,
    **dict.fromkeys(("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"), _C),
    "Mixed_7a": _D,
    "Mixed_7b": _E,
    "Mixed_7c": _E,
}
_SPATIAL = "Mixed_6d"
"""The block whose 1x1 branch provides the spatial features."""


class Inception(nn.Module):
    """Inception features for FID, and those of sFID (Nash et al. 2021) if ``spatial``.

    The spatial features are the first 7 channels of Mixed_6d's 1x1 branch after its activation, at all 17 x 17
    positions, as in the evaluator of guided-diffusion (ADM), which calls the layer ``mixed_6/conv``.

    Args:
        state: tensors by torchvision's names, from `fidtool.features.models.inception_weights.load_weights`.
        dims: 64 (first max pool), 192 (second max pool), 768 (before Mixed_7a) or 2048 (after Mixed_7c). Later layers
            are neither built nor run. Spatial features need 768 or 2048.
    """

    def __init__(self, state: dict[str, torch.Tensor], dims: int = 2048, spatial: bool = False) -> None:
        super().__init__()
        small, large = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3"), ("Conv2d_3b_1x1", "Conv2d_4a_3x3")
        stem = [*(Convolution(state, name) for name in small), nn.MaxPool2d(3, stride=2)]
        if dims > 64:
            stem += [*(Convolution(state, name) for name in large), nn.MaxPool2d(3, stride=2)]
        self.stem = nn.Sequential(*stem)
        wanted = [name for name in _BLOCKS if dims > (768 if name.startswith("Mixed_7") else 192)]
        self.blocks = nn.ModuleDict({name: _Block(state, name, _BLOCKS[name]) for name in wanted})
        self.spatial = _SPATIAL if spatial else ""
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the global averages of the chosen layer, float32 of shape (n, dims), for a batch in about -1..1.

        With ``spatial``, also return a tensor of shape (n, 2023), in the order row, column, channel.
        """
        parts = torch.split(x, _STEM_IMAGES) if x.device.type == "cpu" else [x]
        stems = [self.stem(part) for part in parts]
        x, spatial = stems[0] if len(stems) == 1 else torch.cat(stems), None
        for name, block in self.blocks.items():
            if name == self.spatial:
                # In addition to the block, whose output has them among 768 channels: 7 of 192 channels are cheap.
                branch: Any = block.branch1x1
                spatial = F.conv2d(x, branch.weight[:SPATIAL_CHANNELS], branch.bias[:SPATIAL_CHANNELS]).relu_()
            x = block(x)
        features = x.float().mean((2, 3))
        return features if spatial is None else (features, spatial.permute(0, 2, 3, 1).flatten(1))


def inception_extractor(
    protocol: Protocol,
    definitions: Mapping[str, Definition],
    state: dict[str, torch.Tensor],
    device: Device,
    precision: str = "fp32",
) -> Extractor:
    """Return Inception's extractor under ``protocol``, for the layers in ``definitions``: `FEATURES` and `SPATIAL`."""
    module = Inception(state, definitions[FEATURES].dims, SPATIAL in definitions)
    offset, scale = (protocol.offset,), (protocol.scale,)
    return Extractor(module, definitions, Preparation(protocol.resize), offset, scale, device, precision)
