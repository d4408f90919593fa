"""The two kinds of files that Inception's weights come in."""

from __future__ import annotations

import zipfile
from typing import IO

import numpy as np
import torch

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
    # Imports torchvision, which takes a second; the converted weights in the cache do without.
    from fidtool.features.inception import convolution_names, reference_module

    reference = reference_module()
    shapes = {name: tensor.shape for name, tensor in reference.state_dict().items()}
    state: State = {}
    with zipfile.ZipFile(file) as archive:
        for position, name in enumerate(convolution_names(reference)):
            fields = ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")
            for offset, field in enumerate(fields):
                blob = archive.read(f"out_jit_module/data/{4 * position + offset}")
                values = np.frombuffer(blob, dtype="<f4").reshape(shapes[f"{name}.{field}"])
                state[f"{name}.{field}"] = torch.from_numpy(values.copy())
            state[f"{name}.bn.weight"] = torch.ones(shapes[f"{name}.bn.weight"], dtype=torch.float32, device="cpu")
    return state
