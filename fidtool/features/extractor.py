"""Networks on a device: pixels in, feature vectors out, for one network or for all networks of a run."""

from __future__ import annotations

import atexit
import hashlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from itertools import islice, takewhile
from typing import Any, Generic, TypeVar

import torch

from fidtool.distributed.replicas import named_tensors
from fidtool.errors import FidtoolError, RunError, option
from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.network import fixed_batch
from fidtool.features.preparation import Preparation
from fidtool.features.resize import network_input, resize
from fidtool.features.runner import Run, Runner
from fidtool.names import counted

Item = TypeVar("Item")
Result = TypeVar("Result")

_STOP_SECONDS = 0.1
"""Interval at which an early stop is checked."""
_LEAVING_SECONDS = 1.0
"""How long an exception waits for running passes, which may never end."""
_AT_EXIT_SECONDS = 2.0
"""How long the interpreter waits at exit for passes whose result is no longer needed."""
_all: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Extractor:
    """Computes feature vectors of batches of images.

    Args:
        runner: returns one tensor of features, or a tuple with one tensor per definition if there are several.
        definitions: the definitions of the features by layer; the first is that of `features`.
        preparation: how images are cropped and resized.
        offset, scale: a pixel value x in 0..255 enters the network as (x - offset) / scale.
        device: the device on which the network runs.

    Attributes:
        definitions, device: as passed by the caller.
    """

    def __init__(
        self,
        runner: Runner,
        definitions: Mapping[str, Definition],
        preparation: Preparation,
        offset: tuple[float, ...],
        scale: tuple[float, ...],
        device: Device,
    ) -> None:
        self.definitions, self.device = definitions, device
        self._preparation = preparation
        self._runner = runner
        self._offset = torch.tensor(offset, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)

    def on(self, device: Device) -> Extractor:
        """Move the network to another device and return its new extractor. This object must not be used afterwards."""
        offset, scale = (tuple(values.flatten().tolist()) for values in (self._offset, self._scale))
        runner = self._runner.on(device.torch_device)
        return Extractor(runner, self.definitions, self._preparation, offset, scale, device)

    @property
    def definition(self) -> Definition:
        """The definition of the first layer's features."""
        return next(iter(self.definitions.values()))

    @property
    def unrecorded(self) -> str:
        """See `fidtool.features.runner.Runner.unrecorded`."""
        return self._runner.unrecorded

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the network's parameters and buffers by name."""
        return named_tensors(self._runner.module)

    def features(self, images: list[torch.Tensor]) -> torch.Tensor:
        """Return the feature vectors of one batch for the first layer, see `layers`."""
        return next(iter(self.layers(images).values()))

    def layers(self, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the feature vectors of one batch by layer.

        Args:
            images: uint8 tensors of shape (height, width, 3) on this extractor's device.

        Returns:
            float32 tensors of shape (len(images), dims of the layer) on the device.

        Raises:
            RunError: if the network fails, or its output has the wrong shape.
        """
        with torch.inference_mode():
            size = self.definition.input_size
            x = network_input(images, size, self._preparation, self._offset, self._scale)
            return self._vectors(x, self._runner)

    def differentiable(self, images: torch.Tensor) -> torch.Tensor:
        """Return the feature vectors of images with floating-point values, with gradients.

        If the network's own preparation rounds to 8 bits (DINOv2, CLIP, torchvision, timm), this method rounds as well,
        and the gradient passes straight through the rounding.

        Args:
            images: float32 tensor of shape (n, 3, height, width), values in 0..255, on this extractor's device.

        Returns:
            float32 tensor of shape (n, dims) on the device.
        """
        resized = resize(images.permute(0, 2, 3, 1), self.definition.input_size, self._preparation)
        vectors = self._vectors((resized - self._offset) / self._scale, self._runner.module)
        return next(iter(vectors.values()))

    def _vectors(self, x: torch.Tensor, run: Run) -> dict[str, torch.Tensor]:
        output = self._forward(x, run)
        outputs = output if len(self.definitions) > 1 else (output,)
        parts = dict(zip(self.definitions, outputs, strict=True))
        return {layer: _vectors_of(part, len(x), self.definitions[layer]) for layer, part in parts.items()}

    def _forward(self, x: torch.Tensor, run: Run) -> Any:
        try:
            return run(x)
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            what = f"{type(error).__name__}: {message}" if message else type(error).__name__
            problem = f"{self.definition.extractor} failed on a batch of {counted(len(x), 'image')}: {what}"
            if isinstance(error, torch.cuda.OutOfMemoryError):
                remedy = f"try a smaller {option('batch_size')}"
                raise RunError(problem, remedy, setting="batch_size") from error
            raise RunError(problem) from error

    def probe(self, batch_size: int) -> str:
        """Return the SHA-256 of the features of a fixed batch. It is equal on two ranks that compute the same bits.

        Args:
            batch_size: number of images in the batch. Kernels depend on the shape, so on a GPU it should be that of the
                run.
        """
        # In a separate thread, like the batches of the run: torch's modes are per thread and select kernels.
        thread = ForwardThreads(1, self.layers)
        try:
            found = thread.submit(fixed_batch(batch_size, self.device.torch_device)).result()
        finally:
            thread.close(0.0)
        sha = hashlib.sha256()
        for features in found.values():
            sha.update(features.cpu().contiguous().numpy().tobytes())
        return sha.hexdigest()

    def run(
        self, batches: Iterator[Item], images: Callable[[Item], list[torch.Tensor]], stop: Callable[[], bool]
    ) -> Iterator[tuple[Item, torch.Tensor | None]]:
        """Run forward passes over a stream of batches, in order; see `side_by_side`."""
        return side_by_side(batches, images, self.features, self.device.forward_threads, stop)


class Networks:
    """All networks of a run. Each image is decoded once for all of them.

    Args:
        extractors: the networks by the layer of their features; at least one, all on the same device.

    Attributes:
        device: the device on which they run.
        definitions: the definitions of the features by layer.
    """

    def __init__(self, extractors: Mapping[str, Extractor]) -> None:
        self._extractors = tuple(extractors.values())
        self.device = self._extractors[0].device
        self.definitions = {layer: each for network in self._extractors for layer, each in network.definitions.items()}

    def features(self, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the feature vectors of one batch by layer, see `Extractor.layers`."""
        return {layer: vectors for network in self._extractors for layer, vectors in network.layers(images).items()}

    def run(
        self,
        batches: Iterator[Item],
        images: Callable[[Item], list[torch.Tensor]],
        stop: Callable[[], bool],
        timed: Callable[[], AbstractContextManager[None]],
        in_turns: bool,
    ) -> Iterator[tuple[Item, dict[str, torch.Tensor] | None]]:
        """Run forward passes over a stream of batches, in order; see `side_by_side`.

        Args:
            batches, images, stop, in_turns: see `side_by_side`.
            timed: returns a context manager that times a pass; called in any thread.
        """

        def features(pixels: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            with timed():
                return self.features(pixels)

        return side_by_side(batches, images, features, self.device.forward_threads, stop, in_turns)

    @property
    def unrecorded(self) -> str:
        """See `fidtool.features.runner.Runner.unrecorded`."""
        return next((network.unrecorded for network in self._extractors if network.unrecorded), "")

    def probe(self, batch_size: int) -> str:
        """See `Extractor.probe`; for several networks, the SHA-256 of their probes."""
        probes = [network.probe(batch_size) for network in self._extractors]
        return probes[0] if len(probes) == 1 else hashlib.sha256("".join(probes).encode()).hexdigest()


def _vectors_of(output: Any, count: int, definition: Definition) -> torch.Tensor:
    """A network's output for ``count`` images as vectors; maps are averaged over their positions."""
    if isinstance(output, torch.Tensor) and output.ndim == 4:
        output = output.mean((2, 3))
    expected = (count, definition.dims)
    if not isinstance(output, torch.Tensor) or output.shape != expected:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RunError(f"{definition.extractor} returned {shape} for {count} images, not {expected}")
    return output.float()


def side_by_side(
    items: Iterator[Item],
    images: Callable[[Item], list[torch.Tensor]],
    features: Callable[[list[torch.Tensor]], Result],
    threads: int,
    stop: Callable[[], bool],
    in_turns: bool = False,
) -> Iterator[tuple[Item, Result | None]]:
    """Compute the features of a stream of items in several threads.

    Args:
        items: the stream. It is read in the calling thread, at most one item ahead of the threads.
        images: returns an item's images on the network's device. Called in a thread with one intra-op torch thread, see
            `fidtool.features.torch_state.repeatable`.
        features: returns the features of these images; called in the same thread.
        threads: number of threads.
        stop: whether to stop early, without waiting for running work.
        in_turns: read the stream only while no thread works, because it runs the calling program's code under that
            program's torch settings.

    Yields:
        Each item with its features; None for an item without images.
    """

    def one(item: Item) -> tuple[Item, Result | None]:
        pixels = images(item)
        return item, features(pixels) if pixels else None

    pool = ForwardThreads(threads, one)
    waiting: deque[Future[tuple[Item, Result | None]]] = deque()
    at_once, ahead = (threads, 0) if in_turns else (1, threads)
    wanted = takewhile(lambda _: not stop(), items)
    try:
        while some := list(islice(wanted, at_once)):
            waiting += map(pool.submit, some)
            while waiting and (len(waiting) > ahead or waiting[0].done()):
                if _stopped_before(waiting[0], stop):
                    return
                yield waiting.popleft().result()
        while waiting and not _stopped_before(waiting[0], stop):
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        pool.close(0.0 if stop() else _LEAVING_SECONDS)


def _stopped_before(future: Future[Any], stop: Callable[[], bool]) -> bool:
    """Wait for ``future`` or for ``stop``; true if ``stop`` came first."""
    while not stop():
        if wait([future], _STOP_SECONDS).done:
            return False
    return True


class ForwardThreads(Generic[Item, Result]):
    """A pool of ``count`` threads, each with one intra-op torch thread, that apply ``work`` to submitted items.

    Unlike the threads of ``concurrent.futures`` they are daemons: a pass that never ends does not keep the process
    alive.
    """

    def __init__(self, count: int, work: Callable[[Item], Result]) -> None:
        self._work = work
        self._jobs: queue.SimpleQueue[tuple[Future[Result], Item] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"fidtool-forward-{n}", daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()
            _all.add(thread)

    def submit(self, item: Item) -> Future[Result]:
        """Return the future result of ``item``. The first free thread processes it."""
        future: Future[Result] = Future()
        self._jobs.put((future, item))
        return future

    def close(self, seconds: float) -> None:
        """Stop the threads after their current work, and wait at most ``seconds`` for that."""
        for _ in self._threads:
            self._jobs.put(None)
        _join(self._threads, seconds)

    def _run(self) -> None:
        # The first operation in a thread resets the number of threads to the value set last by any thread: trigger
        # this reset before setting ours.
        torch.get_num_threads()
        torch.set_num_threads(1)
        while (job := self._jobs.get()) is not None:
            future, item = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._work(item))
            except BaseException as error:  # raised where the result is requested
                future.set_exception(error)
            del job, future, item  # frees the pixels while the thread waits


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _wait_for_all() -> None:
    """Wait for the threads: one that returns from C++ into a finalising interpreter would abort the process."""
    _join(list(_all), _AT_EXIT_SECONDS)
