"""How networks are run: precisions, compilation, batches of one shape, and what a GPU does beside the network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, make_pictures
from torch import nn

import fidtool
from fidtool.config import PRECISIONS
from fidtool.errors import InputError
from fidtool.features import graphs, transfer
from fidtool.features.convolution import packs
from fidtool.features.device import repeatable
from fidtool.features.graphs import Graphed
from fidtool.features.inception import Inception
from fidtool.features.runner import Arithmetic, Runner, _of_one_shape
from fidtool.features.weights import load_weights, offline_path

CPU = torch.device("cpu")
needs_weights = pytest.mark.skipif(offline_path() is None, reason="needs fidtool[offline]")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return tuple(str(make_pictures(tmp_path / name, 9, seed)) for seed, name in enumerate(("real", "fake")))  # type: ignore[return-value]


# --- precisions ------------------------------------------------------------------------------------------------------


@needs_weights
def test_half_precision_is_another_number_and_on_record(pair: tuple[str, str]) -> None:
    exact = fidtool.compute(*pair, dims=192, cache=False)
    for precision in ("bf16", "fp16"):
        half = fidtool.compute(*pair, dims=192, precision=precision, cache=False)
        assert half.fid == pytest.approx(exact.fid, rel=0.02)
        assert half.fid != exact.fid
        assert half.run.precision == precision
        assert half.definition == exact.definition, "the protocol is the same: only where and how it ran differs"


@needs_weights
def test_precisions_do_not_share_the_cache(pair: tuple[str, str]) -> None:
    first = fidtool.compute(*pair, dims=64)
    other = fidtool.compute(*pair, dims=64, precision="bf16")
    assert not other.run.cached
    assert other.fid != first.fid
    again = fidtool.compute(*pair, dims=64, precision="bf16")
    assert len(again.run.cached) == 2
    assert again.fid == other.fid


@needs_weights
def test_statistics_of_another_precision_are_said(here: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    real, fake = pair
    file = tmp_path / "real.npz"
    assert here("stats", real, "-o", file, "--dims", "64", "--precision", "bf16").status == 0
    outcome = here("compute", file, fake, "--dims", "64")
    assert outcome.status == 0
    assert "computed in bf16 and" in outcome.stderr
    assert "in fp32: a part of their distance is that of the precisions" in outcome.stderr


def test_a_network_of_ones_own_in_half_precision(pair: tuple[str, str]) -> None:
    tiny = f"{Path(__file__).parent / 'tiny_network.py'}:network"
    exact, half = (fidtool.compute(*pair, extractor=tiny, precision=each, cache=False) for each in ("fp32", "bf16"))
    assert half.fid == pytest.approx(exact.fid, rel=0.05)
    assert half.fid != exact.fid


def test_tf32_is_refused_where_it_is_not(here: Run, pair: tuple[str, str]) -> None:
    outcome = here("compute", *pair, "--precision", "tf32", "--device", "cpu")
    assert outcome.status == 2
    assert "--precision tf32 is a mode of NVIDIA GPUs" in outcome.error
    with pytest.raises(InputError, match="there are fp32, tf32, bf16, fp16"):
        fidtool.compute(*pair, precision="fp8")


def test_tf32_is_on_for_the_run_alone() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with repeatable(tf32=True):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
        assert cudnn.deterministic
        with repeatable():
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


# --- compilation -----------------------------------------------------------------------------------------------------


@needs_weights
def test_a_compiled_network_is_the_same_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also for the last batch, which is smaller: it is filled up, and nothing is compiled for it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    module = Inception(load_weights(None, print).state, 64)
    x = torch.rand(4, 3, 75, 75, generator=torch.Generator().manual_seed(0)).mul(2).sub(1)
    x = x.contiguous(memory_format=torch.channels_last)
    with repeatable(), torch.inference_mode():
        x = x.clone()
        expected = Runner(module, CPU, Arithmetic(batch_size=4), standard=True)(x)
        torch._dynamo.reset()
        made = _compilations()
        compiled = Runner(module, CPU, Arithmetic(compiled=True, batch_size=4), standard=True)
        for count in (4, 3, 1):
            found = compiled(x[:count])
            assert ((found - expected[:count]).norm(dim=1) < 1e-6 * expected[:count].norm(dim=1)).all()
    assert _compilations() - made == 1
    assert list((tmp_path / "compiled").iterdir()), "kept for the next run"


def test_a_compiled_run_is_on_record(here: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    tiny = f"{Path(__file__).parent / 'tiny_network.py'}:network"
    eager, compiled = (here("compute", *pair, "--extractor", tiny, "--json", *more) for more in ([], ["--compile"]))
    assert (eager.status, compiled.status) == (0, 0)
    assert compiled.json["run"]["kernels"] == "inductor"
    assert not compiled.json["run"]["cached"], "other kernels, other bits"
    fids = [outcome.json["results"][0]["metrics"]["fid"] for outcome in (eager, compiled)]
    assert fids[1] == pytest.approx(fids[0], rel=1e-5)


def _compilations() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def test_the_kernels_are_on_record(pair: tuple[str, str]) -> None:
    tiny = f"{Path(__file__).parent / 'tiny_network.py'}:network"
    assert fidtool.compute(*pair, extractor=tiny, cache=False).run.kernels == "torch"
    if offline_path() is not None:
        expected = "oneDNN, packed" if packs(torch.float32) else "torch"
        assert fidtool.compute(*pair, dims=64, cache=False).run.kernels == expected


# --- batches of one shape --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("several", [False, True])
def test_batches_of_one_shape_lose_nothing(count: int, several: bool) -> None:
    seen = []

    def run(x: torch.Tensor) -> Any:
        seen.append(tuple(x.shape))
        assert x.is_contiguous(memory_format=torch.channels_last)
        sums = x.sum((2, 3))
        return (sums, 2 * sums) if several else sums

    x = torch.rand(count, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    found = _of_one_shape(run, 4)(x)
    assert set(seen) == {(4, 3, 5, 5)}
    parts = found if several else (found,)
    for factor, part in enumerate(parts, 1):
        assert torch.allclose(part, factor * x.sum((2, 3)))
    assert len(parts) == 1 + several


# --- CUDA, without CUDA ----------------------------------------------------------------------------------------------


class _FakeCuda:
    """Stands for torch.cuda: notes in which order streams, events and graphs are used."""

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


def test_pixels_travel_beside_the_work_and_no_more_than_two_batches_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, transfer)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: cuda.log.append(f"kept for {stream.name}"))
    move = transfer.StreamedTransfer(CPU)
    for number in range(3):
        pixels = torch.full((4,), number, dtype=torch.uint8)
        assert torch.equal(move(pixels), pixels)
        cuda.log.append(f"network {number}")
    copied = ["on beside:", "back on work:", "work waits for beside", "kept for work"]
    assert cuda.log == [
        *("event 1 on work", *copied, "network 0"),
        *("event 2 on work", "host waits for event 1", *copied, "network 1"),
        *("event 3 on work", "host waits for event 2", *copied, "network 2"),
    ]


def test_a_pass_is_recorded_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, graphs)
    calls = []

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return x.sum((1, 2, 3)), x.amax((1, 2, 3))

    graphed = Graphed(run, CPU)
    x = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    first = graphed(x)
    assert len(calls) == 3, "two to warm up, one to record"
    assert [torch.equal(*pair) for pair in zip(first, run(x), strict=True)] == [True, True]
    later = graphed(torch.zeros_like(x))
    assert len(calls) == 4, "a replay calls nothing"
    assert torch.equal(graphed._input, torch.zeros_like(x)), "its input lies where the recorded kernels read"
    assert graphed._input.is_contiguous(memory_format=torch.channels_last)
    assert later[0].data_ptr() != first[0].data_ptr(), "results of earlier batches stay"
    assert cuda.log.count("record") == 1
    assert cuda.log.count("replay") == 2


def test_what_cannot_be_recorded_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda()
    cuda.install(monkeypatch, graphs)
    cuda.refuses = True
    graphed = Graphed(lambda x: x + 1, CPU)
    for value in range(3):
        assert graphed(torch.full((2,), value)).tolist() == [value + 1] * 2
    assert "not permitted" in graphed.failed
    assert "replay" not in cuda.log


def test_only_batches_of_known_size_are_recorded() -> None:
    """A training loop's come as they are."""
    cuda = torch.device("cuda")  # a module without parameters goes there without CUDA
    module = nn.Identity()
    assert Runner(module, cuda, Arithmetic(), standard=True)._run is module
    assert Runner(module, cuda, Arithmetic(batch_size=4))._run is module, "another network may wait for the GPU"
    assert Runner(module, cuda, Arithmetic(batch_size=4), standard=True)._run is not module
    assert Runner(module, CPU, Arithmetic(batch_size=4), standard=True)._run is module


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_in_every_precision(pair: tuple[str, str], precision: str) -> None:
    exact = fidtool.compute(*pair, device="cuda", cache=False)
    found = fidtool.compute(*pair, device="cuda", precision=precision, cache=False)
    again = fidtool.compute(*pair, device="cuda", precision=precision, num_workers=2, cache=False)
    assert found.fid == again.fid
    assert found.fid == pytest.approx(exact.fid, rel=0.05 if precision != "fp32" else 1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_passes_give_the_bits_of_called_ones() -> None:
    cuda = torch.device("cuda")
    module = Inception(load_weights(None, print).state)
    with repeatable(), torch.inference_mode():
        runner = Runner(module, cuda, Arithmetic(batch_size=4), standard=True)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            x = torch.rand(4, 3, 299, 299, generator=generator).to(cuda).contiguous(memory_format=torch.channels_last)
            assert torch.equal(runner(x), runner.module(x))


def test_numbers_survive_the_way_through_numpy() -> None:
    """bfloat16 has no counterpart in NumPy: features are float32 before anything keeps them."""
    runner = Runner(nn.Flatten(), CPU, Arithmetic("bf16"))
    assert np.isfinite(runner(torch.ones(2, 3, 4, 4)).float().numpy()).all()
