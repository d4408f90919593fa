"""The same FID for any distribution of the images over ranks and batches; and all ways in which
ranks can disagree.

``metric_values.py CHECK […]``; each check prints what the test compares.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from common import fidtool, network, pictures, refused, say, statistics_of

from fidtool.training import (
    AbsentRanksError,
    FrechetInceptionDistance,
    InceptionScore,
    KernelInceptionDistance,
    MemorizationInformedFrechetInceptionDistance,
    PrecisionRecallDensityCoverage,
    group,
)
from fidtool.training.sums import ImageSums

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
REAL = [*pictures(37, 1), *pictures(20, 2, side=48)]
FAKE = [*pictures(30, 3, side=40), *pictures(23, 4)]


def value(metric: Any) -> str:
    """Return the exact FID and its scope."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        computed = metric.compute()
    assert computed.dtype == torch.float64
    assert [float(computed)] == list(metric.result.values.values())
    return (
        f"{float(computed).hex()} of {metric.result.real}+{metric.result.fake} by "
        f"{metric.result.scope}"
    )


def deal(metric: Any, way: str) -> None:
    """Give each rank its real and generated images, in one of several ways."""
    for images, real in ((REAL, True), (FAKE, False)):
        if way == "last rank has nearly all":
            mine = images[:-1] if RANK == SIZE - 1 else images[-1:] if RANK == 0 else []
            mine = images if SIZE == 1 else mine
            update_in_batches(metric, mine, real, 7)
        else:
            shuffled = torch.randperm(
                len(images), generator=torch.Generator().manual_seed(5)
            ).tolist()
            update_in_batches(
                metric, [images[number] for number in shuffled[RANK::SIZE]], real, 3 + RANK
            )


def update_in_batches(metric: Any, images: list[torch.Tensor], real: bool, size: int) -> None:
    """Update in batches as a data loader does, each with images of one size."""
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        for side in sorted({image.shape[1] for image in batch}):
            metric.update(
                torch.stack([image for image in batch if image.shape[1] == side]), real=real
            )


def dealing() -> None:
    """Check equal bits for each distribution, also after reset, and if reset does not discard the
    real images.
    """
    metric = FrechetInceptionDistance(network())
    for way in ("last rank has nearly all", "shuffled"):
        deal(metric, way)
        say(f"{RANK} {way}: {value(metric)}")
        metric.reset()
    kept = FrechetInceptionDistance(network(), reset_real_features=False)
    deal(kept, "shuffled")
    kept.reset()
    update_in_batches(kept, FAKE[RANK::SIZE], False, 4)
    say(f"{RANK} real ones kept: {value(kept)}")
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        odd = FrechetInceptionDistance(network())
        deal(odd, "shuffled")
        say(f"{RANK} inference mode: {value(odd)}")


def of_each_image() -> None:
    """Check equal bits of the metrics that keep the features of each image, also from states and
    while synced.
    """
    shared = network()
    metrics: dict[str, Any] = {
        "KID": KernelInceptionDistance(shared, subsets=7, subset_size=20),
        "the Inception Score": InceptionScore(shared, splits=4),
        "MIFID": MemorizationInformedFrechetInceptionDistance(shared),
        "PRDC": PrecisionRecallDensityCoverage(shared),
    }
    for title, metric in metrics.items():
        for way in ("last rank has nearly all", "shuffled"):
            metric.reset()
            deal(metric, way)
            say(f"{RANK} {title}: {exact(metric)}")
        metric.persistent(True)
        with metric.sync_context():
            say(f"{RANK} {title}: {exact(metric)}")
            state = metric.state_dict()
        metric.reset()
        metric.load_state_dict(state)
        say(f"{RANK} {title}: {exact(metric)}")


def plain() -> None:
    """Check equal bits of a plain module, the length of whose features is unknown on a rank without
    images.
    """

    class Rows(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float().mean((1, 3)) / 64

    metric = FrechetInceptionDistance(Rows())
    for images, real in ((REAL[:20], True), (FAKE[30:50], False)):
        update_in_batches(metric, images if RANK == SIZE - 1 else [], real, 7)
    say(f"{RANK} plain: {value(metric)}")


def out_of_range() -> None:
    """Check that a feature that cannot be summed on one rank is an error on all, when it is summed
    late as well.
    """

    class Bright(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float().mean((1, 3))

    for index in (None, range(RANK * 4, RANK * 4 + 4)):
        metric = FrechetInceptionDistance(Bright())
        for real in (True, False):
            metric.update(
                pictures(4, 1) if RANK == SIZE - 1 else pictures(4, 2) // 32, real=real, index=index
            )
        refused(fidtool.RunError, metric.compute, "outside the range of the exact sums")
    say(f"{RANK} out of range: refused")


def lost_group() -> None:
    """Check that the next value is right after one rank alone, whose merge failed, still has its
    connections.
    """
    group.TRANSPORT_SECONDS = 2.0
    metric = filled(network(), process_group=dist.new_group())
    before = value(metric)
    merged = ImageSums.merge_ranks

    def out_of_memory(sums: ImageSums, world: Any) -> Any:
        raise MemoryError("made up")

    if RANK == 0:
        ImageSums.merge_ranks = out_of_memory  # type: ignore[method-assign]
    refused(MemoryError if RANK == 0 else fidtool.RunError, metric.compute)
    ImageSums.merge_ranks = merged  # type: ignore[method-assign]
    assert value(metric) == before
    say(f"{RANK} lost group: {before}")


def outside() -> None:
    """Check that a rank that is not in the group of a metric can save and load its state, as that
    of a model.
    """
    metric = FrechetInceptionDistance(network(), process_group=dist.new_group([0]))
    metric.persistent(True)
    metric.update(pictures(4, 1), real=True)
    metric.load_state_dict(metric.state_dict())
    say(f"{RANK} outside: {int(metric.real_features_num_samples)}")


def exact(metric: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric.compute()
    return ",".join(float(value).hex() for value in metric.result.values.values())


def inception() -> None:
    """Check with Inception, whose bits depend on the batch's shape, that shapes are always the
    same.
    """
    metric = FrechetInceptionDistance(192, batch_size=4)
    for number, image in enumerate(REAL[:9]):
        if number % SIZE == RANK:
            metric.update(image[None], real=True)
    update_in_batches(metric, FAKE[RANK:11:SIZE], False, 2 + RANK)
    say(f"{RANK} inception: {value(metric)}")


def saved() -> None:
    """Check state_dict: with each rank's own share, and with all images, loaded by one rank more or
    fewer.
    """
    metric = FrechetInceptionDistance(network())
    metric.persistent(True)
    deal(metric, "shuffled")
    own = metric.state_dict()
    with metric.sync_context():
        whole = metric.state_dict()
    for name, state in (("own", own), ("whole", whole)):
        other = FrechetInceptionDistance(network())
        other.load_state_dict(state)
        say(f"{RANK} {name}: {value(other)}")
    say(f"{RANK} unsynced: {value(metric)}")
    with metric.sync_context():
        evaluated = metric.state_dict()
    for state in (own, evaluated):
        resumed = FrechetInceptionDistance(network())
        resumed.load_state_dict(state)
        if RANK == SIZE - 1:
            resumed.update(pictures(3, 50), real=False)
        value(resumed)
        said = "had been evaluated before it was saved" in " ".join(
            map(str, resumed.result.warnings)
        )
        assert said == (state is evaluated), resumed.result
    for state in (own, whole):
        again = FrechetInceptionDistance(network())
        again.load_state_dict(state)
        deal(again, "last rank has nearly all")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again.compute()
        texts = [
            str(warning.message) for warning in caught if "count twice" in str(warning.message)
        ]
        assert [text.split()[0] for text in texts] == [str(len(REAL)), str(len(FAKE))] * (
            RANK == 0
        ), texts
    if SIZE > 1:
        lost = FrechetInceptionDistance(network())
        first = [own if RANK == 0 else None]
        dist.broadcast_object_list(first)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lost.load_state_dict(first[0])  # type: ignore[arg-type]
            lost.compute()
        texts = " | ".join(str(warning.message) for warning in caught)
        assert ("rank 0 of" in texts) == (RANK > 0), texts
        assert ("before the checkpoint are missing" in texts) == (RANK == 0), texts
        say(f"{RANK} lost: said")


def filled(*arguments: Any, **settings: Any) -> FrechetInceptionDistance:
    """Return a metric with a few images, different ones on each rank."""
    metric = FrechetInceptionDistance(*arguments, **settings)
    if not settings.get("real_statistics"):
        metric.update(pictures(4, 10 + RANK), real=True)
    metric.update(pictures(4, 20 + RANK), real=False)
    return metric


def disagreement() -> None:
    """Check that every rank refuses the call and names the cause."""
    other = fidtool.Network(network().module, input_size=32, mean=(0.4, 0.5, 0.5))
    refused(
        fidtool.InputError,
        filled(other if RANK == 1 else network()).compute,
        "the metric of rank 0 and the metric of rank 1",
        "normalization",
    )
    kid = KernelInceptionDistance(network(), subset_size=2 + RANK % 2)
    refused(
        fidtool.InputError,
        kid.compute,
        "the metric of rank 0 and the metric of rank 1",
        "subset_size=3",
    )
    fixed = statistics_of(pictures(30, 1)) if RANK == 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric = filled(network(), real_statistics=fixed)
    refused(fidtool.InputError, metric.compute, "their own images against statistics")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (FrechetInceptionDistance, KernelInceptionDistance):
            uneven = kind(Uneven())
            uneven.update(pictures(4, RANK), real=True)
            refused(fidtool.InputError, uneven.compute, "features of different lengths, 4 and 5")
    fresh = FrechetInceptionDistance(network())
    refused(
        fidtool.InputError, fresh.compute, "at least 2 real images, but there are 0", "real=True"
    )
    absent = filled(network(), sync_timeout=3.0)
    dist.barrier()  # so that none of the waiting ranks is late
    if RANK != 1:
        texts = ("timed out after 3 s waiting for rank 1 of", "sync_on_compute=False", "== 0")
        refused(AbsentRanksError, absent.compute, *texts)
    dist.barrier()
    refused(fidtool.RunError, absent.compute, "call number 1 of", "the other ranks are at number 2")
    assert float(absent.compute()) > 0, "the call after a refusal succeeds"
    for metric in [filled(network()), filled(network())][:: 1 if RANK else -1]:
        texts = ("different calls", "every rank must make the same calls", "pass name=")
        refused(fidtool.RunError, metric.compute, *texts)
    bad = filled(Spoiled(), name="bad")
    expected = "NaN" if RANK == 1 else "rank 1 failed"
    refused(fidtool.RunError, bad.compute, expected)
    say(f"{RANK} disagreement: refused")


class Spoiled(torch.nn.Module):
    """Features that are NaN on one rank."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = images.float().mean((2, 3)) / 256
        return features * float("nan") if RANK == 1 else features


class Uneven(torch.nn.Module):
    """Other lengths of features on other ranks."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().flatten(1)[:, : 4 + RANK % 2] / 256


def more_on_one() -> None:
    """A rank may create more metrics than others: named ones, and ones that are not
    synchronised.
    """
    if RANK == 0:
        filled(network(), name="extra")
        filled(network(), sync_on_compute=False)
    metric = filled(network())
    say(f"{RANK} more on one: {value(metric)}")
    with metric.sync_context():
        text = "would discard the effect of merge_state()"
        refused(
            fidtool.InputError, lambda: metric.merge_state(filled(network(), name="other")), text
        )


def alone() -> None:
    """Check sync_on_compute=False: the value covers this rank, and a single rank may compute it."""
    metric = filled(network(), sync_on_compute=False)
    if RANK == 1:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metric.compute()
        assert any(f"rank 1 of {SIZE} alone" in str(warning.message) for warning in caught)
        say(f"{RANK} alone: {value(metric)}")
    half = dist.new_group([0, 1])
    dist.new_group([2])
    if RANK < 2:
        say(f"{RANK} half: {value(filled(network(), process_group=half, name='half'))}")


def seeds() -> None:
    """Check that equal seeds on all ranks give a warning, and sample_seed the same samples at any
    world size.
    """
    for kind in ("one seed", "own seeds"):
        metric = FrechetInceptionDistance(network(), batch_size=8)
        for number in range(RANK, 24, SIZE):
            seed = number // SIZE if kind == "one seed" else fidtool.sample_seed(0, number) % 2**32
            metric.update(pictures(1, seed), real=False)
        for number in range(RANK, 24, SIZE):
            metric.update(pictures(1, 1000 + number), real=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fid = float(metric.compute())
        texts = [
            str(warning.message)
            for warning in caught
            if "are on more than one rank" in str(warning.message)
        ]
        say(f"{RANK} {kind}: {fid.hex()} warned {len(texts)} {texts}")


def main(*checks: str) -> None:
    if SIZE > 1:
        dist.init_process_group("gloo")
    for check in checks:
        globals()[check]()
    if SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
