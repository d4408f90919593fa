"""The Inception network of 2015-12-05, as FID uses it.

The graph is torchvision's ``Inception3`` with four differences that the TensorFlow graph makes: 1008 classes; batch
norm with eps 1e-3 and no learned scale; average pools inside the mixed blocks that do not count the padding; and a max
pool in place of the last block's average pool. torchvision holds the parameters; the passes below run them.

Two rearrangements make it faster on every device and move a feature by about 1e-7 of its size:
batch norm is folded into the convolutions (in float64), and the pooling branches project first and pool afterwards,
which is the same linear map with up to ten times less to pool.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.inception import BasicConv2d, Inception3

from fidtool.features.protocol import SPATIAL_CHANNELS

_BATCH_NORM_EPS = 1e-3


def reference_module() -> Inception3:
    """torchvision's module with the right shapes: names, order and strides of the 94 convolutions, no weights.

    In float32 on the CPU, whatever torch's defaults are in the program around.
    """
    with torch.device("cpu"):
        return Inception3(num_classes=1008, aux_logits=False, transform_input=False, init_weights=False).float()


def convolution_names(module: Inception3) -> list[str]:
    """Names of the 94 convolution blocks in torchvision's order, which is also that of the TorchScript archive."""
    return [name for name, child in module.named_modules() if isinstance(child, BasicConv2d)]


class _Convolution(nn.Module):
    """Convolution with batch norm folded in; the activation is the caller's."""

    def __init__(self, block: BasicConv2d) -> None:
        super().__init__()
        conv, norm = block.conv, block.bn
        gain = norm.weight.double() / torch.sqrt(norm.running_var.double() + _BATCH_NORM_EPS)
        weight = (conv.weight.double() * gain[:, None, None, None]).float()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter((norm.bias.double() - norm.running_mean.double() * gain).float(), requires_grad=False)
        self.stride, self.padding = conv.stride, conv.padding

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu_()


class _Branches(nn.Module):
    """Base of the mixed blocks: parallel branches over one input, joined along the channels.

    ``chains`` names each branch's convolutions in order; the last entry may be a tuple of convolutions that all take
    what came before.
    """

    chains: tuple[tuple[str | tuple[str, ...], ...], ...] = ()

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, child in block.named_children():
            if isinstance(child, BasicConv2d):
                self.add_module(name, _Convolution(child))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [output for chain in self.chains for output in self._chain(chain, x)]
        return torch.cat([*outputs, self.pool(x)], 1)

    def _chain(self, chain: tuple[str | tuple[str, ...], ...], x: torch.Tensor) -> list[torch.Tensor]:
        for step in chain:
            if isinstance(step, tuple):
                return [getattr(self, name)(x) for name in step]
            x = getattr(self, step)(x)
        return [x]

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """Average pool 3x3, padding not counted, after the 1x1 projection (the two commute), then the activation."""
        projection: _Convolution = self.branch_pool  # type: ignore[assignment]
        projected = projection.linear(x)
        return F.avg_pool2d(projected, 3, stride=1, padding=1, count_include_pad=False).relu_()


class _MixedA(_Branches):
    """Mixed_5b, 5c, 5d."""

    chains = (("branch1x1",), ("branch5x5_1", "branch5x5_2"), ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"))


class _MixedB(_Branches):
    """Mixed_6a: halves the resolution."""

    chains = (("branch3x3",), ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"))

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, stride=2)


class _MixedC(_Branches):
    """Mixed_6b to 6e."""

    chains = (
        ("branch1x1",),
        ("branch7x7_1", "branch7x7_2", "branch7x7_3"),
        ("branch7x7dbl_1", "branch7x7dbl_2", "branch7x7dbl_3", "branch7x7dbl_4", "branch7x7dbl_5"),
    )


class _MixedD(_Branches):
    """Mixed_7a: halves the resolution."""

    chains = (("branch3x3_1", "branch3x3_2"), ("branch7x7x3_1", "branch7x7x3_2", "branch7x7x3_3", "branch7x7x3_4"))

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, stride=2)


class _MixedE(_Branches):
    """Mixed_7b."""

    chains = (
        ("branch1x1",),
        ("branch3x3_1", ("branch3x3_2a", "branch3x3_2b")),
        ("branch3x3dbl_1", "branch3x3dbl_2", ("branch3x3dbl_3a", "branch3x3dbl_3b")),
    )


class _MixedEMax(_MixedE):
    """Mixed_7c: the 2015 graph pools by maximum here, where the paper and other Inceptions average."""

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        projection: _Convolution = self.branch_pool  # type: ignore[assignment]
        return projection.linear(F.max_pool2d(x, 3, stride=1, padding=1)).relu_()


_MIXED_C = ("6b", "6c", "6d", "6e")

_BLOCKS: dict[str, type[_Branches]] = {
    **dict.fromkeys(("Mixed_5b", "Mixed_5c", "Mixed_5d"), _MixedA),
    "Mixed_6a": _MixedB,
    **dict.fromkeys((f"Mixed_{name}" for name in _MIXED_C), _MixedC),
    "Mixed_7a": _MixedD,
    "Mixed_7b": _MixedE,
    "Mixed_7c": _MixedEMax,
}


class Inception(nn.Module):
    """Inception features for FID.

    Args:
        state: tensors by torchvision's names, as `fidtool.features.weights.load_weights` gives them.
        dims: 64 (first max pool), 192 (second max pool), 768 (before Mixed_7a) or 2048 (after Mixed_7c). Layers
            beyond the one asked for are neither built nor run.
    """

    def __init__(self, state: dict[str, torch.Tensor], dims: int = 2048) -> None:
        super().__init__()
        reference = reference_module()
        reference.load_state_dict(state, strict=False)
        stages: list[nn.Module] = [
            *(_Convolution(getattr(reference, name)) for name in ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3")),
            nn.MaxPool2d(3, stride=2),
        ]
        if dims > 64:
            stages += [_Convolution(reference.Conv2d_3b_1x1), _Convolution(reference.Conv2d_4a_3x3)]
            stages += [nn.MaxPool2d(3, stride=2)]
        if dims > 192:
            wanted = [name for name in _BLOCKS if dims > 768 or not name.startswith("Mixed_7")]
            stages += [_BLOCKS[name](getattr(reference, name)) for name in wanted]
        self.stages = nn.Sequential(*stages)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of a batch.

        Args:
            x: float32 tensor of shape (n, 3, 299, 299), values about -1..1.

        Returns:
            float32 tensor of shape (n, dims): the global average of the chosen layer.
        """
        features: torch.Tensor = self.stages(x).mean((2, 3))
        return features


class SpatialInception(Inception):
    """The same network, which gives the spatial features of sFID beside its own (Nash et al. 2021).

    They are the first 7 channels of Mixed_6d's 1x1 branch after its activation, at all 17 x 17 places, as the evaluator
    of guided-diffusion (ADM) takes them from ``mixed_6/conv``.

    Args:
        state: see `Inception`.
        dims: 768 or 2048.
    """

    def __init__(self, state: dict[str, torch.Tensor], dims: int = 2048) -> None:
        super().__init__(state, dims)
        position = next(
            place for place, stage in enumerate(self.stages) if isinstance(stage, _MixedC)
        ) + _MIXED_C.index("6d")
        self.before, self.after = self.stages[:position], self.stages[position:]
        del self.stages
        branch: _Convolution = self.after[0].branch1x1  # type: ignore[assignment]
        # Computed apart from the block, whose output holds them among 768 channels: 7 of 192 cost next to nothing.
        self.weight = nn.Parameter(branch.weight[:SPATIAL_CHANNELS].clone(), requires_grad=False)
        self.bias = nn.Parameter(branch.bias[:SPATIAL_CHANNELS].clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Features of a batch.

        Args:
            x: see `Inception.forward`.

        Returns:
            float32 tensors of shape (n, dims) and (n, 2023), the latter in the order row, column, channel.
        """
        x = self.before(x)
        spatial = F.conv2d(x, self.weight, self.bias).relu_()
        return self.after(x).mean((2, 3)), spatial.permute(0, 2, 3, 1).flatten(1)
