"""Forward passes in threads: their order, what waits for them, and their end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fidtool.errors import RunError
from fidtool.features.passes import ForwardPasses
from support.processes import PATIENCE


class Network:
    """Features are the sums of images of one pixel, once ``may_run`` is set. It stands for an
    extractor.
    """

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.may_run.set()
        self.computed: list[int] = []

    def preprocess(self, images: torch.Tensor) -> torch.Tensor:
        return images.float()

    def forward_layers(self, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        assert self.may_run.wait(PATIENCE)
        values = torch.cat(inputs).sum(dim=(1, 2))
        self.computed += values[:, 0].int().tolist()
        return {"features": values}


Item = tuple[int, bool]


def passes_of(network: Any, threads: int, **settings: Any) -> ForwardPasses[Item]:
    def images(piece: Item) -> contextlib.AbstractContextManager[list[torch.Tensor]]:
        number, _ = piece
        count = 0 if number < 0 else 1
        return contextlib.nullcontext([torch.full((count, 1, 1, 3), float(number))])

    return ForwardPasses([network], threads, images, lambda piece: piece[1], **settings)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_features_of_pieces_in_order(threads: int) -> None:
    """Batches of one to three pieces, of which some have no images."""
    pieces = [
        (0, True),
        (1, False),
        (2, False),
        (3, True),
        (-1, True),
        (5, False),
        (-1, True),
        (-1, False),
        (8, True),
    ]
    network = Network()
    found = list(passes_of(network, threads).run(iter(pieces)))
    assert [piece for piece, _ in found] == pieces
    for (number, _), groups in found:
        rows = [group["features"][:, 0].tolist() for group in groups]
        assert rows in ([[]], []) if number < 0 else rows == [[float(number)]]


def test_nothing_runs_after_finish() -> None:
    """Nor before: what the program's code may change is not used by any thread."""
    network = Network()
    passes = passes_of(network, 2)
    done: list[list[int]] = []

    def pieces() -> Iterator[Item]:
        for number in range(9):
            passes.finish()
            done.append(sorted(network.computed))
            yield number, True

    assert len(list(passes.run(pieces()))) == 9
    assert done == [[*range(number)] for number in range(9)]


def test_finish_does_not_wait_for_passes_that_are_to_stop() -> None:
    network, stop = Network(), threading.Event()
    passes = passes_of(network, 1, stop=stop.is_set)
    network.may_run.clear()

    def pieces() -> Iterator[Item]:
        yield 0, True
        stop.set()
        passes.finish()
        yield 1, True

    assert list(passes.run(pieces())) == []
    network.may_run.set()


def test_a_failure_names_its_batch_and_cancels_the_others() -> None:
    class Failing(Network):
        def forward_layers(self, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            if torch.cat(inputs).max() == 2:
                raise RunError("on purpose")
            return super().forward_layers(inputs)

    network = Failing()
    passes = passes_of(network, 1, name=lambda batch: "+".join(str(number) for number, _ in batch))
    pieces = [(0, True), (1, False), (2, True), *((number, True) for number in range(3, 9))]
    found = []
    with (
        pytest.raises(RunError, match=r"^1\+2: on purpose$"),
        contextlib.closing(passes.run(iter(pieces))) as run,
    ):
        found.extend(run)
    assert len(found) <= 1
    assert max(network.computed) <= 4, "few were submitted, and the rest is cancelled"


def test_no_thread_is_left_of_passes_that_never_begin() -> None:
    """Such as those of an iterable whose statistics do not fit into memory."""
    before = threading.active_count()
    passes = passes_of(Network(), 3)
    passes.finish()
    passes.run(iter([(0, True)])).close()
    assert threading.active_count() == before
