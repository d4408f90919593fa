"""A validation set that the ranks do not divide: each sample counts once, although samplers repeat
some.

``padded_samplers.py LOADER COUNT […]`` with a LOADER of `LOADERS`; each rank prints what a single
process must have.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from common import fidtool, network, pictures, say
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from fidtool.training import (
    FrechetInceptionDistance,
    InceptionScore,
    KernelInceptionDistance,
    PeakSignalNoiseRatio,
    WithIndex,
    gather_outputs,
)

BATCH = 4
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "barebones": False,
}


class Validation:
    """Metrics and outputs of a validation."""

    def __init__(self) -> None:
        shared = network()
        self.fid = FrechetInceptionDistance(shared)
        self.kid = KernelInceptionDistance(shared, subsets=3, subset_size=20)
        self.score = InceptionScore(shared, splits=1)
        self.without_index = FrechetInceptionDistance(shared)
        self.index: list[torch.Tensor] = []
        self.losses: list[torch.Tensor] = []
        self.names: list[str] = []
        self.seen = 0

    def step(self, index: torch.Tensor, images: torch.Tensor) -> None:
        fakes = 255 - images
        for metric in (self.fid, self.kid):
            metric.update(images, real=True, index=index)
            metric.update(fakes, real=False, index=index)
        self.score.update(fakes, index=index.tolist())
        self.without_index.update(images, real=True)
        self.without_index.update(fakes, real=False)
        self.index.append(index)
        self.losses.append(images.float().mean((1, 2, 3)))
        self.names.extend(f"sample {number}" for number in index.tolist())
        self.seen += len(index)

    def report(self, count: int) -> None:
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        try:
            values = [float(self.fid.compute()).hex()]
            assert self.fid.result is not None
            values.append(
                f"{self.fid.result.real}+{self.fid.result.fake} "
                f"{tuple(map(str, self.fid.result.warnings))}"
            )
        except fidtool.InputError as error:
            values = [f"{error}"]
        if count > 20:
            values += [float(value).hex() for value in self.kid.compute()]
        self.score.compute()
        assert self.score.result is not None
        losses, names = gather_outputs(self.losses, self.names, index=self.index)
        assert names == [f"sample {number}" for number in range(count)]
        values += [f"{self.score.result.fake}", float(losses.mean()).hex(), f"{list(losses.shape)}"]
        say(f"{rank} same {count}: {' '.join(values)}")
        if count > 1:
            self.without_index.compute()
            result = self.without_index.result
            assert result is not None
            shared = [line for line in map(str, result.warnings) if "more than one rank" in line]
            say(f"{rank} padded {count}: {result.real}+{result.fake} {shared} of {size}")


def plain(data: Any, validation: Validation) -> None:
    """PyTorch's own sampler, which repeats the first samples."""
    sampler: Any = DistributedSampler(data, shuffle=False) if dist.is_initialized() else None
    for index, (images,) in DataLoader(data, BATCH, sampler=sampler):
        validation.step(index, images)


def accelerate(data: Any, validation: Validation) -> None:
    from accelerate import Accelerator

    for index, (images,) in Accelerator(cpu=True).prepare(DataLoader(data, BATCH)):
        validation.step(index, images)


def lightning(data: Any, validation: Validation) -> None:
    """``Trainer.validate``, whose sampler Lightning replaces by one that repeats samples."""
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def validation_step(self, batch: Any, _: int) -> None:
            index, (images,) = batch
            validation.step(index, images)

    ranks = dist.get_world_size() if dist.is_initialized() else 1
    strategy = "ddp" if ranks > 1 else "auto"
    trainer = pl.Trainer(accelerator="cpu", devices=ranks, strategy=strategy, **QUIET)
    trainer.validate(Model(), DataLoader(data, BATCH), verbose=False)


LOADERS = {"plain": plain, "accelerate": accelerate, "lightning": lightning}


def check_shares() -> None:
    """Warn if each rank counts its own samples from 0, so that images are left out."""
    rank, size = dist.get_rank(), dist.get_world_size()
    fid, psnr = FrechetInceptionDistance(network()), PeakSignalNoiseRatio()
    images = pictures(12, rank)
    fid.update(images, real=True, index=range(12))
    fid.update(images // 2, real=False, index=range(12))
    psnr.update(images // 2, images, index=range(12))
    for metric, kinds in ((fid, ("real images", "generated images")), (psnr, ("pairs",))):
        metric.compute()
        assert metric.result is not None
        for kind in kinds:
            expected = f"{12 * (size - 1)} {kind} were left out, because others have the same index"
            assert any(line.text.startswith(expected) for line in metric.result.warnings), (
                metric.result.warnings
            )


def left_out(metric: Any) -> list[str]:
    metric.compute()
    return [
        line.partition(",")[0]
        for line in map(str, metric.result.warnings)
        if "were left out" in line
    ]


def check_random_reconstructions() -> None:
    """Warn of those that a rank repeats, but not of a sample that a sampler repeats; also after a
    checkpoint.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    fid, psnr = FrechetInceptionDistance(network()), PeakSignalNoiseRatio()
    targets, samples = pictures(13, 1), sorted({0, *range(rank, 13, size)})
    fakes = pictures(len(samples), 100 + rank)
    fid.update(targets[samples], real=True, index=samples)
    fid.update(fakes, real=False, index=samples)
    psnr.update(fakes, targets[samples], index=samples)
    for metric in (fid, psnr):
        assert left_out(metric) == []
        assert metric.result is not None
        assert metric.result.fake == 13
        metric.persistent(True)
        with metric.sync_context():
            state = metric.state_dict()
        resumed: Any = (
            FrechetInceptionDistance(network()) if metric is fid else PeakSignalNoiseRatio()
        )
        resumed.load_state_dict(state)
        assert left_out(resumed) == []
    fid.update(fakes[:1].flip(3), real=False, index=samples[:1])
    assert left_out(fid) == [f"{size} generated images were left out"]
    psnr.update(fakes[:1].flip(3), targets[samples[:1]], index=samples[:1])
    assert left_out(psnr) == [f"{size} pairs were left out"]


def main(loader: str, *counts: str) -> None:
    """Validate on data sets of several sizes."""
    warnings.simplefilter("ignore")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    for count in map(int, counts):
        validation = Validation()
        LOADERS[loader](WithIndex(TensorDataset(pictures(count, 1))), validation)
        validation.report(count)
    if dist.is_initialized():
        if dist.get_world_size() > 1:
            check_shares()
            check_random_reconstructions()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
