"""Decoding processes where shared memory is small, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TINY, Run, make_pictures

import fidtool as package
from fidtool.images import loader

NAMESPACES = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def in_a_container(environment: dict[str, str], cwd: Path, mount: str, *arguments: object) -> Any:
    """Runs the command line where /dev/shm is what the shell command ``mount`` makes of it."""
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -m fidtool "$@"', sys.executable, *map(str, arguments)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


MOUNTS = {
    "1 MiB": ("mount -t tmpfs -o size=1m tmpfs /dev/shm", "/dev/shm is too small for decoded batches"),
    "nothing": ("mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /dev/shm", "cannot be started"),
    "read-only": ("mount -o remount,bind,ro /dev/shm", "cannot be started"),
}


@pytest.mark.skipif(not NAMESPACES, reason="only root may mount; the two tests below do without")
@pytest.mark.parametrize("mount", MOUNTS)
def test_small_shared_memory_is_said_and_no_obstacle(
    environment: dict[str, str], here: Run, tmp_path: Path, mount: str
) -> None:
    """Batches of 16 pictures of 400 x 400 take 7.7 MB."""
    images = make_pictures(tmp_path / "images", 40, sides=(400,))
    arguments = ["compute", images, images, "--extractor", TINY, "--no-cache", "--json", "--quiet"]
    command, message = MOUNTS[mount]
    done = in_a_container(environment, tmp_path, command, *arguments, "--num-workers", 2)
    assert done.returncode == 0, done.stderr
    plain = here(*arguments)
    (warning,) = done.stderr.splitlines()
    assert message in warning
    import json

    result = json.loads(done.stdout)
    assert result["results"] == plain.json["results"]
    assert any(message in line for line in result["run"]["warnings"])


def test_processes_that_cannot_start_are_done_without(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: here the system has no processes left."""
    images = make_pictures(tmp_path / "images", 10)
    iterator = loader.DataLoader.__iter__

    def refused(self: Any) -> Any:
        if self.num_workers:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return iterator(self)

    monkeypatch.setattr(loader.DataLoader, "__iter__", refused)
    evaluation = package.compute(images, images, extractor=TINY, num_workers=2, cache=False)
    (warning,) = evaluation.run.warnings
    assert "cannot be started (Resource temporarily unavailable" in warning
    assert evaluation.results[0].count_real == 10


def test_batches_too_large_for_shared_memory_go_by_pipe(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways give the same bits."""
    images, fake = make_pictures(tmp_path / "images", 40), make_pictures(tmp_path / "fake", 40, 2)
    settings: dict[str, Any] = {"extractor": TINY, "num_workers": 2, "cache": False}
    roomy = package.compute(images, fake, **settings)
    assert roomy.run.warnings == ()
    statvfs = os.statvfs

    def full(path: Any) -> Any:
        return SimpleNamespace(f_bavail=10, f_frsize=1024) if path == "/dev/shm" else statvfs(path)

    monkeypatch.setattr(os, "statvfs", full)
    cramped = package.compute(images, fake, **settings)
    (warning,) = cramped.run.warnings
    assert "too small for decoded batches" in warning
    assert cramped.fid == roomy.fid
