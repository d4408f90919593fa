"""The two kinds of files that Inception's weights come in."""

from __future__ import annotations

import zipfile
from typing import IO

import numpy as np
import torch

from fidtool.features.inception_shapes import CONVOLUTIONS

State = dict[str, torch.Tensor]
"""Tensors by torchvision's names."""


def read_official(file: IO[bytes]) -> State:
    state = torch.load(file, map_location="cpu", weights_only=True)
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def read_torchscript(file: IO[bytes]) -> State:
    """Reads the tensors of the ``offline`` package's archive without running any of its code.

    The archive stores, for each of the 94 convolutions in torchvision's order, four raw float32 blobs: weight, beta
    (the batch norm's bias), mean and variance. There is no gamma: it is 1.
    """
    state: State = {}
    with zipfile.ZipFile(file) as archive:
        for position, (name, shape) in enumerate(CONVOLUTIONS.items()):
            channels = (shape.outputs,)
            norms = dict.fromkeys(("bn.bias", "bn.running_mean", "bn.running_var"), channels)
            fields = {"conv.weight": shape.weight, **norms}
            for offset, (field, size) in enumerate(fields.items()):
                blob = archive.read(f"out_jit_module/data/{4 * position + offset}")
                values = np.frombuffer(blob, dtype="<f4").reshape(size)
                state[f"{name}.{field}"] = torch.from_numpy(values.copy())
            state[f"{name}.bn.weight"] = torch.ones(channels, dtype=torch.float32, device="cpu")
    return state
