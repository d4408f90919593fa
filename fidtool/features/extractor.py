"""Networks on a device: pixels in, feature vectors out, for one network or for all networks of a run."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

import torch
from torch import nn

from fidtool.distributed.replicas import named_tensors
from fidtool.errors import FidtoolError, ProgramError, RunError, option
from fidtool.features.device import Device, computing_on
from fidtool.features.protocol import Definition
from fidtool.features.resize import Preparation, network_input, resize
from fidtool.names import counted

Item = TypeVar("Item")
Run = Callable[[torch.Tensor], Any]

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE_SIDE = 64

_STOP_SECONDS = 0.1
"""Interval at which an early stop is checked."""
_LEAVING_SECONDS = 1.0
"""How long an exception waits for running passes, which may never end."""
_AT_EXIT_SECONDS = 2.0
"""How long the interpreter waits at exit for passes whose result is no longer needed."""
_all: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def placed(module: nn.Module, device: torch.device, precision: str = "fp32", standard: bool = False) -> Run:
    """Move a module to a device, and return the function that runs it on batches there, without gradients.

    In half precision, Inception's weights and activations have 16 bits; sums within a layer and the final global
    average have 32 bits. Other networks run under torch's autocast, which selects the precision layer by layer.

    Args:
        precision: see `fidtool.settings.Settings`. TF32 is switched on by `fidtool.features.device.repeatable`.
        standard: whether it is Inception, all of whose layers support half precision.
    """
    half = HALVES.get(precision)
    module.to(device, half if standard else None)

    def run(x: torch.Tensor) -> Any:
        with torch.inference_mode(), computing_on(device):
            if half is None or standard:
                return module(x if half is None else x.to(half))
            with torch.autocast(device.type, half):
                return module(x)

    return run


def fixed_batch(count: int, device: torch.device) -> list[torch.Tensor]:
    """Return ``count`` different images of noise, uint8 of shape (64, 64, 3), with the same values on every device."""
    values = torch.arange(count * _PROBE_SIDE * _PROBE_SIDE * 3, dtype=torch.int64, device="cpu")
    # A multiplicative hash of the position, because torch's random numbers are the program's.
    pixels = values.mul_(2654435761).bitwise_right_shift_(16).bitwise_and_(255).to(torch.uint8)
    return list(pixels.view(count, _PROBE_SIDE, _PROBE_SIDE, 3).to(device))


class Extractor:
    """Computes feature vectors of batches of images.

    Args:
        module: returns one tensor of features, or a tuple with one tensor per definition if there are several.
        definitions: the definitions of the features by layer; the first is that of `features`.
        offset, scale: a pixel value x in 0..255 enters the network as (x - offset) / scale.
        precision: see `placed`.
    """

    def __init__(
        self,
        module: nn.Module,
        definitions: Mapping[str, Definition],
        preparation: Preparation,
        offset: tuple[float, ...],
        scale: tuple[float, ...],
        device: Device,
        precision: str = "fp32",
    ) -> None:
        self.definitions, self.device = definitions, device
        self._preparation = preparation
        self._module, self._precision = module, precision
        self._run = placed(module, device.torch_device, precision, self.definition.standard)
        self._offset = torch.tensor(offset, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device.torch_device).view(1, -1, 1, 1)

    def on(self, device: Device) -> Extractor:
        """Move the network to another device and return its new extractor. This object must not be used afterwards."""
        offset, scale = (tuple(values.flatten().tolist()) for values in (self._offset, self._scale))
        return type(self)(self._module, self.definitions, self._preparation, offset, scale, device, self._precision)

    @property
    def definition(self) -> Definition:
        """The definition of the first layer's features."""
        return next(iter(self.definitions.values()))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the network's parameters and buffers by name."""
        return named_tensors(self._module)

    def features(self, images: list[torch.Tensor]) -> torch.Tensor:
        """Return the feature vectors of one batch for the first layer, see `vectors`."""
        return next(iter(self.layers(images).values()))

    def layers(self, images: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the feature vectors of one batch by layer, see `inputs` and `vectors`."""
        return self.vectors([self.inputs(images)])

    def inputs(self, images: list[torch.Tensor]) -> torch.Tensor:
        """Return the network's input for images: cropped, resized and normalised.

        The images are uint8 tensors of shape (height, width, 3) on this extractor's device. The result is a float32
        tensor of shape (len(images), 3, input size, input size), channels-last in memory.
        """
        with torch.inference_mode(), self._explained(len(images)):
            size = self.definition.input_size
            return network_input(images, size, self._preparation, self._offset, self._scale)

    def vectors(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the feature vectors of the `inputs` of a batch's parts, by layer: float32, shape (images, dims)."""
        with torch.inference_mode():
            return self._vectors(inputs[0] if len(inputs) == 1 else torch.cat(list(inputs)), self._run)

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
        vectors = self._vectors((resized - self._offset) / self._scale, self._module)
        return next(iter(vectors.values()))

    def _vectors(self, x: torch.Tensor, run: Run) -> dict[str, torch.Tensor]:
        with self._explained(len(x)):
            output = run(x)
            outputs = output if len(self.definitions) > 1 else (output,)
            parts = dict(zip(self.definitions, outputs, strict=True))
            return {layer: _vectors_of(part, len(x), self.definitions[layer]) for layer, part in parts.items()}

    @contextlib.contextmanager
    def _explained(self, count: int) -> Iterator[None]:
        """Context manager that names the network and the number of images in the error of its block."""
        try:
            yield
        except FidtoolError:
            raise
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            what = f"{type(error).__name__}: {message}" if message else type(error).__name__
            problem = f"{self.definition.extractor} failed on a batch of {counted(count, 'image')}: {what}"
            kind = RunError if self.definition.standard else ProgramError
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise kind(problem, f"try a smaller {option('batch_size')}", setting="batch_size") from error
            raise kind(problem) from error

    def probe(self, batch_size: int) -> str:
        """Return the SHA-256 of the features of a fixed batch. It is equal on two ranks that compute the same bits.

        Kernels depend on the shape, so on a GPU ``batch_size`` should be that of the run.
        """
        # Like the batches of the run, because torch's modes are per thread and select kernels.
        thread = ForwardThreads(min(1, self.device.own_threads))
        try:
            found = thread.submit(self.layers, fixed_batch(batch_size, self.device.torch_device)).result()
        finally:
            thread.close(0.0)
        sha = hashlib.sha256()
        for features in found.values():
            sha.update(features.cpu().contiguous().numpy().tobytes())
        return sha.hexdigest()


def _vectors_of(output: Any, count: int, definition: Definition) -> torch.Tensor:
    """A network's output for ``count`` images as vectors; maps are averaged over their positions."""
    # Of a module that a training metric calls with images as they are, the length is unknown; it must return vectors.
    if isinstance(output, torch.Tensor) and output.ndim == 4 and definition.dims:
        output = output.mean((2, 3))
    expected = (count, definition.dims or getattr(output, "shape", (0,))[-1])
    if not isinstance(output, torch.Tensor) or output.shape != expected:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        wanted = f"({count}, {definition.dims or 'D'})"
        raise RunError(f"{definition.extractor} returned {shape} for {count} images, not {wanted}")
    # A custom network may write the next result into the same memory, while this one is still being copied.
    return output.float() if definition.standard else output.to(torch.float32, copy=True)


def probe_of(extractors: Sequence[Extractor], batch_size: int) -> str:
    """See `Extractor.probe`; for several networks, the SHA-256 of their probes."""
    probes = [network.probe(batch_size) for network in extractors]
    return probes[0] if len(probes) == 1 else hashlib.sha256("".join(probes).encode()).hexdigest()


class _StoppedError(Exception):
    """Raised to leave `run_networks` early."""


def run_networks(
    extractors: Sequence[Extractor],
    parts: Iterator[Item],
    images: Callable[[Item], list[torch.Tensor]],
    ends: Callable[[Item], bool] = lambda _: True,
    stop: Callable[[], bool] = lambda: False,
    timed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    in_turns: bool = False,
) -> Iterator[tuple[list[Item], dict[str, torch.Tensor] | None]]:
    """Run forward passes over a stream of batches, in order. Each image is decoded once for all networks.

    Args:
        parts: the parts of the batches. They are read in the calling thread. Each is resized as soon as it is read, so
            that the images of a batch need not be in memory at the same time. The last is resized with the pass.
        images: returns the images of a part on the device, possibly none; called in any thread.
        ends: whether a part is the last of its batch.
        stop: whether to stop early, without waiting for running work.
        timed: returns a context manager that times the networks' work; called in any thread.
        in_turns: read the stream only while no thread works, because it runs the calling program's code under that
            program's torch settings.

    Yields:
        The parts of each batch with the feature vectors by layer; None for a batch without images.
    """

    def prepare(part: Item) -> list[torch.Tensor] | None:
        pixels = images(part)
        with timed():
            return [network.inputs(pixels) for network in extractors] if pixels else None

    process = partial(_process_batch, extractors, prepare, timed)
    threads = extractors[0].device.own_threads
    pool, here = ForwardThreads(threads), ForwardThreads(0)
    alone = in_turns and threads > 0
    batch: list[Item] = []
    prepared: list[Future[Any]] = []
    recent: deque[Future[Any]] = deque()  # parts that may not have been resized yet
    held: list[tuple[list[Item], list[Future[Any]]]] = []  # batches that wait until no part is read
    running: deque[tuple[list[Item], Future[Any]]] = deque()
    try:
        for part in takewhile(lambda _: not stop(), parts):
            batch.append(part)
            if not ends(part):
                prepared.append((here if alone else pool).submit(prepare, part))
                recent.append(prepared[-1])
                if len(recent) > threads:
                    _wait(recent.popleft(), stop)
                continue
            held.append((batch, prepared))
            batch, prepared = [], []
            if not alone or len(held) == threads:
                running += [(whole, pool.submit(process, (whole[-1], earlier))) for whole, earlier in held]
                held = []
                yield from _finished(running, 0 if alone else threads, stop)
        running += [(whole, pool.submit(process, (whole[-1], earlier))) for whole, earlier in held]
        yield from _finished(running, 0, stop)
    except _StoppedError:
        return
    finally:
        for future in (*recent, *(future for _, future in running)):
            future.cancel()
        pool.close(0.0 if stop() else _LEAVING_SECONDS)


def _process_batch(
    extractors: Sequence[Extractor],
    prepare: Callable[[Item], list[torch.Tensor] | None],
    timed: Callable[[], contextlib.AbstractContextManager[None]],
    job: tuple[Item, list[Future[Any]]],
) -> dict[str, torch.Tensor] | None:
    """The features of a batch, of which the last part and the prepared ones before it are given."""
    last, earlier = job
    own = prepare(last)
    # The earlier parts were submitted before, so they are done, or other threads are working on them.
    several = [each for each in (*(future.result() for future in earlier), own) if each is not None]
    if not several:
        return None
    with timed():
        found: dict[str, torch.Tensor] = {}
        for network, inputs in zip(extractors, zip(*several, strict=True), strict=True):
            found |= network.vectors(inputs)
        return found


def _finished(
    running: deque[tuple[list[Item], Future[Any]]], most: int, stop: Callable[[], bool]
) -> Iterator[tuple[list[Item], Any]]:
    """Yield the results of the first batches: of those that are done, and of so many that ``most`` are left."""
    while running and (len(running) > most or running[0][1].done()):
        _wait(running[0][1], stop)
        batch, future = running.popleft()
        yield batch, future.result()


def _wait(future: Future[Any], stop: Callable[[], bool]) -> None:
    while not stop():
        if wait([future], _STOP_SECONDS).done:
            return
    raise _StoppedError


class ForwardThreads:
    """A pool of ``count`` threads, each with one intra-op torch thread; see `fidtool.features.device.repeatable`.

    Unlike the threads of ``concurrent.futures`` they are daemons: a pass that never ends does not keep the process
    alive. With a ``count`` of 0, the calling thread does the work at once.
    """

    def __init__(self, count: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"fidtool-forward-{n}", daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()
            _all.add(thread)

    def submit(self, work: Callable[[Any], Any], item: Any) -> Future[Any]:
        """Return the future result of ``work(item)``. The first free thread computes it."""
        future: Future[Any] = Future()
        if self._threads:
            self._jobs.put((future, work, item))
        else:
            _process(future, work, item)
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
            _process(*job)
            del job  # frees the pixels while the thread waits


def _process(future: Future[Any], work: Callable[[Any], Any], item: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(item))
    except BaseException as error:  # raised where the result is requested
        future.set_exception(error)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _wait_for_all() -> None:
    """Wait for the threads: one that returns from C++ into a finalising interpreter would abort the process."""
    _join(list(_all), _AT_EXIT_SECONDS)
