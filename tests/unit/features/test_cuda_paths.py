"""CUDA streams and graphs, with a stand-in for torch.cuda on machines without a GPU."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from fidtool.features import device
from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.runner import Arithmetic, Graphed, Runner
from fidtool.features.torch_state import computing_on, repeatable
from support.fake_cuda import FakeCuda

CPU = torch.device("cpu")
SECOND = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_at_most_two_batches_are_copied_on_a_second_stream(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: cuda.log.append(f"kept for {stream}"))
    move = device.StreamedTransfer(CPU)
    for number in range(3):
        pixels = torch.full((4,), number, dtype=torch.uint8)
        assert torch.equal(move(pixels), pixels)
        cuda.log.append(f"network {number}")
    copied = ["on beside:0", "back on default:0", "default:0 waits for beside:0", "kept for default:0"]
    assert cuda.log == [
        *("event 1 on default:0", *copied, "network 0"),
        *("host waits for event 1", "event 2 on default:0", *copied, "network 1"),
        *("host waits for event 2", "event 3 on default:0", *copied, "network 2"),
    ]
    move.await_room()
    assert cuda.log[-1] == "host waits for event 3", "the wait comes before the copy, which then does not wait"
    assert isinstance(device.transfer_to(torch.device("cuda")), device.StreamedTransfer)
    assert not isinstance(device.transfer_to(CPU), device.StreamedTransfer)


# --- Graphs ----------------------------------------------------------------------------------------------------------


class Counting:
    """A function of a batch that counts its calls and can fail while it is captured."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.calls = cuda, 0
        self.seen: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        results = x.sum((1, 2, 3)), x.amax((1, 2, 3))
        self.seen += map(weakref.ref, (x, *results))
        if self.cuda.fails == "middle" and self.cuda.capturing:
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with …")
        return results


def batch(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 3, 4, 4, generator=generator).contiguous(memory_format=torch.channels_last)


def same(first: Any, second: Any) -> bool:
    return all(map(torch.equal, first, second))


def test_a_pass_is_captured_once_checked_and_replayed(cuda: FakeCuda) -> None:
    run = Counting(cuda)
    graphed = Graphed(run, CPU)
    before = torch.get_rng_state()
    first = graphed(batch())
    assert graphed.failed == ""
    assert run.calls == 6, "two to warm up, one to capture, three to compare with"
    assert torch.equal(torch.get_rng_state(), before)
    assert same(first, run(batch()))
    later = graphed(torch.zeros_like(batch()))
    assert run.calls == 7, "a replay does not call the function"
    assert same(later, run(torch.zeros_like(batch())))
    assert same(first, run(batch())), "results of earlier batches are not overwritten"
    recording = graphed._recording
    assert recording is not None
    assert recording._input.is_contiguous(memory_format=torch.channels_last)
    assert cuda.log.count("capture") == 1
    assert cuda.log.count("replay") == 5
    assert "empty the cache" not in cuda.log


def test_streams_are_in_order_during_the_capture(cuda: FakeCuda) -> None:
    Graphed(Counting(cuda), CPU)(batch())
    own = ["beside:0 waits for default:0", "on beside:0", "on beside:0", "capture", "back on beside:0"]
    assert cuda.log == [*own, "back on default:0", "default:0 waits for beside:0", *["replay"] * 4]
    assert repr(cuda.current_stream()) == "default:0"


def test_each_device_captures_on_its_own_stream(cuda: FakeCuda) -> None:
    """torch's default stream for captures belongs to the device of the first one."""
    for index in (0, 1, 0):
        where = torch.device("cuda", index)
        run = Counting(cuda)
        with computing_on(where):
            graphed = Graphed(run, where)
            assert same(graphed(batch()), run(batch()))
        assert graphed.failed == ""
    assert cuda.captures == [(0, 0), (1, 1), (0, 0)]


@pytest.mark.parametrize("leaves_pool", [False, True], ids=["torch cleans up", "torch leaves the pool"])
@pytest.mark.parametrize("fails", ["begin", "middle", "end"])
def test_a_failed_capture_leaves_nothing_behind(cuda: FakeCuda, fails: str, leaves_pool: bool) -> None:
    cuda.fails, cuda.leaves_pool = fails, leaves_pool
    program = cuda.generator.state
    run = Counting(cuda)
    graphed = Graphed(run, CPU)
    x = batch()
    first = graphed(x)
    assert same(first, run(x))
    reasons = {"begin": "operation not permitted", "middle": "operation not permitted when stream is capturing"}
    assert graphed.failed == reasons.get(fails, "CUDA error: operation failed due to a previous error during capture")
    alive = [each() for each in run.seen[:9] if each() is not None]
    assert all(any(each is kept for kept in (x, *first)) for each in alive), "tensors of the capture are still there"
    assert cuda.log[-3:] == ["synchronize 0", "reset", "empty the cache"]
    assert cuda.capturing == set(), "torch still considers the capture to be running"
    assert len(cuda.released) == 1
    assert repr(cuda.current_stream()) == "default:0"
    assert cuda.generator.state is program
    assert program.usable, "the program can draw random numbers"
    made = cuda.log.count("capture")
    assert same(graphed(batch(1)), run(batch(1)))
    assert cuda.log.count("capture") == made, "a failed capture is not repeated"
    assert "replay" not in cuda.log


@pytest.mark.parametrize("fails", ["begin", "middle", "end"])
def test_no_reference_to_a_failed_graph_remains(cuda: FakeCuda, fails: str) -> None:
    cuda.fails = fails
    graphed = Graphed(Counting(cuda), CPU)
    gc.disable()  # not left to the garbage collector
    try:
        graphed(batch())
        assert [graph() for graph in cuda.graphs] == [None]
    finally:
        gc.enable()


def test_each_step_after_a_failure_is_tried(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    cuda.fails = "end"
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    Graphed(Counting(cuda), CPU)(batch())
    assert {"reset", "empty the cache"} <= set(cuda.log)


def test_the_reason_is_not_an_exception_of_the_program(cuda: FakeCuda) -> None:
    cuda.fails = "end"
    graphed = Graphed(Counting(cuda), CPU)
    try:
        raise ValueError("of the program")
    except ValueError:
        graphed(batch())
    assert graphed.failed.startswith("CUDA error: operation failed")


@pytest.mark.parametrize("replays", ["stale", "wrong"])
def test_a_recording_with_other_results_is_not_used(cuda: FakeCuda, replays: str) -> None:
    cuda.replays = replays
    run = Counting(cuda)
    graphed = Graphed(run, CPU)
    for seed in range(3):
        assert same(graphed(batch(seed)), run(batch(seed)))
    assert graphed.failed == "the recording does not repeat the network's results"
    assert cuda.log.count("capture") == 1
    assert cuda.log[-3:] == ["synchronize 0", "reset", "empty the cache"]


def test_an_unrecordable_result_that_is_not_a_number_is_equal_to_itself(cuda: FakeCuda) -> None:
    graphed = Graphed(lambda x: x.sum((1, 2, 3)) * float("nan"), CPU)
    assert graphed(batch()).isnan().all()
    assert graphed.failed == ""


def test_errors_of_fidtool_are_not_taken_for_failed_captures(cuda: FakeCuda) -> None:
    from fidtool.errors import RunError

    def run(x: torch.Tensor) -> torch.Tensor:
        raise RunError("no compiler")

    with pytest.raises(RunError, match="no compiler"):
        Graphed(run, CPU)(batch())


def test_moving_a_network_drops_its_graph(cuda: FakeCuda) -> None:
    runner = Runner(nn.Identity(), SECOND, Arithmetic(batch_size=2), standard=True)
    runner(batch())
    graphed = runner._graphed
    assert graphed is not None
    assert graphed._recording is not None
    runner.on(torch.device("cuda", 0))
    assert graphed._recording is None


def test_nothing_is_captured_under_autocast(cuda: FakeCuda) -> None:
    seen = []

    class Watching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((torch.is_autocast_enabled("cuda"), torch.cuda.current_device()))
            return x.sum((1, 2, 3))

    runner = Runner(Watching(), SECOND, Arithmetic(batch_size=2), standard=True)
    torch.set_autocast_enabled("cuda", True)
    try:
        runner(batch())
        assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert runner.unrecorded == ""
    assert set(seen) == {(False, 1)}
    assert cuda.current == 0


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_capture_that_fails_on_a_gpu_leaves_it_usable() -> None:
    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum((1, 2, 3)) + float(x[0, 0, 0, 0])  # waits for the GPU, which a capture does not allow

    cuda = torch.device("cuda")
    with repeatable():
        runner = Runner(Waiting(), cuda, Arithmetic(batch_size=2), standard=True)
        x = batch().to(cuda)
        assert torch.equal(runner(x), runner.module(x))
        assert "captur" in runner.unrecorded
        torch.rand(4, device=cuda)
        torch.cuda.empty_cache()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
