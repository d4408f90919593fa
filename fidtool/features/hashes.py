"""Hashes of a network's tensors, by which its weights are identified and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def hash_state_dict(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 over a module's ``state_dict``: names, shapes, dtypes and bytes, sorted by
    name.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data


def tensor_hashes(module: nn.Module) -> dict[str, tuple[str, str]]:
    """Shape with dtype, and SHA-256 digest of the bytes, of a module's parameters and buffers by
    name, including those not in its state_dict.
    """
    hashes = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        if is_lazy(tensor):
            hashes[name] = ("not initialized", "")
            continue
        digest = ""
        if not tensor.is_meta:
            digest = hashlib.sha256(_bytes_of(tensor)).hexdigest()
        hashes[name] = (f"{list(tensor.shape)} {tensor.dtype}".replace("torch.", ""), digest)
    return hashes
