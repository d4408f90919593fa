"""Decoding workers that die are reported in one line, regardless of which error occurs first."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, RunError
from fidtool.images import loader
from fidtool.images.batches import PlannedBatch, plan_batches
from fidtool.images.loader import DecodedBatch, DecodeOptions, WorkerWatch, load
from fidtool.sources.folder import list_folder
from fidtool.sources.image_set import ImageSet
from support.pictures import make_pictures
from support.processes import PATIENCE, wait_until

DIED = r"^a decoding worker died \(.+\): it was killed, ran out of memory, or /dev/shm is too small; try num_workers=0$"
NOTICED = [
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/torch_4711_1"),
    OSError("got end of file during message"),
    EOFError(),
    pickle.UnpicklingError("pickle data was truncated"),
    RuntimeError("received 0 items of ancdata"),
    RuntimeError("unable to open shared memory object </torch_4711_1> in read-only mode"),
]
"""Errors that may be raised instead of torch's own message."""


class Delivered(Iterator[DecodedBatch]):
    """Replaces the DataLoader's iterator: acts on its worker, then raises an error."""

    def __init__(self, error: Exception, act: Callable[[multiprocessing.Process], None] = lambda worker: None) -> None:
        self._error, self._act = error, act
        self._workers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(10 * PATIENCE,))]
        self._workers[0].start()

    def __next__(self) -> DecodedBatch:
        self._act(self._workers[0])  # type: ignore[arg-type]
        raise self._error

    def end(self) -> None:
        self._workers[0].kill()
        self._workers[0].join()


def outcome(delivered: Delivered) -> Exception:
    """Returns the exception that `WorkerWatch` raises."""
    watch = WorkerWatch(PATIENCE)
    try:
        with pytest.raises(Exception) as caught, watch.explained():  # noqa: PT011
            watch.next_of(delivered)
    finally:
        delivered.end()
    return caught.value


@pytest.mark.parametrize("error", NOTICED, ids=repr)
def test_a_broken_pipe_is_reported_as_the_workers_death(error: Exception) -> None:
    """The worker is killed just before, so it may still exist when its pipes are already closed."""
    found = outcome(Delivered(error, lambda worker: worker.kill()))
    assert isinstance(found, RunError)
    assert re.search(DIED, str(found)), found
    assert "SIGKILL" in str(found)


@pytest.mark.parametrize("error", NOTICED, ids=repr)
def test_an_error_while_all_workers_live_is_not_a_worker_death(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a broken connection to a remote store, which this process reads in the same call."""
    monkeypatch.setattr(loader, "_DYING_SECONDS", 0.1)
    assert outcome(Delivered(error)) is error


def test_torchs_own_message_is_recognised_anywhere() -> None:
    """torch raises from a signal handler, anywhere in the main thread."""
    watch = WorkerWatch(PATIENCE)
    with pytest.raises(RunError, match=DIED), watch.explained():
        raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. ")
    for other in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), BrokenPipeError("stdout")):
        with pytest.raises(type(other)), watch.explained():
            raise other


def test_the_other_workers_end_as_well() -> None:
    """If another worker died later, torch's signal handler would raise an error somewhere else in the program."""
    died, other = Delivered(EOFError(), lambda worker: worker.kill()), Delivered(EOFError())
    died._workers += other._workers
    try:
        with pytest.raises(RunError, match=DIED), (watch := WorkerWatch(PATIENCE)).explained():
            watch.next_of(died)
        assert [worker.exitcode for worker in died._workers] == [-signal.SIGKILL] * 2
    finally:
        other.end()


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return list_folder(str(make_pictures(tmp_path / "images", 60)))


@pytest.fixture(autouse=True)
def workers_end() -> Iterator[None]:
    """Checks that no worker is left: as a fork, it would keep files of this process open."""
    yield
    wait_until(lambda: not multiprocessing.active_children(), "a worker is left")


def delivered(images: ImageSet, watch: WorkerWatch, workers: int = 2) -> Iterator[DecodedBatch]:
    batches = [PlannedBatch(number, indices) for number, indices in enumerate(plan_batches(images, 1))]
    return load(images, batches, DecodeOptions(), workers, False, 1, watch, complain=print)


def test_a_lock_that_a_dead_worker_held(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's shutdown would wait for it forever. A thread holds it here, in place of the worker that is killed."""
    iterators: list[Iterator[DecodedBatch]] = []
    start, held, released = loader._start, threading.Event(), threading.Event()

    def hold() -> None:
        with iterators[0]._workers_done_event._cond:  # type: ignore[attr-defined]
            held.set()
            released.wait(PATIENCE)

    def started(*arguments: object) -> Iterator[DecodedBatch]:
        iterators.append(start(*arguments))  # type: ignore[arg-type]
        return iterators[0]

    monkeypatch.setattr(loader, "_start", started)
    holder = threading.Thread(target=hold)

    def take_all() -> None:
        for batch in delivered(images, watch):
            if batch.number == 1:
                holder.start()
                held.wait()
                multiprocessing.active_children()[0].kill()

    with pytest.raises(RunError, match=DIED), (watch := WorkerWatch(PATIENCE)).explained():
        take_all()
    iterators.clear()
    gc.collect()
    assert holder.is_alive(), "the shutdown waited until the lock was released"
    released.set()
    holder.join()
    assert not multiprocessing.active_children()


# torch's signal handler may raise during garbage collection, where the error is only reported as a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 14, 20, 27])
def test_a_worker_that_is_killed_at_any_point(images: ImageSet, after: int) -> None:
    """A worker is killed after ``after`` batches, in different states of its communication."""
    watch = WorkerWatch(PATIENCE)
    numbers = []

    def take_all() -> None:
        for batch in delivered(images, watch):
            numbers.append(batch.number)
            if batch.number == after:
                victims = multiprocessing.active_children()
                os.kill(victims[after % len(victims)].pid or 0, signal.SIGKILL)

    with pytest.raises(RunError, match=DIED), watch.explained():
        take_all()
    assert numbers == list(range(len(numbers))), "the earlier batches are correct"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("no such codec")])
def test_an_error_inside_a_worker_is_reported_unchanged(
    images: ImageSet, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> DecodedBatch:
        raise error

    monkeypatch.setattr(loader, "decode_batch", fail)  # workers are forks, so it applies to them
    watch = WorkerWatch(PATIENCE)
    try:
        with watch.explained():
            list(delivered(images, watch))
    except FidtoolError as caught:
        message = str(caught)
    assert message == f"{type(error).__name__}: {error} (in a decoding worker)"
    with pytest.raises(type(error)) as plain, watch.explained():
        list(delivered(images, watch, workers=0))
    assert plain.value is error


def test_workers_end_with_the_error_and_not_with_its_traceback(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers ignore SIGTERM, as under the command line, so they must be shut down explicitly."""
    monkeypatch.setattr(signals, "taken_over", lambda: True)
    monkeypatch.setattr(loader, "decode_batch", lambda *_: (_ for _ in ()).throw(RuntimeError("no such codec")))
    batches = delivered(images, WorkerWatch(PATIENCE))
    with pytest.raises(RuntimeError, match="no such codec"):
        next(batches)
    assert not multiprocessing.active_children()
