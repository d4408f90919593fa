"""A program's own code, which a run asks for images: when it runs, and under whose settings of torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.features.extractor import ForwardThreads, Networks
from fidtool.features.torch_state import repeatable
from support.caller_states import COUNT, default_device, make_place, metrics, pixels_of, setting
from support.command_line import Run
from support.places import TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def pixels(place: Path) -> list[NDArray[np.uint8]]:
    return pixels_of(place)


def test_a_programs_code_runs_while_no_network_does(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of threads, for one, is partly a setting of the whole process."""
    running: list[int] = []
    seen: set[tuple[int, int]] = set()
    features = Networks.features

    def noted(self: Networks, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        running.append(1)
        try:
            time.sleep(0.02)  # a network that the next image would overtake
            return features(self, images)
        finally:
            running.pop()

    def made() -> Iterator[NDArray[np.uint8]]:
        for image in pixels:
            seen.add((len(running), torch.get_num_threads()))
            yield image

    monkeypatch.setattr(Networks, "features", noted)
    with setting(torch.get_num_threads, torch.set_num_threads, 3):
        metrics(place, made(), TINY)
    assert seen == {(0, 3)}


def test_a_generator_may_be_inside_a_context_where_it_yields(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str]
) -> None:
    def state() -> tuple[object, ...]:
        modes = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.is_grad_enabled()
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
    """An iterable that is never at its end, and inside contexts of torch's."""

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
def test_an_iterable_that_is_not_at_its_end_leaves_nothing_on(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str], kept: bool
) -> None:
    """A training loop that went on in bfloat16 would not notice."""
    endless = Endless(pixels)
    given = iter(endless) if kept else endless
    fidtool.compute(place / "real", given, extractor=TINY, num=COUNT, cache=False)
    assert endless.closed_in == (() if kept else (True, True)), "closed under its own settings; a program's own is not"
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        fidtool.compute(place / "real", iter(pixels), extractor=TINY, cache=False)
        assert not torch.is_grad_enabled()


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "conv"), reason="torch 2.9 brought the settings")
def test_a_program_may_use_torchs_newer_settings_while_it_is_asked(place: Path, program: Run) -> None:
    """In a process of its own: torch remembers which generation of settings a program has used."""
    code = f"""
import torch, fidtool, numpy as np
from fidtool.features.extractor import Networks
seen, features = set(), Networks.features
def noted(self, images):
    seen.add(torch.backends.mkldnn.conv.fp32_precision)
    return features(self, images)
Networks.features = noted
def made():
    for n in range({COUNT}):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.conv.fp32_precision = "bf16"
        yield np.full((24, 24, 3), n, np.uint8)
evaluation = fidtool.compute({str(place / "real")!r}, made(), extractor={TINY!r}, cache=False, batch_size=2)
assert evaluation.results[0].count_fake == {COUNT}
assert seen <= {{"none", "ieee"}}, seen
"""
    ended = program(code)
    assert ended.status == 0, ended.stderr


def test_a_second_run_in_another_thread_is_refused(
    place: Path, pixels: list[NDArray[np.uint8]], environment: dict[str, str]
) -> None:
    """torch's settings are those of the process; in the same thread one run may be inside another."""
    refused: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(fidtool.InputError) as caught:
            fidtool.compute(place / "real", place / "fake", extractor=TINY)
        refused.append(str(caught.value))

    def made() -> Iterator[NDArray[np.uint8]]:
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        inside = fidtool.compute(place / "real", place / "fake", extractor=TINY, cache=False)
        assert inside.results[0].count_fake == COUNT
        yield from pixels

    alone = metrics(place, iter(pixels), TINY)
    assert metrics(place, made(), TINY) == alone
    assert "fidtool is already running in another thread" in refused[0]
    fidtool.compute(place / "real", place / "fake", extractor=TINY)


def test_a_forward_thread_has_one_intra_op_thread_whatever_is_set_after_it_began() -> None:
    """A thread asks for the number when it computes for the first time, and is told what any thread has set last."""
    before, go = torch.get_num_threads(), threading.Event()
    threads: ForwardThreads[int, int] = ForwardThreads(1, lambda _: go.wait() and torch.get_num_threads())
    try:
        with repeatable():
            future = threads.submit(0)
            while not future.running():
                time.sleep(0.001)
            torch.set_num_threads(3)
            go.set()
            assert future.result() == 1
    finally:
        go.set()
        threads.close(60.0)
        torch.set_num_threads(before)
