"""Stand-in for torch.cuda on machines without a GPU: devices, streams, events, and graphs that can fail."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

INVALIDATED = "CUDA error: operation failed due to a previous error during capture\nFor debugging consider …"


class FakeCuda:
    """Replaces the parts of torch.cuda that fidtool uses, with the side effects of torch's own.

    Tensors are on the CPU or fake. A captured graph is the list of its operations, and replays run them again on the
    captured memory.

    Attributes:
        log: what was done to streams, events, graphs and memory, in order.
        initialized: devices on which a context was created.
        fails: where capturing fails: ``begin``, ``middle`` or ``end``; empty if it works.
        replays: ``right``, ``stale`` (the output is left as it was) or ``wrong`` (a bit of it is).
        leaves_pool: whether a failed capture leaves its pool to the caller, as before torch 2.14.
        capturing: the pools of captures that torch considers to be running.
        released: the pools that were released.
        captures: the current device, and the device of the stream, of each capture.
        graphs: weak references to all graphs.
        generator: the default random generator of each device.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.initialized: set[int] = set()
        self.fails, self.replays, self.leaves_pool = "", "right", False
        self.capturing: set[Any] = set()
        self.released: list[Any] = []
        self.captures: list[tuple[int, int]] = []
        self.generator = _Generator()
        self.graphs: list[weakref.ref[Any]] = []
        self.event_numbers = itertools.count(1)
        self.default_capture_stream: Any = None
        self._here = threading.local()
        self._pools = 0
        self._install(monkeypatch)

    # What torch keeps per thread.

    @property
    def current(self) -> int:
        """The current device of the calling thread."""
        return getattr(self._here, "device", 0)

    @current.setter
    def current(self, device: int) -> None:
        self._here.device = device

    @property
    def streams(self) -> dict[int, Any]:
        """The current streams of the calling thread by device, except default streams."""
        if not hasattr(self._here, "streams"):
            self._here.streams = {}
        return self._here.streams  # type: ignore[no-any-return]

    def index(self, device: Any) -> int:
        number = device.index if isinstance(device, torch.device) else device
        return self.current if number is None else int(number)

    def current_stream(self, device: Any = None) -> Any:
        return self.streams.get(self.index(device)) or self.default_stream(device)

    def default_stream(self, device: Any = None) -> Any:
        return _Stream(self, self.index(device), "default")

    def set_device(self, device: Any) -> None:
        self.current = self.index(device)
        self.initialized.add(self.current)

    def set_stream(self, stream: Any) -> None:
        if stream.device != self.current:
            self.set_device(stream.device)
        self.streams[stream.device] = stream

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self.current
        self.set_device(device)
        try:
            yield
        finally:
            self.current = before  # without initialising it

    # Graphs.

    def new_pool(self) -> tuple[int, int]:
        self._pools += 1
        return 0, self._pools

    def end_pool(self, device: int, pool: Any) -> None:
        if pool not in self.capturing:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.capturing.remove(pool)

    def release_pool(self, device: int, pool: Any) -> None:
        assert pool not in self.released
        self.released.append(pool)

    def capture_begin(self, graph: Any, pool: Any, stream: Any) -> None:
        assert stream.device == self.current, "a graph's stream belongs to another device than its kernels"
        self.log.append("capture")
        self.captures.append((self.current, stream.device))
        graph.pool = pool
        self.capturing.add(pool)
        self.generator.state.usable = False
        if self.fails == "begin":
            raise RuntimeError("operation not permitted")

    def capture_end(self, graph: Any, failed: bool) -> None:
        if not failed or not self.leaves_pool:
            self.capturing.discard(graph.pool)
            self.generator.state.usable = True
        graph.ended = not failed
        if failed:
            raise RuntimeError(INVALIDATED)

    def replay(self, graph: Any) -> None:
        assert graph.ended
        self.log.append("replay")
        for function, args, kwargs, recorded in graph.steps if self.replays != "stale" else []:
            for old, new in zip(tree_leaves(recorded), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)
        if self.replays == "wrong":
            *_, last = (each for step in graph.steps for each in tree_leaves(step[3]))
            last.flatten()[:1].view(torch.int32).bitwise_xor_(1)

    def reset(self, graph: Any) -> None:
        self.log.append("reset")
        graph.steps.clear()
        if graph.ended or not self.leaves_pool:
            self.capturing.discard(graph.pool)
            self.released.append(graph.pool)

    def _install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, replaced in {
            "Stream": partial(_Stream, self),
            "Event": partial(_Event, self),
            "stream": partial(_StreamContext, self),
            "CUDAGraph": partial(_Graph, self),
            "graph": partial(_Capture, self),
            "current_device": lambda: self.current,
            "current_stream": self.current_stream,
            "default_stream": self.default_stream,
            "set_device": self.set_device,
            "device": self.device,
            "synchronize": lambda device=None: self.log.append(f"synchronize {self.index(device)}"),
            "empty_cache": lambda: self.log.append("empty the cache"),
            "graph_pool_handle": self.new_pool,
            "default_generators": [self.generator] * 4,
        }.items():
            monkeypatch.setattr(torch.cuda, name, replaced)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release_pool, raising=False)


class _State:
    usable = True


class _Generator:
    """A random generator whose state a capture makes unusable until its end."""

    def __init__(self, state: _State | None = None) -> None:
        self.state = state or _State()

    def graphsafe_get_state(self) -> _Generator:
        return _Generator(self.state)

    def graphsafe_set_state(self, other: _Generator) -> None:
        self.state = other.state

    def clone_state(self) -> _Generator:
        return _Generator()


class _Tape(TorchDispatchMode):
    """Appends each operation to ``steps``, with its arguments and results."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self._steps = steps

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._steps.append((function, args, kwargs or {}, result))
        return result


class _Stream:
    def __init__(self, cuda: FakeCuda, device: object = None, name: str = "beside") -> None:
        self._cuda, self.device, self.name = cuda, cuda.index(device), name

    def __repr__(self) -> str:
        return f"{self.name}:{self.device}"

    def wait_stream(self, other: _Stream) -> None:
        self._cuda.log.append(f"{self} waits for {other}")


class _Event:
    def __init__(self, cuda: FakeCuda, blocking: bool) -> None:
        assert blocking, "waiting for it would keep a core busy"
        self._cuda, self.number = cuda, next(cuda.event_numbers)

    def record(self, stream: _Stream) -> None:
        self._cuda.log.append(f"event {self.number} on {stream}")

    def synchronize(self) -> None:
        self._cuda.log.append(f"host waits for event {self.number}")


class _StreamContext:
    """``torch.cuda.stream``."""

    def __init__(self, cuda: FakeCuda, chosen: _Stream) -> None:
        self._cuda, self._chosen = cuda, chosen

    def __enter__(self) -> None:
        self._source = self._cuda.current_stream()
        self._target = self._cuda.current_stream(self._chosen.device)
        self._cuda.set_stream(self._chosen)
        self._cuda.log.append(f"on {self._chosen}")

    def __exit__(self, *_: object) -> None:
        if self._source.device != self._chosen.device:
            self._cuda.set_stream(self._target)
        self._cuda.set_stream(self._source)
        self._cuda.log.append(f"back on {self._source}")


class _Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.steps, self.ended, self.pool = cuda, [], False, None
        cuda.graphs.append(weakref.ref(self))

    steps: list[Any]
    pool: Any

    def replay(self) -> None:
        self._cuda.replay(self)

    def reset(self) -> None:
        self._cuda.reset(self)


class _Capture:
    """``torch.cuda.graph``."""

    def __init__(
        self, cuda: FakeCuda, graph: _Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> None:
        assert capture_error_mode == "thread_local"
        if stream is None:
            cuda.default_capture_stream = stream = cuda.default_capture_stream or _Stream(cuda)
        self._cuda, self._graph, self._pool, self._stream = cuda, graph, pool, stream
        self._context, self._tape = _StreamContext(cuda, stream), _Tape(graph.steps)

    def __enter__(self) -> None:
        self._context.__enter__()
        self._cuda.capture_begin(self._graph, self._pool, self._stream)
        self._tape.__enter__()

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._tape.__exit__(None, None, None)
        self._cuda.capture_end(self._graph, kind is not None or self._cuda.fails == "end")
        self._context.__exit__()  # like torch's, not after an error
