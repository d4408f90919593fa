"""A peer's FID of two folders, as its users get it: ``python bench_peers.py TOOL REAL FAKE``. Prints ``FID: 12.3``.

A program of its own for each run. Weights lie below TORCH_HOME (see `bench_weights`). Where pictures are of mixed
sizes, the peers that cannot put them into one batch take one at a time.
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


class _Pictures(torch.utils.data.Dataset[torch.Tensor]):
    """uint8 tensors of shape (3, height, width), as torchmetrics takes them."""

    def __init__(self, folder: str) -> None:
        self._files = sorted(Path(folder).iterdir())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(self._files[index]).convert("RGB"))).permute(2, 0, 1)


def _torchmetrics(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(2048, antialias=False).to(device)
    for folder, is_real in ((real, True), (fake, False)):
        loader = torch.utils.data.DataLoader(_Pictures(folder), batch_size, num_workers=workers)
        for batch in loader:
            metric.update(batch.to(device), real=is_real)
    return float(metric.compute())


def _torch_fidelity(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    import torch_fidelity.utils as peer
    from torch_fidelity import calculate_metrics

    if workers:  # it takes twice as many as there are cores, at most four
        cores: Any = peer.multiprocessing
        cores.cpu_count = lambda: max(1, workers // 2)
    found = calculate_metrics(
        input1=fake, input2=real, fid=True, cuda=device != "cpu", batch_size=batch_size, cache=False, verbose=False,
        save_cpu_ram=not workers,
    )  # fmt: skip
    return float(found["frechet_inception_distance"])


def _clean_fid(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from cleanfid import fid

    # Its own network cannot be had without its download; this mode takes pytorch-fid's, and leaves its resize out.
    return float(
        fid.compute_fid(
            real, fake, mode="legacy_pytorch", device=torch.device(device), num_workers=workers, batch_size=batch_size,
            use_dataparallel=False, verbose=False,
        )
    )  # fmt: skip


def _pytorch_fid(real: str, fake: str, device: str, batch_size: int, workers: int) -> float:
    from pytorch_fid.fid_score import calculate_fid_given_paths

    return float(calculate_fid_given_paths([real, fake], batch_size, device, 2048, num_workers=workers))


TOOLS: dict[str, Callable[[str, str, str, int, int], float]] = {
    "pytorch-fid": _pytorch_fid,
    "torch-fidelity": _torch_fidelity,
    "torchmetrics": _torchmetrics,
    "clean-fid": _clean_fid,
}


@click.command()
@click.argument("tool", type=click.Choice(list(TOOLS)))
@click.argument("real")
@click.argument("fake")
@click.option("--device", default="cpu")
@click.option("--batch-size", type=click.IntRange(1), default=50)
@click.option("--num-workers", type=click.IntRange(0), default=0)
def main(tool: str, real: str, fake: str, device: str, batch_size: int, num_workers: int) -> None:
    """Prints the FID that TOOL gives."""
    stdout = sys.stdout
    sys.stdout = sys.stderr  # peers print what they please
    value = TOOLS[tool](real, fake, device, batch_size, num_workers)
    print(f"FID: {value!r}", file=stdout)


if __name__ == "__main__":
    main()
