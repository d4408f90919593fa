"""The Inception network of 2015-12-05, as FID uses it.

The graph is torchvision's ``Inception3`` with four differences that the TensorFlow graph makes: 1008 classes; batch
norm with eps 1e-3 and no learned scale; average pools inside the mixed blocks that do not count the padding; and a max
pool in place of the last block's average pool.

Three rearrangements make it faster and move a feature by about 1e-7 of its size: batch norm is folded into the
convolutions; the pooling branches project first and pool afterwards, which is the same linear map with up to ten times
less to pool; and the convolutions run as `fidtool.features.convolution` says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fidtool.features.convolution import Convolution
from fidtool.features.inception_shapes import CONVOLUTIONS, convolutions_of
from fidtool.features.originals import State
from fidtool.features.protocol import SPATIAL_CHANNELS

_STEM_IMAGES = 2
"""On the CPU the layers of large maps take so many images at a time: what the C library's heap does not keep for the
next layer is asked from the kernel page by page, which took 5 % of the time on two cores."""


def _convolution(state: State, name: str) -> Convolution:
    return Convolution(state, name, CONVOLUTIONS[name])


class _Branches(nn.Module):
    """Base of the mixed blocks: parallel branches over one input, joined along the channels.

    ``chains`` names each branch's convolutions in order; the last entry may be a tuple of convolutions that all take
    what came before.
    """

    chains: tuple[tuple[str | tuple[str, ...], ...], ...] = ()

    def __init__(self, state: State, block: str) -> None:
        super().__init__()
        for name in convolutions_of(block):
            self.add_module(name, _convolution(state, f"{block}.{name}"))

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
        projection: Convolution = self.branch_pool  # type: ignore[assignment]
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
        projection: Convolution = self.branch_pool  # type: ignore[assignment]
        return projection.linear(F.max_pool2d(x, 3, stride=1, padding=1)).relu_()


_BLOCKS: dict[str, type[_Branches]] = {
    **dict.fromkeys(("Mixed_5b", "Mixed_5c", "Mixed_5d"), _MixedA),
    "Mixed_6a": _MixedB,
    **dict.fromkeys(("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"), _MixedC),
    "Mixed_7a": _MixedD,
    "Mixed_7b": _MixedE,
    "Mixed_7c": _MixedEMax,
}
_SPATIAL = "Mixed_6d"
"""Before this block the spatial features are taken."""


class Inception(nn.Module):
    """Inception features for FID.

    Args:
        state: tensors by torchvision's names, as `fidtool.features.weights.load_weights` gives them.
        dims: 64 (first max pool), 192 (second max pool), 768 (before Mixed_7a) or 2048 (after Mixed_7c). Layers
            beyond the one asked for are neither built nor run.
    """

    def __init__(self, state: State, dims: int = 2048) -> None:
        super().__init__()
        small, large = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3"), ("Conv2d_3b_1x1", "Conv2d_4a_3x3")
        stem = [*(_convolution(state, name) for name in small), nn.MaxPool2d(3, stride=2)]
        if dims > 64:
            stem += [*(_convolution(state, name) for name in large), nn.MaxPool2d(3, stride=2)]
        self.stem = nn.Sequential(*stem)
        wanted = [name for name in _BLOCKS if dims > (768 if name.startswith("Mixed_7") else 192)]
        self.blocks = nn.ModuleDict({name: _BLOCKS[name](state, name) for name in wanted})
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of a batch.

        Args:
            x: float32 tensor of shape (n, 3, 299, 299), values about -1..1.

        Returns:
            float32 tensor of shape (n, dims): the global average of the chosen layer.
        """
        x = self._stem(x)
        for block in self.blocks.values():
            x = block(x)
        return x.float().mean((2, 3))

    def _stem(self, x: torch.Tensor) -> torch.Tensor:
        """The layers before the mixed blocks."""
        if x.device.type != "cpu":
            return self.stem(x)  # type: ignore[no-any-return]
        return torch.cat([self.stem(part) for part in torch.split(x, _STEM_IMAGES)])


class SpatialInception(Inception):
    """The same network, which gives the spatial features of sFID beside its own (Nash et al. 2021).

    They are the first 7 channels of Mixed_6d's 1x1 branch after its activation, at all 17 x 17 places, as the evaluator
    of guided-diffusion (ADM) takes them from ``mixed_6/conv``.

    Args:
        state: see `Inception`.
        dims: 768 or 2048.
    """

    def __init__(self, state: State, dims: int = 2048) -> None:
        super().__init__(state, dims)
        branch: Convolution = self.blocks[_SPATIAL].branch1x1  # type: ignore[assignment]
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
        x = self._stem(x)
        spatial = x
        for name, block in self.blocks.items():
            if name == _SPATIAL:
                spatial = F.conv2d(x, self.weight, self.bias).relu_()
            x = block(x)
        return x.float().mean((2, 3)), spatial.permute(0, 2, 3, 1).flatten(1)
