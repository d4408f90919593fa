"""Caller code that a run executes to get images: when it runs, and with which torch settings."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.features.extractor import Extractor
from support.caller_states import COUNT, default_device, make_place, metrics, pixels_of, setting
from support.places import FAULTY, TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def pixels(place: Path) -> list[NDArray[np.uint8]]:
    return pixels_of(place)


def test_caller_code_does_not_run_at_the_same_time_as_the_network(
    place: Path,
    pixels: list[NDArray[np.uint8]],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some settings, such as the number of threads, are partly global to the process."""
    running: list[int] = []
    seen: set[tuple[int, int]] = set()
    vectors = Extractor.forward_layers

    def noted(self: Extractor, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        running.append(1)
        try:
            time.sleep(0.02)  # long enough for the next image to be requested meanwhile
            return vectors(self, inputs)
        finally:
            running.pop()

    def made() -> Iterator[NDArray[np.uint8]]:
        for image in pixels:
            seen.add((len(running), torch.get_num_threads()))
            yield image

    monkeypatch.setattr(Extractor, "forward_layers", noted)
    with setting(torch.get_num_threads, torch.set_num_threads, 3):
        metrics(place, made(), TINY)
    assert seen == {(0, 3)}


def test_a_generator_may_yield_inside_a_torch_context(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str]
) -> None:
    def state() -> tuple[object, ...]:
        modes = (
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
        )
        return *modes, default_device(), torch.get_default_dtype(), torch.get_num_threads()

    found = []

    def made() -> Iterator[NDArray[np.uint8]]:
        with (
            torch.autocast("cpu", torch.bfloat16),
            torch.inference_mode(),
            torch.device("meta"),
            setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
            setting(torch.get_num_threads, torch.set_num_threads, 3),
        ):
            for image in pixels:
                found.append(state())
                yield image

    before, network = state(), f"{place / 'attention.py'}:network"
    assert metrics(place, made(), network) == metrics(place, place / "fake", network)
    assert set(found) == {(True, True, False, torch.device("meta"), torch.float64, 3)}
    assert state() == before


class Endless:
    """An endless iterable that yields inside torch contexts."""

    def __init__(self, pixels: list[NDArray[np.uint8]]) -> None:
        self.pixels, self.closed_in = pixels, ()

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            try:
                while True:
                    yield from self.pixels
            finally:
                self.closed_in = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("kept", [False, True], ids=["closed", "still open"])
def test_an_unfinished_iterable_does_not_leave_torch_contexts_active(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str], kept: bool
) -> None:
    """Otherwise a training loop would silently continue in bfloat16."""
    endless = Endless(pixels)
    given = iter(endless) if kept else endless
    fidtool.compute(place / "real", given, extractor=TINY, num=COUNT, cache=False)
    assert endless.closed_in == (() if kept else (True, True)), (
        "fidtool closes its own iterator, under the iterator's settings, but not the caller's"
    )
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        fidtool.compute(place / "real", iter(pixels), extractor=TINY, cache=False)
        assert not torch.is_grad_enabled()


def test_a_second_run_in_another_thread_is_refused(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str]
) -> None:
    """torch's settings are global to the process. A nested run in the same thread is allowed."""
    refused: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(fidtool.RunError) as caught:
            fidtool.compute(place / "real", place / "fake", extractor=TINY)
        refused.append(str(caught.value))

    def made() -> Iterator[NDArray[np.uint8]]:
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        inside = fidtool.compute(place / "real", place / "fake", extractor=TINY, cache=False)
        assert inside.results[0].fake.count == COUNT
        yield from pixels

    alone = metrics(place, iter(pixels), TINY)
    assert metrics(place, made(), TINY) == alone
    assert "fidtool is already running in another thread" in refused[0]
    fidtool.compute(place / "real", place / "fake", extractor=TINY)


FORKS = """
import json, multiprocessing, os, sys
import numpy as np, torch

images = np.random.default_rng(0).integers(0, 255, (40, 64, 64, 3), np.uint8)

def values(_):
    import fidtool
    from fidtool.training import FrechetInceptionDistance

    settings = {"extractor": sys.argv[1], "cache": False, "num_workers": 1, "diagnose": False}
    metric, pixels = FrechetInceptionDistance(sys.argv[1]), torch.from_numpy(images).permute(0, 3, 1, 2)
    metric.update(pixels, True)
    metric.update(pixels[:8], False)
    metric.persistent(True)
    identity = np.eye(300)
    return [
        fidtool.compute(images, images[:8], **settings).results[0].value("fid"),
        metric.compute().item(),
        metric.clone().compute().item(),
        len(metric.state_dict()),
        fidtool.frechet_distance(np.zeros(300), identity, np.ones(300), 2 * identity),
        len(fidtool.check(images[:8]).findings),
    ]

def values_of_a_fork(_):
    values(0)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(values(0)).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 9999))

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.ones(1 << 20).add_(1)  # starts torch's threads
    with multiprocessing.get_context("fork").Pool(1) as pool:  # before fidtool is imported
        first = pool.map(values, [0])[0]
    here = values(0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        second = pool.map(values_of_a_fork, [0])[0]
    print(first == here, second == here, here[0] == here[1])
"""


def test_a_fork_computes_without_its_parents_threads(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It would wait forever for threads that only its parent has."""
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, "forks.py", TINY]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment
    )
    assert ended.stdout.split() == ["True", "True", "True"], ended.stderr


STOPPED_FORK = """
import multiprocessing, os, signal, sys, time
import fidtool
import numpy as np

images = np.random.default_rng(0).integers(0, 255, (100, 8, 8, 3), np.uint8)

def work(network):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    fidtool.compute(images, images[:50], extractor=network, batch_size=1, num_workers=0, cache=False, diagnose=False)

def passes():
    return os.path.getsize("passes") if os.path.exists("passes") else 0

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork").Process(target=work, args=sys.argv[1:])
    fork.start()
    while passes() < 10:
        time.sleep(0.01)
    fork.terminate()
    fork.join()
    print(fork.exitcode, passes() < 100)
"""


def test_a_signal_handler_of_the_program_ends_the_run_of_a_fork(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Its main thread waits for the run, which would go on to its end after what the handler raises
    there.
    """
    (tmp_path / "fork.py").write_text(STOPPED_FORK)
    command = [sys.executable, "fork.py", FAULTY]
    environment = {**environment, "FORWARD_LOG": "passes", "FAULT_PACE": "0.05"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment
    )
    assert ended.stdout.split() == ["7", "True"], ended.stderr
