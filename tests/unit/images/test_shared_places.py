"""Decoding if workers cannot be started or shared memory is too small."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fidtool as package
from fidtool.images import loader, workers
from support.pictures import make_pictures
from support.places import TINY


def test_decoding_works_if_processes_cannot_start(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, the system refuses to create the second process."""
    images = make_pictures(tmp_path / "images", 10)
    start = workers._start

    def refused(work: Any, number: int) -> Any:
        if number:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(work, number)

    monkeypatch.setattr(workers, "_start", refused)
    evaluation = package.compute(images, images, extractor=TINY, num_workers=2, batch_size=2, cache=False)
    (warning,) = evaluation.run.warnings
    assert "cannot start decoding workers (Resource temporarily unavailable)" in warning
    assert not multiprocessing.active_children()
    assert evaluation.results[0].real.count == 10


def test_batches_too_large_for_shared_memory_are_sent_by_pipe(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are identical with and without shared memory."""
    images, fake = make_pictures(tmp_path / "images", 20), make_pictures(tmp_path / "fake", 20, 2)
    settings: dict[str, Any] = {"extractor": TINY, "num_workers": 2, "batch_size": 5, "cache": False}
    roomy = package.compute(images, fake, **settings)
    assert roomy.run.warnings == ()
    statvfs = os.statvfs

    def full(path: Any) -> Any:
        return SimpleNamespace(f_bavail=10, f_frsize=1024, f_flag=0) if path == "/dev/shm" else statvfs(path)

    monkeypatch.setattr(os, "statvfs", full)
    monkeypatch.setattr(loader, "_PIPE_BYTES", 1)
    cramped = package.compute(images, fake, **settings)
    (warning,) = cramped.run.warnings
    assert "too small for decoded batches" in warning
    assert cramped.frechet_distance == roomy.frechet_distance
