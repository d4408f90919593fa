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
from fidtool.features.device import Device, HostCopy, StreamTimer
from fidtool.features.models.inception import convolutions, inception_extractor
from fidtool.features.passes import ForwardPasses
from fidtool.features.protocol import FEATURES, PROTOCOLS, Definition, inception_definition
from fidtool.reading.loader import Piece
from fidtool.run.extract import images_on_device
from fidtool.statistics.accumulator import Accumulator, LayerSpec
from fidtool.statistics.moments import ExactMoments

GPU = Device(torch.device("cuda", 0), "a pretended GPU", 64, 1)
pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.5", reason="fake tensors of torch 2.4 need a driver of CUDA"
)


class Event:
    """An event of a GPU that works on a block for a second, and is finished once it is waited
    for.
    """

    made = 0
    waited = 0

    def __init__(self, enable_timing: bool = False) -> None:
        self.number = -1

    def record(self) -> None:
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


def make_piece(number: int, sizes: list[tuple[int, int]]) -> Piece:
    pixels = np.zeros(sum(height * width * 3 for height, width in sizes), np.uint8)
    return Piece(
        number,
        range(2 * number, 2 * number + 2),
        pixels=pixels,
        sizes=sizes,
        used=[True, True],
        files=["a", "b"],
    )


@pytest.mark.parametrize("second", [(32, 32), (40, 24)], ids=["one size", "two sizes"])
@pytest.mark.parametrize("with_features", [False, True])
def test_a_batch_is_launched_before_the_one_before_is_waited_for(
    gpu: None, second: tuple[int, int], with_features: bool
) -> None:
    network, definition = make_inception()

    @contextlib.contextmanager
    def images(piece: Piece) -> Iterator[list[Any]]:
        yield [images_on_device(piece, GPU.torch_device)]

    pieces = [make_piece(number, [(32, 32), second]) for number in range(3)]
    passes = ForwardPasses([network], 0, images).run(iter(pieces))
    sums = Accumulator({FEATURES: LayerSpec(definition, with_features)}, 6, GPU.torch_device)
    piece, features = next(passes)
    sums.add(piece, features, np.arange(2))
    piece, features = next(passes)
    assert Event.waited == 0
    with pytest.raises(DataDependentOutputException):
        sums.add(piece, features, np.arange(2, 4))
    assert Event.waited == 1


def test_a_large_batch_is_not_waited_for_either(gpu: None) -> None:
    """Its rows are in several Gram matrices, which go to the integers unread."""
    moments = ExactMoments(8, 18, GPU.torch_device)
    moments.add(torch.zeros(500, 8, device="cuda"))
    assert Event.waited == 0
    with pytest.raises(DataDependentOutputException):
        moments.check_range()


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
def test_a_feature_out_of_range_is_reported_with_the_next_batch(value: float) -> None:
    """And again by each later call, also if only one of many Gram matrices had it."""
    moments = ExactMoments(2, 18)
    batch = torch.ones(200, 2)
    batch[5, 1] = value
    moments.add(batch)
    for later in (lambda: moments.add(torch.ones(1, 2)), moments.check_range, moments.totals):
        with pytest.raises(RunError):
            later()
    with pytest.raises(RunError):
        moments.mean_covariance(1)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_image_out_of_range_is_named_although_it_is_found_later(bad: int) -> None:
    definition = Definition("made up", "", 4, 8, 8, "", "bilinear", "pillow", 1)
    sums = Accumulator({FEATURES: LayerSpec(definition)}, 6)
    names = [f"{number}.png" for number in range(6)]

    def add_all() -> None:
        for number in range(3):
            features = torch.ones(2, 4)
            if number == bad:
                features[1, 2] = math.nan
            piece = make_piece(number, [(1, 1), (1, 1)])
            piece.files = names[2 * number : 2 * number + 2]
            sums.add(piece, [{FEATURES: features}], np.arange(2 * number, 2 * number + 2))
        sums.finish()

    with pytest.raises(RunError, match=rf"^{2 * bad + 1}\.png: "):
        add_all()
    assert sums.count == 2 * bad, "the images before are in the statistics, and no others"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torch_synchronises_with_a_gpu_for_no_batch() -> None:
    network, definition = make_inception()

    @contextlib.contextmanager
    def images(piece: Piece) -> Iterator[list[Any]]:
        yield [images_on_device(piece, GPU.torch_device)]

    pieces = [make_piece(number, [(32, 32), (40, 24)]) for number in range(4)]
    sums = Accumulator({FEATURES: LayerSpec(definition, True)}, 8, GPU.torch_device)
    try:
        for piece, features in ForwardPasses([network], 0, images).run(iter(pieces)):
            sums.add(piece, features, np.asarray(piece.images))
            # Not for the first batch, which prepares tables and kernels.
            torch.cuda.set_sync_debug_mode("error")
        sums.finish()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sums.count == 8
    assert sums.rows()[FEATURES].shape == (8, 2048)
