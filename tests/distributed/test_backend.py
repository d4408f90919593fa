"""``--backend``: gloo unless NCCL works on every rank, and NCCL is not touched without a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Outcome, Run
from support.pictures import make_pictures
from support.places import TINY
from support.ranks import RankServer, exported, finish

SCRIPT = """
import os, sys, time, warnings
import torch
import torch.distributed as dist
import fidtool
from fidtool import torch_internals
from fidtool.distributed import world

rank = int(os.environ["RANK"])
CASE

def refuse(*arguments, **options):
    raise AssertionError("NCCL was touched")

if "backend" not in settings:
    dist.ProcessGroupNCCL = refuse
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        result = fidtool.compute("real", "fake", extractor=sys.argv[1], batch_size=2, cache=False, **settings)
        print(result.run.backend, result.frechet_distance.hex())
    except fidtool.RunError as error:
        print("raised", error)
for warning in caught:
    if issubclass(warning.category, fidtool.FidtoolWarning):
        print("warned", warning.message)
"""
ATTEMPT = """
settings = {"backend": "nccl"}
world._check_nccl = lambda device: None
torch_internals.new_nccl_group = lambda *_: None
"""
CASES = {
    "gloo by default": "settings = {}",
    # Its tensors are on the CPU, so that they travel over gloo.
    "nccl that works": ATTEMPT,
    "nccl that fails on rank 1": ATTEMPT
    + """
if rank == 1:
    attempt = world.World._try_nccl
    def broken(self, device):
        attempt(self, device)
        raise RuntimeError("NCCL error in: a.cpp\\nLast error:\\nno route to host")
    world.World._try_nccl = broken
""",
    "nccl that cannot be created on rank 0": ATTEMPT
    + """
if rank == 0:
    def broken(*_):
        raise ValueError("no GPUs found")
    torch_internals.new_nccl_group = broken
""",
    "nccl that never responds": ATTEMPT
    + """
settings |= {"timeout": 4, "peer_timeout": 3}
PACE = float(os.environ.get("PACE", 0.0))
class Stuck:
    def is_completed(self):
        time.sleep(PACE)
        return False
class Group:
    def allreduce(self, tensors):
        time.sleep(PACE)
        return Stuck()
torch_internals.new_nccl_group = lambda *_: Group()
run_collective = world.World._run_collective
class OnGpu:
    device = torch.device("cuda")
def on_gpu(self, begin, *tensors):
    tried = self._nccl is not None and len(tensors) == 1 and int(tensors[0][0]) == self.rank + 1
    run_collective(self, begin, *([OnGpu()] if tried else tensors))
world.World._run_collective = on_gpu
""",
}


def ends_of(server: RankServer, environment: dict[str, str], folder: Path, case: str) -> list[Outcome]:
    """The ends of two ranks."""
    for seed, name in enumerate(("real", "fake")):
        make_pictures(folder / name, 9, seed)
    (folder / "script.py").write_text(SCRIPT.replace("CASE", CASES[case]))
    ranks = [server.launch("script", ["script.py", TINY], {**environment, **own}, folder) for own in exported(2)]
    return [finish(server, rank) for rank in ranks]


def outcomes(server: RankServer, environment: dict[str, str], folder: Path, case: str) -> list[list[str]]:
    """The lines that each of two ranks has printed."""
    ends = ends_of(server, environment, folder, case)
    assert [end.status for end in ends] == [0, 0], ends
    return [end.stdout.splitlines() for end in ends]


@pytest.mark.parametrize(
    ("case", "backend", "warning"),
    [
        ("gloo by default", "gloo", ""),
        ("nccl that works", "nccl", ""),
        ("nccl that fails on rank 1", "gloo", "no route to host (rank 1)"),
        ("nccl that cannot be created on rank 0", "gloo", "no GPUs found (rank 0)"),
    ],
)
def test_backend(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path, case: str, backend: str, warning: str
) -> None:
    """All ranks use the same one, and rank zero warns if it is not the requested one."""
    first, second = outcomes(rank_server, environment, tmp_path, case)
    assert first[0] == second[0]
    assert first[0].split()[0] == backend
    assert first[1:] == ([f"warned gloo is used instead of backend='nccl': {warning}"] if warning else [])
    assert second[1:] == []


def test_nccl_that_never_responds_ends_the_run(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    lines = outcomes(rank_server, environment, tmp_path, "nccl that never responds")
    for (line,) in lines:
        assert line.startswith("raised NCCL did not finish its first collective within 2 s")
        assert "omit backend='nccl' to use gloo" in line


@pytest.mark.slow
def test_a_call_of_nccl_that_does_not_return_is_ended_by_force(
    rank_server: RankServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """As while the communicator is created. After 2 s the run has failed; the process is ended 8 s later."""
    ends = ends_of(rank_server, {**environment, "PACE": "300"}, tmp_path, "nccl that never responds")
    assert [end.status for end in ends] == [1, 1]
    (said,) = "".join(end.stderr for end in ends).splitlines()
    assert said.startswith("error: NCCL did not finish its first collective within 2 s")
    assert "omit backend='nccl' to use gloo" in said


def test_on_the_command_line(fidtool: Run, tmp_path: Path) -> None:
    """Ranks without a GPU: a warning, and the same bits."""
    real, fake = (make_pictures(tmp_path / name, 9, seed) for seed, name in enumerate(("real", "fake")))
    common = ("compute", real, fake, "--extractor", TINY, "--batch-size", 2, "--no-cache", "--json")
    with_nccl = fidtool(*common, "--backend", "nccl", ranks=2)
    said = "warning: gloo is used instead of --backend nccl: NCCL needs an NVIDIA GPU, not cpu (rank 0)\n"
    assert with_nccl.stderr.count(said) == 1
    assert with_nccl.json["run"]["backend"] == "gloo"
    assert with_nccl.json["run"]["warnings"] == [said.removeprefix("warning: ").rstrip()]
    alone = fidtool(*common, "--backend", "nccl")
    assert (alone.json["run"]["backend"], alone.stderr.count("gloo")) == ("none", 0), "one rank sends nothing"
    assert with_nccl.fid == alone.fid
