"""The forward passes of all networks of a run, which images go through piece by piece."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fidtool.errors import prefix_errors
from fidtool.features.extractor import Extractor, LayerFeatures
from fidtool.features.resize import ImageTensors
from fidtool.system.background import DaemonThreads

Item = TypeVar("Item")
GroupFeatures = Sequence[LayerFeatures]
"""Feature vectors of groups of images."""
# The inputs of each network for each group of images of a piece.
_Inputs = list[list[ImageTensors]]
# How long an exception waits for running passes, which may never end.
_LEAVING_SECONDS = 1.0


class _StoppedError(Exception):
    """Raised to leave `ForwardPasses.run` early."""


@dataclass(eq=False)
class ForwardPasses(Generic[Item]):
    """Runs forward passes over batches, in order. Each image is decoded once for all networks.

    The pieces of a batch are resized as they are read, so that all its images need not be in memory
    at the same time.

    Args:
        threads: number of threads; 0 runs the passes in the calling thread.
        images: context manager that returns the groups of images of a piece on the device; called
            in any thread.
        is_last: whether a piece is the last of its batch.
        stop: whether to stop early, without waiting for running work.
        timer: returns a context manager that times the networks' work; called in any thread.
        name: returns the name of a batch, given its pieces, for messages.
    """

    extractors: Sequence[Extractor]
    threads: int
    images: Callable[[Item], contextlib.AbstractContextManager[Sequence[ImageTensors]]]
    is_last: Callable[[Item], bool] = lambda item: True
    stop: Callable[[], bool] = lambda: False
    timer: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    name: Callable[[Sequence[Item]], str] = lambda batch: ""

    _pool: DaemonThreads = field(init=False)
    _jobs: deque[Future[Any]] = field(default_factory=deque, init=False)

    def run(self, pieces: Iterator[Item]) -> Generator[tuple[Item, GroupFeatures], None, None]:
        """Yield the pieces, which are read in the calling thread, with the feature vectors of each
        group of images.

        There are none for a piece without images.
        """
        batch: list[Item] = []
        inputs: list[Future[_Inputs]] = []
        running: deque[tuple[list[Item], Future[list[GroupFeatures]]]] = deque()
        # Here, because a run that never begins would leave the threads.
        self._pool = DaemonThreads(self.threads, uses_torch=True)
        try:
            for piece in pieces:
                batch.append(piece)
                inputs.append(self._submit(self._submit_inputs, piece))
                if not self.is_last(piece):
                    if len(inputs) > self.threads:  # so that few pieces wait to be resized
                        self._wait(inputs[-1 - self.threads])
                    continue
                running.append((batch, self._submit(self._features, batch, inputs)))
                batch = []
                inputs = []
                while running and (len(running) > self.threads or running[0][1].done()):
                    yield from self._results(*running.popleft())
            while running:
                yield from self._results(*running.popleft())
        except _StoppedError:
            return
        finally:
            for job in self._jobs:
                job.cancel()
            self._jobs.clear()
            self._pool.close(0.0 if self.stop() else _LEAVING_SECONDS)

    def finish(self) -> None:
        """Wait until no thread works, so that torch's settings can be changed; not if the passes
        are to stop.
        """
        with contextlib.suppress(_StoppedError):
            while self._jobs:
                self._wait(self._jobs.popleft())

    def _submit(self, work: Callable[..., Any], *items: Any) -> Future[Any]:
        if self.stop():
            raise _StoppedError
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        self._jobs.append(self._pool.submit(work, *items))
        return self._jobs[-1]

    def _submit_inputs(self, piece: Item) -> _Inputs:
        with self.images(piece) as groups, self.timer():
            return [
                [network.preprocess(images) for network in self.extractors]
                for images in groups
                if len(images)
            ]

    def _features(
        self, batch: Sequence[Item], pieces: Sequence[Future[_Inputs]]
    ) -> list[GroupFeatures]:
        """The features of the pieces of a batch. Submitted earlier, they are done, or other threads
        work on them.
        """
        inputs = [piece.result() for piece in pieces]
        with_images = [groups for groups in inputs if groups]
        whole: list[LayerFeatures] = []
        with self.timer(), prefix_errors(self.name(batch)):
            for group in zip(*with_images, strict=True):  # the inputs of the pieces
                vectors: LayerFeatures = {}
                for network, *parts in zip(self.extractors, *group, strict=True):
                    vectors |= network.forward_layers(parts)
                whole.append(vectors)
        features: list[GroupFeatures] = []
        stop = 0
        for groups in inputs:
            start = stop
            if groups:
                stop += len(groups[0][0])
            features.append(
                [{layer: rows[start:stop] for layer, rows in group.items()} for group in whole]
            )
        return features

    def _results(
        self, batch: Sequence[Item], features: Future[list[GroupFeatures]]
    ) -> Iterator[tuple[Item, GroupFeatures]]:
        self._wait(features)
        return zip(batch, features.result(), strict=True)

    def _wait(self, job: Future[Any]) -> None:
        while not self.stop():
            if wait([job], 0.1).done:
                return
        raise _StoppedError
