"""Fixtures for all tests: a separate cache, the command line in this process and in others, servers
of ranks.

Tests are in folders by what they start. ``unit`` calls functions of one package. ``integration``
runs commands and the Python API, in this process or in one other. ``distributed`` starts several
ranks. ``parity`` compares with other tools and with the conformance data. ``guide`` runs the
documented commands. ``scripts`` runs the scripts and the linters.

``goldens`` stores output that users depend on; ``pytest -k golden --write-goldens`` updates it
after an intended change. Branch coverage, with subprocesses, forks and processes that exit by
``os._exit``:

    python -m coverage run -m pytest -n 3 -m "slow or not slow"
    python -m coverage combine && python -m coverage report --show-missing
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.command_line import Outcome, Run
from support.goldens import Golden
from support.places import EXAMPLES, PROGRAMS
from support.processes import clean_environment

if TYPE_CHECKING:
    from fidtool.training import FrechetInceptionDistance
    from support.arena import Arena
    from support.ranks import RankServer

# Set before torch, NumPy and SciPy are imported: waiting threads must not spin while other tests
# run. Subprocesses use all cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

torch.get_num_threads()  # reads the variable
# It would also limit the threads of fidtool's runs in this process.
del os.environ["OMP_NUM_THREADS"]


with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # A test must not fail because the machine is slow.
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder."""
    tests = Path(__file__).parent
    for item in items:
        kind = item.path.relative_to(tests).parts[0]
        if kind in ("distributed", "parity"):
            item.add_marker(kind)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-goldens", action="store_true", help="write the files of tests/goldens that differ"
    )


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> Golden:
    """Return a function that compares a value with ``tests/goldens/NAME.json``: ``golden(NAME,
    value)``.
    """
    return Golden(pytestconfig.getoption("--write-goldens"))


@pytest.fixture(scope="session")
def weights_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the converted weights, shared by all processes of the test session."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "weights"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def environment(
    tmp_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A clean environment with an empty statistics cache, for this process and for subprocesses."""
    cache = tmp_path / "fidtool-cache"
    cache.mkdir()
    (cache / "weights").symlink_to(weights_cache)
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("FIDTOOL_CACHE", str(cache))
    # Not the machine's own, which may have weights.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return dict(os.environ)


@pytest.fixture
def empty_cache(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A cache without weights, whose folder does not exist yet."""
    folder = tmp_path / "empty"
    monkeypatch.setenv("FIDTOOL_CACHE", str(folder))
    environment["FIDTOOL_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def converted_weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The contents of the cached weights file, and the SHA-256 of its tensors. Needs
    fidtool[offline].
    """
    from fidtool.features.models import inception as weights
    from support.offline import digest

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FIDTOOL_WEIGHTS", raising=False)
        patch.setenv("FIDTOOL_CACHE", str(tmp_path_factory.mktemp("converted")))
        sha256 = digest(weights.load_weights(None, print).state)
        return weights.converted_path().read_bytes(), sha256


@contextlib.contextmanager
def _serving(folder: Path, *preload: str) -> Iterator[RankServer]:
    from support.ranks import RankServer

    started = RankServer(
        {**clean_environment(), "FIDTOOL_CACHE": str(folder / "cache")}, folder, preload
    )
    yield started
    started.close()


@pytest.fixture(scope="session")
def rank_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """A server that forks ranks."""
    with _serving(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.fixture(scope="session")
def training_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """A server for training scripts, which has already imported the slow libraries that are
    installed.
    """
    libraries = ["lightning.pytorch", "torchmetrics.image.fid", "pytorch_metric_learning.losses"]
    own = ["fidtool.training", "fidtool.training.inception_metrics"]
    with _serving(tmp_path_factory.mktemp("training"), *libraries, *own) as started:
        yield started


@pytest.fixture(scope="session")
def arenas(
    rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Arena]:
    """Return a function that makes the `Arena` of a folder. All arenas share two sets of 40
    images.
    """
    from support.arena import Arena
    from support.pictures import make_pictures

    place = tmp_path_factory.mktemp("arenas")
    sets = make_pictures(place / "real", 40, 1), make_pictures(place / "fake", 40, 2)
    return lambda folder: Arena(rank_server, folder, sets)


@pytest.fixture
def arena(arenas: Callable[[Path], Arena], tmp_path: Path, environment: dict[str, str]) -> Arena:
    """The arena in the test's folder."""
    return arenas(tmp_path)


@pytest.fixture
def fidtool(rank_server: RankServer, environment: dict[str, str], tmp_path: Path) -> Run:
    """Run ``fidtool ARGUMENTS`` in a process: alone, with torchrun (``ranks``), or with additional
    variables.
    """
    return _running(rank_server, environment, tmp_path, "fidtool")


@pytest.fixture
def program(rank_server: RankServer, environment: dict[str, str], tmp_path: Path) -> Run:
    """Run the source of a Python program in the same ways, in a process that has imported torch and
    fidtool.
    """
    run = _running(rank_server, environment, tmp_path, "script")

    def run_text(text: str, *arguments: object, **settings: Any) -> Outcome:
        file = tmp_path / "program.py"
        file.write_text(text)
        return run(file, *arguments, **settings)

    return run_text


def _running(server: RankServer, environment: dict[str, str], folder: Path, name: str) -> Run:
    def run(*arguments: object, ranks: int | None = None, **variables: str) -> Outcome:
        own = {**environment, **variables}
        if ranks is None:
            return server.launch(name, arguments, own, folder).outcome()
        return server.torchrun(ranks, name, arguments, own, folder).outcome()

    return run


@pytest.fixture
def here(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run ``fidtool ARGUMENTS`` in this process, which saves seconds per call. An uncaught
    exception fails the test.
    """
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
    if "torch" in sys.modules:  # some random weights give features out of range
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def programs(
    training_server: RankServer, weights_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Run ``torchrun --nproc-per-node=RANKS NAME ARGUMENTS`` for a program in ``support/programs``
    or an example.
    """
    folder = tmp_path_factory.mktemp("programs")
    (folder / "cache").mkdir()
    (folder / "cache" / "weights").symlink_to(weights_cache)
    environment = {**clean_environment(), "FIDTOOL_CACHE": str(folder / "cache")}

    def run(ranks: int, name: str, *arguments: object) -> Outcome:
        file = PROGRAMS / name if (PROGRAMS / name).exists() else EXAMPLES / name
        return training_server.torchrun(
            ranks, "script", [file, *arguments], environment, folder
        ).outcome()

    return run


@pytest.fixture
def metric() -> FrechetInceptionDistance:
    """The training metric with the small network."""
    from fidtool.training import FrechetInceptionDistance
    from support.tiny_network import network

    return FrechetInceptionDistance(network())
