"""CUDA streams and graphs, with stand-ins for torch.cuda on machines without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fidtool.features.runner
from fidtool.features import device
from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.runner import Arithmetic, Graphed, Runner
from fidtool.features.torch_state import repeatable
from support.pictures import make_pictures

CPU = torch.device("cpu")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return tuple(str(make_pictures(tmp_path / name, 9, seed)) for seed, name in enumerate(("real", "fake")))  # type: ignore[return-value]


class _FakeCuda:
    """Replaces torch.cuda and logs the order in which streams, events and graphs are used."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.recording: list[Callable[[], None]] | None = None
        self.refuses = False

    def install(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        outer = self

        class Stream:
            def __init__(self, device: object = None, name: str = "beside") -> None:
                self.name = name

            def wait_stream(self, other: Stream) -> None:
                outer.log.append(f"{self.name} waits for {other.name}")

        class Event:
            made = 0

            def __init__(self, blocking: bool) -> None:
                assert blocking, "a wait would keep a core busy"

            def record(self, stream: Stream) -> None:
                Event.made += 1
                self.number = Event.made
                outer.log.append(f"event {self.number} on {stream.name}")

            def synchronize(self) -> None:
                outer.log.append(f"host waits for event {self.number}")

        class CUDAGraph:
            def replay(self) -> None:
                outer.log.append("replay")

        @contextlib.contextmanager
        def graph(_: CUDAGraph, capture_error_mode: str) -> Iterator[None]:
            assert capture_error_mode == "thread_local"
            if outer.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            outer.log.append("record")
            yield

        work = Stream(name="work")
        fakes = {"Stream": Stream, "Event": Event, "CUDAGraph": CUDAGraph, "graph": graph}
        fakes |= {"current_stream": lambda _: work, "stream": lambda s: _noted(outer.log, s.name)}
        fakes["device"] = lambda _: contextlib.nullcontext()
        for name, fake in fakes.items():
            monkeypatch.setattr(module.torch.cuda, name, fake)


@contextlib.contextmanager
def _noted(log: list[str], name: str) -> Iterator[None]:
    log.append(f"on {name}:")
    yield
    log.append("back on work:")


def test_at_most_two_batches_are_copied_on_a_second_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, device)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: cuda.log.append(f"kept for {stream.name}"))
    move = device.StreamedTransfer(CPU)
    for number in range(3):
        pixels = torch.full((4,), number, dtype=torch.uint8)
        assert torch.equal(move(pixels), pixels)
        cuda.log.append(f"network {number}")
    copied = ["on beside:", "back on work:", "work waits for beside", "kept for work"]
    assert cuda.log == [
        *("event 1 on work", *copied, "network 0"),
        *("host waits for event 1", "event 2 on work", *copied, "network 1"),
        *("host waits for event 2", "event 3 on work", *copied, "network 2"),
    ]
    move.await_room()
    assert cuda.log[-1] == "host waits for event 3", "the wait comes before the copy, which then does not wait"
    assert isinstance(device.transfer_to(torch.device("cuda")), device.StreamedTransfer)
    assert not isinstance(device.transfer_to(CPU), device.StreamedTransfer)


def test_a_pass_is_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, fidtool.features.runner)
    calls = []

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return x.sum((1, 2, 3)), x.amax((1, 2, 3))

    graphed = Graphed(run, CPU)
    x = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    first = graphed(x)
    assert len(calls) == 3, "two to warm up, one to capture"
    assert [torch.equal(*pair) for pair in zip(first, run(x), strict=True)] == [True, True]
    later = graphed(torch.zeros_like(x))
    assert len(calls) == 4, "a replay does not call the function"
    assert torch.equal(graphed._input, torch.zeros_like(x)), "the input is copied to where the captured kernels read it"
    assert graphed._input.is_contiguous(memory_format=torch.channels_last)
    assert later[0].data_ptr() != first[0].data_ptr(), "results of earlier batches are not overwritten"
    assert cuda.log.count("record") == 1
    assert cuda.log.count("replay") == 2


def test_a_pass_that_cannot_be_captured_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, fidtool.features.runner)
    cuda.refuses = True
    graphed = Graphed(lambda x: x + 1, CPU)
    for value in range(3):
        assert graphed(torch.full((2,), value)).tolist() == [value + 1] * 2
    assert "not permitted" in graphed.failed
    assert "replay" not in cuda.log


def test_only_batches_of_known_size_are_captured() -> None:
    """Batches of a training loop have any size."""
    cuda = torch.device("cuda")  # a module without parameters can be moved there without CUDA
    module = nn.Identity()
    assert Runner(module, cuda, Arithmetic(), standard=True)._run is module
    assert Runner(module, cuda, Arithmetic(batch_size=4))._run is module, "other networks may wait for the GPU"
    assert Runner(module, cuda, Arithmetic(batch_size=4), standard=True)._run is not module
    assert Runner(module, CPU, Arithmetic(batch_size=4), standard=True)._run is module


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_passes_give_the_same_bits_as_called_ones() -> None:
    cuda = torch.device("cuda")
    module = Inception(load_weights(None, print).state)
    with repeatable(), torch.inference_mode():
        runner = Runner(module, cuda, Arithmetic(batch_size=4), standard=True)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            x = torch.rand(4, 3, 299, 299, generator=generator).to(cuda).contiguous(memory_format=torch.channels_last)
            assert torch.equal(runner(x), runner.module(x))
        assert runner.unrecorded == ""
