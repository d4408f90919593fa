"""Pictures, a cache of its own for every test, and the command line as a subprocess."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from arena import Arena
    from ranks import Rank, RankServer
    from training_programs import Programs

    from fidtool.training import FrechetInceptionDistance

# Before torch is imported: threads that wait for each other beside another test process must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TINY = f"{Path(__file__).parent / 'tiny_network.py'}:network"
"""Value of --extractor for the small network of 16 features."""
FD = f"FD ({TINY})"
"""What its Fréchet distance is called."""
COLOURS = TINY.replace(":network", ":colours")
"""Another of the same file, of 6 features."""
CONFORMANCE = Path(__file__).resolve().parents[2] / "shared" / "conformance"
"""Optional data beside the checkout; what needs it skips without it."""
PATIENCE = 900.0
"""Seconds after which what a test waits for is taken for hanging. No busy machine is so slow, and a rank that nothing
but the default of --timeout would end hangs."""

with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # A slow machine is no failure of the test.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


def make_pictures(folder: Path, count: int, seed: int = 0, suffix: str = ".png", sides: Sequence[int] = (32,)) -> Path:
    """Writes ``count`` smooth noise pictures, their sides taken from ``sides`` in turn, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(seed)
    for number in range(count):
        coarse = rng.randint(0, 256, (8, 8, 3)).astype(np.uint8)
        side = sides[number % len(sides)]
        picture = Image.fromarray(coarse).resize((side, side + number % 3), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:05}{suffix}")
    return folder


def wait_until(so: Callable[[], bool], what: str) -> None:
    """Waits for something that is sure to come; ``what`` says what has not."""
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def as_from_a_terminal() -> None:
    """For a process that tests must hit at work: Ctrl-C reaches it, and it sees two cores, as many as anywhere.

    A shell's background jobs, tests among them, ignore SIGINT and would have their processes do so as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def changed(arguments: Sequence[object], *options: object) -> list[object]:
    """``arguments`` with these options, each followed by its value, which takes the place of the one that it has."""
    found = list(arguments)
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name in found:
            found[found.index(name) + 1] = value
        else:
            found += [name, value]
    return found


def frechet(result: Mapping[str, Any]) -> float:
    """The Fréchet distance of the extractor's features in one of the JSON's ``results``, whatever network that is."""
    (value,) = (value for name, value in result["metrics"].items() if re.match(r"fi?d(?!_infinity)(_|$)", name))
    return float(value)


@dataclass
class Outcome:
    """What a command left behind."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as the one JSON document it must be."""
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed

    @property
    def fid(self) -> float:
        """The only result's Fréchet distance, whatever network it is of."""
        (result,) = self.json["results"]
        return frechet(result)

    @property
    def metrics(self) -> dict[str, float]:
        """The only result's numbers."""
        assert self.status == 0, self.stderr
        (result,) = self.json["results"]
        found: dict[str, float] = result["metrics"]
        return found

    @property
    def error(self) -> str:
        """The line about the error, which must be the only one, stand last, and come without a traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        *news, error = self.stderr.splitlines()
        assert error.startswith("error: "), self.stderr
        assert not [line for line in news if line.startswith("error")], self.stderr
        return error


Run = Callable[..., Outcome]


def _clean_environment() -> dict[str, str]:
    """This environment without any launcher's variables or the user's own settings of fidtool."""
    dropped = ("SLURM_", "FIDTOOL_", "TORCHELASTIC", "OMP_NUM_THREADS")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in os.environ.items() if name not in names and not name.startswith(dropped)}


@pytest.fixture(scope="session")
def weights_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the converted weights for the whole test session."""
    folder = tmp_path_factory.mktemp("weights")
    return folder


@pytest.fixture
def environment(tmp_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A clean environment with an empty statistics cache; the same in this process and for subprocesses."""
    cache = tmp_path / "fidtool-cache"
    cache.mkdir()
    (cache / "weights").symlink_to(weights_cache)
    for name in set(os.environ) - set(_clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("FIDTOOL_CACHE", str(cache))
    return dict(os.environ)


@pytest.fixture
def empty_cache(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has no weights either; its folder is still to be made."""
    folder = tmp_path / "empty"
    monkeypatch.setenv("FIDTOOL_CACHE", str(folder))
    environment["FIDTOOL_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def converted_weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The file of weights that the cache keeps, and the SHA-256 of its tensors. Needs fidtool[offline]."""
    from fidtool.features import weights

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FIDTOOL_WEIGHTS", raising=False)
        patch.setenv("FIDTOOL_CACHE", str(tmp_path_factory.mktemp("converted")))
        sha256 = weights.load_weights(None, print).sha256
        return weights.converted_path().read_bytes(), sha256


@contextlib.contextmanager
def _serving(folder: Path, *preload: str) -> Iterator[RankServer]:
    from ranks import RankServer

    started = RankServer({**_clean_environment(), "FIDTOOL_CACHE": str(folder / "cache")}, folder, preload)
    yield started
    started.close()


@pytest.fixture(scope="session")
def rank_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """Forks ranks for the tests that need many; its ``folder`` is where they run."""
    with _serving(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.fixture(scope="session")
def training_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """Another one, for training scripts: it has imported what takes them seconds, where that is installed."""
    libraries = ["lightning.pytorch", "torchmetrics.image.fid", "pytorch_metric_learning.losses"]
    own = ["fidtool.training", "fidtool.training.metric"]
    with _serving(tmp_path_factory.mktemp("training"), *libraries, *own) as started:
        yield started


@pytest.fixture
def arena(rank_server: RankServer, tmp_path: Path, environment: dict[str, str]) -> Arena:
    """Runs one job on several ranks, with a fault; two sets of 40 pictures are there."""
    from arena import Arena

    rank_server.folder = tmp_path
    return Arena(rank_server, tmp_path, environment)


def finish(server: RankServer, started: Rank) -> Outcome:
    """What a process leaves behind, which must have ended."""
    (status,) = server.wait([started], PATIENCE)
    if status is None:
        os.killpg(started.pid, signal.SIGKILL)
        raise AssertionError(f"it hangs: {started.stderr}")
    return Outcome(status, started.stdout, started.stderr)


@pytest.fixture
def fidtool(rank_server: RankServer, environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs ``fidtool ARGUMENTS`` in a process: plainly, under torchrun (``ranks``), or with extra variables.

    torchrun's ranks are forks, or interpreters of their own if ``fresh``.
    """

    def run(*arguments: object, ranks: int | None = None, fresh: bool = False, **variables: str) -> Outcome:
        env = {**environment, **variables}
        if ranks is None:
            started = rank_server.launch("fidtool", arguments, env, tmp_path)
        elif fresh:
            started = rank_server.torchrun(ranks, ["-m", "fidtool", *arguments], env, tmp_path)
        else:
            started = rank_server.quick_torchrun(ranks, "fidtool", arguments, env, tmp_path)
        return finish(rank_server, started)

    return run


@pytest.fixture
def here(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs ``fidtool ARGUMENTS`` in this process, which saves seconds a call; an uncaught exception fails the test."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        from fidtool.cli.main import main

        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, printed.out, printed.err)

    return run


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    if "torch" in sys.modules:  # random weights that another day would give features out of range
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def programs(training_server: RankServer, weights_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Starts the training programs of the folder ``programs`` under torchrun."""
    from training_programs import Programs

    folder = tmp_path_factory.mktemp("programs")
    (folder / "cache").mkdir()
    (folder / "cache" / "weights").symlink_to(weights_cache)
    return Programs(training_server, {**_clean_environment(), "FIDTOOL_CACHE": str(folder / "cache")}, folder)


@pytest.fixture
def metric() -> FrechetInceptionDistance:
    """The training metric with the small network."""
    from tiny_network import network

    from fidtool.training import FrechetInceptionDistance

    return FrechetInceptionDistance(network())
