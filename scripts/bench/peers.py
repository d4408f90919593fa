"""Other FID tools, run as their users run them: ``python scripts/bench/peers.py fid TOOL REAL
FAKE``.

Each run is a process of its own and imports only what the tool needs. ``weights TORCH_HOME`` first
writes fidtool's weights to where the tools look before they download. Tools that cannot batch
images of mixed sizes need ``--batch-size 1`` for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from PIL import Image

FILE_NAME = "pt_inception-2015-12-05-6726825d.pth"
"""Name of the weights file of pytorch-fid and clean-fid."""
FILE_NAMES = (FILE_NAME, FILE_NAME.replace("pt_inception", "weights-inception"))
"""The second is the name used by torch-fidelity and torchmetrics."""


def pytorch_fid_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict that pytorch-fid loads strictly.

    Args:
        state: tensors of the convolutions, by torchvision's names. If the classifier, which FID
            does not run, or the batch counters of the batch norms, which inference ignores, are
            missing, they are filled with zeros.
    """
    complete = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008), **state}
    for name in state:
        if name.endswith(".bn.running_mean"):
            complete.setdefault(
                name.replace("running_mean", "num_batches_tracked"), torch.tensor(0)
            )
    return complete


def write_weights(state: dict[str, torch.Tensor], torch_home: Path) -> None:
    """Write a state dict to where the tools' loaders look, below ``torch_home``. Existing files are
    replaced.
    """
    folder = torch_home / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILE_NAMES:
        (folder / name).unlink(missing_ok=True)
    torch.save(state, folder / FILE_NAME)
    for name in FILE_NAMES[1:]:
        (folder / name).symlink_to(FILE_NAME)


class _Images(torch.utils.data.Dataset[torch.Tensor]):
    """The images of a folder as uint8 tensors of shape (3, height, width), as torchmetrics expects
    them.
    """

    def __init__(self, folder: str) -> None:
        self._files = sorted(Path(folder).iterdir())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(self._files[index]).convert("RGB"))).permute(
            2, 0, 1
        )


def _torchmetrics(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(2048, antialias=False).to(device)
    for folder, is_real in ((real, True), (fake, False)):
        loader = torch.utils.data.DataLoader(_Images(folder), batch_size, num_workers=workers)
        for batch in loader:
            metric.update(batch.to(device), real=is_real)
    return float(metric.compute())


def _torch_fidelity(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    import torch_fidelity.utils as peer
    from torch_fidelity import calculate_metrics

    if workers:  # it starts two workers per core, at most four
        cores: Any = peer.multiprocessing
        cores.cpu_count = lambda: max(1, workers // 2)
    # Fmt: skip.
    found = calculate_metrics(
        input1=fake,
        input2=real,
        fid=True,
        cuda=device != "cpu",
        batch_size=batch_size,
        cache=False,
        verbose=False,
        save_cpu_ram=not workers,
    )
    return float(found["frechet_inception_distance"])


def _clean_fid(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from cleanfid import fid

    # The default mode needs a download. This one uses pytorch-fid's network, without clean-fid's
    # resize.
    # Fmt: skip.
    return float(
        fid.compute_fid(
            real,
            fake,
            mode="legacy_pytorch",
            device=torch.device(device),
            num_workers=workers,
            batch_size=batch_size,
            use_dataparallel=False,
            verbose=False,
        )
    )


def _pytorch_fid(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from pytorch_fid.fid_score import calculate_fid_given_paths

    return float(
        calculate_fid_given_paths([real, fake], batch_size, device, 2048, num_workers=workers)
    )


TOOLS: dict[str, Callable[[str, str, str, int, int], float]] = {
    "pytorch-fid": _pytorch_fid,
    "torch-fidelity": _torch_fidelity,
    "torchmetrics": _torchmetrics,
    "clean-fid": _clean_fid,
}


@click.group()
def cli() -> None:
    """Run other FID tools."""


@cli.command("fid")
@click.argument("tool", type=click.Choice(list(TOOLS)))
@click.argument("real")
@click.argument("fake")
@click.option("--device", default="cpu")
@click.option("--batch-size", type=click.IntRange(1), default=50)
@click.option("--num-workers", type=click.IntRange(0), default=0)
def print_fid(
    tool: str, real: str, fake: str, device: str, batch_size: int, num_workers: int
) -> None:
    """Print the FID that TOOL computes, as ``FID: 12.3``."""
    stdout = sys.stdout
    sys.stdout = sys.stderr  # the tools print to stdout, too
    value = TOOLS[tool](real, fake, device, batch_size, num_workers)
    print(f"FID: {value!r}", file=stdout)


@cli.command()
@click.argument("torch_home", type=click.Path(file_okay=False, path_type=Path))
def weights(torch_home: Path) -> None:
    """Write fidtool's Inception weights to where the tools look for theirs, below TORCH_HOME."""
    from fidtool.features.models.inception import (
        load_weights,  # the tools' own runs need not import it
    )

    write_weights(pytorch_fid_state(load_weights(None, print).state), torch_home)


if __name__ == "__main__":
    cli()
