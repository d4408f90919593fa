"""Copies to host memory that do not make the host wait, with stand-ins for torch.cuda on machines without a GPU."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import FakeTensorMode

from fidtool.features import readback
from fidtool.features.readback import Readback, read_back


class _Stream:
    """A CUDA stream that notes what happens to it."""

    log: list[str]

    def __init__(self, device: object = None, name: str = "side") -> None:
        self.name = name

    def wait_stream(self, other: _Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class _Event:
    log: list[str]
    passed = False

    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "an event that spins while it waits uses a core"

    def record(self, stream: _Stream) -> None:
        self.log.append(f"event on {stream.name}")

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.log.append("host waits")
        self.passed = True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    log: list[str] = []
    monkeypatch.setattr(_Stream, "log", log, raising=False)
    monkeypatch.setattr(_Event, "log", log, raising=False)

    @contextlib.contextmanager
    def within(stream: _Stream) -> Iterator[None]:
        log.append(f"on {stream.name}:")
        yield
        log.append("back on work")

    work = _Stream(name="work")
    fakes = {"Stream": _Stream, "Event": _Event, "stream": within, "current_stream": lambda _: work}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: log.append(f"held for {stream.name}"))
    readback._stream.cache_clear()
    yield log
    readback._stream.cache_clear()


def test_the_copy_waits_for_the_work_and_the_host_waits_for_nothing(log: list[str]) -> None:
    with FakeTensorMode():
        copies = [read_back(torch.zeros(3, 2, device="cuda")) for _ in range(2)]
        once = ["side waits for work", "on side:", "event on side", "back on work", "held for side"]
        assert log == once * 2, "one stream for all copies"
        assert not copies[0].ready()
        host = copies[0].tensor()
        assert log[len(once) * 2 :] == ["host waits"]
        assert (host.device.type, host.shape) == ("cpu", (3, 2))
        assert copies[0].ready()
        copies[0].tensor()
        assert log.count("host waits") == 1


def test_a_tensor_on_the_host_is_not_copied(log: list[str]) -> None:
    with torch.inference_mode():
        rows = torch.rand(3, 2)
    there = read_back(rows)
    assert there.ready()
    assert there.tensor().data_ptr() == rows.data_ptr()
    assert there.tensor().numpy().tolist() == rows.tolist()
    assert log == []


def test_a_copy_on_its_way_can_be_copied_and_pickled(log: list[str]) -> None:
    """A metric of a training loop may be copied at any time."""
    for duplicate in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        original = Readback(torch.arange(3.0), _Event(blocking=True))  # type: ignore[arg-type]
        other = duplicate(original)
        assert log.pop() == "host waits"
        assert other.ready()
        assert other.tensor().tolist() == [0, 1, 2]
        assert other.tensor().data_ptr() != original.tensor().data_ptr()
    assert log == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_from_a_gpu_are_complete() -> None:
    matrix = torch.rand(2000, 2000, device="cuda")
    copies = []
    for number in range(8):
        matrix = torch.mm(matrix, matrix).clamp_(0, 1) + number
        copies.append((read_back(matrix), matrix.sum()))
    for each, expected in copies:
        assert each.tensor().is_pinned()
        assert each.tensor().cuda().sum() == expected
