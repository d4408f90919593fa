"""All uses of undocumented interfaces of torch, and of Lightning's averaged weights.

Tested with torch 2.13 (CPU), 2.14 and 2.15; the unit tests also run with 2.4. If a later version of
torch removes an interface:

- ``default_store``: in a user's process group a run and `fidtool.training` raise an AttributeError.
- ``new_gloo_group``: `fidtool.training` raises an error; nothing else uses it.
- ``pack_convolution_weight``, ``run_packed_convolution``: `fidtool.features.models.inception` tests
  both on a small example and falls back to torch's own convolution, which is slower.

``find_averaging_callback`` and ``swap_weights`` were tested with Lightning 2.6. Without the
attributes that they use, `fidtool.training.FIDCallback` raises an AttributeError in a training with
averaged weights.

The collectives of `fidtool.distributed.world` are methods of ``torch.distributed.ProcessGroup`` and
its backends. torch documents that interface for custom backends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def default_store() -> dist.Store:
    """Return the store of the default process group."""
    store: dist.Store = dist.distributed_c10d._get_default_store()
    return store


def new_gloo_group(store: dist.Store, rank: int, size: int, seconds: float) -> Any:
    """Create a gloo group of the ranks that rendezvous in ``store``. A collective of these ranks
    only.

    The group is not registered with torch. `torch.distributed.new_group` requires that all ranks
    create the same groups in the same order: a group of only some ranks would change the names, and
    so the store keys, of later groups.

    Args:
        store: a store that only this group uses.
        seconds: timeout of each collective, and of joining, after which a RuntimeError is raised.
    """
    return dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=seconds))


def pack_convolution_weight(
    weight: torch.Tensor, padding: tuple[int, int], stride: tuple[int, int], input_shape: torch.Size
) -> torch.Tensor:
    """Return a convolution's ``weight`` in the layout that oneDNN prefers for inputs of
    ``input_shape``.
    """
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    packed: torch.Tensor = reorder(
        weight.to_mkldnn(), padding, stride, (1, 1), 1, list(input_shape)
    )
    return packed


def run_packed_convolution(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor,
    padding: tuple[int, int],
    stride: tuple[int, int],
    activation: str,
) -> torch.Tensor:
    """Convolve ``x`` with a weight from `pack_convolution_weight`, then apply ``activation``
    ("relu" or "none").
    """
    convolve: Any = torch.ops.mkldnn._convolution_pointwise
    result: torch.Tensor = convolve(x, packed, bias, padding, stride, (1, 1), 1, activation, [], "")
    return result


def find_averaging_callback(callbacks: Sequence[Any]) -> Any:
    """Return Lightning's `WeightAveraging`, or one of a subclass, once it has averaged weights;
    None without it.
    """
    for callback in callbacks:
        if any(kind.__name__ == "WeightAveraging" for kind in type(callback).__mro__):
            return callback if callback._average_model is not None else None
    return None


@contextlib.contextmanager
def swap_weights(averaging: Any, module: torch.nn.Module) -> Iterator[None]:
    """Swap the weights of ``module`` and those that ``averaging`` keeps, for the duration of a
    ``with`` block.

    ``averaging`` is what `find_averaging_callback` returned; None changes nothing.
    """
    if averaging is None:
        yield
        return
    averaging._swap_models(module)
    try:
        yield
    finally:
        averaging._swap_models(module)
