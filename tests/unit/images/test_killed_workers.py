"""Decoding workers that die are reported in one line, regardless of which error occurs first, and never waited for."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fidtool.distributed import signals
from fidtool.errors import FidtoolError, RunError
from fidtool.images import loader, workers
from fidtool.images.batches import PlannedBatch, plan_batches
from fidtool.images.decoded import DecodedBatch, DecodeOptions
from fidtool.images.loader import LoadOptions, load
from fidtool.images.workers import Workers
from fidtool.sources.folder import list_folder
from fidtool.sources.image_set import ImageSet
from support.pictures import make_pictures
from support.processes import PATIENCE, wait_until

DIED = (
    r"^a decoding worker died \(process \d+: SIGKILL\): it was killed, ran out of memory, or /dev/shm is too small; "
    r"try num_workers=0$"
)
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
"""Errors that receiving a result may raise if its worker has died."""


@pytest.fixture(autouse=True)
def workers_end() -> Iterator[None]:
    """Checks that no worker is left: as a fork, it would keep files of this process open."""
    yield
    wait_until(lambda: not multiprocessing.active_children(), "a worker is left")


def _sleep(seconds: float) -> Iterator[None]:
    yield time.sleep(seconds)


def outcome(error: Exception, act: Callable[[], None]) -> Exception:
    """Returns the exception that is raised if receiving raises ``error``, after calling ``act``."""

    class Pipe:
        kept: Any = None

        def send_bytes(self, task: object) -> None:
            pass

        def recv(self) -> None:
            act()
            raise error

    started = Workers(_sleep, [10 * PATIENCE], 1, PATIENCE)
    process, Pipe.kept = started._workers[0].process, started._workers[0].pipe
    started._workers[0] = workers._Worker(process, Pipe())  # type: ignore[arg-type]
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            next(started)
    finally:
        started.end()
    return caught.value


def kill_a_worker() -> None:
    multiprocessing.active_children()[0].kill()


@pytest.mark.parametrize("error", NOTICED, ids=repr)
def test_a_broken_pipe_is_reported_as_the_workers_death(error: Exception) -> None:
    """The worker is killed just before, so it may still exist when its pipe is already closed."""
    found = outcome(error, kill_a_worker)
    assert isinstance(found, RunError)
    assert re.search(DIED, str(found)), found


@pytest.mark.parametrize("error", NOTICED, ids=repr)
def test_an_error_while_all_workers_live_is_not_a_worker_death(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, because this process cannot open more files."""
    monkeypatch.setattr(workers, "_DYING_SECONDS", 0.1)
    assert outcome(error, lambda: None) is error


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return list_folder(str(make_pictures(tmp_path / "images", 60)))


def delivered(images: ImageSet, count: int = 2) -> Generator[DecodedBatch, None, None]:
    batches = [PlannedBatch(number, indices) for number, indices in enumerate(plan_batches(images, 1))]
    return load(images, batches, LoadOptions(DecodeOptions(), count, patience=PATIENCE))


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_is_killed_at_any_point(images: ImageSet, seed: int) -> None:
    """A worker is killed after a random batch and a random delay, in different states of its communication."""
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


def die_while_sending(size: int) -> list[bytes]:
    def kill() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    return [bytes(size)]


def test_a_worker_that_is_killed_while_it_sends() -> None:
    """The pipe holds less than the result, so its reader waits for the rest."""
    started = Workers(die_while_sending, [1 << 24] * 4, 2, PATIENCE)
    for worker in started._workers:
        started._send(worker)
    wait_until(lambda: not started._workers[0].process.is_alive(), "the worker does not die")
    with pytest.raises(RunError, match=DIED):
        next(started)
    started.end()


def test_tasks_and_results_that_exceed_the_pipe() -> None:
    """A worker receives its next task while it sends a result, so that neither side waits for the other."""
    tasks = [bytes([number]) * (1 << 22) for number in range(8)]
    assert list(Workers(lambda task: [task.upper()], tasks, 2, PATIENCE)) == tasks


FROZEN = r"^the decoding workers produced no batch for 0.5 s \(timeout\): a worker is "


def test_a_frozen_worker_is_killed() -> None:
    started = Workers(_sleep, [0.0, 10 * PATIENCE], 1, 0.5)
    with pytest.raises(RunError, match=FROZEN):
        list(started)
    started.end()


def test_a_frozen_worker_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for storage. Another process that holds the worker's end of the pipe has the same effect."""
    started = Workers(_sleep, [10 * PATIENCE], 1, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(started._workers[0].process, "kill", lambda: None)
        with pytest.raises(RunError, match=FROZEN):
            next(started)
    started.end()


def test_only_waiting_for_workers_is_limited() -> None:
    """A remote store may need longer for the first tasks of all workers than one result may take."""
    limits: list[float] = []

    def tasks() -> Iterator[int]:
        for number in range(8):
            limits.append(started._limit)
            yield -number

    started: Workers[int, int] = Workers(lambda task: [abs(task)], tasks(), 4, PATIENCE)
    assert list(started) == list(range(8))
    assert limits == [math.inf] * 8


class StrangeError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one: object, other: object) -> None:
        super().__init__(f"{one} {other}")


def test_a_task_that_cannot_be_sent_or_received_is_an_error() -> None:
    unsendable: Workers[Any, Any] = Workers(lambda task: [task], [lambda: None], 1, PATIENCE)
    with pytest.raises(Exception, match="pickle"):
        next(unsendable)
    unsendable.end()
    unreadable: Workers[Any, Any] = Workers(lambda task: [task], [StrangeError(1, 2)], 1, PATIENCE)
    with pytest.raises(RunError, match=r"^TypeError: .*__init__.* \(in a decoding worker\)$"):
        next(unreadable)
    unreadable.end()


@pytest.mark.parametrize("command_line", [False, True])
def test_a_program_that_keeps_the_workers_ends(command_line: bool) -> None:
    """An exception's traceback may keep them. At exit, multiprocessing sends SIGTERM and waits, but its handlers are
    inherited: the command line's workers ignore it, and those of a training script may save a checkpoint."""
    script = f"""if True:
        import signal, sys, time
        from fidtool.distributed import signals
        from fidtool.images.workers import Workers
        signal.signal(signal.SIGTERM, lambda *_: None)
        if {command_line}:
            signals.take_over()
        kept = Workers(lambda seconds: [time.sleep(seconds)], [0.0, 0.0, 1e6, 1e6], 2, 1e6)
        next(kept)
    """
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE).returncode == 0


def test_killed_workers_leave_no_files(images: ImageSet) -> None:
    """multiprocessing creates a folder in each process that sends a tensor."""
    script = f"""if True:
        from fidtool.images.batches import PlannedBatch
        from fidtool.images.decoded import DecodeOptions
        from fidtool.images.loader import LoadOptions, load
        from fidtool.sources.folder import list_folder
        batches = [PlannedBatch(number, [number]) for number in range(60)]
        for batch in load(list_folder({images.path!r}), batches, LoadOptions(DecodeOptions(), 2)):
            if batch.number == 5:
                break
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket may have at most 107 characters
        environment = {**os.environ, "TMPDIR": folder}
        subprocess.run([sys.executable, "-c", script], env=environment, timeout=PATIENCE, check=True)
        assert not os.listdir(folder)


def test_a_daemonic_process_decodes_itself(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing does not let it start others."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    said: list[str] = []
    batches = [PlannedBatch(0, range(4))]
    (batch,) = load(images, batches, LoadOptions(DecodeOptions(), 2, complain=said.append))
    assert len(batch.sizes) == 4
    assert said == [
        "cannot start decoding workers (daemonic processes are not allowed to have children): decoding in the main "
        "process"
    ]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("no such codec")])
def test_an_error_inside_a_worker_is_reported_unchanged(
    images: ImageSet, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Iterator[DecodedBatch]:
        raise error

    monkeypatch.setattr(loader, "decode_parts", fail)  # workers are forks, so it applies to them
    with pytest.raises(FidtoolError) as caught:
        list(delivered(images))
    assert str(caught.value) == f"{type(error).__name__}: {error} (in a decoding worker)"
    with pytest.raises(type(error)) as plain:
        list(delivered(images, 0))
    assert plain.value is error


def test_a_result_that_cannot_be_sent_is_an_error_inside_the_worker() -> None:
    started: Workers[int, Any] = Workers(lambda _: [lambda: None], [0], 1, PATIENCE)
    with pytest.raises(RunError, match=r"^\w+Error: .*pickle.* \(in a decoding worker\)$"):
        next(started)
    started.end()


def test_workers_that_ignore_sigterm_end_with_the_error(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the command line do."""
    monkeypatch.setattr(signals, "taken_over", lambda: True)
    monkeypatch.setattr(loader, "decode_parts", lambda *_: (_ for _ in ()).throw(RuntimeError("no such codec")))
    with pytest.raises(RunError, match="no such codec"):
        next(delivered(images))
    assert not multiprocessing.active_children()


def test_workers_draw_different_random_numbers() -> None:
    """A Dataset may augment its images at random; with equal seeds, workers would produce duplicates."""
    drawn = list(Workers(lambda _: [random.random()], range(4), 4, PATIENCE))
    assert len(set(drawn)) == 4
    assert drawn == list(Workers(lambda _: [random.random()], range(4), 4, PATIENCE)), "the same in each run"
