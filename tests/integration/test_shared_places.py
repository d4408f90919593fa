"""Shared, small, read-only or damaged locations: /dev/shm, the cache, the home folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.processes import PATIENCE
from support.ranks import RankServer

NAMESPACES = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def in_a_container(environment: dict[str, str], cwd: Path, mount: str, *arguments: object) -> Any:
    """Run the command line in a mount namespace, after the shell command ``mount``."""
    return subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f'{mount} && exec "$0" -m fidtool "$@"',
            sys.executable,
            *map(str, arguments),
        ],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
@pytest.mark.skipif(not NAMESPACES, reason="needs root to mount")
def test_decoding_workers_do_not_need_dev_shm(
    environment: dict[str, str], here: Run, tmp_path: Path
) -> None:
    """Batches of 16 images of 400 x 400 take 7.7 MB."""
    images = make_pictures(tmp_path / "images", 20, sides=(400,))
    arguments = ["compute", images, images, "--extractor", TINY, "--no-cache", "--json", "--quiet"]
    mount = "mount -t tmpfs -o size=4k,ro tmpfs /dev/shm"
    done = in_a_container(environment, tmp_path, mount, *arguments, "--num-workers", 2)
    assert done.returncode == 0, done.stderr
    plain = here(*arguments)
    assert done.stderr == plain.stderr
    assert json.loads(done.stdout)["results"] == plain.json["results"]


INCEPTION = ["--dims", 64, "--json", "--quiet"]


def test_a_read_only_home_gives_a_warning(fidtool: Run, tmp_path: Path) -> None:
    """Not even root can create files in /sys. Inception's weights would be stored there as well."""
    images, fake = make_pictures(tmp_path / "images", 9, 1), make_pictures(tmp_path / "fake", 9, 2)
    normal = fidtool("compute", images, fake, *INCEPTION)
    home = fidtool(
        "compute", images, fake, *INCEPTION, HOME="/sys", FIDTOOL_CACHE="", XDG_CACHE_HOME=""
    )
    assert home.status == 0, home.stderr
    assert home.json["results"] == normal.json["results"]
    lines = home.stderr.splitlines()
    assert len(lines) == len(set(lines))
    assert [
        line
        for line in lines
        if line.startswith("warning: the statistics are not cached: /sys/.cache")
    ]


def test_two_simultaneous_runs_share_an_empty_cache(
    environment: dict[str, str], empty_cache: Path, tmp_path: Path, rank_server: RankServer
) -> None:
    """Both convert the weights and fill the cache. A third run finds both sets in it."""
    images, fake = make_pictures(tmp_path / "images", 9, 1), make_pictures(tmp_path / "fake", 9, 2)
    time.sleep(0.1)  # younger files are not cached
    command = rank_server.stand_in("fidtool", ["compute", images, fake, *INCEPTION])

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )

    both = [process.communicate(timeout=PATIENCE)[0] for process in [started(), started()]]
    results = [
        json.loads(stdout)["results"]
        for stdout in [*both, started().communicate(timeout=PATIENCE)[0]]
    ]
    assert results[0] == results[1] == results[2]
    entries = [path.name for path in empty_cache.rglob("*") if path.is_file()]
    assert sum(name.endswith(".npz") for name in entries) == 2
    assert not [name for name in entries if name.endswith(".tmp")]
