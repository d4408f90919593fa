"""Decoding workers that die or freeze are reported in one line, and never waited for."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, RunError
from fidtool.reading import loader, workers
from fidtool.reading.batches import plan_batches
from fidtool.reading.decode import DecodeOptions
from fidtool.reading.loader import Piece, load_pieces
from fidtool.reading.workers import WorkerMemory, Workers
from fidtool.sources.image_set import ImageSet
from fidtool.sources.listing import list_folder
from fidtool.system import background
from support.pictures import make_pictures
from support.processes import PATIENCE, wait_until

DIED = (
    r"^a decoding worker died \(process \d+: SIGKILL\): it was killed or ran out of memory; "
    r"try num_workers=0$"
)


@pytest.fixture(autouse=True)
def workers_end() -> Iterator[None]:
    """Checks that no worker is left: as a fork, it would keep files of this process open."""
    yield
    wait_until(lambda: not multiprocessing.active_children(), "a worker is left")


def alone(work: Callable[[Any], Any]) -> Callable[[Any, WorkerMemory], Any]:
    """What needs no memory of both processes, as the work of a worker."""
    return lambda task, _: work(task)


def filled(task: tuple[int, int], memory: WorkerMemory) -> NDArray[np.uint8]:
    """Returns an array of this size and value in the buffer."""
    size, value = task
    for part in np.array_split(np.full(size, value, np.uint8), 2):
        assert np.array_equal(memory.append(part), part)
    return memory.take()


def computed(work: Callable[[Any], Any], tasks: Iterable[Any], count: int) -> list[Any]:
    started = Workers(alone(work), count, PATIENCE)
    try:
        sent = [started.send(task) for task in tasks]
        return [started.receive()[0] for _ in sent]
    finally:
        started.end()


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return list_folder(str(make_pictures(tmp_path / "images", 60)))


def delivered(images: ImageSet, count: int = 2) -> Generator[Piece, None, None]:
    batches = plan_batches(images, 1)
    return load_pieces(images, batches, DecodeOptions(), count, PATIENCE)


def test_a_default_timeout_of_the_program() -> None:
    """It makes each new socket non-blocking, also one of a worker's pipe. The arrays are sent by
    descriptors.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        arrays = computed(lambda number: np.full(1 << 21, number, dtype=np.uint8), range(8), 2)
    finally:
        socket.setdefaulttimeout(before)
    assert [int(array[0]) for array in arrays] == list(range(8))


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_that_is_killed_at_any_point(images: ImageSet, seed: int) -> None:
    """A worker is killed after a random batch and a random delay, in different states of its
    communication.
    """
    draw = random.Random(seed)
    after, delay, numbers = draw.randrange(54), draw.uniform(0, 0.002), []

    def take_all() -> None:
        for batch in delivered(images):
            numbers.append(batch.number)
            if batch.number == after:
                victim = draw.choice(multiprocessing.active_children())
                time.sleep(delay)
                victim.kill()

    with pytest.raises(RunError, match=DIED):
        take_all()
    assert numbers == list(range(len(numbers))), "the earlier batches are correct"


def die_while_sending(size: int) -> bytes:
    def kill() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    return bytes(size)


def test_a_worker_that_is_killed_while_it_sends() -> None:
    """The pipe holds less than the result, so its reader waits for the rest."""
    started = Workers(alone(die_while_sending), 2, PATIENCE)
    for _ in range(4):
        started.send(1 << 24)
    wait_until(lambda: not multiprocessing.active_children(), "the workers do not die")
    with pytest.raises(RunError, match=DIED):
        started.receive()
    started.end()


def test_tasks_and_results_that_exceed_the_pipe() -> None:
    """A worker receives its next task while it sends a result, so that neither side waits for the
    other.
    """
    tasks = [bytes([number]) * (1 << 22) for number in range(8)]
    assert computed(bytes.upper, tasks, 2) == tasks


FROZEN = r"^the decoding workers produced no batch for 0.5 s \(timeout\): a worker is "


def test_a_frozen_worker_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for storage. Another process that holds the worker's end of the pipe has the same
    effect.
    """
    started = Workers(alone(time.sleep), 1, 0.5)
    started.send(10 * PATIENCE)
    (process,) = multiprocessing.active_children()
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda: None)
        with pytest.raises(RunError, match=FROZEN):
            started.receive()
    started.end()


def test_a_program_that_keeps_the_workers_ends() -> None:
    """An exception's traceback may keep them. At exit, multiprocessing sends SIGTERM and waits, but
    its handlers are inherited: those of a training script may save a checkpoint.
    """
    script = """if True:
        import signal, time
        from fidtool.reading.workers import WorkerMemory, Workers
        signal.signal(signal.SIGTERM, lambda *_: None)
        kept = Workers(lambda seconds, _: time.sleep(seconds), 2, 1e6)
        for seconds in (0.0, 0.0, 1e6, 1e6):
            kept.send(seconds)
        kept.receive()
    """
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE).returncode == 0


def test_an_error_inside_a_worker_is_reported_unchanged(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EIO, "Input/output error")

    def fail(*_: object) -> Piece:
        raise error

    monkeypatch.setattr(loader, "decode_batch", fail)  # workers are forks, so it applies to them
    with pytest.raises(FidtoolError) as caught:
        list(delivered(images))
    assert str(caught.value) == "OSError: [Errno 5] Input/output error (in a decoding worker)"


def test_a_result_that_cannot_be_sent_ends_its_worker() -> None:
    started: Workers[int, Any] = Workers(alone(lambda _: lambda: None), 1, PATIENCE)
    started.send(0)
    with pytest.raises(RunError, match=r"^a decoding worker died \(process \d+: status 1\)"):
        started.receive()
    started.end()


def test_workers_draw_different_random_numbers() -> None:
    """A Dataset may augment its images at random; with equal seeds, workers would produce
    duplicates.
    """
    drawn = computed(lambda _: random.random(), range(4), 4)
    assert len(set(drawn)) == 4
    assert drawn == computed(lambda _: random.random(), range(4), 4), "the same in each run"


@pytest.mark.parametrize("shared", ["all", "none", "small ones"])
def test_large_arrays_are_the_same_in_memory_of_both_processes_and_through_the_pipe(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def truncate(file: int, size: int) -> None:
        if size > workers.KEPT_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.truncate(file, size)

    if shared == "none":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif shared == "small ones":
        monkeypatch.setattr(os, "ftruncate", truncate)

    def work(size: int, memory: WorkerMemory) -> list[NDArray[Any]]:
        spare = filled((5, 5), memory)  # is not in the result
        return [
            filled((size, 1), memory),
            np.arange(size),
            filled((2 * size, 2), memory),
            spare[:2].copy(),
        ]

    started = Workers(work, 2, PATIENCE)
    sizes = [10, 1 << 20, 9, (1 << 20) + 1, 1 << 24, 7]
    for size in sizes:
        started.send(size)
    for size in sizes:
        (first, own, second, spare), buffer = started.receive()
        assert (first.shape, second.shape, spare.tolist()) == ((size,), (2 * size,), [5, 5])
        assert (first == 1).all()
        assert (second == 2).all()
        assert np.array_equal(own, np.arange(size))
        first[0] = 3  # it is writable
        assert (buffer.memory is None) == (shared == "none")
        buffer.free()
    started.end()


def test_a_buffer_that_is_free_is_used_again() -> None:
    """Those in use are not written to, in whatever order they are freed."""
    count, draw = 2, random.Random(0)
    started = Workers(filled, count, PATIENCE)
    in_use: list[tuple[Any, Any]] = []
    buffers = set()
    for number in range(40):
        started.send(((1 << 20) + 1000 * number, number))
    for number in range(40):
        in_use.append(started.receive())
        buffers.add(in_use[-1][1])
        assert in_use[-1][0].size == (1 << 20) + 1000 * number
        for array, _ in in_use:
            assert (array == array[0]).all()
        if len(in_use) == 3:
            _, buffer = in_use.pop(draw.randrange(3))
            buffer.free()
    assert len(buffers) == 40, "all tasks were sent before"
    for number in range(40):
        started.send((1 << 20, number))
        array, buffer = started.receive()
        assert (array == number).all()
        assert buffer in buffers
        buffer.free()
    started.end()


def test_workers_that_cannot_be_killed_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for storage: sixteen of them took sixteen times as long as one."""
    now, waited = [0.0], list[float]()

    def join(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    stuck: Workers[int, int] = Workers(alone(abs), 4, PATIENCE)
    with monkeypatch.context() as patched:
        for process in multiprocessing.active_children():
            patched.setattr(process, "kill", lambda: None)
            patched.setattr(process, "join", join)
        patched.setattr(background, "time", SimpleNamespace(monotonic=lambda: now[0]))
        stuck.end()
    assert len(waited) == 4
    assert sum(waited) == workers.DYING_SECONDS


def test_buffers_are_unmapped_at_the_end() -> None:
    """Also those that are freed later. The collector of cycles may be off, or take its time."""
    gc.disable()
    try:
        started = Workers(filled, 1, PATIENCE)
        for number in range(4):
            started.send((1 << 21, number))
        buffers = [started.receive()[1] for _ in range(4)]
        buffers[0].free()
        started.end()
        del started
        buffers[1].free()
        left = [weakref.ref(buffer) for buffer in buffers]
        del buffers
        assert not any(buffer() for buffer in left)
    finally:
        gc.enable()


def test_memory_of_large_buffers_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "KEPT_BYTES", 1 << 21)
    for size, kept in ((1 << 21, True), ((1 << 21) + 4096, False)):
        started = Workers(filled, 1, PATIENCE)
        started.send((size, 1))
        array, buffer = started.receive()
        assert array.all()
        buffer.free()
        assert array.any() == kept, "removed pages are zero"
        started.send((size, 1))
        array, _ = started.receive()
        assert array.all(), "it is used again"
        started.end()


def test_memory_that_the_system_does_not_take_back() -> None:
    """As it refuses to where a program has locked all its memory."""

    class Locked(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    worker = SimpleNamespace(idle=[])
    with Locked(-1, workers.KEPT_BYTES + 1) as memory:
        buffer = workers.Buffer(1, lambda: worker, memory)  # type: ignore[arg-type]
        buffer.free()
    assert worker.idle == [buffer]


class UnprintableError(Exception):
    """An exception of a program, of which a traceback cannot be made."""

    def __getattr__(self, name: str) -> object:
        raise ZeroDivisionError(name)


def fail_unprintably(task: int, memory: WorkerMemory) -> int:
    raise RunError("what is wrong") from UnprintableError()


def test_a_cause_that_cannot_be_printed_does_not_end_the_worker() -> None:
    started: Workers[int, int] = Workers(fail_unprintably, 1, PATIENCE)
    started.send(0)
    with pytest.raises(RunError, match="what is wrong"):
        started.receive()
    started.end()
