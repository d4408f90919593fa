"""On a GPU, the host launches a batch before it waits for the one before.

The GPU is pretended: torch's fake tensors have shapes but no values, so that waiting for a value
raises an exception.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fidtool.errors import RunError
from fidtool.features.device import Device, HostCopy, StreamTimer, Uploads
from fidtool.features.models.inception import convolutions, inception_extractor
from fidtool.features.passes import ForwardPasses
from fidtool.features.protocol import FEATURES, PROTOCOLS, Definition, inception_definition
from fidtool.reading.loader import Piece
from fidtool.run.extract import split_images
from fidtool.statistics.accumulator import Accumulator, LayerSpec
from fidtool.statistics.moments import ExactMoments

GPU = Device(torch.device("cuda", 0), "a pretended GPU", 64, 1)
pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.5", reason="fake tensors of torch 2.4 need a driver of CUDA"
)


class Event:
    """An event of a GPU, which occurs once it is waited for. Blocks of work take a second."""

    made = 0
    waited = 0

    def __init__(self, enable_timing: bool = False) -> None:
        self.number = -1

    def record(self, stream: str = "") -> None:
        self.stream = stream
        self.number = Event.made
        Event.made += 1

    def query(self) -> bool:
        return self.number < Event.waited

    def synchronize(self) -> None:
        assert self.number >= 0, "it was not recorded"
        Event.waited = max(Event.waited, self.number + 1)

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return 1000.0 * (other.number - self.number)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "waited", 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", "the current stream of {}".format)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    # Parameters with fake values cannot be moved: they are made on the GPU.
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
    with FakeTensorMode():
        yield


def make_inception() -> tuple[Any, Definition]:
    state: dict[str, torch.Tensor] = {}
    for name, shape in convolutions().items():
        state[f"{name}.conv.weight"] = torch.zeros(shape, device="cuda")
        for key in ("running_mean", "running_var", "weight", "bias"):
            state[f"{name}.bn.{key}"] = torch.zeros(shape[0], device="cuda")
    protocol = PROTOCOLS["pytorch-fid"]
    definition = inception_definition(protocol, 2048)
    return inception_extractor(protocol, {FEATURES: definition}, state, GPU), definition


def make_piece(number: int, sizes: list[tuple[int, int]], last: bool = True) -> Piece:
    pixels = np.zeros(sum(height * width * 3 for height, width in sizes), np.uint8)
    start = 4 * number + (2 if last else 0)
    return Piece(
        number,
        range(start, start + 2),
        last,
        pixels=pixels,
        sizes=sizes,
        used=[True, True],
        files=[f"{start}.png", f"{start + 1}.png"],
    )


def make_pieces(second: tuple[int, int], pieces: int) -> list[Piece]:
    """Three batches of one or two pieces, each with two images."""
    sizes = [(32, 32), second]
    batches = []
    for number in range(3):
        if pieces == 2:
            batches.append(make_piece(number, sizes, last=False))
        batches.append(make_piece(number, sizes))
    return batches


class Run:
    """The passes of pieces through Inception on a GPU, and the sums of their features."""

    def __init__(self, pieces: list[Piece], with_features: bool) -> None:
        network, definition = make_inception()
        self.uploads = Uploads(GPU.torch_device)
        self.sums = Accumulator(
            {FEATURES: LayerSpec(definition, with_features)}, 12, GPU.torch_device
        )
        self.passes = ForwardPasses([network], 0, self.images, lambda piece: piece.last)
        self.results = self.passes.run(iter(pieces))

    @contextlib.contextmanager
    def images(self, piece: Piece) -> Iterator[list[Any]]:
        pixels = self.uploads.copy(torch.from_numpy(piece.pixels))
        yield [split_images(pixels, piece.sizes)]

    def add(self) -> None:
        piece, features = next(self.results)
        self.sums.add(piece, features, np.asarray(piece.images))


@pytest.mark.parametrize("second", [(32, 32), (40, 24)], ids=["one size", "two sizes"])
@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_batch_is_launched_before_the_one_before_is_waited_for(
    gpu: None, second: tuple[int, int], with_features: bool, pieces: int
) -> None:
    run = Run(make_pieces(second, pieces), with_features)
    for _ in range(pieces):
        run.add()
    assert Event.made >= 2 * pieces
    piece, features = next(run.results)
    assert piece.number == 1, "the second batch is launched"
    assert Event.waited == 0
    with pytest.raises(DataDependentOutputException):
        run.sums.add(piece, features, np.asarray(piece.images))
    assert 0 < Event.waited < Event.made, "the host waits for the first batch, not for the second"


def test_a_large_batch_is_not_waited_for_either(gpu: None) -> None:
    """Its rows are in several Gram matrices, which go to the integers unread."""
    moments = ExactMoments(8, 18, GPU.torch_device)
    moments.add(torch.zeros(500, 8, device="cuda"))
    moments.add(torch.zeros(500, 8, device="cuda"))
    assert Event.waited == 0
    with pytest.raises(DataDependentOutputException):
        moments.check_range()


def test_few_uploads_are_in_pinned_memory(gpu: None) -> None:
    uploads = Uploads(GPU.torch_device)
    for number in range(10):
        assert uploads.copy(torch.zeros(3)).device == GPU.torch_device
        assert Event.made - Event.waited <= 4
        assert Event.made == number + 1
    assert Event.waited == 6


def test_memory_that_cannot_be_pinned_is_copied_as_it_is(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    assert Uploads(GPU.torch_device).copy(torch.zeros(3)).device == GPU.torch_device


def test_the_event_of_a_copy_is_on_the_gpu_of_the_tensor(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which need not be the current one, as in metrics for training."""
    recorded: list[str] = []
    monkeypatch.setattr(Event, "record", lambda event, stream="": recorded.append(stream))
    HostCopy(torch.zeros(3, device="cuda:1"))
    assert recorded == ["the current stream of cuda:1"]


def test_the_time_of_a_gpu_is_that_between_its_events(gpu: None) -> None:
    timer = StreamTimer()
    for _ in range(3):
        with timer():
            pass
    assert Event.waited == 0
    Event.waited = 2
    with timer():
        pass
    assert timer.read_seconds() == 4.0
    assert timer.read_seconds() == 4.0
    assert Event.waited == 8


class Late(HostCopy):
    """Is never ready before it is waited for."""

    is_ready = False  # type: ignore[assignment]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.integers(0, 1 << 30))
def test_sums_are_exact_if_their_rows_are_read_late(sizes: list[int], seed: int) -> None:
    """Also of the largest values, whose sums leave the range of float64."""
    rng = np.random.default_rng(seed)
    largest = 2**23 - 1
    batches = []
    for size in sizes:
        smallest = rng.choice([0, largest - 3])
        batches.append(rng.integers(smallest, largest, (size, 2), endpoint=True))
    late, soon = ExactMoments(2, 0), ExactMoments(2, 0)
    for batch in batches:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fidtool.statistics.moments.HostCopy", Late)
            late.add(torch.from_numpy(batch).double())
        soon.add(torch.from_numpy(batch).double())
        soon.check_range()
    every = np.concatenate(batches).astype(object)
    expected = (every.T @ every)[np.triu_indices(2)].tolist()
    for moments in (late, soon):
        totals = moments.totals()
        high = totals["high"].astype(object) if "high" in totals else 0
        assert (totals["low"].astype(object) + high * 2**32).tolist() == expected
    assert late.totals()["sizes"].tolist() == soon.totals()["sizes"].tolist()


@pytest.mark.parametrize("value", [math.nan, math.inf, 33.0])
def test_a_feature_out_of_range_is_reported_by_each_check(value: float) -> None:
    """Also if only one of several Gram matrices had it."""
    moments = ExactMoments(2, 18)
    batch = torch.ones(200, 2)
    batch[5, 1] = value
    moments.add(batch)
    moments.add(torch.ones(1, 2))
    for check in (moments.check_range, moments.totals, moments.flush):
        with pytest.raises(RunError):
            check()
    with pytest.raises(RunError):
        moments.mean_covariance(1)


@pytest.mark.parametrize("bad", range(12))
@pytest.mark.parametrize("value", [math.nan, -1e30])
def test_an_image_out_of_range_is_named_although_it_is_found_later(bad: int, value: float) -> None:
    """With all images of the batches before in the statistics, and no others."""
    definition = Definition("made up", "", 4, 8, 8, "", "bilinear", "pillow", 1)
    sums = Accumulator({FEATURES: LayerSpec(definition)}, 12)

    def add_all() -> None:
        for piece in make_pieces((1, 1), 2):
            features = torch.ones(2, 4)
            if bad in piece.images:
                features[piece.images.index(bad), 2] = value
            sums.add(piece, [{FEATURES: features}], np.asarray(piece.images))
        sums.finish()

    with pytest.raises(RunError, match=rf"^{bad}\.png: "):
        add_all()
    assert sums.count == bad // 4 * 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pieces", [1, 2])
def test_torch_synchronises_with_a_gpu_for_no_batch(pieces: int) -> None:
    batches = make_pieces((40, 24), pieces)
    run = Run(batches, with_features=True)
    try:
        for number, _ in enumerate(batches):
            run.add()
            if number + 1 == pieces:
                # Not for the first batch, which prepares tables and kernels.
                torch.cuda.set_sync_debug_mode("error")
        run.sums.finish()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.sums.count == 2 * len(batches)
