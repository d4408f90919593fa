"""Counts the work that a GPU would be given, on a machine without one.

Within `fake_gpu`, tensors have a device, which may be CUDA, but no values. `Launches` counts their operations where
torch dispatches them:

    with fake_gpu():
        x = torch.empty(3, device="cuda")
        with Launches() as counted:
            x.view(1, 3) + 1
    assert counted.launched == {"add": 1}
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fidtool.features import resize

_LAUNCH_NOTHING = {"_unsafe_view", "detach_", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_SYNCHRONISING = {"_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim"}


@contextlib.contextmanager
def fake_gpu() -> Iterator[list[torch.Tensor]]:
    """Tensors in the block have no values, also those that resizing caches. Yields the tensors that it pins."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode():
        for name in ("_axis", "_tf1_neighbours"):
            patch.setattr(resize, name, resize._Cached(getattr(resize, name)._compute))
        patch.setattr(resize, "_pinned", pin)
        yield pinned


class Launches(TorchDispatchMode):
    """Counts operations that involve a tensor on another device than the CPU.

    Views and allocations are not counted, because they launch nothing.

    Attributes:
        launched: number of operations by name, for example ``add`` or ``_to_copy``; copies from the CPU are among them.
        host_to_device: for each copy from the CPU to another device, whether it is non-blocking.
        synchronising: number of operations for which the host waits: blocking copies to the CPU, values read by Python
            and results whose shape depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()
        self.host_to_device: list[bool] = []
        self.synchronising = 0

    @property
    def total(self) -> int:
        """Number of operations."""
        return sum(self.launched.values())

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace, name = func._schema.name.split("::")
        if namespace == "prim":  # an attribute such as the device
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode, operations such as ``to`` arrive before they are decomposed
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        before = _devices((args, kwargs))
        if name in _SYNCHRONISING and set(before) != {"cpu"}:
            self.synchronising += 1  # counted first, because tensors without values fail here
        result = func(*args, **kwargs)
        after = _devices(result)
        if {*before, *after} <= {"cpu"} or name in _LAUNCH_NOTHING or _is_view(func):
            return result
        self.launched[name] += 1
        if name in ("_to_copy", "copy_"):
            source = before[0] if name == "_to_copy" else before[1]
            non_blocking = bool(kwargs.get("non_blocking")) or (name == "copy_" and True in args[2:])
            if source == "cpu":
                self.host_to_device.append(non_blocking)
            elif after == ["cpu"]:
                self.synchronising += not non_blocking
        return result


def _devices(values: Any) -> list[str]:
    return [each.device.type for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _is_view(func: OpOverload) -> bool:
    """Whether the result shares the memory of an argument and writes nothing."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)
