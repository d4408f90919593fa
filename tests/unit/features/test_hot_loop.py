"""What a run asks of a GPU for each batch: few launches, no copy that blocks, and nothing that makes the host wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from fidtool.features.definition import Definition
from fidtool.features.device import Device, Transfer
from fidtool.features.extractor import Extractor, Networks
from fidtool.features.preparation import Preparation, Resize
from fidtool.features.protocol import FEATURES, INCEPTION_INPUT_SIZE, PROTOCOLS
from fidtool.features.runner import Arithmetic, Runner
from fidtool.images.decode import ImageProperties
from fidtool.images.decoded import DecodedBatch
from fidtool.images.records import RECORD
from fidtool.statistics.partial import Layer, PartialStatistics
from support.fake_cuda import FakeCuda
from support.launches import Launches, fake_gpu

GPU = Device(torch.device("cuda"), "a GPU", 1)
BUDGETS = {
    "pytorch-fid": (17, 38),
    "tensorflow": (33, 94),
    "clean": (17, 46),
    "torchmetrics": (16, 38),
    "stylegan": (33, 94),
}
"""Launches for a batch of 64 images of one size, and of eight sizes: the pixels' copy, resizing, 1 for the network of
this test, 1 for a copy of a custom network's result, and the sums (19 for 128 images)."""


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def definition(resize: Resize) -> Definition:
    return Definition("mean", "", 3, 18, INCEPTION_INPUT_SIZE, "", resize, "pillow", 1)


def batches(count: int, sizes: list[tuple[int, int]], parts: int = 1) -> Iterator[DecodedBatch]:
    """Yields batches of images on the host, each in so many parts."""
    amount = sum(height * width * 3 for height, width in sizes)
    for number in range(count):
        for part in range(parts):
            pixels = torch.empty(amount, dtype=torch.uint8, device="cpu")
            yield DecodedBatch(number, pixels, sizes, ends=part == parts - 1)


class Asynchronous(Transfer):
    """Copies as on a GPU; the streams of `StreamedTransfer` are tested elsewhere."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.to(self._device, non_blocking=True)


def run(resize: Resize, sizes: list[tuple[int, int]], count: int, parts: int = 1) -> list[Launches]:
    """Returns the launches of each of ``count`` batches, without the first."""
    mean, device = definition(resize), GPU.torch_device
    runner, means, stds = Runner(Mean(), device, Arithmetic()), (0.0,) * 3, (1.0,) * 3
    networks = Networks({FEATURES: Extractor(runner, {FEATURES: mean}, Preparation(resize), means, stds, GPU)})
    plan = [len(sizes) * parts] * count
    statistics = PartialStatistics(np.zeros(count, dtype=np.uint64), {FEATURES: Layer(mean)}, plan, device)
    move, found = Asynchronous(device), []
    computed = networks.run(
        batches(count, sizes, parts),
        images=lambda part: part.take_images(move),
        ends=lambda part: part.ends,
        stop=lambda: False,
        timed=contextlib.nullcontext,
        in_turns=False,
    )
    for number in range(count):
        with Launches() as launches:
            _, features = next(computed)
            if number:  # of a custom network, the first batch is also checked on the host
                statistics.add(number, features, ImageProperties(), np.zeros(plan[number], dtype=RECORD), [])
        found.append(launches)
    assert all(found[0].host_to_device), "every copy is non-blocking"
    return found[1:]


def check(found: list[Launches], budget: int, copies: int = 1) -> None:
    for launches in found:
        assert launches.host_to_device == [True] * copies, "the pixels, and nothing else once the sizes are known"
        assert launches.synchronising == 0
    # The features of 128 images are summed at a time.
    assert sum(launches.total for launches in found) <= len(found) * budget, found[-1].launched


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_batch_of_one_size(name: str) -> None:
    with fake_gpu():
        found = run(PROTOCOLS[name].resize, [(256, 256)] * 64, 5)
    check(found, BUDGETS[name][0])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_batch_of_eight_sizes(name: str) -> None:
    with fake_gpu():
        found = run(PROTOCOLS[name].resize, [(200 + 9 * (number % 8), 300) for number in range(64)], 5)
    check(found, BUDGETS[name][1])


def test_a_batch_in_parts() -> None:
    with fake_gpu():
        found = run("bilinear", [(3000, 4000)], 5, parts=8)
    check(found, 53, copies=8)
