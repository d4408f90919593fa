"""Decoding if workers cannot be started."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import fidtool as package
from support.pictures import make_pictures
from support.places import TINY


def test_decoding_works_if_processes_cannot_start(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, the system refuses to create the second process."""
    images = make_pictures(tmp_path / "images", 10)
    start = multiprocessing.Process.start

    def refused(process: multiprocessing.Process) -> None:
        if multiprocessing.active_children():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(multiprocessing.Process, "start", refused)
    evaluation = package.compute(
        images, images, extractor=TINY, num_workers=2, batch_size=2, cache=False
    )
    (warning,) = evaluation.run.warnings
    assert "cannot start decoding workers (Resource temporarily unavailable)" in str(warning)
    assert not multiprocessing.active_children()
    assert evaluation.results[0].real.count == 10
