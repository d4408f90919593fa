"""The same PSNR, SSIM and LPIPS for any distribution of the pairs over ranks; padded samplers;
ranks that disagree.

``pair_values.py WEIGHTS CHECK […]``; each check prints what the test compares.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from common import fidtool, pictures, refused, say
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fidtool.training import (
    AbsentRanksError,
    LearnedPerceptualImagePatchSimilarity,
    PeakSignalNoiseRatio,
    StructuralSimilarityIndexMeasure,
    WithIndex,
)
from fidtool.training.pair_metrics import ReconstructionMetric

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TARGET = pictures(17, 1, side=40)
PREDS = (
    TARGET.int() + torch.randint(-20, 21, TARGET.shape, generator=torch.Generator().manual_seed(2))
).clamp(0, 255)
PREDS = PREDS.to(torch.uint8)
WEIGHTS = sys.argv[1]


def value(metric: ReconstructionMetric) -> str:
    """Return the exact mean and deviation, the number of pairs and their scope."""
    computed = metric.compute()
    assert metric.result is not None
    assert float(computed) == next(iter(metric.result.values.values()))
    exact = ",".join(number.hex() for number in metric.result.values.values())
    return (
        f"{exact} of {metric.result.fake} by {metric.result.scope}, {len(metric.result.warnings)} "
        "warnings"
    )


def dealing() -> None:
    """Check equal bits for each distribution, one rank without pairs among them; from states, while
    synced, merged.
    """
    metrics = {
        "PSNR": PeakSignalNoiseRatio(),
        "SSIM": StructuralSimilarityIndexMeasure(),
        "LPIPS": LearnedPerceptualImagePatchSimilarity(weights=WEIGHTS),
    }
    of_ranks = (
        [slice(0, 3), slice(3, 3), slice(3, 17)] if SIZE == 3 else [slice(0, 12), slice(12, 17)]
    )
    for title, metric in metrics.items():
        for mine in (slice(RANK, None, SIZE), slice(None) if SIZE == 1 else of_ranks[RANK]):
            metric.reset()
            for preds, target in zip(
                PREDS[mine].split(2 + RANK), TARGET[mine].split(2 + RANK), strict=True
            ):
                metric.update(preds, target)
            say(f"{RANK} {title}: {value(metric)}")
        metric.persistent(True)
        with metric.sync_context():
            say(f"{RANK} {title}: {value(metric)}")
            state = metric.state_dict()
        metric.reset()
        metric.load_state_dict(state)
        say(f"{RANK} {title}: {value(metric)}")


def padded() -> None:
    """Check that samples which a sampler repeats count once if they have an index, and are said
    otherwise.
    """
    numbered = WithIndex(TensorDataset(PREDS, TARGET))
    sampler = DistributedSampler(numbered, SIZE, RANK, shuffle=False)
    indexed, plain = PeakSignalNoiseRatio(), PeakSignalNoiseRatio()
    for index, (preds, target) in DataLoader(numbered, 4, sampler=sampler):
        indexed.update(preds, target, index=index)
        plain.update(preds, target)
    say(f"{RANK} indexed: {value(indexed)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value(plain)
    assert plain.result is not None
    say(f"{RANK} padded: {plain.result.fake} {tuple(map(str, plain.result.warnings))}")
    say(f"{RANK} warned: {RANK} {len(caught)}")
    indexed.persistent(True)
    with indexed.sync_context():
        state = indexed.state_dict()
    again = PeakSignalNoiseRatio()
    again.load_state_dict(state)
    say(f"{RANK} indexed: {value(again)}")


def moved() -> None:
    """Check that preds in another order than their targets are said, in the same words on every
    rank.
    """
    metric = PeakSignalNoiseRatio()
    metric.update(PREDS.roll(1, 0)[RANK::SIZE], TARGET[RANK::SIZE])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.compute()
    assert metric.result is not None
    say(f"{RANK} moved: {tuple(map(str, metric.result.warnings))}")


def lightning() -> None:
    """Check that Lightning, whose sampler repeats samples, logs the exact value on every rank."""
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.psnr, self.ssim = PeakSignalNoiseRatio(), StructuralSimilarityIndexMeasure()

        def validation_step(self, batch: Any, _: int) -> None:
            index, (preds, target) = batch
            self.psnr(preds, target, index=index)
            self.ssim.update(preds, target, index=index)
            self.log("psnr", self.psnr)
            self.log("ssim", self.ssim)

    strategy = "ddp" if SIZE > 1 else "auto"
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", devices=SIZE, strategy=strategy, **quiet)
    model = Model()
    trainer.validate(model, DataLoader(WithIndex(TensorDataset(PREDS, TARGET)), 4), verbose=False)
    assert trainer.callback_metrics["psnr"].dtype == torch.float64
    for name, metric in (("PSNR", model.psnr), ("SSIM", model.ssim)):
        assert metric.result is not None
        assert float(trainer.callback_metrics[name.lower()]) == metric.result.values[name.lower()]
        say(
            f"{RANK} {name} logged: {float(trainer.callback_metrics[name.lower()]).hex()} of "
            f"{metric.result.fake}"
        )


def disagreement() -> None:
    """Check that every rank refuses the call and names the cause; none hangs."""
    metric = PeakSignalNoiseRatio()
    refused(
        fidtool.InputError, metric.compute, "PSNR needs at least 1 pair of images, but there are 0"
    )
    absent = PeakSignalNoiseRatio(sync_timeout=3.0)
    absent.update(PREDS, TARGET)
    dist.barrier()
    if RANK != 1:
        refused(
            AbsentRanksError,
            absent.compute,
            "timed out after 3 s waiting for rank 1 of",
            "PeakSignalNoiseRatio",
        )
    dist.barrier()
    other = StructuralSimilarityIndexMeasure(sync_on_compute=False)
    other.update(PREDS[: RANK + 1], TARGET[: RANK + 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = value(other)
    assert f"of {RANK + 1} by rank {RANK} of {SIZE} alone" in text
    noun = "1 pair" if RANK == 0 else f"{RANK + 1} pairs"
    assert f"this SSIM covers rank {RANK} of {SIZE} alone ({noun})" in str(caught[0].message)
    failed = PeakSignalNoiseRatio()
    if RANK == 0:
        failed.abandon("no memory left")
    else:
        refused(fidtool.RunError, failed.compute, "rank 0 failed: no memory left")
    say(f"{RANK} disagreement: refused")


def main(*checks: str) -> None:
    if SIZE > 1:
        dist.init_process_group("gloo")
    for check in checks:
        globals()[check]()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[2:])
