"""The recipes of the guide's page about parts: each runs, and gives the bits of a single
run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.documents import read_document
from support.pages import GUIDE, PAGES, blocks, commands, programs
from support.pictures import make_pictures
from support.places import ROOT, SUPPORT
from support.processes import PATIENCE, clean_environment, free_port, wait_until
from support.ranks import RankServer

PAGE = PAGES[GUIDE / "parts.md"]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
RECIPES = [name for name, text in SECTIONS.items() if commands(text) and name != "accelerate"]
PACKAGES = {"Ray": "ray", "Dask": "distributed", "submitit": "submitit", "Kubernetes": "yaml"}
SLOW = ("Ray", "Dask")
"""Recipes whose engines take more than eight seconds to start and to end."""

SMALLER = {
    "16": "3",
    "--jobs 8": "--jobs 2",
    '"fake/", ': '"fake/", dims=64, batch_size=2, ',
    "ray.init()": "ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20)",
    "num_gpus=1": "num_cpus=1",
    "LocalCluster(": "LocalCluster(n_workers=2, dashboard_address=None, ",
    'AutoExecutor(folder="jobs")': 'AutoExecutor(folder="jobs", cluster="local")',
}
"""Replacements for what a test machine does not have: three parts of twelve images, and two workers
without a GPU.
"""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, weights_cache: Path, rank_server: RankServer
) -> tuple[Path, dict[str, str]]:
    """A folder with the sets and the statistics of a single run, and the environment of commands in
    it.
    """
    folder = tmp_path_factory.mktemp("jobs")
    for number, name in enumerate(("real", "fake")):
        make_pictures(folder / name, 12, number)
    (folder / "pyproject.toml").write_text("[tool.fidtool]\ndims = 64\nbatch_size = 2\n")
    (folder / "cache").mkdir()
    (folder / "cache" / "weights").symlink_to(weights_cache)
    (folder / "bin").mkdir()
    stand_ins = {"fidtool": rank_server.stand_in("fidtool", []), "python": [sys.executable]}
    stand_ins |= {
        name: [sys.executable, str(SUPPORT / "clusters" / f"{name}.py")]
        for name in ("sbatch", "kubectl")
    }
    for name, command in stand_ins.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    path = os.pathsep.join(
        [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    own = {
        "PATH": path,
        "FIDTOOL_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    environment = {**clean_environment(), **own}
    shell("fidtool stats fake/ --no-cache -o single.npz", folder, environment)
    shell("fidtool stats real/ --no-cache -o real.npz", folder, environment)
    return folder, environment


@pytest.fixture
def place(cluster: tuple[Path, dict[str, str]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder of its own with the same contents, and an environment whose statistics are not
    cached yet.
    """
    folder, environment = cluster
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "weights").symlink_to(folder / "cache" / "weights")
    return tmp_path, {**environment, "FIDTOOL_CACHE": str(tmp_path / "cache")}


def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    run = ["bash", "-eo", "pipefail", "-c", command]
    done = subprocess.run(
        run, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def smaller(text: str) -> str:
    for shown, run in SMALLER.items():
        text = text.replace(shown, run)
    return text


def write_files(section: str, folder: Path) -> None:
    """Write the files that a recipe shows, under the names that its text gives them."""
    for name, content in programs(section):
        (folder / name).write_text(smaller(content))
    for language, content in blocks(section):
        if language == "yaml" or content.startswith("#!"):
            (name,) = re.findall(r"`(\w+\.(?:yaml|sbatch))`", section)[:1]
            (folder / name).write_text(smaller(content))


def assert_single_run(folder: Path) -> None:
    """Check that ``fake.npz`` has the bits of a single run, in all but the record of the run."""
    single, merged = (dict(np.load(folder / name)) for name in ("single.npz", "fake.npz"))
    assert single.keys() == merged.keys()
    assert not [
        name for name in single.keys() - {"run"} if single[name].tobytes() != merged[name].tobytes()
    ]
    assert int(merged["count"]) == 12


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RECIPES],
)
def test_recipe(name: str, place: tuple[Path, dict[str, str]], short_folder: Path) -> None:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason=f"needs {PACKAGES[name]}, from the extra 'test'")
    folder, environment = place
    if name == "GNU parallel" and not is_gnu_parallel(environment):
        pytest.skip("needs GNU parallel")
    environment |= {
        "RAY_TMPDIR": str(short_folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    write_files(SECTIONS[name], folder)
    for command in commands(SECTIONS[name]):
        shell(smaller(command), folder, environment)
    assert_single_run(folder)
    assert float(shell("fidtool compute real.npz fake.npz --value", folder, environment)) == float(
        shell("fidtool compute real.npz single.npz --value", folder, environment)
    )


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for Ray's sockets, and of which no process is left at the
    end.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    yield folder
    wait_until(lambda: not processes_with(str(folder)), "a process is left")
    shutil.rmtree(folder)


def processes_with(text: str) -> list[str]:
    """Return the command lines of the processes that have a text in theirs."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [line for line in found if text in line]


def is_gnu_parallel(environment: dict[str, str]) -> bool:
    """Whether GNU parallel is installed, and not the command of the same name from moreutils."""
    if shutil.which("parallel", path=environment["PATH"]) is None:
        return False
    done = subprocess.run(
        ["parallel", "--version"], env=environment, capture_output=True, text=True
    )
    return "GNU parallel" in done.stdout


def test_a_part_of_an_array_is_done_again_alone(place: tuple[Path, dict[str, str]]) -> None:
    """A new array of one task counts one task: PARTS says how many there were."""
    folder, environment = place
    write_files(SECTIONS["SLURM"], folder)
    submit = " && ".join(commands(SECTIONS["SLURM"]))
    (again,) = re.findall(r"`(PARTS=16 sbatch [^`]*)`", SECTIONS["SLURM"])
    shell(smaller(submit), folder, environment)
    (folder / "parts" / "2.npz").unlink()
    (folder / "fake.npz").unlink()
    shell(smaller(again).replace("--array=7", "--array=2"), folder, environment)
    shell("fidtool merge parts/*.npz -o fake.npz", folder, environment)
    assert_single_run(folder)


def test_accelerate_starts_the_ranks_of_one_run(place: tuple[Path, dict[str, str]]) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate, from the extra 'test'")
    folder, environment = place
    (command,) = commands(SECTIONS["accelerate"])
    command = command.replace(
        "--num_processes 8", f"--num_processes 2 --main_process_port {free_port()}"
    )
    command += " -o fid.json"
    printed = shell(command, folder, environment)
    assert re.fullmatch(r"FID \(64 dimensions\): \S+\n", printed)
    document = read_document(folder / "fid.json")
    assert document["run"]["world_size"] == 2
    alone = shell("fidtool compute real/ fake/ --no-cache --value", folder, environment)
    assert document["results"][0]["metrics"]["fid_64"] == float(alone)


def test_plan_follows_from_its_constants() -> None:
    """The table for 100 million images, recomputed; what is measured stands in the page about
    speed.
    """
    constants, results = (
        table(text) for language, text in blocks(plan()) if language == "text" and "$" in text
    )
    speed, listing, memory, sums, size, start, price = (
        float(values[0]) for values in constants.values()
    )
    images, gpus = 1e8, 8
    jobs = [float(number) for number in results["jobs"]]
    expected = {
        "images of a job, million": [images / each / 1e6 for each in jobs],
        "extract, s": [images / each / gpus / speed for each in jobs],
        "list the set, s": [images * listing for _ in jobs],
        "together, s": [images / each / gpus / speed + images * listing + start for each in jobs],
        "GPU-hours": [
            each * gpus * (images / each / gpus / speed + images * listing + start) / 3600
            for each in jobs
        ],
        "read by a job, MB/s": [gpus * speed * size / 1e6 for _ in jobs],
        "read in all, TB": [images * size / 1e12 for _ in jobs],
        "memory for the list, GiB": [images * memory / 2**30 for _ in jobs],
        "sums moved to merge, GB": [(each * sums * 1e6 + 8 * images) / 1e9 for each in jobs],
    }
    expected["cost, $"] = [price * hours for hours in expected["GPU-hours"]]
    assert results.keys() == {"jobs", *expected}
    for name, values in expected.items():
        for value, written in zip(values, results[name], strict=True):
            decimals = len(written.partition(".")[2])
            assert written == f"{value:.{decimals}f}", name


def test_measured_constants_of_the_plan_are_those_of_the_benchmarks() -> None:
    shown = " ".join(PAGES[GUIDE / "benchmarks.md"].split())
    for found in (
        "reached 1,418 images/s",
        "27 µs and 665 bytes per image",
        "7 % off at 80,000 images",
    ):
        assert found in shown
    triangle = 2048 * 2049 // 2
    assert 8 * (2048 * 2048 + 2 * 2048 + 2 * triangle) == pytest.approx(67.2e6, abs=0.05e6)
    assert "two limbs" in plan()


def test_size_of_a_part(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    (size,) = re.findall(
        r"a part has (\S+) MB: .+ adds its name and (\d+) bytes; .+ it adds (\d+) bytes\.",
        " ".join(PAGE.split()),
    )
    assert float(size[0]) == pytest.approx(
        8e-6 * (2048 * 2048 + 2 * 2048 + 2048 * 2049 // 2), abs=0.05
    )
    for flag, stated in zip(("", "--no-diagnosis"), size[1:], strict=True):
        shell(f"fidtool stats fake/ --part 1/2 {flag} --force -o part.npz", folder, environment)
        part = dict(np.load(folder / "part.npz"))
        images = int(part["count"])
        each = [
            array.nbytes // images for array in part.values() if array.ndim and len(array) == images
        ]
        assert sum(each) == int(stated)


def plan() -> str:
    return SECTIONS["A plan for 100 million images"]


def table(text: str) -> dict[str, list[str]]:
    """Return the numbers of each row by its name."""
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines()]
    return {name: [value.replace(",", "") for value in values] for name, *values in rows}
