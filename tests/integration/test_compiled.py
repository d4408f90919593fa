"""Networks compiled by torch.compile: equal values, the run's record, the cache of compiled code, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import load_weights
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import repeatable
from support.command_line import Run
from support.offline import needs_weights
from support.pictures import make_pictures
from support.places import COLOURS, TINY
from support.processes import PATIENCE

CPU = torch.device("cpu")
FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return tuple(str(make_pictures(tmp_path / name, 9, seed)) for seed, name in enumerate(("real", "fake")))  # type: ignore[return-value]


@needs_weights
@pytest.mark.slow  # compiles a large part of Inception
def test_a_compiled_network_gives_the_same_features(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A smaller last batch is padded, so that it needs no further compilation."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "compiled"))
    module = Inception(load_weights(None, print).state, 64)
    x = torch.rand(4, 3, 75, 75, generator=torch.Generator().manual_seed(0)).mul(2).sub(1)
    x = x.contiguous(memory_format=torch.channels_last)
    with repeatable(), torch.inference_mode():
        x = x.clone()
        expected = Runner(module, CPU, Arithmetic(batch_size=4), standard=True)(x)
        torch._dynamo.reset()
        made = _compilations()
        compiled = Runner(module, CPU, Arithmetic(compiled=True, batch_size=4), standard=True)
        for count in (4, 3, 1):
            found = compiled(x[:count])
            assert ((found - expected[:count]).norm(dim=1) < 1e-6 * expected[:count].norm(dim=1)).all()
    assert _compilations() - made == 1
    assert list((tmp_path / "compiled").iterdir()), "compiled code is stored for the next run"


@pytest.mark.slow  # twenty compilations
@pytest.mark.parametrize("folder", [None, "mine"])
def test_each_of_many_networks_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str | None) -> None:
    """torch stops compiling silently after eight networks with the same code.

    Compiled code is stored in the folder that the caller has set, or else in fidtool's cache.
    """
    monkeypatch.delenv(FOLDER, raising=False)
    if folder is not None:
        monkeypatch.setenv(FOLDER, str(tmp_path / folder))
    monkeypatch.setenv("FIDTOOL_CACHE", str(tmp_path / "cache"))
    x = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    made = _compilations()
    for number in range(10):
        module = nn.Sequential(nn.Flatten(), nn.Linear(48, 1 + number)).requires_grad_(False)
        compiled = Runner(module, CPU, Arithmetic(compiled=True, batch_size=2))
        assert torch.allclose(compiled(x), module(x))
        compiled(x)
    assert _compilations() - made == 10
    assert os.environ.get(FOLDER) != str(tmp_path / "cache" / "compiled"), "the program's environment is unchanged"
    assert any((tmp_path / (folder or "cache/compiled")).iterdir())


@pytest.mark.slow  # compiles with an empty cache
def test_compilation_works_without_a_cache(fidtool: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    command = ["compute", *pair, "--extractor", COLOURS, "--compile", "--quiet"]
    run = fidtool(*command, FIDTOOL_CACHE=str(blocked), TMPDIR=str(tmp_path))
    assert run.status == 0, run.stderr


def test_a_failed_compilation_suggests_a_remedy(
    environment: dict[str, str], pair: tuple[str, str], tmp_path: Path
) -> None:
    """Runs in a separate interpreter, because torch looks for the compiler on import."""
    command = [sys.executable, "-m", "fidtool", "compute", *pair, "--extractor", COLOURS, "--compile", "--quiet"]
    env = {**environment, "CXX": "/nonexistent/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "empty")}
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env, cwd=tmp_path)
    assert run.returncode == 1
    (line,) = [line for line in run.stderr.splitlines() if not line.startswith("warning")]
    assert line.startswith("error: --compile: torch cannot compile the network (")
    assert "it needs a C++ compiler" in line
    assert line.endswith("omit --compile to run without compilation")


def test_a_compiled_run_is_recorded(here: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    eager, compiled = (here("compute", *pair, "--extractor", TINY, "--json", *more) for more in ([], ["--compile"]))
    assert (eager.status, compiled.status) == (0, 0)
    assert compiled.json["run"]["kernels"] == "inductor"
    assert not compiled.json["run"]["cached"], "different kernels must not share cached statistics"
    assert compiled.fid == pytest.approx(eager.fid, rel=1e-5)


def _compilations() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
