"""A slow, small network that fails on one rank, after some batches, as set by the variable FAULT.

Every rank runs the code in the file of an extractor before it reads images. This makes it possible
to break a rank.
"""

import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import fidtool
from fidtool.distributed import watchdog
from fidtool.reading import loader
from fidtool.reading.decode import DecodedImage
from fidtool.run import context as run
from fidtool.statistics.accumulator import Accumulator
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.moments import ExactMoments

sys.path.insert(0, os.path.dirname(__file__))
from patching import replace

del sys.path[0]  # no other module is imported from here

FAULT = os.environ.get("FAULT", "")
RANK = os.environ.get("RANK", "0")
HERE = os.environ.get("FAULT_RANK", "0") in (RANK, "all") and os.environ.get("FAULT_ATTEMPT") in (
    None,
    os.environ.get("TORCHELASTIC_RESTART_COUNT"),
)
LOG = os.environ.get("FORWARD_LOG")
ADDED_LOG = os.environ.get("ADDED_LOG")
LAPACK_LOG = os.environ.get("LAPACK_LOG")
SIGN = os.environ.get("FIDTOOL_TEST_SIGN")
BATCHES_BEFORE = int(os.environ.get("FAULT_AFTER", "8"))
PROBES = 3
"""Passes before those on images: two for the dimensions and repeatability, one for the bits."""
PACE = float(os.environ.get("FAULT_PACE", "0.02"))
if "FAULT_IDLE" in os.environ and os.environ["FAULT_IDLE"] == os.environ.get("RANK"):
    PACE = 0.0  # this rank finishes early and waits for the others in a collective


def fail() -> None:
    """Raise an unexpected exception."""
    raise ArithmeticError("a fault on purpose")


def to_workers(number: signal.Signals) -> None:
    """Send a signal to the workers: SIGKILL, as when memory runs out, or SIGSTOP, which looks like
    a dead disk.
    """
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(path) as children:
        for child in children.read().split():
            os.kill(int(child), number)


def fall_silent(number: signal.Signals) -> None:
    """Report the fault to the test and to the other ranks (see rank_server.py), then send the
    signal.
    """
    if SIGN is not None:
        open(SIGN, "x").close()
    os.kill(os.getpid(), number)


def write(log: str | None, word: str) -> None:
    """Append a word to the log file, if any."""
    if log is not None:
        with open(log, "ab") as file:
            file.write(word.encode())


def long_lapack() -> None:
    """Block this thread in one call for minutes."""
    replace(watchdog, "GRACE_SECONDS", 0.5)
    replace(watchdog, "SIGNAL_GRACE_SECONDS", 0.5)
    matrix = torch.rand(5000, 5000, dtype=torch.float64)
    write(LAPACK_LOG, "entered ")
    torch.linalg.svd(matrix)
    write(LAPACK_LOG, "left ")


IN_FORWARD: dict[str, Callable[[], None]] = {
    "network": fail,
    "kill": lambda: fall_silent(signal.SIGKILL),
    "stop": lambda: fall_silent(signal.SIGSTOP),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "worker": lambda: to_workers(signal.SIGKILL),
    "frozen worker": lambda: to_workers(signal.SIGSTOP),
    "stuck": lambda: time.sleep(10000),
    "lapack": long_lapack,
}


class Paced(torch.nn.Module):
    """Mean and standard deviation of the colours, at a limited speed."""

    def __init__(self) -> None:
        super().__init__()
        # Two threads share the counter, and each gets its own number.
        self.calls = itertools.count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        call = next(self.calls)
        if call > PROBES:
            time.sleep(PACE)
            write(LOG, RANK)
        if call > BATCHES_BEFORE + PROBES:
            if HERE and FAULT in IN_FORWARD:
                IN_FORWARD[FAULT]()
            if HERE and FAULT == "network while rank 0 is in LAPACK":
                fail()
            if os.environ.get("RANK") == "0" and "in LAPACK" in FAULT:
                long_lapack()
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)


def _break_decode() -> None:
    decode_content = loader.decode_content
    calls = itertools.count()

    def decode(*arguments: Any) -> DecodedImage:
        if next(calls) >= BATCHES_BEFORE:
            fail()
        return decode_content(*arguments)

    replace(loader, "decode_content", decode)


if HERE and FAULT == "decode":
    _break_decode()
if HERE and FAULT == "merge":
    replace(ExactMoments, "merge", lambda self, world: fail())


def _log_what_is_added() -> None:
    """Make each rank write its number after the features of a pass have been added."""
    add = Accumulator.add

    def logged(self: Accumulator, *arguments: Any) -> None:
        add(self, *arguments)
        write(ADDED_LOG, RANK)

    replace(Accumulator, "add", logged)


if "WORTH_TELLING" in os.environ:
    replace(run, "MIN_REPORTED_SECONDS", float(os.environ["WORTH_TELLING"]))
if ADDED_LOG:
    _log_what_is_added()


def _fill_the_disk(owner: type, name: str, space: int) -> None:
    """Limit the size of files to ``space`` bytes during a method."""
    method = getattr(owner, name)

    def on_a_full_disk(*arguments: Any, **keywords: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (space, resource.RLIM_INFINITY))
        try:
            method(*arguments, **keywords)
        finally:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )

    replace(owner, name, on_a_full_disk)


if FAULT == "disk full":
    _fill_the_disk(Checkpoint, "save", 1024)
if HERE and FAULT == "no room for features":
    _fill_the_disk(Accumulator, "__init__", 64)


def network() -> fidtool.Network:
    """Return a network of 6 features."""
    return fidtool.Network(Paced(), input_size=8, feature_step=18)
