"""Gives the peers the weights that fidtool uses, as files where torch.hub looks before it downloads.

A program of its own (``python scripts/bench_weights.py TORCH_HOME``), so that the benchmark need not import torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fidtool.features.models.inception_weights import load_weights

FILE_NAME = "pt_inception-2015-12-05-6726825d.pth"
"""pytorch-fid's, and clean-fid's."""
FILE_NAMES = (FILE_NAME, FILE_NAME.replace("pt_inception", "weights-inception"))
"""The latter is torch-fidelity's, and torchmetrics'."""


def pytorch_fid_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict that pytorch-fid loads strictly.

    Args:
        state: the convolutions' tensors by torchvision's names. The classifier, which FID does not run, and the
            counters of the batch norms, which inference does not read, are filled in with zeros where they are missing.
    """
    complete = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008), **state}
    for name in state:
        if name.endswith(".bn.running_mean"):
            complete.setdefault(name.replace("running_mean", "num_batches_tracked"), torch.tensor(0))
    return complete


def write_weights(state: dict[str, torch.Tensor], torch_home: Path) -> None:
    """Writes a state dict where the peers' loaders look; what is there is replaced."""
    folder = torch_home / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILE_NAMES:
        (folder / name).unlink(missing_ok=True)
    torch.save(state, folder / FILE_NAME)
    for name in FILE_NAMES[1:]:
        (folder / name).symlink_to(FILE_NAME)


if __name__ == "__main__":
    write_weights(pytorch_fid_state(load_weights(None, print).state), Path(sys.argv[1]))
